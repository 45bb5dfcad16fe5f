"""What a study will cost, told before it begins by somebody who cannot train a step of it: a server.

What a run takes is given by a person, or follows from runs of an earlier study of the same model; what the
price rests on is told with it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from tempopt.forecast.power import Known, detectable, known_of
from tempopt.forecast.runs import Forecast, Span
from tempopt.forecast.words import effect_text, gain_text, lasting
from tempopt.records.rows import Kind, StudyRow, TicketRow
from tempopt.results.wording import baseline_name
from tempopt.spec.resources import Workers
from tempopt.spec.study_spec import StudySpec
from tempopt.store.store import Store
from tempopt.study.planning import power_json
from tempopt.workers.messages import Times

MOST_TRIALS = 500
"""Search trials of a study that is priced at the most: drawing the stages of a larger one takes long."""
# Studies whose runs are looked at for what one takes.
_LOOKED_AT = 5
_HOUR = 3600.0

Basis = Literal["given", "study", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestsOn:
    """What the time of a run was taken from.

    Args:
        kind: ``given``: by whoever asks; ``study``: runs of an earlier study; ``nothing``: it is not known.
        study: Name of that study.
        runs: How many of its runs were complete and counted.
        device: What those trained on, for people.
        text: The same in a sentence.
    """

    kind: Basis
    text: str
    study: str | None = None
    runs: int = 0
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a study costs to its first verdict.

    Args:
        name: Name of the study.
        metric: Name of the validation metric.
        runs: Number of runs.
        by_kind: The same of each kind that there may be, in the order of the stages.
        run_seconds: Seconds of a run that is trained to its end; None: not known.
        workers: Runs side by side.
        gpus: GPUs of one run; None: whether it trains on any is not known.
        train_seconds: Seconds of training, summed over runs; None: not known.
        seconds: Seconds to the verdict with so many workers; None: not known.
        power: What can be shown, as in ``tempopt plan --json``; None: the study confirms nothing.
        power_text: The same in a sentence.
        limited: Limits of the spec that may end the search sooner.
        rests_on: What the time of a run was taken from.
    """

    name: str
    metric: str
    runs: Span
    by_kind: dict[Kind, Span]
    run_seconds: float | None
    workers: int
    gpus: float | None
    train_seconds: Span | None
    seconds: Span | None
    power: dict[str, Any] | None
    power_text: str | None
    limited: tuple[str, ...]
    rests_on: RestsOn

    @property
    def gpu_hours(self) -> Span | None:
        """Hours of GPUs; None: not known, or runs train on none."""
        if not self.gpus or self.train_seconds is None:
            return None
        spans = dataclasses.asdict(self.train_seconds)
        return Span(**{name: seconds * self.gpus / _HOUR for name, seconds in spans.items()})

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain data; keys that ``tempopt plan --json`` has, too, mean the same."""
        return {
            "study": self.name,
            "metric": self.metric,
            "runs": dataclasses.asdict(self.runs),
            "by_kind": {kind: dataclasses.asdict(span) for kind, span in self.by_kind.items()},
            "workers": self.workers,
            "gpus": self.gpus,
            "run_seconds": self.run_seconds,
            "seconds": _plain(self.seconds),
            "train_seconds": _plain(self.train_seconds),
            "gpu_hours": _plain(self.gpu_hours),
            "limits": list(self.limited),
            "power": self.power,
            "power_text": self.power_text,
            "rests_on": dataclasses.asdict(self.rests_on),
        }


def _plain(span: Span | None) -> dict[str, float] | None:
    return None if span is None else dataclasses.asdict(span)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What runs of an earlier study tell."""

    study: str
    times: Times
    runs: int
    gpus: float
    device: str | None
    scaled: bool


def price(
    spec: StudySpec,
    store: Store,
    *,
    may_see: Callable[[str], bool],
    seconds_per_run: float | None = None,
    workers: Workers | None = None,
    has_gpus: bool | None = None,
) -> Price:
    """Return what a study costs and what gain it can show; nothing is trained and nothing written.

    Args:
        spec: Its spec, of at most :data:`MOST_TRIALS` search trials.
        store: Where earlier studies are looked up.
        may_see: Whether whoever asks may see a study of this name; no other one is looked at.
        seconds_per_run: Seconds of a run that is trained to its end; None: as in an earlier study.
        workers: Runs side by side; None: as the spec says, else one.
        has_gpus: Whether there are GPUs where it will be trained; None: not known.
    """
    earlier = list(_earlier(spec, store, may_see))
    measured = None
    if seconds_per_run is None:
        measured = next((found for row in earlier if (found := _measured(spec, row, store))), None)
    times, rests_on = _times(spec, seconds_per_run, measured)
    runs = _drawn(json.dumps(spec.to_json(), sort_keys=True))
    side_by_side = workers if isinstance(workers, int) else _workers(spec)
    known, known_from = _known(spec, earlier, store)
    able = detectable(spec)
    text = None
    if able is not None:
        text = f"{able.pairs} pairs show {effect_text(able)} with 80 % power."
        if known is not None:
            told = gain_text(able, known, spec.study.metric, baseline_name(spec))
            text = f"{told[0].upper()}{told[1:]} of {known_from}."
    return Price(
        name=spec.study.name,
        metric=spec.study.metric,
        runs=runs.runs(),
        by_kind=runs.by_kind,
        run_seconds=None if times is None else times.start + times.steps * times.step,
        workers=side_by_side,
        gpus=_gpus(spec, measured, has_gpus),
        train_seconds=None if times is None else runs.seconds(times),
        seconds=None if times is None else runs.elapsed(times, side_by_side),
        power=None if able is None else power_json(able, known, known_from),
        power_text=text,
        limited=spec.study.limits.ends,
        rests_on=rests_on,
    )


