"""What a spec says of the verdict: pairs, tests, baselines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tempopt.spec.identity import diff_specs
from tempopt.spec.study_spec import StudySpec
from tests.specs import make


@pytest.mark.parametrize(
    ("confirm", "looks", "stored_value"),
    [
        (8, (8,), 8),
        (2, (2,), 2),
        ({"min": 4, "max": 16}, (4, 8, 12, 16), {"min": 4, "max": 16}),
        ({"min": 4, "max": 14}, (4, 8, 12, 14), {"min": 4, "max": 14}),
        ({"min": 5, "max": 6}, (5, 6), {"min": 5, "max": 6}),
        ({"min": 6, "max": 6}, (6,), 6),
    ],
)
def test_the_pairs_of_a_confirmation_are_a_number_or_looked_at_on_the_way(
    confirm: Any, looks: tuple[int, ...], stored_value: Any
) -> None:
    spec = make(study__seeds={"confirm": confirm})
    assert spec.study.seeds.confirm.looks == looks
    assert spec.to_json()["study"]["seeds"]["confirm"] == stored_value
    assert StudySpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    # how it is looked at is part of the question
    equivalent_spec = make(study__seeds={"confirm": looks[0]} if len(looks) == 1 else {"confirm": confirm})
    assert equivalent_spec.identity() == spec.identity()
    assert make(study__seeds={"confirm": 7}).identity() != spec.identity()


def test_what_the_verdict_is_to_do_is_part_of_the_question_where_it_is_said() -> None:
    for settings in ({"study__keep_share": 0.8}, {"study__failure": 0.3}):
        changed_spec = make(**settings)
        assert changed_spec.identity() != make().identity() and len(diff_specs(make(), changed_spec)) == 1
        assert StudySpec.from_json(json.loads(json.dumps(changed_spec.to_json()))) == changed_spec
    default_spec = make(study__explain=False, study__keep_share=0.5, study__failure=None)
    assert default_spec.identity() == make().identity()
    # whether it is explained at once changes nothing that it says
    assert diff_specs(make(), make(study__explain=True)) == {}


@pytest.mark.parametrize(
    ("amount", "stored_value", "in_units"),
    [
        (None, None, 0.006),
        (0, 0.0, 0.0),
        (0.01, 0.01, 0.01),
        (1, 1.0, 1.0),
        ("0%", "0%", 0.0),
        ("2%", "2%", 0.01),
        (" 0.5 % ", "0.5%", 0.0025),
        ("0.5 sd", "0.5 sd", 0.015),
        ("2sd", "2 sd", 0.06),
    ],
)
def test_the_smallest_gain_worth_a_change_is_in_units_percent_or_deviations_and_no_part_of_the_question(
    amount: Any, stored_value: Any, in_units: float
) -> None:
    spec = make(study__min_gain=amount)
    assert spec.study.min_gain == stored_value and StudySpec.from_json(spec.to_json()) == spec
    for mean in (0.5, -0.5):
        assert spec.study.min_gain_in_units(mean, 0.03) == pytest.approx(in_units)
    assert diff_specs(make(), spec) == {} and spec.identity() == make().identity()
