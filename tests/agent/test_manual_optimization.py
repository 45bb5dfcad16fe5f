"""A module that steps two optimizers by itself is searched, pruned and resumed as any other."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tempopt.api.calls import resume, search
from tempopt.service.studies import check
from tests.servers import descendants, strike, worker_pids
from tests.toy_study import (
    URL,
    Watcher,
    read_study,
    start,
    tickets,
    toy_spec,
    training,
    undisturbed_study,
    wait_until,
)

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("toy_folder")]

EPOCHS = {"max_steps": -1, "max_epochs": 4, "val_check_interval": 5, "check_val_every_n_epoch": 1}


def adversarial(**changes: Any) -> dict[str, Any]:
    return {**toy_spec(**changes), "model": {"class_path": "toy_modules.Adversarial"}}


def test_its_length_is_told_in_what_ends_it() -> None:
    # the toy data have ten batches an epoch
    assert "A run takes 24 steps." in check(adversarial(), dry_run=True)
    assert "A run takes 40 steps." in check(adversarial(trainer=EPOCHS), dry_run=True)


@pytest.mark.parametrize(
    "trainer", [{"max_steps": 60}, pytest.param(EPOCHS, marks=pytest.mark.nightly)], ids=["steps", "epochs"]
)
def test_a_worker_that_is_killed_in_the_middle_of_a_run_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, trainer: dict[str, Any]
) -> None:
    changes = {"trainer": trainer}
    whole_run = undisturbed_study(tmp_path_factory.mktemp("whole"), spec=adversarial, **changes)
    killer = Watcher(training, lambda: os.kill(worker_pids(os.getpid())[0], signal.SIGKILL))
    killed_run = read_study(search(adversarial(**changes), storage=URL, workers=1, observer=killer))
    assert any("SIGKILL" in note for note in killer.notes)
    assert 2 in {ticket.attempt for ticket in tickets()}
    assert (killed_run.facts, killed_run.reports) == (whole_run.facts, whole_run.reports)
    assert killed_run.result.verdict == whole_run.result.verdict is not None
    assert killed_run.result.tickets["search"].done == 8
    assert "pruned" in {ticket.outcome for ticket in tickets()}


@pytest.mark.parametrize(
    "trainer", [{"max_steps": 60}, pytest.param(EPOCHS, marks=pytest.mark.nightly)], ids=["steps", "epochs"]
)
def test_a_search_that_is_killed_with_all_its_processes_ends_the_same_when_it_is_resumed(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, trainer: dict[str, Any]
) -> None:
    changes = {"trainer": trainer, "lease": 2.0}
    whole_run = undisturbed_study(tmp_path_factory.mktemp("whole"), spec=adversarial, **changes)
    process = start(adversarial(**changes), tmp_path)
    try:
        # in the middle of the search, with checkpoints written and runs left
        wait_until(lambda rows: any(row.kind == "search" and row.state == "done" for row in rows))
    finally:
        pids = [process.pid, *descendants(process.pid)]
        for pid in pids:
            strike(pid, signal.SIGKILL)
        process.wait()
    open_rows = [row for row in tickets() if row.state not in ("done", "failed")]
    assert open_rows
    resumed_run = read_study(resume("toy", storage=URL, workers=1))
    facts = [
        sorted((fact[:-1] for fact in study_run.facts), key=repr) for study_run in (whole_run, resumed_run)
    ]
    assert facts[0] == facts[1]
    assert resumed_run.reports == whole_run.reports
    assert resumed_run.result.verdict == whole_run.result.verdict is not None
