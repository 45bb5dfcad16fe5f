"""Splits the budget of a study that is begun, and says how; measures what a run costs if nobody states it."""

from __future__ import annotations

from tempopt.agent.dry_run import timed_sizes
from tempopt.forecast.prices import costs_given, price
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
