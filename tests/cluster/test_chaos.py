"""Agents, database, servers, network and clusters are struck for a while, and nothing is lost.

The longer attack, with more agents and tickets, is ``python -m tests.cluster.chaos``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster import ray_cluster, studies
from tests.cluster.chaos import BACKENDS, SETUPS, Size, attack, why_not_setup
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
RECALL_SIZE = replace(SIZE, tickets=10, is_recall=True)


@pytest.mark.long
@pytest.mark.parametrize("backend", AGAIN)
def test_whatever_is_done_to_agents_and_database_every_ticket_is_done_once_and_as_in_peace(
    backend: str, tmp_path: Path, undisturbed_record: Callable[[int], Record]
) -> None:
    _attack(backend, SIZE, tmp_path, undisturbed_record(SIZE.tickets))


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


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.service
@ray_cluster.PATIENTLY
@pytest.mark.parametrize("launcher", ["slurm", "ray"])
def test_nothing_is_lost_on_a_cluster_whose_jobs_and_nodes_are_struck_besides(
    launcher: str, tmp_path: Path, undisturbed_record: Callable[[int], Record]
) -> None:
    _attack(launcher, SIZE, tmp_path, undisturbed_record(SIZE.tickets))


@pytest.mark.long
@pytest.mark.parametrize(
    "setup",
    [
        "sqlite",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("postgresql", "mariadb", "server")),
    ],
)
def test_a_transformer_that_trains_under_attack_has_the_numbers_of_one_that_trains_in_peace(
    setup: str, tmp_path: Path, undisturbed_record: Callable[..., Record]
) -> None:
    undisturbed = undisturbed_record(RECALL_SIZE.tickets, studies.recall_spec)
    _attack(setup, RECALL_SIZE, tmp_path, undisturbed)


def _attack(setup: str, size: Size, folder: Path, undisturbed: Record) -> None:
    if reason := why_not_setup(setup):
        pytest.skip(reason)
    backend, options = SETUPS[setup]
    attack(backend, folder, replace(size, **options), undisturbed, print)
