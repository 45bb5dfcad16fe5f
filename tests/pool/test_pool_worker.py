"""An agent of the pool between its studies: what it says of itself, what it does when all goes wrong."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tempopt.agent.gate import Gate
from tempopt.agent.observer import Observer
from tempopt.agent.store_connection import StoreLost
from tempopt.errors import (
    AccessDenied,
    SpecError,
    StoreUnreachable,
    StudyFailed,
    StudyNotFound,
    UsageError,
)
from tempopt.pool import agent as pool_agent
from tempopt.pool.agent import PoolWorker, own_gpus
from tempopt.pool.dispatcher import Told
from tempopt.records.pool import Assignment, Order, PoolAgent
from tempopt.workers.machine import this_machine

STUDY = 7
Serve = Callable[[Gate], None]


@dataclass
class Fake:
    """A place with one study, which does what the test says.

    Args:
        serves: What serving it is, one after another; then there is no study any more.
        orders: What an agent that serves it is told; the last one for ever.
    """

    serves: list[Serve] = field(default_factory=list)
    orders: list[Order] = field(default_factory=lambda: ["serve"])
    mark: str = "1.1.0.0.0"
    away: int = 0
    heard: list[PoolAgent] = field(default_factory=list)
    served: int = 0
    left: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def hear(self, agent: PoolAgent, *, known: Told | None, wait: float) -> Told:
        if self.away:
            self.away -= 1
            raise StoreUnreachable("The database is away.")
        self.heard.append(agent)
        self.waits.append(wait)
        if agent.study_id is not None:
            order = self.orders.pop(0) if len(self.orders) > 1 else self.orders[0]
            if known is not None and known.assignment.order == order:
                time.sleep(min(wait, 0.05))
            return self._told(agent, order)
        may = self.served < len(self.serves) and STUDY not in agent.unable
        may = may and agent.idle_at.get(STUDY) != self.mark
        if not may:
            time.sleep(min(wait, 0.02))
            return Told(assignment=Assignment(agent=agent.name, study_id=None))
        return self._told(agent, "serve")

    def _told(self, agent: PoolAgent, order: Order) -> Told:
        assignment = Assignment(agent=agent.name, study_id=STUDY, order=order)
        return Told(assignment=assignment, name="mine", mark=self.mark)

    def serve(self, name: str, *, gpus: int, gate: Gate, observer: Observer) -> None:
        assert name == "mine"
        number, self.served = self.served, self.served + 1
        self.serves[number](gate)

    def leave(self, agent: PoolAgent) -> None:
        self.left.append(agent.name)

    def idle(self) -> list[PoolAgent]:
        """Return what it said while it served nothing."""
        return [each for each in self.heard if each.study_id is None]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_agent, "_AGAIN_SECONDS", 0.01)


@pytest.fixture
def lines() -> Iterator[list[str]]:
    yield []


def work(source: Fake, lines: list[str], idle: float = 0.3) -> None:
    PoolWorker(source, PoolAgent(name=""), idle=idle, told=lines.append).run()


def wait_for(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)


def nothing(gate: Gate) -> None:
    """Serve a study that is over at once."""


def refused(error: BaseException) -> Serve:
    def serve(gate: Gate) -> None:
        raise error

    return serve


def test_an_agent_without_work_leaves_after_a_while_and_is_forgotten(lines: list[str]) -> None:
    source = Fake()
    work(source, lines)
    assert len(source.left) == 1 and source.left[0] == source.heard[0].name
    assert max(source.waits) <= 0.3, "an answer is waited for no longer than it stays"
    assert all(each.study_id is None and each.machine for each in source.heard)


def test_two_agents_never_have_the_same_name(lines: list[str]) -> None:
    source = Fake()
    work(source, lines, idle=0.05)
    work(source, lines, idle=0.05)
    assert len(set(source.left)) == 2


def test_it_serves_one_study_after_another_and_tells_of_it(lines: list[str]) -> None:
    source = Fake([nothing, nothing, nothing])
    work(source, lines)
    assert source.served == 3
    assert lines == ["Serves mine.", "Left mine: it is over or was paused."] * 3


@pytest.mark.parametrize(
    ("order", "said"),
    [("preempt", "another study has a higher priority"), ("finish", "another study is to be served")],
)
def test_what_it_is_told_while_it_serves_reaches_the_gate(order: Order, said: str, lines: list[str]) -> None:
    def serve(gate: Gate) -> None:
        wait_for(lambda: gate.order == order)

    source = Fake([serve], ["serve", order])
    work(source, lines)
    assert lines[-1] == f"Left mine: {said}."
    assert any(each.study_id == STUDY for each in source.heard)


def test_who_leaves_for_a_higher_priority_says_so_and_is_not_called_back(lines: list[str]) -> None:
    def serve(gate: Gate) -> None:
        wait_for(lambda: any(each.leaving for each in source.heard))
        wait_for(lambda: sum(each.study_id == STUDY for each in source.heard) > 5)
        assert gate.order == "preempt"

    source = Fake([serve], ["preempt", "serve", "finish", "serve"])
    work(source, lines)
    assert lines[-1].endswith("a higher priority.")
    assert not any(each.leaving for each in source.idle())


def test_who_is_to_finish_goes_on_if_it_is_wanted_again(lines: list[str]) -> None:
    def serve(gate: Gate) -> None:
        wait_for(lambda: gate.order == "finish")
        source.orders[:] = ["serve"]
        wait_for(lambda: gate.order == "serve")

    source = Fake([serve], ["finish"])
    work(source, lines)
    assert lines[-1] == "Left mine: it is over or was paused."


def test_what_a_study_fails_with_is_told_without_a_password(lines: list[str]) -> None:
    source = Fake([refused(StudyFailed("no route to postgresql://ada:hidden@db/x")), nothing])
    work(source, lines)
    assert "no route to postgresql://ada:***@db/x" in lines[1] and "hidden" not in "".join(lines)


@pytest.mark.parametrize(
    "error", [SpecError("no such class"), UsageError("no room"), StudyFailed("it raises")]
)
def test_a_study_that_cannot_be_served_here_is_left_to_others_for_a_while(
    error: Exception, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Fake([refused(error), nothing])
    work(source, lines)
    assert source.served == 1 and source.idle()[-1].unable == {STUDY: str(error)}
    assert lines[1] == f"Left mine: it cannot be served here: {error}."
    monkeypatch.setattr(pool_agent, "_UNABLE_SECONDS", 0.1)
    again = Fake([refused(error), nothing])
    work(again, lines)
    assert again.served == 2 and again.idle()[-1].unable == {}


def test_a_study_that_was_paused_meanwhile_is_not_one_that_cannot_be_served(lines: list[str]) -> None:
    def paused(gate: Gate) -> None:
        source.mark = ""
        raise UsageError("It was paused.")

    source = Fake([paused, nothing])
    work(source, lines)
    assert all(not each.unable for each in source.heard)
    assert source.served == 2, "it goes on once it is resumed"


def test_a_study_that_was_deleted_is_left(lines: list[str]) -> None:
    source = Fake([refused(StudyNotFound("no such study")), nothing])
    work(source, lines)
    assert source.served == 2 and "Left mine: it was deleted." in lines
    assert all(not each.unable for each in source.heard)


def found_nothing(gate: Gate) -> None:
    """Serve a study in which there is nothing to begin."""
    late = time.monotonic() + 60
    while not gate.dismisses(busy=False, idle=1e6, looked=time.monotonic()):
        assert time.monotonic() < late
        time.sleep(0.01)


def test_a_study_without_runs_to_begin_is_served_again_once_it_has_another_mark(lines: list[str]) -> None:
    source = Fake([found_nothing, nothing])
    work(source, lines)
    assert source.served == 1 and "Left mine: no run can be begun just now." in lines
    assert source.idle()[-1].idle_at == {STUDY: "1.1.0.0.0"}

    def elsewhere(gate: Gate) -> None:
        found_nothing(gate)
        moved.mark = "1.0.0.1.0"

    moved = Fake([elsewhere, nothing])
    work(moved, lines)
    assert moved.served == 2


def test_nothing_is_left_to_others_for_ever(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_agent, "_IDLE_SECONDS", 0.1)
    source = Fake([found_nothing, nothing])
    work(source, lines)
    assert source.served == 2


@pytest.mark.parametrize("error", [StoreUnreachable("away"), StoreLost("away"), AccessDenied("who are you?")])
def test_a_store_that_goes_away_while_a_study_is_served_is_waited_for(
    error: Exception, lines: list[str]
) -> None:
    source = Fake([refused(error), nothing])
    work(source, lines)
    assert source.served == 2 and f"{error} Trying again for 30 minutes." in lines
    assert all(not each.unable for each in source.heard)


def test_a_store_that_is_away_is_asked_again_and_not_for_ever(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Fake([nothing], away=5)
    work(source, lines, idle=1.0)
    assert source.served == 1 and lines.count("The database is away. Trying again for 30 minutes.") == 1
    monkeypatch.setattr(pool_agent, "_PATIENCE_SECONDS", 0.1)
    gone = Fake(away=1_000_000)
    with pytest.raises(StoreUnreachable):
        work(gone, lines, idle=60.0)
    assert len(gone.left) == 1


def test_a_token_that_was_never_accepted_ends_it_at_once(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Fake([nothing])
    asked = itertools.count()

    def hear(*given: Any, **named: Any) -> Told:
        next(asked)
        raise AccessDenied("ada may view; this asks for agent.")

    monkeypatch.setattr(source, "hear", hear)
    with pytest.raises(AccessDenied, match="asks for agent"):
        work(source, lines)
    assert next(asked) == 1 and lines == []


def test_a_person_who_interrupts_it_has_it_forgotten(lines: list[str]) -> None:
    source = Fake([refused(KeyboardInterrupt())])
    with pytest.raises(KeyboardInterrupt):
        work(source, lines)
    assert len(source.left) == 1


def test_cards_that_are_not_there_are_not_promised() -> None:
    if this_machine().has_gpus:
        pytest.skip("this machine has GPUs")
    with own_gpus(None) as count:
        assert count == 0
    with pytest.raises(UsageError, match="to have 3 GPUs .*0 are free"), own_gpus(3):
        pass
