"""How many runs a study takes, beside numbers counted by hand and studies whose runs are made up."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tempopt.forecast.runs import planned_runs
from tempopt.records.rows import TicketRow
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import active_groups, is_neutral
from tests.simulated import SPACE, Simulated

TAU = {"search": {"temperature_init": {"low": 0.5, "high": 2.0}}}
SMALL = {"trials": 4, "arms": {"baseline": 3, "constant": 2}, "candidates": 2}
SCALED = {"search": {"temperature_init": {"low": 0.5, "high": 2.0}, "length_scaling": ["log_n"]}}
TUNED = {"search": SPACE}


@pytest.mark.parametrize(
    ("sections", "study", "least", "most"),
    [
        # 9 searched, 2 x 2 candidates on 2 seeds. Where the winner is at τ = 1 it shares its runs with all
        # that it is compared with: 3. Else two learning rates on 2 seeds, and winner, baseline, constant,
        # and learned, 3 times. Its one part, the level, is all of it, so that there is nothing to
        # take apart.
        (TAU, {"seeds": {"choose": 2, "confirm": 3}}, 9 + 8 + 3, 9 + 8 + 4 + 4 * 3),
        # one look at 2 pairs may end it, or all 6 are needed
        (TAU, {"seeds": {"choose": 2, "confirm": {"min": 2, "max": 6}}}, 9 + 8 + 2, 9 + 8 + 4 + 4 * 6),
        # of 4 choosing seeds a race may end after 2
        (TAU, {"seeds": {"choose": 4, "confirm": 3}}, 9 + 8 + 3, 9 + 16 + 8 + 4 * 3),
        # one candidate of each arm that has searched: nothing to choose among but learning rates
        (TAU, {"candidates": 1, "seeds": {"choose": 2, "confirm": 3}}, 9 + 3, 9 + 4 + 4 * 3),
        # Parts are level and scaling: without each of them 2 x 3 with a gain; winner and baseline are on the
        # choosing seeds, where the two simpler plans are added.
        (
            SCALED,
            {"seeds": {"choose": 2, "confirm": 3}, "ablation": "full"},
            9 + 8 + 3,
            9 + 8 + 4 + 4 * 3 + 2 * 3 + (2 + 1) * 2,
        ),
    ],
)
def test_the_fewest_and_the_most_runs_are_those_counted_by_hand(
    make_spec: Any, sections: dict[str, Any], study: dict[str, Any], least: int, most: int
) -> None:
    runs = planned_runs(make_spec(sections, **{**SMALL, **study})).all()
    assert (runs.min, runs.max) == (least, most)
    assert least <= runs.typical <= most


def test_each_kind_is_counted_by_itself(make_spec: Any) -> None:
    found = planned_runs(make_spec(TAU, **SMALL, seeds={"choose": 2, "confirm": 3}))
    assert {kind: (span.min, span.max) for kind, span in found.gain.items()} == {
        "baseline": (3, 3),
        "constant": (2, 2),
        "search": (4, 4),
        "choose": (8 + 4, 8 + 4),
        "confirm": (3 * 3, 4 * 3),
    }
    assert found.no_gain["confirm"].min == 3
    assert found.all(without=("baseline", "constant", "search")).max == found.all().max - 9


def test_looks_on_the_way_end_a_confirmation_sooner_and_a_gain_later(make_spec: Any) -> None:
    fixed, looked = (
        planned_runs(make_spec(TAU, **SMALL, seeds={"choose": 2, "confirm": confirm}))
        for confirm in (12, {"min": 4, "max": 12})
    )
    # ahead at 0, 1 and 2 equally spaced looks of noise: 1, 1/2 and 3/8
    assert looked.no_gain["confirm"].typical == pytest.approx(4 * 4 * (1 + 1 / 2 + 3 / 8))
    assert looked.gain["confirm"].typical < fixed.gain["confirm"].typical == 4 * 12


def worth_of(number: int) -> Any:
    """Return a world: noise and gain, or parts that are worth something each, and runs that may fail."""
    draw = random.Random(number)
    gain, noise = draw.choice([-1.0, 0.0, 0.0, 1.0, 4.0, 4.0]), draw.choice([0.0, 1.0])
    fails, by_part = draw.choice([0.0, 0.0, 0.2]), draw.choice([False, True])

    def worth(row: TicketRow) -> float | None:
        if draw.random() < fails:
            return None
        parameters = row.parameters or {}
        parts = len(active_groups(parameters))
        return gain * (parts if by_part else not is_neutral(parameters)) + noise * draw.gauss(0.0, 1.0)

    return worth


@pytest.mark.parametrize("study", [{}, {"test": "sign_flip"}, {"seeds": {"confirm": {"min": 4, "max": 12}}}])
@pytest.mark.parametrize("sections", [TAU, SCALED, TUNED])
def test_studies_that_turn_out_in_any_way_have_runs_in_the_range(
    make_spec: Any, sections: dict[str, Any], study: dict[str, Any]
) -> None:
    spec = make_spec(sections, trials=12, **study)
    runs = planned_runs(spec).all()
    counts = [len(Simulated(spec, worth_of(number)).run().rows) for number in range(6)]
    assert runs.min <= min(counts)
    assert max(counts) <= runs.max


PARTS = {
    "temperature_init": {"low": 0.25, "high": 4.0},
    "temperature_final": {"low": 0.25, "high": 4.0},
    "schedule": ["constant", "linear"],
    "length_scaling": ["none", "log_n"],
    "layer_pattern": ["uniform", "linear"],
    "layer_ratio": {"low": 0.5, "high": 2.0},
    "entropy_lambda": [0.0, 0.01],
    "normaliser": ["softmax", "sparsemax"],
    "output_temperature": {"low": 0.5, "high": 2.0},
    "dropout": {"choices": [0.0, 0.1], "baseline": 0.0},
    "lr": {"low": 0.001, "high": 0.1},
}
_ALONE = {"temperature_final": "schedule", "schedule": "temperature_final"}
_ALONE |= {"layer_pattern": "layer_ratio", "layer_ratio": "layer_pattern"}


def drawn_spec(make_spec: Any, number: int) -> StudySpec:
    """Return a spec that is drawn at random, another for each number."""
    draw = random.Random(number)
    names = {"temperature_init", *draw.sample(sorted(PARTS), draw.randint(1, 8))}
    names |= {_ALONE[name] for name in names if name in _ALONE}
    search = {name: domain for name, domain in PARTS.items() if name in names}
    if draw.random() < 0.3:
        search["temperature_init"] = [0.5, 1.0, 2.0]
    confirm = draw.choice([6, {"min": 2, "max": 7}])
    return make_spec(  # type: ignore[no-any-return]
        {"search": search},
        trials=draw.randint(1, 8),
        candidates=draw.randint(1, 4),
        seeds={"choose": draw.randint(1, 4), "confirm": confirm},
        ablation=draw.choice(["auto", "full", "none"]),
        arms=draw.choice([{}, {"baseline": 1}, {"constant": 1}]),
        enqueue=draw.choice([[], [{"temperature_init": 1.0}]]),
    )


@pytest.mark.parametrize("start", [0, 12, 24])
def test_no_study_has_more_runs_than_are_said_and_none_that_ends_well_fewer(
    start: int, make_spec: Any
) -> None:
    for number in range(start, start + 12):
        spec = drawn_spec(make_spec, number)
        runs = planned_runs(spec).all()
        for study in range(2):
            rows = Simulated(spec, worth_of(100 * number + study)).run().rows
            assert len(rows) <= runs.max, (number, study)
            failed = any(row.outcome != "complete" for row in rows)
            assert failed or len(rows) >= runs.min, (number, study)
