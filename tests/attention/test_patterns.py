"""Patterns of attention against loops over queries and keys, with every kind of mask."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tempopt.attention.analysis.monitor import AttentionMonitor
from tempopt.attention.analysis.patterns import PATTERNS, POSITION_PATTERNS, pattern_keys, pattern_score
from tempopt.attention.analysis.statistics import attention_weights
from tempopt.attention.functional.logits import visible_pairs
from tempopt.errors import SpecError, UsageError
from tests.attention.test_statistics import MASKS, B, H, K, Q, qk, rows

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
