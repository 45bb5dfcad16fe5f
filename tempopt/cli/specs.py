"""``tempopt check`` and ``plan``: read and validate a spec before slow modules are imported."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
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
    """Extend the error of a spec to all errors of its text, with the command that checks it again.

    Raises:
        SpecError: The text of the spec is invalid; there is a line for each error.
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
        # a name that is too long is not a file name
        return False


def check(arguments: argparse.Namespace) -> None:
    """Check a spec and print the result, with --dry-run after training two steps."""
    spec = read_spec(arguments.spec, arguments.set)
    from tempopt.service import studies  # lazy import: loads Optuna

    print_line = functools.partial(print, flush=True)
    for line in studies.check(spec, dry_run=arguments.dry_run, on_line=print_line):
        print_line(line)


def plan(arguments: argparse.Namespace) -> None:
    """Print the forecast of a study; nothing is written."""
    trials = [] if arguments.trials is None else [f"study.trials={arguments.trials}"]
    spec = read_spec(arguments.spec, [*arguments.set, *trials])
    # lazy import: loads Optuna
    from tempopt.cli.plan_text import print_forecast
    from tempopt.service.forecast import forecast_study

    forecast = forecast_study(
        spec,
        storage=arguments.url,
        workers=arguments.workers,
        earlier=arguments.earlier,
        run_hours=arguments.run_hours,
    )
    if arguments.json:
        print(json.dumps(forecast.to_json(), indent=2))
    else:
        print_forecast(forecast)
