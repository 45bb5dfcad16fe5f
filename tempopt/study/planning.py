"""What a study will cost and what it can show, before anything of it is stored."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from tempopt.agent.continuation import find
from tempopt.agent.dry_run import rehearse, timed, workers_of
from tempopt.agent.prior_runs import load_prior_runs
from tempopt.agent.runner import workers_asked
from tempopt.errors import StoreNotBegun, UsageError
from tempopt.forecast.power import CONFIDENCE, Detectable, Known, detectable, known_of
from tempopt.forecast.runs import Forecast, Span
from tempopt.records.rows import Kind
from tempopt.results.wording import baseline_name
from tempopt.spec.resources import Workers
from tempopt.spec.study_spec import StudySpec
from tempopt.store.store import Store
from tempopt.workers.gpu_locks import claimed
from tempopt.workers.machine import Machine, this_machine
from tempopt.workers.messages import Times
from tempopt.workers.placement import Placement, count_workers, deal

_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyForecast:
    """What :func:`tempopt.plan` returns.

    Args:
        name: Name of the study.
        metric: Name of the validation metric.
        baseline: What the gain is over, as in ``τ = 1``.
        runs: Number of runs to the first verdict.
        by_kind: The same of each kind that there may be.
        times: What the parts of a run take, as measured.
        run_seconds: Mean seconds of a run of each kind that is trained to its end.
        workers: Trials side by side.
        gpus: GPUs of a trial; a share of one counts as that share.
        train_seconds: Seconds of training, summed over workers.
        seconds: Seconds to the verdict with so many workers.
        device: What the dry run was on.
        detectable: The smallest gain that the confirmation can show; None: the study confirms nothing.
        known: What earlier runs tell of a pair's difference; None as long as there are none.
        known_from: The study whose runs those are.
        prunes: Whether a pruner may end runs.
        limited: Limits of the spec that may end the search sooner.
    """

    name: str
    metric: str
    baseline: str
    runs: Span
    by_kind: dict[Kind, Span]
    times: Times
    run_seconds: dict[Kind, float]
    workers: int
    gpus: float
    train_seconds: Span
    seconds: Span
    device: str
    detectable: Detectable | None = None
    known: Known | None = None
    known_from: str | None = None
    prunes: bool = False
    limited: tuple[str, ...] = ()

    @property
    def gain(self) -> tuple[float, float] | None:
        """The range of the smallest gain that can be shown, in units of the metric; None: not known yet."""
        if self.detectable is None or self.known is None:
            return None
        return self.detectable.range(self.known)

    @property
    def gpu_hours(self) -> Span | None:
        """Hours of GPUs; None: runs train on none."""
        if not self.gpus:
            return None
        return Span(
            **{
                name: seconds * self.gpus / _HOUR
                for name, seconds in dataclasses.asdict(self.train_seconds).items()
            }
        )

    @property
    def most_gpu_hours(self) -> float:
        """The most hours of GPUs; of runs that train on none, of training: what ``study.limits`` count."""
        return self.train_seconds.most / _HOUR if self.gpu_hours is None else self.gpu_hours.most

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain data; the keys are those of ``tempopt plan --json``."""
        return {
            "study": self.name,
            "metric": self.metric,
            "runs": dataclasses.asdict(self.runs),
            "by_kind": {kind: dataclasses.asdict(span) for kind, span in self.by_kind.items()},
            "workers": self.workers,
            "seconds": dataclasses.asdict(self.seconds),
            "train_seconds": dataclasses.asdict(self.train_seconds),
            "gpu_hours": None if self.gpu_hours is None else dataclasses.asdict(self.gpu_hours),
            "run": {**dataclasses.asdict(self.times), "device": self.device, "seconds": self.run_seconds},
            "limits": list(self.limited),
            "power": self._power_json(),
        }

    def _power_json(self) -> dict[str, Any] | None:
        return None if self.detectable is None else power_json(self.detectable, self.known, self.known_from)


