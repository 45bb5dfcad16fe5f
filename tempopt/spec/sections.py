"""The sections ``study:`` and ``attach:`` of a study spec, and the base class of all sections.

``resources.py`` has ``resources:``; ``cross_checks.py`` compares sections.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from tempopt.errors import unknown
from tempopt.spec.alpha_levels import Direction
from tempopt.spec.guards import GuardSpec, parse_guard
from tempopt.spec.program import guard_name
from tempopt.spec.yaml_source import CollectedSpecError
from tempopt.temperature.learned import Learns

KNOWLEDGE_GRADIENT = "knowledge_gradient"
"""Name of tempopt's own sampler and pruner."""

MIN_MODEL_RUNS = 3
"""Number of complete runs of an arm from which that sampler fits a model."""

SAMPLERS: dict[str, str | None] = {
    KNOWLEDGE_GRADIENT: None,
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "gp": "GPSampler",
}
"""Name of a sampler to its class in ``optuna.samplers``; None for tempopt's own."""

PRUNERS: dict[str, str | None] = {
    KNOWLEDGE_GRADIENT: None,
    "median": "MedianPruner",
    "percentile": "PercentilePruner",
    "hyperband": "HyperbandPruner",
    "successive_halving": "SuccessiveHalvingPruner",
    "threshold": "ThresholdPruner",
    "none": "NopPruner",
}
"""Name of a pruner to its class in ``optuna.pruners``; None for tempopt's own."""


class SpecSection(BaseModel):
    """Base of all sections: immutable, without unknown keys and silent conversion."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


MAX_RUNS = 100_000
"""Largest number of search trials, and of runs of any kind other than those on fresh seeds."""
MAX_SEEDS = 1000
"""Largest number of fresh seeds for choosing, and for confirming."""
Count = Annotated[int, Field(ge=1, le=MAX_RUNS, description=f"a whole number from 1 to {MAX_RUNS}")]
OptionalCount = Annotated[
    int | None, Field(ge=1, le=MAX_RUNS, description=f"a whole number from 1 to {MAX_RUNS}, or null")
]
_Seeds = Annotated[int, Field(ge=2, le=MAX_SEEDS, description=f"a whole number from 2 to {MAX_SEEDS}")]
Flag = Annotated[bool, Field(description="true or false")]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False, description="a number of seconds of at least 0")]
_PositiveLimit = Annotated[
    float | None, Field(gt=0, allow_inf_nan=False, description="a number above 0, or null for no limit")
]


class ArmCounts(SpecSection):
    """Number of runs in the first design of the search, in addition to its trials; None for the default.

    Args:
        baseline: Runs at the baseline's temperature; None: 4 if ordinary parameters are searched, which these
            runs tune, else 2.
        constant: Runs at constant temperatures that span the searched range; None: 4.
    """

    baseline: OptionalCount = None
    constant: OptionalCount = None


class Pairs(SpecSection):
    """Number of confirming seeds: one look after every ``min`` of them, the last at ``max``."""

    min: _Seeds
    max: _Seeds

    @model_validator(mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        if isinstance(value, int) and not isinstance(value, bool) and 2 <= value <= MAX_SEEDS:
            return {"min": value, "max": value}
        if isinstance(value, Mapping):
            return value
        raise ValueError(
            f"given {value!r}. Give a whole number from 2 to {MAX_SEEDS}, or {{min: 4, max: 16}}."
        )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min is {self.min} and max is {self.max}. Give a min of at most the max.")
        return self

    @model_serializer
    def _as_written(self) -> int | dict[str, int]:
        return self.max if self.min == self.max else {"min": self.min, "max": self.max}

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of pairs after which the confirmation is evaluated, ascending; the last is ``max``."""
        return (*range(self.min, self.max, self.min), self.max)


class Seeds(SpecSection):
    """Number of fresh seeds for choosing among candidates, and of others for estimating the gain.

    Args:
        search: Number of seeds that search trials use in turn, so that the effect of a seed does not favour a
            trial; None: each trial has its own seed.
    """

    search: OptionalCount = 2
    choose: Annotated[int, Field(ge=1, le=MAX_SEEDS, description=f"a whole number from 1 to {MAX_SEEDS}")] = 2
    confirm: Pairs = Pairs(min=4, max=16)


