"""Commands with ``--launcher``: start agents with a launcher, and watch the study or detach."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator

from tempopt.agent.observer import Observer
from tempopt.agent.signals import sigterm_as_keyboard_interrupt
from tempopt.cli import EXIT_OK
from tempopt.cli.launcher_options import launch_options
from tempopt.cli.run_study import detached_study_hint, run_and_report
from tempopt.errors import TempoptError, UsageError
from tempopt.launch.launcher import Launcher
from tempopt.launch.registry import make_launcher
from tempopt.launch.study_launch import StudyLaunch
from tempopt.report.study_result import StudyResult, load
from tempopt.service.extend import check_request, extend_study
from tempopt.service.requests import ResumeRequest, SearchRequest
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.yaml_source import parse_override
from tempopt.storage.opening import open_store
from tempopt.verdict.forecast_text import runs_text
from tempopt.verdict.planned_runs import planned_runs


def carry_out_by_launcher(arguments: argparse.Namespace, request: SearchRequest | ResumeRequest) -> int:
    """Carry out a request with agents of a launcher, and watch the study to its verdict.

    For a search the agents get the spec; for a resumption they read it from the store.
    """
    check_request(request)
    is_search, name = isinstance(request, SearchRequest), request.study
    with open_store(arguments.url, create=is_search) as store, _make_launcher(arguments) as launcher:
        spec = (
            request.spec
            if isinstance(request, SearchRequest)
            else StudySpec.from_json(store.load_study(name).spec)
        )
        launch = StudyLaunch(launcher, arguments.launcher, store, spec, workers=arguments.workers)
        notes: list[str] = []
        spec, study = extend_study(store, request, on_note=notes.append)
        if study is None:
            notes.append(f"{name}: {runs_text(planned_runs(spec))}")
        is_over = study is not None and store.load_study(name).state == "done"
        if not is_over:
            with sigterm_as_keyboard_interrupt(), _mention_added_tickets(request):
                notes += launch.start(
                    study,
                    spec if is_search else None,
                    checkpoints_at=arguments.checkpoints,
                    overrides=[text for text in getattr(arguments, "set", ()) if parse_override(text).local],
                )
            if arguments.detach:
                print(*notes, detached_study_hint(name, arguments), sep="\n")
                return EXIT_OK

        def watch(observer: Observer) -> StudyResult:
            for note in notes:
                observer.note(note)
            if is_over:
                return load(store, name, needs_measurements=True)
            with sigterm_as_keyboard_interrupt():
                try:
                    return launch.watch(observer)
                except KeyboardInterrupt:
                    if not launcher.survives_command:
                        observer.note("Leaving: each agent saves its runs.")
                        launch.cancel()
                    raise

        return run_and_report(name, watch, arguments, continues=launcher.survives_command)


def _make_launcher(arguments: argparse.Namespace) -> contextlib.closing[Launcher]:
    launcher = make_launcher(arguments.launcher, launch_options(arguments))
    if arguments.detach and not launcher.survives_command:
        launcher.close()
        raise UsageError(
            f"--detach: agents of the launcher {launcher.name} end with this command. Leave out --detach, or "
            "run this command in the background (nohup tempopt ... &)."
        )
    return contextlib.closing(launcher)


@contextlib.contextmanager
def _mention_added_tickets(request: SearchRequest | ResumeRequest) -> Iterator[None]:
    """Add to an error of the launcher that the requested trials have already been added."""
    try:
        yield
    except TempoptError as error:
        added = {"trials": request.add_trials, "pairs": getattr(request, "add_pairs", 0)}
        unit = next((option for option, count in added.items() if count), None)
        if unit is None:
            raise
        raise type(error)(
            f"{error}\nThe {added[unit]} {unit} have been added: leave out --{unit} when you try again."
        ) from error
