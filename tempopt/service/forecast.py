"""Forecast the runs and hours of a study, and the gain that it can show, before it is created."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from tempopt.agent.dry_run import measure_run_times, run_dry_run, start_workers
from tempopt.agent.gpu_locks import claim_gpus
from tempopt.agent.machine import Machine, this_machine
from tempopt.agent.placement import Placement, assign_placements, capacity, count_workers
from tempopt.agent.study_creation import load_warm_start_runs
from tempopt.agent.study_lookup import find_study
from tempopt.agent.study_runner import resolve_worker_count, validate_sampler_and_pruner
from tempopt.errors import StoreNotBegun, StudyNotFound, UsageError
from tempopt.report.formatting import baseline_name
from tempopt.spec.custom_schedules import import_schedules
from tempopt.spec.resources import Workers
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.opening import open_store
from tempopt.storage.rows import StudyRow
from tempopt.storage.store import Store
from tempopt.verdict.detectable_gain import (
    CONFIDENCE,
    DetectableEffect,
    NoiseEstimate,
    detectable,
    estimate_noise,
)
from tempopt.verdict.forecast_text import effect_text, format_duration, gain_text
from tempopt.verdict.planned_runs import PlannedRuns, Span, planned_runs

_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """Duration and GPUs of one run.

    Args:
        seconds: Seconds of a complete run; None: not known.
        gpus: GPUs of a run, a share of a GPU counting as that share; None: not known.
        workers: Number of concurrent runs.
        text: A sentence on the source of the numbers.
    """

    seconds: float | None
    gpus: float | None
    workers: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyForecast:
    """The result of :func:`tempopt.plan`.

    Args:
        name: Name of the study.
        metric: Name of the validation metric.
        baseline: Reference of the gain, as in ``τ = 1``.
        runs: Number of runs to the first verdict.
        run: Duration and GPUs of one run.
        detectable: The smallest effect that the confirmation can show.
        noise: Estimate of the noise of a pair's difference from earlier runs; None if there are none.
        noise_study: The study of these runs.
        limited: Limits of the spec that may end the search earlier.
    """

    name: str
    metric: str
    baseline: str
    runs: PlannedRuns
    run: RunTime
    detectable: DetectableEffect
    noise: NoiseEstimate | None
    noise_study: str | None
    limited: tuple[str, ...]

    @property
    def smallest_gain(self) -> tuple[float, float] | None:
        """Range of the smallest gain that can be shown, in units of the metric; None: not known yet."""
        return None if self.noise is None else self.detectable.range(self.noise)

    @property
    def power_text(self) -> str:
        """A sentence on the gain that can be shown."""
        if self.noise is None:
            return f"{self.detectable.pairs} pairs show {effect_text(self.detectable)} with 80 % power."
        text = gain_text(self.detectable, self.noise, self.metric, self.baseline)
        return f"{text[0].upper()}{text[1:]} of {self.noise_study}."

    def hours(self, runs: Span) -> Span | None:
        """Return the hours of runs with the workers of the forecast; None: not known."""
        return None if self.run.seconds is None else runs.times(self.run.seconds / _HOUR / self.run.workers)

    def gpu_hours(self, runs: Span) -> Span | None:
        """Return the GPU hours of runs, without a GPU their training hours; None: not known."""
        if self.run.seconds is None or self.run.gpus is None:
            return None
        return runs.times(self.run.seconds / _HOUR * (self.run.gpus or 1.0))

    @property
    def max_gpu_hours(self) -> float | None:
        """Maximal GPU hours, without a GPU training hours, as ``study.limits`` counts them."""
        totals = [self.gpu_hours(self.runs.total(gain=gain)) for gain in (False, True)]
        return max((total.max for total in totals if total is not None), default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the documented data of ``tempopt plan --json``."""
        totals = {"no_gain": self.runs.total(gain=False), "gain": self.runs.total(gain=True)}
        by_kind = {"no_gain": self.runs.no_gain, "gain": self.runs.gain}
        hours = {name: self.hours(span) for name, span in totals.items()}
        gpu_hours = {name: self.gpu_hours(span) for name, span in totals.items()}
        return {
            "study": self.name,
            "metric": self.metric,
            "runs": {name: asdict(span) for name, span in totals.items()},
            "by_kind": {
                name: {kind: asdict(span) for kind, span in spans.items()} for name, spans in by_kind.items()
            },
            "run_seconds": self.run.seconds,
            "rests_on": self.run.text,
            "workers": self.run.workers,
            "gpus": self.run.gpus,
            "hours": {name: span and asdict(span) for name, span in hours.items()},
            "gpu_hours": {name: span and asdict(span) for name, span in gpu_hours.items()},
            "limits": list(self.limited),
            "power": self._power_json(),
            "power_text": self.power_text,
        }

    def _power_json(self) -> dict[str, Any]:
        gain, noise = self.smallest_gain, self.noise
        return {
            **asdict(self.detectable),
            "effect_between_seeds": list(self.detectable.in_seeds),
            "confidence": CONFIDENCE,
            "gain": None if gain is None else list(gain),
            "from": None if noise is None else {"study": self.noise_study, **asdict(noise)},
        }


