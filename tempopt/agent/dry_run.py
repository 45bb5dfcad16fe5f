"""Trains some steps of a spec before a study begins: two to find what cannot train, more to time them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from tempopt.confirmation.evaluations import evaluations
from tempopt.errors import (
    SpecError,
    StudyFailed,
)
from tempopt.sampling.unit_cube import at_places
from tempopt.seeds import derive
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import TEMPERATURE_PARAMETERS
from tempopt.workers.messages import Failed, Finished, RunRequest, Started, Times
from tempopt.workers.placement import Placement
from tempopt.workers.process import WorkerProcess


@contextlib.contextmanager
def workers_of(places: Sequence[Placement]) -> Iterator[list[WorkerProcess]]:
    workers = [WorkerProcess(slot=slot, place=place) for slot, place in enumerate(places)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def rehearse(spec: StudySpec, worker: WorkerProcess, *, task: Literal["rehearse", "check"]) -> Started | None:
    """Have a worker try what the spec asks, before anything is written.

    Raises:
        SpecError: It cannot be carried out.
        StudyFailed: The worker died over it.
    """
    probes = {name: list(domain.probes) for name, domain in spec.search.items()}
    sampled = {name: values[-1] for name, values in probes.items()}
    started, _ = _tried(spec, worker, task=task, sampled=sampled, space=probes)
    return started


def timed(spec: StudySpec, worker: WorkerProcess) -> Times:
    """Have a worker measure what the parts of a run take, with the parameters in the middle of the space.

    Raises:
        SpecError: The spec cannot be carried out.
        StudyFailed: The worker died over it.
    """
    space = spec.space()
    _, finished = _tried(spec, worker, task="time", sampled=at_places(space, [0.5] * len(space)), space={})
    assert finished.times is not None, "a worker has measured nothing"
    return finished.times


def _tried(
    spec: StudySpec,
    worker: WorkerProcess,
    *,
    task: Literal["rehearse", "check", "time"],
    sampled: Mapping[str, Any],
    space: dict[str, list[Any]],
) -> tuple[Started | None, Finished]:
    parameters = spec.parameters("search", sampled)
    measured = evaluations("confirm", (), spec, {}, {}) if spec.confirms else []
    bakes = task != "time" and spec.confirms and spec.study.init_only
    worker.send(
        RunRequest(
            ticket=0,
            attempt=0,
            program=spec.program(),
            parameters=parameters,
            seed=derive(spec.study.seed, task),
            evaluations=measured,
            bake={n: v for n, v in parameters.items() if n in TEMPERATURE_PARAMETERS} if bakes else None,
            task=task,
            space=space,
        )
    )
    started: Started | None = None
    while (message := worker.receive()) is not None:
        if isinstance(message, Failed):
            raise SpecError(_explained(message))
        if isinstance(message, Started):
            started = message
        if isinstance(message, Finished):
            return started, message
    raise StudyFailed(f"The dry run of two steps crashed: {worker.obituary()}.")


def _explained(failure: Failed) -> str:
    if failure.kind == "usage":
        return failure.message
    places = [line.strip() for line in failure.traceback.splitlines() if line.lstrip().startswith("File ")]
    # the person's own line, not that of the library it ends in
    own = [
        place for place in places if "site-packages" not in place and f"{os.sep}tempopt{os.sep}" not in place
    ]
    return "\n".join([f"The dry run of two steps ended in {failure.message}", *(own or places)[-1:]])
