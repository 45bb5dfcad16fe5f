"""The section ``study:`` of a study spec, key by key; what some of its keys hold is sections.py's."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from tempopt.errors import unknown
from tempopt.spec.alpha_ledger import alpha_for_verdict
from tempopt.spec.alpha_levels import Direction
from tempopt.spec.guards import GuardSpec, parse_guard
from tempopt.spec.lightning_config import one_metric
from tempopt.spec.program import guard_name
from tempopt.spec.sections import (
    KNOWLEDGE_GRADIENT,
    MOST_RUNS,
    PRUNERS,
    SAMPLERS,
    ArmCounts,
    Count,
    SamplerOrPrunerConfig,
    Seeds,
    SpecSection,
    StudyLimits,
)
from tempopt.spec.yaml_source import CollectedSpecError
from tempopt.temperature.learned import Learns

COMPILE_MODES = ("default", "reduce-overhead", "max-autotune")
"""Modes of ``torch.compile`` that a study may ask for."""

# Why methods that are often asked for are none of the samplers; more of it is in docs/specs.md.
_WHY_NOT = {
    "pbt": "Population based training was measured, and gained no more than knowledge_gradient.",
    "cmaes": "CMA-ES takes no choices, such as a schedule; gp does.",
    "nsgaii": "A study has one metric; what may not get worse goes under study.guards.",
}

_DIRECTIONS: dict[Direction, tuple[str, ...]] = {
    "minimize": (
        "loss",
        "error",
        "err",
        "perplexity",
        "ppl",
        "nll",
        "bits",
        "bpc",
        "mse",
        "mae",
        "rmse",
        "wer",
    ),
    "maximize": ("accuracy", "acc", "f1", "auc", "auroc", "recall", "precision", "bleu", "iou"),
}

_AMOUNT = 'a number of at least 0, percent as in "1%", standard deviations as in "0.5 sd", or null'
_WITH_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+) ?(%|sd)")
_MIN_GAIN = "0.2 sd"


class StudySection(SpecSection):
    """The ``study:`` section: what is asked, how often, and how it is judged.

    Args:
        enqueue: Parameter sets to try first, of some or all of the searched names.
        warm_start: Earlier studies of the same store, by name, whose runs the sampler learns from.
        lease: Seconds that a run may go without a step before another agent takes its ticket.
        store_timeout: Seconds that agents go on training while the database cannot be reached, and that a
            run is tried again whose own code finds no disk space.
        checkpoint_every: Seconds between a run's checkpoints; None: at every validation, 300 s at most.
        learned: Whether runs with learned temperatures are confirmed beside the winner, too; ``per_head``:
            those in which each head of attention has a temperature of its own, and not each layer.
        not_learned: Why the temperatures of the module cannot be learned, as its dry run has found; such a
            study has no runs of that kind.
        metric_reads_temperature: Whether the metric may change with the number of a named temperature alone,
            since that is part of what is deployed; else such a metric is refused.
        explain: Whether a verdict is explained at once, as ``tempopt explain`` does later: the winner's parts
            are taken away one at a time, a simpler plan is looked for and temperatures are learned, all on
            the confirming seeds.
        keep_share: Share of the winner's gain that a simpler plan has to keep to be recommended.
        min_gain: Smallest gain that is worth a change: in the metric's unit, as in ``"1%"`` in percent of the
            metric at τ = 1, or as in ``"0.5 sd"`` in standard deviations between seeds at τ = 1; None: 0.2 of
            these. The recommendation alone depends on it, and no test.
        failure: Value of the metric such that a run that ends worse counts as failed; None: those that
            diverge alone.
        guards: What the winner may not make worse, by name; see :mod:`tempopt.spec.guards`.
        all_pairs: Whether a comparison of parameter sets compares each two of them, in place of each with the
            first.
        priority: Agents of every study (``tempopt agent --any``) serve studies with a higher one first.
        compile: Mode of ``torch.compile`` that the training steps are compiled in; None: in none. A person
            may write true for the default mode, and false.
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
            description="the name of at most 200 characters under which validation logs the metric",
        ),
    ]
    direction: Annotated[Direction, Field(description="maximize or minimize")]
    trials: Annotated[
        int | None, Field(ge=1, le=MOST_RUNS, description=f"a whole number from 1 to {MOST_RUNS}")
    ] = None
    arms: ArmCounts = ArmCounts()
    candidates: Count = 2
    seeds: Seeds = Seeds()
    all_pairs: Annotated[bool, Field(description="true or false")] = False
    seed: Annotated[int, Field(ge=0, lt=2**63, description="a whole number from 0 to 2**63 - 1")] = 0
    test: Annotated[Literal["t", "sign_flip"], Field(description="t or sign_flip")] = "t"
    explain: Annotated[bool, Field(description="true or false")] = False
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
    confirm_on: Annotated[Literal["test", "validate"], Field(description="test or validate")] = "test"
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
    store_timeout: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="a number of seconds of at least 0")
    ] = 1800.0
    checkpoint_every: Annotated[
        float | None,
        Field(gt=0, allow_inf_nan=False, description="a number of seconds above 0, or null"),
    ] = None
    compile: str | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000, description="a whole number from -1000 to 1000")] = 0
    learned: Annotated[Learns, Field(description="true, false or per_head")] = True
    not_learned: Annotated[str | None, Field(description="a text, or null")] = None
    metric_reads_temperature: Annotated[bool, Field(description="true or false")] = False

    @field_validator("metric", "direction", mode="before")
    @classmethod
    def _one(cls, value: object) -> object:
        return one_metric(value)

    @field_validator("sampler", "pruner")
    @classmethod
    def _validate_strategy(
        cls, strategy: SamplerOrPrunerConfig, info: ValidationInfo
    ) -> SamplerOrPrunerConfig:
        known_names = SAMPLERS if info.field_name == "sampler" else PRUNERS
        if strategy.name not in known_names:
            remedy = _WHY_NOT.get(strategy.name.lower().replace("-", ""), "")
            raise ValueError(unknown(str(info.field_name), strategy.name, known_names, remedy))
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
            mean: Of the metric at τ = 1, of which percent are taken.
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
    def _guarded(self) -> Self:
        lines = []
        for name, text in self.guards.items():
            try:
                parse_guard(name, text, direction_of(name))
            except ValueError as error:
                lines.append((f"guards.{name}", str(error)))
        # MySQL takes names that differ in the spaces at their end for one
        for path, name in (("metric", self.metric), *((f"guards.{guard}", guard) for guard in self.guards)):
            if name != name.strip():
                message = f'given "{name}", with white space at its end or beginning. Leave that out.'
                lines.append((path, message))
        if self.metric in self.guards:
            message = "it is study.metric, whose gain the verdict is about anyway. Take it out."
            lines.append((f"guards.{self.metric}", message))
        if lines:
            raise CollectedSpecError(lines)
        return self

    @property
    def guarded(self) -> list[GuardSpec]:
        """The guards, in the order in which they were written."""
        return [parse_guard(name, text, direction_of(name)) for name, text in self.guards.items()]

    @property
    def weighs_guards(self) -> bool:
        """Whether the search goes by what trials measure of guarded metrics."""
        return bool(self.guarded_metrics) and self.sampler.name == KNOWLEDGE_GRADIENT

    @property
    def measured_guards(self) -> dict[str, str]:
        """Under which names searching runs measure guarded metrics: to the metric."""
        evaluation = "validate" if self.validate_at == "final" else "validate_current"
        return {guard_name(evaluation, metric): metric for metric in self.guarded_metrics}

    @property
    def guarded_metrics(self) -> list[str]:
        """Names of the logged metrics that are guarded."""
        return [guard.name for guard in self.guarded]

    @model_validator(mode="after")
    def _learns(self) -> Self:
        names = self.warm_start
        if self.name in names or len(set(names)) < len(names):
            message = f"given {names!r}. Give names of other studies, each of them once."
        elif names and self.sampler.name != KNOWLEDGE_GRADIENT:
            message = (
                f"given {names!r} with sampler: {self.sampler.name}, which learns nothing from others. "
                f"Take it out, or let the sampler be {KNOWLEDGE_GRADIENT}."
            )
        else:
            return self
        raise CollectedSpecError([("warm_start", message)])

    @model_validator(mode="after")
    def _foreseen(self) -> Self:
        standard_errors, sampler = self.limits.standard_errors, self.sampler.name
        if standard_errors is None:
            return self
        if sampler == KNOWLEDGE_GRADIENT:
            return self
        message = (
            f"given {standard_errors:g} with sampler: {sampler}, which does not say what trials to come are "
            f"worth. Take it out, or let the sampler be {KNOWLEDGE_GRADIENT}."
        )
        raise CollectedSpecError([("limits.standard_errors", message)])

    @model_validator(mode="after")
    def _enough_pairs(self) -> Self:
        min_pairs, max_pairs = (
            self.seeds.confirm.enough(self.test, alpha_for_verdict(1)),
            self.seeds.confirm.max,
        )
        if max_pairs < min_pairs:
            smallest = 2.0 ** (1 - max_pairs)
            message = (
                f"given {max_pairs} with test: {self.test}. Two-sided, so few pairs cannot give a p below "
                f"{smallest:g}, whatever the gain is: give at least {min_pairs}, or test: t."
            )
            raise CollectedSpecError([("seeds.confirm", message)])
        return self


def direction_of(metric: str) -> Direction | None:
    """Return the direction in which a metric of that name usually gets better, None if it does not say."""
    words = re.split(r"[^a-z0-9]+", metric.lower())
    directions = [direction for direction, names in _DIRECTIONS.items() if not set(names).isdisjoint(words)]
    return directions[0] if len(directions) == 1 else None