class StudyLimits(SpecSection):
    """Limits at which a study stops searching early; None for no limit.

    Args:
        hours: Hours since the study was created.
        gpu_hours: GPU hours, summed over all trials, where a share of a GPU counts as that share; hours of
            training where trials use no GPU.
        standard_errors: The search ends when the remaining trials are expected to raise the recommendation by
            less than this many standard errors of the confirmation, which could not detect more.
    """

    hours: _PositiveLimit = None
    gpu_hours: _PositiveLimit = None
    standard_errors: _PositiveLimit = None

    @property
    def limit_names(self) -> tuple[str, ...]:
        """Names of the limits that are set, each of which may end the search."""
        return tuple(name for name in type(self).model_fields if getattr(self, name) is not None)


class SamplerOrPrunerConfig(SpecSection):
    """A sampler or pruner by its short name, with its options: Optuna's or tempopt's own."""

    name: str
    options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: object) -> object:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping) and "name" in value:
            return {"name": value["name"], "options": {k: v for k, v in value.items() if k != "name"}}
        raise ValueError(f"given {value!r}. Give a name, or {{name: ..., option: ...}}.")

    @model_serializer
    def _as_written(self) -> dict[str, Any]:
        return {"name": self.name, **self.options}


COMPILE_MODES = ("default", "reduce-overhead", "max-autotune")
"""Modes of ``torch.compile`` that a study may use."""

# words in the name of a metric that is minimized
_LOWER = "loss|error|err|perplexity|ppl|nll|bits|bpc|mse|mae|rmse|wer"
_HIGHER = "accuracy|acc|f1|auc|auroc|recall|precision|bleu|iou"

_AMOUNT = 'a number of at least 0, percent as in "1%", standard deviations as in "0.5 sd", or null'
_WITH_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+) ?(%|sd)")
_MIN_GAIN = "0.2 sd"


