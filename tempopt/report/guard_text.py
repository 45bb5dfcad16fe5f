"""Guards of a verdict as text; computes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tempopt.report.finding import Finding, facts
from tempopt.verdict.guards import GuardResult

_STATES = {
    "kept": "kept",
    "broken": "broken",
    "not_shown": "not shown to be kept",
    "not_measured": "not measured",
}


def guard_findings(
    guards: Iterable[GuardResult],
    arm: str = "the winner",
    reference: str = "the baseline",
    *,
    prefix: str = "",
    blocked: str = "",
) -> Iterator[Finding]:
    """Yield a statement on each guard, and the alternative that they block.

    Args:
        guards: Guards of one arm.
        arm: Name of the arm.
        reference: Name of the reference.
        prefix: Beginning of the statements.
        blocked: Statement about an arm that gains and does not keep them; empty if it does not gain.
    """
    guards = tuple(guards)
    yield from facts("guard", (f"{prefix}{guard_line(guard, arm, reference)}" for guard in guards))
    if blocked and any(guard.blocks_recommendation for guard in guards):
        yield Finding(kind="guard", text=f"{blocked}: it {not_kept(guards)}.", state="not_shown")


def not_kept(guards: Iterable[GuardResult]) -> str:
    """Return the guards that block an arm: ``breaks the guard on val_loss (+20.0 %, limit +5 %)``."""
    guards = tuple(guards)
    broken = [_guard_summary(guard) for guard in guards if guard.state == "broken"]
    unmeasured = [guard for guard in guards if guard.state == "not_measured"]
    unproven = [_guard_summary(guard) for guard in guards if guard.state == "not_shown"]
    reasons = [f"breaks the guard on {' and '.join(broken)}"] if broken else []
    reasons += [f"is not shown to keep the guard on {' and '.join(unproven)}"] if unproven else []
    reasons += [f"was not tested on the guard on {guard.name}, since {guard.why}" for guard in unmeasured]
    return ", and ".join(reasons)


def _guard_summary(guard: GuardResult) -> str:
    """Return the name of a guard, the change of its metric, and the limit: ``loss (+20 %, limit +5 %)``."""
    change = "" if guard.change is None else f"{_change(guard, guard.change)}, "
    return f"{guard.name} ({change}limit {_limit(guard)})"


def guard_line(guard: GuardResult, arm: str = "the winner", reference: str = "the baseline") -> str:
    """Return the result of one guard, with the names of the compared arms."""
    head = f"guard on {guard.name} (limit {_limit(guard)}): {_STATES[guard.state]}"
    test = guard.answer
    if test is None:
        return f"{head}, since {guard.why}."
    divergence = ""
    if guard.diverged > guard.reference_diverged:
        seeds = f"{guard.diverged} of {test.n_pairs} seeds, {reference} on {guard.reference_diverged}"
        divergence = f"; {arm} diverged on {seeds}"
        if guard.diverged == test.n_pairs:
            # all values that it counts with are those of the other arm
            return f"{head}: {divergence.removeprefix('; ')}."
    high = _change(guard, guard.high)
    low = _change(guard, guard.low).removesuffix(f" {high.rpartition(' ')[2]}")
    level = f"{100 * test.confidence:.4g} % interval"
    return (
        f"{head}: {_change(guard, guard.change)} ({level} {low} to {high}; {test.n_pairs} seeds{divergence})."
    )


def _limit(guard: GuardResult) -> str:
    """Return how far the winner may differ from the baseline: ``+5 %``, ``−0.02``."""
    scale, unit = (100.0, " %") if guard.text.endswith("%") else (1.0, "")
    return f"{'+' if guard.side == 'most' else '−'}{guard.margin * scale:.4g}{unit}"


def _change(guard: GuardResult, value: float | None) -> str:
    """Return a change from the baseline: in percent if the guard is in percent, else in its unit."""
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
