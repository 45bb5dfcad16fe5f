"""The weights that runs start from on a server: who may send them, what is refused, who gets them."""

from __future__ import annotations

import contextlib
import hashlib
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from tempopt.errors import UsageError
from tempopt.remote.connection import ServerConnection
from tempopt.remote.filesystem import get_weights, put_weights
from tempopt.server import weights
from tempopt.server.tokens import made
from tests.server.conftest import Served
from tests.toy_study import SMALL, begin, toy_spec

GIVEN = random.Random(0).randbytes(10_000)
SHA = hashlib.sha256(GIVEN).hexdigest()
FILE = f"{SHA}.ckpt"
START = {"path": "mine.ckpt", "sha256": SHA}
UPLOAD = "0123456789abcdef"


def ask(served: Served, token: str, method: str, path: str, **given: Any) -> httpx.Response:
    url = f"{served.url}/api/studies{path and f'/{path}'}"
    headers = {"authorization": f"Bearer {token}", **given.pop("more", {})}
    return httpx.request(method, url, headers=headers, timeout=60.0, **given)


def put(
    served: Served,
    some: bytes = GIVEN,
    *,
    token: str | None = None,
    name: str = "toy",
    file: str = FILE,
    offset: int = 0,
    total: int = len(GIVEN),
) -> httpx.Response:
    told = {"upload": UPLOAD, "offset": offset, "total": total}
    path = f"{name}/weights/{file}"
    return ask(served, token or served.token, "PUT", path, params=told, content=some)


def get(served: Served, token: str, name: str = "toy", **more: str) -> httpx.Response:
    return ask(served, token, "GET", f"{name}/weights", more=more)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def at(served: Served, name: str = "toy") -> Path:
    return served.checkpoints / name / "weights" / FILE


def test_what_is_sent_in_pieces_is_what_agents_get(served: Served) -> None:
    sender, agent = served.new_token("submit"), served.new_token("agent")
    assert put(served, GIVEN[:4000], token=sender).json() == {"bytes": 4000, "whole": False}
    path = f"toy/weights/{FILE}/uploads/{UPLOAD}"
    assert ask(served, sender, "GET", path).json() == {"bytes": 4000, "whole": False}
    # a piece before it is missing, and one may come twice
    assert code(put(served, GIVEN[9000:], token=sender, offset=9000)) == (409, "piece_missing")
    for _ in range(2):
        assert put(served, GIVEN[4000:], token=sender, offset=4000).json() == {"bytes": 10000, "whole": True}
    assert ask(served, sender, "GET", path).json() == {"bytes": 10000, "whole": True}
    begin(served.store, checkpoints=None, start_from=START)
    assert get(served, agent).content == GIVEN == at(served).read_bytes()
    part = get(served, agent, range="bytes=9000-")
    assert (part.status_code, part.content) == (206, GIVEN[9000:])


def test_a_client_sends_them_once_and_an_agent_fetches_them(served: Served, tmp_path: Path) -> None:
    (tmp_path / "mine.ckpt").write_bytes(GIVEN)
    path = "/api/studies/toy/weights"
    with contextlib.closing(ServerConnection(served.url, served.token)) as connection:
        put_weights(connection, f"{path}/{FILE}", tmp_path / "mine.ckpt")
        before = at(served).stat()
        put_weights(connection, f"{path}/{FILE}", tmp_path / "mine.ckpt")
        assert at(served).stat() == before
        begin(served.store, checkpoints=None, start_from=START)
        get_weights(connection, path, tmp_path / "there" / "a.ckpt")
        assert (tmp_path / "there" / "a.ckpt").read_bytes() == GIVEN
        at(served).unlink()
        with pytest.raises(UsageError, match="cannot be fetched from"):
            get_weights(connection, path, tmp_path / "b.ckpt")
        with pytest.raises(UsageError, match="cannot be sent: There is a study"):
            put_weights(connection, f"{path}/{'0' * 64}.ckpt", tmp_path / "mine.ckpt")


def test_a_study_is_begun_only_once_its_weights_have_come(served: Served) -> None:
    def submit(start: Any) -> httpx.Response:
        study: Any = SMALL | {"learned": False, "start_from": start}
        return ask(served, served.token, "POST", "", json={"spec": toy_spec(**study)})

    answer = submit(START)
    assert code(answer) == (409, "weights_not_found") and "tempopt search SPEC" in answer.text
    assert code(submit("mine.ckpt")) == (409, "weights_not_found")
    put(served)
    assert "weights_not_found" not in submit(START).text


@pytest.mark.parametrize("scopes", [("agent",), ("view",)])
def test_only_who_may_begin_studies_sends_weights(served: Served, scopes: tuple[str, ...]) -> None:
    assert code(put(served, token=served.new_token(*scopes))) == (403, "forbidden")
    assert not served.checkpoints.exists()


def test_only_agents_get_the_weights_of_studies_that_they_may_see(served: Served) -> None:
    put(served)
    begin(served.store, checkpoints=None, start_from=START)
    assert code(get(served, served.new_token("view", "submit"))) == (403, "forbidden")
    token, _ = made(served.store, name="ada", scopes=["submit", "agent"], studies="ada-")
    assert code(get(served, token)) == (404, "study_not_found")
    assert put(served, token=token).status_code in (403, 404)
    assert put(served, token=token, name="ada-1").is_success


def test_another_hash_than_that_of_the_path_is_not_kept(served: Served) -> None:
    answer = put(served, bytes(len(GIVEN)))
    assert code(answer) == (400, "usage") and "another SHA-256" in answer.text
    assert not at(served).exists()
    for file in ("../../etc", f"{'A' * 64}.ckpt", f"{SHA}.pt", SHA):
        assert not put(served, file=file).is_success


def test_what_is_too_large_is_refused(served: Served) -> None:
    assert code(put(served, b"a", total=64 * 1024**3 + 1)) == (413, "too_large")
    assert code(put(served, GIVEN + b"a")) == (413, "too_large")


def test_a_study_keeps_the_weights_that_it_was_begun_with(served: Served) -> None:
    put(served)
    begin(served.store, checkpoints=None, start_from=START)
    other = GIVEN[::-1]
    file = f"{hashlib.sha256(other).hexdigest()}.ckpt"
    assert code(put(served, other, file=file)) == (409, "study_changed")
    # the same content is the same file, whatever it is called where it is sent
    renamed = {"path": "mine.safetensors", "sha256": SHA}
    study: Any = SMALL | {"learned": False, "start_from": renamed}
    answer = ask(served, served.token, "POST", "", json={"spec": toy_spec(**study)})
    assert "weights_not_found" not in answer.text and "begun with other weights" not in answer.text
    # what was changed where it lies is put right by who has it
    at(served).write_bytes(other)
    path = f"toy/weights/{FILE}/uploads/{UPLOAD}"
    assert ask(served, served.token, "GET", path).json() == {"bytes": 0, "whole": False}
    assert put(served).is_success and at(served).read_bytes() == GIVEN


def test_a_study_that_starts_from_none_has_none_to_get(served: Served) -> None:
    begin(served.store)
    assert code(get(served, served.token)) == (404, "weights_not_found")


def test_weights_of_studies_that_were_never_begun_do_not_pile_up(served: Served) -> None:
    for number in range(3 * weights.MOST_KEPT):
        some = bytes([number]) * 100
        put(served, some[:50], file=f"{hashlib.sha256(some).hexdigest()}.ckpt", total=100)
        assert len(list(at(served).parent.iterdir())) <= weights.MOST_KEPT
