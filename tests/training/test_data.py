"""Order and randomness of the data are functions of (seed, epoch, batch), whichever process fetches them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import lightning as L
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from tempopt.training.data import SeededLoader, seed_data
from tempopt.training.ranks import Ranks


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
    first_order = order(SeededLoader(make(), seed=1), 0)
    torch.manual_seed(1)
    loader = SeededLoader(make(), seed=1)
    loader.state_dict()
    second_order = order(loader, 1)
    if make is not LOADERS["weighted"]:
        assert order(loader, 0) == first_order
        assert sorted(itertools.chain(*first_order)) == list(range(30))
    assert second_order != first_order
    assert order(SeededLoader(make(), seed=2), 0) != first_order


@pytest.mark.parametrize("done", range(9))
def test_a_loader_goes_on_from_the_batch_where_it_was_left(done: int) -> None:
    epoch_batches = [*order(SeededLoader(LOADERS["shuffled"](), seed=1), 3)]
    interrupted_loader = SeededLoader(LOADERS["shuffled"](), seed=1)
    interrupted_loader.load_state_dict({"epoch": 3, "batch": 0, "draws": 3})
    first_batches = list(itertools.islice(iter(interrupted_loader), done))
    resumed_loader = SeededLoader(LOADERS["shuffled"](), seed=1)
    resumed_loader.load_state_dict(interrupted_loader.state_dict())
    remaining_batches = [batch.tolist() for batch in resumed_loader]
    if done < len(epoch_batches):
        assert [*(batch.tolist() for batch in first_batches), *remaining_batches] == epoch_batches
    else:
        assert interrupted_loader.state_dict() == {"epoch": 4, "batch": 0, "draws": 4}


class NumberStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def seed_loaders(train_dataloader: Any) -> tuple[Any, list[bool]]:
    """Return what a module's training loaders become, and whether they were said not to be resumable."""
    module = L.LightningModule()
    module.train_dataloader = train_dataloader  # type: ignore[method-assign]
    notices: list[bool] = []
    seed_data(module, None, seed=0, data_seed=0, on_not_resumable=lambda: notices.append(True))
    return module.train_dataloader(), notices


def test_a_stream_without_state_is_left_alone_and_said_not_to_be_resumable() -> None:
    with pytest.warns(UserWarning, match="starts again from step 0"):
        loader, notices = seed_loaders(lambda: DataLoader(NumberStream(), batch_size=2))
    assert not isinstance(loader, SeededLoader)
    assert notices == [True]


def test_several_loaders_keep_their_names_and_get_orders_of_their_own() -> None:
    loaders, notices = seed_loaders(lambda: {"a": LOADERS["shuffled"](), "b": [LOADERS["shuffled"]()]})
    assert order(loaders["a"], 0) != order(loaders["b"][0], 0)
    assert not notices


def ranks(size: int) -> list[Ranks]:
    return [Ranks(rank, size, group=object()) for rank in range(size)]


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_take_the_batches_of_one_device_in_turn_and_fill_the_last_round(make: Any, size: int) -> None:
    def make_loader() -> DataLoader[int]:
        torch.manual_seed(0)
        loader: DataLoader[int] = make()
        return loader

    device_batches = order(SeededLoader(make_loader(), seed=1), 3)
    shares = [SeededLoader(make_loader(), seed=1, ranks=rank) for rank in ranks(size)]
    rounds = math.ceil(len(device_batches) / size)
    assert {len(share) for share in shares} == {rounds}
    rank_batches = [
        batch for turn in zip(*(order(share, 3) for share in shares), strict=True) for batch in turn
    ]
    assert rank_batches == [*device_batches, *device_batches][: rounds * size]


def test_a_rank_goes_on_in_the_middle_of_an_epoch() -> None:
    def share() -> SeededLoader:
        return SeededLoader(LOADERS["shuffled"](), seed=1, ranks=ranks(2)[1])

    epoch_batches = order(share(), 3)
    interrupted_loader, resumed_loader = share(), share()
    interrupted_loader.batch_sampler.set_epoch(3)
    list(itertools.islice(interrupted_loader, 2))
    assert interrupted_loader.state_dict() == {"epoch": 3, "batch": 2, "draws": 0}
    resumed_loader.load_state_dict(interrupted_loader.state_dict())
    assert [batch.tolist() for batch in resumed_loader] == epoch_batches[2:]


def test_items_of_ranks_have_randomness_of_their_own() -> None:
    class Noise(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.rand(())

    loaders = [SeededLoader(DataLoader(Noise(), batch_size=2), seed=1, ranks=rank) for rank in ranks(2)]
    alone = torch.cat(list(SeededLoader(DataLoader(Noise(), batch_size=2), seed=1))).tolist()
    turns = [torch.cat(turn).tolist() for turn in zip(*loaders, strict=True)]
    assert [value for turn in turns for value in turn] == alone
    assert len(set(alone)) == 8


def test_a_sampler_that_gives_each_rank_its_share_is_not_divided_again() -> None:
    def share(rank: int) -> list[list[int]]:
        sampler = DistributedSampler(Indices(), num_replicas=2, rank=rank, shuffle=True)
        loader = DataLoader(Indices(), batch_size=5, sampler=sampler)
        return order(SeededLoader(loader, seed=1, ranks=ranks(2)[rank]), 3)

    first, second = share(0), share(1)
    assert len(first) == len(second) == 3
    assert sorted(itertools.chain(*first, *second)) == list(range(30))


def test_validation_data_are_not_divided() -> None:
    module = L.LightningModule()
    module.val_dataloader = LOADERS["shuffled"]  # type: ignore[method-assign]
    seed_data(module, None, seed=0, data_seed=0, on_not_resumable=lambda: None, ranks=ranks(2)[1])
    assert len(module.val_dataloader()) == 8


def test_a_sampler_of_whole_batches_gives_whole_batches() -> None:
    sampler = BatchSampler(SequentialSampler(range(30)), batch_size=4, drop_last=False)

    class WholeBatchDataset(Dataset[Any]):
        def __getitem__(self, indices: Any) -> torch.Tensor:
            return torch.tensor(indices)

        def __len__(self) -> int:
            return 30

    loader = SeededLoader(DataLoader(WholeBatchDataset(), sampler=sampler, batch_size=None), seed=1)
    assert [batch.tolist() for batch in loader] == list(sampler)
