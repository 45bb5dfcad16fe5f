"""The spec that a command is given: read and validated before anything that trains is imported."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from tempopt.errors import SpecError
from tempopt.spec.collect_errors import with_all_faults
from tempopt.spec.load import load_spec
from tempopt.spec.logger_secrets import check_no_secrets
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.validation_errors import FaultySpecError


def read_spec(path_or_name: str, overrides: Sequence[str] = ()) -> StudySpec:
    """Read and validate a study spec; arguments as for :func:`tempopt.spec.load.load_spec`.

    Raises:
        SpecError: There is no such spec, or as :func:`advise_check`.
    """
    with advise_check(path_or_name, overrides):
        spec = load_spec(path_or_name, overrides)
        check_no_secrets(spec.trainer.get("logger"))
    return spec


@contextlib.contextmanager
def advise_check(path_or_name: str, overrides: Sequence[str]) -> Iterator[None]:
    """Let a refusal of a spec tell all faults of its text, and the command that checks it again.

    Raises:
        SpecError: The text of the spec is wrong; there is a line for each fault.
    """
    try:
        yield
    except FaultySpecError as error:
        refusal: SpecError = with_all_faults(error)
    except SpecError as error:
        if not _is_file(path_or_name):
            raise
        refusal = error
    else:
        return
    settings = [word for setting in overrides for word in ("--set", setting)]
    command = shlex.join(["tempopt", "check", path_or_name, *settings])
    raise SpecError(f"{refusal}\nTo check it again, run: {command}") from refusal


def _is_file(path_or_name: str) -> bool:
    try:
        return Path(path_or_name).is_file()
    except OSError:
        # a name that is too long is none of a file
        return False
