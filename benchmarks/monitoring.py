"""What watching attention costs beside a training step (goal: at most 1.02 times), in CPU time, in one run.

Three trainings of the same small language model, step by step in turn: alone, with an AttentionMonitor at
its defaults, and with the entropy of 64 queries of each layer at the same steps. A ratio is the median over
rounds of 100 steps, of which one is observed, of that to alone in the same round. Void unless all three end
with the same weights, bit for bit, and what was seen is the definition in float64.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lightning_modules
from lightning_modules.transformer import TransformerLayer
from tempopt.attention import AttentionMonitor, sampled_entropy

LAYERS, HEADS, WIDTH, BATCH, LENGTH = 2, 2, 64, 32, 64

# Step, layer, queries and keys.
Watch = Callable[[int, int, Tensor, Tensor], None]


class Training:
    """A causal model of source text, as in lightning_modules/source_lm.py, with its optimizer.

    Args:
        watch: What is shown each layer's queries and keys, None for nothing.
    """

    def __init__(self, watch: Watch | None) -> None:
        torch.manual_seed(0)
        self.watch = watch
        self.embed = nn.Embedding(256, WIDTH)
        self.body = nn.ModuleList(TransformerLayer(WIDTH, HEADS, rotary=True) for _ in range(LAYERS))
        self.read = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256))
        self.modules = nn.ModuleList([self.embed, self.body, self.read])
        self.optimizer = torch.optim.AdamW(self.modules.parameters(), lr=4e-3, fused=True)
        self.seconds = 0.0

    def attend(self, step: int, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return attention, having shown what it is made of."""
        if self.watch is not None:
            self.watch(step, layer, q, k)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def step(self, number: int, windows_BN: Tensor) -> None:
        """Train one step, and count its CPU time."""
        clock = time.process_time()
        x = self.embed(windows_BN[:, :-1])
        for layer, block in enumerate(self.body):
            x = block(x, partial(self.attend, number, layer))
        loss = F.cross_entropy(self.read(x).flatten(0, 1), windows_BN[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.modules.parameters(), 1.0)
        self.optimizer.step()
        self.seconds += time.process_time() - clock


def share_by_definition(q: Tensor, k: Tensor) -> Tensor:
    """Return H / ln n of causal attention in float64, from the second query on."""
    logits = q.double() @ k.double().transpose(-2, -1) / q.shape[-1] ** 0.5
    weights = logits.masked_fill(torch.ones(logits.shape[-2:]).triu(1) > 0, float("-inf")).softmax(-1)
    return torch.special.entr(weights).sum(-1)[..., 1:] / torch.arange(2, q.shape[-2] + 1).double().log()


class Checked:
    """The monitor and the sample, and whether what they saw is right."""

    def __init__(self) -> None:
        self.monitor = AttentionMonitor()
        self.generator = torch.Generator().manual_seed(0)
        self.shown: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.sampled: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def monitored(self, step: int, layer: int, q: Tensor, k: Tensor) -> None:
        """Show a step to the monitor."""
        self.monitor.update(step, layer, q, k, is_causal=True)
        if self.monitor.due(step):
            self.shown[step, layer] = q.detach(), k.detach()

    def sample(self, step: int, layer: int, q: Tensor, k: Tensor) -> None:
        """Take the entropy of some queries where the monitor looks, too."""
        if self.monitor.due(step):
            self.sampled[step, layer] = sampled_entropy(
                q, k, num_queries=64, generator=self.generator, is_causal=True
            )

    def check(self) -> None:
        """Assert every value that was seen."""
        seen = {
            (step, each.layer, each.head): value
            for each in self.monitor.report().of("entropy")
            for step, value in zip(each.steps, each.values, strict=True)
        }
        assert len(seen) == len(self.shown) * HEADS == len(self.sampled) * HEADS > 0
        for (step, layer), (q, k) in self.shown.items():
            exact = share_by_definition(q, k)
            # With its defaults it looks at 4 examples, and of these at 64 queries or all.
            examples, queries = self.monitor._draw(step, layer, q, None)
            assert len(examples) == 4 and len(queries) == q.shape[-2]
            for head in range(HEADS):
                expected = float(exact[examples, head].mean())
                assert abs(seen[step, layer, head] - expected) < 1e-5, (step, layer, head)
            mean, error = self.sampled[step, layer]
            assert bool(((mean - exact.mean(dim=(0, 2))).abs() < 6.0 * error).all()), (step, layer)


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    text = b"".join(path.read_bytes() for path in sorted(Path(lightning_modules.__path__[0]).glob("*.py")))
    bytes_T = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(1)
    checked = Checked()
    trainings = {
        "alone": Training(None),
        "monitored": Training(checked.monitored),
        "sampled": Training(checked.sample),
    }
    orders = list(itertools.permutations(trainings))
    times: dict[str, list[float]] = {name: [] for name in trainings}
    every = checked.monitor.every
    print(f"torch {torch.__version__}, load {os.getloadavg()[0]:.1f}")
    for number in range((rounds + 1) * every):
        starts = torch.randint(len(bytes_T) - LENGTH, (BATCH,), generator=generator)
        windows_BN = bytes_T[starts.unsqueeze(1) + torch.arange(LENGTH + 1)]
        for name in orders[number % len(orders)]:
            trainings[name].step(number, windows_BN)
        if number % every == every - 1:
            for name, training in trainings.items():
                times[name].append(training.seconds)
                training.seconds = 0.0
    checked.check()
    for training in trainings.values():
        for one, other in zip(
            training.modules.parameters(), trainings["alone"].modules.parameters(), strict=True
        ):
            assert torch.equal(one, other)
    # The first round pays for what is loaded at the first call.
    alone = times["alone"][1:]
    print(f"a step alone {1e3 * statistics.median(alone) / every:.2f} ms")
    for name in ("monitored", "sampled"):
        ratios = sorted(mine / its for mine, its in zip(times[name][1:], alone, strict=True))
        print(
            f"{name} {statistics.median(ratios):.4f} ({ratios[0]:.4f} to {ratios[-1]:.4f}), {rounds} rounds"
        )
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
