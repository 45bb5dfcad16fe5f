"""A trainer process: warm, apart from the agent, and gone when either ends."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tempopt.training.messages import (
    Failed,
    Finished,
    Kept,
    Message,
    Progress,
    Ready,
    Report,
    RunRequest,
    Started,
    Stop,
)
from tempopt.training.places import Place
from tempopt.training.process import TrainerProcess

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[TrainerProcess]:
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{REPOSITORY}")
    monkeypatch.chdir(tmp_path)
    process = TrainerProcess(slot=0, place=Place())
    yield process
    process.kill()


def carry_out(trainer: TrainerProcess, request: RunRequest) -> list[Message]:
    trainer.send(request)
    heard: list[Message] = []
    while not heard or not isinstance(heard[-1], Finished | Failed):
        message = trainer.receive()
        assert message is not None, trainer.obituary()
        heard.append(message)
    return heard


def results(heard: list[Message]) -> tuple[Any, ...]:
    (finished,) = (message for message in heard if isinstance(message, Finished))
    return finished.reports, finished.measurements, finished.metrics


def test_the_second_run_of_a_warm_trainer_equals_the_same_run_in_a_cold_one(
    trainer: TrainerProcess, request_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_for(parameters={"temperature_init": 2.0, "entropy_lambda": 0.1})
    other = request_for("Stock", attach={"layers": "auto"}, seed=9, parameters={"temperature_init": 3.0})
    cold = TrainerProcess(slot=1, place=Place())
    try:
        carry_out(trainer, other)
        warm = results(carry_out(trainer, request))
        assert results(carry_out(cold, request)) == warm
    finally:
        cold.kill()


def test_what_a_run_prints_and_the_traceback_of_its_end_are_in_its_log(
    trainer: TrainerProcess, request_for: Any, tmp_path: Path
) -> None:
    (*_, failed) = carry_out(trainer, request_for(init={"raise_at": 3}, folder=str(tmp_path / "run")))
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.message) == ("error", "RuntimeError: the toy breaks")
    assert "the toy breaks" in failed.traceback
    assert "the toy breaks" in (tmp_path / "run" / "log.txt").read_text()
    results(carry_out(trainer, request_for()))


def test_a_wrong_spec_fails_as_usage_and_the_trainer_lives_on(
    trainer: TrainerProcess, request_for: Any
) -> None:
    (*_, failed) = carry_out(trainer, request_for("Toi"))
    assert isinstance(failed, Failed)
    assert failed.kind == "usage"
    assert "Toi" in failed.message
    results(carry_out(trainer, request_for()))


def test_a_stop_message_ends_the_run_it_names(trainer: TrainerProcess, request_for: Any) -> None:
    trainer.send(request_for(trainer={"max_steps": 100_000}))
    while not isinstance(trainer.receive(), Report):
        pass
    trainer.send(Stop(ticket=1, attempt=2))
    trainer.send(Stop(ticket=1, attempt=1))
    while not isinstance(message := trainer.receive(), Finished):
        assert isinstance(message, Progress | Report)
    assert message.state == "stopped"


def test_a_trainer_is_not_told_where_the_studies_are_and_who_the_agent_is(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TEMPOPT_STORAGE", "TEMPOPT_STORAGE_FILE"):
        monkeypatch.setenv(name, "postgresql://me:secret@host/studies")
    monkeypatch.setenv("TEMPOPT_TRACEBACK", "1")
    # the agent's own place among processes, if Slurm or torchrun started it
    for name in ("SLURM_PROCID", "RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "3")
    trainer: TrainerProcess = request.getfixturevalue("trainer")
    assert isinstance(trainer.receive(), Ready)
    entries = Path(f"/proc/{trainer.pid}/environ").read_bytes().split(b"\0")
    told = {entry.partition(b"=")[0] for entry in entries}
    assert {b"OMP_NUM_THREADS", b"TEMPOPT_TRACEBACK"} <= told
    assert not [name for name in told if name.startswith(b"TEMPOPT_STORAGE")]
    assert not told & {b"SLURM_PROCID", b"RANK", b"LOCAL_RANK", b"WORLD_SIZE"}
    assert not [entry for entry in entries if b"secret" in entry]


def test_a_killed_trainer_is_reported_dead_with_the_signal(trainer: TrainerProcess, request_for: Any) -> None:
    trainer.send(request_for(trainer={"max_steps": 100_000}))
    while not isinstance(trainer.receive(), Started):
        pass
    os.kill(trainer.pid, signal.SIGKILL)
    while trainer.receive() is not None:
        pass
    assert trainer.obituary() == "the trainer was killed by SIGKILL"


def test_a_trainer_ends_when_its_agent_is_gone(trainer: TrainerProcess, request_for: Any) -> None:
    trainer.send(request_for(trainer={"max_steps": 100_000}))
    while not isinstance(trainer.receive(), Started):
        pass
    trainer.connection.close()
    assert trainer.obituary() == "the trainer was killed by SIGKILL"


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_is_left_to_the_agent(
    trainer: TrainerProcess, request_for: Any, number: signal.Signals
) -> None:
    trainer.send(request_for(data={"workers": 1}, trainer={"max_steps": 400}))
    while not isinstance(trainer.receive(), Report):
        pass
    workers = children(trainer.pid)
    assert workers
    for pid in (trainer.pid, *workers):
        os.kill(pid, number)
    while not isinstance(message := trainer.receive(), Finished | Failed):
        assert message is not None
    assert isinstance(message, Finished), message
    assert (message.state, message.step) == ("complete", 400)


def test_a_run_that_is_told_to_leave_keeps_a_checkpoint_and_goes_on_in_another_trainer(
    trainer: TrainerProcess, request_for: Any, tmp_path: Path
) -> None:
    request = request_for(trainer={"max_steps": 60}, checkpoints=str(tmp_path / "ticket"))
    trainer.send(request)
    while not isinstance(trainer.receive(), Report):
        pass
    trainer.send(Stop(ticket=1, attempt=1, keep=True))
    saved = []
    while not isinstance(message := trainer.receive(), Finished):
        if isinstance(message, Kept):
            saved.insert(0, message.saved)
    assert message.state == "stopped"
    assert saved[0].step == message.step
    other = TrainerProcess(slot=1, place=Place())
    try:
        heard = carry_out(other, dataclasses.replace(request, attempt=2, resume=saved))
        assert [each.step for each in heard if isinstance(each, Started)] == [saved[0].step]
        undisturbed = dataclasses.replace(request, ticket=2, checkpoints=None)
        assert results(heard) == results(carry_out(trainer, undisturbed))
    finally:
        other.kill()
