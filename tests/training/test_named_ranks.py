"""Ranks that train one run have its named temperatures alike, and nothing else of the training changes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tempopt.agent.process import WorkerProcess
from tempopt.training.messages import CheckpointSaved, Evaluation, RunRequest, Started
from tests.training.test_ranks import (
    TICKETS,
    carry_out,
    finished_message,
    make,
    pair,
    recorded_lines,
    results,
    same,
)

# fixtures are found by their names
__all__ = ["make", "pair"]
pytestmark = pytest.mark.long

WAYS = [
    ("temperature", "identity"),
    pytest.param("tau", "identity", marks=pytest.mark.nightly),
    ("logit_scale", "log_inverse"),
]
LINEAR = {"schedule": "linear", "temperature_final": 0.1}
STEPS = 24


def expected_taus(steps: int, initial_tau: float = 0.5) -> list[float]:
    return [initial_tau + (0.1 - initial_tau) * step / (steps - 1) for step in range(steps)]


def joint_lines(folder: Path) -> list[dict[str, Any]]:
    """Return what both ranks have written down, which is the same but for the items, and forget it."""
    first, second = recorded_lines(folder)
    assert same(first) == same(second)
    return same(first)


@pytest.fixture
def two(request_for: Any, tmp_path: Path) -> Any:
    """Return a maker of requests for two ranks whose loss has a temperature."""

    def make(reads: str, transform: str, *, named: bool = True, **options: Any) -> RunRequest:
        recorder = {"class_path": "contrast_modules.RankRecorder", "init_args": {"folder": str(tmp_path)}}
        value = {"value": f"criterion.{reads}", "transform": transform}
        request: RunRequest = request_for(
            "contrast_modules.AllUsed",
            init={"reads": reads},
            values={"contrast": value} if named else {},
            metric="val_gap",
            trainer={"devices": 2, "callbacks": [recorder]},
            ticket=next(TICKETS),
            data={"batch_size": 3},
            folder=str(tmp_path / "logs"),
            evaluations=[Evaluation(name="test", on="test")],
            compared=not named,
            **options,
        )
        return request

    return make


@pytest.mark.parametrize(("reads", "transform"), WAYS)
def test_two_ranks_have_the_same_named_temperature_at_every_step_and_after_a_resume(
    pair: WorkerProcess, two: Any, tmp_path: Path, reads: str, transform: str
) -> None:
    schedule = {f"contrast.{name}": value for name, value in LINEAR.items()}
    request = two(
        reads, transform, parameters=schedule, checkpoint_every=0.001, checkpoints=str(tmp_path / "kept")
    )
    assert finished_message(carry_out(pair, dataclasses.replace(request, task="dry_run"))).state == "complete"
    joint_lines(tmp_path)
    messages = carry_out(pair, request)
    assert finished_message(messages).state == "complete"
    lines = joint_lines(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["seen"][0] for line in lines] == pytest.approx(expected_taus(STEPS), rel=1e-6)
    assert {line["seen"][1] for line in lines} == {2.0}
    middle = [m.saved for m in messages if isinstance(m, CheckpointSaved) and 0 < m.saved.step < STEPS]
    for checkpoint in middle[1:2]:
        resumed_messages = carry_out(pair, dataclasses.replace(request, attempt=2, resume=[checkpoint]))
        assert [m.step for m in resumed_messages if isinstance(m, Started)] == [checkpoint.step]
        assert results(resumed_messages) == results(messages)
        assert joint_lines(tmp_path) == lines[checkpoint.step :]
    assert len(middle) > 1
