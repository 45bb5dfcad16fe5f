"""Who asks for a dry run hears of its parts while it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tempopt.agent.dry_run import format_stage, run_dry_run
from tempopt.agent.study_runner import StudyRunner
from tempopt.spec.study_spec import StudySpec
from tempopt.training.messages import Failed, Finished, Message, RunRequest, Stage

STAGES = [
    Stage(ticket=0, attempt=1, what="made model and data", seconds=0.04),
    Stage(ticket=0, attempt=1, what="tested the temperatures of 12 layers", seconds=41.26),
]


class DryRunWorker:
    """A worker that says what the parts of a dry run took."""

    def __init__(self) -> None:
        self.requests: list[Message] = []
        self._replies: Iterator[Message] = iter(
            [
                *STAGES,
                Finished(
                    ticket=0,
                    attempt=1,
                    state="complete",
                    step=2,
                    measurements={},
                    metrics={},
                    seconds=0.0,
                    reports=[],
                ),
            ]
        )

    def send(self, message: RunRequest) -> None:
        self.requests.append(message)

    def receive(self) -> Message:
        return next(self._replies)


def spec() -> StudySpec:
    return StudySpec.parse(
        {
            "study": {"name": "s", "metric": "val_loss", "direction": "minimize"},
            "model": {"class_path": "m.Model"},
            "trainer": {"max_steps": 2},
            "search": {"temperature_init": {"low": 0.5, "high": 2}},
        },
        source="test",
    )


def test_parts_are_told_as_they_end() -> None:
    stages: list[str] = []
    worker: Any = DryRunWorker()
    run_dry_run(spec(), worker, task="dry_run", on_stage=lambda stage: stages.append(format_stage(stage)))
    assert stages == [
        "Dry run: made model and data (0.0 s).",
        "Dry run: tested the temperatures of 12 layers (41.3 s).",
    ]


class FailingWorker:
    """A worker that trains any parameter set but those with so many heads."""

    def __init__(self, heads: int) -> None:
        self.requests: list[dict[str, Any]] = []
        self._heads = heads

    def send(self, message: RunRequest) -> None:
        self.requests.append(message.parameters)

    def receive(self) -> Message:
        run: dict[str, Any] = {"ticket": 0, "attempt": 0}
        if self.requests[-1]["num_heads"] == self._heads:
            return Failed(**run, kind="usage", message="8 is not divisible by 3.")
        fields: dict[str, Any] = {"measurements": {}, "metrics": {}, "seconds": 0.0, "reports": []}
        return Finished(**run, state="complete", step=2, **fields)


def test_a_search_says_for_what_a_person_has_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []

    class DryRunObserver:
        note = staticmethod(notes.append)

    runner = object.__new__(StudyRunner)
    runner._observer = DryRunObserver()  # type: ignore[assignment]
    for stage in STAGES:
        runner._note_stage(stage)
    assert notes == ["Dry run: tested the temperatures of 12 layers (41.3 s)."]
