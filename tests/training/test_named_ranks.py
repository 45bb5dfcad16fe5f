"""Ranks that train one run have its named temperatures alike, and nothing else of the training changes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tempopt.workers.messages import Evaluation, Kept, RunRequest, Started
from tempopt.workers.process import WorkerProcess
from tests.training.test_ranks import ELSEWHERE, TICKETS, carry_out, finished, make, pair, results

# fixtures are found by their names
__all__ = ["make", "pair"]
pytestmark = pytest.mark.long

HERE = Path(__file__).parent
WAYS = [
    ("temperature", "identity"),
    pytest.param("tau", "identity", marks=pytest.mark.nightly),
    ("logit_scale", "log_inverse"),
]
LINEAR = {"schedule": "linear", "temperature_final": 0.1}
STEPS = 24
ROWS = "rows"
PLACES = {"gate": "mixed.gate", "head": "head"}


def expected(steps: int, found: float = 0.5) -> list[float]:
    return [found + (0.1 - found) * step / (steps - 1) for step in range(steps)]


def recorded(folder: Path) -> list[dict[str, Any]]:
    """Return what both ranks have written down, which is the same, and forget it."""
    ranks = []
    for rank in range(2):
        path = folder / f"{rank}.jsonl"
        ranks.append([json.loads(line) for line in path.read_text().splitlines()])
        path.unlink()
    assert ranks[0] == ranks[1]
    return ranks[0]


@pytest.fixture
def two(request_for: Any, tmp_path: Path) -> Any:
    """Return a maker of requests for two ranks whose loss has a temperature."""

    def make(reads: str, transform: str = "", *, named: bool = True, **given: Any) -> RunRequest:
        recorder = {"class_path": "contrast_modules.RankRecorder", "init_args": {"folder": str(tmp_path)}}
        request: RunRequest = request_for(
            metric="val_loss" if reads == ROWS else "val_gap",
            trainer={"devices": 2, "callbacks": [recorder]},
            ticket=next(TICKETS),
            data={"batch_size": 3},
            folder=str(tmp_path / "logs"),
            evaluations=[Evaluation(name="test", on="test")],
            compared=not named,
            **given,
        )
        value = {"value": f"criterion.{reads}", "transform": transform, "rows": None, "as_found": None}
        model = {"class_path": "contrast_modules.AllUsed", "init_args": {"reads": reads}}
        values = {"contrast": value}
        if reads == ROWS:
            model = {"class_path": "routed_modules.Routed", "init_args": {}}
            rows = {"value": None, "transform": None, "as_found": 1.0}
            values = {name: {**rows, "rows": [pattern]} for name, pattern in PLACES.items()}
        program = dataclasses.replace(request.program, model=model, values=values if named else {})
        return dataclasses.replace(request, program=program)

    return make


@pytest.mark.parametrize(("reads", "transform"), WAYS)
def test_two_ranks_have_the_same_named_temperature_at_every_step_and_after_a_resume(
    pair: WorkerProcess, two: Any, tmp_path: Path, reads: str, transform: str
) -> None:
    schedule = {f"contrast.{name}": value for name, value in LINEAR.items()}
    request = two(
        reads, transform, parameters=schedule, checkpoint_every=0.001, checkpoints=str(tmp_path / "kept")
    )
    assert finished(carry_out(pair, dataclasses.replace(request, task="rehearse"))).state == "complete"
    recorded(tmp_path)
    heard = carry_out(pair, request)
    assert finished(heard).state == "complete"
    lines = recorded(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["seen"][0] for line in lines] == pytest.approx(expected(STEPS), rel=1e-6)
    assert {line["seen"][1] for line in lines} == {2.0}
    middle = [m.saved for m in heard if isinstance(m, Kept) and 0 < m.saved.step < STEPS]
    for each in middle[1:2]:
        again = carry_out(pair, dataclasses.replace(request, attempt=2, resume=[each]))
        assert [m.step for m in again if isinstance(m, Started)] == [each.step]
        assert results(again) == results(heard)
        assert recorded(tmp_path) == lines[each.step :]
    assert len(middle) > 1


@pytest.mark.parametrize(("reads", "transform"), WAYS)
def test_as_found_two_ranks_train_to_the_same_bits_as_without_it(
    pair: WorkerProcess, two: Any, tmp_path: Path, reads: str, transform: str
) -> None:
    plain = carry_out(pair, two(reads, transform, named=False))
    expected = recorded(tmp_path)
    found = carry_out(pair, two(reads, transform))
    assert recorded(tmp_path) == expected
    assert results(found) == results(plain)


def by_lightning(folder: Path, reads: str, schedule: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Train two ranks without a study, and return what both have written down."""
    alone = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    path = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(HERE / "named_under_ddp.py"), str(folder), reads, json.dumps(schedule)]
    done = subprocess.run(command, env=alone | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return recorded(folder)


@pytest.mark.parametrize(
    "reads",
    [*(pytest.param(each, marks=pytest.mark.nightly) for each in ("temperature", "tau")), "logit_scale"],
)
def test_a_callback_in_plain_lightning_moves_both_ranks_and_as_found_changes_no_bit(
    tmp_path: Path, reads: str
) -> None:
    plain, as_found = by_lightning(tmp_path, reads, None), by_lightning(tmp_path, reads, {})
    assert as_found == plain
    moved = by_lightning(tmp_path, reads, LINEAR)
    assert [line["seen"][0] for line in moved] == pytest.approx(expected(12), rel=1e-6)
    assert moved[1]["state"] != plain[1]["state"]


def test_two_ranks_divide_outputs_alike_and_go_on_in_mid_schedule(
    pair: WorkerProcess, two: Any, tmp_path: Path
) -> None:
    parameters = {f"{name}.{key}": value for name in PLACES for key, value in LINEAR.items()}
    request = two(ROWS, parameters=parameters, checkpoint_every=0.001, checkpoints=str(tmp_path / "kept"))
    assert finished(carry_out(pair, dataclasses.replace(request, task="rehearse"))).state == "complete"
    recorded(tmp_path)
    heard = carry_out(pair, request)
    lines = recorded(tmp_path)
    for which in range(len(PLACES)):
        assert [line["seen"][which] for line in lines] == pytest.approx(expected(STEPS, 1.0), rel=1e-6)
    middle = [m.saved for m in heard if isinstance(m, Kept) and 0 < m.saved.step < STEPS]
    again = carry_out(pair, dataclasses.replace(request, attempt=2, resume=[middle[1]]))
    assert [m.step for m in again if isinstance(m, Started)] == [middle[1].step]
    assert results(again) == results(heard)
    assert recorded(tmp_path) == lines[middle[1].step :]


def test_at_one_two_ranks_train_to_the_same_bits_as_without_it_and_learn_alike(
    pair: WorkerProcess, two: Any, tmp_path: Path
) -> None:
    plain = carry_out(pair, two(ROWS, named=False))
    lines = recorded(tmp_path)
    at_one = carry_out(pair, two(ROWS))
    assert recorded(tmp_path) == lines
    assert results(at_one) == results(plain)
    parameters = {f"{name}.as_found": 1.0 for name in PLACES} | {"learned.lr_ratio": 1.0}
    assert finished(carry_out(pair, two(ROWS, parameters=parameters))).state == "complete"
    learned = recorded(tmp_path)
    assert len({line["seen"][0] for line in learned}) == STEPS


def test_rows_in_plain_lightning_move_both_ranks_and_are_in_the_weights_of_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, at_one = by_lightning(tmp_path, ROWS, None), by_lightning(tmp_path, ROWS, {})
    assert at_one == plain
    moved = by_lightning(tmp_path, ROWS, LINEAR)
    for which in range(len(PLACES)):
        assert [line["seen"][which] for line in moved] == pytest.approx(expected(12, 1.0), rel=1e-6)
    assert moved[1]["state"] != plain[1]["state"]
    saved = torch.load(tmp_path / "trained.ckpt", weights_only=True)["state_dict"]
    raw = torch.load(tmp_path / "state.pt", weights_only=True)
    for name, value in raw.items():
        divided = name.startswith(tuple(PLACES.values()))
        assert torch.equal(saved[name], value * (1 / 0.1) if divided else value)
