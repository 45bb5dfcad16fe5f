"""Specialisation of each head: patterns above chance over inputs, and dependence on position.

The patterns are those of ``tempopt.attention.analysis.patterns``; this module accumulates and judges them,
and ``benchmarks/heads.py`` measures the rates. A head is named by a pattern only under two conditions:

- **It is large.** The score, (m - c) / (1 - c) with the weight m on the pattern's keys and the share c that
  uniform attention gives them, is above :data:`MIN_SCORE` by the lower end of its interval over inputs.
  Attention of a model as libraries initialise it is near uniform, and its scores are near 0.
- **It is no chance of a random head**, however sharp: one whose weights are as they are, but fall on keys
  that have nothing to do with the pattern. With m_q keys of the pattern among those that query q sees, and
  independent choices of units u (query positions; query tokens for patterns by content),

      P(sum_u mean_q weight >= s) <= min_l exp(-l s) prod_u mean_q (mean_k exp(l a_qk))^m_q,

  Chernoff's bound with Hoeffding's for draws without replacement (1963) and Jensen's within a unit, where
  choices may depend on each other in any way. Keys that belong together, as a window or all keys of a token,
  may fall together as well: mean_c exp(l a_qc) over windows or tokens c is taken where it is greater. The
  bound has to be below :data:`FALSE_ALARMS` over the number of heads times patterns. So few queries show
  nothing: a causal head needs about ten, a local one twenty.

``uniform`` is relative to the layer, since every head of an untrained model is uniform: the 1 - H / ln n of
the head is below :data:`FLAT`, that of the layer's most selective head is above :data:`SELECTIVE`, and their
ratio is below :data:`UNIFORM`. Heads with random weights of one scale differ by far less.

``positional`` names no head. It is the share of a pattern's deviation from uniform attention that inputs have
in common: 1 for a head that follows positions alone, 0 for one that follows the tokens alone, trained or not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from tempopt.attention.analysis.head_measures import (
    FALSE_ALARMS,
    HeadMeasure,
    Specialisations,
    half_width,
)
from tempopt.attention.analysis.patterns import (
    CONTENT_PATTERNS,
    POSITION_PATTERNS,
    WINDOW,
    above_chance,
    pattern_keys,
    pattern_weight,
)
from tempopt.attention.analysis.statistics import (
    Attended,
    attention_weights,
    check_weights,
    visible_attention,
    weight_entropy,
)
from tempopt.attention.modules.head_gates import evaluating
from tempopt.attention.modules.learned import check_count
from tempopt.errors import AttachError, UsageError

Batch = TypeVar("Batch")

MIN_SCORE = 0.5
"""Score from which a head can be named: half of the weight of uniform attention elsewhere. Our choice."""

UNIFORM = 0.1
"""Largest 1 - H / ln n of a uniform head, relative to that of the most selective head of its layer."""

FLAT = 0.01
"""Largest 1 - H / ln n of a uniform head."""

SELECTIVE = 0.1
"""1 - H / ln n from which a head is selective, so that others in its layer can be uniform."""

FloatArray = NDArray[np.float64]

# from the most specific: a head that attends to itself is also local
_MORE_SPECIFIC = ("diagonal", "previous_token", "next_token")
# Exponents l of Chernoff's bound, which holds for each: small ones for diffuse heads, large for sharp ones.
_EXPONENTS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
# Further units share one: the bound stays valid, and the state stays small.
_UNITS = 64
_ROUNDING_TOLERANCE = 1e-9


class HeadSpecialisation:
    """Accumulates measures of heads over inputs, and reports their specialisation.

    .. code-block:: python

        seen = HeadSpecialisation()
        for batch in batches:
            for layer, weights in enumerate(weights_of(model, batch)):
                seen.update_weights(layer, weights, is_causal=True, tokens_BK=batch)
        print(seen.report())

    An example of a batch is one input. Give complete inputs with all of their queries, in eval mode, and at
    least two in a batch: ``positional`` compares those of one batch. The state is small and on the CPU.

    Args:
        window: Distance of the farthest keys that are ``local``, >= 1.

    Raises:
        SpecError: ``window`` is not an integer or below 1.
    """

    def __init__(self, *, window: int = WINDOW) -> None:
        check_count("window", window)
        self.window = window
        self._sums: dict[tuple[int, str], _PatternSums] = {}
        self._flatness: dict[int, list[FloatArray]] = {}
        self._deviation_products: dict[int, list[FloatArray]] = {}

    @property
    def layers(self) -> tuple[int, ...]:
        """The observed layers."""
        return tuple(sorted(self._flatness))

    @torch.no_grad()
    def update(
        self,
        layer: int,
        q_BHQD: Tensor,
        k_BHKD: Tensor,
        *,
        scale: float | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        valid_BQ: Tensor | None = None,
        tokens_BK: Tensor | None = None,
    ) -> None:
        """Add the inputs of a batch by the queries and keys of softmax attention.

        Args:
            layer: Depth of the layer, >= 0.
            q_BHQD: Queries, tempered already (:func:`tempopt.attention.functional.attention.temper_query`).
            k_BHKD: Keys; of fewer heads than the queries where groups of heads share them.
            scale: Factor on the logits; None is 1 / sqrt(D).
            attn_mask: Boolean or floating mask, or None.
            is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.
            valid_BQ: True where a query is not padding; None if there is no padding.
            tokens_BK: Integers that identify the tokens of the keys, for the patterns by token; None to leave
                these out.
        """
        masking: dict[str, Any] = {"attn_mask": attn_mask, "is_causal": is_causal}
        weights_BHQK = attention_weights(q_BHQD, k_BHKD, scale=scale, **masking)
        self.update_weights(layer, weights_BHQK, valid_BQ=valid_BQ, tokens_BK=tokens_BK, **masking)

    @torch.no_grad()
    def update_weights(
        self,
        layer: int,
        weights_BHQK: Tensor,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        valid_BQ: Tensor | None = None,
        tokens_BK: Tensor | None = None,
    ) -> None:
        """Add the inputs of a batch by their attention weights, before dropout; otherwise as :meth:`update`.

        Raises:
            UsageError: The weights are negative or do not sum to 1, or the number of heads changes.
        """
        check_count("layer", layer, min_value=0)
        attention = visible_attention(
            weights_BHQK, attn_mask=attn_mask, is_causal=is_causal, valid_BQ=valid_BQ
        )
        check_weights(attention)
        heads = weights_BHQK.shape[1]
        if layer in self._flatness and self._flatness[layer][0].shape[0] != heads:
            raise UsageError(
                f"Given attention of {heads} heads in layer {layer}, which had "
                f"{self._flatness[layer][0].shape[0]} before. For another model make another "
                "HeadSpecialisation."
            )
        exponentials_LBHQ = _mean_exponentials(attention.weights_BHQK, attention.num_keys_BHQ)
        for pattern in (*POSITION_PATTERNS, *(CONTENT_PATTERNS if tokens_BK is not None else ())):
            sums = self._sums.setdefault((layer, pattern), _PatternSums(heads))
            sums.add(attention, exponentials_LBHQ, pattern, tokens_BK, self.window)
        self._flatness.setdefault(layer, []).append(_flatness(attention))
        if len(weights_BHQK) > 1:
            self._deviation_products.setdefault(layer, []).append(_deviation_products(attention))

    def report(self) -> Specialisations:
        """Return the specialisations of the heads, over the inputs so far.

        Raises:
            UsageError: There are fewer than two inputs, so that there is no interval over them.
        """
        inputs = min((_count_inputs(parts) for parts in self._flatness.values()), default=0)
        if inputs < 2:
            raise UsageError(f"Given {inputs} inputs; an interval over inputs needs two. Give at least two.")
        counted_sums = {key: sums for key, sums in self._sums.items() if sums.counted}
        tests = sum(sums.heads for sums in counted_sums.values())
        measures: list[HeadMeasure] = []
        for (layer, pattern), sums in counted_sums.items():
            measures += sums.head_measures(layer, pattern, FALSE_ALARMS / tests)
        implied_heads = {
            (measure.layer, measure.head)
            for measure in measures
            if measure.named and measure.measure in _MORE_SPECIFIC
        }
        measures = [
            replace(measure, named=False)
            if measure.measure == "local" and (measure.layer, measure.head) in implied_heads
            else measure
            for measure in measures
        ]
        for layer, parts in self._flatness.items():
            measures += _uniform(layer, np.concatenate(parts, axis=-1))
        for layer, parts in self._deviation_products.items():
            measures += _positional(layer, np.concatenate(parts, axis=-1))
        measures.sort(key=lambda measure: (measure.layer, measure.head))
        return Specialisations(measures=tuple(measures), inputs=inputs)


def specialisations(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    run: Callable[[Batch], Any] | None = None,
    weights: Callable[[Batch], Sequence[Tensor]] | None = None,
    masking: Callable[[Batch], Mapping[str, Any]] | None = None,
    tokens: Callable[[Batch], Tensor] | None = None,
    window: int = WINDOW,
) -> Specialisations:
    """Return the specialisations of the heads of a model, over the inputs of some batches, in eval mode.

    A :class:`tempopt.TemperedModule` exposes its queries and keys as it runs. For any other model give
    ``weights``: for a model of transformers loaded with ``attn_implementation="eager"`` it is ``lambda batch:
    model(**batch, output_attentions=True).attentions``.

    Args:
        model: The model.
        batches: Complete inputs, at least two in total, preferably two or more in each batch.
        run: Runs the model on a batch; None for ``model(batch)``. Not used with ``weights``.
        weights: Runs the model on a batch and returns the attention weights (B, H, Q, K) of each layer in
            depth order; None for a model that exposes its attention.
        masking: With ``weights``: returns their masks by ``attn_mask``, ``is_causal`` and ``valid_BQ`` as for
            :meth:`HeadSpecialisation.update_weights`; None if every query sees all keys.
        tokens: Returns integers (B, K) that identify the tokens of a batch, for ``same_token`` and
            ``induction``; None to leave these out.
        window: Distance of the farthest keys that are ``local``, >= 1.

    Raises:
        AttachError: The model does not expose its attention and ``weights`` is None.
        UsageError: No attention was observed, there are fewer than two inputs, or weights do not sum to 1.
    """
    specialisation = HeadSpecialisation(window=window)
    observed: Any = getattr(model, "observed", None)
    if weights is None and not callable(observed):
        raise AttachError(
            f"{type(model).__name__} does not show its attention, as a TemperedModule does. Give weights, a "
            "function that returns the attention weights of each layer for a batch."
        )
    num_batches = 0
    with evaluating(model), torch.no_grad():
        for batch in batches:
            token_arguments: dict[str, Any] = {} if tokens is None else {"tokens_BK": tokens(batch)}
            if weights is None:
                look = functools.partial(specialisation.update, **token_arguments)
                with observed(look):
                    model(batch) if run is None else run(batch)
            else:
                mask_arguments = {} if masking is None else masking(batch)
                for layer, weights_BHQK in enumerate(weights(batch)):
                    specialisation.update_weights(layer, weights_BHQK, **mask_arguments, **token_arguments)
            num_batches += 1
    if num_batches and not specialisation.layers:
        raise UsageError(
            "The model ran and no attention was seen: only softmax attention is shown, and compiled code is "
            "not. Give weights, a function that returns the attention weights of each layer for a batch."
        )
    return specialisation.report()


class _PatternSums:
    """Sums of one pattern in one layer: by input for intervals, by unit for the bound on chance."""

    def __init__(self, heads: int) -> None:
        self.heads = heads
        self._count_inputs: list[FloatArray] = []
        self._units = np.zeros((heads, _UNITS, 2))
        self._exponential_sums = np.zeros((len(_EXPONENTS), heads, _UNITS))

    @property
    def counted(self) -> bool:
        """Whether any query had a choice."""
        return bool(self._units[..., 1].any())

    def add(
        self,
        attention: Attended,
        exponentials_LBHQ: Tensor,
        pattern: str,
        tokens_BK: Tensor | None,
        window: int,
    ) -> None:
        keys_BHQK = pattern_keys(
            pattern,
            attention.visible_BHQK,
            position_Q=attention.position_Q,
            tokens_BK=tokens_BK,
            window=window,
        )
        weight_BHQ, chance_BHQ = pattern_weight(attention.weights_BHQK, keys_BHQK, attention.visible_BHQK)
        score_BHQ, counts_BHQ = above_chance(weight_BHQ, chance_BHQ)
        counts_BHQ = (counts_BHQ & attention.counts_BHQ).double()
        parts = (score_BHQ * counts_BHQ, counts_BHQ, weight_BHQ * counts_BHQ, chance_BHQ * counts_BHQ)
        self._count_inputs.append(torch.stack([part.double().sum(dim=-1).T for part in parts]).cpu().numpy())
        bound_LBHQ = exponentials_LBHQ.double() * keys_BHQK.sum(dim=-1)
        if (group_choices := _grouped_choices(attention, pattern, tokens_BK, window)) is not None:
            bound_LBHQ = torch.maximum(bound_LBHQ, _mean_exponentials(*group_choices))
        bound_LBHQ = bound_LBHQ.exp()
        if pattern in CONTENT_PATTERNS and tokens_BK is not None:
            unit_BQ = tokens_BK[:, attention.position_Q] % _UNITS
        else:
            unit_BQ = (attention.position_Q % _UNITS).expand(len(counts_BHQ), -1)
        self._exponential_sums += _sum_by_unit(torch.where(counts_BHQ > 0.0, bound_LBHQ, 0.0), unit_BQ)
        unit_values = torch.stack([parts[2].double(), counts_BHQ])
        self._units += _sum_by_unit(unit_values, unit_BQ).transpose(1, 2, 0)

    def head_measures(self, layer: int, pattern: str, level: float) -> list[HeadMeasure]:
        """Return the measure of each head that has at least two inputs."""
        score_HN, count_HN, weight_HN, chance_HN = np.concatenate(self._count_inputs, axis=-1)
        measures = []
        for head, (score, low, high) in _ratios(score_HN, count_HN).items():
            queries = count_HN[head].sum()
            p = self._chance_bound(head)
            measures.append(
                HeadMeasure(
                    layer=layer,
                    head=head,
                    measure=pattern,
                    score=score,
                    low=low,
                    high=high,
                    value=float(weight_HN[head].sum() / queries),
                    chance=float(chance_HN[head].sum() / queries),
                    p=p,
                    named=low > MIN_SCORE and p <= level,
                )
            )
        return measures

    def _chance_bound(self, head: int) -> float:
        """Return the bound on the probability that a random head with these weights reaches the score."""
        weight_U, count_U = self._units[head].T
        is_used = count_U > 0.0
        mean_U = weight_U[is_used] / count_U[is_used]
        logs = [
            float(
                np.log(self._exponential_sums[index, head, is_used] / count_U[is_used]).sum()
                - exponent * mean_U.sum()
            )
            for index, exponent in enumerate(_EXPONENTS)
        ]
        return math.exp(min(0.0, *logs))


def _mean_exponentials(weight_BHQX: Tensor, number_BHQ: Tensor) -> Tensor:
    """Return ln of the mean of exp(l a) over the given number of choices, for each exponent: (exponents, B,
    H, Q).

    Choices that do not exist have weight 0, and exp(0) - 1 is 0.
    """
    number_BHQ = number_BHQ.clamp(min=1)
    logs = [(torch.expm1(exponent * weight_BHQX).sum(dim=-1) / number_BHQ).log1p() for exponent in _EXPONENTS]
    return torch.stack(logs).double()


def _grouped_choices(
    attention: Attended, pattern: str, tokens_BK: Tensor | None, window: int
) -> tuple[Tensor, Tensor] | None:
    """Return the weights and the number of choices whose keys belong together; None for single keys.

    They are windows around each visible key for ``local``; for patterns by token they are the keys of a
    visible token, or the keys right behind these.
    """
    weights_BHQK, visible_BHQK = attention.weights_BHQK, attention.visible_BHQK
    keys = weights_BHQK.shape[-1]
    if pattern == "local":
        padded_sums = F.pad(weights_BHQK.cumsum(dim=-1), (window + 1, 0))
        padded_sums = torch.cat(
            [padded_sums, padded_sums[..., -1:].expand(*padded_sums.shape[:-1], window)], dim=-1
        )
        inside_BHQK = padded_sums[..., 2 * window + 1 :] - padded_sums[..., :keys]
        return inside_BHQK.masked_fill(~visible_BHQK, 0.0), attention.num_keys_BHQ
    if pattern not in CONTENT_PATTERNS or tokens_BK is None:
        return None
    # each token by its first position
    group_BK = (tokens_BK.unsqueeze(1) == tokens_BK.unsqueeze(2)).int().argmax(dim=-1)
    if pattern == "induction":
        # the first key follows nothing and is its own group
        group_BK = F.pad(group_BK[:, :-1] + 1, (1, 0))
    group_BHQK = group_BK[:, None, None].expand(weights_BHQK.shape)
    weight_BHQG = torch.zeros_like(weights_BHQK).scatter_add_(-1, group_BHQK, weights_BHQK)
    seen_BHQG = torch.zeros_like(weights_BHQK).scatter_add_(-1, group_BHQK, visible_BHQK.to(weights_BHQK))
    return weight_BHQG, (seen_BHQG > 0.0).sum(dim=-1)


def _sum_by_unit(values_XBHQ: Tensor, unit_BQ: Tensor) -> FloatArray:
    """Return the sums over queries of each unit, (X, H, units)."""
    rows_XHN = values_XBHQ.transpose(1, 2).flatten(2)
    sums = rows_XHN.new_zeros(*rows_XHN.shape[:2], _UNITS)
    return np.asarray(sums.index_add_(-1, unit_BQ.flatten(), rows_XHN).cpu().numpy())


def _flatness(attention: Attended) -> FloatArray:
    """Return by head and input the sum of 1 - H / ln n over queries, and their number: (H, 2, B)."""
    most_BHQ = attention.num_keys_BHQ.clamp(min=2).to(attention.weights_BHQK.dtype).log()
    counts_BHQ = attention.counts_BHQ.double()
    gap_BHQ = (1.0 - weight_entropy(attention.weights_BHQK) / most_BHQ).double() * counts_BHQ
    return np.asarray(torch.stack([gap_BHQ.sum(-1).T, counts_BHQ.sum(-1).T], dim=1).cpu().numpy())


def _deviation_products(attention: Attended) -> FloatArray:
    """Return products of deviations from uniform attention by head and input: (H, 2, B).

    The first is the product with the mean deviation of the other inputs, the second the squared norm.
    """
    counts_BHQ1 = attention.counts_BHQ.unsqueeze(-1)
    others_1HQ1 = counts_BHQ1.sum(dim=0, keepdim=True) - 1
    counts_BHQ1 = counts_BHQ1 & (others_1HQ1 > 0)
    uniform_BHQ1 = (
        attention.num_keys_BHQ.clamp(min=1).to(attention.weights_BHQK.dtype).reciprocal().unsqueeze(-1)
    )
    gap_BHQK = (attention.weights_BHQK - uniform_BHQ1).masked_fill(
        ~(attention.visible_BHQK & counts_BHQ1), 0.0
    )
    rest_BHQK = (gap_BHQK.sum(dim=0, keepdim=True) - gap_BHQK) / others_1HQ1.clamp(min=1)
    products = [
        (gap_BHQK * factor_BHQK).sum(dim=(-2, -1)).T.double() for factor_BHQK in (rest_BHQK, gap_BHQK)
    ]
    return np.asarray(torch.stack(products, dim=1).cpu().numpy())


def _ratios(
    top_HN: FloatArray, bottom_HN: FloatArray, *, terms: float = 1.0, min_denominator: float = 0.0
) -> dict[int, tuple[float, float, float]]:
    """Return sum top / sum bottom over inputs with its t interval, for each head with two or more.

    Args:
        top_HN: Numerators by head and input.
        bottom_HN: Denominators; inputs with 0 do not count.
        terms: Inputs in each numerator that vary: 2 in products with all other inputs (Hoeffding 1948).
        min_denominator: Mean denominator below which the ratio is undefined.
    """
    ratios = {}
    for head, (top, bottom) in enumerate(zip(top_HN, bottom_HN, strict=True)):
        is_used = bottom > 0.0
        inputs = int(is_used.sum())
        if inputs < 2 or bottom[is_used].mean() <= min_denominator:
            continue
        ratio = float(top[is_used].sum() / bottom[is_used].sum())
        error = float((terms * top[is_used] - ratio * bottom[is_used]).std(ddof=1))
        half = half_width(error / float(bottom[is_used].mean()) / math.sqrt(inputs), inputs)
        ratios[head] = (ratio, ratio - half, ratio + half)
    return ratios


def _uniform(layer: int, flatness_H2N: FloatArray) -> list[HeadMeasure]:
    """Return the uniformity of each head relative to the most selective one of its layer."""
    gaps_H = flatness_H2N[:, 0].sum(axis=-1) / flatness_H2N[:, 1].sum(axis=-1).clip(min=1.0)
    most_selective = int(gaps_H.argmax())
    if len(gaps_H) < 2 or gaps_H[most_selective] <= _ROUNDING_TOLERANCE:
        return []
    beside_HN = np.broadcast_to(flatness_H2N[most_selective, 0], flatness_H2N[:, 0].shape)
    measures = []
    for head, (ratio, low, high) in _ratios(flatness_H2N[:, 0], beside_HN).items():
        is_named = high < UNIFORM and gaps_H[head] < FLAT and gaps_H[most_selective] > SELECTIVE
        measures.append(
            HeadMeasure(
                layer=layer,
                head=head,
                measure="uniform",
                score=1.0 - ratio,
                low=1.0 - high,
                high=1.0 - low,
                value=float(1.0 - gaps_H[head]),
                chance=float(1.0 - gaps_H[most_selective]),
                p=None,
                named=bool(is_named),
            )
        )
    return measures


def _positional(layer: int, shared_H2N: FloatArray) -> list[HeadMeasure]:
    ratios = _ratios(shared_H2N[:, 0], shared_H2N[:, 1], terms=2.0, min_denominator=_ROUNDING_TOLERANCE)
    fields: dict[str, Any] = {"layer": layer, "measure": "positional", "chance": 0.0}
    return [
        HeadMeasure(head=head, score=share, low=low, high=high, value=share, p=None, named=False, **fields)
        for head, (share, low, high) in ratios.items()
    ]


def _count_inputs(parts: Sequence[FloatArray]) -> int:
    return sum(int(part[:, 1].any(axis=0).sum()) for part in parts)
