"""The code of studies on a server: who may send it, what is refused, who gets it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tempopt.bundle.archive import digest_of, packed
from tempopt.server import bundles
from tempopt.server.tokens import made
from tests.bundle.archives import ATTACKS, HONEST
from tests.pool.conftest import begin
from tests.server.conftest import Served
from tests.toy_study import SMALL, toy_spec

DIGEST = digest_of(HONEST)
OTHER = packed({"model.py": b"VALUE = 2\n"})


def put(served: Served, archive: bytes, digest: str, token: str, name: str = "toy") -> httpx.Response:
    return httpx.put(
        f"{served.url}/api/studies/{name}/code/{digest}",
        content=archive,
        headers={"authorization": f"Bearer {token}"},
        timeout=60.0,
    )


def get(served: Served, token: str, name: str = "toy") -> httpx.Response:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.get(f"{served.url}/api/studies/{name}/code", headers=headers, timeout=60.0)


def submit(served: Served, token: str, **study: object) -> httpx.Response:
    body = {"spec": toy_spec(**(SMALL | {"learned": False, "init_only": False} | study))}
    headers = {"authorization": f"Bearer {token}"}
    return httpx.post(f"{served.url}/api/studies", json=body, headers=headers, timeout=60.0)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_what_is_sent_is_what_agents_get(served: Served) -> None:
    sender, agent = served.new_token("submit"), served.new_token("agent")
    answer = put(served, HONEST, DIGEST, sender)
    assert answer.json() == {"bytes": len(HONEST), "files": 3}
    assert put(served, HONEST, DIGEST, sender).is_success
    begin(served.store, code=DIGEST)
    assert get(served, agent).content == HONEST
    assert (served.checkpoints / "toy" / "code" / f"{DIGEST}.tar").read_bytes() == HONEST


def test_a_study_is_begun_only_once_its_code_has_come(served: Served) -> None:
    sender = served.new_token("submit")
    answer = submit(served, sender, code=DIGEST)
    assert code(answer) == (409, "code_not_found") and "--with-code DIR" in answer.text
    put(served, HONEST, DIGEST, sender)
    assert "code_not_found" not in submit(served, sender, code=DIGEST).text


@pytest.mark.parametrize("scopes", [("agent",), ("view",)])
def test_only_who_may_begin_studies_sends_code(served: Served, scopes: tuple[str, ...]) -> None:
    assert code(put(served, HONEST, DIGEST, served.new_token(*scopes))) == (403, "forbidden")
    assert not served.checkpoints.exists()


def test_a_token_sends_and_gets_the_code_of_its_own_studies_alone(served: Served) -> None:
    token, _ = made(served.store, name="ada", scopes=["submit", "agent"], studies="ada-")
    assert put(served, HONEST, DIGEST, token).status_code in (403, 404)
    put(served, HONEST, DIGEST, served.token)
    begin(served.store, code=DIGEST)
    assert code(get(served, token)) == (404, "study_not_found")
    assert put(served, HONEST, DIGEST, token, "ada-1").is_success


def test_a_study_without_code_has_none_to_get(served: Served) -> None:
    begin(served.store)
    assert code(get(served, served.token)) == (404, "code_not_found")


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name != "more bytes than are allowed"])
def test_an_attack_is_not_kept(served: Served, attack: str) -> None:
    archive, _ = ATTACKS[attack]
    assert put(served, archive, digest_of(archive), served.token).status_code in (400, 413)
    assert not served.checkpoints.exists()


def test_another_hash_than_that_of_the_path_is_refused(served: Served) -> None:
    answer = put(served, OTHER, DIGEST, served.token)
    assert code(answer) == (400, "usage") and "was changed" in answer.text
    for name in ("../../etc", "A" * 64, "0" * 63):
        assert not put(served, OTHER, name, served.token).is_success
    assert not served.checkpoints.exists()


def test_what_is_too_large_is_refused(served: Served) -> None:
    for size in (16_000_512, 17_000_000):
        given = bytes(size)
        assert put(served, given, digest_of(given), served.token).status_code in (400, 413)


def test_a_study_keeps_the_code_that_it_was_begun_with(served: Served) -> None:
    put(served, HONEST, DIGEST, served.token)
    begin(served.store, code=DIGEST)
    answer = put(served, OTHER, digest_of(OTHER), served.token)
    assert code(answer) == (409, "study_changed")
    assert get(served, served.token).content == HONEST


def test_what_was_changed_where_it_lies_is_not_given(served: Served) -> None:
    put(served, HONEST, DIGEST, served.token)
    begin(served.store, code=DIGEST)
    (served.checkpoints / "toy" / "code" / f"{DIGEST}.tar").write_bytes(OTHER)
    answer = get(served, served.token)
    assert answer.status_code == 400 and OTHER not in answer.content


def test_code_of_studies_that_were_never_begun_does_not_pile_up(served: Served) -> None:
    def lying() -> list[Path]:
        return list((served.checkpoints / "toy" / "code").iterdir())

    for number in range(3 * bundles.MOST_KEPT):
        archive = packed({"model.py": f"VALUE = {number}\n".encode()})
        assert put(served, archive, digest_of(archive), served.token).is_success
        assert len(lying()) <= bundles.MOST_KEPT
    assert lying()
