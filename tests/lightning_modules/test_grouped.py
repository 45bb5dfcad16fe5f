"""One metric per group."""

from __future__ import annotations

import torch
from torchmetrics import MeanMetric

from lightning_modules.grouped import Grouped


def test_each_group_has_a_mean_of_its_own() -> None:
    grouped = Grouped(MeanMetric)
    grouped.update("64", torch.tensor([1.0, 2.0]))
    grouped.update("256", torch.tensor([5.0]))
    grouped.update("64", torch.tensor([6.0]))
    assert {group: value.item() for group, value in grouped.compute().items()} == {"64": 3.0, "256": 5.0}


def test_a_group_that_was_not_seen_since_is_left_out() -> None:
    grouped = Grouped(MeanMetric)
    grouped.update("64", torch.tensor([1.0]))
    grouped.update("256", torch.tensor([5.0]))
    grouped.compute()
    grouped.update("256", torch.tensor([7.0]))
    assert {group: value.item() for group, value in grouped.compute().items()} == {"256": 7.0}
