"""Agents, workers, the database and the network are struck for a while, and nothing is lost.

The longer attack, with more agents and tickets, is ``python -m tests.cluster.chaos``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.chaos import BACKENDS, Size, attack
from tests.cluster.studies import Record
from tests.servers import why_not

HTTP = [
    pytest.param("sqlite", 1, False, marks=pytest.mark.nightly),
    pytest.param("postgresql", 2, False, marks=pytest.mark.nightly),
    ("postgresql", 1, True),
]
AGAIN = [
    backend if backend == "sqlite" else pytest.param(backend, marks=pytest.mark.nightly)
    for backend in BACKENDS
]
SIZE = Size(tickets=24, agents=3, seconds=40.0, every=3.5)


@pytest.mark.long
@pytest.mark.parametrize("backend", AGAIN)
def test_whatever_is_done_to_agents_and_database_every_ticket_is_done_once_and_as_in_peace(
    backend: str, tmp_path: Path, undisturbed_record: Callable[[int], Record]
) -> None:
    if backend != "sqlite" and (reason := why_not(backend)):
        pytest.skip(reason)
    attack(backend, tmp_path, SIZE, undisturbed_record(SIZE.tickets), print)


@pytest.mark.long
@pytest.mark.parametrize(("backend", "servers", "is_mixed"), HTTP)
def test_nothing_is_lost_over_http_whatever_is_done_to_servers_requests_and_tokens_besides(
    backend: str, servers: int, is_mixed: bool, tmp_path: Path, undisturbed_record: Callable[[int], Record]
) -> None:
    if backend != "sqlite" and (reason := why_not(backend)):
        pytest.skip(reason)
    attack(
        backend,
        tmp_path,
        replace(SIZE, servers=servers, mixed=is_mixed),
        undisturbed_record(SIZE.tickets),
        print,
    )
