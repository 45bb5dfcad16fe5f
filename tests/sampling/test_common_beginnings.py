"""What a common beginning spares, counted step by step, and how the search weighs it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from tempopt.sampling.common_beginnings import CommonBeginnings
from tempopt.sampling.history import frozen
from tempopt.sampling.knowledge_gradient import KnowledgeGradient
from tempopt.sampling.unit_cube import place_of
from tempopt.temperature import end_alike, steps_alike

TOTAL = 40
X = FloatDistribution(0.25, 4.0, log=True)
SPACE = {"x": X, "family": CategoricalDistribution(("trunk", "own"))}


def whole(sampled: Any) -> dict[str, Any]:
    """Half of the sets hold the same temperature for 90 % of training, each of the others one of its own."""
    knots = {"schedule": "piecewise", "temperature_knot_1": sampled["x"], "temperature_final": 1.0}
    if sampled["family"] == "trunk":
        return {**knots, "temperature_init": 1.0, "hold_fraction": 0.9}
    return {**knots, "temperature_init": sampled["x"] + 5.0}


def alone(sampled: Any) -> dict[str, Any]:
    """No two sets begin alike."""
    own = sampled["x"] + (1.0 if sampled["family"] == "trunk" else 10.0)
    return {"schedule": "hold_anneal", "temperature_init": own, "temperature_final": 1.0}


def describe(sampled: Any) -> np.ndarray:
    """Both families are worth the same."""
    return np.array([place_of(X, sampled["x"])])


def trial(number: int, params: Any, *, upto: int = TOTAL, told: bool = True) -> FrozenTrial:
    luck = random.Random(f"{number % 2} {params['x']}")
    end = -4 * (float(describe(params)[0]) - 0.7) ** 2 + luck.gauss(0, 0.05)
    complete = upto == TOTAL
    reports = {step: end - (TOTAL - step) / 100 for step in range(10, upto + 1, 10)} if told else {}
    return frozen(
        number,
        state=TrialState.COMPLETE if complete else TrialState.PRUNED,
        distributions=SPACE,
        params=params,
        value=end if complete else None,
        reports=reports,
    )


def strategy(of: Any | None) -> KnowledgeGradient:
    beginnings = None if of is None else CommonBeginnings(of, validated_at_end=False)
    made: dict[str, Any] = {"maximize": True, "streams": 2, "thaws": True, "seed": 1}
    return KnowledgeGradient(SPACE, describe, beginnings=beginnings, **made)


def searched(one: KnowledgeGradient, count: int) -> list[FrozenTrial]:
    rng = np.random.default_rng(3)
    families = ("trunk", "own", "own", "trunk")
    known = [trial(n, {"x": float(rng.uniform(0.3, 3.5)), "family": families[n]}) for n in range(4)]
    for number in range(4, 4 + count):
        params = one.ask(known, [], number=number, seed=number, fixed={})
        assert params is not None
        known.append(trial(number, params))
    return known[4:]


def test_of_sets_that_teach_as_much_those_with_a_common_beginning_are_trained() -> None:
    blind = [t.params["family"] for t in searched(strategy(None), 8)]
    aware = [t.params["family"] for t in searched(strategy(whole), 8)]
    # trials 0 and 3 have left the trunk to either seed
    assert aware.count("trunk") == 8 > blind.count("trunk")


def test_where_nothing_is_shared_all_decisions_are_the_same_to_the_bit() -> None:
    plain, aware = strategy(None), strategy(alone)
    one, other = searched(plain, 6), searched(aware, 6)
    assert [t.params for t in one] == [t.params for t in other]
    assert plain.prospect(one) == aware.prospect(other) is not None


def test_what_it_is_worth_by_step_and_by_run_goes_by_the_steps_that_are_left() -> None:
    plain, aware = strategy(None), strategy(whole)
    known = searched(plain, 6)
    expected, found = plain.prospect(known), aware.prospect(known)
    assert expected is not None and found is not None
    # a run that is cheap may teach less
    assert 0 < found[0] <= expected[0] * (1 + 1e-9) and found[1] == expected[1]


SHORT = {"temperature_init": 1.0, "schedule": "piecewise", "hold_fraction": 0.5, "temperature_final": 2.0}


@pytest.mark.parametrize(
    ("left", "changes", "spared"),
    [
        ([(SHORT, 40)], {}, 20),
        ([(SHORT, 40)], {"temperature_knot_1": 3.0}, 20),
        ([(SHORT, 40)], {"schedule": "hold_anneal"}, 20),
        # there is no checkpoint where the other one begins to move
        ([(SHORT, 40)], {"hold_fraction": 0.3}, 0),
        ([(SHORT, 40)], {"hold_fraction": 0.9}, 20),
        ([(SHORT, 40), ({**SHORT, "hold_fraction": 0.8}, 40)], {"hold_fraction": 0.9}, 32),
        # it was ended while it held
        ([(SHORT, 10)], {"hold_fraction": 0.3}, 10),
        ([(SHORT, 30)], {}, 20),
        ([(SHORT, 40)], {"temperature_init": 1.5}, 0),
        ([(SHORT, 40)], {"layer_pattern": "u", "layer_ratio": 2.0}, 0),
        ([(SHORT, 40)], {"lr": 0.1}, 0),
        ([(SHORT, 40)], {"entropy_lambda": 0.1}, 0),
        ([(SHORT, 40)], {"entropy_control": "hold"}, 0),
        ([({"temperature_init": 1.0}, 40)], {}, 0),
        ([({"temperature_init": 1.0}, 10)], {}, 10),
        ([({**SHORT, "hold_fraction": 0.02}, 40)], {}, 0),
        ([], {}, 0),
    ],
)
def test_what_is_spared(left: list[Any], changes: dict[str, Any], spared: int) -> None:
    counted = CommonBeginnings(lambda sampled: sampled, validated_at_end=False)
    assert counted.spared([{**SHORT, **changes}], [over(*each) for each in left], TOTAL).tolist() == [spared]


def over(params: Any, upto: int, **changes: Any) -> FrozenTrial:
    found = trial(0, {"x": 1.0, "family": "own"}, upto=upto, **changes)
    found._params = params
    return found


def test_runs_that_diverged_or_are_in_progress_spare_nothing() -> None:
    counted = CommonBeginnings(lambda sampled: sampled, validated_at_end=False)
    running = over(SHORT, 30)
    running.state = TrialState.RUNNING
    for each in (over(SHORT, 30, told=False), running):
        assert counted.spared([SHORT], [each], TOTAL).tolist() == [0.0]


def test_where_runs_are_validated_at_their_end_only_those_with_the_same_end_share() -> None:
    counted = CommonBeginnings(lambda sampled: sampled, validated_at_end=True)
    pool = [{**SHORT, "temperature_knot_1": 3.0}, {**SHORT, "temperature_final": 3.0}]
    assert counted.spared(pool, [over(SHORT, 40)], TOTAL).tolist() == [20.0, 0.0]


levels = st.sampled_from([1.0, 2.0])
sets = st.fixed_dictionaries(
    {
        "schedule": st.sampled_from(["constant", "hold_anneal", "piecewise", "cosine", "step"]),
        "temperature_init": levels,
        "temperature_final": levels,
        "hold_fraction": st.sampled_from([None, 0.3, 0.8]),
        "temperature_knot_1": st.none() | levels,
        "layer_pattern": st.sampled_from(["uniform", "u"]),
        "layer_ratio": st.just(2.0),
    }
).map(lambda each: each if each["schedule"] != "constant" else {**each, "temperature_final": None})


@settings(max_examples=60)
@given(st.lists(st.tuples(sets, st.sampled_from([10, 20, 30, 40])), max_size=3), sets, st.booleans())
def test_never_more_is_spared_than_is_trained_alike(left: list[Any], own: Any, at_end: bool) -> None:
    counted = CommonBeginnings(lambda sampled: sampled, validated_at_end=at_end)
    [found] = counted.spared([own], [over(*each) for each in left], TOTAL)
    alike = [
        steps_alike(theirs, own, at_most=last, total_steps=TOTAL)
        for theirs, last in left
        if not at_end or end_alike(theirs, own)
    ]
    assert 0 <= found <= max(alike, default=0)