def forecast_study(
    spec: StudySpec,
    *,
    storage: str,
    workers: Workers | None = None,
    earlier: str | None = None,
    run_hours: float | None = None,
    runs_code: bool = True,
) -> StudyForecast:
    """Return the forecast of a study; a dry run measures the time of a run if it is not known otherwise.

    Args:
        spec: The study's spec.
        storage: URL of the database with earlier runs.
        workers: As for :func:`tempopt.search`.
        earlier: Name of a study from whose runs noise and time are estimated; None: this study itself, if it
            exists, or one of ``study.warm_start``.
        run_hours: Hours of one run; None: as measured.
        runs_code: Whether the modules that the spec names are imported, and a dry run is made; otherwise the
            time of a run may not be known.

    Raises:
        SpecError: The spec cannot be trained.
        StudyNotFound: There is no study ``earlier``.
        UsageError: That study has another metric, or too few runs to estimate the noise.
    """
    if runs_code:
        import_schedules(spec)
    validate_sampler_and_pruner(spec)
    num_requested = resolve_worker_count(workers, spec, None)
    noise, noise_study = None, None
    run = _build_run_time(spec, run_hours, num_requested)
    try:
        store = open_store(storage, create=False)
    except StoreNotBegun:
        if earlier is not None or spec.study.warm_start:
            raise
    else:
        with store:
            if earlier is None and find_study(store, spec.study.name) is None:
                # the search would refuse invalid warm-start studies: report that now
                load_warm_start_runs(store, spec)
            rows = list(_iter_sources(spec, store, earlier))
            noise, noise_study = _estimate_noise(rows, store, earlier)
            if run_hours is None:
                times = (_average_run_time(row, store, run.workers) for row in rows)
                run = next((time for time in times if time is not None), run)
    if run.seconds is None and spec.program is None and runs_code:
        run = _measure_run_time(spec, num_requested)
    return StudyForecast(
        name=spec.study.name,
        metric=spec.study.metric,
        baseline=baseline_name(spec),
        runs=planned_runs(spec),
        run=run,
        detectable=detectable(spec),
        noise=noise,
        noise_study=noise_study,
        limited=spec.study.limits.limit_names,
    )


def _estimate_noise(
    rows: Sequence[StudyRow], store: Store, earlier: str | None
) -> tuple[NoiseEstimate | None, str | None]:
    """Return the noise estimate of the first study with enough runs, and its name."""
    for row in rows:
        noise = estimate_noise(store.tickets(row.id), StudySpec.from_json(row.spec))
        if noise is not None:
            return noise, row.name
    if earlier is not None:
        raise UsageError(
            f'The study "{earlier}" has too few complete runs to estimate its noise: three that differ '
            "only in their seed are needed, or two on each of two common seeds. Let it complete more runs, "
            "or leave --earlier out."
        )
    return None, None


