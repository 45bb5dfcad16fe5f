"""``tempopt check``, before a search; a person's module is imported in a worker."""

from __future__ import annotations

import argparse
import functools

from tempopt.cli import DONE
from tempopt.spec.load import load_spec
from tempopt.spec.validation_errors import FaultySpecError
from tempopt.study import api


def check(arguments: argparse.Namespace) -> int:
    """Check a spec and print what was found, after training two steps of it if asked to."""
    try:
        spec = load_spec(arguments.spec, arguments.set)
    except FaultySpecError as error:
        raise api.with_all_faults(error) from error
    told = functools.partial(print, flush=True)
    for line in api.check(spec, dry_run=arguments.dry_run, told=told):
        told(line)
    return DONE
