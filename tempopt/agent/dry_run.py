"""Trains some steps of a spec before a study begins: two to find what cannot train, more to time them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from tempopt.confirmation.evaluations import evaluations
from tempopt.errors import (
    SpecError,
    StudyFailed,
)
from tempopt.sampling.unit_cube import at_places
from tempopt.seeds import derive
from tempopt.spec.model_sizes import full_size, size_name
from tempopt.spec.proxy import PATH
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import CREDITED
from tempopt.workers.messages import Failed, Finished, RunRequest, Stage, Started, Times
from tempopt.workers.placement import Placement
from tempopt.workers.process import WorkerProcess

Told = Callable[[Stage], None]
"""Hears of each part of a dry run that is over."""


def stage_text(stage: Stage) -> str:
    """Return one line on a part of a dry run, with the time that it took."""
    return f"Dry run: {stage.what} ({stage.seconds:.1f} s)."


def _unheard(stage: Stage) -> None:
    """Do nothing."""


@contextlib.contextmanager
def workers_of(places: Sequence[Placement]) -> Iterator[list[WorkerProcess]]:
    workers = [WorkerProcess(slot=slot, place=place) for slot, place in enumerate(places)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def rehearse(
    spec: StudySpec, worker: WorkerProcess, *, task: Literal["rehearse", "check"], told: Told = _unheard
) -> tuple[StudySpec, Started | None]:
    """Have a worker try what the spec asks, before anything is written; of a comparison each of its sets.

    Of compared values each is tried, with the last of all others; of a study with proxies these go first.

    Args:
        spec: The spec.
        worker: Who tries it.
        task: Whether to train, or to check classes and arguments alone.
        told: Called with each part of it, once that is over.

    Returns:
        The spec with the named temperatures that its module has and the sizes of its proxies, and how the
        training began; None if it was not to train.

    Raises:
        SpecError: It cannot be carried out.
        StudyFailed: The worker died over it.
    """
    proxies = [_tried_proxy(spec, size, worker, task, told) for size in range(full_size(spec))]
    started, finished = _checked(spec, worker, task, told, sizes=bool(proxies))
    for proxy in proxies:
        proxy.refuse_others(finished)
    unlearned = [each.finished.not_learned for each in proxies if each.finished.not_learned]
    found = spec.with_found(
        finished.found,
        not_learned=finished.not_learned or next(iter(unlearned), None),
        evaluated=finished.evaluated,
        trained=finished.trained,
        sizes=_sizes([*proxies, _TriedSize(PATH, started, finished)]) if proxies else {},
    )
    if started is not None:
        _refuse_unknown_size(found)
        _refuse_larger(found)
    return found, started


@dataclasses.dataclass(frozen=True, slots=True)
class _TriedSize:
    """What trying one size of a study has found."""

    path: str
    started: Started | None
    finished: Finished

    def refuse_others(self, finished: Finished) -> None:
        """Refuse a proxy that is not compared with the same temperatures as the model at full size.

        Raises:
            SpecError: A named temperature is another as found.
        """
        for name, at_full in finished.found.items():
            small = self.finished.found.get(name, at_full)
            if not math.isclose(small, at_full, rel_tol=1e-6):
                raise SpecError(
                    f"temperatures.{name}: the proxy ({self.path}) has {small:.6g} as found, and the model "
                    f"at full size {at_full:.6g}, but both have one baseline. Have both begin at the same, "
                    f"or give it, as in {name}: {{..., as_found: {at_full:.6g}}}."
                )


def _sizes(tried: Sequence[_TriedSize]) -> dict[str, list[int]]:
    """Return what is known of each size, by name, where it is known of all of them."""
    found: dict[str, list[int | None]] = {
        "steps": [None if each.started is None else each.started.total_steps for each in tried],
        "parameters": [each.finished.parameters for each in tried],
        "head_dim": [each.finished.head_dim for each in tried],
    }
    return {
        name: [size for size in sizes if size is not None]
        for name, sizes in found.items()
        if all(size is not None for size in sizes)
    }


def _tried_proxy(
    spec: StudySpec, size: int, worker: WorkerProcess, task: Literal["rehearse", "check"], told: Told
) -> _TriedSize:
    assert spec.study.proxy is not None
    number = f"proxy {size + 1}" if full_size(spec) > 1 else "proxy"
    path = spec.study.proxy.path_of(size)

    def named(stage: Stage) -> None:
        told(dataclasses.replace(stage, what=f"{number}: {stage.what}"))

    try:
        return _TriedSize(path, *_checked(spec.at_size(size), worker, task, named, sizes=True))
    except SpecError as error:
        raise SpecError(f"The proxy ({path}): {error}") from error


def _refuse_unknown_size(spec: StudySpec) -> None:
    """Refuse a study whose rule of τ needs a size that the dry run could not find."""
    proxy = spec.study.proxy
    if proxy is not None and proxy.shifts is None:
        raise SpecError(
            "study.proxy.temperature is head_dim, but the dry run could not see one dimension of all heads: "
            "layers differ in it, or their attention cannot be looked at from outside. Give it for "
            "each proxy and at full size, as in head_dim: [8, 32]."
        )


def _refuse_larger(spec: StudySpec) -> None:
    """Refuse a proxy that has more steps or parameters than the size after it, and not less of the other."""
    proxy = spec.study.proxy
    if proxy is None or proxy.steps is None or proxy.parameters is None:
        return
    known = list(zip(proxy.steps, proxy.parameters, strict=True))
    for size, (small, large) in enumerate(itertools.pairwise(known)):
        if small != large and all(one >= other for one, other in zip(small, large, strict=True)):
            raise SpecError(
                f"{proxy.path_of(size)}: a run has {small[0]} steps and {small[1]:,} parameters, and at "
                f"{size_name(spec, size + 1)} {large[0]} and {large[1]:,}: it is no smaller training. "
                "Give smaller values."
            )


_CHECKED: dict[str, StudySpec] = {}
_MOST_CHECKED = 256


def checked(spec: StudySpec, worker: WorkerProcess, *, again: bool = True) -> StudySpec:
    """Have a worker check classes and arguments, and return the spec as :func:`rehearse` does.

    Args:
        again: Whether to check what this process has checked before; False: an agent that serves one study
            after another on the same machine finds the same.

    Raises:
        SpecError: The spec cannot be carried out.
        StudyFailed: The worker died over it.
    """
    specs = [spec, *(each.spec for each in spec.amendments)]
    key = json.dumps([dataclasses.asdict(worker.place), *(each.to_json() for each in specs)], sort_keys=True)
    if again or key not in _CHECKED:
        _CHECKED[key] = rehearse(spec, worker, task="check")[0]
        while len(_CHECKED) > _MOST_CHECKED:
            del _CHECKED[next(iter(_CHECKED))]
    found = _CHECKED[key]
    # the weights that a study starts from may lie elsewhere than those of an equal one
    return found if spec.start_at is None else found.starting_at(spec.start_at)


def class_faults(request: RunRequest) -> str | None:
    """Return what a worker finds wrong when it checks classes and arguments alone, a line for each fault.

    None if it finds nothing, or dies over it.
    """
    with workers_of([Placement()]) as workers:
        workers[0].send(request)
        while (message := workers[0].receive()) is not None:
            if isinstance(message, Failed):
                return message.message if message.kind == "usage" else None
            if isinstance(message, Finished):
                return None
    return None


def defaults(spec: StudySpec, worker: WorkerProcess) -> dict[str, Any]:
    """Check a spec, and return by searched name the value that the argument has where nobody sets it.

    Temperature parameters, and arguments whose default is no plain data, are left out.

    Raises:
        SpecError: The spec cannot be carried out.
        StudyFailed: The worker died over it.
    """
    return _checked(spec, worker, "check")[1].defaults


def timed(spec: StudySpec, worker: WorkerProcess) -> Times:
    """Have a worker measure what the parts of a run take, with the parameters in the middle of the space.

    Raises:
        SpecError: The spec cannot be carried out.
        StudyFailed: The worker died over it.
    """
    space = spec.space()
    sampled = at_places(space, [0.5] * len(space))
    _, finished = _tried(spec, worker, task="time", space={}, sampled=sampled)
    assert finished.times is not None, "a worker has measured nothing"
    return finished.times


def timed_sizes(spec: StudySpec, worker: WorkerProcess) -> list[Times]:
    """Return the same of each size of a study, the smallest first (:mod:`tempopt.spec.model_sizes`)."""
    return [timed(spec.at_size(size), worker) for size in range(full_size(spec) + 1)]


def _checked(
    spec: StudySpec,
    worker: WorkerProcess,
    task: Literal["rehearse", "check"],
    told: Told = _unheard,
    *,
    sizes: bool = False,
) -> tuple[Started | None, Finished]:
    if spec.compare is None:
        space = {name: list(domain.probes) for name, domain in spec.search.items()}
        sampled = {name: values[-1] for name, values in space.items()}
        first = _tried(spec, worker, task=task, space=space, sampled=sampled, told=told, sizes=sizes)
        if task == "rehearse":
            _try_values(spec, worker, sampled)
        return first
    names = dict.fromkeys(name for each in spec.compare for name in each.parameters)
    space = {
        name: [each.parameters[name] for each in spec.compare if name in each.parameters] for name in names
    }
    found = _tried(spec, worker, task="check", space=space, sampled=spec.compare[0].parameters)
    for each in spec.compare if task == "rehearse" else ():
        try:
            found = _tried(spec, worker, task=task, space={}, sampled=each.parameters, told=told)
        except SpecError as error:
            raise SpecError(f"Parameter set {each.name}: {error}") from error
    return found


def _try_values(spec: StudySpec, worker: WorkerProcess, sampled: Mapping[str, Any]) -> None:
    """Have a worker try the compared values but the one that it has tried, which is in ``sampled``."""
    for each in spec.compared_values:
        if sampled[each.parameter] == each.value:
            continue
        try:
            _tried(spec, worker, task="rehearse", space={}, sampled={**sampled, **each.sampled})
        except SpecError as error:
            raise SpecError(f"With {each.name}: {error}") from error


def _tried(
    spec: StudySpec,
    worker: WorkerProcess,
    *,
    task: Literal["rehearse", "check", "time"],
    space: dict[str, list[Any]],
    sampled: Mapping[str, Any],
    told: Told = _unheard,
    sizes: bool = False,
) -> tuple[Started | None, Finished]:
    """Have a worker check all values of a space, and try one parameter set."""
    parameters = spec.parameters("search", sampled)
    # of a trained model the time of one evaluation is asked, and nearly all are on the validation data
    measured = evaluations("confirm", (), spec, {}, {}) if spec.confirms or task != "time" else []
    bakes = task != "time" and spec.bakes
    worker.send(
        RunRequest(
            ticket=0,
            attempt=0,
            program=spec.program(),
            parameters=parameters,
            seed=derive(spec.study.seed, task),
            evaluations=measured,
            bake={n: v for n, v in parameters.items() if n in CREDITED} if bakes else None,
            task=task,
            learns=spec.study.learned if task == "rehearse" and spec.learns else False,
            space=space,
            sizes=sizes,
        )
    )
    started: Started | None = None
    while (message := worker.receive()) is not None:
        if isinstance(message, Failed):
            raise SpecError(_explained(message, _called(spec)))
        if isinstance(message, Started):
            started = message
        if isinstance(message, Stage):
            told(message)
        if isinstance(message, Finished):
            return started, message
    raise StudyFailed(f"The {_called(spec)} crashed: {worker.obituary()}.")


def _called(spec: StudySpec) -> str:
    return "dry run of two steps" if spec.confirms else "evaluation of one batch"


def _explained(failure: Failed, called: str) -> str:
    if failure.kind == "usage":
        return failure.message
    places = [line.strip() for line in failure.traceback.splitlines() if line.lstrip().startswith("File ")]
    # the person's own line, not that of the library it ends in
    own = [
        place for place in places if "site-packages" not in place and f"{os.sep}tempopt{os.sep}" not in place
    ]
    return "\n".join([f"The {called} ended in {failure.message}", *(own or places)[-1:]])
