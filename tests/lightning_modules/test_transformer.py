"""The transformer layer: rotary positions know only of distances, attention is handed in."""

from __future__ import annotations

import cmath

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from lightning_modules.transformer import TransformerLayer, rotate


def test_a_rotation_is_a_complex_product() -> None:
    x = torch.randn(1, 1, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turned = rotate(x)
    for position in range(5):
        for pair, speed in enumerate((1.0, 0.01)):
            before = complex(x[0, 0, position, pair], x[0, 0, position, pair + 2])
            after = before * cmath.exp(1j * position * speed)
            assert turned[0, 0, position, pair].item() == pytest.approx(after.real, abs=1e-6)
            assert turned[0, 0, position, pair + 2].item() == pytest.approx(after.imag, abs=1e-6)


def test_rotary_logits_depend_on_the_distance_alone() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0))
    logits = rotate(q.expand(1, 1, 12, 8)) @ rotate(k.expand(1, 1, 12, 8)).mT
    for offset in range(-11, 12):
        diagonal = logits[0, 0].diagonal(offset)
        assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal), atol=1e-5)


def test_a_layer_without_rotation_has_no_notion_of_order() -> None:
    torch.manual_seed(0)
    layer = TransformerLayer(16, 2, rotary=False)
    x = torch.randn(3, 7, 16)
    order = torch.randperm(7)
    assert torch.allclose(
        layer(x, scaled_dot_product_attention)[:, order],
        layer(x[:, order], scaled_dot_product_attention),
        atol=1e-5,
    )
