"""What every place where an agent of the pool gets its studies does: a database, and a server before one."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable

import pytest

from tempopt.agent.gate import Gate
from tempopt.agent.observer import Snapshot, Unobserved
from tempopt.errors import StudyNotFound
from tempopt.pool.dispatcher import Told
from tempopt.records.pool import PoolAgent
from tempopt.records.rows import TicketRow
from tempopt.store import Store
from tests.pool.conftest import Place, begin
from tests.store.scenes import taken

ME = PoolAgent(name="here:1:m:1.1-abc")
# Beyond any answer that is held back here, and far below what the tests wait for.
LONG = 20.0


def hear(place: Place, agent: PoolAgent = ME, known: Told | None = None, wait: float = 0.0) -> Told:
    return place.source.hear(agent, known=known, wait=wait)


def serving(id: int, **more: object) -> PoolAgent:
    return dataclasses.replace(ME, study_id=id, **more)  # type: ignore[arg-type]


def names(place: Place) -> list[str]:
    return [each.name.partition("@")[0] for each in place.store.pool.read().agents]


def test_an_agent_is_told_what_to_serve_and_is_known_until_it_leaves(place: Place) -> None:
    assert hear(place).name is None
    assert names(place) == [ME.name]
    id = begin(place.store).id
    told = hear(place)
    assert (told.name, told.assignment.study_id, told.assignment.order) == ("toy", id, "serve")
    (demand,) = place.store.pool.read().demands
    assert told.mark == demand.mark
    place.source.leave(ME)
    assert names(place) == []
    place.source.leave(ME)


def test_what_it_says_of_itself_counts(place: Place) -> None:
    id = begin(place.store).id
    mark = hear(place, serving(id)).mark
    assert hear(place, dataclasses.replace(ME, unable={id: "no such module"})).name is None
    assert hear(place, dataclasses.replace(ME, idle_at={id: mark})).name is None
    assert hear(place, dataclasses.replace(ME, idle_at={id: f"{mark}0"})).name == "toy"
    assert hear(place, dataclasses.replace(ME, queues=frozenset({"other"}))).name is None


def test_an_answer_that_is_known_is_held_back_until_there_is_another(place: Place) -> None:
    known = hear(place)
    begun: list[float] = []

    def later() -> None:
        time.sleep(0.3)
        begin(place.store)
        begun.append(time.monotonic())

    thread = threading.Thread(target=later)
    thread.start()
    told = hear(place, known=known, wait=LONG)
    thread.join()
    assert told.name == "toy"
    # and it is the same for as long as it may be held back
    before = time.monotonic()
    assert hear(place, serving(told.assignment.study_id or 0), known=told, wait=0.2).same_as(told)
    assert time.monotonic() - before >= 0.2


class Watcher(Unobserved):
    """Does something once the agent's own run has trained."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do: Callable[[], object] | None = do

    def update(self, snapshot: Snapshot) -> None:
        if self._do is not None and any(each.step for each in snapshot.workers):
            do, self._do = self._do, None
            do()


@pytest.fixture
def gate() -> Gate:
    return Gate()


def serve(place: Place, gate: Gate, observer: Unobserved | None = None, name: str = "toy") -> None:
    try:
        place.source.serve(name, gpus=0, gate=gate, observer=observer or Unobserved())
    finally:
        gate.close()


def begun(store: Store, id: int) -> list[TicketRow]:
    return [each for each in store.tickets(id) if each.attempt]


def test_a_run_that_is_pushed_out_is_saved_and_given_back(place: Place, gate: Gate) -> None:
    study = begin(place.store)
    serve(place, gate, Watcher(lambda: gate.say("preempt")))
    (ticket,) = begun(place.store, study.id)
    assert (ticket.state, ticket.failures, ticket.agent, ticket.attempt) == ("waiting", 0, None, 1)
    assert ticket.checkpoints and ticket.checkpoints[0].step > 0
    assert not gate.found_nothing
    # it goes on where it was
    again = Gate()
    serve(place, again, Watcher(lambda: again.say("finish")))
    (ticket,) = begun(place.store, study.id)
    assert (ticket.state, ticket.outcome, ticket.attempt, ticket.steps) == ("done", "complete", 2, 24)


def test_an_agent_that_is_to_finish_leaves_when_its_run_has_ended(place: Place, gate: Gate) -> None:
    study = begin(place.store)
    serve(place, gate, Watcher(lambda: gate.say("finish")))
    (ticket,) = begun(place.store, study.id)
    assert (ticket.state, ticket.attempt) == ("done", 1) and not gate.found_nothing
    assert place.store.load_study("toy").state == "running"


def test_an_agent_that_finds_no_run_leaves_at_a_mark_at_which_there_was_none(place: Place) -> None:
    study = begin(place.store, arms={"baseline": 1, "constant": 1}, parallel=1)
    held = taken(place.store, study, "elsewhere", limits={"baseline": 0})
    others = [taken(place.store, study, f"elsewhere{i}") for i in range(place_count(place.store, study.id))]

    def ask() -> None:
        gate.marked(hear(place, serving(study.id)).mark)

    gate = Gate(ask)
    serve(place, gate)
    assert gate.found_nothing
    (demand,) = place.store.pool.read().demands
    assert gate.mark == demand.mark
    assert held.attempt == 1 and len(begun(place.store, study.id)) == 1 + len(others)


def place_count(store: Store, id: int) -> int:
    return sum(each.state == "waiting" for each in store.tickets(id))


def test_a_study_that_rests_or_is_over_is_left_at_once(place: Place, gate: Gate) -> None:
    study = begin(place.store)
    place.store.set_state(study.id, "done")
    serve(place, gate)
    assert begun(place.store, study.id) == []


def test_a_study_that_is_not_there_is_missed(place: Place, gate: Gate) -> None:
    with pytest.raises(StudyNotFound):
        serve(place, gate, name="nothing")
