"""Train a few steps of a spec before a study begins: two to find errors, more to measure times."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from tempopt.agent.placement import Placement
from tempopt.agent.process import WorkerProcess
from tempopt.errors import SpecError, StudyFailed
from tempopt.sampling.unit_cube import from_unit_vector
from tempopt.seeds import derive
from tempopt.spec.program import Program
from tempopt.spec.study_spec import StudySpec
from tempopt.training.messages import Failed, Finished, ProgramRequest, RunRequest, Stage, Started, Times
from tempopt.verdict.run_evaluations import evaluations

_CALLED = "dry run of two steps"
_LONG_SECONDS = 5.0
StageCallback = Callable[[Stage], None]
"""Called with each stage of a dry run, once it is over."""


def format_stage(stage: Stage) -> str:
    """Return one line on a stage of a dry run, with the time that it took."""
    return f"Dry run: {stage.what} ({stage.seconds:.1f} s)."


def note_long_stages(note: Callable[[str], None]) -> StageCallback:
    """Return a callback that notes the stages of a dry run for which the user had to wait."""

    def note_stage(stage: Stage) -> None:
        if stage.seconds >= _LONG_SECONDS:
            note(format_stage(stage))

    return note_stage


@contextlib.contextmanager
def start_workers(places: Sequence[Placement]) -> Iterator[list[WorkerProcess]]:
    workers = [WorkerProcess(slot=slot, placement=placement) for slot, placement in enumerate(places)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def run_dry_run(
    spec: StudySpec,
    worker: WorkerProcess,
    *,
    task: Literal["dry_run", "check"],
    on_stage: StageCallback = lambda stage: None,
) -> tuple[StudySpec, Started | None]:
    """Run a spec on a worker before anything is written; of a comparison, each parameter set.

    Args:
        spec: The spec.
        worker: The worker.
        task: Whether to train, or only to check classes and arguments.
        on_stage: Called with each stage, once it is over.

    Returns:
        The spec with the named temperatures of its module, and the message with which the training began;
        None if nothing was trained.

    Raises:
        SpecError: The spec cannot be trained.
        StudyFailed: The worker died.
    """
    if spec.program is not None:
        _check_program(spec, worker)
        return spec, None
    started, finished = _try_parameter_sets(spec, worker, task, on_stage)
    checked_spec = spec.with_dry_run_results(
        finished.initial_temperatures,
        not_learned=finished.not_learned,
        not_resumed=finished.not_resumed,
        evaluated=finished.evaluated,
        trained=finished.trained,
    )
    return checked_spec, started


_CHECKED: dict[str, StudySpec] = {}
_MOST_CHECKED = 256


def check_spec_on_worker(spec: StudySpec, worker: WorkerProcess, *, again: bool = True) -> StudySpec:
    """Check classes and arguments on a worker, and return the spec as :func:`run_dry_run` does.

    Args:
        again: Whether to repeat a check that this process has made before; False for an agent that serves one
            study after another on the same machine.

    Raises:
        SpecError: The spec cannot be trained.
        StudyFailed: The worker died.
    """
    key = json.dumps([dataclasses.asdict(worker.placement), spec.to_json()], sort_keys=True)
    if again or key not in _CHECKED:
        if len(_CHECKED) >= _MOST_CHECKED:
            _CHECKED.clear()
        _CHECKED[key] = run_dry_run(spec, worker, task="check")[0]
    return _CHECKED[key]


def measure_run_times(spec: StudySpec, worker: WorkerProcess) -> Times:
    """Measure on a worker how long the stages of a run take, with the parameters in the middle of the space.

    Raises:
        SpecError: The spec cannot be trained.
        StudyFailed: The worker died.
    """
    space = spec.space()
    sampled_params = from_unit_vector(space, [0.5] * len(space))
    _, finished = _try_parameters(spec, worker, task="time", space={}, sampled=sampled_params)
    assert finished.times is not None, "the worker has measured nothing"
    return finished.times


def _try_parameter_sets(
    spec: StudySpec,
    worker: WorkerProcess,
    task: Literal["dry_run", "check"],
    on_stage: StageCallback = lambda stage: None,
) -> tuple[Started | None, Finished]:
    if spec.compare is None:
        space = {name: list(domain.probes) for name, domain in spec.search.items()}
        sampled = {name: values[-1] for name, values in space.items()}
        return _try_parameters(spec, worker, task=task, space=space, sampled=sampled, on_stage=on_stage)
    space = {}
    for parameter_set in spec.compare:
        for name, value in parameter_set.parameters.items():
            space.setdefault(name, []).append(value)
    messages = _try_parameters(spec, worker, task="check", space=space, sampled=spec.compare[0].parameters)
    for parameter_set in spec.compare if task == "dry_run" else ():
        try:
            messages = _try_parameters(
                spec, worker, task=task, space={}, sampled=parameter_set.parameters, on_stage=on_stage
            )
        except SpecError as error:
            raise SpecError(f"Parameter set {parameter_set.name}: {error}") from error
    return messages


def _try_parameters(
    spec: StudySpec,
    worker: WorkerProcess,
    *,
    task: Literal["dry_run", "check", "time"],
    space: dict[str, list[Any]],
    sampled: Mapping[str, Any],
    on_stage: StageCallback = lambda stage: None,
) -> tuple[Started | None, Finished]:
    """Check all values of a space on a worker, and run one parameter set."""
    parameters = spec.parameters("search", sampled)
    evaluation_list = evaluations("confirm", (), spec, {}, {})
    worker.send(
        RunRequest(
            ticket=0,
            attempt=0,
            program=spec.lightning_program(),
            parameters=parameters,
            seed=derive(spec.study.seed, task),
            evaluations=evaluation_list,
            task=task,
            learns=spec.study.learned if task == "dry_run" and spec.learns else False,
            space=space,
        )
    )
    return _receive_answer(worker, on_stage)


def _check_program(spec: StudySpec, worker: WorkerProcess) -> None:
    """Have a worker check that a command or a function is there; nothing is run."""
    program = spec.build_program()
    assert not isinstance(program, Program), "a LightningModule is tried and not checked"
    parameters = {name: values[0] for _, name, values in spec.written_parameters()}
    worker.send(
        ProgramRequest(ticket=0, attempt=0, program=program, parameters=parameters, seed=0, task="check")
    )
    _receive_answer(worker)


def _receive_answer(
    worker: WorkerProcess, on_stage: StageCallback = lambda stage: None
) -> tuple[Started | None, Finished]:
    started: Started | None = None
    while (message := worker.receive()) is not None:
        if isinstance(message, Failed):
            raise explain_failure(message, _CALLED)
        if isinstance(message, Started):
            started = message
        if isinstance(message, Stage):
            on_stage(message)
        if isinstance(message, Finished):
            return started, message
    raise StudyFailed(f"The {_CALLED} crashed: {worker.exit_description()}.")


def explain_failure(failure: Failed, called: str) -> SpecError:
    """Return the failure of a worker as an error, with the line of the user's code if there is one."""
    if failure.kind == "usage":
        return SpecError(failure.message)
    frames = [line.strip() for line in failure.traceback.splitlines() if line.lstrip().startswith("File ")]
    # the last line of the user's code, not that of the library in which the error was raised
    own_frames = [
        frame for frame in frames if "site-packages" not in frame and f"{os.sep}tempopt{os.sep}" not in frame
    ]
    return SpecError("\n".join([f"The {called} ended in {failure.message}", *(own_frames or frames)[-1:]]))
