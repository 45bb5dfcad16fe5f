"""Which run begins from which: the choice as a function of rows, and a study whose trials share it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tempopt.agent.checkpoint_reuse import best_forks, beyond_quota, for_others, held, kept_at_end
from tempopt.agent.observer import Unobserved
from tempopt.confirmation.stages import first_tickets
from tempopt.records.changes import Ended, Kept, Outcomes
from tempopt.records.rows import Checkpoint, TicketRow, to_fork_from, to_go_on_from
from tempopt.results.study_result import StudyResult
from tempopt.spec.study_spec import StudySpec
from tempopt.store.store import Store
from tempopt.study import admin
from tempopt.study.api import search
from tests.store.scenes import new, taken
from tests.toy_study import URL, facts, reports, tickets, toy_spec, work_in

HELD = {"temperature_init": 2.0, "temperature_final": 1.0, "schedule": "hold_anneal", "hold_fraction": 0.5}
SHORTER = {**HELD, "hold_fraction": 0.25}
COLDER = {**HELD, "temperature_final": 0.5}
SHARED = {"search": 2}


def at(step: int, size: int = 10, **more: Any) -> Checkpoint:
    return Checkpoint(step=step, url=f"/runs/step-{step}-1.ckpt", digest=str(step), size=size, **more)


@pytest.fixture
def ended(make_ticket: Callable[..., TicketRow]) -> Callable[..., TicketRow]:
    """Return a maker of search tickets of one seed that were pruned, with checkpoints at some steps."""

    def make(number: int, parameters: dict[str, Any], *steps: int, **more: Any) -> TicketRow:
        kept = tuple(at(step) for step in steps)
        fields = {"seed": 7, "total_steps": 24, "outcome": "pruned", "checkpoints": kept, **more}
        return make_ticket("search", number, parameters=parameters, **fields)

    return make


@pytest.fixture
def begun(make_ticket: Callable[..., TicketRow]) -> Callable[..., TicketRow]:
    """Return a maker of the ticket that is to begin."""

    def make(parameters: dict[str, Any], **more: Any) -> TicketRow:
        fields = {"seed": 7, "state": "running", "total_steps": None, **more}
        return make_ticket("search", 9, parameters=parameters, **fields)

    return make


def found(spec: StudySpec, ticket: TicketRow, *others: TicketRow) -> list[tuple[int, int, bool]]:
    """Number, step and whether it was validated alike, of what a ticket may begin from."""
    numbers = {other.id: other.number for other in others}
    return [
        (numbers[each.ticket], each.saved.step, each.validated)
        for each in best_forks(ticket, [*others, ticket], spec)
    ]


def test_a_run_goes_on_from_the_newest_checkpoint_of_one_with_the_same_parameters_and_seed(
    make_spec: Any, ended: Any, begun: Any
) -> None:
    spec = make_spec(seeds=SHARED)
    others = [ended(0, HELD, 8), ended(1, HELD, 20, 12), ended(2, {**HELD, "lr": 0.1}, 22)]
    assert found(spec, begun(HELD), *others) == [(1, 20, True), (1, 12, True), (0, 8, True)]
    # what has no effect makes no difference
    assert found(spec, begun({**HELD, "power": 3.0}), *others)[0] == (1, 20, True)
    assert found(spec, begun(HELD, seed=8), *others) == []
    for unlike in ({"outcome": "diverged"}, {"outcome": None}, {"checkpoints": ()}, {"kind": "constant"}):
        assert found(spec, begun(HELD), dataclasses.replace(others[1], **unlike)) == []


def test_a_run_begins_from_the_last_checkpoint_that_it_has_in_common_with_another(
    make_spec: Any, ended: Any, begun: Any
) -> None:
    spec = make_spec(seeds=SHARED)
    # SHORTER holds for the steps 0 to 5
    assert found(spec, begun(SHORTER), ended(0, HELD, 12, 8), ended(1, HELD, 12, 4)) == [(1, 4, True)]
    assert found(spec, begun(SHORTER), ended(0, HELD, 7, 6)) == [(0, 6, True)]
    constant = {"temperature_init": 2.0, "schedule": "constant"}
    current = make_spec(seeds=SHARED, validate_at="current")
    assert found(current, begun(HELD), ended(0, constant, 20, 12)) == [(0, 12, True)]


def test_what_the_pruner_has_to_see_is_not_forked_away(make_spec: Any, ended: Any, begun: Any) -> None:
    other = ended(0, HELD, 20, 12)
    assert found(make_spec(seeds=SHARED), begun(COLDER), other) == []
    blind = make_spec(seeds=SHARED, pruner="none", sampler="tpe")
    assert found(blind, begun(COLDER), other) == [(0, 12, False)]
    # tempopt's own sampler learns from reports on the way
    assert found(make_spec(seeds=SHARED, pruner="none"), begun(COLDER), other) == []
    assert found(make_spec(seeds=SHARED, validate_at="current"), begun(COLDER), other) == [(0, 12, True)]


def test_where_there_are_callbacks_of_the_persons_own_nothing_is_shared(
    make_spec: Any, ended: Any, begun: Any
) -> None:
    stopping = {"class_path": "lightning.pytorch.callbacks.EarlyStopping", "init_args": {"monitor": "x"}}
    spec = make_spec({"trainer": {"max_steps": 24, "callbacks": [stopping]}}, seeds=SHARED)
    other = ended(0, HELD, 20, 4)
    assert found(spec, begun(SHORTER), other) == found(spec, begun(HELD), other) == []
    assert kept_at_end(other, spec, "pruned") == ()
    assert held(begun(HELD), 24, spec) == 0


def test_nothing_is_shared_without_a_quota(make_spec: Any, ended: Any, begun: Any) -> None:
    spec = make_spec(seeds=SHARED, checkpoint_quota=None)
    assert found(spec, begun(HELD), ended(0, HELD, 8)) == []
    assert kept_at_end(ended(0, HELD, 8), spec, "pruned") == ()
    assert held(begun(HELD), 24, spec) == 0
    # nor where each trial has a seed of its own
    alone = make_spec(seeds={"search": None})
    assert kept_at_end(ended(0, HELD, 8), alone, "pruned") == ()


def test_search_trials_share_seeds_by_turns(make_spec: Any) -> None:
    seeds = [t.seed for t in first_tickets(make_spec(seeds=SHARED, trials=5)) if t.kind == "search"]
    alone = make_spec(seeds={"search": None}, trials=5)
    own = [t.seed for t in first_tickets(alone) if t.kind == "search"]
    assert seeds == [own[0], own[1], own[0], own[1], own[0]] and len(set(own)) == 5
    assert make_spec(seeds={"search": None}).identity() != make_spec(seeds=SHARED).identity()


def test_a_run_keeps_its_two_newest_checkpoints_and_the_last_that_others_may_share(
    make_spec: Any, begun: Any, ended: Any, make_ticket: Any
) -> None:
    spec = make_spec(seeds=SHARED)
    assert held(begun(HELD), 24, spec) == 12
    assert held(make_ticket("baseline", parameters=HELD), 24, spec) == 0
    steps = (20, 16, 12, 8, 4)
    written = [at(step, shared=step <= 12) for step in steps]
    assert [each.step for each in to_go_on_from(written)] == [20, 16, 12]
    assert [each.step for each in to_go_on_from(written[2:])] == [12, 8]
    assert [each.step for each in to_fork_from(written)] == [20, 12]
    assert [each.step for each in to_fork_from(written[2:])] == [12]
    ticket = ended(0, HELD, checkpoints=tuple(written))
    for outcome, left in (("pruned", [20, 12]), ("complete", [20, 12]), ("diverged", []), ("failed", [])):
        assert [each.step for each in kept_at_end(ticket, spec, outcome)] == left


@pytest.mark.parametrize(("direction", "gone"), [("maximize", [2, 0]), ("minimize", [2, 1])])
def test_the_least_promising_runs_make_room(
    make_spec: Any, ended: Any, direction: str, gone: list[int]
) -> None:
    spec = make_spec(checkpoint_quota=40, direction=direction)
    rows = [ended(number, HELD, 8, 4, value=value) for number, value in enumerate([0.1, 0.4, None, 0.2, 0.3])]
    assert [row.number for row in beyond_quota(rows, spec)][:2] == gone
    assert len(beyond_quota(rows, spec)) == 3
    assert beyond_quota(rows[:2], spec) == []


# ---- a whole study

FAMILY = {
    "temperature_init": [2.0],
    "temperature_final": [0.5, 1.0],
    "schedule": ["hold_anneal"],
    "hold_fraction": [0.3, 0.7],
}


def _tried(*parameters: tuple[float, float]) -> list[dict[str, Any]]:
    fixed = {"temperature_init": 2.0, "schedule": "hold_anneal"}
    return [{**fixed, "temperature_final": final, "hold_fraction": held} for final, held in parameters]


def _spec(quota: str | None, **study: Any) -> dict[str, Any]:
    tried = _tried((0.5, 0.3), (1.0, 0.3), (1.0, 0.7), (0.5, 0.7), (1.0, 0.3), (0.5, 0.3))
    pruner = {"name": "percentile", "percentile": 10.0, "n_startup_trials": 1}
    options: dict[str, Any] = {"pruner": pruner, "trials": len(tried), "arms": {"baseline": 1, "constant": 1}}
    options |= {"candidates": 2, "seeds": {"search": 1, "choose": 1, "confirm": 2}, "enqueue": tried}
    return toy_spec(space=FAMILY, checkpoint_quota=quota, **{**options, **study})


Study = tuple[StudyResult, list[Any], list[Any]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The study of which every trial trains all of its steps; some are pruned."""
    with pytest.MonkeyPatch.context() as patch:
        work_in(tmp_path_factory.mktemp("alone"), patch)
        study = _study(None)
        rows = [t for t in tickets() if t.kind == "search"]
        assert {t.forked_from for t in rows} == {None}
        assert any(t.outcome == "pruned" for t in rows)
        return study


