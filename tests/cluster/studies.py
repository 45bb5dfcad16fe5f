"""A study of many short real trainings, what became of it in every table, and what that ought to be."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import optuna

from tempopt.errors import StorageError
from tempopt.launch.launcher import Task
from tempopt.service.studies import load_study
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.opening import open_store
from tempopt.storage.rows import StudyState, TicketRow

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = "chaos"
STEPS, RECALL_STEPS = 24, 80
NEVER_PRUNED = 4
Process = subprocess.Popen[bytes]
_MODULES = (REPOSITORY, REPOSITORY / "tests" / "training", REPOSITORY / "tests" / "cluster")


def spec(tickets: int, *, steps: int = STEPS, **study: Any) -> dict[str, Any]:
    """Return the spec of a study whose search is large and whose other arms are small.

    Args:
        tickets: Search tickets.
        steps: Optimizer steps of a run; every fourth is followed by a validation.
        study: Goes to its ``study:`` section.
    """
    return {
        "study": {
            "name": NAME,
            "metric": "val_loss",
            "direction": "minimize",
            "trials": tickets,
            "arms": {"baseline": 1, "constant": 1},
            "candidates": 1,
            "seeds": {"choose": 1, "confirm": 2},
            "sampler": {"name": "tpe", "n_startup_trials": 8},
            "pruner": {"name": "median", "n_startup_trials": NEVER_PRUNED},
            "parallel": 8,
            # what is done to a ticket here is no reason to give it up
            "max_attempts": 1000,
            **study,
        },
        "search": {
            "temperature_init": {"low": 0.25, "high": 4.0},
            "temperature_final": {"low": 0.25, "high": 4.0},
            "schedule": ["constant", "linear", "cosine"],
            "lr": {"low": 0.0001, "high": 0.1, "log": True},
        },
        "model": {"class_path": "paced_modules.PacedModule"},
        "data": {"class_path": "toy_modules.ToyData"},
        "trainer": {
            "max_steps": steps,
            "val_check_interval": 4,
            "check_val_every_n_epoch": None,
            "accelerator": "cpu",
        },
        "resources": {"threads": 1},
    }


def recall_spec(tickets: int, **study: Any) -> dict[str, Any]:
    """Return the spec of a study of the same form that trains a transformer of lightning_modules.

    Args:
        tickets: Search tickets.
        study: Goes to its ``study:`` section.
    """
    base = spec(tickets, steps=RECALL_STEPS, metric="val_accuracy", direction="maximize", **study)
    sizes = {"vocabulary": 32}
    return {
        **base,
        "model": {"class_path": "paced_modules.PacedRecall", "init_args": {**sizes, "d_model": 32}},
        "data": {
            "class_path": "lightning_modules.AssociativeRecallData",
            "init_args": {**sizes, "pairs": [8, 16]},
        },
        "trainer": {**base["trainer"], "val_check_interval": 10, "gradient_clip_val": 1.0},
    }


def stored_spec(study: dict[str, Any]) -> dict[str, Any]:
    """Return a spec as the store holds it and a launcher's task is given it, with every default."""
    return StudySpec.parse(study, source="the tests of a study").to_json()


def environment(**extra_vars: str) -> dict[str, str]:
    """Return the environment of an agent that finds the package and the toys."""
    env_vars = {name: value for name, value in os.environ.items() if not name.startswith("TEMPOPT_")}
    path = os.pathsep.join(map(str, _MODULES))
    return {**env_vars, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **extra_vars}


def tempopt(*words: str) -> list[str]:
    """Return the command line of a tempopt command."""
    return [sys.executable, "-m", "tempopt", *words]


