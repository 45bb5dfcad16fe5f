"""What evaluating a trained model found, in plain words; computes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tempopt.confirmation.evaluated import Evaluated, Point
from tempopt.results.wording import rounded_in, temperature_text
from tempopt.statistics.bootstrap import CONFIDENCE, FEWEST

if TYPE_CHECKING:
    from tempopt.results.study_result import StudyResult

_DATA = {"test": "test", "validate": "validation"}
_ONE = {"items": "item", "batches": "batch"}
_ITEMS = (
    "Have validation_step return a mapping with one value for each item of the batch under the metric's name"
)


def evaluation_lines(result: StudyResult) -> list[str]:
    """Return what the evaluations of a trained model have found, the first line in full words."""
    found = result.evaluated
    if found is None:
        if result.state == "done":
            return [f"No result: the evaluation of {result.name} at τ = 1 did not come to its end."]
        return [f"{result.name} has not been evaluated at τ = 1 yet."]
    lines = [evaluation_headline(result)]
    lines.append(f"  {_values(result, found)}")
    if not found.at_one:
        lines += [f"  {each}" for each in _apart(found)]
        lines.append(f"  {_how(found)}")
    lines.append(f"  {_data(result, found)}")
    return lines


def evaluation_headline(result: StudyResult) -> str:
    """Return what the best temperature gains, in a line."""
    found = result.evaluated
    assert found is not None
    data = f"the {_DATA[found.on]} data"
    one = "τ = 1" if found.apart is None else "τ = 1 with neutral generation"
    if found.at_one:
        return (
            f"No gain shown: of {found.tried} evaluations on the validation data none has a better "
            f"{result.metric} than {one}."
        )
    where = temperature_text(found.params)
    better = "higher" if result.direction == "maximize" else "lower"
    gain_at = f"in {result.metric} at {where} over {one}"
    if found.interval is None:
        gain = f"{found.gain:+.3g}".replace("-", "−")
        return f"No gain shown: the gain {gain_at} is {gain} on {data}, without an interval."
    sure = f"{100 * found.confidence:.4g} % interval"
    ends = (found.gain, found.interval.low, found.interval.high)
    gain, low, high = (rounded_in(each, *ends) for each in ends)
    if found.shown:
        gain, low, high = (each.lstrip("+") for each in (gain, low, high))
        return (
            f"Gain shown: for this checkpoint {result.metric} is {better} by {gain} on {data} at {where} "
            f"than at {one} ({sure} {low} to {high})."
        )
    told = f"No gain shown: for this checkpoint the gain {gain_at} is {gain}"
    if found.on == "validate":
        return f"{told}, but on {data}, which chose it ({sure} {low} to {high}, optimistic)."
    return f"{told} on {data} ({sure} {low} to {high})."


def _values(result: StudyResult, found: Evaluated) -> str:
    """Return the metric at τ = 1 and at the chosen temperature, on the data of each step."""
    lines = [("validation", found.chosen_at_one, found.chosen)]
    if found.on == "test":
        lines.append(("test", found.value_at_one, found.value))
    told = [
        f"on the {data} data {at_one:.5g} at τ = 1"
        + ("" if found.at_one else f" and {chosen:.5g} with the best")
        for data, at_one, chosen in lines
    ]
    return f"of {found.tried} evaluations, {result.metric} is {'; '.join(told)}."


def _apart(found: Evaluated) -> list[str]:
    """Return what of the gain is generation's, and what temperatures add to it."""
    if found.apart is None:
        return []
    drawn, tempered = found.apart.generation, found.apart.temperature
    lines = [f"generation alone, the best at τ = 1 ({temperature_text(drawn.params)}): {_gain(drawn)}."]
    if tempered.params == drawn.params:
        return [
            *lines,
            "temperature on top of that: no other one is better, so that nothing is gained by it.",
        ]
    interval = tempered.interval
    shown = found.on == "test" and interval is not None and interval.low > 0
    verdict = "" if shown else ", which shows no gain of temperature"
    return [*lines, f"temperature on top of that: {_gain(tempered)}{verdict}."]


def _gain(point: Point) -> str:
    if point.interval is None:
        return f"{point.gain:+.3g}, without an interval".replace("-", "−")
    ends = (point.gain, point.interval.low, point.interval.high)
    gain, low, high = (rounded_in(each, *ends) for each in ends)
    return f"{gain} ({100 * CONFIDENCE:.4g} % interval {low} to {high})"


def _how(found: Evaluated) -> str:
    """Return what the interval is of, or why there is none."""
    if found.interval is not None:
        many = f"{found.units} {found.unit}"
        if found.unit == "items" and found.units < found.items:
            many = f"{found.items} items, in {found.units} groups of neighbours"
        return (
            f"interval: paired bootstrap over {many} of the {_DATA[found.on]} data; of this checkpoint, not "
            f"over seeds: another training of the model may gain another amount."
        )
    if found.unit is None:
        return (
            "no interval: the metric is not the mean of what is logged for each batch. "
            f"{_ITEMS}, whose mean it is."
        )
    if found.units < FEWEST:
        few = f"1 {_ONE[found.unit]} is" if found.units == 1 else f"{found.units} {found.unit} are"
        return f"no interval: {few} too few to resample; it takes {FEWEST}. {_ITEMS}, or use smaller batches."
    if found.changed is not None:
        few = f"{found.changed} of {found.units} {found.unit}"
        return f"no interval: the metric of {few} changes, and it takes {FEWEST} that do. Use more data."
    return (
        "no interval: the two evaluations did not see the same data in the same order. Do not shuffle them."
    )


def _data(result: StudyResult, found: Evaluated) -> str:
    """Return which data chose the temperature, and which estimate what it gains."""
    if found.on == "test":
        return "chosen on the validation data, estimated on the test data, which chose nothing."
    if result.spec.study.confirm_on == "validate":
        why = "as study.confirm_on says"
    elif result.state != "done":
        return "not estimated on the test data yet: the evaluations are not over."
    else:
        why = "since it could not be evaluated on test data: write a test_dataloader"
    return f"chosen and estimated on the validation data, {why}. Its gain there is optimistic."


def export_lines(result: StudyResult) -> list[str]:
    """Return the comment that an export of a trained model begins with."""
    lines = [
        f"The best temperature for the trained model {result.spec.study.evaluate_only}; nothing was trained."
    ]
    return [*lines, evaluation_headline(result)] if result.evaluated is not None else lines
