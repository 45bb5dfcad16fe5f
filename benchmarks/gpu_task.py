"""What gpu.py has trained: a small transformer that writes down what it saw of its card.

It is measured from inside the trainer, by the module itself, so that nothing of tempopt is taken at its word.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tempopt import TemperedModule
from tempopt.attention import temper_query

_RUNS = itertools.count()
# Steps that are not timed: kernels are chosen and graphs are compiled in them.
_WARM = 20


class Block(nn.Module):
    """Attention and an MLP, with the normalisation before each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def split(self, x_BND: Tensor) -> tuple[Tensor, ...]:
        """Return queries, keys and values by head."""
        parts = self.qkv(self.before(x_BND)).chunk(3, dim=-1)
        return tuple(part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)


class WatchedModule(TemperedModule):
    """Says of random bytes which came before; writes one line of facts for every training.

    Args:
        facts: Folder to write into.
        width: Width of the model.
        depth: Its layers.
        heads: Its attention heads.
        ballast: Share of the card's memory that is taken beside the model before training begins.
        pretend: Without a card: a ballast does not fit the first time that it is asked for.
    """

    def __init__(
        self,
        facts: str,
        width: int = 256,
        depth: int = 4,
        heads: int = 8,
        lr: float = 1e-3,
        ballast: float = 0.0,
        pretend: bool = False,
        **temperature: Any,
    ) -> None:
        super().__init__(num_layers=depth, **temperature)
        self.embed = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.read = nn.Linear(width, 256)
        self.lr = lr
        self.facts, self.ballast, self.pretend = Path(facts), ballast, pretend
        self.dtypes: dict[str, str] = {}

    def forward(self, bytes_BN: Tensor) -> Tensor:
        x_BND = self.embed(bytes_BN)
        for layer, block in enumerate(self.blocks):
            q, k, v = block.split(x_BND)
            self.dtypes = {"attention": str(q.dtype), "temperature": str(self.inverse_temperature.dtype)}
            attention_out = self.attend(q, k, v, layer=layer, is_causal=True)
            x_BND = x_BND + block.out(attention_out.transpose(1, 2).flatten(2))
            x_BND = x_BND + block.mlp(block.between(x_BND))
        logits: Tensor = self.read(x_BND)
        return logits

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss.detach())
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def loss(self, batch: list[Tensor]) -> Tensor:
        """Return the cross-entropy of the byte before each byte."""
        bytes_BN = batch[0]
        return F.cross_entropy(self(bytes_BN)[:, 1:].flatten(0, 1).float(), bytes_BN[:, :-1].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=self.device.type == "cuda")

    def on_fit_start(self) -> None:
        """Take the ballast, and write down that it did not fit if it did not."""
        self.fact: dict[str, Any] = {"pid": os.getpid(), "run": next(_RUNS), "ballast": self.ballast}
        self.fact |= {"mask": os.environ.get("CUDA_VISIBLE_DEVICES"), "begun": time.time()}
        self.graphs = counters["stats"]["unique_graphs"]
        try:
            self.weight = self._ballast()
        except torch.OutOfMemoryError:
            self._note_down(end="out of memory")
            raise

    def _ballast(self) -> Tensor | None:
        if self.device.type == "cuda":
            total = torch.cuda.get_device_properties(self.device).total_memory
            buffer = torch.empty(int(self.ballast * total), dtype=torch.uint8, device=self.device)
            return buffer if self.ballast else None
        first = self.facts / "pretended"
        if self.pretend and self.ballast and not first.exists():
            first.touch()
            raise torch.OutOfMemoryError("pretended: there is no card")
        return None

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == _WARM:
            self._wait()
            self.clock = time.perf_counter()

    def on_train_end(self) -> None:
        """Write down what was seen of the card, and how fast it was."""
        self._wait()
        steps = self.global_step - _WARM
        rate = steps / (time.perf_counter() - self.clock) if steps > 0 else None
        self.fact |= {"rate": rate, "seen": self.dtypes, "precision": str(self.trainer.precision)}
        graphs = counters["stats"]["unique_graphs"]
        self.fact |= {"graphs": graphs - self.graphs, "graphs before": self.graphs}
        if self.device.type == "cuda":
            properties = torch.cuda.get_device_properties(self.device)
            self.fact |= {
                "card": properties.name,
                "uuid": str(properties.uuid),
                "cards": torch.cuda.device_count(),
                "peak": torch.cuda.max_memory_allocated(self.device),
            }
        self.fact["exact"] = _exact(self.device)
        self._note_down(end="trained")

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _note_down(self, **fields: Any) -> None:
        # of a training that was told to end, as the dry run's are, nothing is kept
        if fields["end"] != "trained" or self.global_step == self.trainer.max_steps:
            with (self.facts / f"{os.getpid()}.jsonl").open("a") as file:
                file.write(json.dumps({**self.fact, "ended": time.time(), **fields}) + "\n")


def _exact(device: torch.device) -> bool:
    """Return whether a temperature acts on half-precision queries as it is, not rounded to that first."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(4, 8, 64, 32, generator=generator).to(device, torch.bfloat16)
    factor = torch.tensor(1 / 3, device=device)
    return torch.equal(temper_query(q, 64, inverse_temperature=factor), (q.float() * factor).to(q.dtype))


class Bytes(L.LightningDataModule):
    """Random bytes, enough for one epoch of a run.

    Args:
        batch_size: Sequences of a batch.
        length: Bytes of a sequence.
        batches: Batches of an epoch.
    """

    def __init__(self, batch_size: int = 64, length: int = 256, batches: int = 50) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.shape = batch_size * batches, length

    def setup(self, stage: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self.bytes = TensorDataset(torch.randint(256, self.shape, generator=generator))

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.bytes, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.bytes, self.batch_size)
