"""Whether what is searched can change the evaluation of a trained model (``study.evaluate_only``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tempopt.spec.domains import UNSET, Domain
from tempopt.temperature.groups import GROUPS, NORMALISATION
from tempopt.temperature.parameters import NEUTRAL, TEMPERATURE_PARAMETERS, effective
from tempopt.temperature.plan import is_own_number

if TYPE_CHECKING:
    from tempopt.spec.study_section import StudySection

ALLOWED = (
    "What acts in an evaluation is a constant temperature (temperature_init), layer_pattern with "
    "layer_ratio, head_pattern with head_ratio, length_scaling with its numbers, normaliser, "
    "local_share with window, output_temperature, sampling_temperature, top_p, top_k_tokens, min_p, and an "
    "argument of the model with baseline:, the value that the trained model has."
)
_MOVES = GROUPS["schedule"] | GROUPS["level"] - {"temperature_init"}
_TRAINING = re.compile(
    r"(^|[._])(lr|learning_rate|weight_decay|momentum|betas?\d?|label_smoothing|warmup(_steps)?|(\w+_)?dropout(_\w+)?)$"
)


def evaluation_problems(
    study: StudySection, search: Mapping[str, Domain], fixed: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return what has no effect on a model that is only evaluated: the path of each, and the message.

    Args:
        study: The section ``study:``.
        search: The searched names.
        fixed: Temperature parameters that the model's init arguments set.
    """
    if study.evaluate_only is None:
        return []
    lines = [
        (f"study.{name}", "given with evaluate_only, where nothing is confirmed. Take it out.")
        for name in ("failure", "min_gain")
        if getattr(study, name) is not None
    ]
    if study.start_from is not None:
        message = "given with evaluate_only, whose weights are evaluated as they are. Take one of them out."
        lines.append(("study.start_from", message))
    lines += [
        (f"search.{name}", f"{why} Take it out. {ALLOWED}")
        for name, domain in search.items()
        if (why := _without_effect(name, domain))
    ]
    if fixed.get("schedule", NEUTRAL["schedule"]) != NEUTRAL["schedule"]:
        message = (
            f"given {fixed['schedule']!r}, but a trained model is evaluated at one temperature. Write the "
            "temperature that the training ended at as temperature_init, and take out what belongs to the "
            "schedule."
        )
        lines.append(("model.init_args.schedule", message))
    return lines


def _without_effect(name: str, domain: Domain) -> str:
    """Return why a searched name changes no evaluation, as far as it tells; empty: it may change it."""
    section = name.partition(".")[0]
    if name in _MOVES or is_own_number(name):
        return (
            "a trained model is evaluated at one temperature (study.evaluate_only), so what moves it during "
            "training changes nothing."
        )
    for part, called in (("entropy", "the entropy term"), ("control", "the control of the entropy")):
        if name in GROUPS[part]:
            return f"{called} acts in training, and study.evaluate_only trains nothing."
    if name in TEMPERATURE_PARAMETERS:
        return ""
    if "." in name and section in ("data", "trainer"):
        why = "in every evaluation (study.evaluate_only), or they could not be compared."
        return f"{section}: is the same {why}"
    if domain.baseline == UNSET or _TRAINING.search(name):
        return "by its name it acts in training, and study.evaluate_only trains nothing."
    return ""


def as_normalised(
    parameters: Mapping[str, Any], search: Mapping[str, Domain], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return parameters with the normaliser that a trained model was trained with, unless it is searched.

    Args:
        parameters: What an arm evaluates with.
        search: The searched names.
        fixed: Temperature parameters that the model's init arguments set.
    """
    kept = {name: fixed[name] for name in NORMALISATION & fixed.keys() if name not in search}
    return effective({**parameters, **kept})
