"""A disk under a search, or under its server, is full, read-only or closed for a while: nothing is lost."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.full_disk import BEGINNINGS, CASES, TICKETS, begin, carry_out, why_not
from tests.cluster.studies import Record

pytestmark = pytest.mark.long

# What does not concern the store is the same with every store.
_OF_A_STORE = (
    "outbox",
    "the server's tables",
    "the server's disk",
    "the server's write-ahead log",
    "the server read-only",
)
_FIRST = (("sqlite", "database"), ("postgresql", "the server's disk"))


def _rows(names: Iterable[str]) -> list[Any]:
    """Return database and case, of which all but the first are nightly."""
    rows = [(backend, name) for name in names for backend in CASES[name].backends]
    return [
        pytest.param(backend, name, marks=() if (backend, name) in _FIRST else (pytest.mark.nightly,))
        for backend, name in rows
        if backend == "sqlite" or name in _OF_A_STORE
    ]


@pytest.mark.parametrize(("backend", "name"), _rows(CASES))
def test_a_search_whose_disk_refuses_for_a_while_ends_as_an_undisturbed_one(
    backend: str, name: str, undisturbed_record: Callable[[int], Record]
) -> None:
    if reason := why_not(backend):
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as folder:
        outcome = carry_out(backend, name, Path(folder), undisturbed_record(TICKETS))
    assert (outcome.code, outcome.resumed, outcome.differences) == (0, False, []), outcome.output
    assert outcome.failures == 0
    # told of checkpoints and of logs, and not with every run; what other runs delete makes room for a moment
    if notice := CASES[name].notice:
        assert 1 <= outcome.output.count(notice) <= 6, outcome.output
    if name in _OF_A_STORE:
        assert "The store is back after" in outcome.output


@pytest.mark.parametrize(("backend", "name"), _rows(BEGINNINGS))
def test_a_search_that_begins_on_a_full_disk_says_so_and_begins_once_there_is_space(
    backend: str, name: str, undisturbed_record: Callable[[int], Record]
) -> None:
    if reason := why_not(backend):
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as folder:
        outcome = begin(backend, name, Path(folder), undisturbed_record(TICKETS))
    assert outcome.code == 2
    (line,) = outcome.output.strip().splitlines()
    assert line.startswith("tempopt: error: ")
    # a server that the disk has ended can tell no more than that it is not there
    assert "Free some space" in line or "The server has crashed" in line or "refused" in line
    assert (outcome.differences, outcome.failures) == ([], 0)
