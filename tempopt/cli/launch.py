"""``tempopt search`` and ``resume`` with ``--launcher``: start agents elsewhere, and watch or go away."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator

from tempopt.agent.observer import Observer
from tempopt.agent.signals import sigterm_as_keyboard_interrupt
from tempopt.cli import EXIT_OK
from tempopt.cli.launcher_options import launch_options
from tempopt.cli.run_study import detached_study_hint, run_and_report
from tempopt.errors import TempoptError, UsageError
from tempopt.launch.launcher import Launcher
from tempopt.launch.registry import make_launcher
from tempopt.launch.study_launch import PROGRAM, StudyLaunch
from tempopt.report.study_result import StudyResult, load
from tempopt.service.extend import prepare_resume, prepare_search
from tempopt.service.requests import ResumeRequest, SearchRequest
from tempopt.spec.compared_sets import MAX_RUNS
from tempopt.spec.custom_schedules import import_schedules
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.yaml_source import parse_override
from tempopt.storage.opening import open_store
from tempopt.storage.rows import StudyRow
from tempopt.storage.store import Store
from tempopt.verdict.set_comparison import check_comparison

Order = Callable[[], tuple[StudySpec, StudyRow | None]]


def search(arguments: argparse.Namespace, request: SearchRequest) -> int:
    """Create or continue the study of a spec, with agents that a launcher starts."""
    return _launch(arguments, request.spec, lambda store: prepare_search(store, request, on_note=print))


def compare(arguments: argparse.Namespace, spec: StudySpec) -> int:
    """Create or continue a comparison, with agents that a launcher starts."""
    import_schedules(spec)
    check_comparison(spec, arguments.max_runs or MAX_RUNS)
    return _launch(arguments, spec, lambda store: prepare_search(store, SearchRequest(spec=spec)))


def _launch(
    arguments: argparse.Namespace,
    spec: StudySpec,
    order: Callable[[Store], tuple[StudySpec, StudyRow | None]],
) -> int:
    """Carry out the study of a spec, which agents are given."""
    with open_store(arguments.url, create=True) as store, _launcher(arguments) as launcher:
        launch = StudyLaunch(
            launcher, arguments.launcher, store, spec, workers=arguments.workers, program=PROGRAM
        )
        return _launched(arguments, store, launcher, launch, lambda: order(store), by_value=True)


def resume(arguments: argparse.Namespace, request: ResumeRequest) -> int:
    """Continue a study from the database alone, with agents that a launcher starts."""
    with open_store(arguments.url, create=False) as store, _launcher(arguments) as launcher:
        study = store.load_study(arguments.name)
        spec = StudySpec.from_json(study.spec)

        def order() -> tuple[StudySpec, StudyRow | None]:
            return prepare_resume(store, study, request, on_note=print), study

        launch = StudyLaunch(
            launcher, arguments.launcher, store, spec, workers=arguments.workers, program=PROGRAM
        )
        return _launched(arguments, store, launcher, launch, order, by_value=False)


def _launcher(arguments: argparse.Namespace) -> contextlib.closing[Launcher]:
    launcher = make_launcher(arguments.launcher, launch_options(arguments))
    if arguments.detach and not launcher.survives_command:
        launcher.close()
        raise UsageError(
            f"--detach: agents of the launcher {launcher.name} end with this command. Take it out, or have "
            "this command go on in the background (nohup tempopt ... &)."
        )
    return contextlib.closing(launcher)


def _launched(
    arguments: argparse.Namespace,
    store: Store,
    launcher: Launcher,
    launch: StudyLaunch,
    order: Order,
    *,
    by_value: bool,
) -> int:
    """Have a study ordered and its agents started, and watch to the verdict.

    Args:
        by_value: Whether the agents are given the spec; False: they find it in the store.
    """
    spec, study = order()
    name = spec.study.name
    is_over = study is not None and store.load_study(name).state == "done"
    notes: list[str] = []
    if not is_over:
        with sigterm_as_keyboard_interrupt(), _mention_added_tickets(arguments, study):
            notes = launch.start(
                study,
                spec if by_value else None,
                checkpoints_at=arguments.checkpoints,
                overrides=[
                    override for override in getattr(arguments, "set", ()) if parse_override(override).local
                ],
            )
    if arguments.detach and not is_over:
        print(*notes, detached_study_hint(name, arguments), sep="\n")
        return EXIT_OK

    def watch(observer: Observer) -> StudyResult:
        if is_over:
            return load(store, name, needs_measurements=True)
        for note in notes:
            observer.note(note)
        with sigterm_as_keyboard_interrupt():
            try:
                return launch.watch(observer)
            except KeyboardInterrupt:
                if not launcher.survives_command:
                    observer.note("Leaving: each agent saves its runs.")
                    launch.cancel()
                raise

    interrupted = (lambda: detached_study_hint(name, arguments)) if launcher.survives_command else None
    return run_and_report(name, watch, arguments, interrupted=interrupted)


@contextlib.contextmanager
def _mention_added_tickets(arguments: argparse.Namespace, study: StudyRow | None) -> Iterator[None]:
    """Have an error say that the trials which were asked for are in the study, though no agent is."""
    try:
        yield
    except TempoptError as error:
        added = {"trials": 0, "pairs": 0}
        if hasattr(arguments, "trials"):
            added = {"trials": arguments.trials.additional, "pairs": getattr(arguments, "pairs", 0)}
        unit = next((option for option, count in added.items() if count), None)
        if study is None or unit is None:
            raise
        raise type(error)(
            f"{error}\nThe {added[unit]} {unit} were added all the same: leave --{unit} out of your next try."
        ) from error
