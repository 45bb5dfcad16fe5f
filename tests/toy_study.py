"""A small study on toy modules, and everything about it that may not depend on who carries it out."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tempopt.agent.observer import NullObserver
from tempopt.agent.study_creation import ensure_study_exists
from tempopt.api.calls import search
from tempopt.errors import UsageError
from tempopt.report.study_result import StudyResult
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.opening import open_store
from tempopt.storage.rows import StudyRow, TicketRow
from tempopt.storage.store import Store

TOYS = Path(__file__).parent / "training"
REPOSITORY = Path(__file__).parents[1]
URL = "sqlite:///tempopt.db"


def toy_spec(
    *,
    init: dict[str, Any] | None = None,
    space: dict[str, Any] | None = None,
    trainer: dict[str, Any] | None = None,
    **study: Any,
) -> dict[str, Any]:
    """Return the spec of a small study; keyword arguments go to its ``study:`` section."""
    temperatures = {
        "temperature_init": {"low": 0.25, "high": 4.0},
        "temperature_final": {"low": 0.25, "high": 4.0},
        "schedule": ["constant", "linear", "cosine"],
    }
    return {
        "study": {
            "name": "toy",
            "metric": "val_loss",
            "direction": "minimize",
            "trials": 8,
            "arms": {"baseline": 2, "constant": 3},
            "candidates": 2,
            "seeds": {"choose": 2, "confirm": 2},
            "pruner": {"name": "median", "n_startup_trials": 2},
            **study,
        },
        "search": space or temperatures,
        "model": {"class_path": "toy_modules.Toy", "init_args": init or {}},
        "data": {"class_path": "toy_modules.ToyData"},
        "trainer": {
            "max_steps": 24,
            "val_check_interval": 4,
            "check_val_every_n_epoch": None,
            "accelerator": "cpu",
            **(trainer or {}),
        },
    }


SMALL = {"trials": 2, "arms": {"baseline": 1, "constant": 1}, "seeds": {"choose": 1, "confirm": 2}}


@dataclass(frozen=True)
class EndedStudy:
    """What a study came to."""

    folder: Path
    result: StudyResult
    facts: list[tuple[Any, ...]]
    reports: list[Any]


def read_study(result: StudyResult, url: str = URL) -> EndedStudy:
    return EndedStudy(Path.cwd(), result, facts(url), reports(url))


def tickets(url: str = URL) -> list[TicketRow]:
    with open_store(url, create=False) as store:
        return store.tickets(store.load_study("toy").id)


def facts(url: str = URL) -> list[tuple[Any, ...]]:
    """Return everything about the tickets that may not depend on the clock or on who did them."""
    return [
        (t.kind, t.arm, t.number, t.seed, t.parameters, t.outcome, t.value, t.diverged_at, t.trial_number)
        for t in tickets(url)
    ]


def reports(url: str = URL) -> list[tuple[int, str, float]]:
    with open_store(url, create=False) as store:
        study = store.load_study("toy")
        number = {t.id: (t.kind, t.number) for t in store.tickets(study.id)}
        return sorted((number[m.ticket_id], m.step, m.name, m.value) for m in store.measurements(study.id))


def work_in(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Go to a folder, in which agents use one thread."""
    patch.chdir(folder)
    patch.setenv("OMP_NUM_THREADS", "1")


def undisturbed_study(
    folder: Path, spec: Callable[..., dict[str, Any]] = toy_spec, **changes: Any
) -> EndedStudy:
    """Return the study as one agent with one worker carries it out when nothing happens to it."""
    with pytest.MonkeyPatch.context() as patch:
        work_in(folder, patch)
        return read_study(search(spec(**changes), storage=URL, workers=1))


FAKED = "from tests import fake_worker\nfake_worker.install(pace=0.01)\n"
"""Has agents of a program work with workers that train nothing, at a pace at which they can be met."""


def start(spec: dict[str, Any], tmp_path: Path, *, fake: bool = False) -> subprocess.Popen[bytes]:
    """Begin the study in a process of its own."""
    program = FAKED if fake else ""
    program += (
        "import json, pathlib\n"
        "from tempopt.api.calls import search\n"
        "spec = json.loads(pathlib.Path('spec.json').read_text())\n"
        f"search(spec, storage={URL!r}, workers=2)\n"
    )
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    return subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stderr=subprocess.DEVNULL)


def wait_until(condition: Callable[[list[TicketRow]], bool]) -> None:
    """Wait until the tickets are as they should be."""
    for _ in range(600):
        time.sleep(0.1)
        if Path("tempopt.db").exists():
            try:
                if condition(tickets()):
                    return
            except UsageError:
                pass
    raise AssertionError("the study never got so far")


class Watcher(NullObserver):
    """Does something once, when the study has come so far, and keeps the notes."""

    def __init__(self, condition: Callable[[Any], bool] = lambda snapshot: False, action: Any = None) -> None:
        self._when = condition
        self._then = action
        self.notes: list[str] = []

    def update(self, snapshot: Any) -> None:
        if self._then is not None and self._when(snapshot):
            action, self._then = self._then, None
            action()

    def note(self, text: str) -> None:
        self.notes.append(text)


def has_searched(count: int) -> Callable[[Any], bool]:
    return lambda snapshot: snapshot.done["search"] >= count


def training(snapshot: Any) -> bool:
    return any(view.kind == "search" and view.step for view in snapshot.workers)


def is_same_study(study_run: EndedStudy, other_run: EndedStudy) -> bool:
    """Return whether studies are the same, but for the order in which their trials were begun."""
    facts_of = [[fact[:-1] for fact in run.facts] for run in (study_run, other_run)]
    numbers = [
        sorted(fact[-1] for fact in run.facts if fact[-1] is not None) for run in (study_run, other_run)
    ]
    return facts_of[0] == facts_of[1] and numbers[0] == numbers[1] and study_run.reports == other_run.reports


def begin_study(
    spec: dict[str, Any], url: str = URL, condition: Callable[[Any], bool] = lambda snapshot: True
) -> None:
    """Leave the study as a user leaves it who goes away at once."""

    def leave() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(spec, storage=url, workers=1, observer=Watcher(condition, leave))


def begin(
    store: Store, name: str = "toy", *, checkpoints: str | None = "tempopt-runs", **study: Any
) -> StudyRow:
    """Begin a study of real trainings that no agent has begun to train.

    Args:
        store: Where it is stored.
        name: Its name.
        checkpoints: Folder of its checkpoints; None: that of the server.
        study: Keys of its ``study:`` section.
    """
    spec = StudySpec.parse(toy_spec(name=name, **(SMALL | study)), source="the test")
    folder = None if checkpoints is None else str(Path(checkpoints).absolute())
    return ensure_study_exists(store, spec, None, checkpoints=folder, owner="ada")
