"""Splits the budget of a study that is begun, and says how; measures what a run costs if nobody states it."""

from __future__ import annotations

from tempopt.agent.dry_run import timed_sizes
from tempopt.forecast.prices import costs_given, price, proxies_text
from tempopt.forecast.runs import Forecast
from tempopt.forecast.split import divided, is_open
from tempopt.spec.budget import with_numbers
from tempopt.spec.study_spec import StudySpec
from tempopt.workers.process import WorkerProcess


def split_here(spec: StudySpec, worker: WorkerProcess) -> StudySpec:
    """Return a spec with what its budget decides, at the price that is stated or else measured here.

    Raises:
        SpecError: The budget is too small (:func:`divided`), or no run can be timed.
        StudyFailed: The worker died over it.
    """
    if is_open(spec) and costs_given(spec) is None:
        spec = _priced(spec, worker)
    return divided(spec)


def _priced(spec: StudySpec, worker: WorkerProcess) -> StudySpec:
    *proxies, times = timed_sizes(spec, worker)
    found = Forecast(spec, studies=2).costs_of(times, proxies)
    costs = price(spec, found, worker.place.cards)
    return with_numbers(spec, {}, run=costs.full, proxy=costs.proxies)


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
        chosen += "" if raced == 1 and not several else f"{raced} of them compared at {where}, "
    return (
        f"{limits.gpu_hours:g} GPU-hours at {cost} are split so: {study.trials} trials, {chosen}"
        f"{study.seeds.confirm.max} confirming pairs{without}."
    )
