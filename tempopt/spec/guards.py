"""The guards of a study, ``study.guards``: metrics that a winner may not worsen, parsed from short texts.

``verdict/guards.py`` tests whether guards are kept; the module decides which names its metrics have.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from tempopt.spec.alpha_levels import Direction

_GUARD = re.compile(
    r"(?P<form>no worse than|<= *\+|>= *[-−]) *"
    r"(?P<margin>[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?) *(?P<percent>%?)"
)
_ALLOWED = '"no worse than 1%", "<= +2%" (at most 2 % above τ = 1) or ">= -2%" (at most 2 % below it)'
_MAX_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSpec:
    """Condition of one guard on the winner, relative to the baseline.

    Args:
        name: A metric that validation logs.
        text: The text in the spec.
        side: ``most``: the winner may exceed the baseline by at most the margin; ``least``: fall below it by
            that.
        margin: Share of the absolute value of the baseline's mean if ``relative``, else in the metric's unit;
            >= 0.
        relative: Whether the margin is a share.
    """

    name: str
    text: str
    side: Literal["most", "least"]
    margin: float
    relative: bool


def parse_guard(name: str, text: object, direction: Direction | None) -> GuardSpec:
    """Return the guard that a text describes.

    Args:
        name: Name of the guard.
        text: Its text.
        direction: Direction in which this metric improves; None if its name does not show it.

    Raises:
        ValueError: The text cannot be parsed; the message has the allowed forms.
    """
    if not name or len(name) > _MAX_CHARS:
        raise ValueError(f"the name of a guard is a metric's, of 1 to {_MAX_CHARS} letters; given {name!r}.")
    match = _GUARD.fullmatch(text.strip()) if isinstance(text, str) else None
    margin = math.inf if match is None else float(match["margin"]) / (100.0 if match["percent"] else 1.0)
    if match is None or not math.isfinite(margin):
        raise ValueError(f"given {text!r}. Give {_ALLOWED}; without % the number is in the unit of {name}.")
    is_upper = match["form"].startswith("<")
    if match["form"] == "no worse than":
        if direction is None:
            raise ValueError(
                f'given "{match[0]}", but the name "{name}" does not say whether more or less of it is '
                'better. Give "<= +1%" if less is better, ">= -1%" if more is.'
            )
        is_upper = direction == "minimize"
    side: Literal["most", "least"] = "most" if is_upper else "least"
    return GuardSpec(name=name, text=match[0], side=side, margin=margin, relative=bool(match["percent"]))
