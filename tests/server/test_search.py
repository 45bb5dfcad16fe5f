"""A search behind a server with real trainings, printed line by line while the server prunes its runs."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from tempopt.api.calls import search
from tempopt.service.progress import LineProgress
from tests.server.http_server import RunningServer
from tests.toy_study import REPOSITORY, toy_spec, work_in

CLUSTER = REPOSITORY / "tests" / "cluster"


def test_search_behind_a_server_prints_pruned_runs(
    running_server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_in(tmp_path, monkeypatch)
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}{CLUSTER}")
    pace = tmp_path / "pace"
    pace.write_text("0.05")
    monkeypatch.setenv("PACE", str(pace))
    pruner = {"name": "threshold", "upper": 0.01}
    spec = toy_spec(trials=3, candidates=1, pruner=pruner)
    spec["study"] |= {"arms": {"baseline": 1, "constant": 1}, "seeds": {"choose": 1, "confirm": 2}}
    spec["model"]["class_path"] = "paced_modules.PacedModule"
    stream = io.StringIO()
    search(spec, storage=running_server.url, workers=2, observer=LineProgress(stream, verbose=True))
    study = running_server.store.load_study("toy")
    assert "pruned" in [ticket.outcome for ticket in running_server.store.tickets(study.id)]
    # A run that ends before the server's answer arrives is printed with its value.
    assert "pruned at step" in stream.getvalue()
