"""Attention statistics as torchmetrics metrics: accumulated over batches and processes, by layer and head.

What each number is, and which queries count, is said in ``tempopt.attention.analysis.statistics``; what is
worth worrying about in ``tempopt.attention.analysis.diagnose``.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric

from tempopt.attention.analysis.patterns import POSITION_PATTERNS
from tempopt.attention.analysis.statistics import (
    STATISTICS,
    Attended,
    attended,
    check_weights,
    head_sums,
    query_key_magnitude,
    visible_pairs,
)
from tempopt.attention.modules.learned import check_count
from tempopt.errors import SpecError, UsageError, unknown

Average = Literal["macro", "layer", "none"]
_AVERAGES = ("macro", "layer", "none")


class HeadMetric(Metric):
    """Base of the metrics here: the mean over queries, for each layer and head.

    Queries of all batches weigh the same, whatever batch they came in, and so do heads in the mean of a
    layer, and layers in that of the model.

    Args:
        num_heads: Heads of each layer, >= 1.
        num_layers: Layers, >= 1.
        average: ``macro``: one number for all heads, as ``self.log`` takes it; ``layer``: (layers,);
            ``none``: (layers, heads).
        validate_args: Whether to refuse weights that do not sum to 1, at the price of waiting for the device.
        **kwargs: As for :class:`torchmetrics.Metric`.

    Raises:
        SpecError: A number is not whole or below 1, or the average is not known.
    """

    is_differentiable = False
    higher_is_better: bool | None = None
    full_state_update = False

    total: Tensor
    count: Tensor

    def __init__(
        self,
        num_heads: int,
        *,
        num_layers: int = 1,
        average: Average = "macro",
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, value in (("num_heads", num_heads), ("num_layers", num_layers)):
            check_count(name, value)
        if average not in _AVERAGES:
            raise SpecError(unknown("average", average, _AVERAGES))
        self.num_heads = num_heads
        self.num_layers = num_layers
        self.average = average
        self.validate_args = validate_args
        # Sums over all queries of an epoch: in float32 they would stop growing.
        self.add_state("total", torch.zeros(num_layers, num_heads, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros(num_layers, num_heads, dtype=torch.long), dist_reduce_fx="sum")

    def compute(self) -> Tensor:
        """Return the mean, of the shape that ``average`` asks for, in float32.

        Raises:
            UsageError: if no query has counted for a head, so that it has no mean.
        """
        # Asked only where it matters: the answer comes from the device.
        missing = (self.count == 0).nonzero()
        if len(missing):
            layer, head = missing[0].tolist()
            raise UsageError(
                f"{type(self).__name__} has no mean for layer {layer}, head {head}: no query of it counted. "
                "Call update with every layer, and with some query that is no padding and sees two keys."
            )
        mean_LH = (self.total / self.count).float()
        if self.average == "none":
            return mean_LH
        return mean_LH.mean(dim=-1) if self.average == "layer" else mean_LH.mean()

    def _add(self, values_BHQ: Tensor, counts_BHQ: Tensor, layer: int) -> None:
        if not 0 <= layer < self.num_layers:
            raise UsageError(
                f"Given layer {layer}, but the metric has layers 0 to {self.num_layers - 1}. Give num_layers="
                f"{layer + 1} or more when it is made."
            )
        if values_BHQ.shape[1] != self.num_heads:
            raise UsageError(
                f"Given attention of {values_BHQ.shape[1]} heads, but the metric has num_heads="
                f"{self.num_heads}. Give the number of heads when it is made."
            )
        total_H, count_H = head_sums(values_BHQ, counts_BHQ)
        self.total[layer] += total_H
        self.count[layer] += count_H


class _WeightMetric(HeadMetric):
    """Base of the metrics of attention weights; ``statistic`` is a name in ``STATISTICS``."""

    statistic: str

    def update(
        self,
        weights_BHQK: Tensor,
        *,
        layer: int = 0,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        valid_BQ: Tensor | None = None,
        position_Q: Tensor | None = None,
    ) -> None:
        """Add the queries of a batch.

        Args:
            weights_BHQK: Attention weights before dropout
                (:func:`tempopt.attention.analysis.statistics.attention_weights` makes them from queries and
                keys).
            layer: Depth of the layer, 0 <= layer < num_layers.
            attn_mask: Boolean or floating mask that the weights were made with, or None.
            is_causal: Whether queries saw only keys up to their own position.
            valid_BQ: True where a query is not padding; None if none is.
            position_Q: Which key each query is; None for 0 to Q - 1.

        Raises:
            UsageError: if the weights are no weights, or of another layer or number of heads.
        """
        self._take(
            attended(
                weights_BHQK,
                attn_mask=attn_mask,
                is_causal=is_causal,
                valid_BQ=valid_BQ,
                position_Q=position_Q,
            ),
            layer,
        )

    def _take(self, attention: Attended, layer: int) -> None:
        if self.validate_args:
            check_weights(attention)
        self._add(*STATISTICS[self.statistic](attention), layer)


class AttentionEntropy(_WeightMetric):
    """H / ln n, in [0, 1], with the n keys that each query sees."""

    statistic = "entropy"


class AttentionGini(_WeightMetric):
    """The Gini coefficient of the weights, from 0 (equal) to (n - 1) / n (one key alone)."""

    statistic = "gini"


class MaxAttentionWeight(_WeightMetric):
    """The largest weight of each query, from 1 / n to 1."""

    statistic = "max_weight"


class EffectiveTokens(_WeightMetric):
    """1 / sum a^2, the number of keys that would share equally.

    Args:
        num_heads: Heads of each layer, >= 1.
        as_share: Whether to divide by the number of keys that the query sees, so that lengths compare.
        **kwargs: As for :class:`HeadMetric`.
    """

    statistic = "effective_tokens"

    def __init__(self, num_heads: int, *, as_share: bool = False, **kwargs: Any) -> None:
        super().__init__(num_heads, **kwargs)
        if as_share:
            self.statistic = "effective_share"


class AttentionLocality(_WeightMetric):
    """1 - mean distance over that of uniform attention: 1 for oneself, 0 for no preference at any length."""

    statistic = "locality"


class SelfAttentionRatio(_WeightMetric):
    """The weight of each query's own key, over the queries that see themselves; by chance it is 1 / n."""

    statistic = "self_attention"


