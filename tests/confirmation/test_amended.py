"""An amended search space in choosing and in verdicts: which runs are candidates, what judges a round."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tempopt.confirmation.selection import searched
from tempopt.confirmation.verdict import conclude
from tempopt.records.rows import TicketRow
from tempopt.results.rounds import amended, ledger
from tempopt.sampling.arms import Arms
from tempopt.spec.amendments import Amendment
from tempopt.spec.study_spec import StudySpec
from tests.simulated import Simulated, arms_at

INIT = {"low": 0.25, "high": 4.0}
LR = {"low": 0.001, "high": 0.1, "log": True}

Make = Callable[..., StudySpec]


def space(make_spec: Make, search: dict[str, Any], **study: Any) -> StudySpec:
    return make_spec({"search": search}, **{"trials": 8, **study})


def change(before: StudySpec, after: StudySpec, of_round: int = 1, **told: dict[str, Any]) -> StudySpec:
    made = Amendment(spec=before, round=of_round, **{"missing": {}, "fixed": {}, **told})  # type: ignore[arg-type]
    return after.following((*before.amendments, made))


def run(make_ticket: Any, kind: str, number: int, value: float, spec: StudySpec, **sampled: Any) -> TicketRow:
    parameters = spec.parameters(kind, sampled)  # type: ignore[arg-type]
    found: TicketRow = make_ticket(kind, number, value, parameters=parameters, sampled=sampled)
    return found


def none(arm: Any, count: int) -> list[dict[str, Any]]:
    return []


def test_candidates_of_the_search_lie_in_the_space_of_now(make_spec: Make, make_ticket: Any) -> None:
    before = space(make_spec, {"temperature_init": INIT})
    after = change(
        before,
        space(make_spec, {"temperature_init": {"low": 0.25, "high": 1.0}, "lr": LR}),
        missing={"lr": 0.01},
    )
    rows = [
        run(make_ticket, "search", n, n / 10, before, temperature_init=t) for n, t in enumerate((0.5, 1, 2))
    ]
    # the best is too hot; the others train with the learning rate that they always had
    assert searched("search", rows, after, none) == [
        {"temperature_init": 1.0, "lr": 0.01},
        {"temperature_init": 0.5, "lr": 0.01},
    ]
    assert searched("search", rows, before, none)[0] == {"temperature_init": 2}


def test_what_the_search_is_compared_with_stays_a_rival_wherever_it_lies(
    make_spec: Make, make_ticket: Any
) -> None:
    before = space(make_spec, {"temperature_init": INIT, "lr": LR})
    after = change(before, space(make_spec, {"temperature_init": INIT, "lr": {**LR, "high": 0.01}}))
    low, high = (
        run(make_ticket, "baseline", number, value, before, lr=lr)
        for number, (value, lr) in enumerate(((0.5, 0.005), (0.9, 0.05)))
    )
    lrs = [each["lr"] for each in searched("baseline", [low, high], after, none)]
    assert lrs == [0.05, 0.005]

    def recommend(arm: Any, count: int) -> list[dict[str, Any]]:
        return [after.parameters("baseline", {"lr": 0.007})]

    lrs = [each["lr"] for each in searched("baseline", [low, high], after, recommend)]
    assert lrs == [0.007, 0.05]
    # it is one only if nothing inside is better
    better = dataclasses.replace(low, value=0.95)
    assert [each["lr"] for each in searched("baseline", [better, high], after, recommend)] == [0.007]


def test_a_run_outside_takes_its_number_and_tells_the_sampler_nothing(
    make_spec: Make, make_ticket: Any
) -> None:
    search = {"temperature_init": {"low": 0.25, "high": 16.0}}
    before = space(make_spec, search, sampler="tpe", parallel=1)
    after = change(before, space(make_spec, {"temperature_init": INIT}, sampler="tpe", parallel=1))
    taus = [0.3, 8.0, 0.5, 12.0, 1.0, 16.0, 2.0, 3.0, 9.0, 0.7, 1.5, 2.5]
    rows = [run(make_ticket, "search", n, n / 10, before, temperature_init=tau) for n, tau in enumerate(taus)]
    # whatever those outside came to
    worse = [
        dataclasses.replace(row, value=-100.0) if (row.sampled or {})["temperature_init"] > 4 else row
        for row in rows
    ]
    asked = make_ticket("search", len(rows), state="running", parameters=None, sampled=None, space=1)
    first, second = (Arms(after, known, []).ask(asked) for known in (rows, worse))
    assert first == second and 0.25 <= first["temperature_init"] <= 4.0
    best = Arms(after, rows, []).best()
    assert best is not None and best.sampled == {"temperature_init": 2.5}
    running = dataclasses.replace(rows[1], state="running", outcome=None, value=None)
    arms = Arms(after, [*rows[:1], running], [])
    assert not arms.prune(running, {1: -1e9}) and arms.bound(running, {1: -1e9}) is None


def test_a_round_is_judged_by_what_was_searched_in_it(make_spec: Make) -> None:
    """A method parameter that is taken out later stays a part of the winner before."""
    search = {"temperature_init": {"low": 2.0, "high": 4.0}, "label_smoothing": {"low": 0.1, "high": 0.2}}
    spec = space(make_spec, search, ablation="full")

    def worth(ticket: TicketRow) -> float:
        gained = (ticket.parameters or {}).get("label_smoothing", 0.0)
        return float(gained) + ticket.seed % 97 / 1000

    study = Simulated(spec, worth).run()
    before = conclude(study.rows, [], spec)
    assert before is not None and "label_smoothing" in {part.name for part in before.parts}
    after = change(spec, space(make_spec, {"temperature_init": INIT}, ablation="full"), fixed={})
    assert conclude(study.rows, [], after) == before
    assert [each.alpha for each in ledger(study.rows)] == [0.04]
    (told,) = amended(study.rows, after)
    assert (told.round, told.during, told.trials, told.kept) == (1, False, 8, 0)


def test_a_rematch_goes_on_by_number_where_ordinary_parameters_were_added(make_spec: Make) -> None:
    """The baseline had three runs, and has three whatever a study with other parameters would begin with."""
    before = space(make_spec, {"temperature_init": INIT})
    after = change(
        before, space(make_spec, {"temperature_init": INIT, "lr": LR}), missing={"lr": 0.01}, of_round=0
    )
    assert (before.num_baseline, after.num_baseline) == (3, 4)
    study = Simulated(before, lambda ticket: ticket.seed % 97 / 97)
    study.search()
    study.spec = after
    rematch = study.until("rematch")
    assert rematch[0].sampled is not None and rematch[0].sampled.keys() == {"lr"}
    waiting = dataclasses.replace(rematch[1], state="running", parameters=None, sampled=None, space=1)
    rows = [row for row in study.rows if row.kind != "rematch"] + [rematch[0]]
    found = arms_at(after, rows).ask(waiting)
    assert found.keys() == {"lr"} and 0.001 <= found["lr"] <= 0.1
