"""Planted heads are named by what they do, and random ones are not."""

from __future__ import annotations

import pytest

from tempopt.attention.analysis.head_measures import Specialisations
from tempopt.attention.analysis.patterns import PATTERNS
from tempopt.attention.analysis.specialisation import HeadSpecialisation
from tests.attention.planted import PLANTED, Heads, planted_heads, random_heads


def specialisations_of(*layers: Heads) -> Specialisations:
    specialisation = HeadSpecialisation()
    for layer, heads in enumerate(layers):
        specialisation.update_weights(layer, heads.weights_BHQK, tokens_BK=heads.tokens_BK, **heads.masking)
    return specialisation.report()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("length", [32, 64])
def test_each_planted_head_is_named_by_what_it_does(length: int, is_causal: bool, padded: bool) -> None:
    for seed in range(3):
        names = specialisations_of(
            planted_heads(length=length, is_causal=is_causal, padded=padded, seed=seed)
        ).names
        for head, name in enumerate(PLANTED):
            impossible = is_causal and name == "next_token"
            expected = () if name == "content" or impossible else (name,)
            assert names.get((0, head), ()) == expected, (name, seed)


def test_random_heads_are_named_in_no_more_models_than_is_stated() -> None:
    alarms = 0
    for seed in range(60):
        layers = [
            random_heads(
                heads=4,
                length=32,
                inputs=4,
                spread=(0.1, 1.0, 3.0)[seed % 3],
                position=(0.0, 0.5, 1.0)[seed // 3 % 3],
                is_causal=seed % 2 == 0,
                seed=1000 * layer + seed,
            )
            for layer in range(2)
        ]
        alarms += bool(specialisations_of(*layers).names)
    # at a rate of 1 %, four or more of 60 have a chance of 0.3 %
    assert alarms < 4


def test_what_is_measured_has_its_reference_and_its_interval() -> None:
    report = specialisations_of(planted_heads(length=32, seed=0))
    assert report.inputs == 8
    for head, name in enumerate(PLANTED):
        measures = report.of(0, head)
        assert set(PATTERNS) <= set(measures)
        # a head that is exactly uniform deviates in nothing that inputs could have in common
        assert ("positional" in measures) == (name != "uniform")
        assert all(
            head_measure.low <= head_measure.score <= head_measure.high
            for head_measure in measures.values()
            if head_measure.p is not None
        )
        if name in PATTERNS:
            assert measures[name].value > 0.5 > measures[name].chance
    assert len(report.rows()) == len(report.measures)
    assert "previous_token" in str(report)
