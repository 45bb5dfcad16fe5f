"""Options of Optuna's samplers and pruners that a spec may set, taken from Optuna's signatures.

``sampling/optuna_factories.py`` checks whether a sampler works with the values.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from tempopt.errors import unknown
from tempopt.spec.sections import PRUNERS, SAMPLERS, SamplerOrPrunerConfig

if TYPE_CHECKING:
    from tempopt.spec.sections import StudySection

_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "None": (type(None),),
}
"""Type of an option in Optuna's annotation to the Python types of its values in a spec."""

# Optuna requires at least one of these; the value is for the message.
_REQUIRED = {"percentile": {"percentile": 25.0}, "threshold": {"lower": 0.1, "upper": 0.9}}


def strategy_problems(study: StudySection) -> list[tuple[str, str]]:
    """Return the errors in the options of the sampler and the pruner: paths and messages."""
    lines = [*option_problems("sampler", study.sampler), *option_problems("pruner", study.pruner)]
    required_options = _REQUIRED.get(study.pruner.name, {})
    if required_options and all(study.pruner.options.get(option) is None for option in required_options):
        option, value = next(iter(required_options.items()))
        name = study.pruner.name
        message = f"{name} was given no {' or '.join(required_options)}. Give it, as in "
        lines.append(("study.pruner", f"{message}{{name: {name}, {option}: {value}}}."))
    return lines


def option_problems(key: str, strategy: SamplerOrPrunerConfig) -> list[tuple[str, str]]:
    """Return the errors in the options of one of them: paths and messages.

    Args:
        key: ``sampler`` or ``pruner``.
        strategy: Its section of the spec.
    """
    class_name = (SAMPLERS if key == "sampler" else PRUNERS)[strategy.name]
    # import Optuna only if there are options; tempopt's own strategies have none
    if class_name is None or not strategy.options:
        return []
    types_by_option, lines = _option_types(key, class_name), []
    for option, value in strategy.options.items():
        if option not in types_by_option:
            hint = unknown(f"option of {strategy.name}", option, types_by_option)
            lines.append((f"study.{key}", hint))
        elif not any(_has_type(value, name) for name in types_by_option[option].split(" | ")):
            message = f"given {value!r}. {strategy.name} takes {types_by_option[option]}. Give that."
            lines.append((f"study.{key}.{option}", message))
    return lines


def _option_types(key: str, class_name: str) -> dict[str, str]:
    """Return the options of a class of Optuna that a spec can express, with their types."""
    import optuna

    module = optuna.samplers if key == "sampler" else optuna.pruners
    parameters = inspect.signature(getattr(module, class_name)).parameters
    # annotations that are strings have quotes
    texts = {name: inspect.formatannotation(p.annotation).strip("'") for name, p in parameters.items()}
    return {
        name: text
        for name, text in texts.items()
        if name != "seed" and set(text.split(" | ")) <= _TYPES.keys()
    }


def _has_type(value: object, name: str) -> bool:
    # booleans are integers in Python
    return isinstance(value, _TYPES[name]) and (name == "bool" or not isinstance(value, bool))
