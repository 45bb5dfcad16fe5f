"""A search space that was changed: what runs of before count for in it, and where new constants go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tempopt.records.rows import TicketRow
from tempopt.spec.amendments import Amendment, as_now, changes, fits, wanted_now, whole
from tempopt.spec.study_spec import StudySpec

INIT = {"low": 0.25, "high": 4.0}
FINAL = {"low": 0.5, "high": 2.0}
LR = {"low": 0.001, "high": 0.1, "log": True}

Make = Callable[..., StudySpec]


@pytest.fixture
def space_of(make_spec: Make) -> Callable[..., StudySpec]:
    """Return a maker of specs by what they search; ``given``: init arguments of the model."""

    def made(given: dict[str, Any] | None = None, **search: Any) -> StudySpec:
        model = {"class_path": "package.module.Model", "init_args": {"d_model": 8, **(given or {})}}
        named = {name.replace("__", "."): domain for name, domain in search.items()}
        return make_spec({"search": named, "model": model})

    return made


def amended(before: StudySpec, after: StudySpec, **told: dict[str, Any]) -> StudySpec:
    made = Amendment(spec=before, round=1, **{"missing": {}, "fixed": {}, **told})  # type: ignore[arg-type]
    return after.following((*before.amendments, made))


def run(make_ticket: Any, spec: StudySpec, kind: str = "search", **sampled: Any) -> TicketRow:
    """Return a complete run of a spec, with its parameters as an agent writes them."""
    arm: Any = "baseline" if kind == "rematch" else kind
    parameters = spec.parameters(arm, sampled)
    space = len(spec.amendments)
    found: TicketRow = make_ticket(kind, 0, 0.5, parameters=parameters, sampled=sampled, space=space)
    return found


def test_a_run_of_a_wider_range_or_of_a_narrower_one_that_holds_it_stays(
    space_of: Make, make_ticket: Any
) -> None:
    before = space_of(temperature_init=INIT)
    ticket = run(make_ticket, before, temperature_init=0.5)
    for low, high, there in ((0.25, 16, True), (0.4, 0.6, True), (0.1, 0.5, True), (0.6, 16, False)):
        after = amended(before, space_of(temperature_init={"low": low, "high": high}))
        assert fits(ticket, after) is there
        if there:
            assert as_now(ticket, after) == ticket


def test_a_run_is_looked_at_in_the_space_that_it_was_sampled_from(space_of: Make, make_ticket: Any) -> None:
    before = space_of(temperature_init=INIT)
    after = amended(before, space_of(temperature_init={"low": 1.0, "high": 2.0}))
    # its own space is that of now, whatever it says
    own = run(make_ticket, after, temperature_init=0.5)
    assert as_now(own, after) is own


def test_a_temperature_parameter_that_a_run_lacks_is_neutral(space_of: Make, make_ticket: Any) -> None:
    before = space_of(temperature_init=INIT)
    ticket = run(make_ticket, before, temperature_init=0.5)
    missing = {"length_scaling": "none", "n0": 16.0}
    after = amended(
        before,
        space_of(temperature_init=INIT, length_scaling=["none", "log_n"], n0={"low": 2, "high": 8}),
        missing=missing,
    )
    found = as_now(ticket, after)
    # n0 is out of its range, and nothing reads it
    assert found is not None and found.parameters == {"temperature_init": 0.5, "length_scaling": "none"}
    assert found.sampled is not None and found.sampled.keys() == after.search.keys()
    assert after.parameters("search", found.sampled) == found.parameters
    # without the neutral value the run is not in the space
    only = space_of(temperature_init=INIT, length_scaling=["log_n"], n0={"low": 2, "high": 8})
    assert not fits(ticket, amended(before, only, missing=missing))


def test_the_end_of_a_schedule_that_a_run_lacks_is_its_beginning(space_of: Make, make_ticket: Any) -> None:
    before = space_of(temperature_init=INIT)
    given = {"schedule": "cosine"}
    after = amended(
        before,
        space_of(temperature_init=INIT, temperature_final=FINAL, schedule=["constant", "cosine"]),
        missing={"temperature_final": None, "schedule": "constant"},
    )
    found = as_now(run(make_ticket, before, temperature_init=3.0), after)
    assert found is not None and found.parameters == {"temperature_init": 3.0, "schedule": "constant"}
    # with a schedule that is fixed it would have to end where it begins, and 3 is no end
    with_end = space_of(given, temperature_init=INIT, temperature_final=FINAL)
    flat = amended(space_of(given, temperature_init=INIT), with_end, missing={"temperature_final": None})
    assert fits(run(make_ticket, flat.in_space(0), temperature_init=1.5), flat)
    assert not fits(run(make_ticket, flat.in_space(0), temperature_init=3.0), flat)


def test_an_argument_that_a_run_lacks_is_what_it_trained_with(space_of: Make, make_ticket: Any) -> None:
    before = space_of(temperature_init=INIT)
    ticket = run(make_ticket, before, temperature_init=0.5)
    wide = space_of(temperature_init=INIT, weight_decay={"low": 0.0, "high": 0.1})
    narrow = space_of(temperature_init=INIT, weight_decay={"low": 0.01, "high": 0.1})
    found = as_now(ticket, amended(before, wide, missing={"weight_decay": 0}))
    assert found is not None and found.parameters == {"temperature_init": 0.5, "weight_decay": 0.0}
    outside = amended(before, narrow, missing={"weight_decay": 0})
    assert not fits(ticket, outside)
    assert whole(ticket, outside).parameters == {"temperature_init": 0.5, "weight_decay": 0}


def test_a_run_stays_where_a_name_is_taken_out_if_it_had_the_value_that_is_fixed(
    space_of: Make, make_ticket: Any
) -> None:
    before = space_of(temperature_init=INIT, lr=LR)
    after = amended(before, space_of({"lr": 0.01}, temperature_init=INIT), fixed={"lr": 0.01})
    found = as_now(run(make_ticket, before, temperature_init=0.5, lr=0.01), after)
    assert found is not None and found.parameters == found.sampled == {"temperature_init": 0.5}
    assert not fits(run(make_ticket, before, temperature_init=0.5, lr=0.02), after)
    # and back again: it has its own value, the runs between have the one that was fixed
    back = amended(after, space_of(temperature_init=INIT, lr=LR), missing={"lr": 0.01})
    assert fits(run(make_ticket, before, temperature_init=0.5, lr=0.02), back)
    between = as_now(run(make_ticket, after, temperature_init=0.5), back)
    assert between is not None and between.parameters == {"temperature_init": 0.5, "lr": 0.01}


def test_a_run_stays_where_a_temperature_parameter_is_taken_out_that_it_had_neutral(
    space_of: Make, make_ticket: Any
) -> None:
    before = space_of(temperature_init=INIT, length_scaling=["none", "log_n"])
    after = amended(before, space_of(temperature_init=INIT))
    neutral = as_now(run(make_ticket, before, temperature_init=0.5, length_scaling="none"), after)
    assert neutral is not None and neutral.sampled == {"temperature_init": 0.5}
    scaled = run(make_ticket, before, temperature_init=0.5, length_scaling="log_n")
    assert not fits(scaled, after)
    # but where the spec fixes it
    fixed = amended(before, space_of({"length_scaling": "log_n"}, temperature_init=INIT))
    assert fits(scaled, fixed)


def test_a_run_of_a_choice_that_is_gone_is_outside(space_of: Make, make_ticket: Any) -> None:
    before = space_of(temperature_init=INIT, temperature_final=FINAL, schedule=["linear", "cosine"])
    after = amended(
        before,
        space_of(temperature_init=INIT, temperature_final=FINAL, schedule=["cosine", "step"]),
    )
    ends = {"temperature_init": 0.5, "temperature_final": 1.0}
    assert fits(run(make_ticket, before, **ends, schedule="cosine"), after)
    assert not fits(run(make_ticket, before, **ends, schedule="linear"), after)


def test_a_value_on_a_grid_is_on_it_whatever_it_rounds_to(space_of: Make, make_ticket: Any) -> None:
    before = space_of(temperature_init=INIT, dropout={"low": 0.0, "high": 0.5, "step": 0.1})
    after = amended(before, space_of(temperature_init=INIT, dropout={"low": 0.0, "high": 0.8, "step": 0.1}))
    assert fits(run(make_ticket, before, temperature_init=1.0, dropout=0.1 * 3), after)
    finer = amended(before, space_of(temperature_init=INIT, dropout={"low": 0.0, "high": 0.8, "step": 0.2}))
    assert not fits(run(make_ticket, before, temperature_init=1.0, dropout=0.1 * 3), finer)


@pytest.mark.parametrize("kind", ["baseline", "rematch"])
def test_runs_at_one_are_looked_at_by_what_they_tune(space_of: Make, make_ticket: Any, kind: str) -> None:
    before = space_of(temperature_init=INIT, lr=LR)
    hotter = amended(before, space_of(temperature_init={"low": 8.0, "high": 16.0}, lr=LR))
    ticket = run(make_ticket, before, kind, lr=0.05)
    assert as_now(ticket, hotter) == ticket
    lower = amended(before, space_of(temperature_init=INIT, lr={**LR, "high": 0.01}))
    assert not fits(ticket, lower)


def test_a_constant_stays_wherever_the_range_of_temperatures_goes(space_of: Make, make_ticket: Any) -> None:
    before = space_of(temperature_init=INIT)
    once = amended(before, space_of(temperature_init={"low": 8.0, "high": 16.0}))
    twice = amended(once, space_of(temperature_init={"low": 1.0, "high": 2.0}))
    for spec, ends in ((before, (0.25, 4.0)), (once, (0.25, 16.0)), (twice, (0.25, 16.0))):
        span: Any = spec.space("constant")["temperature_init"]
        assert (span.low, span.high) == ends
        assert fits(run(make_ticket, before, "constant", temperature_init=0.25), spec)


def test_a_spec_knows_what_it_was_before(space_of: Make) -> None:
    first = space_of(temperature_init=INIT)
    second = amended(first, space_of(temperature_init=FINAL))
    third = amended(second, space_of(temperature_init={"low": 1.0, "high": 2.0}))
    assert [third.in_space(n).search for n in range(3)] == [each.search for each in (first, second, third)]
    assert [len(third.in_space(n).amendments) for n in range(3)] == [0, 1, 2]
    assert third.identity() != second.identity() and third.in_space(1).identity() == second.identity()
    assert third.with_overrides(["study.trials=50"]).amendments == third.amendments


def test_changes_are_told_name_by_name(space_of: Make) -> None:
    before = space_of(temperature_init=INIT, schedule=["constant", "linear"], temperature_final=FINAL, lr=LR)
    after = space_of(
        temperature_init={**INIT, "high": 16.0},
        schedule=["constant", "cosine"],
        temperature_final=FINAL,
        weight_decay={"low": 0.0, "high": 0.1},
    )
    assert changes(before.search, after.search) == [
        "temperature_init: high 4.0 -> 16.0",
        'schedule: ["constant", "linear"] -> ["constant", "cosine"]',
        "lr: taken out",
        "weight_decay: added, 0.0 to 0.1",
    ]
    assert changes(before.search, before.search) == []


def test_of_what_somebody_wants_tried_stays_what_the_space_holds(space_of: Make) -> None:
    spec = space_of(temperature_init=INIT, lr=LR)
    assert wanted_now({"temperature_init": 8.0, "lr": 0.01, "gone": 1}, spec) == {"lr": 0.01}
    assert wanted_now({"gone": 1}, spec) is None