@functools.lru_cache(maxsize=8)
def _drawn(spec: str) -> Forecast:
    """Return the forecast of a spec, as JSON: whoever mends a spec asks for its price again and again."""
    return Forecast(StudySpec.from_json(json.loads(spec)))


def _workers(spec: StudySpec) -> int:
    asked = spec.resources_here.workers
    return asked if isinstance(asked, int) else 1


def _gpus(spec: StudySpec, measured: _Measured | None, has_gpus: bool | None) -> float | None:
    """Return the GPUs of one run, None if it is not known whether it trains on any."""
    if not spec.need(gpus=True).gpus:
        return 0.0
    if spec.resources_here.gpus is None and measured is not None:
        return measured.gpus
    if spec.resources_here.gpus is None and has_gpus is None:
        return None
    return spec.need(gpus=bool(has_gpus)).gpus


# ---- what a run takes


def _times(spec: StudySpec, given: float | None, measured: _Measured | None) -> tuple[Times | None, RestsOn]:
    if given is not None:
        text = f"{lasting(given)} a run, as given."
        return _given_times(spec, given), RestsOn(kind="given", text=text)
    if measured is None:
        text = (
            "How long a run takes is not known: there is no earlier study of this model whose runs are "
            "complete. Give the seconds of one run; tempopt plan measures them where the model is."
        )
        return None, RestsOn(kind="nothing", text=text)
    seconds = measured.times.start + measured.times.steps * measured.times.step
    text = (
        f"{lasting(seconds)} a run, from {measured.runs} complete runs of the study {measured.study}"
        f"{f' on {measured.device}' if measured.device else ''}"
        f"{', by the number of steps' if measured.scaled else ''}."
    )
    rests_on = RestsOn(
        kind="study", study=measured.study, runs=measured.runs, device=measured.device, text=text
    )
    return measured.times, rests_on


def _given_times(spec: StudySpec, seconds: float) -> Times:
    """Return what the parts of a run take, given all of it; validations count where the spec tells them."""
    steps, every = _count(spec.trainer.get("max_steps")), _count(spec.trainer.get("val_check_interval"))
    if steps is None:
        return Times(start=seconds)
    validations = 0 if every is None else steps // every
    return Times(
        start=0.0,
        step=seconds / steps,
        steps=steps,
        validations=validations,
        ends_validated=validations > 0 and validations * (every or 0) == steps,
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _earlier(spec: StudySpec, store: Store, may_see: Callable[[str], bool]) -> Iterator[StudyRow]:
    """Yield studies of the same model, what tells most of this one first: itself, then the newest."""
    rows = [
        each.study
        for each in store.list_studies()
        if may_see(each.study.name) and _of_model(each.study) == spec.model["class_path"]
    ]
    named = (spec.study.name, *spec.study.warm_start)

    def rank(row: StudyRow) -> tuple[int, bool, int]:
        place = named.index(row.name) if row.name in named else len(named)
        return place, row.spec.get("model") != spec.model, -row.id

    yield from sorted(rows, key=rank)[:_LOOKED_AT]


def _of_model(row: StudyRow) -> object:
    model = row.spec.get("model")
    return model.get("class_path") if isinstance(model, dict) else None


def _measured(spec: StudySpec, row: StudyRow, store: Store) -> _Measured | None:
    """Return what the complete runs of a study tell of a run of another; None: too little."""
    of = StudySpec.from_json(row.spec)
    whole = [
        each
        for each in store.tickets(row.id)
        if each.outcome == "complete" and each.kind != "timing" and each.seconds > 0
    ]
    if not whole:
        return None
    times = _measured_times(spec, of, whole, store)
    if times is None:
        return None
    return _Measured(
        study=row.name,
        times=times,
        runs=len(whole),
        gpus=round(sum(each.gpu_seconds for each in whole) / sum(each.seconds for each in whole), 3),
        device=whole[-1].device,
        scaled=times.steps != whole[-1].total_steps,
    )


def _measured_times(spec: StudySpec, of: StudySpec, whole: Sequence[TicketRow], store: Store) -> Times | None:
    newest = whole[-1]
    steps = _steps(spec, of, newest)
    if steps is None:
        return None
    reported = [each.step for each in store.measurements(newest.study_id, [newest.id], ["report"])]
    return Times(
        start=0.0,
        step=median(each.seconds / each.total_steps for each in whole if each.total_steps),
        steps=steps,
        validations=len(reported),
        ends_validated=bool(reported) and reported[-1] == newest.total_steps,
    )


def _steps(spec: StudySpec, of: StudySpec, run: TicketRow) -> int | None:
    """Return the steps of a run of a study, given a run of another; None: it is not known."""
    asked, total = _count(spec.trainer.get("max_steps")), run.total_steps
    if not total or asked is not None:
        return asked if total else None
    epochs, before = (_count(each.trainer.get("max_epochs")) for each in (spec, of))
    alike = ("limit_train_batches", "accumulate_grad_batches")
    same = spec.data == of.data and all(spec.trainer.get(name) == of.trainer.get(name) for name in alike)
    if not same or epochs is None or before is None or _count(of.trainer.get("max_steps")) is not None:
        return None
    return round(total * epochs / before)


def _known(spec: StudySpec, earlier: Sequence[StudyRow], store: Store) -> tuple[Known | None, str | None]:
    """Return what the runs of an earlier study tell of the noise, and which study that is."""
    for row in earlier:
        of = StudySpec.from_json(row.spec)
        if of.study.metric != spec.study.metric:
            continue
        if (known := known_of(store.tickets(row.id), of)) is not None:
            return known, row.name
    return None, None
