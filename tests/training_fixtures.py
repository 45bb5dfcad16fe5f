"""Requests for runs of the toy modules, and a channel that listens to them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tempopt.spec.program import Program
from tempopt.training import build
from tempopt.training.messages import CheckpointRef, CheckpointSaved, Message, RunRequest, Stop

PROGRAM_FIELDS = {field.name for field in dataclasses.fields(Program)}
TRAINING_TESTS = Path(__file__).parent / "training"


class Listener:
    """A channel that keeps what it hears, and may stop the run or end the process's part in it.

    Args:
        die_at: Optimizer step at whose progress the run is killed.
        stop_at: Optimizer step from which on the run is to end; ``keep``: with a checkpoint.
        stop_after: Number of messages after which it is to end.
    """

    def __init__(
        self,
        *,
        die_at: int | None = None,
        stop_at: int | None = None,
        stop_after: int | None = None,
        keep: bool = False,
    ) -> None:
        self.received: list[Message] = []
        self.die_at = die_at
        self.stop_at = stop_at
        self.stop_after = stop_after
        self.keep = keep
        self.step = 0

    def send(self, message: Message) -> None:
        self.received.append(message)
        self.step = getattr(message, "step", self.step)
        if type(message).__name__ == "Progress" and self.die_at is not None and self.step >= self.die_at:
            raise SystemExit

    def find_stop(self, request: RunRequest) -> Stop | None:
        is_reached = self.stop_at is not None and self.step >= self.stop_at
        if is_reached or (self.stop_after is not None and len(self.received) >= self.stop_after):
            return Stop(ticket=request.ticket, attempt=request.attempt, keep=self.keep)
        return None

    def messages_of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.received if isinstance(message, kind)]

    @property
    def saved(self) -> list[CheckpointRef]:
        """The checkpoints, newest first, as an agent would give them to the next attempt."""
        return [message.saved for message in reversed(self.messages_of(CheckpointSaved))]


@pytest.fixture
def listener() -> type[Listener]:
    return Listener


@pytest.fixture
def request_for(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunRequest]:
    """Return a function that makes a request; its keyword arguments go to the program or the request.

    A module without a dot is one of ``toy_modules``.
    """
    monkeypatch.syspath_prepend(str(TRAINING_TESTS))
    monkeypatch.setattr("tempopt.training.run.BEAT_SECONDS", 0.0)

    def make(
        module: str = "Toy",
        *,
        init: dict[str, Any] | None = None,
        data: dict[str, Any] | None = None,
        data_class: str = "ToyData",
        trainer: dict[str, Any] | None = None,
        values: dict[str, dict[str, Any]] | None = None,
        reads_temperature: bool = False,
        **fields: Any,
    ) -> RunRequest:
        defaults: dict[str, Any] = {
            "attach": None,
            "metric": "val_loss",
            "validate_at": "final",
            "data_seed": 0,
        }
        of_program = defaults | {name: fields.pop(name) for name in PROGRAM_FIELDS & fields.keys()}
        length = {"max_steps": 24, "val_check_interval": 4, "check_val_every_n_epoch": None}
        program = Program(
            model={
                "class_path": module if "." in module else f"toy_modules.{module}",
                "init_args": init or {},
            },
            data={
                "class_path": data_class if "." in data_class else f"toy_modules.{data_class}",
                "init_args": data or {},
            },
            trainer={**length, "accelerator": "cpu", **(trainer or {})},
            values={
                name: {"value": None, "transform": "identity", "as_found": None, **value}
                for name, value in (values or {}).items()
            },
            metric_reads_temperature=reads_temperature,
            **of_program,
        )
        request_defaults: dict[str, Any] = {"ticket": 1, "attempt": 1, "seed": 5, "parameters": {}}
        return RunRequest(program=program, **{**request_defaults, **fields})

    yield make
    for name in (
        "toy_modules",
        "learned_modules",
        "hugging_modules",
        "unusual_modules",
        "resume_modules",
        "argument_forms",
    ):
        sys.modules.pop(name, None)
    # or the next test would get classes whose module is gone
    build._cached_factory.cache_clear()
