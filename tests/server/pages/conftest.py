"""A server with studies to show, and people who are signed in to it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tempopt.server.app import create_app
from tempopt.server.tokens import made
from tempopt.store import Store
from tests.server.conftest import Served, listening
from tests.server.pages.made_studies import fill


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with one study of each kind."""
    path = tmp_path_factory.mktemp("pages") / "studies.db"
    fill(f"sqlite:///{path}")
    return path


@pytest.fixture
def site(filled: Path, tmp_path: Path) -> Iterator[Served]:
    """A server on a copy of that database."""
    shutil.copy(filled, tmp_path / "studies.db")
    storage, checkpoints = f"sqlite:///{tmp_path / 'studies.db'}", tmp_path / "checkpoints"
    with Store.open(storage) as store:
        app = create_app(store, checkpoints=checkpoints.as_uri())
        token, _ = made(store, name="ada", scopes=["admin"])
        with listening(app) as url:
            yield Served(url=url, storage=storage, store=store, checkpoints=checkpoints, app=app, token=token)


class Person(httpx.Client):
    """Somebody at a browser: asks for pages, and sends forms from pages of the server.

    Args:
        site: The server.
    """

    def __init__(self, site: Served) -> None:
        super().__init__(base_url=site.url, headers={"accept": "text/html"}, timeout=60)
        self.origin = {"origin": site.url}

    def sign_in(self, token: str, then: str = "/") -> httpx.Response:
        """Send the form that asks for a token."""
        return self.post("/sign-in", data={"token": token, "then": then}, headers=self.origin)

    def csrf(self) -> str:
        """Return what the forms of this person's pages carry."""
        found = re.search(r'name="csrf" value="([0-9a-f]{64})"', self.get("/pool").text)
        assert found is not None, "nobody is signed in"
        return found[1]

    def submit(self, path: str, **fields: str) -> httpx.Response:
        """Send a form of a page."""
        return self.post(path, data={"csrf": self.csrf(), **fields}, headers=self.origin)


@pytest.fixture
def visitor(site: Served) -> Iterator[Person]:
    """Somebody who has not signed in."""
    with Person(site) as person:
        yield person


@pytest.fixture
def ada(visitor: Person, site: Served) -> Person:
    """Somebody who may do everything, signed in."""
    assert visitor.sign_in(site.token).status_code == 303
    return visitor


@pytest.fixture
def sign_in(site: Served) -> Iterator[Callable[..., Person]]:
    """Signs somebody in with a new token of some scopes, on studies whose names begin so."""
    people: list[Person] = []

    def signed_in(*scopes: str, studies: str = "") -> Person:
        people.append(Person(site))
        assert people[-1].sign_in(site.new_token(*scopes, studies=studies)).status_code == 303
        return people[-1]

    yield signed_in
    for each in people:
        each.close()
