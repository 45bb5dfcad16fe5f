"""Whole batches: nothing is lost, order follows the generator."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lightning_modules.batches import Drawn, Stored, batches


class SampledPair(NamedTuple):
    number: Tensor
    nothing: None
    label: Tensor


def make_stored(size: int) -> Stored[SampledPair]:
    return Stored(SampledPair(torch.arange(size), None, torch.arange(size) * 10))


def test_a_stored_batch_keeps_its_fields_together() -> None:
    batch = make_stored(10).__getitems__([7, 2])
    assert batch.number.tolist() == [7, 2]
    assert batch.label.tolist() == [70, 20]
    assert batch.nothing is None


def test_a_shuffled_loader_has_batches_of_one_size_in_an_order_that_follows_the_generator() -> None:
    orders = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        orders.append([batch.number.tolist() for batch in batches(make_stored(10), 4, shuffle=True)])
    assert [len(batch) for batch in orders[0]] == [4, 4]
    assert orders[0] == orders[1] != orders[2]


def test_drawn_items_follow_the_global_generator_and_are_new_each_time() -> None:
    dataset = Drawn(lambda size: (torch.rand(size),), epoch_size=8)
    torch.manual_seed(3)
    first_epoch, second = [torch.cat([batch[0] for batch in batches(dataset, 4)]) for _ in range(2)]
    torch.manual_seed(3)
    second_epoch = torch.cat([batch[0] for batch in batches(dataset, 4)])
    assert len(first_epoch) == len(dataset) == 8
    assert torch.equal(first_epoch, second_epoch)
    assert not torch.equal(first_epoch, second)
