"""A search that ends by what it may still be worth ends at the same trial, whichever agent is first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tempopt.agent.local_client import LocalStudyClient
from tempopt.sampling.arms import SearchArms
from tempopt.storage.changes import RunEnded, RunOutcome
from tempopt.storage.opening import open_store
from tempopt.storage.rows import TicketRow
from tempopt.storage.store import Store
from tempopt.verdict.stages import more_tickets
from tests.agent.test_local_client import ClientScene, next_ticket
from tests.toy_study import URL, work_in


class EarlyEndScene(ClientScene):
    """A study of six search trials, two at a time, of which some have nothing to add, and its agents."""

    def __init__(self, store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(store, folder)
        self.worthless: set[int] = set()
        self.meanwhile: Callable[[], Any] = lambda: None
        self._patch = monkeypatch
        monkeypatch.setattr(SearchArms, "expected_improvement", self._prospect)
        arms, limits = {"baseline": 1, "constant": 1}, {"standard_errors": 0.5}
        self.begin(parallel=2, trials=6, arms=arms, limits=limits, pruner="none")
        first = self.agent("first")
        for _ in range(4):
            self.end(next_ticket(first), "first")
            first._reload()

    def _prospect(self, ticket: TicketRow) -> tuple[float, float]:
        callback, self.meanwhile = self.meanwhile, lambda: None
        callback()
        return (1e-9 if ticket.number in self.worthless else 1.0), 0.2

    def agent(self, name: str) -> LocalStudyClient:
        """Return the client of an agent of that name."""
        self._patch.setattr("tempopt.agent.local_client.agent_name", lambda: name)
        return self.client()

    def end(self, ticket: TicketRow, agent: str) -> None:
        outcomes = RunOutcome(outcome="complete", value=0.5, steps=24, seconds=1.0)
        end_change = RunEnded(ticket_id=ticket.id, attempt=ticket.attempt, outcomes=outcomes)
        assert not self.store.write(self.study.id, [end_change], agent=agent, lease=60.0).refused

    def search(self) -> list[tuple[int, str, bool]]:
        rows = self.store.tickets(self.study.id, ["search"])
        return [(row.number, row.state, row.parameters is not None) for row in rows]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EarlyEndScene]:
    work_in(tmp_path, monkeypatch)
    with open_store(URL) as store:
        yield EarlyEndScene(store, tmp_path, monkeypatch)


@pytest.mark.parametrize("order", ["AB", "BA"])
def test_who_took_a_later_ticket_ends_at_the_same_one(scene: EarlyEndScene, order: str) -> None:
    scene.worthless = {2}
    desks = {name: scene.agent(name) for name in "AB"}
    tickets_by_agent = {name: client._claim_ticket([]) for name, client in desks.items()}
    assert [ticket.number for ticket in tickets_by_agent.values() if ticket] == [2, 3]
    for name in order:
        ticket = tickets_by_agent[name]
        assert ticket is not None and desks[name]._begin_run(ticket) is None
    withdrawn_rows = [(number, "withdrawn", False) for number in range(2, 6)]
    assert scene.search() == [(0, "done", True), (1, "done", True), *withdrawn_rows]


def test_a_run_that_was_begun_before_and_given_back_goes_on(scene: EarlyEndScene) -> None:
    scene.worthless = {3}
    first, second = scene.agent("A"), scene.agent("B")
    assert next_ticket(first).number == 2
    scene.meanwhile = lambda: scene.store.release(scene.study.id, ["A"])
    assert second.next_ticket([]) is None
    assert scene.search()[2:] == [
        (2, "waiting", True),
        *((number, "withdrawn", False) for number in (3, 4, 5)),
    ]


def test_trials_that_were_asked_for_in_the_meantime_are_counted(
    scene: EarlyEndScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 0.02 each: four of them are less than half a standard error of 0.2, twenty more of them are not
    monkeypatch.setattr(
        SearchArms, "expected_improvement", lambda self, ticket: scene._prospect(ticket) and (0.02, 0.2)
    )
    client = scene.agent("A")
    rows = scene.store.tickets(scene.study.id)
    extra_tickets = more_tickets(rows, scene.spec, 20)
    scene.meanwhile = lambda: scene.store.add_tickets(scene.study.id, extra_tickets)
    assert next_ticket(client).number == 2
    assert [state for _, state, _ in scene.search()].count("waiting") == 23


def test_what_a_person_wants_tried_and_what_is_asked_for_after_a_verdict_is_trained(
    scene: EarlyEndScene,
) -> None:
    scene.worthless = set(range(40))
    rows = scene.store.tickets(scene.study.id)
    enqueued_params = {"temperature_init": 0.5, "temperature_final": 0.5, "schedule": "linear"}
    scene.store.add_tickets(scene.study.id, more_tickets(rows, scene.spec, 1, [enqueued_params]))
    client = scene.agent("A")
    numbers = []
    for _ in range(5):
        ticket = next_ticket(client)
        numbers.append(ticket.number)
        scene.end(ticket, "A")
        client._reload()
    assert numbers == [2, 3, 4, 5, 6]
    assert [ticket.sampled for ticket in scene.store.tickets(scene.study.id, ["search"])][
        6
    ] == enqueued_params
