"""A small study on toy modules, and everything about it that may not depend on who carries it out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tempopt.errors import UsageError
from tempopt.store.rows import TicketRow
from tempopt.store.store import Store
from tempopt.study.api import search
from tempopt.study.results import StudyResult

TOYS = Path(__file__).parents[1] / "training"
REPOSITORY = Path(__file__).parents[2]
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
            "arms": {"unit": 2, "constant": 3},
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


SMALL = {"trials": 2, "arms": {"unit": 1, "constant": 1}, "seeds": {"choose": 1, "confirm": 2}}


@dataclass(frozen=True)
class Ended:
    """What a study came to."""

    folder: Path
    result: StudyResult
    facts: list[tuple[Any, ...]]
    reports: list[Any]


def ended(result: StudyResult) -> Ended:
    return Ended(Path.cwd(), result, facts(), reports())


def tickets() -> list[TicketRow]:
    with Store.open(URL, create=False) as store:
        return store.tickets(store.load_study("toy").id)


def facts() -> list[tuple[Any, ...]]:
    """Return everything about the tickets that may not depend on the clock or on who did them."""
    return [
        (t.kind, t.arm, t.number, t.seed, t.parameters, t.outcome, t.value, t.diverged_at, t.trial_number)
        for t in tickets()
    ]


def reports() -> list[tuple[int, str, float]]:
    with Store.open(URL, create=False) as store:
        study = store.load_study("toy")
        number = {t.id: (t.kind, t.number) for t in store.tickets(study.id)}
        return sorted((number[m.ticket_id], m.step, m.name, m.value) for m in store.measurements(study.id))


def work_in(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Go to a folder, with the toy modules in reach of trainers."""
    patch.chdir(folder)
    patch.setenv("PYTHONPATH", f"{TOYS}{os.pathsep}{REPOSITORY}")
    patch.setenv("OMP_NUM_THREADS", "1")


def undisturbed_study(folder: Path, **changes: Any) -> Ended:
    """Return the study as one agent with one trainer carries it out when nothing happens to it."""
    with pytest.MonkeyPatch.context() as patch:
        work_in(folder, patch)
        return ended(search(toy_spec(**changes), storage=URL, workers=1))


def start(spec: dict[str, Any], tmp_path: Path) -> subprocess.Popen[bytes]:
    """Begin the study in a process of its own."""
    program = (
        "import json, pathlib\n"
        "from tempopt.study.api import search\n"
        "spec = json.loads(pathlib.Path('spec.json').read_text())\n"
        f"search(spec, storage={URL!r}, workers=2)\n"
    )
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    return subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stderr=subprocess.DEVNULL)


def wait_until(done: Callable[[list[TicketRow]], bool]) -> None:
    """Wait until the tickets are as they should be."""
    for _ in range(600):
        time.sleep(0.1)
        if Path("tempopt.db").exists():
            try:
                if done(tickets()):
                    return
            except UsageError:
                pass
    raise AssertionError("the study never got so far")
