"""``tempopt token`` on a database and against a server: the same words, and a secret that is shown once."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tempopt import cli
from tempopt.server.tokens import TOKEN, create_token, token_matches_row
from tests.server.conftest import RunningServer
from tests.server.conftest import running_server as running_server


@pytest.fixture(params=["database", "server"])
def storage(request: pytest.FixtureRequest, running_server: RunningServer) -> str:
    """What the command is given; both are one place."""
    return running_server.storage if request.param == "database" else running_server.url


def _run_token(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    assert cli.main(["token", *words]) == code
    out, err = capsys.readouterr()
    return out, err


def test_a_new_token_is_all_that_standard_output_gets(
    storage: str, running_server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--name", "cluster", "--scope", "agent", "--scope", "view", "--studies", "vision-"]
    out, err = _run_token(capsys, "create", *words, "--expires", "30d", "--storage", storage)
    token = out.removesuffix("\n")
    parts = TOKEN.fullmatch(token)
    assert parts is not None and parts[1] in err and token not in err
    row = running_server.store.token(parts[1])
    assert row is not None and token_matches_row(token, row)
    assert (row.name, row.scopes, row.studies) == ("cluster", ("view", "agent"), "vision-")
    assert row.expires is not None and row.expires - row.created == timedelta(days=30)
    out, err = _run_token(capsys, "list", "--storage", storage)
    assert parts[1] in out and row.digest not in out + err and token.split("_", 2)[2] not in out + err


def test_a_token_is_listed_with_its_state(
    storage: str, running_server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, life in (("late", timedelta(seconds=-1)), ("gone", None), ("good", timedelta(days=1))):
        _, row = create_token(running_server.store, name=name, scopes=["view"], life=life)
        if name == "gone":
            running_server.store.revoke_token(row.id)
    out, _ = _run_token(capsys, "list", "--json", "--storage", storage)
    rows = {row["name"]: row for row in json.loads(out)}
    states = {name: row["state"] for name, row in rows.items()}
    assert states == {"admin": "valid", "late": "expired", "gone": "revoked", "good": "valid"}
    assert rows["good"]["scopes"] == "view" and rows["good"]["studies"] == "all"
    assert rows["good"].keys().isdisjoint({"digest", "token"})


def test_a_token_is_revoked_by_its_id(
    storage: str, running_server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    _, row = create_token(running_server.store, name="gone", scopes=["view"])
    for _ in range(2):
        out, _ = _run_token(capsys, "revoke", row.id, "--storage", storage)
        assert row.id in out and "gone" in out
    token_row = running_server.store.token(row.id)
    assert token_row is not None and token_row.revoked is not None
    for unknown_id in ("000000000000", "../studies/toy"):
        _, err = _run_token(capsys, "revoke", unknown_id, "--storage", storage, code=2)
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["create", "--name", "a"], "a name and a scope"),
        (["create", "--scope", "view"], "a name and a scope"),
        (["create", "id", "--name", "a", "--scope", "view"], "goes with revoke"),
        (["create", "--name", "a", "--scope", "view", "--json"], "tempopt token list"),
        (["create", "--name", "a", "--scope", "view", "--expires", "soon"], "as in 30d"),
        (
            ["create", "--name", "a", "--scope", "view", "--studies", "a b"],
            '"a b" cannot begin the name of a study',
        ),
        (["create", "--name", "a b", "--scope", "view"], "the name of a token"),
        (["revoke"], "goes with revoke"),
        (["revoke", "id", "--studies", "a"], "--studies is for tempopt token create"),
        (["list", "--scope", "view"], "--scope is for tempopt token create"),
        (["list", "id"], "goes with revoke"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence(
    words: list[str],
    fragment: str,
    storage: str,
    running_server: RunningServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, err = _run_token(capsys, *words, "--storage", storage, code=2)
    assert fragment in err and (fragment in out if "--json" in words else out == "")
    assert [row.name for row in running_server.store.tokens()] == ["admin"]


@pytest.mark.parametrize("scope", ["view", "submit", "agent"])
def test_a_server_gives_tokens_to_none_but_admins(
    scope: str,
    running_server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TEMPOPT_TOKEN", running_server.new_token(scope))
    _, err = _run_token(
        capsys, "create", "--name", "a", "--scope", "admin", "--storage", running_server.url, code=2
    )
    assert "admin" in err and len(running_server.store.tokens()) == 2


def test_a_token_that_was_given_in_place_of_its_id_is_not_shown(
    storage: str, running_server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    token, _ = create_token(running_server.store, name="pasted", scopes=["view"])
    out, err = _run_token(capsys, "revoke", token, "--storage", storage, code=2)
    assert token.split("_", 2)[2] not in out + err
    assert token.split("_", 2)[2] not in str(running_server.store.audit_rows())
