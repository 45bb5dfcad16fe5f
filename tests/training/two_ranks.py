"""What two ranks of a run whose temperatures move with what it sees have to agree on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tempopt.agent.process import WorkerProcess
from tempopt.training.messages import CheckpointSaved, RunRequest, Started
from tempopt.training.run import Run
from tests.training.test_ranks import carry_out, finished_message, recorded_lines, results

STEPS = 24


def two_ranks_given(ranks: int, folder: Path) -> dict[str, Any]:
    """Return what is asked of ranks that record their steps in a folder, the same batch of six together."""
    recorder = {"class_path": "learned_modules.LearnedRecorder", "init_args": {"folder": str(folder)}}
    return {
        "trainer": {"devices": ranks, "callbacks": [recorder]},
        "data": {"batch_size": 6 // ranks, "noise": 0.0},
        "folder": str(folder / "logs"),
    }


def check_two_ranks(
    pair: WorkerProcess, make_request: Callable[..., RunRequest], listener: Any, folder: Path
) -> list[dict[str, Any]]:
    """Compare two ranks with each other, with a resumed run and with one device; return one's steps."""
    checkpoint_options = {"checkpoint_every": 0.001, "checkpoints": str(folder / "kept"), "ticket": 1}
    messages = carry_out(pair, make_request(2, **checkpoint_options))
    assert finished_message(messages).state == "complete"
    first, second = recorded_lines(folder, 2)
    assert _without_items(first) == _without_items(second)
    assert all(
        first_line["items"] != second_line["items"]
        for first_line, second_line in zip(first, second, strict=True)
    )

    middle = next(
        m.saved for m in messages if isinstance(m, CheckpointSaved) and 4 < m.saved.step < STEPS - 4
    )
    resumed_messages = carry_out(
        pair, dataclasses.replace(make_request(2, **checkpoint_options), attempt=2, resume=[middle])
    )
    assert [m.step for m in resumed_messages if isinstance(m, Started)] == [middle.step]
    assert results(resumed_messages) == results(messages)
    for lines in recorded_lines(folder, 2):
        assert _without_items(lines) == _without_items(first)[middle.step :]

    Run(make_request(1), listener()).execute()
    (alone,) = recorded_lines(folder, 1)
    for first_line, second_line, joint_line in zip(first, second, alone, strict=True):
        assert sorted(first_line["items"] + second_line["items"]) == joint_line["items"]
        assert first_line["logs"] == pytest.approx(joint_line["logs"], rel=1e-3, abs=1e-4)
    return first


def _without_items(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: line[name] for name in line if name != "items"} for line in lines]
