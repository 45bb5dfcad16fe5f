"""Worlds in closed form: what is said to be true of them is, and temperature is worth what it is said to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from benchmarks.recorded.tasks import value_at
from benchmarks.simulated.worlds import (
    NAMES,
    PAIR,
    RUN_SD,
    SHARED,
    ModelWorld,
    luck,
    of_seed,
    world_of,
)
from tempopt.temperature import LR_RATIOS, add_learned_temperatures, to_neutral
from tempopt.training.messages import Evaluation

_SEEDS = 2000
_FEWER = 500
_COOL = {"temperature_init": 0.5, "schedule": "constant"}
_ONE = {"temperature_init": 1.0, "schedule": "constant"}
_DOWN = {"temperature_init": 2.0, "temperature_final": 0.5, "schedule": "linear"}


def draw_params(world: ModelWorld, count: int) -> list[dict[str, Any]]:
    """Return parameter sets from everywhere in a world's space."""
    rng = np.random.default_rng(5)
    space = world.spec.space()
    values = (
        {name: value_at(distribution, rng.random()) for name, distribution in space.items()}
        for _ in range(count)
    )
    return [world.spec.parameters("search", values) for values in values]


def params_of_others(world: ModelWorld, **params: Any) -> dict[str, Any]:
    """Return other parameters that are not the best ones."""
    return {name: 2e-3 if name == "lr" else 0.5 for name in world.ordinary_names} | params


@pytest.mark.parametrize("name", NAMES)
def test_the_truth_is_the_mean_over_seeds(name: str) -> None:
    world = world_of(name)
    for params in draw_params(world, 2):
        trainings = [world.train(params, seed) for seed in range(_FEWER)]
        for values in (
            [training.test for training in trainings],
            [training.final[-1] for training in trainings],
        ):
            error = np.std(values, ddof=1) / math.sqrt(_FEWER)
            assert abs(np.mean(values) - world.worth(params)) < 4 * error


def test_runs_of_a_seed_differ_by_what_is_their_own() -> None:
    world = world_of("null-3")
    params, other_params = draw_params(world, 2)
    pairs = np.array(
        [
            [world.train(set_params, seed).test for set_params in (params, other_params)]
            for seed in range(_SEEDS)
        ]
    )
    assert np.std(pairs[:, 0], ddof=1) == pytest.approx(math.hypot(SHARED, RUN_SD), rel=0.08)
    assert np.std(pairs[:, 0] - pairs[:, 1], ddof=1) == pytest.approx(PAIR, rel=0.08)


@pytest.mark.parametrize(
    "name",
    [
        *("null-0", "null-1", "null-3", "null-6", "weak-3", "collapse-3"),
        *("two-0", "two-3", "two-read", "three-3", "three-heavy", "three-uneven"),
    ],
)
def test_where_temperature_does_nothing_every_plan_is_worth_the_same(name: str) -> None:
    world = world_of(name)
    for params in draw_params(world, 50):
        assert (
            world.worth(params)
            == world.worth(to_neutral(params))
            == world.worth(add_learned_temperatures(params, 10.0))
        )
        if world.attends:
            assert world.worth(params, _COOL) == world.worth(params)


@pytest.mark.parametrize("world_name", ["ridge", "ridge-last"])
@pytest.mark.parametrize("plan", [_COOL, _DOWN, {"temperature_init": 4.0, "schedule": "constant"}])
def test_on_a_ridge_the_learning_rate_makes_up_for_any_temperature(
    world_name: str, plan: dict[str, Any]
) -> None:
    world = world_of(world_name)
    end = {_COOL["temperature_init"]: 0.5, 2.0: 0.5, 4.0: 4.0}[plan["temperature_init"]]
    # a straight line from 2 to 0.5 has this mean of log τ, by its integral
    straight = (2 * math.log(2) - 0.5 * math.log(0.5) - 1.5) / 1.5
    mean = straight if plan is _DOWN else math.log(end)
    by_place = 0.02 if plan is _DOWN and world_name == "ridge" else 1e-9
    factor = end if world_name == "ridge-last" else math.exp(mean)
    for lr in (3e-4, 1e-3):
        tempered_value = world.worth({**plan, **params_of_others(world, lr=lr)})
        assert tempered_value == pytest.approx(
            world.worth({**_ONE, **params_of_others(world, lr=lr * factor)}), abs=by_place
        )


