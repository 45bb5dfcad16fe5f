"""What a run costs in GPU-hours, as a spec states it or as it was measured, and how that is said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tempopt.confirmation.costs import MeanCosts
from tempopt.records.rows import Kind
from tempopt.spec.model_sizes import full_size
from tempopt.spec.study_spec import StudySpec

ROUNDING = 1e-9
"""Share by which a sum of prices may exceed a limit that it is to keep to."""

_HOUR = 3600.0


def costs_given(spec: StudySpec) -> MeanCosts | None:
    """Return the GPU-hours of a run as ``study.limits`` states them; None: not those of all sizes."""
    limits, proxy = spec.study.limits, spec.study.proxy
    full = limits.run_gpu_hours
    if full is None:
        return None
    small: Sequence[float] | None = ()
    if proxy is not None:
        ratios = proxy.cost_ratios
        by_ratio = None if ratios is None else [full * each / ratios[-1] for each in ratios[:-1]]
        small = limits.proxy_prices or by_ratio
    return None if small is None else MeanCosts(sizes=(*small, full), basis="stated")


def price(spec: StudySpec, run_seconds: Mapping[tuple[Kind, int], float], cards: float) -> MeanCosts:
    """Return the GPU-hours of a run, as they are stated, or else as the dearest kind of its size takes them.

    A size that no run is expected to train costs as much as the next larger one, at most.

    Args:
        spec: The study's spec.
        run_seconds: Seconds of a run of each kind, by its size.
        cards: GPUs of a run; 0: none, and its hours of training count.
    """
    limits = spec.study.limits
    found: list[float] = []
    for at in reversed(range(full_size(spec) + 1)):
        known = [each * (cards or 1.0) / _HOUR for (_, size), each in run_seconds.items() if size == at]
        found.insert(0, max(known) if known else found[0])
    full = limits.run_gpu_hours or found[-1]
    small = limits.proxy_prices if limits.proxy_prices and spec.study.proxy is not None else found[:-1]
    return MeanCosts(sizes=(*small, full), basis="stated")


def prices_text(spec: StudySpec, costs: MeanCosts) -> str:
    """Return in words what a run costs."""
    if spec.study.proxy is None:
        return f"{costs.full:.3g} GPU-hours a run"
    return f"{proxies_text(costs, ' GPU-hours')} and {costs.full:.3g} a run at full size"


def proxies_text(costs: MeanCosts, unit: str = "") -> str:
    """Return in words what a run of each proxy costs, the first number with its unit."""
    first, *others = (f"{each:.3g}" for each in costs.proxies)
    if not others:
        return f"{first}{unit} a run of the proxy"
    return f"{', '.join([first + unit, *others])} a run of the proxies, the smallest first,"


def rounded_up(hours: float) -> float:
    """Return hours with three digits, at least as many."""
    unit = 10.0 ** (math.floor(math.log10(hours)) - 2)
    return float(f"{math.ceil(hours / unit - ROUNDING) * unit:.6g}")


def rounded_down(hours: float) -> float:
    """Return hours with three digits, at most as many."""
    unit = 10.0 ** (math.floor(math.log10(hours)) - 2)
    return float(f"{math.floor(hours / unit + ROUNDING) * unit:.6g}")
