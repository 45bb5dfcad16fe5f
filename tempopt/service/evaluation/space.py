"""The spec of an evaluation of trained weights: the part of a study spec that acts without training."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tempopt.errors import SpecError
from tempopt.spec.conditions import active_params
from tempopt.spec.domains import Domain, domain_to_yaml
from tempopt.spec.lightning_config import LENGTHS
from tempopt.spec.load import find_spec
from tempopt.spec.search_space import distributions, parse_search
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.validation_errors import format_error_list
from tempopt.spec.yaml_source import CollectedSpecError, YamlDocument, parse_override, read
from tempopt.temperature import (
    GENERATION,
    NORMALISATION,
    TEMPERATURE_PARAMETERS,
    drop_unused_params,
    split_name,
)
from tempopt.temperature.plan import is_custom_number
from tempopt.temperature.plan_parts import GROUPS

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

DEFAULT_SEARCH: dict[str, Any] = {"temperature_init": {"low": 0.25, "high": 4.0, "log": True}}
"""Search space if no name of the section ``search:`` acts in an evaluation."""

_TRAINING_PARAMETERS = GROUPS["schedule"] | GROUPS["level"] - {"temperature_init"}
_TRAINING_PARAMETERS |= GROUPS["entropy"] | GROUPS["control"]
_OPTIMISER_NAME = re.compile(
    r"(^|[._])(lr|learning_rate|weight_decay|momentum|betas?\d?|label_smoothing|warmup(_steps)?|(\w+_)?dropout(_\w+)?)$"
)
_MIN_TRIALS = 2
_IGNORED_SECTIONS = ("search", "compare", "temperatures")
_STUDY_KEYS = ("name", "metric", "direction", "seed", "metric_reads_temperature")
_REFERENCE_AND_ANOTHER = [
    {"name": "reference", "parameters": {}},
    {"name": "evaluated", "parameters": {"temperature_init": 2.0}},
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSpec:
    """Spec of an evaluation.

    Args:
        spec: The study spec, with model, data and trainer, without a search.
        search: The searched names that act in an evaluation.
        left_out: The searched names of the spec that do not.
        trials: Number of parameter sets, the first of which is that of the unchanged spec.
    """

    spec: StudySpec
    search: dict[str, Domain]
    left_out: tuple[str, ...]
    trials: int

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Optuna's distributions of the searched names."""
        return distributions(self.search)

    @property
    def written_search(self) -> dict[str, Any]:
        """The search space as plain data."""
        return {name: domain_to_yaml(domain) for name, domain in self.search.items()}

    @property
    def searches_both(self) -> bool:
        """Whether generation parameters and others are searched."""
        return 0 < sum(name in GENERATION for name in self.search) < len(self.search)

    def parameters(self, sampled: Mapping[str, Any]) -> dict[str, Any]:
        """Return the complete parameter set of an evaluation, without parameters that have no effect.

        The normaliser is that of the training, unless it is searched.
        """
        fixed = self.spec.fixed_temperatures
        fixed_normalisation = {
            name: fixed[name] for name in NORMALISATION & fixed.keys() if name not in self.search
        }
        return active_params(self.search, drop_unused_params({**fixed, **sampled, **fixed_normalisation}))


def evaluation_spec(
    spec: StudySpec | Mapping[str, Any] | str | Path,
    *,
    overrides: Sequence[str] = (),
    trials: int | None = None,
) -> EvaluationSpec:
    """Return the spec of an evaluation for a study spec.

    Of the section ``study:`` the name, metric, direction, seed and number of trials are used.

    Args:
        spec: Loaded, as plain data, the path of a YAML file or the name of a bundled one.
        overrides: Settings ``a.b=c`` that replace those of the spec.
        trials: Number of parameter sets; None: ``study.trials``, or 40.

    Raises:
        SpecError: The spec is invalid.
    """
    document = _load_document(spec).with_settings([parse_override(text) for text in overrides])
    study = document.data.get("study")
    study = study if isinstance(study, Mapping) else {}
    trainer = document.data.get("trainer") or {}
    if isinstance(trainer, Mapping) and not any(length in trainer for length in LENGTHS):
        # nothing is trained, so the spec needs no length
        trainer = {**trainer, "max_steps": 1}
    data = {
        **{name: section for name, section in document.data.items() if name not in _IGNORED_SECTIONS},
        "study": {name: study[name] for name in _STUDY_KEYS if name in study},
        "trainer": trainer,
        "compare": _REFERENCE_AND_ANOTHER,
    }
    written = YamlDocument(source=document.source, data=data, lines=document.lines)
    base = StudySpec.parse(data, source=written)
    data = document.data.get("search") or DEFAULT_SEARCH
    search = _parse_domains(data, base)
    left_out = tuple(name for name, domain in search.items() if not _acts_in_evaluation(name))
    search = {name: domain for name, domain in search.items() if name not in left_out}
    count = trials if trials is not None else study.get("trials")
    count = 40 if count is None else count
    if isinstance(count, bool) or not isinstance(count, int) or count < _MIN_TRIALS:
        raise SpecError(
            f"study.trials: given {count!r}. Give a whole number of at least {_MIN_TRIALS}: the first "
            "evaluation is that of the unchanged spec."
        )
    return EvaluationSpec(
        spec=base,
        search=search or _parse_domains(DEFAULT_SEARCH, base),
        left_out=left_out,
        trials=count,
    )


def _load_document(spec: StudySpec | Mapping[str, Any] | str | Path) -> YamlDocument:
    if isinstance(spec, str | Path):
        return read(find_spec(spec))
    data = spec.to_json() if isinstance(spec, StudySpec) else dict(spec)
    return YamlDocument(source="the study spec", data=data)


def _parse_domains(data: object, base: StudySpec) -> dict[str, Domain]:
    try:
        return parse_search(data, model_args=base.model["init_args"], temperatures=None)
    except CollectedSpecError as error:
        raise SpecError(format_error_list("This study spec has", str(error).splitlines())) from None


def _acts_in_evaluation(name: str) -> bool:
    """Return whether a searched name can change the evaluation of trained weights, judged by the name."""
    # a named temperature acts in training
    temperature, bare = split_name(name)
    if temperature or bare in TEMPERATURE_PARAMETERS or is_custom_number(bare):
        return not temperature and bare not in _TRAINING_PARAMETERS and not is_custom_number(bare)
    section, dot, _ = name.partition(".")
    return not (dot and section in ("data", "trainer")) and not _OPTIMISER_NAME.search(name)