def _iter_sources(spec: StudySpec, store: Store, earlier: str | None) -> Iterator[StudyRow]:
    """Yield the studies with runs like those of a spec: ``earlier``, or itself and ``warm_start``."""
    for name in [spec.study.name, *spec.study.warm_start] if earlier is None else [earlier]:
        row = find_study(store, name)
        if row is None and earlier is not None:
            raise StudyNotFound(f'There is no study "{earlier}".')
        if row is None:
            continue
        metric = StudySpec.from_json(row.spec).study.metric
        if metric == spec.study.metric:
            yield row
        elif earlier is not None:
            raise UsageError(
                f'The study "{earlier}" has the metric {metric}, and this one {spec.study.metric}, so '
                "its noise does not apply. Give a study with the same metric, or leave --earlier out."
            )


def _build_run_time(spec: StudySpec, run_hours: float | None, workers: int | None) -> RunTime:
    machine = this_machine()
    num_workers, need = spec.resources_here.workers, spec.resource_need(gpus=machine.has_gpus)
    room_here = max(1, min(capacity(need, machine), spec.study.parallel))
    count = workers or (num_workers if isinstance(num_workers, int) else room_here)
    seconds = None if run_hours is None else run_hours * _HOUR
    text = "The time of a run is not known: no run is complete. Give --run-hours."
    if seconds is not None:
        text = f"{format_duration(seconds)} a run, as given."
    return RunTime(seconds=seconds, gpus=need.gpus, workers=count, text=text)


def _average_run_time(row: StudyRow, store: Store, workers: int) -> RunTime | None:
    """Return the mean time of the complete runs of a study; None if there are none."""
    runs = [ticket for ticket in store.tickets(row.id) if ticket.outcome == "complete" and ticket.seconds > 0]
    if not runs:
        return None
    seconds = fmean(run.seconds for run in runs)
    gpus = round(sum(run.gpu_seconds for run in runs) / sum(run.seconds for run in runs), 3)
    text = f"{format_duration(seconds)} a run, the mean of {len(runs)} complete runs of {row.name}."
    return RunTime(seconds=seconds, gpus=gpus, workers=workers, text=text)


def _measure_run_time(spec: StudySpec, num_requested: int | None) -> RunTime:
    """Measure the time of a run on this machine, by a dry run with one worker."""
    machine = this_machine()
    need = spec.resource_need(gpus=machine.has_gpus)
    counts: list[int] = []

    def assign(free: Machine) -> list[Placement]:
        # the requested number may be for another machine: one worker suffices to measure
        num_fitting = count_workers(
            need, free, num_requested=num_requested and 1, max_workers=spec.study.parallel
        )
        counts.append(num_requested or num_fitting)
        return assign_placements(need, 1, free, threads=spec.resources_here.threads)

    with claim_gpus(machine, assign) as places, start_workers(places) as ready:
        spec, started = run_dry_run(spec, ready[0], task="dry_run")
        assert started is not None, "the dry run has not begun to train"
        times = measure_run_times(spec, ready[0])
    validations = times.validations + (times.steps > 0 and not times.ends_validated)
    seconds = times.start + times.steps * times.step + validations * times.validate + times.test
    text = f"{format_duration(seconds)} a run, measured on {started.device}: {times.start:.2g} s to start"
    if times.steps:
        text += (
            f", {times.steps} steps of {1000 * times.step:.3g} ms, {validations} "
            f"validation{'s' * (validations != 1)} of {times.validate:.2g} s"
        )
    return RunTime(seconds=seconds, gpus=places[0].cards or need.gpus, workers=counts[0], text=f"{text}.")