def _files() -> list[Path]:
    return sorted(Path.cwd().glob("tempopt-runs/toy/search-*/*.ckpt*"))


def _study(quota: str | None, observer: Unobserved | None = None, **study: Any) -> Study:
    result = search(_spec(quota, **study), storage=URL, workers=1, observer=observer)
    return result, facts(), reports()


@pytest.mark.usefixtures("toy_folder")
class TestAStudyThatShares:
    def test_is_the_same_as_one_that_does_not_but_for_the_steps_that_it_trains(self, alone: Study) -> None:
        plain, expected, reported = alone
        result, found, measured = _study("1GB")
        assert (found, measured) == (expected, reported)
        assert result.winner == plain.winner and result.verdict == plain.verdict
        rows = [t for t in tickets() if t.kind == "search"]
        by_id = {t.id: t for t in rows}
        forked = [t for t in rows if t.forked_from is not None]
        # asked again with the same parameters, and another end of the same plan
        thawed = [t for t in forked if t.parameters == by_id[t.forked_from or 0].parameters]
        assert {t.number for t in thawed} >= {4, 5} and len(forked) > len(thawed)
        for ticket in forked:
            parent = by_id[ticket.forked_from or 0]
            assert parent.number < ticket.number and 0 < (ticket.forked_at or 0) <= (parent.steps or 0)
            assert ticket.steps_trained == (ticket.steps or 0) - (ticket.forked_at or 0)
        assert result.cost.forked_steps == sum(t.forked_at or 0 for t in forked) > 0
        assert result.to_json()["forks"] == [
            {"run": t.name, "from": by_id[t.forked_from or 0].name, "step": t.forked_at} for t in forked
        ]
        # when the search is over, nothing is kept for it
        assert _files() == []
        assert not any(t.checkpoints for t in tickets())

    @pytest.mark.long
    def test_without_a_pruner_shares_what_is_validated_otherwise_too(self) -> None:
        _, expected, reported = _study(None, pruner="none", sampler="tpe")
        for path in Path.cwd().glob("tempopt.db*"):
            path.unlink()
        _, found, measured = _study("1GB", pruner="none", sampler="tpe")
        assert found == expected
        rows = {(t.kind, t.number): t for t in tickets()}
        lacking = set(reported) - set(measured)
        assert set(measured) <= set(reported) and lacking
        for run, step, name, _ in lacking:
            assert name == "report" and step <= (rows[run].forked_at or 0)

    @pytest.mark.long
    def test_shares_nothing_that_its_quota_has_no_room_for(self, alone: Study) -> None:
        assert _study("1kB")[1:] == alone[1:]
        assert not any(t.forked_from for t in tickets())

    @pytest.mark.long
    def test_keeps_what_it_shares_over_an_interruption_and_does_without_after_gc(self, alone: Study) -> None:
        class Cut(Unobserved):
            def finished(self, ticket: TicketRow) -> None:
                if (ticket.kind, ticket.number) == ("search", 3):
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            search(_spec("1GB"), storage=URL, workers=1, observer=Cut())
        assert for_others(tickets()) and _files()
        (seen,) = admin.collect(URL, "toy", dry_run=True)
        assert {Path(url) for url in seen.files} == set(_files())
        assert for_others(tickets())
        (done,) = admin.collect(URL, "toy")
        assert done.files == seen.files
        assert _files() == [] and not for_others(tickets())
        assert _study("1GB")[1:] == alone[1:]

    @pytest.mark.long
    def test_is_the_same_when_the_files_are_gone(self, alone: Study) -> None:
        class Careless(Unobserved):
            def finished(self, ticket: TicketRow) -> None:
                for path in _files():
                    path.unlink()

        assert _study("1GB", Careless())[1:] == alone[1:]
        assert not any(t.forked_from for t in tickets())


def test_checkpoints_are_forgotten_only_of_runs_that_are_over(
    toy_folder: None, make_spec: Callable[..., StudySpec]
) -> None:
    with Store.open(URL) as store:
        study = store.create_study("toy", {}, "0")
        store.add_tickets(study.id, [new(0, "baseline"), new(1, "baseline")])
        rows = [taken(store, study), taken(store, study)]
        kept = [Kept(ticket_id=row.id, attempt=1, checkpoint=at(8)) for row in rows]
        outcomes = Outcomes(outcome="pruned", value=0.5, steps=9, seconds=1.0)
        over = Ended(ticket_id=rows[0].id, attempt=1, outcomes=outcomes, checkpoints=(at(8),))
        store.write(study.id, [*kept, over], agent="agent", lease=60.0)
        assert [row.checkpoints for row in store.tickets(study.id)] == [(at(8),), (at(8),)]
        store.forget_checkpoints(study.id, [rows[1].id])
        assert [row.checkpoints for row in store.tickets(study.id)] == [(at(8),), (at(8),)]
        store.forget_checkpoints(study.id)
        assert [row.checkpoints for row in store.tickets(study.id)] == [(), (at(8),)]
