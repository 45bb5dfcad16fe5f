"""Calibration after training: the temperature that was planted, and the minimum that scipy finds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import torch
from torch import Tensor

from tempopt.attention.modules.losses import calibrated_temperature
from tempopt.errors import UsageError

C = 5


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def draw_classes(logits: Tensor, temperature: float) -> Tensor:
    """Classes drawn from the tempered softmax of the logits."""
    probabilities = (logits / temperature).softmax(dim=1)
    return torch.multinomial(probabilities, 1, generator=torch.Generator().manual_seed(3)).squeeze(1)


@pytest.mark.parametrize("spread", [0.5, 3.0, 30.0])
def test_calibration_is_the_minimum_that_scipy_finds(spread: float) -> None:
    logits = spread * randn(500, C)
    target = draw_classes(logits, spread)

    def likelihood(log_temperature: float) -> float:
        log_weights = scipy.special.log_softmax(logits.numpy() / math.exp(log_temperature), axis=1)
        return float(-log_weights[np.arange(500), target].mean())

    best = scipy.optimize.minimize_scalar(
        likelihood, bounds=(-7, 7), method="bounded", options={"xatol": 1e-9}
    )
    assert calibrated_temperature(logits, target) == pytest.approx(math.exp(best.x), rel=1e-5)


@pytest.mark.parametrize(
    ("logits", "target", "message"),
    [
        (10 * torch.eye(3), torch.arange(3), "classified rightly, so the colder the better"),
        (-10 * torch.eye(3), torch.arange(3), "tell nothing of the classes"),
        (torch.zeros(4, 3), torch.zeros(4, dtype=torch.long), "tell nothing of the classes"),
        (torch.zeros(4, 3, 2), torch.zeros(4, dtype=torch.long), r"shape \(4, 3, 2\)"),
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), "one example at least"),
        (torch.zeros(4, 3), torch.full((4,), 3), "whole numbers from 0 to 2"),
        (torch.zeros(4, 3), torch.zeros(4), "whole numbers from 0 to 2"),
        (torch.full((4, 3), math.nan), torch.zeros(4, dtype=torch.long), "not finite"),
    ],
)
def test_calibration_without_an_answer_says_so(logits: Tensor, target: Tensor, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        calibrated_temperature(logits, target)
