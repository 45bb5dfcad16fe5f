"""Forecast of a study as text; computes nothing."""

from __future__ import annotations

from tempopt.verdict.detectable_gain import CONFIDENCE, LARGE_GAIN, DetectableEffect, NoiseEstimate
from tempopt.verdict.planned_runs import PlannedRuns

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
_SOURCES = {"choose": "runs on common seeds", "confirm": "confirming runs"}


def format_duration(seconds: float) -> str:
    """Return a duration as text for planning: ``42 s``, ``12 min``, ``5.5 h`` or ``9 days``."""
    for unit, name, until in ((1.0, "s", 90.0), (_MINUTE, "min", 90 * _MINUTE), (_HOUR, "h", 2 * _DAY)):
        if seconds < until:
            return f"{_short(seconds / unit)} {name}"
    return f"{_short(seconds / _DAY)} days"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 else f"{value:.2g}"


def format_worker_count(workers: int, gpus: float) -> str:
    """Return the resources of a study as text: ``2 workers``, ``one GPU``."""
    if not gpus:
        return "1 worker" if workers == 1 else f"{workers} workers"
    cards = workers * gpus
    if cards == 1:
        return "one GPU"
    return f"{cards:g} GPUs" if cards > 1 else f"{cards:g} of a GPU"


def runs_text(runs: PlannedRuns) -> str:
    """Return the number of runs: ``about 34 runs with a gain of 2 sd, 38 without a gain; at most 86``."""
    gain, no_gain = runs.total(gain=True), runs.total(gain=False)
    if gain == no_gain and gain.min == gain.max:
        return "1 run" if gain.max == 1 else f"{gain.max:.0f} runs"
    with_gain = f"about {gain.typical:.0f} runs with a gain of {LARGE_GAIN:g} sd"
    return f"{with_gain}, {no_gain.typical:.0f} without a gain; at most {runs.max_total():.0f}"


def effect_text(detectable: DetectableEffect) -> str:
    """Return the gain that can be shown, before there are runs."""
    low, high = detectable.in_seeds
    return (
        f"gains of {detectable.effect:.2g} standard deviations of a pair's difference "
        f"({low:.2g} to {high:.2g} standard deviations between seeds)"
    )


def gain_text(detectable: DetectableEffect, noise: NoiseEstimate, metric: str, baseline: str) -> str:
    """Return the range of the smallest gain that can be shown.

    Args:
        detectable: The smallest gain.
        noise: Noise estimated from runs.
        metric: Name of the metric.
        baseline: Name of the baseline, such as ``τ = 1``.
    """
    low, high = detectable.range(noise)
    source = f"runs at {baseline}" if noise.source == "baseline" else _SOURCES[noise.source]
    return (
        f"the smallest gain in {metric} that {detectable.pairs} pairs show with "
        f"{100 * detectable.power:.0f} % power is between {low:.2g} and {high:.2g} "
        f"({100 * CONFIDENCE:.0f} % confidence, "
        f"from {noise.runs} {source})"
    )
