"""Result of the evaluations of trained weights: as data, text and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tempopt.report.finding import DATA, GAIN, NO_GAIN
from tempopt.report.formatting import finite, temperature_text, value_text_in
from tempopt.training.messages import UnitKind
from tempopt.verdict.statistics.bootstrap import CONFIDENCE, MIN_UNITS, Interval
from tempopt.verdict.statistics.paired_tests import Direction

_ITEMS_ADVICE = (
    "Have validation_step return a mapping with one value for each item of the batch under the metric's name"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Gain of a parameter set over another one on the same data.

    Args:
        value: Its metric.
        reference_value: Metric of the other one.
        gain: Difference, > 0 being better.
        interval: Difference with its confidence interval over data; None if there is none.
        unit: Unit of resampling; None if the metric is not the mean of values per item or batch.
        num_units: Number of units.
        num_items: Number of items in all units.
        num_changed: Number of units whose metric differs; None if the two did not see the same data in order.
    """

    value: float
    reference_value: float
    gain: float
    interval: Interval | None
    unit: UnitKind | None
    num_units: int
    num_items: int
    num_changed: int | None

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.gain:+.3g}, without an interval".replace("-", "−")
        ends = (self.gain, self.interval.low, self.interval.high)
        gain, low, high = (value_text_in(number, *ends) for number in ends)
        return f"{gain} ({100 * CONFIDENCE:.4g} % interval {low} to {high})"

    def to_json(self) -> dict[str, Any]:
        """Return the documented data; fields of the interval are null without one."""
        return {
            "value": finite(self.value),
            "reference_value": finite(self.reference_value),
            "gain": finite(self.gain),
            "ci_low": self.interval and self.interval.low,
            "ci_high": self.interval and self.interval.high,
            "confidence": CONFIDENCE if self.interval else None,
            "unit": self.unit,
            "units": self.num_units,
            "items": self.num_items,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """Result of the evaluations of trained weights.

    Args:
        name: Name of the Optuna study.
        metric: Name of the metric.
        direction: Direction of the metric.
        params: The parameter set with the best value on the validation data; the reference unless another
            one is better.
        reference_params: The parameter set of the unchanged spec.
        is_reference: Whether the two are the same.
        chosen_value: Metric of ``params`` on the validation data, the best of all.
        chosen_reference: Metric of the reference on the validation data.
        on: Data on which the gain is estimated: ``test``, or the ``validate`` data on which it was chosen.
        gain: Gain of the best set over the reference on those data, for these weights.
        generation: Part of the gain that its generation parameters alone reach; None unless both kinds are
            searched.
        temperature: Further gain of its other parameters; None like ``generation``.
        trials: Number of parameter sets that were evaluated on the validation data.
        left_out: Searched names of the spec that act only in training.
    """

    name: str
    metric: str
    direction: Direction
    params: dict[str, Any]
    reference_params: dict[str, Any]
    is_reference: bool
    chosen_value: float
    chosen_reference: float
    on: Literal["validate", "test"]
    gain: Gain
    generation: Gain | None
    temperature: Gain | None
    trials: int
    left_out: tuple[str, ...]

    @property
    def is_shown(self) -> bool:
        """Whether a gain is shown: its interval on the test data is above 0."""
        return self.on == "test" and self.gain.interval is not None and self.gain.interval.low > 0

    def to_json(self) -> dict[str, Any]:
        """Return the documented data of ``tempopt evaluate --json``."""
        return {
            "study": self.name,
            "metric": self.metric,
            "direction": self.direction,
            "params": self.params,
            "reference_params": self.reference_params,
            "is_reference": self.is_reference,
            "validate": {"value": self.chosen_value, "reference_value": self.chosen_reference},
            "estimated_on": self.on,
            "gain_shown": self.is_shown,
            "total": self.gain.to_json(),
            "generation": self.generation and self.generation.to_json(),
            "temperature": self.temperature and self.temperature.to_json(),
            "trials": self.trials,
            "left_out": list(self.left_out),
        }

    def lines(self) -> list[str]:
        """Return the result as lines of text, the headline first."""
        lines = [self._headline(), f"  {self._values_text()}"]
        if not self.is_reference:
            if self.generation is not None:
                lines.append(f"  its generation alone, with all else as the spec stands: {self.generation}.")
                lines.append(f"  its temperatures on top of that: {self.temperature}.")
            lines.append(f"  {self._interval_text()}")
        lines.append(f"  {self._data_text()}")
        if self.left_out:
            lines.append(f"  not searched, since it acts in training alone: {', '.join(self.left_out)}.")
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _headline(self) -> str:
        if self.is_reference:
            return (
                f"{NO_GAIN}: of {self.trials} evaluations on the validation data none has a better "
                f"{self.metric} than the spec as it stands."
            )
        data, where = f"the {DATA[self.on]} data", temperature_text(self.params)
        if self.is_shown:
            better_word = "higher" if self.direction == "maximize" else "lower"
            return (
                f"{GAIN}: for these weights {self.metric} is {better_word} by "
                f"{str(self.gain).lstrip('+')} on {data} at {where} than as the spec stands."
            )
        choice_note = ", which chose it" if self.on == "validate" else ""
        return (
            f"{NO_GAIN}: for these weights the gain in {self.metric} at {where} is {self.gain} on "
            f"{data}{choice_note}."
        )

    def _values_text(self) -> str:
        numbers = [("validation", self.chosen_reference, self.chosen_value)]
        if self.on == "test":
            numbers.append(("test", self.gain.reference_value, self.gain.value))
        texts = [
            f"on the {data} data {reference:.5g} as the spec stands"
            + f" and {value:.5g} with the best" * (not self.is_reference)
            for data, reference, value in numbers
        ]
        return f"of {self.trials} evaluations, {self.metric} is {'; '.join(texts)}."

    def _interval_text(self) -> str:
        """Return the meaning of the interval, or why there is none."""
        gain = self.gain
        if gain.interval is not None:
            units_text = f"{gain.num_units} {gain.unit}"
            if gain.unit == "items" and gain.num_units < gain.num_items:
                units_text = f"{gain.num_items} items, in {gain.num_units} groups of neighbours"
            return (
                f"interval: paired bootstrap over {units_text} of the {DATA[self.on]} data; of these "
                "weights, not over seeds: another training of the model may gain another amount."
            )
        if gain.unit is None:
            return (
                f"no interval: the metric is not the mean of what is logged for each batch. {_ITEMS_ADVICE}."
            )
        if gain.num_units < MIN_UNITS:
            return (
                f"no interval: of {gain.unit} there are {gain.num_units}, and resampling takes {MIN_UNITS}. "
                f"{_ITEMS_ADVICE}, or use smaller batches."
            )
        if gain.num_changed is not None:
            return (
                f"no interval: the metric of {gain.num_changed} of {gain.num_units} {gain.unit} changes, and "
                f"it takes {MIN_UNITS} that do. Use more data."
            )
        return (
            "no interval: the evaluations did not see the same data in the same order. Do not shuffle them."
        )

    def _data_text(self) -> str:
        if self.on == "test":
            return "chosen on the validation data, estimated on the test data, which chose nothing."
        return (
            "chosen and estimated on the validation data, since there are no test data: its gain there is "
            "optimistic. Write a test_dataloader."
        )
