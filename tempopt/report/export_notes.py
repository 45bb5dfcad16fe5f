"""What the comments of an export say of its callbacks: what checkpoints hold, and what needs no callback."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tempopt.temperature import TemperatureParameters

ATTACH = "tempopt.AttachCallback"
VALUE = "tempopt.ValueCallback"

_LONGEST = 110
_MOMENTS = 20
_STORED: Mapping[str, Callable[[float], float]] = {
    "identity": lambda tau: tau,
    "inverse": lambda tau: 1.0 / tau,
    "log_inverse": lambda tau: -math.log(tau),
}


def has(callbacks: Sequence[Mapping[str, Any]], class_path: str) -> bool:
    """Return whether a callback of that class is among them."""
    return any(callback["class_path"] == class_path for callback in callbacks)


def in_weights(callbacks: Sequence[Mapping[str, Any]]) -> str:
    """Return which temperatures checkpoints have in their weights, and where the others are."""
    if not has(callbacks, VALUE):
        return (
            "Checkpoints have the temperature in their weights: they load in a process without tempopt, too."
        )
    return (
        f"Checkpoints have attention's temperature in their weights. A Python number that {VALUE} sets is "
        "beside them: tempopt.load_checkpoint(model, path) sets it."
    )


def constants(callbacks: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each number that stays constant, which the module can as well be made with."""
    for callback in callbacks:
        init_args = callback["init_args"]
        if callback["class_path"] != VALUE or "at_inference" in init_args:
            continue
        schedule = TemperatureParameters.from_mapping(init_args["parameters"]).plan(1).schedule
        levels = {schedule(moment / _MOMENTS) for moment in range(_MOMENTS + 1)}
        if len(levels) == 1:
            number = _STORED[init_args["transform"]](levels.pop())
            yield (
                f"{init_args['path']} stays constant: a module that is made with "
                f"{init_args['path']} = {number:.10g}, and does not learn it, needs no callback for it."
            )


def comment(lines: Iterable[str]) -> str:
    """Return texts as comment lines of a length that people read, and an empty line."""
    return "".join(f"{_wrapped(line)}\n" for text in lines for line in text.splitlines()) + "\n"


def _wrapped(line: str) -> str:
    if not line:
        return "#"
    return textwrap.fill(
        line,
        _LONGEST,
        initial_indent="# ",
        subsequent_indent="#   ",
        break_long_words=False,
        break_on_hyphens=False,
    )
