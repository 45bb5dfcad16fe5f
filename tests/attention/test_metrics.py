"""The statistics as metrics: means over what counts, by layer and head; what is no attention is refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.utilities.data import dim_zero_sum

from tempopt.attention.analysis import metrics
from tempopt.attention.analysis.metrics import (
    AttentionEntropy,
    AttentionGini,
    AttentionLocality,
    EffectiveTokens,
    GradientSaturation,
    HeadMetric,
    HeadSimilarity,
    MaxAttentionWeight,
    PatternScore,
    QueryKeyMagnitude,
    SelfAttentionRatio,
    SoftmaxJacobianNorm,
)
from tempopt.attention.analysis.patterns import POSITION_PATTERNS
from tempopt.attention.analysis.statistics import STATISTICS, attention_weights
from tempopt.errors import SpecError, UsageError
from tests.attention.test_statistics import MASKS, B, D, H, K, Q, by_definition, one_hot, qk, rows, valid

METRICS: dict[str, Any] = {
    "entropy": AttentionEntropy,
    "gini": AttentionGini,
    "max_weight": MaxAttentionWeight,
    "effective_tokens": EffectiveTokens,
    "effective_share": lambda *args, **kwargs: EffectiveTokens(*args, as_share=True, **kwargs),
    "locality": AttentionLocality,
    "self_attention": SelfAttentionRatio,
    "jacobian_norm": SoftmaxJacobianNorm,
    "gradient_saturation": GradientSaturation,
}


@pytest.mark.parametrize("masking", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_the_mean_of_its_definition(name: str, padded: bool, masking: dict[str, Any]) -> None:
    weights = attention_weights(*qk(), **masking)
    metric = METRICS[name](H, average="none")
    metric.update(weights, **masking, valid_BQ=valid() if padded else None)
    np.testing.assert_allclose(metric.compute()[0].numpy(), by_definition(name, padded, masking), rtol=2e-6)


def test_the_jacobian_metric_takes_a_temperature_for_each_head() -> None:
    weights = attention_weights(*qk())
    plain, tempered = (SoftmaxJacobianNorm(H, average="none") for _ in range(2))
    plain.update(weights)
    tempered.update(weights, temperature=torch.tensor([[1.0], [2.0], [4.0]]))
    expected = plain.compute()[0] / torch.tensor([1.0, 2.0, 4.0])
    torch.testing.assert_close(tempered.compute()[0], expected)


@pytest.mark.parametrize(
    "metric_args", [{"num_heads": 2.0}, {"num_heads": True}, {"num_heads": 2, "num_layers": 1.5}]
)
def test_numbers_of_things_that_are_not_whole_are_refused(metric_args: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="Give a whole number of at least 1"):
        AttentionEntropy(**metric_args)


def test_one_head_has_no_metric_of_similarity() -> None:
    with pytest.raises(SpecError, match="between heads"):
        HeadSimilarity(1)


def test_weights_after_dropout_are_refused() -> None:
    weights = torch.nn.functional.dropout(attention_weights(*qk()), 0.3, training=True)
    with pytest.raises(UsageError, match=r"before dropout \(model.eval\(\)\)"):
        AttentionEntropy(H).update(weights)
    negative = torch.tensor([[[[1.5, -0.5]]]])
    with pytest.raises(UsageError, match="reach down to -0.5"):
        AttentionEntropy(1).update(negative)
    with pytest.raises(UsageError, match="sum to nan"):
        AttentionEntropy(1).update(torch.full((1, 1, 1, 2), float("nan")))
    AttentionEntropy(H, validate_args=False).update(weights)


@pytest.mark.parametrize("masking", [MASKS["none"], MASKS["boolean"], MASKS["padding and causal"]])
def test_query_key_magnitude_is_over_the_queries_and_keys_that_count(masking: dict[str, Any]) -> None:
    q, k = qk()
    metric = QueryKeyMagnitude(H, average="none")
    metric.update(q, k, **masking, valid_BQ=valid())
    expected: list[list[float]] = [[] for _ in range(H)]
    visible_rows = rows(q, k, **masking)
    for b, h in itertools.product(range(B), range(H)):
        counting = [i for i in range(Q) if len(visible_rows[b, h, i][0]) > 1 and valid()[b, i]]
        keys = sorted({j for i in counting for j in visible_rows[b, h, i][0].tolist()})
        mean = np.mean([np.linalg.norm(k[b, h, j].numpy()) for j in keys])
        expected[h] += [np.linalg.norm(q[b, h, i].numpy()) * mean / math.sqrt(D) for i in counting]
    np.testing.assert_allclose(
        metric.compute()[0].numpy(), [np.mean(values) for values in expected], rtol=1e-6
    )


def test_shared_keys_are_shared_by_groups_of_heads() -> None:
    q = torch.randn(B, 4, Q, D, dtype=torch.float64)
    k = torch.randn(B, 2, K, D, dtype=torch.float64)
    grouped = attention_weights(q, k)
    torch.testing.assert_close(grouped, attention_weights(q, k[:, [0, 0, 1, 1]]))
    metric, expected = QueryKeyMagnitude(4), QueryKeyMagnitude(4)
    metric.update(q, k)
    expected.update(q, k[:, [0, 0, 1, 1]])
    assert metric.compute() == expected.compute()


def test_averages_are_over_heads_and_layers() -> None:
    weights = [attention_weights(*qk(spread)) for spread in (0.5, 3.0)]
    result = {}
    for average in ("none", "layer", "macro"):
        metric = AttentionEntropy(H, num_layers=2, average=average)
        for layer, layer_weights in enumerate(weights):
            metric.update(layer_weights, layer=layer)
        result[average] = metric.compute()
    assert result["none"].shape == (2, H)
    torch.testing.assert_close(result["layer"], result["none"].mean(dim=1))
    torch.testing.assert_close(result["macro"], result["none"].mean())


def test_queries_weigh_the_same_in_whatever_batch_they_come() -> None:
    weights = attention_weights(*qk(), is_causal=True)
    full_metric, parts_metric, merged_metric, other_metric = (
        AttentionGini(H, average="none") for _ in range(4)
    )
    full_metric.update(weights, is_causal=True)
    parts_metric.update(weights[:1], is_causal=True)
    parts_metric.update(weights[1:], is_causal=True)
    torch.testing.assert_close(parts_metric.compute(), full_metric.compute())
    # As processes are reduced: by the sum of their states.
    merged_metric.update(weights[:1], is_causal=True)
    other_metric.update(weights[1:], is_causal=True)
    assert set(merged_metric._reductions.values()) == {dim_zero_sum}
    merged_metric.total += other_metric.total
    merged_metric.count += other_metric.count
    torch.testing.assert_close(merged_metric.compute(), full_metric.compute())


def test_a_step_of_a_metric_is_that_of_its_batch() -> None:
    metric = MaxAttentionWeight(1)
    assert metric(one_hot()).item() == 1.0
    assert metric(torch.full((1, 1, 1, 4), 0.25)).item() == 0.25
    assert metric.compute().item() == 0.625
    metric.reset()
    with pytest.warns(UserWarning, match="compute"), pytest.raises(UsageError, match="layer 0, head 0"):
        metric.compute()


def test_metrics_work_in_a_collection_and_are_all_metrics() -> None:
    collection = MetricCollection([AttentionEntropy(H), AttentionGini(H), SelfAttentionRatio(H)])
    collection.update(attention_weights(*qk()))
    assert set(collection.compute()) == {"AttentionEntropy", "AttentionGini", "SelfAttentionRatio"}
    assert issubclass(HeadMetric, Metric)


def test_what_a_metric_cannot_do_is_said() -> None:
    weights = attention_weights(*qk())
    with pytest.raises(SpecError, match="at least 1"):
        AttentionEntropy(0)
    with pytest.raises(SpecError, match='Did you mean "macro"'):
        AttentionEntropy(H, average="marco")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="num_heads=2"):
        AttentionEntropy(2).update(weights)
    with pytest.raises(UsageError, match="num_layers=2"):
        AttentionEntropy(H).update(weights, layer=1)
    with pytest.raises(UsageError, match="average_attn_weights=False"):
        AttentionEntropy(H).update(weights[0])
    metric = AttentionEntropy(H)
    metric.update(weights, attn_mask=torch.eye(Q).bool())
    with pytest.raises(UsageError, match="no query of it counted"):
        metric.compute()


def test_weights_come_from_multihead_attention_too() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(B, Q, 8)
    _, weights = attention(x, x, x, average_attn_weights=False)
    metric = AttentionEntropy(2)
    metric.update(weights)
    assert 0 < metric.compute().item() < 1


def test_each_statistic_has_a_metric() -> None:
    classes = [metric_class for metric_class in vars(metrics).values() if isinstance(metric_class, type)]
    named = {metric_class.statistic for metric_class in classes if "statistic" in vars(metric_class)} | {
        "effective_share"
    }
    assert named | set(POSITION_PATTERNS) == set(STATISTICS)
    for pattern in POSITION_PATTERNS:
        assert PatternScore(H, pattern=pattern).statistic == pattern
    with pytest.raises(SpecError, match='pattern.*"same_token".*diagonal'):
        PatternScore(H, pattern="same_token")
