"""What the verdict says of the guards of a study, in plain words and as data; computes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from tempopt.verdict.guards import GuardResult
from tempopt.verdict.verdict import Verdict

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
        lines.append(f"the winner is not recommended: it {not_kept(verdict.guards)}.")
    return lines


def not_kept(guards: Iterable[GuardResult]) -> str:
    """Return which guards stand in the way: ``breaks the guard on val_loss (+20.0 %, limit +5 %)``."""
    blocking_guards = [guard for guard in guards if guard.blocks_recommendation]
    broken = [_measured(guard) for guard in blocking_guards if guard.state == "broken"]
    unmeasured = [guard for guard in blocking_guards if guard.state == "not_measured"]
    unproven = [
        _measured(guard) for guard in blocking_guards if guard.state not in ("broken", "not_measured")
    ]
    reasons = [f"breaks the guard on {' and '.join(broken)}"] if broken else []
    reasons += [f"is not shown to keep the guard on {' and '.join(unproven)}"] if unproven else []
    reasons += [f"was not tested on the guard on {guard.name}, since {guard.why}" for guard in unmeasured]
    return ", and ".join(reasons)


def _measured(guard: GuardResult) -> str:
    """Return the name of a guard, by how much what it guards has changed, and the limit of that."""
    change = "" if guard.change is None else f"{_change(guard, guard.change)}, "
    return f"{guard.name} ({change}limit {_limit(guard)})"


def guard_line(guard: GuardResult, arm: str = "the winner", reference: str = "the baseline") -> str:
    """Return what is said of one guard, and how the two that it compares are called."""
    head = f"guard on {guard.name} (limit {_limit(guard)}): {_STATES[guard.state]}"
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
    high = _change(guard, guard.high)
    low = _change(guard, guard.low).removesuffix(f" {high.rpartition(' ')[2]}")
    level = f"{100 * test.confidence:.4g} % interval"
    return (
        f"{head}: {_change(guard, guard.change)} ({level} {low} to {high}; {test.n_pairs} seeds{diverged})."
    )


def guards_json(verdict: Verdict) -> list[dict[str, Any]]:
    """Return the guards as plain data, infinite ends as null."""
    return [guard_json(guard) for guard in verdict.guards]


def guard_json(guard: GuardResult) -> dict[str, Any]:
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
        "headroom": test
        and {name: _finite(value) for name, value in asdict(test).items() if name != "is_equal"},
    }


def _limit(guard: GuardResult) -> str:
    """Return how far the winner may be from the baseline: ``+5 %``, ``−0.02``."""
    scale, unit = (100.0, " %") if guard.text.endswith("%") else (1.0, "")
    return f"{'+' if guard.side == 'most' else '−'}{guard.margin * scale:.4g}{unit}"


def _change(guard: GuardResult, value: float | None) -> str:
    """Return a change beside the baseline: in percent where the guard is, else in its unit."""
    if value is None:
        return "–"
    if math.isinf(value):
        return "+∞" if value > 0 else "−∞"
    share = guard.relative(value)
    if guard.text.endswith("%") and share is not None:
        text = f"{100 * share:+.{_decimals(100 * share)}f} %"
    else:
        text = f"{value:+.3g}"
    return text.replace("-", "−")


def _decimals(percent: float) -> int:
    return 0 if abs(percent) >= 100 else 1 if abs(percent) >= 10 else 2


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
