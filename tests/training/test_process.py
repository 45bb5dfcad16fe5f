"""A trainer process: warm, apart from the agent, and gone when either ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tempopt.training.messages import Failed, Finished, Message, Progress, Report, RunRequest, Started, Stop
from tempopt.training.process import TrainerProcess

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[TrainerProcess]:
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{REPOSITORY}")
    monkeypatch.chdir(tmp_path)
    process = TrainerProcess(slot=0, threads=1)
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
    cold = TrainerProcess(slot=1, threads=1)
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
    assert trainer.obituary() == "the trainer ended with exit code 1"


def test_control_c_in_the_terminal_is_left_to_the_agent(trainer: TrainerProcess, request_for: Any) -> None:
    trainer.send(request_for())
    while not isinstance(trainer.receive(), Started):
        pass
    os.kill(trainer.pid, signal.SIGINT)
    while not isinstance(message := trainer.receive(), Finished):
        assert message is not None
    assert message.state == "complete"