@pytest.mark.parametrize("name", ["ridge", "ridge-last", "moving", "flatter"])
def test_where_others_hang_on_temperature_the_best_is_the_same_for_each(name: str) -> None:
    world = world_of(name)
    places = np.linspace(0.0, 1.0, 201)

    def best(plan: dict[str, Any]) -> float:
        """Return the best value along the line on which all others move as one, from where they are best."""
        base = {"lr": 0.4, "x1": 0.62, "x2": 0.45}
        values = []
        for position in places:
            params = {
                n: base[n] + (position - 0.5) * (n == "lr" or name == "moving") for n in world.ordinary_names
            }
            params["lr"] = 1e-4 * 100 ** params["lr"]
            values.append(world.worth({**plan, **params}))
        return max(values)

    values = [best(plan) for plan in (_ONE, _COOL, {**_COOL, "temperature_init": 4.0})]
    assert np.ptp(values) < 1e-4
    # and with the others left alone it is not
    default_values = [world.worth({**plan, **params_of_others(world)}) for plan in (_ONE, _COOL)]
    assert abs(default_values[0] - default_values[1]) > 1e-3


def test_a_gain_is_as_large_as_it_was_asked() -> None:
    for name, plan in (("level-3", _COOL), ("inference-80", _COOL), ("length-3", None), ("schedule-3", None)):
        for size in (0.5, 2.0):
            world = world_of(f"{name}@{size}")
            best = plan or {
                "temperature_init": 2.0 if name == "schedule-3" else 1.0,
                "temperature_final": 0.5 if name == "schedule-3" else 1.0,
                "schedule": "linear",
                "length_scaling": "log_n" if name == "length-3" else "none",
            }
            gain = world.worth({**best, **params_of_others(world)}) - world.worth(
                {**_ONE, **params_of_others(world)}
            )
            assert gain == pytest.approx(size * PAIR)


def test_what_a_schedule_gains_no_constant_does() -> None:
    world = world_of("schedule-0")
    for tau in (0.25, 0.5, 4.0):
        assert world.worth({**_ONE, "temperature_init": tau}) == pytest.approx(world.worth(_ONE))


@pytest.mark.parametrize(("name", "share"), [("level-3", 0.0), ("inference-50", 0.5), ("inference-100", 1.0)])
def test_evaluation_alone_reaches_its_share_of_the_gain(name: str, share: float) -> None:
    world = world_of(name)
    baseline, winner = ({**plan, **params_of_others(world)} for plan in (_ONE, _COOL))
    total = world.worth(winner) - world.worth(baseline)
    assert world.worth(baseline, _COOL) - world.worth(baseline) == pytest.approx(share * total, abs=1e-12)
    evaluation = Evaluation(name="test:winner", on="test", temperature=dict(_COOL))
    plain_evaluation = Evaluation(name="test", on="test")
    gains = [
        world.measure(baseline, s, evaluation) - world.measure(baseline, s, plain_evaluation)
        for s in range(_SEEDS)
    ]
    assert np.mean(gains) == pytest.approx(share * total, abs=4 * np.std(gains) / math.sqrt(_SEEDS))


@pytest.mark.parametrize(("tau", "expected"), [(1.0, 0.25), (0.5, 0.05)])
def test_runs_collapse_as_often_as_their_parameters_say(tau: float, expected: float) -> None:
    world = world_of("rescued")
    parameters = {**_ONE, "temperature_init": tau}
    is_collapsed = [world.train(parameters, seed).test < 0.65 for seed in range(_SEEDS)]
    assert np.mean(is_collapsed) == pytest.approx(expected, abs=4 * math.sqrt(expected / _SEEDS))
    assert world.worth(parameters) == pytest.approx(0.8 - 0.3 * expected)


