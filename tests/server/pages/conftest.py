"""A server with studies to show, and browsers that ask for its pages."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tempopt.server.app import create_app
from tempopt.server.tokens import create_token
from tempopt.storage.opening import open_store
from tests.server.http_server import RunningServer, serve_app
from tests.server.pages.made_studies import fill


@pytest.fixture(scope="session")
def study_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with one study of each kind."""
    path = tmp_path_factory.mktemp("pages") / "studies.db"
    fill(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="module")
def site(study_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server on a copy of that database."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(study_database, folder / "studies.db")
    storage, checkpoints = f"sqlite:///{folder / 'studies.db'}", folder / "checkpoints"
    with open_store(storage) as store:
        app = create_app(store, checkpoints=checkpoints.as_uri())
        token, _ = create_token(store, name="ada", scopes=["admin"])
        with serve_app(app) as url:
            yield RunningServer(
                url=url, storage=storage, store=store, checkpoints=checkpoints, app=app, token=token
            )


class Browser(httpx.Client):
    """Asks for pages as a browser does, and sends the form to sign in."""

    def __init__(self, site: RunningServer) -> None:
        super().__init__(base_url=site.url, headers={"accept": "text/html"}, timeout=60)
        self.site, self.origin = site, {"origin": site.url}

    def sign_in(self, token: str, next_url: str = "/") -> httpx.Response:
        """Send the form that asks for a token."""
        return self.post("/sign-in", data={"token": token, "then": next_url}, headers=self.origin)


@pytest.fixture
def visitor(site: RunningServer) -> Iterator[Browser]:
    """A browser without a session."""
    with Browser(site) as browser:
        yield browser


@pytest.fixture
def sign_in(site: RunningServer) -> Iterator[Callable[..., Browser]]:
    """Sign in with a new token of some scopes, on studies whose names begin so."""
    browsers: list[Browser] = []

    def signed_in(*scopes: str, studies: str = "") -> Browser:
        browsers.append(Browser(site))
        assert browsers[-1].sign_in(site.new_token(*scopes, studies=studies)).status_code == 303
        return browsers[-1]

    yield signed_in
    for browser in browsers:
        browser.close()
