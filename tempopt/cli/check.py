"""``tempopt check``, before a search; a person's module is imported in a worker."""

from __future__ import annotations

import argparse
import functools

from tempopt.cli import EXIT_OK
from tempopt.cli.specs import read_spec


def check(arguments: argparse.Namespace) -> int:
    """Check a spec and print what was found, after training two steps of it if asked to."""
    spec = read_spec(arguments.spec, arguments.set)
    from tempopt.service import studies  # loads Optuna, which a spec that is refused does not need

    print_line = functools.partial(print, flush=True)
    for line in studies.check(spec, dry_run=arguments.dry_run, on_line=print_line):
        print_line(line)
    return EXIT_OK
