"""The transformer layer: rotary positions know only of distances, attention is handed in."""

from __future__ import annotations

import cmath

import pytest
import torch

from lightning_modules.transformer import rotate


def test_a_rotation_is_a_complex_product() -> None:
    x = torch.randn(1, 1, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turned = rotate(x)
    for position in range(5):
        for pair, speed in enumerate((1.0, 0.01)):
            before = complex(x[0, 0, position, pair], x[0, 0, position, pair + 2])
            after = before * cmath.exp(1j * position * speed)
            assert turned[0, 0, position, pair].item() == pytest.approx(after.real, abs=1e-6)
            assert turned[0, 0, position, pair + 2].item() == pytest.approx(after.imag, abs=1e-6)
