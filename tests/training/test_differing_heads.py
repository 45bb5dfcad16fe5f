"""Trainings whose heads differ: exact from a checkpoint on, and the same over two ranks as over one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tempopt import TemperedModule
from tests.training.shared_trainings import quiet_trainer

HEADS, WIDTH, N = 4, 16, 10
DIFFERING = {"head_pattern": "exp", "head_ratio": 6.0, "local_share": 0.5, "window": 3}
MOVING = {"schedule": "linear", "temperature_init": 2.0, "temperature_final": 0.5, "length_scaling": "log_n"}


class DifferingCausalAttention(TemperedModule):
    """Two layers of causal attention and a read-out."""

    def __init__(self, **temperature: Any) -> None:
        super().__init__(num_layers=2, **temperature)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.read = nn.Linear(WIDTH, 1)

    def forward(self, x_BNM: Tensor) -> Tensor:
        for layer, project in enumerate(self.qkv):
            heads = project(x_BNM).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            x_BNM = x_BNM + self.attend(*heads, layer=layer, is_causal=True).transpose(1, 2).flatten(2)
        return self.read(x_BNM)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def make_module(**parameters: Any) -> DifferingCausalAttention:
    torch.manual_seed(0)
    return DifferingCausalAttention(**parameters)


def items(count: int = 12) -> Tensor:
    return torch.randn(count, N, WIDTH, generator=torch.Generator().manual_seed(1))


def fit(module: DifferingCausalAttention, *, max_epochs: int, ckpt_path: Path | None = None) -> L.Trainer:
    trainer = quiet_trainer(max_epochs=max_epochs)
    trainer.fit(
        module, DataLoader(TensorDataset(items()), batch_size=3), ckpt_path=ckpt_path, weights_only=True
    )
    return trainer


def test_a_module_from_its_checkpoint_has_the_same_heads(tmp_path: Path) -> None:
    module = make_module(**DIFFERING, **MOVING)
    fit(module, max_epochs=1).save_checkpoint(tmp_path / "end.ckpt")
    loaded_module = DifferingCausalAttention.load_from_checkpoint(tmp_path / "end.ckpt", weights_only=True)
    assert loaded_module.plan == module.plan
    assert torch.equal(loaded_module.eval()(items()), module.eval()(items()))
