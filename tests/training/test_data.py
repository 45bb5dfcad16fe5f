"""Order and randomness of the data are functions of (seed, epoch, batch), whoever fetches them."""

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


def ranks(size: int) -> list[Ranks]:
    return [Ranks(rank, size, group=object()) for rank in range(size)]


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_take_the_batches_of_one_device_in_turn_and_fill_the_last_round(make: Any, size: int) -> None:
    def made() -> DataLoader[int]:
        torch.manual_seed(0)
        loader: DataLoader[int] = make()
        return loader

    whole = order(SeededLoader(made(), seed=1), 3)
    shares = [SeededLoader(made(), seed=1, ranks=each) for each in ranks(size)]
    rounds = math.ceil(len(whole) / size)
    assert {len(share) for share in shares} == {rounds}
    drawn = [batch for turn in zip(*(order(share, 3) for share in shares), strict=True) for batch in turn]
    assert drawn == [*whole, *whole][: rounds * size]


def test_two_ranks_go_through_what_one_device_with_twice_the_batch_does() -> None:
    def loader(batch_size: int) -> DataLoader[int]:
        return DataLoader(Indices(), batch_size=batch_size, shuffle=True)

    one = order(SeededLoader(loader(6), seed=1), 0)
    first, second = (order(SeededLoader(loader(3), seed=1, ranks=each), 0) for each in ranks(2))
    assert [a + b for a, b in zip(first, second, strict=True)] == one


def test_a_rank_goes_on_in_the_middle_of_an_epoch() -> None:
    def share() -> SeededLoader:
        return SeededLoader(LOADERS["shuffled"](), seed=1, ranks=ranks(2)[1])

    whole = order(share(), 3)
    left, again = share(), share()
    left.batch_sampler.set_epoch(3)
    list(itertools.islice(left, 2))
    assert left.state_dict() == {"epoch": 3, "batch": 2}
    again.load_state_dict(left.state_dict())
    assert [batch.tolist() for batch in again] == whole[2:]


def test_items_of_ranks_have_randomness_of_their_own() -> None:
    class Noise(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.rand(())

    loaders = [SeededLoader(DataLoader(Noise(), batch_size=2), seed=1, ranks=each) for each in ranks(2)]
    alone = torch.cat(list(SeededLoader(DataLoader(Noise(), batch_size=2), seed=1))).tolist()
    drawn = [torch.cat(turn).tolist() for turn in zip(*loaders, strict=True)]
    assert [value for turn in drawn for value in turn] == alone
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
    seed_data(module, None, seed=0, data_seed=0, not_resumable=lambda: None, ranks=ranks(2)[1])
    assert len(module.val_dataloader()) == 8


def test_a_sampler_of_whole_batches_gives_whole_batches() -> None:
    sampler = BatchSampler(SequentialSampler(range(30)), batch_size=4, drop_last=False)

    class Whole(Dataset[Any]):
        def __getitem__(self, indices: Any) -> torch.Tensor:
            return torch.tensor(indices)

        def __len__(self) -> int:
            return 30

    loader = SeededLoader(DataLoader(Whole(), sampler=sampler, batch_size=None), seed=1)
    assert [batch.tolist() for batch in loader] == list(sampler)
