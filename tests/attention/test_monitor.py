"""The monitor: what it sees, when, of which queries; and the trend of what it saw."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tempopt import attach
from tempopt.attention.analysis.histories import NAMES, QUERY_KEY_MAGNITUDE, trend
from tempopt.attention.analysis.monitor import AttentionMonitor
from tempopt.attention.analysis.patterns import PATTERNS, POSITION_PATTERNS, pattern_keys, pattern_score
from tempopt.attention.analysis.statistics import STATISTICS, attention_weights, head_sums, visible_attention
from tempopt.attention.functional.entropy import attention_entropy
from tempopt.attention.functional.logits import visible_pairs
from tempopt.errors import SpecError, UsageError
from tests.attention.test_statistics import DEFINITIONS, MASKS, B, D, H, K, Q, by_definition, qk, rows, valid


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


# ---- Queries and keys are shown as attention sees them, under the right layer, or not at all

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


class LayerRecorder:
    """Notes down the layers that it is shown, and their heads."""

    def __init__(self) -> None:
        self.layers: list[tuple[int, int]] = []

    def __call__(self, layer: int, q_BHQD: Tensor, k_BHKD: Tensor, **masking: Any) -> None:
        self.layers.append((layer, q_BHQD.shape[1]))


def attention(heads: int) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(8, heads, batch_first=True)


def test_attention_that_multiplies_matrices_itself_is_seen_too() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.explicit, self.fused = attention(2), attention(4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.explicit(x, x, x, need_weights=True)[0]
            return self.fused(x, x, x, need_weights=False)[0]

    recorder, model = LayerRecorder(), Two().train()
    with attach(model, {}).observed(recorder):
        model(X)
    assert recorder.layers == [(0, 2), (1, 4)]


def test_observers_may_leave_in_any_order() -> None:
    model = attention(2).train()
    attachment = attach(model, {})
    first, second = LayerRecorder(), LayerRecorder()
    first_context, second_context = (attachment.observed(recorder) for recorder in (first, second))
    with first_context:
        second_context.__enter__()
        model(X, X, X, need_weights=False)
    model(X, X, X, need_weights=False)
    second_context.__exit__(None, None, None)
    model(X, X, X, need_weights=False)
    assert (len(first.layers), len(second.layers)) == (1, 2)


class ProjectedAttention(nn.Module):
    """Attention over one projection of the query; the keys are the input."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k = (tensor.unflatten(-1, (self.heads, -1)).transpose(1, 2) for tensor in (self.q_proj(x), x))
        return F.scaled_dot_product_attention(q, k, k).transpose(1, 2).flatten(2)


def test_a_layer_that_is_left_out_is_not_shown() -> None:
    model, recorder = nn.Sequential(ProjectedAttention(2), ProjectedAttention(4)).train(), LayerRecorder()
    with attach(model, {}, layers=["1.q_proj"]) as attachment, attachment.observed(recorder):
        model(X)
    assert recorder.layers == [(0, 4)]


class ProductAttention(ProjectedAttention):
    def forward(self, x: Tensor) -> Tensor:
        q, k = (tensor.unflatten(-1, (self.heads, -1)).transpose(1, 2) for tensor in (self.q_proj(x), x))
        logits = q @ k.transpose(-2, -1) * (8 / self.heads) ** -0.5
        return (logits.masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf).softmax(-1) @ k)[:, 0]


def test_what_is_shown_of_logits_that_are_written_out_has_their_entropy() -> None:
    model = ProductAttention(2).double().train()
    x, entropies = X.double(), []

    def observe(
        layer: int, q_BHQD: Tensor, k_BHKD: Tensor, *, valid_BQ: Tensor | None, **masking: Any
    ) -> None:
        entropies.append(attention_entropy(q_BHQD, k_BHKD, **masking))

    with attach(model, {"temperature_init": 0.5}, example=lambda: model(x)).observed(observe):
        model(x)
    q, k = (tensor.unflatten(-1, (2, -1)).transpose(1, 2) for tensor in (model.q_proj(x), x))
    logits = (q @ k.transpose(-2, -1)).masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf)
    weights = (logits * 2.0 / 2.0).softmax(-1)
    torch.testing.assert_close(entropies[0], torch.special.entr(weights).sum(-1))


def test_looking_on_changes_no_bit_of_an_encoder() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    attachment, recorder = attach(encoder, {}), LayerRecorder()
    with torch.no_grad():
        before = encoder(X)
        with attachment.observed(recorder):
            during = encoder(X)
    assert torch.equal(before, during)
    assert recorder.layers == [(0, 2), (1, 2)]