def test_nothing_is_to_be_gained_where_collapses_cost_more_than_temperature_gains() -> None:
    world = world_of("risky")
    assert world.truth(draw_params(world, 2000)).max() <= world.worth(_ONE) + 1e-12
    # though those that live do gain
    assert np.median([world.train({**_ONE, "temperature_init": 0.5}, s).test for s in range(200)]) > 0.81


def named_params(world: ModelWorld, contrast: float, teacher: float) -> dict[str, Any]:
    """Return parameters at constant named temperatures, in ratio to those found."""
    as_found = {name: section.as_found for name, section in world.spec.temperatures.items()}
    ratios = {"contrast": contrast, "teacher": teacher}
    levels = {f"{name}.temperature_init": ratio * as_found[name] for name, ratio in ratios.items()}
    return world.spec.parameters("constant", {**levels, **params_of_others(world)})


@pytest.mark.parametrize("name", ["two-level-0", "two-level-3"])
def test_each_of_two_temperatures_gains_half(name: str) -> None:
    world = world_of(f"{name}@3")
    at_found = world.worth(named_params(world, 1.0, 1.0))
    assert world.worth(named_params(world, 0.5, 0.5)) - at_found == pytest.approx(3.0 * PAIR)
    for ratios in ((0.5, 1.0), (1.0, 0.5)):
        assert world.worth(named_params(world, *ratios)) - at_found == pytest.approx(1.5 * PAIR)


def test_learned_temperatures_have_their_share_of_the_gain() -> None:
    world = world_of("two-level-3")
    baseline = world.spec.parameters("baseline", params_of_others(world))
    gains = [
        world.worth(add_learned_temperatures(baseline, ratio)) - world.worth(baseline) for ratio in LR_RATIOS
    ]
    assert gains == pytest.approx([0.25 * 2.0 * PAIR, 0.5 * 2.0 * PAIR])
    # and what is their own is not the baseline's
    assert (
        world.train(add_learned_temperatures(baseline, 1.0), 5).test - gains[0]
        != world.train(baseline, 5).test
    )


def test_another_named_temperature_at_inference_does_nothing_but_by_chance() -> None:
    world = world_of("two-read")
    parameters = named_params(world, 0.5, 1.0)
    plain_evaluation = Evaluation(name="test", on="test")

    def measure_difference(seed: int, **plan: float) -> float:
        levels = {f"{name}.temperature_init": tau for name, tau in plan.items()}
        evaluation = Evaluation(name="test:other", on="test", temperature=levels)
        return world.measure(parameters, seed, evaluation) - world.measure(parameters, seed, plain_evaluation)

    # contrast was 0.5 as found and is 0.25 here, teacher is 4
    assert (
        measure_difference(3, contrast=0.25)
        == measure_difference(3, teacher=4.0)
        == measure_difference(3, contrast=0.25, teacher=4.0)
        == 0
    )
    gains = [measure_difference(seed, contrast=0.5) for seed in range(_FEWER)]
    assert np.std(gains) > 0.1 * RUN_SD
    assert abs(np.mean(gains)) < 4 * np.std(gains) / math.sqrt(_FEWER)


def test_heavy_tails_are_heavier_and_no_wider() -> None:
    heavy, normal = (
        np.array([luck("any", seed, shape).run for seed in range(20 * _SEEDS)])
        for shape in ("heavy", "normal")
    )
    assert np.std(heavy) == pytest.approx(np.std(normal), rel=0.1)
    limit = 4.0 * np.std(normal)
    assert (abs(heavy) > limit).mean() > 20.0 * (abs(normal) > limit).mean()


@pytest.mark.parametrize(("ratio", "wider"), [(1.0, 1.0), (2.0, 1.5), (0.25, 2.0)])
def test_far_from_the_baseline_runs_are_more_uneven(ratio: float, wider: float) -> None:
    world = world_of("three-uneven")
    parameters = {**named_params(world, ratio, ratio), "temperature_init": ratio}
    run_noise = [world.train(parameters, s).test - of_seed(s, "normal") for s in range(_SEEDS)]
    assert np.std(run_noise) == pytest.approx(wider * RUN_SD, rel=0.08)
