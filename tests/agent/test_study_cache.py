"""What an agent knows of the tickets: what others did counts, and what is over is not ended twice."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tempopt.agent.study_cache import StudyCache
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.changes import ClaimRequest, MetricReported, RunEnded, RunOutcome
from tempopt.storage.opening import open_store
from tempopt.storage.rows import Measurement, TicketRow
from tempopt.storage.store import Store
from tempopt.verdict.stages import initial_tickets


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/tempopt.db") as store:
        yield store


@pytest.fixture
def spec(make_spec: Callable[..., StudySpec]) -> StudySpec:
    return make_spec(trials=6, arms={"baseline": 1, "constant": 2}, parallel=2)


def open_cache(store: Store, spec: StudySpec) -> StudyCache:
    """Begin a study and return what an agent knows of it."""
    study = store.create_study(spec.study.name, spec.to_json(), spec.identity())
    store.add_tickets(study.id, initial_tickets(spec))
    return StudyCache(spec, study, store)


@pytest.fixture
def cache(store: Store, spec: StudySpec) -> StudyCache:
    return open_cache(store, spec)


def take(store: Store, cache: StudyCache, agent: str, *, lease: float = 60.0) -> TicketRow:
    ticket = store.take_ticket(
        1, agent, ClaimRequest(max_number_by_kind=cache.max_number_by_kind(), lease=lease, max_attempts=3)
    )
    assert ticket is not None
    if ticket.parameters is not None:
        return ticket
    parameters = {"temperature_init": 1.0}
    store.begin(ticket.id, ticket.attempt, parameters, {}, None)
    return dataclasses.replace(ticket, parameters=parameters, sampled={})


def end(store: Store, ticket: TicketRow, value: float, guards: dict[str, float] | None = None) -> None:
    measurements = [
        Measurement(ticket_id=ticket.id, step=4, name=name, value=guard_value)
        for name, guard_value in (guards or {}).items()
    ]
    outcomes = RunOutcome(outcome="complete", value=value, steps=4, seconds=2.0, measurements=measurements)
    changes = [
        MetricReported(ticket_id=ticket.id, attempt=ticket.attempt, step=4, value=value),
        RunEnded(ticket_id=ticket.id, attempt=ticket.attempt, outcomes=outcomes),
    ]
    assert ticket.agent is not None
    assert not store.write(1, changes, agent=ticket.agent, lease=60.0).refused


def end_row(ticket: TicketRow, value: float) -> TicketRow:
    return dataclasses.replace(ticket, state="done", outcome="complete", value=value, seconds=2.0)


def test_only_tickets_whose_past_is_known_may_begin(cache: StudyCache, store: Store) -> None:
    assert cache.max_number_by_kind() == {"baseline": 1, "constant": 1}
    first = take(store, cache, "me")
    cache.apply_ticket(first, {})
    cache.apply_ticket(end_row(first, 0.5), {4: 0.5})
    # the only baseline ticket is over; constants wait for their own past
    assert cache.max_number_by_kind() == {"constant": 1}


@pytest.mark.parametrize("sampler", ["knowledge_gradient", "tpe"])
def test_search_trials_wait_for_the_first_design_with_the_sampler_that_learns_from_it(
    store: Store, make_spec: Callable[..., StudySpec], sampler: str
) -> None:
    spec = make_spec(trials=4, arms={"baseline": 1, "constant": 1}, parallel=2, sampler=sampler)
    cache = open_cache(store, spec)
    waits = sampler == "knowledge_gradient"
    begun_tickets = []
    for agent in ("first", "second"):
        assert ("search" in cache.max_number_by_kind()) == (not waits)
        begun_tickets.append(take(store, cache, agent))
        cache.refresh()
    assert [ticket.kind for ticket in begun_tickets] == ["baseline", "constant"]
    # running is not over
    assert ("search" in cache.max_number_by_kind()) == (not waits)
    for ticket in begun_tickets:
        end(store, ticket, 0.5)
    cache.refresh()
    assert cache.max_number_by_kind() == {"search": 1}


def test_limits_of_guards_are_settled_once_the_runs_at_one_are_over(
    store: Store, make_spec: Callable[..., StudySpec]
) -> None:
    spec = make_spec(trials=4, arms={"baseline": 1, "constant": 1}, guards={"val_loss": "<= +2%"}, parallel=2)
    cache = open_cache(store, spec)
    assert cache.max_number_by_kind() == {"baseline": 1, "constant": 1}
    assert cache.constraints({"val_loss": 2.1}) == {}  # the limit may yet move
    end(store, take(store, cache, "another"), 0.5, guards={"validate/guard:val_loss": 2.0})
    cache.refresh()
    assert cache.constraints({"val_loss": 2.1}) == {"val_loss": pytest.approx(2.1 - 2.0 * 1.02)}
    assert cache.constraints({"val_loss": math.nan}) == cache.constraints({}) == {}
    assert cache.max_number_by_kind() == {"constant": 1}
    # what others have measured is known, whether it is told as news or read anew
    assert cache.arms._baseline_results == {0: (0.5, {"val_loss": 2.0})}
    assert StudyCache(spec, cache.study, store).arms._baseline_results == cache.arms._baseline_results


def test_what_another_agent_ended_lets_more_begin(cache: StudyCache, store: Store) -> None:
    for _ in range(3):
        end(store, take(store, cache, "another"), 0.5)
    assert cache.done["constant"] == 0
    cache.refresh()
    assert (cache.done["baseline"], cache.done["constant"]) == (1, 2)
    assert cache.max_number_by_kind() == {"search": 1}


@pytest.mark.parametrize("is_ended", [True, False])
def test_a_run_that_another_has_taken_over_is_not_ended_here(
    cache: StudyCache, store: Store, is_ended: bool
) -> None:
    own_ticket = take(store, cache, "me", lease=-1.0)
    cache.apply_ticket(own_ticket, {})
    other_ticket = take(store, cache, "another")
    assert (other_ticket.id, other_ticket.attempt) == (own_ticket.id, 2)
    if is_ended:
        end(store, other_ticket, 0.7)
    cache.refresh()
    cache.apply_ticket(end_row(own_ticket, 0.1), {4: 0.1})
    row = cache.tickets[own_ticket.id]
    assert (row.state, row.value) == (("done", 0.7) if is_ended else ("running", None))
    assert cache.done["baseline"] == int(is_ended)


def test_tickets_that_others_add_are_seen(cache: StudyCache, store: Store, spec: StudySpec) -> None:
    store.add_tickets(1, initial_tickets(spec.with_overrides(["study.trials=8", "study.arms.constant=2"])))
    assert cache.requested_counts()["search"] == 6
    cache.refresh()
    assert cache.requested_counts()["search"] == 8


def test_a_study_whose_search_was_withdrawn_is_over_when_its_runs_are(
    cache: StudyCache, store: Store
) -> None:
    ticket = take(store, cache, "me")
    store.withdraw(1, ["baseline", "constant", "search"])
    cache.refresh()
    assert not cache.is_finished()
    end(store, ticket, 0.5)
    cache.refresh()
    assert cache.is_finished() and not cache.has_startable_ticket()


def test_what_others_have_given_back_waits_here_too(store: Store, cache: StudyCache) -> None:
    other_ticket = take(store, cache, "another")
    cache.refresh()
    assert cache.tickets[other_ticket.id].state == "running"
    store.release(1, ["another"])
    cache.refresh()
    assert (cache.tickets[other_ticket.id].state, cache.tickets[other_ticket.id].agent) == ("waiting", None)
    assert take(store, cache, "third").id == other_ticket.id


def test_a_gain_is_told_once_what_it_is_compared_with_is_settled(
    store: Store, cache: StudyCache, spec: StudySpec
) -> None:
    assert (cache.baseline(), cache.gain(0.75)) == (None, None)
    baseline = take(store, cache, "another")
    assert baseline.kind == "baseline"
    end(store, baseline, 0.5)
    cache.refresh()
    expected_gain = 0.25 if cache.spec.study.direction == "maximize" else -0.25
    assert (cache.baseline(), cache.gain(0.75), cache.gain(None)) == (0.5, expected_gain, None)
    store.add_tickets(1, initial_tickets(spec.with_overrides(["study.arms.baseline=2"])))
    cache.refresh()
    assert (cache.baseline(), cache.gain(0.75)) == (0.5, None)
