"""How many runs a study takes, beside numbers counted by hand and studies whose runs are made up."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tempopt.forecast.outcomes import Space, likely
from tempopt.forecast.runs import TRAINED, Forecast, run_seconds
from tempopt.records.rows import TicketRow
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import is_neutral
from tempopt.workers.messages import Times
from tests.simulated import SPACE, Simulated

TAU = {"search": {"temperature_init": {"low": 0.5, "high": 2.0}}}
SMALL = {"trials": 4, "arms": {"baseline": 3, "constant": 2}, "candidates": 2}
SCALED = {"search": {"temperature_init": {"low": 0.5, "high": 2.0}, "length_scaling": ["log_n"]}}
TUNED = {"search": SPACE}
TIMES = Times(start=1.0, step=0.1, steps=100, validate=2.0, validations=5, ends_validated=True, test=3.0)


@pytest.mark.parametrize(
    ("sections", "study", "least", "most"),
    [
        # 9 searched, 2 x 2 candidates on 2 seeds. Where the winner is at τ = 1 it shares its runs with all
        # that it is compared with: 3. Else two learning rates on 2 seeds, and winner, baseline, constant,
        # learned and init-only, 3 times. Its one part, the level, is all of it, so that there is nothing to
        # take apart.
        (TAU, {"seeds": {"choose": 2, "confirm": 3}}, 9 + 8 + 3, 9 + 8 + 4 + 5 * 3),
        # one look at 2 pairs may end it, or all 6 are needed
        (TAU, {"seeds": {"choose": 2, "confirm": {"min": 2, "max": 6}}}, 9 + 8 + 2, 9 + 8 + 4 + 5 * 6),
        # of 4 choosing seeds a race may end after 2
        (TAU, {"seeds": {"choose": 4, "confirm": 3}}, 9 + 8 + 3, 9 + 16 + 8 + 5 * 3),
        # without baked initial weights
        (TAU, {"seeds": {"choose": 2, "confirm": 3}, "init_only": False}, 9 + 8 + 3, 9 + 8 + 4 + 4 * 3),
        # without learned temperatures, too
        (
            TAU,
            {"seeds": {"choose": 2, "confirm": 3}, "init_only": False, "learned": False},
            9 + 8 + 3,
            9 + 8 + 3 * 3,
        ),
        # one candidate of each arm that has searched: nothing to choose among but learning rates
        (TAU, {"candidates": 1, "seeds": {"choose": 2, "confirm": 3}}, 9 + 3, 9 + 4 + 5 * 3),
        # Never at τ = 1 without the length scaling. A winner that is that scaling alone, where τ = 1 is the
        # best constant: winner, baseline, learned and init-only. Else its parts are level and scaling;
        # without each of them 2 x 3; to order the simpler plans 2 x 2 on the choosing seeds, on which τ = 1,
        # one of the two constants, was trained.
        (
            SCALED,
            {"seeds": {"choose": 2, "confirm": 3}, "ablation": "full"},
            9 + 8 + 4 + 4 * 3,
            9 + 8 + 4 + 5 * 3 + 2 * 3 + 2 * 2,
        ),
    ],
)
def test_the_fewest_and_the_most_runs_are_those_counted_by_hand(
    make_spec: Any, sections: dict[str, Any], study: dict[str, Any], least: int, most: int
) -> None:
    spec = make_spec(sections, **{**SMALL, **study})
    runs = Forecast(spec).runs()
    assert (runs.least, runs.most) == (least, most)
    assert least <= runs.expected <= most
    assert runs.expected == pytest.approx((runs.with_gain + runs.without_gain) / 2)


def test_each_kind_is_counted_by_itself(make_spec: Any) -> None:
    spec = make_spec(TAU, **SMALL, seeds={"choose": 2, "confirm": 3})
    found = {kind: (span.least, span.most) for kind, span in Forecast(spec).by_kind.items()}
    assert found == {
        "baseline": (3, 3),
        "constant": (2, 2),
        "search": (4, 4),
        "choose": (8, 12),
        "confirm": (3, 12),
        "init_only": (0, 3),
    }


@pytest.mark.parametrize("study", [{}, {"test": "sign_flip"}, {"seeds": {"confirm": {"min": 4, "max": 12}}}])
@pytest.mark.parametrize("sections", [TAU, SCALED, TUNED])
def test_studies_that_turn_out_in_any_way_have_runs_in_the_range(
    make_spec: Any, sections: dict[str, Any], study: dict[str, Any]
) -> None:
    spec = make_spec(sections, trials=12, **study)
    runs = Forecast(spec).runs()
    counts = []
    for number in range(12):
        draw = random.Random(number)
        gain, noise = draw.choice([-1.0, 0.0, 0.5, 1.0, 4.0]), draw.choice([0.0, 1.0])

        def worth(
            row: TicketRow, draw: random.Random = draw, gain: float = gain, noise: float = noise
        ) -> float:
            return (0.0 if is_neutral(row.parameters or {}) else gain) + noise * draw.gauss(0.0, 1.0)

        counts.append(len(Simulated(spec, worth).run().rows))
    assert runs.least <= min(counts)
    assert max(counts) <= runs.most


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
    search = {name: each for name, each in PARTS.items() if name in names}
    if draw.random() < 0.3:
        search["temperature_init"] = [0.5, 1.0, 2.0]
    confirm = draw.choice([6, {"min": 2, "max": 7}])
    return make_spec(  # type: ignore[no-any-return]
        {"search": search},
        trials=draw.randint(1, 8),
        candidates=draw.randint(1, 4),
        seeds={"choose": draw.randint(1, 4), "confirm": confirm},
        ablation=draw.choice(["auto", "full", "none"]),
        init_only=draw.choice([True, False]),
        guards=draw.choice([{}, {"step_time": "<= +5%"}]),
        arms=draw.choice([{}, {"baseline": 1}, {"constant": 1}]),
        enqueue=draw.choice([[], [{"temperature_init": 1.0}]]),
    )


def most_of_some(spec: StudySpec, number: int, studies: int) -> int:
    """Return the most runs that some studies have whose runs turn out at random."""
    counts, space = [], Space(spec)
    for study in range(studies):
        draw = random.Random(f"{number} {study}")
        gain, noise = draw.choice([0.0, 4.0, 4.0]), draw.choice([0.0, 1.0])
        fails, of_parts = draw.choice([0.0, 0.0, 0.2]), draw.choice([0, 1])

        def worth(row: TicketRow) -> float | None:
            if draw.random() < fails:  # noqa: B023
                return None
            parts = space.parts(row.parameters or {})
            return gain * (parts if of_parts else parts > 0) + noise * draw.gauss(0.0, 1.0)  # noqa: B023

        counts.append(len(Simulated(spec, worth).run().rows))
    return max(counts)


# the first six had more than was said, the others study.enqueue or nothing to take apart
@pytest.mark.parametrize("number", [4, 6, 8, 11, 18, 55, 17, 0])
def test_no_study_has_more_runs_than_are_said(number: int, make_spec: Any) -> None:
    spec = drawn_spec(make_spec, number)
    assert most_of_some(spec, number, 3) <= Forecast(spec, studies=2).runs().most


@pytest.mark.long
@pytest.mark.nightly
def test_none_of_very_many_studies_has_more_runs_than_are_said(make_spec: Any) -> None:
    for number in range(150):
        spec = drawn_spec(make_spec, number)
        assert most_of_some(spec, number, 4) <= Forecast(spec, studies=2).runs().most, number


@pytest.mark.parametrize(
    ("sections", "study", "more"),
    [
        # steps are timed in 8 runs of their own
        (TAU, {"guards": {"step_time": "<= +5%"}}, 8),
        # tempopt's sampler may name 3 candidates out of 3 runs, and 4 sets that none of 3 trials has tried
        (TAU, {"trials": 3, "candidates": 4}, 2 * (4 - 2)),
    ],
)
def test_runs_that_need_not_be_are_among_the_most(
    make_spec: Any, sections: dict[str, Any], study: dict[str, Any], more: int
) -> None:
    plain = {**SMALL, "seeds": {"choose": 2, "confirm": 3}}
    least = {**plain, "trials": study.get("trials", plain["trials"])}
    most = [Forecast(make_spec(sections, **each)).runs().most for each in (least, {**plain, **study})]
    assert most[1] - most[0] == more


def test_drawn_studies_show_a_gain_where_they_have_one(make_spec: Any) -> None:
    for gains, made in likely(make_spec(SCALED, trials=12), 8):
        assert any(row.kind == "ablation" for row in made.rows) == gains


# ---- seconds


def test_a_run_takes_what_its_parts_take(make_spec: Any, make_ticket: Any) -> None:
    spec = make_spec(TAU)
    seconds = [
        run_seconds(make_ticket(kind, parameters=parameters, arm=arm), spec, [], TIMES)
        for kind, arm, parameters in (
            # 100 steps, 5 validations, the last of which is that of the end
            ("baseline", "baseline", {"temperature_init": 1.0}),
            # its temperature is the same all along
            ("init_only", "init_only", {"temperature_init": 1.0}),
            # its last temperature is the final one
            (
                "ablation",
                "simplest",
                {"temperature_init": 2.0, "temperature_final": 1.0, "schedule": "linear"},
            ),
        )
    ]
    assert seconds == pytest.approx([1 + 10 + 10, 1 + 10 + 10 + 3, 1 + 10 + 10 + 3])


def test_the_seconds_of_a_study_are_those_of_its_runs(make_spec: Any) -> None:
    spec = make_spec(
        TAU,
        trials=1,
        arms={"baseline": 3, "constant": 1},
        candidates=1,
        seeds={"choose": 1, "confirm": 2},
        init_only=False,
        confirm_on="validate",
        pruner="none",
    )
    forecast = Forecast(spec)
    alone, two = forecast.elapsed(TIMES, 1), forecast.elapsed(TIMES, 2)
    assert forecast.seconds(TIMES) == alone
    # 5 runs and then 2 of a winner at τ = 1, or two learning rates and 6: one constant is τ = 1, the baseline
    assert (forecast.runs().least, forecast.runs().most) == (5 + 2, 5 + 2 + 6)
    assert "search" in forecast.costs_of(TIMES)
    assert alone.least >= 7 * 21
    # of five runs the last is alone on two workers
    assert two.least >= 4 * 21
    assert two.least < alone.least


def test_runs_that_the_pruner_may_end_train_less_of_their_steps(make_spec: Any) -> None:
    def share(**study: Any) -> float:
        spec = make_spec(TUNED, arms={"baseline": 20, "constant": 20}, **study)
        made = Forecast(spec, studies=2)
        return made.seconds(TIMES).expected

    pruned, whole = share(trials=20), share(trials=20, pruner="none")
    assert whole * TRAINED < pruned < whole
    # few runs tell a pruner nothing
    few = {"trials": 4, "arms": {"baseline": 4, "constant": 4}}
    assert Forecast(make_spec(TUNED, **few)).seconds(TIMES) == Forecast(
        make_spec(TUNED, **few, pruner="none")
    ).seconds(TIMES)
    # nor is there anything to end where a run is validated at its end alone
    once = Times(start=1.0, step=0.1, steps=100, validate=2.0, validations=1, ends_validated=True)
    assert not Forecast(make_spec(TUNED, trials=20)).prunes(once)
