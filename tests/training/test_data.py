"""Order and randomness of the data are functions of (seed, epoch, batch), whoever fetches them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import lightning as L
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

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


def seeded(train_dataloader: Any) -> tuple[Any, list[bool]]:
    """Return what a module's training loaders become, and whether they were said not to be resumable."""
    module = L.LightningModule()
    module.train_dataloader = train_dataloader  # type: ignore[method-assign]
    said: list[bool] = []
    seed_data(module, None, seed=0, data_seed=0, not_resumable=lambda: said.append(True))
    return module.train_dataloader(), said


def test_a_stream_without_state_is_left_alone_and_said_not_to_be_resumable() -> None:
    with pytest.warns(UserWarning, match="starts again from step 0"):
        loader, said = seeded(lambda: DataLoader(Stream(), batch_size=2))
    assert not isinstance(loader, SeededLoader)
    assert said == [True]


def test_several_loaders_keep_their_names_and_get_orders_of_their_own() -> None:
    loaders, said = seeded(lambda: {"a": LOADERS["shuffled"](), "b": [LOADERS["shuffled"]()]})
    assert order(loaders["a"], 0) != order(loaders["b"][0], 0)
    assert not said


def test_a_sampler_of_whole_batches_gives_whole_batches() -> None:
    sampler = BatchSampler(SequentialSampler(range(30)), batch_size=4, drop_last=False)

    class Whole(Dataset[Any]):
        def __getitem__(self, indices: Any) -> torch.Tensor:
            return torch.tensor(indices)

        def __len__(self) -> int:
            return 30

    loader = SeededLoader(DataLoader(Whole(), sampler=sampler, batch_size=None), seed=1)
    assert [batch.tolist() for batch in loader] == list(sampler)
