"""Order and randomness of the data are functions of (seed, epoch, batch), whoever fetches them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler

from tempopt.training.data import SeededLoader, seed_data


class Indices(Dataset[int]):
    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> int:
        return index


def order(loader: SeededLoader, epoch: int) -> list[list[int]]:
    loader.batch_sampler.set_epoch(epoch) if loader.batch_sampler else loader.sampler.set_epoch(epoch)
    return [batch.tolist() if isinstance(batch, torch.Tensor) else [batch] for batch in loader]


LOADERS: dict[str, Any] = {
    "shuffled": lambda: DataLoader(Indices(), batch_size=4, shuffle=True),
    "with a generator": lambda: DataLoader(
        Indices(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3)
    ),
    "with a sampler": lambda: DataLoader(
        Indices(), batch_size=4, sampler=RandomSampler(Indices(), generator=torch.Generator())
    ),
    "weighted": lambda: DataLoader(
        Indices(), batch_size=4, sampler=WeightedRandomSampler(torch.rand(30).tolist(), 30)
    ),
    "not batched": lambda: DataLoader(Indices(), batch_size=None, shuffle=True),
}


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_the_order_follows_from_seed_and_epoch(make: Any) -> None:
    torch.manual_seed(0)
    first = order(SeededLoader(make(), seed=1), 0)
    torch.manual_seed(1)
    loader = SeededLoader(make(), seed=1)
    loader.state_dict()
    other = order(loader, 1)
    if make is not LOADERS["weighted"]:
        assert order(loader, 0) == first
        assert sorted(itertools.chain(*first)) == list(range(30))
    assert other != first
    assert order(SeededLoader(make(), seed=2), 0) != first


def test_data_that_are_not_shuffled_stay_in_order() -> None:
    loader = SeededLoader(DataLoader(Indices(), batch_size=7), seed=1)
    assert list(itertools.chain(*order(loader, 5))) == list(range(30))
    assert len(loader) == 5


@pytest.mark.parametrize("done", range(9))
def test_a_loader_goes_on_from_the_batch_where_it_was_left(done: int) -> None:
    whole = [*order(SeededLoader(LOADERS["shuffled"](), seed=1), 3)]
    left = SeededLoader(LOADERS["shuffled"](), seed=1)
    left.load_state_dict({"epoch": 3, "batch": 0})
    given = list(itertools.islice(iter(left), done))
    again = SeededLoader(LOADERS["shuffled"](), seed=1)
    again.load_state_dict(left.state_dict())
    rest = [batch.tolist() for batch in again]
    if done < len(whole):
        assert [*(batch.tolist() for batch in given), *rest] == whole
    else:
        assert left.state_dict() == {"epoch": 4, "batch": 0}


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def test_a_stream_without_state_is_left_alone_with_a_warning() -> None:
    module = L.LightningModule()
    module.train_dataloader = lambda: DataLoader(Stream(), batch_size=2)  # type: ignore[method-assign]
    seed_data(module, None, seed=0, data_seed=0)
    with pytest.warns(UserWarning, match="starts again from step 0"):
        loader = module.train_dataloader()
    assert not isinstance(loader, SeededLoader)


def test_several_loaders_keep_their_names() -> None:
    module = L.LightningModule()
    module.train_dataloader = lambda: {"a": LOADERS["shuffled"](), "b": [LOADERS["shuffled"]()]}  # type: ignore[method-assign]
    seed_data(module, None, seed=0, data_seed=0)
    loaders = module.train_dataloader()
    assert isinstance(loaders["a"], SeededLoader)
    assert isinstance(loaders["b"][0], SeededLoader)
