"""A tracker whose server is there and says nothing: how long it is waited for, and by which runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tempopt.training import trackers
from tempopt.training.loggers import loggers_given
from tempopt.training.messages import RunLabel, Started
from tempopt.training.run import Run

LABEL = RunLabel(study="warm", study_created_at="2026-01-01", run="search-0012", kind="search", arm="search")


@pytest.fixture
def silent_server() -> Iterator[str]:
    """The URL of a server that accepts and says nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_server_that_says_nothing_is_waited_for_by_one_run_and_left_out_of_the_next_ones(
    request_for: Any, listener: Any, silent_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(trackers, "_WAITED_SECONDS", 0.5)
    monkeypatch.setattr(trackers, "_away", {})
    logger = {"class_path": "MLFlowLogger", "init_args": {"tracking_uri": silent_server}}
    trainer = {"logger": logger, "log_every_n_steps": 8}
    expected = Run(request_for(), listener()).execute()
    run_notes = []
    for _ in range(2):
        channel = listener()
        finished = Run(request_for(trainer=trainer, label=LABEL), channel).execute()
        assert finished.reports == expected.reports
        run_notes.append([*channel.messages_of(Started)[0].notes, *finished.notes])
    ((first,), (second,)) = run_notes
    assert first.startswith("trainer.logger: MLFlowLogger failed (") and "Max retries exceeded" in first
    assert second == (
        "trainer.logger: MLFlowLogger kept an earlier run waiting, and is asked again after 10 minutes. "
        "The run continues without it."
    )
    trackers._away.update(dict.fromkeys(trackers._away, 0.0))
    later_result = Run(request_for(trainer=trainer, label=LABEL), listener()).execute()
    assert not any("an earlier run" in note for note in later_result.notes), "after a while it is asked again"


def test_tracker_timeouts_are_short_unless_the_environment_sets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((logger_spec,), _) = loggers_given({"class_path": "CSVLogger", "init_args": {"save_dir": str(tmp_path)}})
    # set first, so that both are as they were when the test is over
    for name in ("MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "WANDB_FINISH_TIMEOUT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")
    logger_spec.make(LABEL)
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "10"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "5"
