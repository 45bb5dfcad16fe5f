"""An attached encoder on two ranks trains as one process does on both batches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tempopt import attach

pytestmark = pytest.mark.long

RANKS, BATCH, TOKENS, WIDTH, STEPS = 2, 3, 6, 16, 4


def build() -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().train()


def draw_batch(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(RANKS * BATCH, TOKENS, WIDTH, generator=generator, dtype=torch.float64)


def train(wrap: Any, part: slice, entropy_lambda: float = 2.0) -> dict[str, torch.Tensor]:
    """Return the weights after some steps, each at a temperature of its own."""
    encoder = build()
    parameters = {"schedule": "linear", "temperature_init": 3.0, "temperature_final": 0.5}
    attachment = attach(encoder, parameters | {"entropy_lambda": entropy_lambda})
    model = wrap(encoder)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        attachment.set_progress(step / STEPS)
        optimizer.zero_grad()
        model(draw_batch(step)[part]).tanh().square().mean().backward()
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in encoder.state_dict().items()}


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    try:
        weights = train(DistributedDataParallel, slice(rank * BATCH, (rank + 1) * BATCH))
        torch.save(weights, f"{folder}/{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.skipif(sys.platform == "win32", reason="NOT TESTED: ranks. They are forked.")
def test_two_ranks_train_as_one_process_on_the_joined_batch(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(run_rank, (str(tmp_path),), nprocs=RANKS)
    expected = train(lambda encoder: encoder, slice(None))
    without = train(lambda encoder: encoder, slice(None), entropy_lambda=0.0)
    name = "layers.0.self_attn.in_proj_weight"
    assert (expected[name] - without[name]).abs().max() > 1e-4
    for rank in range(RANKS):
        weights = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert weights.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(weights[key], value, rtol=0, atol=1e-10)
