"""The options of Optuna's samplers and pruners, written down so that a spec is validated without Optuna.

tests/spec/test_strategy_options.py compares them with Optuna's own. Whether a sampler can draw with the
values is found by sampling/optuna_factories.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tempopt.errors import unknown
from tempopt.spec.sections import PRUNERS, SAMPLERS, SamplerOrPrunerConfig

if TYPE_CHECKING:
    from tempopt.spec.study_section import StudySection

_MEDIAN = {"n_startup_trials": "int", "n_warmup_steps": "int", "interval_steps": "int", "n_min_trials": "int"}

SAMPLER_OPTIONS: dict[str, dict[str, str]] = {
    "tpe": {
        "consider_prior": "bool | None",
        "prior_weight": "float | None",
        "consider_magic_clip": "bool | None",
        "consider_endpoints": "bool | None",
        "n_startup_trials": "int",
        "n_ei_candidates": "int",
        "multivariate": "bool | None",
        "group": "bool",
        "warn_independent_sampling": "bool | None",
        "constant_liar": "bool",
    },
    "random": {},
    "gp": {"n_startup_trials": "int", "deterministic_objective": "bool", "warn_independent_sampling": "bool"},
}
"""Sampler of Optuna to its options, with the types that Optuna gives them."""

PRUNER_OPTIONS: dict[str, dict[str, str]] = {
    "median": _MEDIAN,
    "percentile": {"percentile": "float", **_MEDIAN},
    "hyperband": {
        "min_resource": "int",
        "max_resource": "str | int",
        "reduction_factor": "int",
        "bootstrap_count": "int",
    },
    "successive_halving": {
        "min_resource": "str | int",
        "reduction_factor": "int",
        "min_early_stopping_rate": "int",
        "bootstrap_count": "int",
    },
    "threshold": {
        "lower": "float | None",
        "upper": "float | None",
        "n_warmup_steps": "int",
        "interval_steps": "int",
    },
    "none": {},
}
"""Pruner of Optuna to its options, with the types that Optuna gives them."""

OPTION_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "None": (type(None),),
}
"""Type of an option as Optuna annotates it to what a spec may give for it."""
# Optuna makes the pruner with one of these at least.
_NEEDED = {"percentile": ("percentile",), "threshold": ("lower", "upper")}


def strategy_problems(study: StudySection) -> list[tuple[str, str]]:
    """Return what is wrong with the options of the sampler and the pruner: paths and messages."""
    return [
        *_problems("study.sampler", study.sampler, SAMPLER_OPTIONS, SAMPLERS),
        *_problems("study.pruner", study.pruner, PRUNER_OPTIONS, PRUNERS),
    ]


def _problems(
    path: str,
    strategy: SamplerOrPrunerConfig,
    table: dict[str, dict[str, str]],
    classes: dict[str, str | None],
) -> list[tuple[str, str]]:
    if classes.get(strategy.name) is None:
        # tempopt's own takes none, which the section says
        return []
    option_types, lines = table[strategy.name], []
    for option, value in strategy.options.items():
        if not option_types:
            message = f'{strategy.name} takes no options, and was given "{option}". Take it out.'
            lines.append((path, message))
        elif option not in option_types:
            lines.append((path, unknown(f"option of {strategy.name}", option, option_types)))
        elif not any(has_type(value, name.strip()) for name in option_types[option].split("|")):
            message = f"given {value!r}. {strategy.name} takes {option_types[option]}. Give that."
            lines.append((f"{path}.{option}", message))
    required_options = _NEEDED.get(strategy.name, ())
    if required_options and all(strategy.options.get(option) is None for option in required_options):
        value_text = "25.0" if len(required_options) == 1 else "0.1"
        example = f"{{name: {strategy.name}, {required_options[0]}: {value_text}}}"
        message = f"{strategy.name} was given no {' or '.join(required_options)}. Give it, as in {example}."
        lines.append((path, message))
    return lines


def has_type(value: object, name: str) -> bool:
    """Return whether a value may be given for an option of a type of OPTION_TYPES."""
    # true and false are integers to Python
    return isinstance(value, OPTION_TYPES[name]) and (name == "bool" or not isinstance(value, bool))
