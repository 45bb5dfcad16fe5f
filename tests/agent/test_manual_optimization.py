"""A module that steps two optimizers by itself is searched, pruned and resumed as any other."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tempopt.api.calls import resume
from tests.servers import descendants, strike
from tests.toy_study import URL, read_study, start, tickets, toy_spec, undisturbed_study, wait_until

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("toy_folder")]


def adversarial(**changes: Any) -> dict[str, Any]:
    return {**toy_spec(**changes), "model": {"class_path": "toy_modules.Adversarial"}}


def test_a_search_that_is_killed_with_all_its_processes_ends_the_same_when_it_is_resumed(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    changes: dict[str, Any] = {"trainer": {"max_steps": 60}, "lease": 2.0}
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
    assert [row for row in tickets() if row.state not in ("done", "failed")]
    resumed_run = read_study(resume("toy", storage=URL, workers=1))
    facts = [
        sorted((fact[:-1] for fact in study_run.facts), key=repr) for study_run in (whole_run, resumed_run)
    ]
    assert facts[0] == facts[1]
    assert resumed_run.reports == whole_run.reports
    assert resumed_run.result.verdict == whole_run.result.verdict is not None
    assert "pruned" in {ticket.outcome for ticket in tickets()}
