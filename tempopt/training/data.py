"""Dataloaders whose order and randomness are functions of (seed, epoch, batch), so that a resume is exact.

It wraps a person's loaders and creates no data itself.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import lightning as L
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tempopt.errors import SpecError
from tempopt.seeds import derive
from tempopt.training.callbacks import seed_generators
from tempopt.training.lightning_package import CombinedLoader, LightningDataModule
from tempopt.training.ranks import ALONE, Ranks


class _Keyed(NamedTuple):
    """An index or several from a sampler, with the key that seeds the randomness of the items."""

    indices: Any
    key: tuple[int | str, ...]


class _KeyedDataset(Dataset[Any]):
    """The same items, fetched with the generators seeded by the batch's key, in any process."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, batch: _Keyed) -> Any:
        seed_generators(*batch.key)
        fetch = getattr(self._dataset, "__getitems__", None)
        return fetch(batch.indices) if fetch else [self._dataset[index] for index in batch.indices]

    def __getitem__(self, batch: _Keyed) -> Any:
        # a loader without automatic batching passes the sampler's value unchanged
        seed_generators(*batch.key)
        return self._dataset[batch.indices]


class _SeededOrder:
    """A sampler's batches (or indices) in an order that is a function of (seed, epoch), from any batch on.

    Ranks take them in turn, so that one step of all ranks uses the batches that a single device would have
    drawn next. If the number is not divisible, the epoch's first batches fill the last round. A sampler that
    already gives each rank a share is not divided again.
    """

    def __init__(self, sampler: Any, *, seed: int, ranks: Ranks) -> None:
        self._inner = sampler
        self._seed = seed
        self._rank, self._size = ranks.rank, ranks.size
        # torch's DistributedSampler, and those that are written like it
        owners = (sampler, getattr(sampler, "sampler", None))
        self._share = 1 if any(hasattr(owner, "num_replicas") for owner in owners) else ranks.size
        self.sampler = self  # where Lightning looks for set_epoch
        self.epoch = 0
        self.start = 0
        self.num_draws = 0
        self.num_earlier_draws = 0

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            # the position in one epoch does not apply to the next
            self.start = 0
        self.epoch = epoch
        for sampler in (self._inner, getattr(self._inner, "sampler", None)):
            if callable(forward := getattr(sampler, "set_epoch", None)):
                forward(epoch)

    def __len__(self) -> int:
        return math.ceil(len(self._inner) / self._share)

    def __iter__(self) -> Iterator[_Keyed]:
        start, self.start = self.start, 0
        if self.is_stateless:
            self.num_draws = max(self.num_draws, self.num_earlier_draws)
        while self.num_draws < self.num_earlier_draws:
            # a sampler with a generator of its own has moved it
            self.draw()
        batches = self.draw()
        for local_index in range(start, math.ceil(len(batches) / self._share)):
            number = local_index * self._size + self._rank
            batch = batches[local_index if self._share == 1 else number % len(batches)]
            yield _Keyed(batch, (self._seed, "items", self.epoch, number))

    @property
    def is_stateless(self) -> bool:
        """Whether what is drawn follows from torch's generators alone."""
        samplers = (self._inner, getattr(self._inner, "sampler", None))
        return all(
            sampler is None or type(sampler).__module__.startswith("torch.utils.data") for sampler in samplers
        )

    def count_batches(self) -> int:
        return math.ceil(len(self.draw()) / self._share)

    def draw(self) -> list[Any]:
        """Return what the sampler gives, drawn at once: generators are set anew at every batch."""
        seed_generators(self._seed, "order", self.epoch)
        for owner in (self._inner, getattr(self._inner, "sampler", None)):
            if isinstance(generator := getattr(owner, "generator", None), torch.Generator):
                generator.manual_seed(torch.initial_seed())
        self.num_draws += 1
        return list(self._inner)


