"""What the entropy of attention costs beside attention: time and peak memory as ratios to plain, in one run.

Compared are torch's fused attention alone (plain), the same with the entropy from the whole matrix of logits
(naive), and both from one pass (exact). Each round has every way once, one after the other; a ratio is the
median over the rounds of that to plain in the same round. Void unless output, entropy and gradients are those
of the definition in float64.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tempopt.attention.functional.entropy import attention_with_entropy

Inputs = tuple[Tensor, Tensor, Tensor]
AttentionFn = Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, ...]]


def plain(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, ...]:
    return (F.scaled_dot_product_attention(q, k, v, is_causal=is_causal),)


def naive(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, ...]:
    logits = (q @ k.transpose(-2, -1)).float() / math.sqrt(q.shape[-1])
    if is_causal:
        future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        logits = logits.masked_fill(future, -1e4)
    log_weights = logits.log_softmax(-1)
    return *plain(q, k, v, is_causal), -(log_weights.exp() * log_weights).sum(-1)


def exact(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, ...]:
    return attention_with_entropy(q, k, v, is_causal=is_causal)


WAYS: dict[str, AttentionFn] = {"plain": plain, "naive": naive, "exact": exact}


def check(attend: AttentionFn, inputs: Inputs, is_causal: bool) -> None:
    """Assert output, entropy and gradients against the definition in float64, on some of the rows."""
    q, k, v = inputs
    length = q.shape[-2]
    rows = torch.linspace(0, length - 1, min(length, 48), device=q.device).long().unique()
    fine = (
        q[:, :, rows].detach().double().requires_grad_(),
        *(x.detach().double().requires_grad_() for x in (k, v)),
    )
    logits = fine[0] @ fine[1].transpose(-2, -1) / math.sqrt(q.shape[-1])
    if is_causal:
        causal_mask = torch.arange(length, device=q.device) <= rows.unsqueeze(-1)
        logits = logits.masked_fill(~causal_mask, -1e300)
    weights = logits.softmax(-1)
    expected = weights @ fine[2], -(weights * logits.log_softmax(-1).clamp(min=-1e3)).sum(-1)
    results = attend(*inputs, is_causal)
    rough = 1e-4 if q.dtype == torch.float32 else 3e-2
    for actual, reference in zip(results, expected, strict=False):
        torch.testing.assert_close(actual[:, :, rows].double(), reference, rtol=rough, atol=rough)
    loss = sum((x[:, :, rows].double().square().sum() for x in results), torch.zeros((), device=q.device))
    reference = sum((x.square().sum() for x in expected[: len(results)]), torch.zeros((), device=q.device))
    grads = torch.autograd.grad(loss, inputs)
    expected_grads = torch.autograd.grad(reference, fine)
    pairs = [(grads[0][:, :, rows], expected_grads[0]), *zip(grads[1:], expected_grads[1:], strict=True)]
    for actual, expected_grad in pairs:
        torch.testing.assert_close(
            actual.double(), expected_grad, rtol=rough, atol=rough * float(expected_grad.abs().max())
        )


def work(attend: AttentionFn, inputs: Inputs, is_causal: bool, backward: bool) -> Callable[[], object]:
    """Return what is measured: the pass forward, or both, from gradients that are there already."""

    def forward() -> None:
        with torch.no_grad():
            attend(*inputs, is_causal)

    def run_both() -> None:
        results = attend(*inputs, is_causal)
        torch.autograd.grad(results, inputs, [torch.ones_like(result) for result in results])

    return run_both if backward else forward


def seconds(task: Callable[[], object], device: str) -> float:
    """Return the CPU time of one call, or the card's."""
    if device == "cpu":
        clock = time.process_time()
        task()
        return time.process_time() - clock
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    task()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def peak_bytes(task: Callable[[], object], device: str) -> int:
    """Return the most memory that is held during a call beyond what was before."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        bytes_before = torch.cuda.memory_allocated()
        task()
        return torch.cuda.max_memory_allocated() - bytes_before
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        task()
    bytes_held = max_bytes = 0
    events = profile.profiler.kineto_results.events()
    for event in sorted(
        (event for event in events if event.name() == "[memory]"), key=lambda event: event.start_ns()
    ):
        bytes_held += event.nbytes()
        max_bytes = max(max_bytes, bytes_held)
    return max_bytes


def compare(
    inputs: Inputs, ways: list[str], is_causal: bool, backward: bool, rounds: int, device: str
) -> None:
    """Print one row of the table."""
    tasks = {name: work(WAYS[name], inputs, is_causal, backward) for name in ways}
    memory = {name: peak_bytes(task, device) for name, task in tasks.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, task in tasks.items():
            times[name].append(seconds(task, device))
    kind = ("causal" if is_causal else "full") + (" f+b" if backward else " fwd")
    cells = [f"{inputs[0].shape[-2]:6} {kind:10}"]
    cells.append(f"{1e3 * statistics.median(times['plain']):8.1f} ms {memory['plain'] / 2**20:7.1f} MB")
    for name in ways[1:]:
        ratios = sorted(
            method_time / plain_time
            for method_time, plain_time in zip(times[name], times["plain"], strict=True)
        )
        spread = f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        cells.append(
            f"{name} {statistics.median(ratios):.2f} {spread} memory {memory[name] / memory['plain']:.1f}"
        )
    print("  ".join(cells), flush=True)


def main() -> None:
    """Print the table."""
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[512, 2048, 8192, *([65536] if cuda else [])]
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16" if cuda else "float32")
    parser.add_argument("--naive-to", type=int, default=8192, help="longest at which the matrix is made")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {arguments.device}, {arguments.dtype}, load {os.getloadavg()[0]:.1f}")
    generator = torch.Generator().manual_seed(0)
    for length in arguments.lengths:
        inputs = tuple(
            torch.randn(1, arguments.heads, length, 64, generator=generator)
            .to(arguments.device, getattr(torch, arguments.dtype))
            .requires_grad_()
            for _ in range(3)
        )
        ways = [name for name in WAYS if name != "naive" or length <= arguments.naive_to]
        for is_causal in (False, True):
            for name in ways:
                check(WAYS[name], inputs, is_causal)
            for backward in (False, True):
                compare(inputs, ways, is_causal, backward, arguments.rounds, arguments.device)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
