"""``tempopt compare``: parameter sets on fresh seeds; the exit code says what was found."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from tempopt.cli.run_study import run_and_report, uses_launcher
from tempopt.cli.specs import advise_check
from tempopt.errors import UsageError
from tempopt.spec.compared_sets import MAX_RUNS, parse_vary

if TYPE_CHECKING:
    from tempopt.agent.observer import Observer
    from tempopt.report.study_result import StudyResult
    from tempopt.spec.study_spec import StudySpec


def compare(arguments: argparse.Namespace) -> int:
    """Create or continue a comparison, to its end."""
    spec = _build_spec(arguments)
    if arguments.json and arguments.detach:
        raise UsageError("--json prints the result, and --detach does not wait for it. Take one of them out.")
    if uses_launcher(arguments):
        from tempopt.cli import launch

        return launch.compare(arguments, spec)

    from tempopt.service import studies
    from tempopt.service.best_sets import hint_at_without_option

    def carry_out(observer: Observer) -> StudyResult:
        with hint_at_without_option(arguments.from_study):
            return studies.compare(
                spec,
                storage=arguments.url,
                workers=arguments.workers,
                checkpoints=arguments.checkpoints,
                max_runs=arguments.max_runs or MAX_RUNS,
                observer=observer,
            )

    return run_and_report(spec.study.name, carry_out, arguments)


def _build_spec(arguments: argparse.Namespace) -> StudySpec:
    from tempopt.service.requests import CompareRequest

    request = CompareRequest(
        spec=arguments.spec,
        sets=arguments.sets,
        vary=parse_vary(arguments.vary),
        all_pairs=arguments.all_pairs,
        name=arguments.name,
        pairs=arguments.pairs,
        from_study=arguments.from_study,
        from_storage=arguments.from_storage,
        top=arguments.top,
        without=arguments.without,
        overrides=arguments.set,
    )
    with advise_check(arguments.spec, arguments.set):
        spec = request.build_spec(arguments.url)
    # the first one is the baseline
    num_sets = len(spec.compare or ()) - 1
    if arguments.top is not None and num_sets < arguments.top:
        print(
            f"--top {arguments.top}: {arguments.from_study} has {num_sets} different sets "
            "beside the baseline, which are all compared.",
            file=sys.stderr,
        )
    return spec
