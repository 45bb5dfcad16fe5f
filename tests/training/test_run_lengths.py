"""Schedules are laid out over the steps that are taken; a run whose training takes others says so."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.training.dry_run import dry_run
from tempopt.training.messages import Started
from tempopt.training.run import LightningRun

MOVING = {"temperature_init": 2.0, "temperature_final": 0.5, "schedule": "linear"}
EPOCHS = {"max_steps": -1, "max_epochs": 4, "val_check_interval": 1.0, "check_val_every_n_epoch": 1}
ACCUMULATING = {
    "class_path": "lightning.pytorch.callbacks.GradientAccumulationScheduler",
    "init_args": {"scheduling": {1: 3, 3: 2}},
}
SWA = {
    "class_path": "lightning.pytorch.callbacks.StochasticWeightAveraging",
    "init_args": {"swa_lrs": 0.02, "swa_epoch_start": 2},
}


@pytest.fixture
def moving_request(request_for: Any) -> Any:
    """Return a function that makes a request of four epochs whose temperature moves from 2 to 0.5."""

    def make(module: str = "Net", trainer: dict[str, Any] | None = None, **fields: Any) -> Any:
        options = {"attach": {"layers": "auto"}, "data_class": "unusual_modules.WordData", **fields}
        settings = {**EPOCHS, **(trainer or {})}
        return request_for(f"unusual_modules.{module}", trainer=settings, parameters=MOVING, **options)

    return make


def temperatures_of(run: LightningRun) -> list[float]:
    """Return a list to which the temperature of each training step is added."""
    temperatures: list[float] = []
    training_step = run.module.training_step

    def record(*args: Any) -> Any:
        temperatures.append(run.tempered.temperatures[0])
        return training_step(*args)

    run.module.training_step = record  # type: ignore[method-assign]
    return temperatures


@pytest.mark.parametrize(
    ("module", "trainer", "num_steps"),
    [
        # 4 batches an epoch: 4 + 2 + 2 + 2 steps
        ("Net", {"callbacks": [ACCUMULATING]}, 10),
        ("Net", {"callbacks": [ACCUMULATING], "max_steps": 7}, 7),
        # and one behind the epoch for the statistics
        ("NormedNet", {"callbacks": [SWA]}, 17),
        ("NormedNet", {"callbacks": [SWA], "accumulate_grad_batches": 3}, 9),
        ("Net", {"callbacks": [SWA]}, 16),
        ("SkippingNet", {"max_epochs": -1, "max_steps": 9}, 9),
    ],
)
def test_a_schedule_is_as_long_as_its_training(
    moving_request: Any, listener: Any, module: str, trainer: dict[str, Any], num_steps: int
) -> None:
    channel = listener()
    run = LightningRun(moving_request(module, trainer), channel)
    temperatures = temperatures_of(run)
    finished = run.execute()
    (started,) = channel.messages_of(Started)
    assert (started.total_steps, finished.step, finished.notes) == (num_steps, num_steps, [])
    assert (temperatures[0], temperatures[-1]) == (2.0, 0.5)


@pytest.mark.parametrize(
    ("module", "fields", "num_steps"),
    [
        ("SkippingNet", {}, 7),
        ("SkippingNet", {"init": {"batch": 0}}, 4),
        (
            "Net",
            {
                "data_class": "unusual_modules.ShrinkingData",
                "trainer": {"reload_dataloaders_every_n_epochs": 1},
            },
            11,
        ),
    ],
    ids=["skips", "skips epochs", "shrinks"],
)
def test_a_training_that_ends_short_of_its_schedule_says_so(
    moving_request: Any, listener: Any, module: str, fields: dict[str, Any], num_steps: int
) -> None:
    finished = LightningRun(moving_request(module, **fields), listener()).execute()
    assert finished.step == num_steps
    (note,) = finished.notes
    assert f"took {num_steps} steps" in note
    assert "laid out over 16" in note


def test_a_training_that_is_ended_early_is_not_said_to_be_short(moving_request: Any, listener: Any) -> None:
    stopping = {
        "class_path": "lightning.pytorch.callbacks.EarlyStopping",
        "init_args": {"monitor": "val_loss", "patience": 1, "min_delta": 10.0},
    }
    finished = LightningRun(moving_request(trainer={"callbacks": [stopping]}), listener()).execute()
    assert (finished.step, finished.notes) == (8, [])


def test_batches_that_are_skipped_in_the_dry_run_are_refused(moving_request: Any, listener: Any) -> None:
    request = moving_request("SkippingFirstNet")
    with pytest.raises(SpecError, match=r"trainer: The training took 1 steps.*over 2.*trainer\.max_steps"):
        dry_run(request, listener())
