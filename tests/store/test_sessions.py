"""Sessions on every database: found by their digest, ended, and bounded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tempopt.records.access import SessionRow
from tempopt.store import Store
from tempopt.store.sessions import MOST_OF_ONE

NOW = datetime(2026, 3, 4, 5, 6, 7, 123456, tzinfo=UTC)


def _session(digest: str, *, token: str = "3f9a1c02b7de", created: datetime = NOW) -> SessionRow:
    return SessionRow(digest=digest, token=token, created=created, expires=created + timedelta(days=1))


def test_a_session_is_read_as_it_was_written_until_it_is_ended(store: Store) -> None:
    one, other = _session("a" * 64), _session("b" * 64)
    store.sessions.add(one)
    store.sessions.add(other)
    assert store.sessions.find(one.digest) == one
    assert store.sessions.find(one.digest.upper()) is None
    store.sessions.end(one.digest)
    store.sessions.end(one.digest)
    assert store.sessions.find(one.digest) is None
    assert store.sessions.find(other.digest) == other


def test_of_one_token_the_newest_sessions_are_kept_and_none_that_is_over(store: Store) -> None:
    store.sessions.add(_session("over", token="other", created=NOW - timedelta(days=2)))
    for number in range(MOST_OF_ONE + 3):
        store.sessions.add(_session(f"{number}", created=NOW + timedelta(seconds=number)))
    store.sessions.add(_session("theirs", token="other"))
    kept = [n for n in range(MOST_OF_ONE + 3) if store.sessions.find(f"{n}") is not None]
    assert kept == list(range(3, MOST_OF_ONE + 3))
    assert store.sessions.find("over") is None
    assert store.sessions.find("theirs") is not None
