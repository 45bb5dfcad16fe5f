"""Splits the budget of a study that is begun, and says how; measures what a run costs if nobody states it."""

from __future__ import annotations

from tempopt.agent.dry_run import timed
from tempopt.forecast.prices import costs_given, price
from tempopt.forecast.runs import Forecast
from tempopt.forecast.split import divided, is_open
from tempopt.records.rows import AT_PROXY
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
    times = timed(spec, worker)
    small = times if spec.study.proxy is None else timed(spec.at_proxy(), worker)
    runs = Forecast(spec, studies=2)
    found = {kind: runs.cost_of(kind, small if kind in AT_PROXY else times) for kind in runs.by_kind}
    costs = price(spec, {kind: each for kind, each in found.items() if each is not None}, worker.place.cards)
    proxy = None if spec.study.proxy is None else costs.proxy
    return with_numbers(spec, {}, run=costs.full, proxy=proxy)
