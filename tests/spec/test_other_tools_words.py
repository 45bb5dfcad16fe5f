"""Keys of other tools in a study spec: several metrics and constraints lead to guards."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.spec.study_spec import StudySpec

GUARDS = (
    "A study optimizes one metric (study.metric, in study.direction). What must not get worse is a guard, "
    'as in study: {guards: {val_loss: "no worse than 1%"}}.'
)


def refusal(study: dict[str, Any], **sections: Any) -> str:
    """Return what is said of a spec with these keys."""
    study_section = {"name": "mine", "metric": "val_loss", "direction": "minimize", **study}
    model = {"class_path": "mine.Mine"}
    search = {"temperature_init": {"low": 0.25, "high": 4.0}}
    spec = {"study": study_section, "model": model, "trainer": {"max_steps": 3}, "search": search, **sections}
    with pytest.raises(SpecError) as error:
        StudySpec.parse(spec, source="mine.yaml")
    return str(error.value)


@pytest.mark.parametrize("key", ["constraints", "objectives", "directions", "metrics", "pareto"])
def test_constraints_and_several_objectives_lead_to_guards(key: str) -> None:
    assert f'study.{key}: Unknown key "{key}". {GUARDS}' in refusal({key: ["val_loss", "val_accuracy"]})
    assert f'mine.yaml: {key}: Unknown key "{key}". {GUARDS}' in refusal({}, **{key: ["val_loss"]})


@pytest.mark.parametrize("key", ["metric", "direction"])
@pytest.mark.parametrize("value", [["minimize", "maximize"], {"val_loss": "minimize"}])
def test_a_study_with_several_metrics_or_directions_is_led_to_guards(key: str, value: object) -> None:
    assert f"study.{key}: given {value!r}. {GUARDS}" in refusal({key: value})


@pytest.mark.parametrize(
    ("key", "spec_key"),
    [("mode", "direction"), ("n_trials", "trials"), ("num_samples", "trials"), ("timeout", "limits")],
)
def test_another_tool_s_word_for_a_key_is_answered_with_the_key(key: str, spec_key: str) -> None:
    assert f'Unknown key "{key}". In a study spec it is study.{spec_key}' in refusal({key: 3})
