"""What a run costs in GPU-hours, as a spec states it or as it was measured, and how that is said."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tempopt.confirmation.costs import MeanCosts, at_proxy
from tempopt.records.rows import Kind
from tempopt.spec.study_spec import StudySpec

ROUNDING = 1e-9
"""Share by which a sum of prices may exceed a limit that it is to keep to."""

_HOUR = 3600.0


def costs_given(spec: StudySpec) -> MeanCosts | None:
    """Return the GPU-hours of a run as ``study.limits`` states them; None: not those of both sizes."""
    limits, proxy = spec.study.limits, spec.study.proxy
    full = small = limits.run_gpu_hours
    if full is not None and proxy is not None:
        small = limits.proxy_gpu_hours or (full / proxy.cost_ratio if proxy.cost_ratio else None)
    return None if full is None or small is None else MeanCosts(proxy=small, full=full, basis="stated")


def price(spec: StudySpec, run_seconds: Mapping[Kind, float], cards: float) -> MeanCosts:
    """Return the GPU-hours of a run, as they are stated, or else as the dearest kind of its size takes them.

    Args:
        spec: The study's spec.
        run_seconds: Seconds of a run of each kind.
        cards: GPUs of a run; 0: none, and its hours of training count.
    """
    sizes: dict[bool, list[float]] = {True: [], False: []}
    for kind, each in run_seconds.items():
        sizes[at_proxy(kind, spec)].append(each * (cards or 1.0) / _HOUR)
    limits = spec.study.limits
    full = limits.run_gpu_hours or max(sizes[False])
    small = full if spec.study.proxy is None else limits.proxy_gpu_hours or max(sizes[True])
    return MeanCosts(proxy=small, full=full, basis="stated")


def prices_text(spec: StudySpec, costs: MeanCosts) -> str:
    """Return in words what a run costs."""
    if spec.study.proxy is None:
        return f"{costs.full:.3g} GPU-hours a run"
    return f"{costs.proxy:.3g} GPU-hours a run of the proxy and {costs.full:.3g} a run at full size"


def rounded_up(hours: float) -> float:
    """Return hours with three digits, at least as many."""
    unit = 10.0 ** (math.floor(math.log10(hours)) - 2)
    return float(f"{math.ceil(hours / unit - ROUNDING) * unit:.6g}")


def rounded_down(hours: float) -> float:
    """Return hours with three digits, at most as many."""
    unit = 10.0 ** (math.floor(math.log10(hours)) - 2)
    return float(f"{math.floor(hours / unit + ROUNDING) * unit:.6g}")
