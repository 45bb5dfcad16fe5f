"""Sessions on every database: found by their digest, ended, and bounded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tempopt.storage import Store
from tempopt.storage.access import MOST_SESSIONS
from tempopt.storage.access_rows import SessionRow

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
    for number in range(MOST_SESSIONS + 3):
        store.add_session(_session(f"{number}", created_at=NOW + timedelta(seconds=number)))
    store.add_session(_session("theirs", token="other"))
    numbers = [n for n in range(MOST_SESSIONS + 3) if store.session(f"{n}") is not None]
    assert numbers == list(range(3, MOST_SESSIONS + 3))
    assert store.session("over") is None
    assert store.session("theirs") is not None
