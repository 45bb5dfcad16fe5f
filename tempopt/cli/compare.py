"""``tempopt compare``: given parameter sets against the first of them; the exit code says what was found."""

from __future__ import annotations

import argparse
import json
import shlex
from typing import TYPE_CHECKING

from tempopt.agent.observer import Observer
from tempopt.cli import DONE, FAILED, NOT_SHOWN, WORSE
from tempopt.cli.search import by_launcher, to_verdict
from tempopt.cli.storage import storage_option
from tempopt.confirmation.compare import Outcome
from tempopt.errors import UsageError
from tempopt.results.verdict_text import verdict_lines
from tempopt.spec.comparison_spec import comparison_spec
from tempopt.study import api

if TYPE_CHECKING:
    from tempopt.results.study_result import StudyResult

_CODES: dict[Outcome, int] = {"better": DONE, "not_shown": NOT_SHOWN, "worse": WORSE}


def compare(arguments: argparse.Namespace) -> int:
    """Create or continue a comparison, to its end."""
    spec = comparison_spec(
        arguments.spec,
        arguments.sets,
        name=arguments.name,
        pairs=arguments.pairs,
        overrides=arguments.set,
    )
    if arguments.json and arguments.detach:
        raise UsageError("--json prints the result, and --detach does not wait for it. Take one of them out.")
    if by_launcher(arguments):
        from tempopt.cli import launch

        return launch.compare(arguments, spec)

    def carry_out(observer: Observer) -> StudyResult:
        return api.compare(
            spec,
            storage=arguments.url,
            workers=arguments.workers,
            checkpoints=arguments.checkpoints,
            max_runs=arguments.max_runs,
            observer=observer,
            with_code=arguments.with_code,
        )

    return to_verdict(spec.study.name, carry_out, arguments)


def over(result: StudyResult, arguments: argparse.Namespace, report: str | None) -> int:
    """Say what a comparison that is over has found, and return the exit code.

    Args:
        result: It.
        arguments: What was typed.
        report: Path of its report, if one was written.
    """
    found = result.comparison
    where = f"{shlex.quote(result.name)}{storage_option(arguments)}"
    if getattr(arguments, "json", False):
        print(json.dumps(result.to_json(), indent=2, allow_nan=False))
    else:
        print("", *verdict_lines(result, storage_option(arguments)), "", sep="\n")
        if report:
            print(f"Read the report:  {report}")
        print(f"Look again:       tempopt show {where}")
        if found is not None and found.best is not None:
            print(f"Take {found.best.name}:{' ' * max(1, 12 - len(found.best.name))}tempopt export {where}")
    if found is None or all(each.answer is None and not each.fails for each in found.variants):
        return FAILED
    return _CODES[found.outcome]
