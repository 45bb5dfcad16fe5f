"""What the winner is worth beside constant temperatures, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tempopt.report.formatting import describe_temperature_change, format_comparison, temperature_text
from tempopt.temperature import is_controlled, training_key

if TYPE_CHECKING:
    from tempopt.report.study_data import StudyData
    from tempopt.verdict.verdict import Verdict


MODELS = "proposed by the search's model"
"""What a set is whose values no trial of the search had."""


def is_trial(result: StudyData, parameters: Mapping[str, Any]) -> bool:
    """Return whether a run of the search has trained with these parameters."""
    kinds = ("baseline", "constant", "search")
    trials = (run.parameters for run in result.runs if run.kind in kinds and run.parameters is not None)
    return training_key(parameters) in map(training_key, trials)


def constant_texts(result: StudyData, verdict: Verdict) -> dict[str, str]:
    """Return by arm what is said of the winner against each constant that was trained, in a sentence."""
    texts = {}
    if verdict.over_constant is not None and verdict.constant_params is not None:
        constant = temperature_text(verdict.constant_params)
        source = "of the search" if is_trial(result, verdict.constant_params) else MODELS
        text = f"against the best constant temperature {source} ({constant})"
        texts["constant"] = f"{text}: {format_comparison(verdict.over_constant)}."
    if verdict.over_constant_twin is not None and verdict.constant_twin_params is not None:
        constant, moving_text = (
            temperature_text(verdict.constant_twin_params),
            describe_temperature_change(verdict.params),
        )
        is_begun = is_controlled(verdict.params)
        level = "the temperature that it begins with" if is_begun else "its geometric mean"
        text = f"against itself with {level} in place of its {moving_text} ({constant})"
        texts["constant_twin"] = f"{text}: {format_comparison(verdict.over_constant_twin)}."
    return texts


def constants_conclusion(verdict: Verdict) -> str:
    """Return what the comparisons with constants say together; empty where there are none."""
    answer, moving_text = verdict.against_constant, describe_temperature_change(verdict.params)
    if answer is None:
        return ""
    if verdict.schedule_shown:
        return f"the {moving_text} is worth more than one constant temperature."
    if answer.worse:
        return "a constant temperature is better."
    return f"the {moving_text} is not shown to be worth more than one constant temperature."
