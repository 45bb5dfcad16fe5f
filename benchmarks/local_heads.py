"""What head patterns and local heads cost beside fused attention: time and peak memory as ratios, in one run.

Compared are torch's fused attention alone (plain), with a temperature for each head (pattern), with half of
the heads local (half) or all of them (all), and with half of them local beside a mask that hides nothing
else, as padding would be (masked). Each round has every way once, one after the other; a ratio is the median
over the rounds of that to plain in the same round. Void unless outputs and gradients are those of the
definition in float64.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.attention import AttentionFn, Inputs, peak_bytes, seconds, work
from tempopt.attention.functional.attention import tempered_attention
from tempopt.attention.functional.local_heads import NearKeys, local_attention, query_positions
from tempopt.temperature import ExponentialHeads

RATIO = 4.0
PATTERN = ExponentialHeads(head_ratio=RATIO)


def plain(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, ...]:
    return (F.scaled_dot_product_attention(q, k, v, is_causal=is_causal),)


def pattern(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, ...]:
    inverse_H11 = 1.0 / torch.tensor(PATTERN.factors(q.shape[1]), device=q.device)[:, None, None]
    return (tempered_attention(q, k, v, inverse_temperature=inverse_H11, is_causal=is_causal),)


class Local:
    """Attention of which a share of the heads is local.

    Args:
        share: Share of the heads.
        window: Their window.
        is_masked: Whether there is a mask besides.
    """

    def __init__(self, share: float, window: int, *, is_masked: bool = False) -> None:
        self.share, self.window, self.masked = share, window, is_masked

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, ...]:
        num_heads, length = q.shape[1:3]
        position_Q = query_positions(length, length, is_causal=is_causal, device=q.device)
        near = NearKeys(round(self.share * num_heads), self.window, position_Q)
        # with another mask both groups of heads take one
        mask = torch.ones(1, 1, 1, length, dtype=torch.bool, device=q.device) if self.masked else None
        options = {"inverse_temperature": 1.0, "attn_mask": mask, "is_causal": is_causal}
        return (local_attention(q, k, v, near=near, **options),)


def check(name: str, attend: AttentionFn, inputs: Inputs, is_causal: bool, window: int) -> None:
    """Assert output and gradients against the definition in float64, on some of the rows."""
    q, k, v = inputs
    num_heads, length = q.shape[1:3]
    rows = torch.linspace(0, length - 1, min(length, 48), device=q.device).long().unique()
    fine_q = q[:, :, rows].detach().double().requires_grad_()
    fine_k, fine_v = (x.detach().double().requires_grad_() for x in (k, v))
    logits = fine_q @ fine_k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if name == "pattern":
        along_H = torch.arange(num_heads, dtype=torch.float64, device=q.device) / (num_heads - 1)
        logits = logits / (RATIO ** (along_H - 0.5))[:, None, None]
    distance = torch.arange(length, device=q.device) - rows[:, None]
    hidden = torch.zeros(num_heads, *distance.shape, dtype=torch.bool, device=q.device)
    if is_causal:
        hidden |= distance > 0
    num_local = {"plain": 0, "pattern": 0, "all": num_heads}.get(name, num_heads // 2)
    hidden[:num_local] |= distance.abs() > window - 1
    expected = logits.masked_fill(hidden, -1e300).softmax(-1) @ fine_v
    (out,) = attend(*inputs, is_causal)
    torch.testing.assert_close(out[:, :, rows].double(), expected, rtol=1e-4, atol=1e-4)
    actual_grads = torch.autograd.grad(out[:, :, rows].double().square().sum(), inputs)
    expected_grads = torch.autograd.grad(expected.square().sum(), (fine_q, fine_k, fine_v))
    pairs = [
        (actual_grads[0][:, :, rows], expected_grads[0]),
        *zip(actual_grads[1:], expected_grads[1:], strict=True),
    ]
    for actual_grad, expected_grad in pairs:
        torch.testing.assert_close(
            actual_grad.double(), expected_grad, rtol=1e-4, atol=1e-4 * float(expected_grad.abs().max())
        )


def row(ways: dict[str, AttentionFn], inputs: Inputs, is_causal: bool, backward: bool, rounds: int) -> None:
    """Print one row of the table: ratios of time (lowest to highest) and of peak memory."""
    device = inputs[0].device.type
    tasks = {name: work(attend, inputs, is_causal, backward) for name, attend in ways.items()}
    memory = {name: peak_bytes(task, device) for name, task in tasks.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, task in tasks.items():
            times[name].append(seconds(task, device))
    kind = ("causal" if is_causal else "full") + (", both" if backward else ", forward")
    cells = [str(inputs[0].shape[-2]), kind]
    cells.append(f"{1e3 * statistics.median(times['plain']):.1f} ms, {memory['plain'] / 2**20:.1f} MB")
    for name in list(ways)[1:]:
        ratios = sorted(
            method_time / plain_time
            for method_time, plain_time in zip(times[name], times["plain"], strict=True)
        )
        spread = f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        cells.append(f"{statistics.median(ratios):.2f} {spread}, {memory[name] / memory['plain']:.1f}")
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {args.threads} threads, load {os.getloadavg()[0]:.1f}")
    ways: dict[str, AttentionFn] = {
        "plain": plain,
        "pattern": pattern,
        "half": Local(0.5, args.window),
        "all": Local(1.0, args.window),
        "masked": Local(0.5, args.window, is_masked=True),
    }
    print(f"| n | | {' | '.join(ways)} |\n|{'---|' * (len(ways) + 2)}")
    for length in args.lengths:
        shape = (1, args.heads, length, 64)
        generator = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(shape, generator=generator).to(args.device) for _ in range(3))
        inputs = (q.requires_grad_(), k.requires_grad_(), v.requires_grad_())
        for is_causal in (False, True):
            for name, attend in ways.items():
                check(name, attend, inputs, is_causal, args.window)
            for backward in (False, True):
                row(ways, inputs, is_causal, backward, args.rounds)


if __name__ == "__main__":
    main()
