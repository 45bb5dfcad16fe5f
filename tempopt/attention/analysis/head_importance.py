"""The worth of heads with intervals over batches: importance, contribution, and the cost of pruning.

All use :class:`tempopt.attention.modules.head_gates.HeadGates` in eval mode; afterwards the model is
unchanged to the bit. Batches have equal weights, so give batches of one size. Intervals are t intervals over
batches, 95 % for each number alone: of 100 heads about five have an interval that misses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tempopt.attention.analysis.head_measures import half_width
from tempopt.attention.modules.head_gates import (
    HeadGates,
    compute_finite_loss,
    evaluating,
    least_important,
    normalise_importance,
)
from tempopt.errors import UsageError

Batch = TypeVar("Batch")
FloatArray = NDArray[np.float64]

_BAR_CHARS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over batches with its 95 % interval.

    Args:
        mean: The mean.
        low: Lower end of the interval.
        high: Upper end.
    """

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the mean and, in brackets, the interval."""
        return f"{self.mean:.4g} ({self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadImportance:
    """The importance of one head.

    Args:
        layer: Depth of the layer.
        head: Number of the head.
        importance: E |dL / d xi_h|, divided by the layer's norm or not.
    """

    layer: int
    head: int
    importance: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """Contribution of a single head.

    Args:
        layer: Depth of the layer.
        head: Number of the head.
        without: Change when only this head is masked.
        alone: Change when all other heads of its layer are masked.
    """

    layer: int
    head: int
    without: Estimate
    alone: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningPoint:
    """The loss with some heads masked.

    Args:
        count: Number of masked heads.
        heads: Masked heads by layer.
        loss: The loss.
        change: The loss minus that of the whole model, over batches.
    """

    count: int
    heads: dict[int, tuple[int, ...]]
    loss: Estimate
    change: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningCurve:
    """Cost of masking the least important heads.

    Args:
        points: By number of heads, ascending, from the whole model on.
        batches: Number of batches of the loss.
    """

    points: tuple[PruningPoint, ...]
    batches: int

    def rows(self) -> list[dict[str, Any]]:
        """Return a dictionary for each point, of plain values, as for a table or JSON."""
        return [asdict(point) for point in self.points]

    def __str__(self) -> str:
        """Return the curve as text; a bar is the loss above the smallest one."""
        losses = [point.loss.mean for point in self.points]
        loss_range = max(losses) - min(losses) or 1.0
        lines = [
            f"loss with the least important heads masked, mean over {self.batches} batches (95 %)",
            "heads  loss       change",
        ]
        for point in self.points:
            bar = "█" * round(_BAR_CHARS * (point.loss.mean - min(losses)) / loss_range)
            lines.append(f"{point.count:5}  {point.loss.mean:<9.4g}  {point.change!s:36}  {bar}".rstrip())
        return "\n".join(lines)


def importance_intervals(
    gates: HeadGates,
    loss: Callable[[Batch], Tensor],
    batches: Iterable[Batch],
    *,
    normalise: bool = True,
) -> list[HeadImportance]:
    """Return the importance of each head with its interval over batches.

    The means are those of :meth:`HeadGates.importance`. The standard errors are from the jackknife over
    batches (Tukey 1958), in which the norm of the layer also varies.

    Args:
        gates: Gates on the model.
        loss: Runs the model on a batch and returns its loss, the mean over examples.
        batches: At least two; the interval is reliable from about ten.
        normalise: Whether to divide by the l2 norm over the heads of each layer.

    Returns:
        Sorted by layer and head. The importance is >= 0; an interval may extend below.

    Raises:
        UsageError: There are fewer than two batches, or a loss is not a finite scalar.
    """
    counts: list[int] = []
    sums: list[list[Tensor]] = []
    for count, by_layer in gates.importance_sums(loss, batches):
        counts.append(count)
        sums.append(by_layer)
    _check_batches(len(counts))
    examples = torch.tensor(counts, dtype=torch.float64)
    importances = []
    for layer in range(len(gates.num_heads)):
        sums_NH = torch.stack([batch_sums[layer] for batch_sums in sums])
        left_NH = (sums_NH.sum(dim=0) - sums_NH) / (examples.sum() - examples)[:, None]
        mean_H = sums_NH.sum(dim=0) / examples.sum()
        if normalise:
            mean_H, left_NH = (
                normalise_importance(mean_H),
                torch.stack([normalise_importance(left_H) for left_H in left_NH]),
            )
        spread_H = (len(counts) - 1) / math.sqrt(len(counts)) * left_NH.std(dim=0, correction=1)
        for head, (mean, error) in enumerate(zip(mean_H.tolist(), spread_H.tolist(), strict=True)):
            importances.append(
                HeadImportance(layer=layer, head=head, importance=_interval(mean, error, len(counts)))
            )
    return importances


def contributions(
    gates: HeadGates, measure: Callable[[Batch], Tensor | float], batches: Iterable[Batch]
) -> list[Contribution]:
    """Return the contribution of each open head: the change without it, and with only it in its layer.

    Args:
        gates: Gates on the model; pruned heads stay pruned and are left out.
        measure: Runs the model on a batch. It returns a number, a loss or a metric, whose change is the
            difference to that of the unchanged model; or an output, whose change is |o' - o| / |o| in
            Euclidean norm.
        batches: At least two. The model runs 2 * heads + 1 times on each.

    Returns:
        Sorted by layer and head.

    Raises:
        UsageError: There are fewer than two batches, or a number is not finite.
    """
    open_heads = {
        layer: [head for head in range(heads) if head not in gates.pruned.get(layer, ())]
        for layer, heads in enumerate(gates.num_heads)
    }
    layer_heads = [(layer, head) for layer, heads in open_heads.items() for head in heads]
    changes: list[list[tuple[float, float]]] = []
    with evaluating(gates.model), torch.no_grad():
        for batch in batches:
            base_result = _measure(measure, batch)
            changes.append([])
            for layer, head in layer_heads:
                with gates.prune_temporarily({layer: [head]}):
                    without_change = _relative_change(base_result, _measure(measure, batch))
                with gates.prune_temporarily(
                    {layer: [other_head for other_head in open_heads[layer] if other_head != head]}
                ):
                    alone_change = _relative_change(base_result, _measure(measure, batch))
                changes[-1].append((without_change, alone_change))
    _check_batches(len(changes))
    table_NP2 = np.array(changes).reshape(len(changes), len(layer_heads), 2)
    return [
        Contribution(
            layer=layer,
            head=head,
            without=_estimate(table_NP2[:, index, 0]),
            alone=_estimate(table_NP2[:, index, 1]),
        )
        for index, (layer, head) in enumerate(layer_heads)
    ]


def pruning_curve(
    gates: HeadGates,
    loss: Callable[[Batch], Tensor],
    *,
    choose: Iterable[Batch],
    judge: Iterable[Batch],
    counts: Sequence[int] | None = None,
) -> PruningCurve:
    """Return the loss with the k least important heads masked, for k from 0 until one is left in each layer.

    The heads are ranked on ``choose`` and the loss is measured on ``judge``: on the same batches, heads that
    matter little by chance would be selected, and the cost would be too low.

    Args:
        gates: Gates on the model, all of them open.
        loss: Runs the model on a batch and returns its loss, the mean over examples.
        choose: Batches for importance, at least one.
        judge: Other batches for the loss, at least two; the model runs once on each for each k.
        counts: The values of k, besides 0; None for all.

    Raises:
        UsageError: A batch is in both, there are too few, heads are already pruned, a k is out of range, or a
            loss is not a finite scalar.
    """
    if any(gates.pruned.values()):
        raise UsageError("Some heads are pruned already. Open all gates first: gates.restore().")
    choose_batches, judge_batches = list(choose), list(judge)
    if any(batch is judge_batch for batch in choose_batches for judge_batch in judge_batches):
        raise UsageError(
            "A batch is both in choose and in judge, which would bias the measured loss. Give "
            "other batches as judge."
        )
    _check_batches(len(judge_batches))
    importance = gates.importance(loss, choose_batches)
    num_spare = sum(heads - 1 for heads in gates.num_heads)
    pruning_counts = sorted({0, *(range(num_spare + 1) if counts is None else counts)})
    base_losses: FloatArray | None = None
    points = []
    for count in pruning_counts:
        heads = least_important(importance, count)
        with gates.prune_temporarily(heads), evaluating(gates.model), torch.no_grad():
            losses = np.array([compute_finite_loss(loss, batch).item() for batch in judge_batches])
        base_losses = losses if base_losses is None else base_losses
        points.append(
            PruningPoint(
                count=count, heads=heads, loss=_estimate(losses), change=_estimate(losses - base_losses)
            )
        )
    return PruningCurve(points=tuple(points), batches=len(judge_batches))


def _measure(measure: Callable[[Batch], Tensor | float], batch: Batch) -> Tensor:
    result = torch.as_tensor(measure(batch)).detach().double()
    if not bool(result.isfinite().all()):
        raise UsageError(
            "Given a loss, metric or output that is not finite. Give a model that has not diverged."
        )
    return result


def _relative_change(base_result: Tensor, new_result: Tensor) -> float:
    if base_result.numel() == 1:
        return new_result.item() - base_result.item()
    size = base_result.norm().clamp(min=torch.finfo(base_result.dtype).tiny)
    return float((new_result - base_result).norm() / size)


def _estimate(values_N: FloatArray) -> Estimate:
    error = float(values_N.std(ddof=1)) / math.sqrt(len(values_N))
    return _interval(float(values_N.mean()), error, len(values_N))


def _interval(mean: float, error: float, batches: int) -> Estimate:
    half = half_width(error, batches)
    return Estimate(mean=mean, low=mean - half, high=mean + half)


def _check_batches(count: int) -> None:
    if count < 2:
        raise UsageError(f"Given {count} batches; an interval over batches needs two. Give at least two.")
