"""When an agent of the pool leaves its study."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from multiprocessing.connection import wait

import pytest

from tempopt.agent.gate import PATIENCE_SECONDS, Gate

NEVER = -math.inf


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.close()


def test_an_agent_stays_while_it_has_a_run_and_leaves_at_once_if_another_comes_first(gate: Gate) -> None:
    assert not gate.dismisses(busy=True, idle=0.0, looked=NEVER)
    gate.say("finish")
    assert not gate.dismisses(busy=True, idle=0.0, looked=NEVER)
    gate.say("preempt")
    assert gate.dismisses(busy=True, idle=0.0, looked=NEVER)
    assert not gate.found_nothing


def test_one_that_is_to_finish_leaves_with_its_run_and_stays_if_it_is_wanted_again(gate: Gate) -> None:
    gate.say("finish")
    assert gate.dismisses(busy=False, idle=0.0, looked=NEVER) and not gate.found_nothing
    gate.say("serve")
    assert not gate.dismisses(busy=False, idle=0.0, looked=NEVER)


def test_an_agent_that_finds_nothing_asks_for_the_mark_and_leaves_once_it_has_looked_after_it() -> None:
    asked: list[float] = []
    gate = Gate(lambda: asked.append(time.monotonic()))
    assert not gate.dismisses(busy=False, idle=0.0, looked=time.monotonic())
    assert not asked
    before = time.monotonic()
    assert not gate.dismisses(busy=False, idle=PATIENCE_SECONDS, looked=before)
    assert len(asked) == 1
    # nobody has answered yet, and it is not asked again at once
    assert not gate.dismisses(busy=False, idle=10 * PATIENCE_SECONDS, looked=time.monotonic())
    assert len(asked) == 1
    gate.marked("1.2.3.4.5")
    # what it looked for before it knew the mark may have been there at the mark
    assert not gate.dismisses(busy=False, idle=10 * PATIENCE_SECONDS, looked=before)
    assert gate.dismisses(busy=False, idle=10 * PATIENCE_SECONDS, looked=time.monotonic())
    assert gate.found_nothing and gate.mark == "1.2.3.4.5"
    gate.close()


def test_one_that_cannot_look_does_not_say_that_there_is_nothing(gate: Gate) -> None:
    # a store that is away, a disk that refuses runs: it has looked for nothing since it had its run
    gate.marked("1.2.3.4.5")
    assert not gate.dismisses(busy=False, idle=1e6, looked=NEVER)


def test_a_study_that_is_not_to_be_served_has_no_mark_to_leave_at(gate: Gate) -> None:
    gate.marked("")
    assert not gate.dismisses(busy=False, idle=1e6, looked=time.monotonic())


def test_the_mark_from_before_a_run_does_not_count_after_it(gate: Gate) -> None:
    gate.marked("1.2.3.4.5")
    assert not gate.dismisses(busy=True, idle=0.0, looked=NEVER)
    assert not gate.dismisses(busy=False, idle=1e6, looked=time.monotonic())


def test_an_agent_is_woken_by_what_is_new_and_not_by_what_it_knows(gate: Gate) -> None:
    gate.say("serve")
    assert wait([gate.wake], timeout=0) == []
    gate.say("preempt")
    assert wait([gate.wake], timeout=5) == [gate.wake]
    gate.heard()
    assert wait([gate.wake], timeout=0) == []
    gate.heard()


def test_what_is_said_to_a_gate_that_is_closed_is_lost(gate: Gate) -> None:
    gate.close()
    gate.say("preempt")
    assert gate.order == "preempt"
