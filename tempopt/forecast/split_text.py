"""How a budget is split, in words: what it has decided for a study, and what half and twice as much would."""

from __future__ import annotations

from collections.abc import Iterator

from tempopt.forecast.power import Known
from tempopt.forecast.prices import costs_given, proxies_text
from tempopt.forecast.split import Splits, is_open
from tempopt.forecast.words import percent
from tempopt.forecast.worth import AGREEMENT
from tempopt.spec.study_spec import StudySpec


def split_text(spec: StudySpec) -> str | None:
    """Return in words what a budget decided, or why nothing; None: there is nothing to decide."""
    if not is_open(spec):
        return None
    study, limits = spec.study, spec.study.limits
    left = ", ".join(f"study.{name}" for name in limits.split or ())
    costs = costs_given(spec)
    if costs is None:
        prices = "study.limits.run_gpu_hours" + (" and proxy_gpu_hours" if study.proxy is not None else "")
        return (
            f"study.limits.gpu_hours ({limits.gpu_hours:g}) was not split, since nobody has said what a run "
            f"costs: {left} have their defaults, and the search ends in time for the proof. To split it, "
            f"give {prices}, which tempopt plan measures."
        )
    cost = f"{limits.run_gpu_hours:.3g} a run"
    if limits.proxy_prices is not None:
        cost = f"{proxies_text(costs)} and {costs.full:.3g} at full size"
    asked = [
        name for name in ("init_only", "learned", "ablation") if getattr(study, name) not in (False, "none")
    ]
    without = "" if asked else "; without init_only, learned and ablation, which no verdict needs"
    candidates = "1 candidate" if study.candidates == 1 else f"{study.candidates} candidates"
    chosen = f"{candidates} chosen on {study.seeds.choose} seeds, "
    if study.proxy is not None:
        raced, several = study.proxy.finalists, len(study.proxy.sets) > 1
        where = "each larger size" if several else "full size"
        moved = ", the first with other shifts of ln τ, too" if study.proxy.is_unmeasured else ""
        chosen += f"{raced} of them compared at {where}{moved}, " if study.proxy.races else ""
    return (
        f"{limits.gpu_hours:g} GPU-hours at {cost} are split so: {study.trials} trials, {chosen}"
        f"{study.seeds.confirm.max} confirming pairs{without}."
    )


def split_lines(splits: Splits, known: Known | None, metric: str) -> Iterator[str]:
    """Yield how the budget is split, and what a larger one would be for.

    Args:
        splits: The budget's.
        known: The runs that tell of the noise; None: nothing is known of it.
        metric: Name of the metric.
    """
    chosen, costs = splits.chosen, splits.costs
    each = f"{costs.full:.3g} a run"
    if costs.proxies:
        each = f"{proxies_text(costs)} and {costs.full:.3g} at full size"
    yield (
        f"Budget: {splits.gpu_hours:g} GPU-hours, {each}: at most {chosen.search:.3g} to search, "
        f"{chosen.choose:.3g} to choose and {chosen.proof:.3g} to prove. The search ends sooner if runs cost "
        "more."
    )
    if costs.proxies:
        several = len(costs.proxies) > 1
        which = "the smallest proxy" if several else "the proxy"
        between = "Finalists are compared at the sizes in between, beside τ = 1. " if several else ""
        yield (
            f"{between}Two finalists or more are compared at full size, beside τ = 1; one is confirmed "
            "at once, unless a shift of ln τ is measured. It is assumed that gains on "
            f"{which} and at full size have a correlation of {AGREEMENT:g}"
            f"{', and that each size in between tells its share' if several else ''}."
        )
    if not chosen.asks:
        yield (
            "It is spent on the verdict alone: init_only, learned and ablation are left out unless the spec "
            "asks for them."
        )
    if splits.half is None:
        yield f"Half of it proves nothing: that takes {splits.least:g} GPU-hours at least."
    yield (
        "Gains are counted in "
        + ("standard deviations of a pair's difference (sd)" if known is None else metric)
        + ". The expected one is the winner's, where there is anything from nothing to a clear gain to find. "
        f"With twice as much the winner's gain is expected to be {splits.twice.gain / chosen.gain:.2g} times "
        f"this one's, and is shown with a chance of {percent(splits.twice.shown)} in place of "
        f"{percent(chosen.shown)}."
    )
