"""Studies of programs behind a server: begun over HTTP without an import, trained by agents, and shown."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import tempopt
from tests.program.conftest import COMMAND, PLAIN_SCRIPT, program_spec
from tests.server.http_server import RunningServer


def test_a_study_of_a_command_is_trained_behind_a_server(
    running_server: RunningServer, client: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(PLAIN_SCRIPT)
    spec = program_spec(
        {"command": COMMAND, "metric": "val_loss"}, trials=3, seeds={"choose": 1, "confirm": 8}
    )
    result = tempopt.search(spec, storage=running_server.url, workers=2, progress=False)
    assert result.state == "done" and result.verdict is not None and result.verdict.primary.significant
    # what reads it runs nothing
    monkeypatch.chdir(tmp_path)
    exported = client.get("/api/studies/plain/export")
    assert exported.status_code == 200 and "python train.py --seed 0 --gain" in exported.text
    assert client.get("/studies/plain").status_code == 200


def test_a_study_of_a_function_is_begun_without_an_import(
    running_server: RunningServer, client: httpx.Client, tmp_path: Path
) -> None:
    spec = program_spec({"function": "not_here.on_any_server"})
    answer = client.post("/api/studies", json={"spec": spec})
    assert answer.status_code == 201, answer.text
    assert running_server.store.load_study("plain").state == "running"
