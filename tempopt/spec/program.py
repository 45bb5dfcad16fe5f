"""What a worker of this machine is told of a study: its program, with the files that it reads found here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tempopt.errors import SpecError, UsageError
from tempopt.files import absolute
from tempopt.workers.messages import Program

if TYPE_CHECKING:
    from tempopt.spec.sections import StartFrom
    from tempopt.spec.study_spec import StudySpec


def program_of(here: StudySpec, *, identity: str, start_at: Path | None) -> Program:
    """Return what a trainer on this machine needs to know.

    Args:
        here: The spec as it holds on this machine.
        identity: Identity of the study's spec.
        start_at: File with the weights of ``study.start_from``; None: they lie where the spec says.

    Raises:
        SpecError: A checkpoint that the spec names is not there.
    """
    return Program(
        model=here.model,
        data=here.data,
        trainer=here.trainer,
        attach=None if here.attach is None else here.attach.model_dump(),
        metric_reads_temperature=here.study.metric_reads_temperature,
        values={name: each.model_dump() for name, each in here.temperatures.items()},
        metric=here.study.metric,
        validate_at=here.study.validate_at,
        data_seed=here.study.seed,
        identity=identity,
        compared=here.compare is not None,
        start=_start(here.study.start_from, start_at),
        compile=here.study.compile,
    )


def _start(given: StartFrom | None, at: Path | None) -> dict[str, Any] | None:
    if given is None:
        return None
    # of a study that was begun the file need not be where it was: an agent has found it, or trains nothing
    found = given.path if given.sha256 is not None else start_path(given.path)
    return {**given.model_dump(), "path": str(at or found)}


def start_path(given: str) -> Path:
    """Return where the file of ``study.start_from`` lies on this machine.

    Raises:
        SpecError: It is not there, or is no file.
    """
    path = _absolute(given, "study.start_from")
    if path.is_file():
        return path
    found = f"there is no file {path}"
    if path.exists():
        found = f"that is {'a folder' if path.is_dir() else 'no ordinary file, but a pipe or a device'}"
    raise SpecError(
        f'study.start_from is "{given}", but {found}. Give the path or URL of a checkpoint that Lightning or '
        "tempopt wrote, or of a state dict (torch.save or safetensors). A study that has been begun goes on "
        "without it: tempopt resume NAME"
    )


def _absolute(given: str, key: str) -> Path:
    try:
        return absolute(given, key).resolve()
    except UsageError as error:
        raise SpecError(str(error)) from error
    except (OSError, RuntimeError) as error:
        raise SpecError(f"{key} {given} cannot be used: {error}. Give another path.") from error