def spawn(command: Sequence[str], folder: Path, log: Path, env_vars: dict[str, str]) -> Process:
    """Start a command that adds to a log; Ctrl-C in the terminal is not for it."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=env_vars,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def write_spec(folder: Path, study: dict[str, Any]) -> str:
    """Write a spec to a file in a folder and return its path (JSON is YAML)."""
    path = folder / "spec.yaml"
    path.write_text(json.dumps(study))
    return str(path)


def set_pace(folder: Path, seconds: float, *, held_from: float = math.inf, held_at: int = 0) -> None:
    """Let every training step of agents that find the file ``pace`` of a folder last so much longer.

    Args:
        held_from: Number of the first search ticket whose runs are held, until another pace is set.
        held_at: Step at which they wait.
    """
    pace = {"seconds": seconds, "held_from": held_from, "held_at": held_at}
    (folder / "pace.new").write_text(json.dumps(pace))
    (folder / "pace.new").replace(folder / "pace")


def launch_task(folder: Path, url: str, study: dict[str, Any], **options: Any) -> Task:
    """Return an agent of a study for a launcher; the file ``pace`` of the folder has its pace."""
    env_vars = environment(PACE=str(folder / "pace"))
    return Task(
        study=NAME,
        storage=url,
        spec=stored_spec(study),
        options=("--checkpoints", str(folder / "runs")),
        folder=str(folder),
        environment={name: env_vars[name] for name in ("PYTHONPATH", "PACE", "OMP_NUM_THREADS")},
        **options,
    )


@dataclass(frozen=True)
class Record:
    """What a study came to, in words that are equal if and only if every bit is.

    Nothing here depends on who did what, in which order, or on how often it was tried.

    Args:
        tickets: By kind and number: seed, parameters, outcome, value.
        measurements: By kind, number, name and step: every report and every evaluation.
        trials: By number of the search ticket: what Optuna holds.
        verdict: What the study found.
    """

    tickets: dict[str, str]
    measurements: dict[str, str]
    trials: dict[str, str]
    verdict: dict[str, str]

    def __len__(self) -> int:
        return sum(len(getattr(self, field.name)) for field in fields(self))

    def differences(self, undisturbed: Record) -> list[str]:
        """Return in words where this is another study than the undisturbed one; empty if nowhere."""
        differences = []
        for field in fields(self):
            own_values, other_values = getattr(self, field.name), getattr(undisturbed, field.name)
            for key in sorted(own_values.keys() | other_values.keys()):
                if own_values.get(key) != other_values.get(key):
                    differences.append(
                        f"{field.name}, {key}: {own_values.get(key)} instead of {other_values.get(key)}"
                    )
        return differences


def tickets(url: str, name: str = NAME) -> list[TicketRow]:
    """Return a study's tickets as they are now."""
    with open_store(url, create=False) as store:
        return store.tickets(store.load_study(name).id)


def read_tickets(url: str, name: str = NAME) -> list[TicketRow]:
    """Return a study's tickets, none if it has not begun or the database is away."""
    with contextlib.suppress(StorageError):
        return tickets(url, name)
    return []


def state(url: str, name: str = NAME) -> StudyState:
    """Return a study's state as it is now."""
    with open_store(url, create=False) as store:
        return store.load_study(name).state


def _trials(url: str, name: str) -> list[optuna.trial.FrozenTrial]:
    """Return the trials as anybody sees them who knows Optuna and not tempopt."""
    storage = optuna.storages.RDBStorage(url)
    try:
        return optuna.load_study(study_name=name, storage=storage).trials
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _join_trials(rows: list[TicketRow], trials: list[optuna.trial.FrozenTrial]) -> dict[int, TicketRow]:
    """Return the search ticket of each trial; each has exactly one, as each ticket has."""
    search = {row.id: row for row in rows if row.kind == "search"}
    assert [trial.number for trial in trials] == list(range(len(search)))
    owners = {trial.number: search[trial.user_attrs["tempopt:ticket"]] for trial in trials}
    assert {number: row.trial_number for number, row in owners.items()} == {n: n for n in owners}
    assert len({row.id for row in owners.values()}) == len(search)
    return owners


def read(url: str, count: int, name: str = NAME) -> Record:
    """Return what became of a study that is over.

    Args:
        count: Search tickets that were asked for.

    Raises:
        AssertionError: It is not over, or its tickets and Optuna's trials do not fit together.
    """
    with open_store(url, create=False) as store:
        study = store.load_study(name)
        rows = store.tickets(study.id)
        measurements = store.measurements(study.id)
    assert study.state == "done"
    assert {row.state for row in rows} == {"done"}, [row for row in rows if row.state != "done"]
    assert [row.number for row in rows if row.kind == "search"] == list(range(count))
    result = load_study(url, name)
    trials = _trials(url, name)
    owners = _join_trials(rows, trials)
    assert {trial.state.name for trial in trials} <= {"COMPLETE", "PRUNED"}
    key = {row.id: f"{row.kind} {row.number:04d}" for row in rows}
    return Record(
        tickets={
            key[row.id]: repr((row.arm, row.seed, row.parameters, row.outcome, row.value, row.diverged_at))
            for row in rows
        },
        measurements={f"{key[m.ticket_id]} {m.name} {m.step}": repr(m.value) for m in measurements},
        trials={
            key[owners[trial.number].id]: repr(
                (trial.state.name, trial.values, trial.params, sorted(trial.intermediate_values.items()))
            )
            for trial in trials
        },
        verdict={"winner": repr(result.winner), "verdict": repr(result.verdict)},
    )


def run_undisturbed(folder: Path, study: dict[str, Any], workers: int = 2) -> Record:
    """Carry out a study with one agent in peace, in an empty folder, and return its record."""
    url = f"sqlite:///{folder / 'tempopt.db'}"
    command = tempopt("search", write_spec(folder, study), "--storage", url, "--workers", str(workers))
    process = subprocess.run(
        command, cwd=folder, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return read(url, study["study"]["trials"], study["study"]["name"])
