"""Numbers, durations, parameters and plans of inference as people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tempopt.confirmation.evaluations import WINNER
from tempopt.confirmation.inference import AS_TRAINED
from tempopt.statistics.paired_tests import PairedTest
from tempopt.temperature import NEUTRAL


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """Return the parameters as people read them: ``temperature_init=1.52, schedule=cosine``."""
    texts = (f"{n}={v:.4g}" if isinstance(v, float) else f"{n}={v}" for n, v in parameters.items())
    return ", ".join(texts) or "nothing was searched"


def numbers(test: PairedTest) -> str:
    """Return the interval and p of a comparison."""
    interval = f"{confidence(test)} interval {rounded(test.ci_low, test)} to {rounded(test.ci_high, test)}"
    return f"{interval}, p = {test.p_value:.2g}"


def confidence(test: PairedTest) -> str:
    """Return the coverage of the interval: ``96 %``."""
    return f"{100 * test.confidence:.4g} %"


def size(test: PairedTest) -> str:
    """Return the gain without its sign, for a sentence that says in words which way it goes."""
    return unsigned(abs(test.gain), test)


def numbers_of_size(test: PairedTest) -> str:
    """Return the interval of :func:`size`, and p."""
    ends = (test.ci_low, test.ci_high) if test.gain >= 0 else (-test.ci_high, -test.ci_low)
    low, high = (unsigned(end, test) for end in ends)
    return f"{confidence(test)} interval {low} to {high}, p = {test.p_value:.2g}"


def unsigned(value: float, test: PairedTest) -> str:
    """Return the value as :func:`rounded` does, without a plus."""
    return rounded(value, test).lstrip("+")


def signed(test: PairedTest) -> str:
    """Return the gain with its sign, for a sentence that does not say which way it goes."""
    return rounded(test.gain, test)


def rounded(value: float, test: PairedTest) -> str:
    """Return the value with two digits of the interval's half-width, more if an end would round to 0."""
    return rounded_in(value, test.gain, test.ci_low, test.ci_high)


def rounded_in(value: float, gain: float, low: float, high: float) -> str:
    """Return a signed value as :func:`rounded` does, given the gain and the ends of its interval."""
    if math.isinf(value):
        return "−∞" if value < 0 else "+∞"
    width = (high - low) / 2
    digits = _decimals(width if 0 < width < math.inf else gain) + 1
    nearest = min(abs(low), abs(high))
    if 0 < nearest < math.inf:
        digits = max(digits, min(_decimals(nearest), digits + 2))
    return f"{value:+.{max(0, digits)}f}".replace("-", "−")


def _decimals(value: float) -> int:
    """Return how many decimals show the first digit that is not 0; 3 for 0 itself."""
    return -math.floor(math.log10(abs(value))) if value else 3


def duration(seconds: float) -> str:
    """Return seconds as people say them: ``1 h 12 min``, ``3 min 20 s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def temperature_text(parameters: Mapping[str, Any]) -> str:
    """Return a parameter set as people read it, without what changes nothing: ``τ = 2, lr=0.01``."""
    schedule = parameters.get("schedule", NEUTRAL["schedule"])
    first = parameters.get("temperature_init", NEUTRAL["temperature_init"])
    last = parameters.get("temperature_final", first)
    if schedule == NEUTRAL["schedule"]:
        texts = [f"τ = {first:.4g}"]
    else:
        texts = [f"τ from {first:.4g} to {last:.4g} ({schedule})"]
    told = {"schedule", "temperature_init", "temperature_final"}
    rest = {n: v for n, v in parameters.items() if n not in told and not (n in NEUTRAL and NEUTRAL[n] == v)}
    return ", ".join([*texts, *([parameters_text(rest)] if rest else [])])


def plan_text(plan: str) -> str:
    """Return what a plan of inference is called in a sentence."""
    if plan == AS_TRAINED:
        return "the temperature of the training"
    if plan == WINNER:
        return "the winner's final temperature"
    return "τ = " + plan.removeprefix("constant=").replace(",length_scaling=", " with length scaling ")
