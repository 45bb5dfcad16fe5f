"""Lightning's private attributes that are used are there, and mean what they are used for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.demos.boring_classes import BoringModel

from tempopt.training import lightning_internals as internals
from tests.training.shared_trainings import quiet_trainer

TRAINING = Path(internals.__file__).parent


class BatchRecorder(L.Callback):
    """Asks everything that can be asked at the end of each batch."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bool, int, bool]] = []
        self.over: list[tuple[int, bool, bool]] = []
        self._due = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        def before(due: bool) -> None:
            self._due = due

        def after() -> None:
            internals.finish_restart(trainer)
            batches = trainer.fit_loop.epoch_loop.batch_progress.total.completed
            self.over.append((batches, self._due, internals.epoch_is_over(trainer)))

        internals.on_batch_over(trainer, before, after)

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        accumulates = internals.is_accumulating(trainer)
        logged, now = internals.logged_steps(trainer), internals.should_log_now(trainer)
        self.batches.append((trainer.global_step, accumulates, logged, now))


def test_the_installed_version_is_one_that_this_was_proved_with() -> None:
    assert L.__version__.rpartition(".")[0] in internals.TESTED_VERSIONS


def test_private_attributes_of_the_trainer_are_used_in_one_file() -> None:
    private = re.compile(r"\btrainer\._|fit_loop\._|epoch_loop\._|\bloop\._|_log_hyperparams")
    users = {path.name for path in TRAINING.glob("*.py") if private.search(path.read_text(encoding="utf-8"))}
    # what is compiled is told apart by the name of the attribute
    assert users - {"compiling.py"} == {"lightning_internals.py"}


def test_batches_and_steps_are_counted_as_they_are_used() -> None:
    recorder = BatchRecorder()
    options = {"limit_train_batches": 5, "limit_val_batches": 1, "val_check_interval": 4, "max_epochs": 1}
    trainer = quiet_trainer(recorder, accumulate_grad_batches=2, log_every_n_steps=1, **options)
    trainer.fit(BoringModel())
    # a step follows every second batch and the last one of the epoch
    assert [(step, is_accumulating) for step, is_accumulating, _, _ in recorder.batches] == [
        (0, True),
        (1, False),
        (1, True),
        (2, False),
        (3, False),
    ]
    assert [logged for *_, logged, _ in recorder.batches] == [0, 0, 1, 1, 2]
    assert recorder.over == [
        (1, False, False),
        (2, False, False),
        (3, False, False),
        (4, True, False),
        (5, False, True),
    ]


def test_a_training_may_stop_when_its_minimum_is_reached() -> None:
    answers: list[bool] = []

    class StopRecorder(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
            answers.append(internals.may_stop_early(trainer))

    options = {"limit_train_batches": 4, "limit_val_batches": 0, "max_epochs": 2, "min_steps": 6}
    quiet_trainer(StopRecorder(), **options).fit(BoringModel())
    assert answers[0] is False and answers[-1] is True


def test_the_state_is_that_of_a_checkpoint(tmp_path: Path) -> None:
    trainer = quiet_trainer(max_steps=2, limit_val_batches=0)
    trainer.fit(BoringModel())
    trainer.save_checkpoint(tmp_path / "whole.ckpt")
    checkpoint = torch.load(tmp_path / "whole.ckpt", weights_only=False)
    state = internals.dump_checkpoint(trainer)
    assert state.keys() == checkpoint.keys()
    assert state["global_step"] == 2
    for name, weights in checkpoint["state_dict"].items():
        assert torch.equal(state["state_dict"][name], weights)


def test_metrics_that_are_put_back_are_those_that_callbacks_read() -> None:
    trainer = quiet_trainer()
    internals.restore_metrics(trainer, {"val_loss": torch.tensor(0.25)})
    assert float(trainer.callback_metrics["val_loss"]) == 0.25


class MeanModule(BoringModel):
    """Logs the number of the batch, and records what it logs and which hooks end its training."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks: list[str] = []

    def on_train_start(self) -> None:
        self.hooks.append("start")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("mean", float(batch_idx), on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        self.hooks.append("epoch")

    def on_train_end(self) -> None:
        self.hooks.append("end")


def test_a_mean_of_training_goes_on_from_what_was_logged() -> None:
    means: list[Any] = []

    class Reader(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
            means[:] = internals.training_means(trainer)

    options = {"limit_val_batches": 0, "max_epochs": 1}
    quiet_trainer(Reader(), limit_train_batches=4, **options).fit(MeanModule())
    module, trainer = MeanModule(), quiet_trainer(limit_train_batches=2, **options)
    internals.on_train_begun(trainer, lambda: module.hooks.append("begun"))
    internals.on_train_begun(trainer, lambda: internals.restore_training_means(trainer, means))
    trainer.fit(module)
    # 0, 1, 2 and 3, then 0 and 1
    assert float(trainer.callback_metrics["mean"]) == pytest.approx(7 / 6)
    assert module.hooks == ["start", "begun", "epoch", "end"]


def test_a_training_that_ends_at_once_calls_no_hook_of_an_end() -> None:
    class Ender(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
            internals.end_at_once(trainer)

    module, trainer = MeanModule(), quiet_trainer(Ender(), limit_val_batches=0, max_epochs=3)
    trainer.fit(module)
    assert (trainer.global_step, module.hooks) == (1, ["start"])


def test_a_trainer_that_leaves_the_process_alone_handles_no_signal_and_finds_no_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = quiet_trainer(max_steps=1, limit_val_batches=0)
    for holder, name in (
        (trainer._signal_connector, "register_signal_handlers"),
        (trainer.fit_loop.epoch_loop, "_broadcast_sigterm_tensor"),
        (trainer._checkpoint_connector, "_select_ckpt_path"),
    ):
        assert callable(getattr(holder, name))
    internals.disable_signal_handlers(trainer)
    handlers: list[int] = []
    monkeypatch.setattr("signal.signal", lambda number, handler: handlers.append(number))
    trainer.fit(BoringModel())
    assert handlers == []
    assert trainer.global_step == 1


def test_the_rank_is_the_one_that_lightning_reads() -> None:
    before = rank_zero_only.rank
    try:
        internals.set_rank(3)
        assert rank_zero_only(lambda: "said")() is None
        internals.set_rank(0)
        assert rank_zero_only(lambda: "said")() == "said"
    finally:
        rank_zero_only.rank = before


def test_hyperparameters_are_logged_unless_a_module_says_otherwise() -> None:
    class HyperparameterModule(L.LightningModule):
        def __init__(self, rate: float = 0.1, *, logged: bool = True) -> None:
            super().__init__()
            self.save_hyperparameters(logger=logged)

    assert internals.logs_hyperparameters(HyperparameterModule())
    assert not internals.logs_hyperparameters(HyperparameterModule(logged=False))