class StudySection(SpecSection):
    """The ``study:`` section: the question, the number of runs, and the settings of the verdict.

    Args:
        enqueue: Parameter sets to try first, with some or all of the searched names.
        warm_start: Names of earlier studies in the same storage whose runs the sampler learns from.
        lease: Seconds without progress after which another agent may take the ticket of a run.
        store_timeout: Seconds that agents continue training while the database cannot be reached, and that a
            run is repeated whose own code finds no disk space.
        checkpoint_every: Seconds between checkpoints of a run; None: at every validation, at most 300 s.
        learned: Whether runs with learned temperatures are confirmed beside the winner; ``per_head``: one
            temperature for each attention head instead of each layer.
        not_learned: Why the temperatures of the module cannot be learned, as found in its dry run; such a
            study has no runs with learned temperatures.
        not_resumed: Why a run that is resumed starts again from its first step, as its dry run has found.
        metric_reads_temperature: Whether to accept a metric that depends directly on a named temperature, as
            part of what is deployed; by default it is refused.
        explain: Whether a verdict is explained at once, as by ``tempopt explain``: the winner's parts are
            removed one at a time, a simpler plan is tested and temperatures are learned, all on the
            confirming seeds.
        keep_share: Share of the winner's gain that a simpler plan has to keep to be recommended.
        min_gain: Smallest gain that justifies a change: in the metric's unit, as ``"1%"`` in percent of the
            metric at τ = 1, or as ``"0.5 sd"`` in standard deviations between seeds at τ = 1; None: 0.2 of
            these. It affects the recommendation only, not the tests.
        failure: Value of the metric beyond which a run counts as failed; None: only runs that diverge.
        guards: Metrics that the winner may not worsen, by name; see :mod:`tempopt.spec.guards`.
        all_pairs: Whether a comparison of parameter sets compares every two of them, instead of each with the
            first.
        priority: Agents of every study (``tempopt agent --any``) serve studies of higher priority first.
        compile: Mode of ``torch.compile`` for the training steps; None: they are not compiled. In YAML, true
            stands for the default mode and false for None.
    """

    name: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
            description="a name of at most 100 letters, digits, dots, dashes and underscores",
        ),
    ]
    metric: Annotated[
        str,
        Field(
            min_length=1,
            max_length=200,
            description="the name of the one metric, of at most 200 characters, as validation logs it or a "
            "program prints it",
        ),
    ]
    direction: Annotated[Direction, Field(description="maximize or minimize")]
    trials: OptionalCount = None
    arms: ArmCounts = ArmCounts()
    candidates: Count = 2
    seeds: Seeds = Seeds()
    all_pairs: Flag = False
    seed: Annotated[int, Field(ge=0, lt=2**63, description="a whole number from 0 to 2**63 - 1")] = 0
    explain: Flag = False
    keep_share: Annotated[float, Field(gt=0, lt=1, description="a number between 0 and 1")] = 0.5
    min_gain: Annotated[float | str | None, Field(description=_AMOUNT)] = None
    failure: Annotated[
        float | None, Field(allow_inf_nan=False, description="a value of the metric, or null")
    ] = None
    guards: Annotated[
        dict[str, Any],
        Field(
            default_factory=dict, description='a text for each guard, as in {val_loss: "no worse than 1%"}'
        ),
    ]
    confirm_on: Annotated[Literal["test", "validate", "program"], Field(description="test or validate")] = (
        "test"
    )
    validate_at: Annotated[Literal["final", "current"], Field(description="final or current")] = "final"
    sampler: SamplerOrPrunerConfig = SamplerOrPrunerConfig(name=KNOWLEDGE_GRADIENT)
    pruner: SamplerOrPrunerConfig = SamplerOrPrunerConfig(name=KNOWLEDGE_GRADIENT)
    parallel: Count = 4
    max_attempts: Count = 3
    enqueue: Annotated[
        list[dict[str, Any]],
        Field(default_factory=list, description="a list of parameter sets, as in [{temperature_init: 2.0}]"),
    ]
    warm_start: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        Field(default_factory=list, description="a list of names of earlier studies, as in [first, second]"),
    ]
    limits: StudyLimits = StudyLimits()
    lease: Annotated[
        float, Field(ge=1, allow_inf_nan=False, description="a number of seconds of at least 1")
    ] = 300.0
    store_timeout: Seconds = 1800.0
    checkpoint_every: Annotated[
        float | None,
        Field(gt=0, allow_inf_nan=False, description="a number of seconds above 0, or null"),
    ] = None
    compile: str | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000, description="a whole number from -1000 to 1000")] = 0
    learned: Annotated[Learns, Field(description="true, false or per_head")] = True
    not_learned: Annotated[str | None, Field(description="a text, or null")] = None
    not_resumed: Annotated[str | None, Field(description="a text, or null")] = None
    metric_reads_temperature: Flag = False

    @field_validator("sampler", "pruner")
    @classmethod
    def _validate_strategy(
        cls, strategy: SamplerOrPrunerConfig, info: ValidationInfo
    ) -> SamplerOrPrunerConfig:
        known_names = SAMPLERS if info.field_name == "sampler" else PRUNERS
        if strategy.name not in known_names:
            raise ValueError(unknown(str(info.field_name), strategy.name, known_names))
        if strategy.name == KNOWLEDGE_GRADIENT and strategy.options:
            raise ValueError(
                f"given {strategy.options!r}, but {strategy.name} has no options. Take them out."
            )
        if "seed" in strategy.options:
            raise ValueError(
                "given a seed, but draws are seeded from study.seed and their ticket. Take it out."
            )
        return strategy

    @field_validator("min_gain", mode="before")
    @classmethod
    def _amount(cls, value: object) -> object:
        if value is None:
            return None
        match = _WITH_UNIT.fullmatch(value.strip()) if isinstance(value, str) else None
        number = float(match[1]) if match else value
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < math.inf:
            raise ValueError(f"given {value!r}. Give {_AMOUNT}.")
        if match is None:
            return float(number)
        return f"{match[1]}%" if match[2] == "%" else f"{match[1]} sd"

    def min_gain_in_units(self, mean: float, deviation: float) -> float:
        """Return ``min_gain`` in the metric's unit.

        Args:
            mean: Mean of the metric at τ = 1, for a percentage.
            deviation: Standard deviation of the metric between seeds at τ = 1.
        """
        amount = _MIN_GAIN if self.min_gain is None else self.min_gain
        if isinstance(amount, float):
            return amount
        match = _WITH_UNIT.fullmatch(amount)
        assert match is not None, "validated before"
        return float(match[1]) * (abs(mean) / 100 if match[2] == "%" else deviation)

    @field_validator("compile", mode="before")
    @classmethod
    def _mode(cls, value: object) -> str | None:
        if value is None or value is False:
            return None
        mode = "default" if value is True else value
        if isinstance(mode, str) and mode in COMPILE_MODES:
            return mode
        raise ValueError(f"given {value!r}. Give true, false, or one of {', '.join(COMPILE_MODES)}.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if lines := [*self._guard_problems(), *self._sampler_problems()]:
            raise CollectedSpecError(lines)
        return self

    def _guard_problems(self) -> Iterator[tuple[str, str]]:
        for name, text in self.guards.items():
            try:
                parse_guard(name, text, guess_direction(name))
            except ValueError as error:
                yield f"guards.{name}", str(error)
        # MySQL treats names as equal that differ only in trailing spaces
        for path, name in (("metric", self.metric), *((f"guards.{guard}", guard) for guard in self.guards)):
            if name != name.strip():
                yield path, f'given "{name}", with white space at its end or beginning. Leave that out.'
        if self.metric in self.guards:
            message = "it is study.metric, whose gain the verdict is about anyway. Take it out."
            yield f"guards.{self.metric}", message

    def _sampler_problems(self) -> Iterator[tuple[str, str]]:
        names, sampler, limit = self.warm_start, self.sampler.name, self.limits.standard_errors
        if self.name in names or len(set(names)) < len(names):
            yield "warm_start", f"given {names!r}. Give names of other studies, each of them once."
        if sampler == KNOWLEDGE_GRADIENT:
            return
        remedy = f"Take it out, or let the sampler be {KNOWLEDGE_GRADIENT}."
        if names:
            message = f"given {names!r} with sampler: {sampler}, which does not learn from other studies."
            yield "warm_start", f"{message} {remedy}"
        if limit is not None:
            message = f"given {limit:g} with sampler: {sampler}, which does not value further trials."
            yield "limits.standard_errors", f"{message} {remedy}"

    @property
    def guarded(self) -> list[GuardSpec]:
        """The guards, in the order of the spec."""
        return [parse_guard(name, text, guess_direction(name)) for name, text in self.guards.items()]

    @property
    def weighs_guards(self) -> bool:
        """Whether the sampler uses guarded metrics that trials measure."""
        return bool(self.guarded_metrics) and self.sampler.name == KNOWLEDGE_GRADIENT

    @property
    def measured_guards(self) -> dict[str, str]:
        """Names of measurements of guarded metrics in search runs, each to its metric."""
        evaluation = "validate" if self.validate_at == "final" else "validate_current"
        return {guard_name(evaluation, metric): metric for metric in self.guarded_metrics}

    @property
    def guarded_metrics(self) -> list[str]:
        """Names of the logged metrics that are guarded."""
        return [guard.name for guard in self.guarded]


def guess_direction(metric: str) -> Direction | None:
    """Return the direction in which a metric of that name usually improves; None if the name does not show
    it.
    """
    is_lower, is_higher = (
        re.search(rf"(?<![a-z0-9])({words})(?![a-z0-9])", metric, re.IGNORECASE) is not None
        for words in (_LOWER, _HIGHER)
    )
    if is_lower == is_higher:
        return None
    return "minimize" if is_lower else "maximize"


class AttachSection(SpecSection):
    """The ``attach:`` section: the layers of a module that is not a TemperedModule that get temperatures.

    Args:
        layers: Patterns of layer names, or ``auto``.
    """

    layers: Literal["auto"] | list[str] = "auto"

    @field_validator("layers", mode="before")
    @classmethod
    def _patterns(cls, value: object) -> object:
        is_pattern_list = (
            isinstance(value, list) and value and all(isinstance(pattern, str) for pattern in value)
        )
        if value == "auto" or is_pattern_list:
            return value
        example = "[encoder.layers.*.self_attn]"
        raise ValueError(f"given {value!r}. Give auto, or a list of patterns, as in {example}.")