# ---- Patterns of attention against loops over queries and keys, with every kind of mask

TOKENS = torch.tensor([[3, 5, 3, 3, 9, 5], [1, 2, 1, 2, 1, 7]])


def names_key(pattern: str, i: int, j: int, tokens: list[int], first: int) -> bool:
    """Whether a pattern names key j for query i, in words of its definition."""
    return {
        "diagonal": j == i,
        "previous_token": j == i - 1,
        "next_token": j == i + 1,
        "first_token": j == first,
        "local": abs(i - j) <= 2,
        "same_token": j != i and tokens[j] == tokens[i],
        "induction": j > 0 and j != i + 1 and tokens[j - 1] == tokens[i],
    }[pattern]


def scores(pattern: str, masking: dict[str, Any]) -> dict[tuple[int, int, int], float]:
    """The score of each query that has the choice, by example, head and query."""
    visible_rows = rows(*qk(), **masking)
    pattern_scores = {}
    for (b, h, i), (keys, a) in visible_rows.items():
        first = min(key for query in range(Q) for key in [*visible_rows[b, h, query][0], K])
        inside = np.array([names_key(pattern, i, j, TOKENS[b].tolist(), first) for j in keys], dtype=bool)
        if 0 < inside.sum() < len(keys):
            pattern_scores[b, h, i] = (a[inside].sum() - inside.mean()) / (1 - inside.mean())
    return pattern_scores


@pytest.mark.parametrize("masking", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_score_is_the_weight_on_the_patterns_keys_above_chance(
    pattern: str, masking: dict[str, Any]
) -> None:
    weights = attention_weights(*qk(), **masking)
    visible = visible_pairs(Q, K, **masking)
    score, counts = pattern_score(weights, pattern, visible, tokens_BK=TOKENS)
    expected = scores(pattern, masking)
    assert {tuple(index) for index in counts.nonzero().tolist()} == set(expected)
    for index in itertools.product(range(B), range(H), range(Q)):
        assert score[index].item() == pytest.approx(expected.get(index, 0.0), abs=1e-12)


def test_the_monitor_follows_patterns_of_position() -> None:
    monitor = AttentionMonitor(every=1)
    monitor.update(0, 0, *qk(), is_causal=True)
    report = monitor.report()
    for pattern in set(POSITION_PATTERNS) - {"next_token"}:
        pattern_scores = scores(pattern, {"is_causal": True})
        for head, history in enumerate(report.of(pattern)):
            expected = np.mean([value for index, value in pattern_scores.items() if index[1] == head])
            assert history.last == pytest.approx(expected)
    assert report.of("next_token") == ()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_head_that_does_nothing_else_has_one_and_a_uniform_head_zero(pattern: str, is_causal: bool) -> None:
    visible = visible_pairs(Q, K, is_causal=is_causal).expand(B, 1, Q, K)
    keys = pattern_keys(pattern, visible, tokens_BK=TOKENS)
    pure = torch.where(keys.any(dim=-1, keepdim=True), keys, visible).double()
    for weights, expected in ((pure, 1.0), (visible.double(), 0.0)):
        weights = weights / weights.sum(dim=-1, keepdim=True)
        score, counts = pattern_score(weights, pattern, visible, tokens_BK=TOKENS)
        assert bool(counts.any()) != (pattern == "next_token" and is_causal)
        torch.testing.assert_close(score[counts], torch.full_like(score[counts], expected))


def test_queries_are_where_they_are_said_to_be() -> None:
    weights = attention_weights(*qk())
    full_scores, _ = pattern_score(weights, "induction", tokens_BK=TOKENS)
    positions = torch.tensor([2, 5])
    partial_scores, _ = pattern_score(
        weights[:, :, positions], "induction", position_Q=positions, tokens_BK=TOKENS
    )
    assert torch.equal(partial_scores, full_scores[:, :, positions])


def keys_of(pattern: str, tokens: Tensor | None = None, window: int = 2) -> Tensor:
    return pattern_keys(pattern, torch.ones(B, H, Q, K, dtype=torch.bool), tokens_BK=tokens, window=window)


def test_what_is_no_pattern_is_refused() -> None:
    with pytest.raises(SpecError, match='Unknown pattern "previous". Did you mean "previous_token"'):
        keys_of("previous")
    with pytest.raises(UsageError, match=r'no tokens for .*"induction". Give tokens_BK of shape \(2, 6\)'):
        keys_of("induction")
    with pytest.raises(UsageError, match=r"tokens of shape \(2, 5\)"):
        keys_of("same_token", TOKENS[:, :5])
    with pytest.raises(SpecError, match="window=0"):
        keys_of("local", window=0)
