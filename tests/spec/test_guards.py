"""What a guard may say, and what is said of one that cannot be read."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.spec.guards import GuardSpec
from tempopt.spec.identity import diff_specs


@pytest.mark.parametrize(
    ("name", "text", "side", "margin", "relative"),
    [
        ("val_loss", "no worse than 1%", "most", 0.01, True),
        ("val_f1", "no worse than 0.5 %", "least", 0.005, True),
        ("val_loss", "no worse than 0.02", "most", 0.02, False),
        ("val_loss", "no worse than 0", "most", 0.0, False),
        ("calibration", "<= +2%", "most", 0.02, True),
        ("calibration", ">= -2e-1", "least", 0.2, False),
        ("val/f1", "<=+2%", "most", 0.02, True),
    ],
)
def test_a_guard_says_on_which_side_and_by_how_much(
    make_spec: Any, name: str, text: str, side: Any, margin: float, relative: bool
) -> None:
    (guard,) = make_spec(guards={name: text}).study.guarded
    assert guard == GuardSpec(
        name=name, text=text, side=side, margin=pytest.approx(margin), relative=relative
    )


def test_a_name_that_no_metric_can_have_is_refused(make_spec: Any) -> None:
    with pytest.raises(SpecError, match="of 1 to 200 letters"):
        make_spec(guards={"x" * 201: "<= +1%"})


def test_a_study_with_another_guard_asks_something_else(make_spec: Any) -> None:
    spec, other_spec = make_spec(guards={"val_loss": "<= +1%"}), make_spec(guards={"val_loss": "<= +2%"})
    assert spec.identity() != other_spec.identity() != make_spec().identity()
    assert list(diff_specs(spec, other_spec).values()) == [
        'study.guards.val_loss: was "<= +1%", now "<= +2%"'
    ]
    assert type(spec).from_json(spec.to_json()) == spec
