"""The temperature follows the entropy that attention is to have, in a real training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tempopt import TemperedModule
from tempopt.attention import contrast, curriculum
from tempopt.errors import SpecError, UsageError
from tempopt.temperature import TemperatureParameters
from tempopt.training.entropy_control import EntropyControl
from tempopt.training.run import LightningRun
from tests.training.shared_trainings import quiet_trainer

ITEMS, WIDTH, STEPS = 12, 8, 240


class AttentionModule(TemperedModule):
    """Two layers whose weights hardly learn, so that the entropy is the temperature's doing."""

    def __init__(self, lr: float = 1e-4, attends: bool = True, **temperature: Any) -> None:
        super().__init__(num_layers=2, **temperature)
        self.lr, self.attends = lr, attends
        self.projections = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(2))
        for projection in self.projections:
            nn.init.normal_(projection.weight, std=0.5)
        self.head = nn.Linear(WIDTH, 1)

    def shares(self, x: torch.Tensor) -> list[float]:
        """Return H / ln n of each layer by definition, in float64, at the temperatures in force."""
        layer_shares = []
        with torch.no_grad():
            for layer, projection in enumerate(self.projections):
                q, k = projection(x).double().chunk(2, dim=-1)
                weights = (q @ k.mT / math.sqrt(WIDTH) / self.temperatures[layer]).softmax(-1)
                layer_shares.append(float(-(weights * weights.log()).sum(-1).mean() / math.log(ITEMS)))
                x = self.attend(q.float()[:, None], k.float()[:, None], x[:, None], layer=layer)[:, 0]
        return layer_shares

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        (x,) = batch
        y = x
        for layer, projection in enumerate(self.projections):
            q, k = projection(y)[:, None].chunk(2, dim=-1)
            y = self.attend(q, k, y[:, None], layer=layer)[:, 0] if self.attends else y
        return (self.head(y) - x.mean(-1, keepdim=True)).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("temperature", self.temperatures[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


@pytest.fixture
def data() -> torch.Tensor:
    return torch.randn(STEPS, ITEMS, WIDTH, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def module() -> AttentionModule:
    torch.manual_seed(0)
    return AttentionModule()


def train(module: L.LightningModule, data: torch.Tensor, *callbacks: L.Callback, **options: Any) -> L.Trainer:
    trainer = quiet_trainer(*callbacks, **{"max_epochs": 1, **options})
    loader = DataLoader(TensorDataset(data), batch_size=2)
    validates = "validation_step" in vars(type(module))
    trainer.fit(module, loader, loader if validates else None)
    return trainer


def test_the_entropy_ends_where_the_curriculum_ends(module: AttentionModule, data: torch.Tensor) -> None:
    before = module.shares(data[:8])
    control = EntropyControl(
        curriculum(init=0.95, final=0.5, schedule="linear"), every=1, rate=0.3, decay=0.0
    )
    train(module, data, control)
    assert module.shares(data) == pytest.approx([0.5, 0.5], abs=0.05)
    assert max(abs(share - 0.5) for share in before) > 0.15
    assert module.temperatures == control.temperatures
    assert module.temperatures[0] != module.temperatures[1]


def test_layers_move_apart_under_contrast(module: AttentionModule, data: torch.Tensor) -> None:
    train(module, data, EntropyControl(contrast(level=0.7, spread=4.0), every=1, rate=0.3, decay=0.0))
    broad, sharp = module.shares(data)
    odds = (broad / (1 - broad)) / (sharp / (1 - sharp))
    assert odds == pytest.approx(4.0, rel=0.3)


def test_validation_is_under_the_temperature_of_the_moment_and_a_checkpoint_keeps_it(
    module: AttentionModule, data: torch.Tensor, tmp_path: Path
) -> None:
    trainer = train(module, data, EntropyControl(every=1, rate=0.3))
    assert float(trainer.callback_metrics["temperature"]) == pytest.approx(module.temperatures[0])
    assert module.temperatures[0] != 1.0
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    loaded_module = AttentionModule.load_from_checkpoint(tmp_path / "end.ckpt", weights_only=True)
    assert loaded_module.temperatures == module.temperatures
    assert torch.equal(loaded_module.inverse_temperature, module.inverse_temperature)
    loaded_module.use(TemperatureParameters())
    assert loaded_module.temperatures == (1.0, 1.0)
    # a training that is over already has its temperatures, too
    loader = DataLoader(TensorDataset(data), batch_size=2)
    ended_trainer = quiet_trainer(EntropyControl(every=1, rate=0.3), max_epochs=1)
    ended_trainer.fit(loaded_module, loader, loader, ckpt_path=tmp_path / "end.ckpt", weights_only=True)
    assert loaded_module.temperatures == module.temperatures


def test_gradients_are_summed_over_batches_at_one_temperature(
    module: AttentionModule, data: torch.Tensor
) -> None:
    records: list[tuple[int, tuple[float, ...]]] = []

    class Notes(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
            records.append((trainer.global_step, pl_module.temperatures))

    control = EntropyControl(every=1, rate=0.3)
    train(module, data[:24], Notes(), control, accumulate_grad_batches=3)
    # before the control acts, at the end of each batch: three in a row are of one step
    assert [len({temperatures for _, temperatures in records[i : i + 3]}) for i in range(0, 12, 3)] == [1] * 4
    assert len({temperatures for _, temperatures in records}) == 4


def test_attention_that_is_not_seen_is_said(module: AttentionModule, data: torch.Tensor) -> None:
    module.attends = False
    with pytest.raises(UsageError, match=r"attention of layers \[0, 1\] was not observed"):
        train(module, data, EntropyControl())


def test_an_unknown_target_or_a_number_out_of_range_is_refused_before_training() -> None:
    with pytest.raises(SpecError, match='Did you mean "curriculum"'):
        EntropyControl("curiculum")
    with pytest.raises(SpecError, match="rate=-1"):
        EntropyControl(rate=-1)
    with pytest.raises(SpecError, match="every=0"):
        EntropyControl(every=0)
    with pytest.raises(SpecError, match="lowest=2.0 is not below highest=1.0"):
        EntropyControl(lowest=2.0, highest=1.0)


@pytest.mark.parametrize(
    ("module_args", "message"),
    [
        ({"temperature_init": 0.01}, "plan begins with the temperatures"),
        ({"normaliser": "sparsemax"}, 'the normaliser is "sparsemax"'),
    ],
)
def test_a_plan_that_cannot_be_controlled_is_refused(
    data: torch.Tensor, module_args: Any, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        train(AttentionModule(**module_args), data, EntropyControl())


def test_where_there_is_nothing_to_choose_no_temperature_is_moved(
    module: AttentionModule, data: torch.Tensor
) -> None:
    control = EntropyControl(every=1, rate=0.3)
    train(module, data[:40, :1], control)
    assert control.temperatures == (1.0, 1.0)


def test_a_study_refuses_what_would_control_its_runs_at_temperature_one(
    request_for: Any, listener: Any
) -> None:
    control = {"class_path": "tempopt.training.entropy_control.EntropyControl"}
    with pytest.raises(SpecError, match="EntropyControl sets the temperature of every run"):
        LightningRun(request_for(trainer={"callbacks": [control]}), listener())
    run = LightningRun(request_for(), listener())
    callbacks = run.module.configure_callbacks
    run.module.configure_callbacks = lambda: [*callbacks(), EntropyControl()]
    with pytest.raises(SpecError, match="configure_callbacks"):
        run.execute()


@pytest.mark.parametrize("temperatures", [[1.0], [1.0, 0.0], [1.0, math.nan], [1.0, "2"]])
def test_temperatures_that_cannot_be_are_refused_and_change_nothing(
    module: AttentionModule, temperatures: Any
) -> None:
    with pytest.raises(SpecError):
        module.set_temperatures(temperatures)
    assert module.temperatures == (1.0, 1.0)
