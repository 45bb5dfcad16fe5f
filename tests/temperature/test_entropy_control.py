"""Control of the entropy as parameters: what of them counts, what is left without it, what is meant."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.errors import SpecError
from tempopt.temperature import (
    CONTROL_PARAMETERS,
    CONTROLS,
    NEUTRAL,
    ControlParameters,
    active_groups,
    check_parameter,
    drop_unused_params,
    is_controlled,
    is_neutral,
    is_scheduled,
    list_temperatures,
    make_constant,
    remove_part,
    same_training,
    to_neutral,
    training_key,
)
from tempopt.training.entropy_control import entropy_target

LEVEL = {"entropy_control": "hold", "control_level": 0.4, "temperature_init": 2.0}
READS = {
    "none": set(),
    "hold": {"control_level"},
    "curriculum": {"control_level", "control_start"},
    "contrast": {"control_level", "control_spread"},
}
share = st.floats(0.05, 0.95)


@st.composite
def controlled_params(draw: st.DrawFn) -> dict[str, Any]:
    """A parameter set under control, as runs train with it, beside other parts of a plan."""
    parameters = {
        "entropy_control": draw(st.sampled_from(["hold", "curriculum", "contrast"])),
        "control_level": draw(share),
        "control_start": draw(share),
        "control_spread": draw(st.floats(0.01, 100)),
        "temperature_init": draw(st.floats(0.1, 10)),
        **draw(st.sampled_from([{}, {"layer_pattern": "linear", "layer_ratio": 2.0}])),
        **draw(st.sampled_from([{}, {"schedule": "linear", "temperature_final": 0.2}])),
        **draw(st.sampled_from([{}, {"entropy_lambda": 0.1}])),
    }
    return drop_unused_params({**parameters, "lr": 0.01})


@pytest.mark.parametrize("kind", CONTROLS)
def test_each_target_reads_its_own_numbers_and_no_schedule_beside_it(kind: str) -> None:
    control_params = {
        "entropy_control": kind,
        "control_level": 0.31,
        "control_start": 0.77,
        "control_spread": 3.0,
    }
    schedule = {"schedule": "linear", "temperature_init": 2.0, "temperature_final": 0.5}
    counted = drop_unused_params({**control_params, **schedule})
    read = {name for name in CONTROL_PARAMETERS[1:] if name in counted}
    assert read == READS[kind]
    assert ("temperature_final" in counted) == (kind == "none")
    assert counted["schedule"] == ("linear" if kind == "none" else "constant")
    assert counted["temperature_init"] == 2.0


def test_what_normalises_otherwise_has_no_entropy_to_control() -> None:
    counted = drop_unused_params({**LEVEL, "normaliser": "sparsemax"})
    assert not is_controlled(counted)
    assert same_training(counted, {"normaliser": "sparsemax", "temperature_init": 2.0})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("entropy_control", "holds", "hold"),
        ("entropy_control", 1, "entropy_control"),
        ("control_level", 0.0, "control_level"),
        ("control_level", 1.0, "control_level"),
        ("control_start", 1.2, "control_start"),
        ("control_spread", 0.0, "control_spread"),
        ("control_spread", math.nan, "control_spread"),
        ("control_level", "much", "control_level"),
    ],
)
def test_values_that_cannot_be_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check_parameter(name, value)
    with pytest.raises(SpecError, match=message):
        ControlParameters(**{"entropy_control": "hold", name: value})


def test_neutral_is_without_control() -> None:
    assert NEUTRAL["entropy_control"] == "none"
    assert not ControlParameters().controls and ControlParameters(entropy_control="hold").controls
    for name in CONTROL_PARAMETERS:
        check_parameter(name, NEUTRAL[name])
    assert not is_neutral(drop_unused_params({**LEVEL, "temperature_init": 1.0}))
    assert list_temperatures({"entropy_control": "hold", "contrast.as_found": 0.5}) == ("", "contrast")


@given(controlled_params())
def test_a_plan_under_control_without_its_parts_is_neutral(parameters: dict[str, Any]) -> None:
    assert "control" in active_groups(parameters) and "schedule" not in active_groups(parameters)
    assert is_scheduled(parameters)
    plain = remove_part(parameters, "control")
    assert not is_controlled(plain) and not is_scheduled(plain)
    assert plain["temperature_init"] == parameters["temperature_init"] and plain["lr"] == 0.01
    assert same_training(remove_part(parameters, "schedule"), parameters)
    assert is_controlled(remove_part(parameters, "level"))
    for part in ("layers", "entropy", "level"):
        assert is_controlled(remove_part(parameters, part))
    assert is_neutral(to_neutral(parameters))


@given(controlled_params(), st.floats(0.1, 10))
def test_a_constant_takes_the_place_of_control(parameters: dict[str, Any], level: float) -> None:
    constant = make_constant(parameters, level)
    assert not is_controlled(constant) and not is_scheduled(constant)
    assert constant["temperature_init"] == level


def test_targets_that_are_the_same_are_one_training() -> None:
    hold_params = {"entropy_control": "hold", "control_level": 0.4}
    flat = {"entropy_control": "curriculum", "control_level": 0.4, "control_start": 0.4}
    even = {"entropy_control": "contrast", "control_level": 0.4, "control_spread": 1.0}
    assert training_key(hold_params) == training_key(flat) == training_key(even)
    assert training_key(hold_params) != training_key({**hold_params, "control_level": 0.5})
    assert training_key(hold_params) != training_key({**even, "control_spread": 2.0})


@given(share, share, st.floats(0.01, 100))
def test_targets_are_those_of_their_definition(level: float, start: float, spread: float) -> None:
    """h of ``curriculum`` on half a cosine; odds of ``contrast`` apart by ``spread`` at the end."""

    def of(kind: str) -> Any:
        return entropy_target(
            ControlParameters(
                entropy_control=kind, control_level=level, control_start=start, control_spread=spread
            )
        )

    for at in (0.0, 0.3, 1.0):
        assert of("hold").entropies(at, 3) == pytest.approx([level] * 3)
        cosine = level + (start - level) * (1 + math.cos(math.pi * at)) / 2
        assert of("curriculum").entropies(at, 2) == pytest.approx([cosine] * 2)
    ends = [h / (1 - h) for h in of("contrast").entropies(1.0, 3)]
    middle = level / (1 - level)
    assert ends[0] / ends[2] == pytest.approx(spread, rel=1e-6)
    assert ends[1] == pytest.approx(middle, rel=1e-6)
    assert of("contrast").entropies(0.0, 3) == pytest.approx([level] * 3)
