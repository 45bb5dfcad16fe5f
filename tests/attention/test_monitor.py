"""The monitor: what it sees, when, of which queries; and the trend of what it saw."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tempopt.attention.analysis.histories import NAMES, QUERY_KEY_MAGNITUDE, trend
from tempopt.attention.analysis.monitor import AttentionMonitor
from tempopt.attention.analysis.statistics import STATISTICS, attention_weights, head_sums, visible_attention
from tempopt.errors import SpecError, UsageError
from tests.attention.test_statistics import DEFINITIONS, MASKS, B, D, H, Q, by_definition, qk, rows, valid


def last_values(monitor: AttentionMonitor, statistic: str) -> list[float]:
    return [history.last for history in monitor.report().of(statistic)]


def exact_entropy(q: Tensor, k: Tensor, **masking: Any) -> np.ndarray:
    weights = attention_weights(q, k, is_causal=masking.get("is_causal", False))
    total_H, count_H = head_sums(*STATISTICS["entropy"](visible_attention(weights, **masking)))
    return (total_H / count_H).numpy()


@pytest.mark.parametrize("masking", MASKS.values(), ids=MASKS.keys())
def test_a_monitor_that_sees_every_query_sees_what_is_defined(masking: dict[str, Any]) -> None:
    q, k = qk()
    monitor = AttentionMonitor()
    monitor.update(0, 0, q, k, **masking, valid_BQ=valid())
    for name in [*DEFINITIONS, "self_attention"]:
        np.testing.assert_allclose(last_values(monitor, name), by_definition(name, True, masking), rtol=1e-9)
    expected: list[list[float]] = [[] for _ in range(H)]
    visible_rows = rows(q, k, **masking)
    for b, h in itertools.product(range(B), range(H)):
        counting = [i for i in range(Q) if len(visible_rows[b, h, i][0]) > 1 and valid()[b, i]]
        keys = sorted({j for i in counting for j in visible_rows[b, h, i][0].tolist()})
        mean = np.mean([np.linalg.norm(k[b, h, j].numpy()) for j in keys])
        expected[h] += [np.linalg.norm(q[b, h, i].numpy()) * mean / math.sqrt(D) for i in counting]
    norms = [np.mean(values) for values in expected]
    np.testing.assert_allclose(last_values(monitor, "query_key_magnitude"), norms, rtol=1e-6)


def test_shared_keys_are_shared_by_groups_of_heads() -> None:
    q = torch.randn(B, 4, Q, D, dtype=torch.float64)
    k = torch.randn(B, 2, Q, D, dtype=torch.float64)
    shared, repeated = AttentionMonitor(), AttentionMonitor()
    shared.update(0, 0, q, k)
    repeated.update(0, 0, q, k[:, [0, 0, 1, 1]])
    assert shared.report() == repeated.report()


def test_a_monitor_looks_at_some_queries_which_follow_from_seed_step_and_layer() -> None:
    q, k = (torch.randn(4, H, 200, D, generator=torch.Generator().manual_seed(i)) for i in range(2))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    values = []
    for seed in (0, 0, 1):
        monitor = AttentionMonitor(queries=50, examples=2, seed=seed)
        monitor.update(0, 0, q, k, is_causal=True)
        values.append(last_values(monitor, "entropy"))
    assert torch.equal(torch.get_rng_state(), before)
    assert values[0] == values[1] != values[2]
    np.testing.assert_allclose(values[0], exact_entropy(q, k, is_causal=True), atol=0.05)


def test_a_monitor_never_has_the_whole_matrix() -> None:
    # Whole, the weights of one head alone would take 10 GB.
    q, k = torch.ones(1, 1, 50_000, 1), torch.ones(1, 1, 50_000, 1)
    monitor = AttentionMonitor(queries=4)
    monitor.update(0, 0, q, k)
    assert last_values(monitor, "entropy") == pytest.approx([1.0], abs=1e-4)


def test_what_is_not_finite_is_not_kept() -> None:
    q, k = qk()
    q[:, 1] = float("nan")
    monitor = AttentionMonitor()
    monitor.update(0, 0, q, k)
    assert [history.head for history in monitor.report().of("gini")] == [0, 2]


def test_a_padded_query_is_not_drawn() -> None:
    q, k = (torch.randn(2, 1, 100, D, generator=torch.Generator().manual_seed(i)) for i in range(2))
    valid = torch.zeros(2, 100, dtype=torch.bool)
    valid[0, 90:] = True
    monitor = AttentionMonitor(queries=10)
    monitor.update(0, 0, q, k, valid_BQ=valid)
    assert last_values(monitor, "entropy") == pytest.approx(exact_entropy(q, k, valid_BQ=valid))
    monitor.update(100, 0, q, k, valid_BQ=torch.zeros(2, 100, dtype=torch.bool))
    assert monitor.report().of("entropy")[0].steps == (0,)


def test_a_layer_that_is_computed_again_by_checkpointing_counts_once() -> None:
    q, k = (tensor.requires_grad_() for tensor in qk())
    monitor = AttentionMonitor(every=1)
    calls = []

    def layer(q: Tensor, k: Tensor) -> Tensor:
        calls.append(1)
        monitor.update(3, 0, q, k)
        return (q * k).sin()

    torch.utils.checkpoint.checkpoint(layer, q, k, use_reentrant=False).sum().backward()
    assert len(calls) == 2
    assert monitor.report().of("entropy")[0].steps == (3,)


def test_a_monitor_observes_what_is_due_and_keeps_the_latest() -> None:
    q, k = qk()
    monitor = AttentionMonitor(every=10, keep=3)
    for step in range(61):
        monitor.update(step, 0, q * (1 + step), k)
    [history, *_] = monitor.report().of("query_key_magnitude")
    assert history.steps == (40, 50, 60)
    assert history.last / history.first == pytest.approx(61)
    with pytest.raises(UsageError, match="ascending"):
        monitor.update(50, 0, q, k)


def test_the_norm_is_the_models_own_and_the_jacobian_is_at_the_temperature() -> None:
    q, k = qk()
    plain, tempered = AttentionMonitor(), AttentionMonitor()
    plain.update(0, 0, q / 2, k)
    tempered.update(0, 0, q / 2, k, temperature=torch.tensor(2.0))
    for name, factor in (("query_key_magnitude", 2.0), ("jacobian_norm", 0.5), ("entropy", 1.0)):
        expected = [factor * value for value in last_values(plain, name)]
        assert last_values(tempered, name) == pytest.approx(expected)


def test_one_head_is_monitored_without_similarity() -> None:
    q, k = qk()
    monitor = AttentionMonitor()
    monitor.update(0, 0, q[:, :1], k[:, :1])
    assert monitor.report().of("head_similarity") == ()
    assert len(monitor.report().of("entropy")) == 1
    with pytest.raises(UsageError, match='Did you mean "entropy"'):
        monitor.report().of("entrpy")


def test_the_mean_of_a_report_is_over_all_heads_of_each_step() -> None:
    monitor = AttentionMonitor(every=1)
    for step, spread in enumerate((0.1, 1.0, 5.0)):
        for layer in range(2):
            monitor.update(step, layer, *qk(spread * (1 + layer)))
    report = monitor.report()
    for step, mean in report.mean("entropy"):
        assert mean == pytest.approx(np.mean([history.values[step] for history in report.of("entropy")]))
    falling = [value for _, value in report.mean("entropy")]
    assert falling == sorted(falling, reverse=True)


def test_a_trend_is_theil_and_sens_and_one_wild_point_does_not_turn_it() -> None:
    steps = list(range(20))
    values = [1 - 0.01 * step for step in steps]
    values[19] = 5.0
    course = trend(steps, values)
    assert course is not None
    slopes = [
        (values[j] - values[i]) / (steps[j] - steps[i]) for i, j in itertools.combinations(range(20), 2)
    ]
    assert course.slope == pytest.approx(np.median(slopes))
    assert course.falls
    # A line of least squares, as in tutorials, rises instead, and takes two points for a trend.
    assert np.polyfit(steps, values, 1)[0] > 0
    assert trend([0, 1], [0.0, 1.0]) is None


@pytest.mark.parametrize(
    "monitor_args", [{"every": 0}, {"queries": 0}, {"examples": 0}, {"keep": 0}, {"seed": -1}]
)
def test_what_a_monitor_cannot_be_made_with_is_said(monitor_args: dict[str, int]) -> None:
    with pytest.raises(SpecError, match="out of range"):
        AttentionMonitor(**monitor_args)


def test_the_names_of_what_is_observed_are_those_of_the_statistics() -> None:
    assert NAMES == (*STATISTICS, QUERY_KEY_MAGNITUDE)
