"""``tempopt search``, ``resume`` and ``agent``: run a study, show it while it runs, say what it found.

What runs a study is imported once its spec is in order, so that a refusal is quick.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tempopt.cli.argument_types import Trials
from tempopt.cli.run_study import detached_study_hint, run_and_report, uses_launcher
from tempopt.cli.specs import read_spec
from tempopt.errors import UsageError
from tempopt.spec.comparison_spec import refuse_comparison
from tempopt.spec.yaml_source import read_sets

if TYPE_CHECKING:
    from tempopt.agent.observer import Observer
    from tempopt.report.study_result import StudyResult


def search(arguments: argparse.Namespace) -> int:
    """Create or continue the study of a spec, to its verdict."""
    overrides = list(arguments.set)
    if arguments.name is not None:
        overrides.append(f"study.name={json.dumps(arguments.name)}")
    if arguments.submit and (arguments.launcher or arguments.workers):
        option = "--launcher" if arguments.launcher else "--workers"
        raise UsageError(f"With --submit other agents train the study. Take {option} out, or --submit.")
    spec = read_spec(arguments.spec, overrides)
    refuse_comparison(spec)
    enqueue = read_sets(Path(arguments.enqueue)) if arguments.enqueue is not None else []

    from tempopt.service import lifecycle, studies
    from tempopt.service.requests import SearchRequest

    request = SearchRequest(
        spec=spec,
        trials=arguments.trials.total,
        add_trials=arguments.trials.additional,
        enqueue=enqueue,
    )
    if uses_launcher(arguments):
        from tempopt.cli import launch

        return launch.search(arguments, request)

    def carry_out(observer: Observer) -> StudyResult:
        return studies.search(
            request,
            storage=arguments.url,
            workers=arguments.workers,
            checkpoints=arguments.checkpoints,
            submit=arguments.submit,
            observer=observer,
        )

    def interrupted() -> str:
        if not lifecycle.study_may_exist(arguments.url, spec.study.name):
            return "Interrupted before the study was begun; nothing was written."
        return detached_study_hint(spec.study.name, arguments)

    name = spec.study.name
    return run_and_report(name, carry_out, arguments, interrupted=interrupted if arguments.submit else None)


def resume(arguments: argparse.Namespace) -> int:
    """Continue a study from the database alone, to its verdict."""
    from tempopt.service import studies
    from tempopt.service.requests import ResumeRequest

    request = ResumeRequest(
        add_trials=arguments.trials.additional,
        add_pairs=arguments.pairs,
        retry_failed=arguments.retry_failed,
        explain=getattr(arguments, "explain", False),
    )
    if uses_launcher(arguments):
        from tempopt.cli import launch

        return launch.resume(arguments, request)

    def carry_out(observer: Observer) -> StudyResult:
        return studies.resume(
            arguments.name,
            request,
            storage=arguments.url,
            workers=arguments.workers,
            checkpoints=arguments.checkpoints,
            observer=observer,
        )

    return run_and_report(arguments.name, carry_out, arguments)


def explain(arguments: argparse.Namespace) -> int:
    """Explain the verdict of a study by further trainings."""
    arguments.trials, arguments.pairs, arguments.retry_failed = Trials(), 0, False
    arguments.explain = True
    return resume(arguments)
