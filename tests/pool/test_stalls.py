"""No study is left without agents while agents are idle, in whatever order agents, clocks and requests come.

What a study wants, the dispatchers, the scheduler and the gates are the real ones; agents and their runs are
played, and the store is one in memory, as fast as thousands of orders need it, or a real one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tempopt.agent import gate as gates
from tempopt.records.pool import PoolAgent
from tempopt.store import Store
from tests.pool.players import Agent, InMemory, OnDatabase, Pool, counted, serving

NUMBER = st.integers(0, 3)
DISPATCHER = st.integers(0, 1)


class Stalls(RuleBasedStateMachine):
    """Everything that may happen to a pool, in any order; and then peace."""

    store: Callable[[], Any]

    @initialize(agents=st.integers(1, 3), tickets=st.integers(1, 3))
    def begin(self, agents: int, tickets: int) -> None:
        self.pool = Pool(type(self).store())
        for _ in range(agents):
            self.pool.agents.append(Agent(PoolAgent(name=f"agent{counted()}")))
        self.pool.begin(tickets, 0)

    def _one(self, number: int, which: Callable[[Agent], bool]) -> Agent | None:
        found = [agent for agent in self.pool.agents if which(agent)]
        return found[number % len(found)] if found else None

    @rule(number=NUMBER, dispatcher=DISPATCHER)
    def asks(self, number: int, dispatcher: int) -> None:
        if (agent := self._one(number, lambda each: each.gate is None)) is not None:
            self.pool.ask(agent, dispatcher)

    @rule(number=NUMBER, dispatcher=DISPATCHER)
    def hears(self, number: int, dispatcher: int) -> None:
        if (agent := self._one(number, lambda each: each.gate is not None)) is not None:
            self.pool.hear(agent, dispatcher)

    @rule(number=NUMBER, settled=st.booleans())
    def looks(self, number: int, settled: bool) -> None:
        if (agent := self._one(number, lambda each: each.gate is not None)) is not None:
            self.pool.look(agent, settled=settled)

    @rule(number=NUMBER, dispatcher=DISPATCHER)
    def is_given_the_mark(self, number: int, dispatcher: int) -> None:
        if (agent := self._one(number, lambda each: each.asks and each.gate is not None)) is not None:
            self.pool.mark(agent, dispatcher)

    @rule(number=NUMBER)
    def is_dismissed(self, number: int) -> None:
        if (agent := self._one(number, lambda each: each.gate is not None)) is not None:
            self.pool.dismiss(agent)

    @rule(number=NUMBER)
    def ends_its_run(self, number: int) -> None:
        if (agent := self._one(number, lambda each: each.run is not None)) is not None:
            self.pool.end_run(agent)

    @rule(number=NUMBER)
    def leaves_as_for_a_higher_priority(self, number: int) -> None:
        if (agent := self._one(number, lambda each: each.run is not None)) is not None:
            assert agent.gate is not None
            agent.gate.say("preempt")
            self.pool.dismiss(agent)

    @precondition(lambda self: len(self.pool.agents) > 1)
    @rule(number=NUMBER)
    def dies(self, number: int) -> None:
        if (agent := self._one(number, lambda each: True)) is not None:
            self.pool.die(agent)

    @rule()
    def the_dead_are_missed(self) -> None:
        self.pool.time_passes()

    @rule(number=NUMBER)
    def says_again_what_it_has_said(self, number: int) -> None:
        if (agent := self._one(number, lambda each: bool(each.earlier))) is not None:
            self.pool.store.pool.hear(agent.earlier[-1])

    @precondition(lambda self: len(self.pool.studies) < 3)
    @rule(tickets=st.integers(1, 2), priority=st.integers(-1, 1))
    def another_study_comes(self, tickets: int, priority: int) -> None:
        self.pool.begin(tickets, priority)

    @rule(number=NUMBER, priority=st.integers(-1, 1))
    def a_priority_changes(self, number: int, priority: int) -> None:
        study = list(self.pool.studies.values())[number % len(self.pool.studies)]
        self.pool.store.pool.place(study.name, priority=priority)

    @rule(number=NUMBER, state=st.sampled_from(["paused", "running"]))
    def a_study_rests_or_goes_on(self, number: int, state: Any) -> None:
        study = list(self.pool.studies.values())[number % len(self.pool.studies)]
        if self.pool.state(study.id) != "done":
            self.pool.store.set_state(study.id, state)

    @invariant()
    def nobody_holds_two_runs(self) -> None:
        if hasattr(self, "pool"):
            names = {agent.me.name for agent in self.pool.agents if agent.run is not None}
            held = [agent.run.id for agent in self.pool.agents if agent.run is not None]
            assert len(held) == len(set(held)) == len(names)

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        try:
            self.pool.settle()
        finally:
            for agent in serving(self.pool):
                if agent.gate is not None:
                    agent.gate.close()
            for study in self.pool.studies.values():
                self.pool.store.delete_study(study.name)
            self.pool.store.forget_agents()


Event = Callable[[Pool], None]


def serving_pool(tickets: int, reach: int) -> Pool:
    """Return two agents that have just come to serve one study, if it wants them."""
    pool = Pool(InMemory(), reach)
    pool.begin(tickets, 0)
    for name in ("a", "b"):
        pool.agents.append(Agent(PoolAgent(name=name)))
        pool.ask(pool.agents[-1], 0)
    return pool


def given_mark(pool: Pool, agent: Agent) -> None:
    agent.asks = True
    pool.mark(agent, 0)


def pushed_out(pool: Pool, agent: Agent) -> None:
    assert agent.gate is not None
    agent.gate.say("preempt")
    pool.dismiss(agent)


def events(pool: Pool) -> dict[tuple[str, int], Event]:
    """Return what may happen next, by name and place of the agent."""
    found: dict[tuple[str, int], Event] = {("time passes", 0): Pool.time_passes}
    for place, agent in enumerate(pool.agents):

        def of(do: Callable[[Pool, Agent], None], place: int = place) -> Event:
            return lambda pool: do(pool, pool.agents[place])

        found["dies", place] = of(Pool.die)
        if agent.gate is None:
            found["asks", place] = of(lambda pool, agent: pool.ask(agent, 0))
        elif agent.run is not None:
            found["pushed out", place] = of(pushed_out)
            found["run ends", place] = of(Pool.end_run)
        else:
            found["hears", place] = of(lambda pool, agent: pool.hear(agent, 0))
            found["is given the mark", place] = of(given_mark)
            found["looks", place] = of(lambda pool, agent: pool.look(agent, settled=True))
            found["looks on a new server", place] = of(lambda pool, agent: pool.look(agent, settled=False))
            found["dismissed", place] = of(Pool.dismiss)
    return found


def standing(pool: Pool) -> Any:
    """Return all that what follows depends on; agents have no names in it."""
    store = pool.store
    tickets = [
        (row.number, row.state, row.attempt, row.id in store.lost) for row in store.rows[min(store.rows)]
    ]
    study = store.studies[min(store.studies)]
    agents = []
    for agent in pool.agents:
        gate = None
        if agent.gate is not None:
            gate = (agent.gate.order, agent.gate.mark, agent.looked > agent.gate._marked > -math.inf)
        known = store.agents.get(agent.me.name)
        row = (
            None if known is None else (known.study_id is None, known.leaving, tuple(known.idle_at.values()))
        )
        run = None if agent.run is None else agent.run.number
        agents.append((gate, run, tuple(agent.me.idle_at.values()), row, agent.me.name in store.silent))
    ghosts = sorted(
        (known.study_id is None, name in store.silent)
        for name, known in store.agents.items()
        if name not in {agent.me.name for agent in pool.agents}
    )
    return tuple(tickets), study.state, study.version, tuple(sorted(agents, key=repr)), tuple(ghosts)


def explored(tickets: int, reach: int, depth: int) -> int:
    """Have everything happen in every order, with peace after each; return how many states were met."""
    seen: set[Any] = set()
    paths: list[tuple[tuple[str, int], ...]] = [()]
    for path in paths:
        pool = serving_pool(tickets, reach)
        for event in path:
            events(pool)[event](pool)
        key = standing(pool)
        if key not in seen:
            seen.add(key)
            if len(path) < depth:
                paths += [(*path, event) for event in events(pool)]
            try:
                if pool.agents:
                    pool.settle()
            except AssertionError as error:
                raise AssertionError(f"{error}, after {path}") from error
        for agent in serving(pool):
            if agent.gate is not None:
                agent.gate.close()
    return len(seen)


CASES = [(1, 1), (2, 1), (2, 2)]


@pytest.mark.parametrize(("tickets", "reach"), CASES)
def test_nothing_that_two_agents_may_do_in_any_order_leaves_a_study_alone(tickets: int, reach: int) -> None:
    assert explored(tickets, reach, depth=6) > 100


@pytest.mark.long
@pytest.mark.parametrize(
    ("tickets", "reach"),
    [*CASES[:2], *(pytest.param(*each, marks=pytest.mark.nightly) for each in (CASES[2], (3, 2)))],
)
def test_nothing_that_two_agents_may_do_for_longer_leaves_a_study_alone(tickets: int, reach: int) -> None:
    assert explored(tickets, reach, depth=9) > 500


def play(store: Callable[[], Any], examples: int, steps: int) -> None:
    Stalls.store = staticmethod(store)
    case = Stalls.TestCase
    case.settings = settings(
        max_examples=examples, stateful_step_count=steps, suppress_health_check=list(HealthCheck)
    )
    case().runTest()


@pytest.fixture(autouse=True)
def _asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "_ASKED_AGAIN_SECONDS", 0.0)


def test_no_study_with_runs_to_begin_is_left_while_agents_are_idle() -> None:
    play(InMemory, examples=150, steps=30)


def test_none_is_left_on_a_real_database(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'pool.db'}") as store:
        play(lambda: OnDatabase(store), examples=4, steps=25)


@pytest.mark.long
@pytest.mark.parametrize("examples", [1000, pytest.param(5000, marks=pytest.mark.nightly)])
def test_none_is_left_in_many_more_orders(examples: int) -> None:
    play(InMemory, examples=examples, steps=50)