class HeadSimilarity(_WeightMetric):
    """Mean cosine of a head with the others of its layer, less that of independent heads.

    Raises:
        SpecError: There is one head only, and so nothing to compare.
    """

    statistic = "head_similarity"

    def __init__(self, num_heads: int, **kwargs: Any) -> None:
        if num_heads == 1:
            raise SpecError(
                "num_heads=1, but similarity is between heads. Leave it out for a model with one head."
            )
        super().__init__(num_heads, **kwargs)


class SoftmaxJacobianNorm(_WeightMetric):
    """Frobenius norm of the softmax's Jacobian, (diag a - a a^T) / tau."""

    statistic = "jacobian_norm"

    def update(
        self,
        weights_BHQK: Tensor,
        *,
        temperature: Tensor | float = 1.0,
        layer: int = 0,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        valid_BQ: Tensor | None = None,
        position_Q: Tensor | None = None,
    ) -> None:
        """Add the queries of a batch.

        Args:
            weights_BHQK: Attention weights before dropout.
            temperature: tau that they were made at, > 0; a tensor broadcasts to (B, H, Q).
            layer: As for the other metrics, and the arguments that follow too.
            attn_mask: As there.
            is_causal: As there.
            valid_BQ: As there.
            position_Q: As there.
        """
        self._take(
            attended(
                weights_BHQK,
                attn_mask=attn_mask,
                is_causal=is_causal,
                valid_BQ=valid_BQ,
                position_Q=position_Q,
                temperature=temperature,
            ),
            layer,
        )


class GradientSaturation(_WeightMetric):
    """How much less gradient the softmax lets through than at equal weights, in [0, 1]."""

    statistic = "gradient_saturation"


class PatternScore(_WeightMetric):
    """Weight on the keys of a pattern above chance: 1 for a head that does nothing else, 0 if it is uniform.

    Of a head that never has the choice, as of the next token in causal attention, there is no mean.

    Args:
        num_heads: Heads of each layer, >= 1.
        pattern: ``diagonal``, ``previous_token``, ``next_token``, ``first_token`` or ``local``.
        **kwargs: As for :class:`HeadMetric`.

    Raises:
        SpecError: There is no such pattern.
    """

    def __init__(self, num_heads: int, *, pattern: str, **kwargs: Any) -> None:
        if pattern not in POSITION_PATTERNS:
            raise SpecError(unknown("pattern", pattern, POSITION_PATTERNS))
        super().__init__(num_heads, **kwargs)
        self.statistic = pattern


class QueryKeyMagnitude(HeadMetric):
    """|q| times the mean |k| times the scale: what the logits of a query can reach."""

    def update(
        self,
        q_BHQD: Tensor,
        k_BHKD: Tensor,
        *,
        scale: float | None = None,
        layer: int = 0,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        valid_BQ: Tensor | None = None,
        position_Q: Tensor | None = None,
    ) -> None:
        """Add the queries of a batch.

        Args:
            q_BHQD: Queries; not tempered, if the model's own growth is asked for.
            k_BHKD: Keys.
            scale: Factor on the logits; None is 1 / sqrt(D).
            layer: As for the other metrics, and the arguments that follow too.
            attn_mask: As there.
            is_causal: As there.
            valid_BQ: As there.
            position_Q: As there.
        """
        norms_BHQ, counts_BHQ = counted_query_key_magnitude(
            q_BHQD.detach(),
            k_BHKD.detach(),
            visible_pairs(
                q_BHQD.shape[-2],
                k_BHKD.shape[-2],
                attn_mask,
                is_causal,
                position_Q=position_Q,
                device=q_BHQD.device,
            ),
            scale=scale,
            valid_BQ=valid_BQ,
        )
        self._add(norms_BHQ, counts_BHQ, layer)


def counted_query_key_magnitude(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    visible_BHQK: Tensor,
    *,
    scale: float | None = None,
    valid_BQ: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the norms of each query, over the keys that some query sees that counts, and which count.

    Args:
        q_BHQD: Queries.
        k_BHKD: Keys.
        visible_BHQK: Who may see whom, broadcasting to (B, H, Q, K).
        scale: Factor on the logits; None is 1 / sqrt(D).
        valid_BQ: True where a query is not padding; None if none is.
    """
    visible_BHQK = visible_BHQK.expand(*q_BHQD.shape[:-1], k_BHKD.shape[-2])
    counts_BHQ = visible_BHQK.sum(dim=-1) > 1
    if valid_BQ is not None:
        counts_BHQ = counts_BHQ & valid_BQ.unsqueeze(1)
    seen_BHK = (visible_BHQK & counts_BHQ.unsqueeze(-1)).any(dim=-2)
    return query_key_magnitude(q_BHQD, k_BHKD, scale=scale, seen_BHK=seen_BHK), counts_BHQ
