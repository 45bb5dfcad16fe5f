"""What the verdict says of the guards of a study, in plain words and as data; computes nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tempopt.confirmation.guards import Guard
from tempopt.confirmation.verdict import Verdict
from tempopt.spec.guards import PEAK_MEMORY, STEP_TIME

_CALLED = {STEP_TIME: "the time of a training step", PEAK_MEMORY: "the peak memory of a GPU"}
_SCALES = {STEP_TIME: (1e3, " ms"), PEAK_MEMORY: (1e-9, " GB")}
_STATES = {
    "kept": "kept",
    "broken": "broken",
    "not_shown": "not shown to be kept",
    "not_measured": "not measured",
}


def guard_lines(verdict: Verdict) -> list[str]:
    """Return a line for each guard of the study, and whether the winner is to be taken for what they say."""
    if not verdict.guards:
        return []
    lines = [guard_line(guard) for guard in verdict.guards]
    if verdict.total.significant and not verdict.guards_kept:
        lines.append(f"the winner is not recommended: {not_kept(verdict.guards)}.")
    return lines


def not_kept(guards: Sequence[Guard]) -> str:
    """Return which guards are broken, and which are not shown to be kept."""
    broken = [guard.name for guard in guards if guard.state == "broken"]
    undecided = [guard.name for guard in guards if guard.in_the_way and guard.name not in broken]
    why = [f"it breaks the guard on {' and '.join(broken)}"] if broken else []
    if undecided:
        why.append(f"it is not shown to keep the guard on {' and '.join(undecided)}")
    return ", and ".join(why)


def guard_line(guard: Guard, arm: str = "the winner", reference: str = "the baseline") -> str:
    """Return what is said of one guard, and how the two that it compares are called."""
    head = f"guard on {_CALLED.get(guard.name, guard.name)} ({guard.text}): {_STATES[guard.state]}"
    test = guard.answer
    if test is None:
        return f"{head}, since {guard.why}."
    diverged = ""
    if guard.diverged > guard.reference_diverged:
        seeds = f"{guard.diverged} of {test.n_pairs} seeds, {reference} on {guard.reference_diverged}"
        diverged = f"; {arm} diverged on {seeds}"
        if guard.diverged == test.n_pairs:
            # all of the values that it counts with are the other arm's
            return f"{head}: {diverged.removeprefix('; ')}."
    interval = f"{_change(guard, guard.low)} to {_change(guard, guard.high)}"
    level = f"{100 * test.confidence:.4g} % interval"
    return f"{head}: {_change(guard, guard.change)} ({level} {interval}; {test.n_pairs} pairs{diverged})."


def guards_json(verdict: Verdict) -> list[dict[str, Any]]:
    """Return the guards as plain data, infinite ends as null."""
    return [guard_json(guard) for guard in verdict.guards]


def guard_json(guard: Guard) -> dict[str, Any]:
    """Return a guard as plain data, infinite ends as null."""
    test = guard.answer
    return {
        "name": guard.name,
        "text": guard.text,
        "state": guard.state,
        "baseline": guard.baseline,
        "change": guard.change,
        "relative_change": guard.relative(guard.change),
        "low": _finite(guard.low),
        "high": _finite(guard.high),
        "diverged": guard.diverged,
        "reference_diverged": guard.reference_diverged,
        "why": guard.why,
        "headroom": test and {name: _finite(value) for name, value in asdict(test).items()},
    }


def _change(guard: Guard, value: float | None) -> str:
    """Return a change beside the baseline: in percent where the guard is, else in its unit."""
    if value is None:
        return "–"
    if math.isinf(value):
        return "+∞" if value > 0 else "−∞"
    share = guard.relative(value)
    if guard.text.endswith("%") and share is not None:
        text = f"{100 * share:+.{_decimals(100 * share)}f} %"
    else:
        scale, unit = _SCALES.get(guard.name, (1.0, ""))
        text = f"{value * scale:+.3g}{unit}"
    return text.replace("-", "−")


def _decimals(percent: float) -> int:
    return 0 if abs(percent) >= 100 else 1 if abs(percent) >= 10 else 2


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
