"""Datasets that give a whole batch at once, so that a batch costs one indexing; no data are made here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

Batch = TypeVar("Batch", bound=tuple[Any, ...])


class Drawn(Dataset[Batch], Generic[Batch]):
    """A dataset without end whose batches are drawn from torch's global generator as they are asked for.

    The items are new in every epoch; they are a function of the generator alone, not of the index. The
    length says only how many items are counted as an epoch.

    Args:
        draw: Given a number of items, draws a batch of that many.
        epoch_size: Items in an epoch, >= 1.
    """

    def __init__(self, draw: Callable[[int], Batch], epoch_size: int) -> None:
        self._draw = draw
        self._epoch_size = epoch_size

    def __len__(self) -> int:
        return self._epoch_size

    def __getitem__(self, index: int) -> Batch:
        return self._draw(1)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        return self._draw(len(indices))


class Stored(Dataset[Batch], Generic[Batch]):
    """A dataset that lies in memory as one batch of everything.

    Args:
        everything: Named tuple of tensors with the same first dimension, or of None.
    """

    def __init__(self, everything: Batch) -> None:
        self._everything = everything
        self._length = len(everything[-1])

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Batch:
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        index_B = torch.tensor(indices)
        kind: Any = type(self._everything)
        batch: Batch = kind(*(None if field is None else field[index_B] for field in self._everything))
        return batch


def _as_it_is(batch: Batch) -> Batch:
    return batch


def batches(
    dataset: Drawn[Batch] | Stored[Batch], batch_size: int, *, shuffle: bool = False, num_workers: int = 0
) -> DataLoader[Batch]:
    """Return a loader of whole batches.

    Args:
        dataset: What to load from.
        batch_size: Items in a batch, >= 1; a shuffled loader drops an incomplete last batch.
        shuffle: Whether the order is drawn from torch's global generator, anew in each epoch.
        num_workers: Processes that fetch; 0 fetches in this one.
    """
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=shuffle,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        collate_fn=_as_it_is,
    )
