"""Pictures of attention as text, against pooling by loops."""

from __future__ import annotations

import math

import pytest
import torch

from tempopt.attention.analysis.heatmap import heatmap
from tempopt.errors import SpecError, UsageError


@pytest.mark.parametrize(("q_len", "k_len"), [(5, 7), (24, 48), (61, 130), (1, 300)])
def test_a_cell_is_the_weight_that_its_queries_give_to_all_of_its_keys(q_len: int, k_len: int) -> None:
    generator = torch.Generator().manual_seed(0)
    visible = torch.rand(q_len, k_len, generator=generator) < 0.5
    visible[0] = q_len == 1
    logits = torch.randn(q_len, k_len, generator=generator, dtype=torch.float64)
    weights = logits.masked_fill(~visible, -math.inf).softmax(-1).nan_to_num(0.0)
    picture = heatmap(weights, visible, rows=10, columns=20)
    assert len(picture.cells) == min(q_len, 10)
    for row, (top, bottom) in enumerate(zip(picture.query_edges, picture.query_edges[1:], strict=False)):
        sees = [i for i in range(top, bottom) if visible[i].any()]
        assert sum(picture.cells[row]) == pytest.approx(1.0 if sees else 0.0)
        for column, (left_edge, right_edge) in enumerate(
            zip(picture.key_edges, picture.key_edges[1:], strict=False)
        ):
            expected = sum(weights[i, j].item() for i in sees for j in range(left_edge, right_edge)) / max(
                len(sees), 1
            )
            assert picture.cells[row][column] == pytest.approx(expected, abs=1e-15)
            assert picture.visible[row][column] == visible[top:bottom, left_edge:right_edge].any().item()


def test_a_picture_is_bounded_and_keeps_a_diagonal_that_is_pooled() -> None:
    lines = str(heatmap(torch.eye(1000))).splitlines()[1:]
    assert len(lines) == 24
    assert max(map(len, lines)) <= 48 + 4
    padded_lines = [line[4:].ljust(48) for line in lines]
    assert all(
        padded_lines[row][2 * row : 2 * row + 2].strip() and len(padded_lines[row].strip()) <= 3
        for row in range(24)
    )


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"Given attention weights of shape \(1, 2, 3\).*weights\[example, head\]"
    ):
        heatmap(torch.ones(1, 2, 3))
    with pytest.raises(UsageError, match="not finite"):
        heatmap(torch.full((2, 2), math.nan))
    with pytest.raises(SpecError, match="rows"):
        heatmap(torch.eye(2), rows=0)
