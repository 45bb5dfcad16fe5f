"""Steps are counted in what ends the training, and the temperature moves with them from end to end."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest

from tempopt.errors import SpecError
from tempopt.training.messages import Started
from tempopt.training.run import Run

HOT = {"temperature_init": 4.0, "temperature_final": 1.0, "schedule": "linear"}
EPOCHS = {"max_steps": -1, "max_epochs": 2, "check_val_every_n_epoch": 1, "val_check_interval": 5}


class ProgressRecorder(L.Callback):
    """Keeps the progress that the temperature of each batch is that of."""

    def __init__(self) -> None:
        self.progress: list[float] = []

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
        self.progress.append(pl_module.progress)


def train_run(request: Any, listener: Any) -> tuple[Any, Any, list[float]]:
    channel, recorder = listener(), ProgressRecorder()
    run = Run(request, channel)
    run.trainer.callbacks.append(recorder)
    return run.execute(), channel.messages_of(Started)[0], recorder.progress


def test_a_training_by_epochs_counts_batches_whatever_steps_its_module_takes(
    request_for: Any, listener: Any
) -> None:
    for module in ("Manual", "Adversarial"):
        finished, started, progress = train_run(request_for(module, trainer=EPOCHS, parameters=HOT), listener)
        assert (started.total_steps, finished.step) == (20, 20)
        assert [step for step, _ in finished.reports] == [5, 10, 15, 20]
        assert progress == [batch / 19 for batch in range(20)]


def test_a_training_by_steps_counts_those_of_all_optimizers(request_for: Any, listener: Any) -> None:
    finished, started, progress = train_run(request_for("Adversarial", parameters=HOT), listener)
    # three steps in two batches
    assert (started.total_steps, finished.step) == (24, 24)
    assert [step for step, _ in finished.reports] == [6, 12, 18, 24]
    assert progress == [(3 * (batch // 2) + batch % 2) / 23 for batch in range(16)]


def test_a_training_that_two_counts_may_end_is_refused(request_for: Any, listener: Any) -> None:
    limits = {"max_steps": 24, "max_epochs": 2}
    with pytest.raises(SpecError, match=r"max_steps=24 and max_epochs=2.*all optimizers.*one of the two"):
        Run(request_for("Adversarial", trainer=limits, parameters=HOT), listener()).execute()
    # where each batch takes a step, the two are counted alike
    assert Run(request_for(trainer=limits), listener()).execute().step == 20