class SeededLoader(DataLoader[Any]):
    """A DataLoader with the items of another, whose position is part of a checkpoint.

    Args:
        loader: The loader of a map-style dataset.
        seed: Seed of the run.
        ranks: The processes that train on it; each gets its own batches.
    """

    def __init__(self, loader: DataLoader[Any], *, seed: int, ranks: Ranks = ALONE) -> None:
        has_batch_sampler = loader.batch_sampler is not None
        sampler = loader.batch_sampler if has_batch_sampler else loader.sampler
        self._order = _SeededOrder(sampler, seed=seed, ranks=ranks)
        self._num_yielded_batches = 0
        workers: dict[str, Any] = {}
        if loader.num_workers:
            workers = {
                "prefetch_factor": loader.prefetch_factor,
                "persistent_workers": loader.persistent_workers,
                "multiprocessing_context": loader.multiprocessing_context,
            }
        super().__init__(
            _KeyedDataset(loader.dataset),
            **(
                {"batch_sampler": self._order}
                if has_batch_sampler
                else {"sampler": self._order, "batch_size": None}
            ),
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            generator=torch.Generator(),
            **workers,
        )

    def __iter__(self) -> Any:
        self._num_yielded_batches = self._order.start
        for batch in super().__iter__():
            self._num_yielded_batches += 1
            yield batch

    def count_batches(self) -> int:
        """Return how many batches an epoch has, drawn anew."""
        return self._order.count_batches()

    def state_dict(self) -> dict[str, int]:
        """Return the position: the epoch, the numbers of its drawn batches and of earlier drawn orders."""
        num_draws = max(self._order.num_draws, self._order.num_earlier_draws)
        if self._num_yielded_batches >= len(self):
            return {"epoch": self._order.epoch + 1, "batch": 0, "draws": num_draws}
        is_drawn = self._num_yielded_batches > 0
        return {
            "epoch": self._order.epoch,
            "batch": self._num_yielded_batches,
            "draws": num_draws - is_drawn,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a position returned by :meth:`state_dict`."""
        self._order.set_epoch(state["epoch"])
        self._order.start = state["batch"]
        self._order.num_earlier_draws = state["draws"]


class ResumableIterableLoader:
    """A loader without a length, whose position and randomness are those of the batch in training.

    Lightning draws the next batch of such a loader before it trains on one, to detect the last: the loader's
    own position is always one batch ahead.

    Args:
        loader: A loader with ``state_dict`` and ``load_state_dict``.
        seed: Seed of the run.
        ranks: The processes that train on it; each has its own loader and position.
    """

    def __init__(self, loader: Any, *, seed: int, ranks: Ranks = ALONE) -> None:
        self._loader = loader
        self._seed = seed
        self._ranks = ranks
        self._num_yielded_batches = 0
        self._trained_position: dict[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        while True:
            position = self._position()
            seed_generators(self._seed, "items", self._num_yielded_batches, *self._ranks.rank_seed_parts)
            try:
                batch = next(batches)
            except StopIteration:
                break
            self._num_yielded_batches += 1
            self._trained_position = position
            yield batch
        self._trained_position = self._position()

    def _position(self) -> dict[str, Any]:
        return {"loader": copy.deepcopy(self._loader.state_dict()), "given": self._num_yielded_batches}

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the second newest batch, or after the last one, of each rank."""
        position = self._trained_position if self._trained_position is not None else self._position()
        first, *other_states = self._ranks.all_gather(position)
        return {**first, "others": other_states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a position returned by :meth:`state_dict`."""
        rank_state = state["others"][self._ranks.rank - 1] if self._ranks.rank else state
        self._loader.load_state_dict(rank_state["loader"])
        self._num_yielded_batches = rank_state["given"]


def _init_worker(init_fn: Callable[[int], object] | None, worker: int) -> None:
    # a signal to the whole process group reaches loaders too; the agent ends them when they are not needed
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if init_fn is not None:
        init_fn(worker)


def _prepare_loaders(loaders: Any, *, pin: bool) -> Any:
    """Return the loaders, with worker processes that ignore SIGTERM.

    Args:
        loaders: A loader, or several in lists and dictionaries.
        pin: Whether loaders of map-style datasets return batches in pinned memory.
    """
    for loader in _leaves(loaders):
        if isinstance(loader, DataLoader) and loader.num_workers:
            loader.worker_init_fn = functools.partial(_init_worker, loader.worker_init_fn)
        stream = not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset)
        if pin and not stream and not getattr(loader, "pin_memory_device", ""):
            loader.pin_memory = True
    return loaders


def _seed(loaders: Any, seed: int, ranks: Ranks) -> Any:
    if isinstance(loaders, CombinedLoader):
        loaders.flattened = _seed(loaders.flattened, seed, ranks)
        return loaders
    # each loader gets its own seed: two loaders of the same data must not have the same order
    if isinstance(loaders, dict):
        return {name: _seed(loader, derive(seed, str(name)), ranks) for name, loader in loaders.items()}
    if isinstance(loaders, list | tuple):
        return type(loaders)(
            _seed(loader, derive(seed, number), ranks) for number, loader in enumerate(loaders)
        )
    try:
        len(loaders)
    except TypeError:
        return ResumableIterableLoader(loaders, seed=seed, ranks=ranks) if _resumable(loaders) else loaders
    if isinstance(loaders, DataLoader) and not isinstance(loaders.dataset, IterableDataset):
        return SeededLoader(loaders, seed=seed, ranks=ranks)
    return loaders


def _resumable(loaders: Any) -> bool:
    return all(callable(getattr(loader, "state_dict", None)) for loader in _leaves(loaders))


def _leaves(loaders: Any) -> list[Any]:
    return loaders.flattened if isinstance(loaders, CombinedLoader) else tree_leaves(loaders)


def _wrap(
    owner: Any, name: str, pre_hook: Callable[[], object], post_hook: Callable[[Any], Any] | None = None
) -> None:
    # on the instance, so that the person's class and ``trainer.datamodule`` are unchanged
    method = getattr(owner, name)

    def call_with_hooks(*args: Any, **kwargs: Any) -> Any:
        pre_hook()
        result = method(*args, **kwargs)
        return result if post_hook is None else post_hook(result)

    setattr(owner, name, functools.wraps(method)(call_with_hooks))


def seed_data(
    module: L.LightningModule,
    datamodule: L.LightningDataModule | None,
    *,
    seed: int,
    data_seed: int,
    on_not_resumable: Callable[[], object],
    on_not_divided: Callable[[], object] = lambda: None,
    ranks: Ranks = ALONE,
    should_pin: Callable[[], bool] = lambda: False,
) -> None:
    """Make the data of a run a function of its seed, and splits a function of ``data_seed`` only.

    Args:
        module: The module; its own dataloaders are seeded if there is no data module.
        datamodule: The data module, or None.
        seed: Seed of the run: order, augmentation and freshly generated test data follow from it.
        data_seed: Seed of the setup of data; the same for all runs of a study, so that no run trains on what
            another one holds out for testing.
        on_not_resumable: Called if the training data are a stream without a position.
        on_not_divided: Called if they are a stream, for which the person's code has to divide the data among
            ranks.
        ranks: The processes that train on the data, each on a share of the training data; validation and test
            data are not divided, so each rank measures what a single device would.
        should_pin: Whether batches go to a CUDA GPU, which copies from pinned memory while it computes.
    """
    owner: Any = module if datamodule is None else datamodule

    def prepare(loaders: Any) -> Any:
        return _prepare_loaders(loaders, pin=should_pin())

    def train(loaders: Any) -> Any:
        seeded_loaders = _seed(prepare(loaders), seed, ranks)
        if ranks.size > 1 and not all(isinstance(leaf, SeededLoader) for leaf in _leaves(seeded_loaders)):
            on_not_divided()
        if not _resumable(seeded_loaders):
            warnings.warn(
                "The training data do not know their position: a run that is interrupted starts again from "
                "step 0. Use a map-style dataset, or a loader with state_dict and load_state_dict.",
                stacklevel=2,
            )
            on_not_resumable()
        return seeded_loaders

    def the_runs_own_again(result: Any) -> Any:
        seed_generators(seed, "model")
        return result

    for name in ("prepare_data", "setup"):
        _wrap(owner, name, lambda: seed_generators(data_seed, "setup"), the_runs_own_again)
    _wrap(owner, "train_dataloader", lambda: seed_generators(seed, "train"), train)
    _wrap(owner, "val_dataloader", lambda: seed_generators(seed, "validate"), prepare)
    _wrap(owner, "test_dataloader", lambda: seed_generators(seed, "test"), prepare)


def undivided_data_note(ranks: int) -> str:
    """Return the note of a run whose devices each read the whole stream of data."""
    return (
        f"The training data are a stream, which is not divided among the {ranks} devices: each reads what "
        "its dataset gives it. Have the dataset choose by torch.distributed.get_rank(), and give each as "
        "many batches."
    )


class NoTestDataError(SpecError):
    """A ``test_dataloader`` returns nothing."""


@contextlib.contextmanager
def use_test_loaders(owner: L.LightningModule | L.LightningDataModule) -> Iterator[None]:
    """Make the owner of a run's dataloaders return the test data for validation.

    Raises:
        NoTestDataError: There are none; raised when they are requested.
    """
    if isinstance(owner, LightningDataModule):
        owner.setup("test")
    val_dataloader: Callable[[], Any] = owner.val_dataloader
    owner.val_dataloader = lambda: _require_test_loaders(owner.test_dataloader(), owner)  # type: ignore[method-assign]
    try:
        yield
    finally:
        owner.val_dataloader = val_dataloader  # type: ignore[method-assign]


def _require_test_loaders(loaders: Any, owner: object) -> Any:
    if loaders is None:
        raise NoTestDataError(
            f"{type(owner).__name__}.test_dataloader() gives nothing, and the verdict needs data that no "
            "search has seen. Write one, or say study.confirm_on: validate, which the verdict then states."
        )
    return loaders
