"""Carry out a study for a command: show its progress, print the result, return the exit code."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from tempopt.cli import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, OUTCOME_CODES
from tempopt.cli.output import print_decision
from tempopt.cli.storage import storage_option, study_argument
from tempopt.errors import TempoptError, UsageError, mask_secrets
from tempopt.storage.http.address import is_server

if TYPE_CHECKING:
    from tempopt.agent.observer import Observer
    from tempopt.report.study_result import StudyResult
    from tempopt.service.requests import ResumeRequest, SearchRequest


def carry_out(arguments: argparse.Namespace, request: SearchRequest | ResumeRequest) -> int:
    """Run a study in this process or by agents of a launcher, and return the exit code."""
    if arguments.launcher is not None:
        from tempopt.cli import launch

        return launch.carry_out_by_launcher(arguments, request)
    options = {"--launch": arguments.launch, "--address": arguments.address, "--detach": arguments.detach}
    for option, value in options.items():
        if value:
            raise UsageError(f"{option} is for a launcher. Give one, as in --launcher slurm.")

    from tempopt.service import studies

    run_options = studies.RunOptions(
        storage=arguments.url,
        workers=arguments.workers,
        checkpoints=arguments.checkpoints,
        submit=getattr(arguments, "submit", False),
    )
    return run_and_report(
        request.study,
        lambda observer: studies.carry_out(request, run_options, observer),
        arguments,
        continues=run_options.submit or is_server(arguments.url),
    )


def run_and_report(
    name: str,
    run_study: Callable[[Observer], StudyResult],
    arguments: argparse.Namespace,
    *,
    again: str = "resume",
    continues: bool = False,
) -> int:
    """Carry out a study, show its progress and result, and return the exit code.

    Args:
        name: Name of the study.
        run_study: Carries out the study with an observer.
        arguments: The parsed arguments.
        again: The command that continues it after Ctrl-C.
        continues: Whether other processes carry it out after Ctrl-C.
    """
    from tempopt.report.study_lines import screen_lines
    from tempopt.service.progress import progress_for_stream

    # with --json, only the result is on standard output
    stream = sys.stderr if getattr(arguments, "json", False) else sys.stdout
    try:
        with progress_for_stream(stream, verbose=getattr(arguments, "verbose", False)) as observer:
            result = run_study(observer)
    except KeyboardInterrupt:
        print(f"\n{_build_interrupted_hint(name, arguments, again, continues)}", file=stream)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader has closed the pipe before the end of the study
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_INTERRUPTED
    if result.state != "done":
        # paused by `tempopt pause`; other agents may still be saving their runs
        command = _build_command("resume", name, arguments)
        text = "The study was paused. Everything that was reported is saved. To continue:"
        print(f"\n{text}\n  {command}", file=stream)
        return EXIT_INTERRUPTED
    if result.spec.compare is not None:
        return _report_comparison(result, arguments, publish_report(arguments, name))
    report = publish_report(arguments, name) or ""
    print_decision(["", *screen_lines(result, storage_option(arguments), report)])
    # as of a comparison without any value
    is_without_value = (
        result.verdict is None and result.spec.counts_failures and result.tickets["confirm"].failed > 0
    )
    return EXIT_FAILED if result.best is None or is_without_value else EXIT_OK


def publish_report(arguments: argparse.Namespace, name: str) -> str | None:
    """Write the report of a finished study if requested, and return its path; None if that fails.

    The result is printed even if the report cannot be written or Ctrl-C interrupts it.
    """
    if not getattr(arguments, "report", False):
        return None
    try:
        from tempopt.cli.report import write_final_report

        return write_final_report(arguments.url, name)
    except (Exception, KeyboardInterrupt) as error:
        reason = f"{error}" if isinstance(error, TempoptError) else f"{type(error).__name__}: {error}"
        command = f"tempopt report {study_argument(name, arguments)}"
        text = f"the report could not be written: {reason}\nThe study is complete. Try again: {command}"
        print(mask_secrets(f"tempopt: warning: {text}"), file=sys.stderr)
        return None


def detached_study_hint(name: str, arguments: argparse.Namespace) -> str:
    """Return the commands that show and pause a study that continues without this command."""
    where = study_argument(name, arguments)
    return (
        "The study continues without this command.\n"
        f"To look at it: tempopt show {where}\n"
        f"To pause it:   tempopt pause {where}"
    )


def _build_interrupted_hint(name: str, arguments: argparse.Namespace, again: str, continues: bool) -> str:
    from tempopt.service import lifecycle

    if not lifecycle.study_may_exist(arguments.url, name):
        return "Interrupted before the study was begun; nothing was written."
    if continues:
        return detached_study_hint(name, arguments)
    command = _build_command(again, name, arguments)
    return f"Interrupted. Everything that was reported is saved. To continue:\n  {command}"


def _build_command(command: str, name: str, arguments: argparse.Namespace) -> str:
    """Return the command that continues a study in the same store, with the same checkpoints and workers."""
    line = f"tempopt {command} {study_argument(name, arguments)}"
    if arguments.checkpoints is not None:
        line += f" --checkpoints {shlex.quote(arguments.checkpoints)}"
    if getattr(arguments, "workers", None) is not None:
        line += f" --workers {arguments.workers}"
    if command == "resume" and getattr(arguments, "launcher", None) is not None:
        line += f" --launcher {shlex.quote(arguments.launcher)}"
        for key, value in arguments.launch:
            line += f" --launch {shlex.quote(f'{key}={value}')}"
        if arguments.address is not None:
            line += f" --address {shlex.quote(arguments.address)}"
    return line


def _report_comparison(result: StudyResult, arguments: argparse.Namespace, report: str | None) -> int:
    """Print the result of a comparison that is over, and return the exit code.

    Args:
        result: The comparison.
        arguments: The parsed arguments.
        report: Path of its report, if one was written.
    """
    from tempopt.report.study_lines import screen_lines

    comparison = result.comparison
    where = study_argument(result.name, arguments)
    if getattr(arguments, "json", False):
        print(json.dumps(result.to_json(), indent=2, allow_nan=False))
    else:
        print("", *screen_lines(result, storage_option(arguments)), "", sep="\n")
        if report:
            print(f"Read the report:  {report}")
        print(f"Look again:       tempopt show {where}")
        answers = [] if comparison is None else [variant.answer for variant in comparison.variants]
        if any(answer and (answer.is_unvaried or answer.paired.is_equal) for answer in answers):
            # it ends in the line that the value is of
            print(f"Read its values:  tempopt logs {where} confirm-0")
        if comparison is not None and comparison.recommended_set is not None:
            label = f"Take {comparison.recommended_set}:"
            print(f"{label.ljust(17)} tempopt export {where}")
    if comparison is None or not comparison.has_verdict:
        return EXIT_FAILED
    return OUTCOME_CODES[comparison.outcome]