def power_json(able: Detectable, known: Known | None, known_from: str | None) -> dict[str, Any]:
    """Return the smallest gain that can be shown as plain data.

    Args:
        able: What can be shown, in standard deviations.
        known: What earlier runs tell of these; None: nothing.
        known_from: The study whose runs those are.
    """
    return {
        **dataclasses.asdict(able),
        "effect_between_seeds": list(able.in_seeds),
        "confidence": CONFIDENCE,
        "gain": None if known is None else list(able.range(known)),
        "from": None if known is None else {"study": known_from, **dataclasses.asdict(known)},
    }


def forecast(
    spec: StudySpec, *, storage: str, workers: Workers | None = None, earlier: str | None = None
) -> StudyForecast:
    """Return what a study takes and what it can show; nothing is written.

    Args:
        spec: Its spec, whose schedules have been imported.
        storage: URL of the database that earlier runs are looked up in.
        workers: As for :func:`tempopt.search`.
        earlier: Name of a study whose runs tell of the noise; None: this study itself, if the database has
            begun it, or one of ``study.warm_start``.

    Raises:
        SpecError: The spec cannot be carried out.
        StudyNotFound: There is no study ``earlier``.
        UsageError: That study measures something else, or too few of its runs tell of the noise.
    """
    asked = workers_asked(workers, spec)
    known, known_from = _known(spec, storage, earlier)
    machine = this_machine()
    need = spec.need(gpus=machine.has_gpus)
    counts: list[int] = []

    def dealt(free: Machine) -> list[Placement]:
        # so many workers may be meant for another machine: one is enough to measure
        fitting = count_workers(need, free, asked=asked and 1, most=spec.study.parallel)
        counts.append(asked or fitting)
        return deal(need, 1, free, threads=spec.resources_here.threads)

    with claimed(machine, dealt) as places, workers_of(places) as ready:
        spec, started = rehearse(spec, ready[0], task="rehearse")
        assert started is not None, "a dry run that was begun nowhere"
        times = timed(spec, ready[0])
    cards = places[0].cards or need.gpus
    runs = Forecast(spec)
    (count,) = counts
    return StudyForecast(
        name=spec.study.name,
        metric=spec.study.metric,
        baseline=baseline_name(spec),
        runs=runs.runs(),
        by_kind=runs.by_kind,
        times=times,
        run_seconds=runs.costs_of(times),
        workers=count,
        gpus=cards,
        train_seconds=runs.seconds(times),
        seconds=runs.elapsed(times, count),
        device=started.device,
        detectable=detectable(spec),
        known=known,
        known_from=known_from,
        prunes=runs.prunes(times),
        limited=spec.study.limits.ends,
    )


def _known(spec: StudySpec, storage: str, earlier: str | None) -> tuple[Known | None, str | None]:
    """Return what the runs of another study, or of this one, tell of the noise, and which study that is."""
    try:
        store = Store.open(storage, create=False)
    except StoreNotBegun:
        if earlier is not None or spec.study.warm_start:
            raise
        return None, None
    with store:
        if earlier is not None:
            return _of_earlier(store, spec, earlier), earlier
        if (study := find(store, spec.study.name)) is None:
            # search would refuse what cannot be learned from; better seen now
            load_prior_runs(store, spec)
        names = [spec.study.name] if study is not None else []
        for name in [*names, *spec.study.warm_start]:
            row = find(store, name)
            if row is None:
                continue
            of = StudySpec.from_json(row.spec)
            same = of.study.metric == spec.study.metric
            if same and (known := known_of(store.tickets(row.id), of)) is not None:
                return known, name
    return None, None


def _of_earlier(store: Store, spec: StudySpec, earlier: str) -> Known:
    row = store.load_study(earlier)
    of = StudySpec.from_json(row.spec)
    if of.study.metric != spec.study.metric:
        raise UsageError(
            f'The study "{earlier}" measures {of.study.metric}, and this one {spec.study.metric}: its noise '
            "says nothing of this one's. Give a study with the same metric, or leave --earlier out."
        )
    known = known_of(store.tickets(row.id), of)
    if known is None:
        raise UsageError(
            f'The study "{earlier}" has too few complete runs to tell its noise: it takes three that differ '
            "in nothing but their seed, or two on each of two common seeds. Let it come further, or leave "
            "--earlier out."
        )
    return known
