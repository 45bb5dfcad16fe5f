"""What the parts of a run take, as some steps of it show, beside runs that are trained to their end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tempopt.training.measure_times import measure, validations
from tempopt.training.messages import Evaluation
from tempopt.training.run import LightningRun

TRAINERS = [
    {},
    {"max_steps": 10, "val_check_interval": 4},
    {"max_steps": 7, "val_check_interval": 3, "accumulate_grad_batches": 2},
    {"max_steps": -1, "max_epochs": 3, "val_check_interval": 1.0, "check_val_every_n_epoch": 1},
    {"max_steps": -1, "max_epochs": 3, "val_check_interval": 0.5, "check_val_every_n_epoch": 1},
    {"max_steps": -1, "max_epochs": 5, "val_check_interval": 1.0, "check_val_every_n_epoch": 2},
    {"max_steps": 3, "val_check_interval": 0.5, "check_val_every_n_epoch": 1},
]
TRAININGS: list[tuple[str, dict[str, Any]]] = [
    *(("Toy", trainer) for trainer in TRAINERS),
    # they step by themselves
    *((module, trainer) for module in ("Manual", "Adversarial") for trainer in ({}, TRAINERS[4])),
]


@pytest.mark.parametrize(("module", "trainer"), TRAININGS, ids=str)
def test_a_whole_training_validates_as_often_as_is_said(
    request_for: Any, listener: Any, module: str, trainer: dict[str, Any]
) -> None:
    request = request_for(module, trainer=trainer)
    run_result = LightningRun(request, listener()).execute()
    times = measure(request).times
    assert times is not None
    assert (times.steps, times.validations) == (run_result.step, len(run_result.reports))
    if module == "Toy":
        assert times.ends_validated == (run_result.step in [step for step, _ in run_result.reports])


def test_every_part_that_a_run_has_takes_time(request_for: Any) -> None:
    tested = measure(request_for(evaluations=[Evaluation(name="test", on="test")])).times
    assert tested is not None
    assert min(tested.start, tested.step, tested.validate, tested.test) > 0
    untested = measure(request_for()).times
    assert untested is not None
    assert untested.test == 0


def test_steps_are_timed_without_what_lies_between_them(request_for: Any) -> None:
    def tick_clock() -> Iterator[float]:
        now = 0.0
        while True:
            now += 1.0
            yield now

    ticks = tick_clock()
    times = measure(
        request_for(trainer={"max_steps": 24, "val_check_interval": 2}), clock=lambda: next(ticks)
    )
    assert times.times is not None
    # each step asks for the time as often as any other, validations not counted
    assert times.times.step == pytest.approx(round(times.times.step))
    assert times.times.step <= 3


def test_a_training_of_one_step_is_timed_as_a_whole(request_for: Any) -> None:
    times = measure(request_for(trainer={"max_steps": 1, "val_check_interval": 1})).times
    assert times is not None
    assert (times.steps, times.step, times.validations) == (1, 0.0, 1)
    assert times.start > 0


@pytest.mark.parametrize(
    ("batches", "check", "epoch", "every", "expected"),
    [
        (500, 100, float("inf"), None, (5, True)),
        (499, 100, 64, None, (4, False)),
        (100, 25, 50, 1, (4, True)),
        (100, 20, 50, 1, (4, False)),
        (120, 20, 50, 1, (5, True)),
        (120, 50, 50, 2, (1, False)),
    ],
)
def test_validations_are_counted_as_by_hand(
    batches: int, check: float, epoch: float, every: int | None, expected: tuple[int, bool]
) -> None:
    assert validations(batches, check=check, epoch=epoch, every_n_epochs=every) == expected
