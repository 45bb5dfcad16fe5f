"""Tickets against a model in plain Python: whatever agents do in any order, nothing is lost or doubled."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from optuna.trial import TrialState

from tempopt.errors import StaleAttempt
from tempopt.storage import Store
from tempopt.storage.changes import AttemptLost, AttemptReleased, Change, ClaimRequest
from tempopt.storage.opening import open_store
from tempopt.storage.rows import TERMINAL_STATES, Kind, TicketRow
from tests.storage.scenes import (
    HOUR,
    PARAMETERS,
    SAMPLED,
    TRIAL,
    assert_fields,
    make_end,
    new_ticket,
    reported,
)

NUM_TICKETS = 4
MAX_ATTEMPTS = 2
AGENTS = ("one", "two", "three")


@functools.cache
def _template() -> Path:
    """Return a database with a study of a few tickets, made once."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    file = Path(folder) / "x.db"
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with open_store(str(file)) as store:
        study = store.create_study("example", {}, "")
        store.add_tickets(study.id, [new_ticket(n) for n in range(NUM_TICKETS)])
        storage = optuna.storages.RDBStorage(store.url)
    optuna.create_study(study_name="example", storage=storage)
    storage.engine.dispose()
    return file


class Tickets(RuleBasedStateMachine):
    """Agents take, write, sleep past their leases, die and give back; the model knows who holds what."""

    runs = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        file = Path(self.folder.name) / "x.db"
        shutil.copy(_template(), file)
        self.store = open_store(str(file), create=False)
        self.study = self.store.load_study("example")
        # number -> what the model knows
        self.state = ["waiting"] * NUM_TICKETS
        self.attempt = [0] * NUM_TICKETS
        self.failures = [0] * NUM_TICKETS
        self.holder: list[str | None] = [None] * NUM_TICKETS
        self.is_over = [False] * NUM_TICKETS
        self.may_come_back: list[str | None] = [None] * NUM_TICKETS
        self.has_trial = [False] * NUM_TICKETS
        self.reports: list[set[int]] = [set() for _ in range(NUM_TICKETS)]

    def teardown(self) -> None:
        every_trial_has_its_ticket_and_ends_with_it(self.store, self.study.id, sum(self.has_trial))
        self.store.close()
        self.folder.cleanup()

    def holds(self, run: TicketRow) -> bool:
        return self.state[run.number] == "running" and self.attempt[run.number] == run.attempt

    def adopts(self, run: TicketRow) -> bool:
        """Let an agent that comes back have its ticket again; return whether that is so."""
        is_its = self.attempt[run.number] == run.attempt and self.may_come_back[run.number] == run.agent
        if is_its:
            self.state[run.number], self.holder[run.number] = "running", run.agent
            self.may_come_back[run.number] = None
            self.failures[run.number] -= 1
        return is_its

    def lose(self, number: int) -> None:
        self.failures[number] += 1
        self.give_up(number, "failed" if self.failures[number] == MAX_ATTEMPTS else "waiting")

    def give_up(self, number: int, state: str) -> None:
        self.state[number], self.holder[number], self.is_over[number] = state, None, False
        self.may_come_back[number] = None

    @rule(
        target=runs,
        agent=st.sampled_from(AGENTS),
        last=st.integers(0, NUM_TICKETS) | st.none(),
        dead_agents=st.sets(st.sampled_from(AGENTS)),
        knows=st.booleans(),
        expired=st.booleans(),
    )
    def take(self, agent: str, last: int | None, dead_agents: set[str], knows: bool, expired: bool) -> Any:
        held_ids = self.ids_held_by(agent) if knows else set()
        dead_agents = dead_agents - {agent}
        self.reclaim(agent, dead_agents, knows, expired)
        criteria = ClaimRequest(
            max_number_by_kind=max_number_by_kind(last),
            lease=HOUR,
            max_attempts=MAX_ATTEMPTS,
            dead=dead_agents,
            held_ticket_ids=held_ids,
            expired=expired,
        )
        return self.record_taking(self.store.take_ticket(self.study.id, agent, criteria), agent, last)

    def ids_held_by(self, agent: str) -> set[int]:
        return {t.id for t in self.store.tickets(self.study.id) if t.agent == agent}

    def reclaim(self, agent: str, dead_agents: set[str], knows: bool, expired: bool) -> None:
        for number, holder in enumerate(self.holder):
            if holder is None:
                continue
            if holder == agent:
                if not knows:
                    self.give_up(number, "waiting")
            elif holder in dead_agents or (expired and self.is_over[number]):
                self.lose(number)
                self.may_come_back[number] = holder if self.state[number] == "waiting" else None

    def record_taking(self, ticket: TicketRow | None, agent: str, last: int | None) -> Any:
        waiting = [
            n for n in range(NUM_TICKETS) if self.state[n] == "waiting" and (last is None or n <= last)
        ]
        if ticket is None:
            assert not waiting
            return multiple()
        assert ticket.number == waiting[0]
        self.state[ticket.number], self.holder[ticket.number] = "running", agent
        self.attempt[ticket.number] += 1
        self.may_come_back[ticket.number] = None
        assert_fields(ticket, attempt=self.attempt[ticket.number], failures=self.failures[ticket.number])
        return ticket

    @rule(run=runs)
    def begin(self, run: TicketRow) -> None:
        try:
            self.store.begin(run.id, run.attempt, PARAMETERS, SAMPLED, TRIAL)
        except StaleAttempt:
            assert not self.holds(run)
        else:
            assert self.holds(run)
            self.has_trial[run.number] = True

    @rule(run=runs, sleeps=st.booleans())
    def renew(self, run: TicketRow, sleeps: bool) -> None:
        lease = -1.0 if sleeps else HOUR
        reply = self.store.write(
            self.study.id, [], renew={run.id: run.attempt}, agent=agent_of(run), lease=lease
        )
        if self.holds(run) or self.adopts(run):
            self.is_over[run.number] = sleeps
        assert (run.id in reply.refused) == (
            not self.holds(run)
            and (self.state[run.number] != "done" or self.attempt[run.number] != run.attempt)
        )

    @rule(run=runs, step=st.integers(1, 5))
    def report(self, run: TicketRow, step: int) -> None:
        if self.write(run, reported(run, step, float(step))):
            self.reports[run.number].add(step)

    @rule(run=consumes(runs))
    def end(self, run: TicketRow) -> None:
        if self.write(run, make_end(run)):
            self.give_up(run.number, "done")

    @rule(
        target=runs,
        run=consumes(runs),
        last=st.integers(0, NUM_TICKETS) | st.none(),
        expired=st.booleans(),
        version=st.sampled_from([1, 1, 2]),
    )
    def end_and_take(self, run: TicketRow, last: int | None, expired: bool, version: int) -> Any:
        agent = agent_of(run)
        criteria = ClaimRequest(
            max_number_by_kind=max_number_by_kind(last),
            lease=HOUR,
            max_attempts=MAX_ATTEMPTS,
            held_ticket_ids=self.ids_held_by(agent),
            expired=expired,
        )
        reply = self.store.write(
            self.study.id, [make_end(run)], agent=agent, lease=HOUR, take=criteria, version=version
        )
        if self.holds(run) or self.adopts(run):
            self.give_up(run.number, "done")
        if reply.refused or version != reply.version:
            assert reply.claimed_ticket is None
            return multiple()
        self.reclaim(agent, set(), knows=True, expired=expired)
        return self.record_taking(reply.claimed_ticket, agent, last)

    @rule(run=consumes(runs))
    def fail(self, run: TicketRow) -> None:
        lost_change = AttemptLost(
            ticket_id=run.id, attempt=run.attempt, error="died", max_attempts=MAX_ATTEMPTS
        )
        if self.write(run, lost_change):
            self.lose(run.number)

    @rule(run=consumes(runs))
    def give_back(self, run: TicketRow) -> None:
        if self.write(run, AttemptReleased(ticket_id=run.id, attempt=run.attempt)):
            self.give_up(run.number, "waiting")

    def write(self, run: TicketRow, change: Change) -> bool:
        """Write a change twice, as after a lost answer; return whether the model takes it in."""
        holds = self.holds(run) or (
            not isinstance(change, AttemptLost | AttemptReleased) and self.adopts(run)
        )
        first = self.store.write(self.study.id, [change], agent=agent_of(run), lease=HOUR)
        second = self.store.write(self.study.id, [change], agent=agent_of(run), lease=HOUR)
        assert first == second
        if holds:
            assert not first.refused
        return holds

    @rule(agents=st.sets(st.sampled_from(AGENTS)))
    def release(self, agents: set[str]) -> None:
        released_numbers = [n for n in range(NUM_TICKETS) if self.holder[n] in agents]
        assert self.store.release(self.study.id, agents) == len(released_numbers)
        for number in released_numbers:
            self.give_up(number, "waiting")

    @invariant()
    def tickets_are_as_the_model_says(self) -> None:
        tickets = self.store.tickets(self.study.id)
        ticket_states = [(t.state, t.attempt, t.failures) for t in tickets]
        assert ticket_states == list(zip(self.state, self.attempt, self.failures, strict=True))
        holders = [t.agent if t.state == "running" else None for t in tickets]
        assert holders == self.holder
        by_ticket: dict[int, set[int]] = {t.id: set() for t in tickets}
        for measurement in self.store.measurements(self.study.id):
            by_ticket[measurement.ticket_id].add(measurement.step)
        assert list(by_ticket.values()) == self.reports


def max_number_by_kind(last: int | None) -> dict[Kind, int | None]:
    return {"search": last}


def agent_of(run: TicketRow) -> str:
    assert run.agent is not None
    return run.agent


def every_trial_has_its_ticket_and_ends_with_it(store: Store, study_id: int, num_trials: int) -> None:
    tickets = {t.id: t for t in store.tickets(study_id)}
    storage = optuna.storages.RDBStorage(store.url)
    trials = optuna.load_study(study_name="example", storage=storage).get_trials(deepcopy=False)
    storage.engine.dispose()
    assert [trial.number for trial in trials] == list(range(num_trials))
    for trial in trials:
        ticket = tickets.pop(trial.user_attrs["tempopt:ticket"])
        assert ticket.trial_number == trial.number
        assert (ticket.state in TERMINAL_STATES) == trial.state.is_finished()
        if ticket.state == "failed":
            assert trial.state == TrialState.FAIL
    assert not any(ticket.trial_number for ticket in tickets.values())


TestTickets: Callable[..., Any] = Tickets.TestCase
TestTickets.settings = settings(max_examples=10, stateful_step_count=20)  # type: ignore[attr-defined]
