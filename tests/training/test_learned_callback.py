"""Learned temperatures beside a module that learns ln τ by itself, as a parameter of its own optimizer."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tempopt.attention.attach.attachment import attach
from tempopt.attention.attach.values import Transform, attach_value
from tempopt.training.learned_callback import LearnedTemperatureCallback
from tests.training.shared_trainings import quiet_trainer

LR, RATIO, WEIGHT_DECAY = 1e-2, 10.0, 0.1


class Losses(L.LightningModule):
    """A classifier whose loss divides logits by a temperature, stored in one of three ways."""

    def __init__(self, stored: float, transform: str, optimizer: type[torch.optim.Optimizer]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = stored
        self.transform, self.optimizer = transform, optimizer

    def tau(self) -> Any:
        scale = self.scale
        if self.transform == "log_inverse":
            return (-scale).exp() if isinstance(scale, Tensor) else math.exp(-scale)
        return 1 / scale if self.transform == "inverse" else scale

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layer(batch[0]) / self.tau(), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(self.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)  # type: ignore[call-arg]
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class ByItself(Losses):
    """The same with ln τ as a parameter in a group of its own."""

    def __init__(self, tau: float, optimizer: type[torch.optim.Optimizer]) -> None:
        super().__init__(tau, "identity", optimizer)
        self.log_tau = nn.Parameter(torch.tensor(math.log(tau), dtype=torch.float64))

    def tau(self) -> Tensor:
        return self.log_tau.exp()

    def configure_optimizers(self) -> Any:
        groups = [
            {"params": list(self.layer.parameters()), "weight_decay": WEIGHT_DECAY},
            {"params": [self.log_tau], "lr": RATIO * LR, "weight_decay": 0.0},
        ]
        optimizer = self.optimizer(groups, lr=LR)  # type: ignore[call-arg]
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def batches() -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(128, 4, generator=draw)
    return DataLoader(TensorDataset(x, x.argmax(dim=1)), batch_size=16)


def train(
    module: L.LightningModule, *callbacks: L.Callback, data: Any = None, **options: Any
) -> L.LightningModule:
    trainer = quiet_trainer(*callbacks, **{"max_epochs": 3, **options})
    trainer.fit(module, batches() if data is None else data)
    return module


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(
    ("transform", "stored"), [("identity", 0.5), ("inverse", 2.0), ("log_inverse", math.log(2.0))]
)
def test_what_is_learned_is_what_a_parameter_of_the_module_would_learn(
    transform: Transform, stored: float, accumulate: int, optimizer: type[torch.optim.Optimizer]
) -> None:
    torch.manual_seed(0)
    plain = ByItself(0.5, optimizer)
    module = Losses(stored, transform, optimizer)
    module.load_state_dict({name: value for name, value in plain.state_dict().items() if name != "log_tau"})
    train(plain, accumulate_grad_batches=accumulate)
    attachment = attach_value(module, "scale", {}, transform=transform)
    learned = LearnedTemperatureCallback({"contrast": attachment}, lr_ratio=RATIO)
    train(module, learned, accumulate_grad_batches=accumulate)
    (tau,) = attachment.temperatures
    assert tau == pytest.approx(float(plain.tau().detach()), rel=1e-5)
    assert abs(math.log(tau / 0.5)) > 1e-3
    torch.testing.assert_close(module.layer.weight, plain.layer.weight, rtol=1e-4, atol=1e-6)
    assert learned.names_without_gradient == []
    (curve,) = learned.curves.values()
    assert curve[0] == [0, pytest.approx(0.5)] and curve[-1][1] == pytest.approx(tau)
    attachment.detach()
    assert module.scale == stored and type(module.scale) is float


def test_only_the_callback_updates_a_parameter_of_the_module() -> None:
    torch.manual_seed(0)
    module = Losses(0.0, "log_inverse", torch.optim.AdamW)
    del module.scale
    module.scale = nn.Parameter(torch.tensor(math.log(2.0)))  # type: ignore[assignment]
    attachment = attach_value(module, "scale", {}, transform="log_inverse")
    train(module, LearnedTemperatureCallback({"contrast": attachment}, lr_ratio=RATIO))
    # weight decay would have drawn it towards 0 as well
    assert float(module.scale.detach()) == pytest.approx(-math.log(attachment.temperatures[0]), rel=1e-5)
    attachment.detach()
    assert module.scale.requires_grad and module.scale.grad is None  # type: ignore[attr-defined]
    assert float(module.scale.detach()) == pytest.approx(math.log(2.0))


def test_what_no_gradient_reaches_is_named() -> None:
    class RoundedLosses(Losses):
        def tau(self) -> float:
            return float(torch.as_tensor(self.scale).detach())

    torch.manual_seed(0)
    module = RoundedLosses(0.5, "identity", torch.optim.AdamW)
    attachment = attach_value(module, "scale", {})
    learned = LearnedTemperatureCallback({"contrast": attachment}, lr_ratio=RATIO)
    train(module, learned)
    assert learned.names_without_gradient == ["contrast"]
    assert attachment.temperatures == pytest.approx((0.5,))


class AttentionStack(nn.Module):
    """Two layers of self-attention and their mean."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64) for _ in range(2)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=False)[0]
        return (x * torch.linspace(0, 1, x.numel(), dtype=x.dtype).view_as(x)).sum()


def test_the_gradient_at_query_rows_is_that_of_finite_differences() -> None:
    torch.manual_seed(0)
    model, x = AttentionStack(), torch.randn(2, 5, 8, dtype=torch.float64)
    attachment = attach(model, {}, example=None)
    attachment.learn()
    taus = (0.7, 1.8)
    attachment.set_temperatures(taus)
    assert attachment.log_gradients() is None
    (3 * model(x)).backward()
    gradients = attachment.log_gradients()
    assert gradients is not None and attachment.log_gradients() is None
    eps = 1e-6
    for layer in range(2):
        values = []
        for sign in (1, -1):
            moved = [tau * math.exp(sign * eps * (index == layer)) for index, tau in enumerate(taus)]
            attachment.set_temperatures(moved)
            values.append(3 * float(model(x).detach()))
        assert gradients[layer] == pytest.approx((values[0] - values[1]) / (2 * eps), rel=1e-5)
