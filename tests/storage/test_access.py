"""Tokens, sessions and the audit log on every database: read as they were written, and bounded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tempopt.storage import Store, access
from tempopt.storage.access import MAX_SESSIONS
from tempopt.storage.access_rows import AuditRow, SessionRow, TokenRow

NOW = datetime(2026, 3, 4, 5, 6, 7, 123456, tzinfo=UTC)


def _token(id: str = "3f9a1c02b7de", *, created_at: datetime = NOW) -> TokenRow:
    return TokenRow(
        id=id,
        name="Cluster",
        digest="0" * 64,
        scopes=("view", "agent"),
        studies="Vision-",
        created=created_at,
        expires=created_at + timedelta(days=30),
        created_by="ada@example.com",
    )


def _row(
    number: int = 0, *, status: int = 200, study: str = "", detail: str = "", action: str = ""
) -> AuditRow:
    return AuditRow(
        number=number,
        moment=NOW,
        name="cluster",
        token="3f9a1c02b7de",
        address="192.0.2.7",
        action=action or f"POST /api/studies/{study}/pause",
        status=status,
        study=study,
        detail=detail,
    )


def test_tokens_are_read_as_they_were_written_oldest_first(store: Store) -> None:
    young, old_token = _token("b" * 12), _token("c" * 12, created_at=NOW - timedelta(days=1))
    store.add_token(young)
    store.add_token(old_token)
    assert store.tokens() == [old_token, young]
    assert store.token(young.id) == young
    assert store.token(young.id.upper()) is None
    assert store.token("unknown") is None


def test_a_token_is_revoked_once_and_stays_so(store: Store) -> None:
    store.add_token(_token())
    assert store.revoke_token(_token().id)
    first = store.token(_token().id)
    assert first is not None and first.revoked is not None
    assert not store.revoke_token(_token().id)
    assert not store.revoke_token("unknown")
    assert store.tokens() == [first]


def test_the_last_use_of_a_token_is_the_latest_that_was_told(store: Store) -> None:
    store.add_token(_token())
    for moment in (NOW, NOW + timedelta(hours=1), NOW + timedelta(minutes=1)):
        store.use_token(_token().id, moment)
    store.use_token("unknown", NOW)
    token_row = store.token(_token().id)
    assert token_row is not None and token_row.used == NOW + timedelta(hours=1)


def test_what_was_done_is_read_newest_first_by_pages_and_by_study(store: Store) -> None:
    store.audit([])
    store.audit([_row(study="a"), _row(study="A")])
    store.audit([_row(study="a", status=403, detail="long " * 100 + "\0")])
    rows = store.audit_rows()
    assert [(row.study, row.status) for row in rows] == [("a", 403), ("A", 200), ("a", 200)]
    assert sorted(row.number for row in rows) == [row.number for row in reversed(rows)]
    assert (rows[1].moment, rows[1].address, rows[1].token) == (NOW, "192.0.2.7", "3f9a1c02b7de")
    assert rows[0].detail.startswith("long long") and len(rows[0].detail) == 255
    assert store.audit_rows(limit=1) == rows[:1]
    assert store.audit_rows(before=rows[0].number, limit=1) == rows[1:2]
    assert store.audit_rows(study="a") == [rows[0], rows[2]]


def test_what_is_refused_does_not_drive_out_what_was_done(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "MAX_AUDIT_ROWS", 20)
    monkeypatch.setattr(access, "MAX_REFUSED_AUDIT_ROWS", 5)
    store.audit([_row(study="kept")])
    store.audit([_row(status=401) for _ in range(500)])
    monkeypatch.setattr(access, "MAX_AGENT_AUDIT_ROWS", 7)
    store.audit(
        [_row(action=f"POST /api/agents/{action}") for action in ("join", "leave") for _ in range(300)]
    )
    rows = store.audit_rows(limit=1000)
    assert sum(row.action == "POST /api/agents/leave" for row in rows) == 7
    assert [row.study for row in rows if row.status < 400 and "/api/studies" in row.action] == ["kept"]
    assert sum(row.status == 401 for row in rows) == 5
    store.audit([_row() for _ in range(500)])
    rows = store.audit_rows(limit=1000)
    assert sum(row.status < 400 and "/api/studies" in row.action for row in rows) == 20
    assert store.audit_rows(study="kept") == []
    # deleted numbers are never given again
    last = rows[0].number
    store.audit([_row()])
    assert store.audit_rows(limit=1)[0].number > last


# ---- sessions


NOW = datetime(2026, 3, 4, 5, 6, 7, 123456, tzinfo=UTC)


def _session(digest: str, *, token: str = "3f9a1c02b7de", created_at: datetime = NOW) -> SessionRow:
    return SessionRow(digest=digest, token=token, created=created_at, expires=created_at + timedelta(days=1))


def test_a_session_is_read_as_it_was_written_until_it_is_ended(store: Store) -> None:
    session, other_session = _session("a" * 64), _session("b" * 64)
    store.add_session(session)
    store.add_session(other_session)
    assert store.session(session.digest) == session
    assert store.session(session.digest.upper()) is None
    store.end_session(session.digest)
    store.end_session(session.digest)
    assert store.session(session.digest) is None
    assert store.session(other_session.digest) == other_session


def test_of_one_token_the_newest_sessions_are_kept_and_none_that_is_over(store: Store) -> None:
    store.add_session(_session("over", token="other", created_at=NOW - timedelta(days=2)))
    for number in range(MAX_SESSIONS + 3):
        store.add_session(_session(f"{number}", created_at=NOW + timedelta(seconds=number)))
    store.add_session(_session("theirs", token="other"))
    numbers = [n for n in range(MAX_SESSIONS + 3) if store.session(f"{n}") is not None]
    assert numbers == list(range(3, MAX_SESSIONS + 3))
    assert store.session("over") is None
    assert store.session("theirs") is not None
