"""The processes that train one run together: how they connect and make common decisions.

Independent of agents and of the training; process.py starts the processes.
"""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import lightning as L
import torch
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tempopt.training.lightning_package import LightningCallback
from tempopt.training.messages import Stop

T = TypeVar("T")

# The agent detects hanging processes by the lease; waiting for a slow rank is not an error.
_PATIENCE = datetime.timedelta(days=7)
# Default seconds between checkpoints, in addition to those at validations.
AT_LATEST = 300.0


class Ranks:
    """The processes that train one run together, from the view of one of them.

    A single process does not communicate, at no cost.

    Args:
        rank: Rank of this process, from 0.
        size: Number of processes.
        group: Process group on the CPU for decisions; None for a single process.
    """

    def __init__(self, rank: int = 0, size: int = 1, group: Any = None) -> None:
        assert (group is None) == (size == 1)
        self.rank = rank
        self.size = size
        self._group = group

    @property
    def rank_seed_parts(self) -> tuple[int, ...]:
        """Parts that distinguish this rank's seeds from those of the first rank, which equal a single
        device's.
        """
        return (self.rank,) if self.rank else ()

    @classmethod
    def join(cls, *, rank: int, size: int, store: Path) -> Ranks:
        """Connect to the other processes by a file, and return them; Lightning uses the same process group.

        Args:
            rank: Rank of this process, from 0.
            size: Number of processes, >= 2.
            store: A file shared by these processes only, as long as they live.
        """
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(
            backend,
            store=distributed.FileStore(str(store), size),  # type: ignore[attr-defined]
            rank=rank,
            world_size=size,
            timeout=_PATIENCE,
        )
        # a separate group: decisions do not wait for a GPU and are ordered independently of other collectives
        return cls(rank, size, distributed.new_group(backend="gloo", timeout=_PATIENCE))

    def any(self, *flags: bool) -> list[bool]:
        """Return for each flag whether any rank has set it; all ranks have to call this."""
        if self._group is None:
            return list(flags)
        raised_flags = torch.tensor(flags, dtype=torch.uint8)
        distributed.all_reduce(raised_flags, distributed.ReduceOp.MAX, self._group)
        return [bool(flag) for flag in raised_flags.tolist()]

    def mean(self, values: list[float]) -> list[float]:
        """Return the means over all ranks, equal on each of them; all ranks have to call this."""
        if self._group is None:
            return values
        sums = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(sums, distributed.ReduceOp.SUM, self._group)
        return [value / self.size for value in sums.tolist()]

    def broadcast_from_first(self, decide: Callable[[], T]) -> T:
        """Return the decision of the first rank, which alone computes it; all ranks have to call this."""
        if self._group is None:
            return decide()
        objects = [decide() if self.rank == 0 else None]
        distributed.broadcast_object_list(objects, src=0, group=self._group)
        decision: Any = objects[0]
        return decision  # type: ignore[no-any-return]

    def all_gather(self, value: T) -> list[T]:
        """Return on the first rank the values of all ranks, by rank; on the others their own values."""
        if self._group is None:
            return [value]
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        distributed.gather_object(value, values, dst=0, group=self._group)
        return [value] if values is None else values


ALONE = Ranks()
"""A single process."""


class RankEnvironment(ClusterEnvironment):
    """Tells Lightning that its processes exist, regardless of a cluster's variables in the environment."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        if "pytorch_lightning" in sys.modules:
            sys.modules["lightning_fabric"].plugins.ClusterEnvironment.register(RankEnvironment)

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        # several ranks are already connected; a single one may have to connect, under a distributed strategy
        assert self._ranks.size == 1
        return find_free_network_port()

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._ranks.size

    def set_world_size(self, size: int) -> None:
        assert size == self._ranks.size

    def global_rank(self) -> int:
        return self._ranks.rank

    def set_global_rank(self, rank: int) -> None:
        assert rank == self._ranks.rank

    def local_rank(self) -> int:
        return self._ranks.rank

    def node_rank(self) -> int:
        return 0


class StopSignals:
    """The stop decision after a batch, equal on all ranks.

    A rank that acted on a message that only it has read would leave the others waiting for it.

    Args:
        ranks: The processes that train the run.
        stop: Returns the agent's stop request, as far as this rank has received it.
        interval_seconds: Seconds between checkpoints; None for at most ``AT_LATEST``.

    Attributes:
        keeps: Whether the run writes checkpoints; if not, none is waited for.
        stop: Whether the run has to end at once.
        leave: Whether the run has to end after its state is saved.
        late: Whether a checkpoint is due by time, as measured by the first rank.
    """

    def __init__(
        self, ranks: Ranks, stop: Callable[[], Stop | None], *, interval_seconds: float | None
    ) -> None:
        self._ranks = ranks
        self._poll_stop = stop
        self._every = AT_LATEST if interval_seconds is None else interval_seconds
        self.keeps = True
        self.stop = self.leave = self.late = False
        self.restart()

    def restart(self) -> None:
        """Restart the time to the next checkpoint."""
        self._clock = time.monotonic()

    def exchange(self, *, diverged: bool = False) -> bool:
        """Exchange the state of all ranks; return whether the run has diverged on any of them."""
        stop = self._poll_stop()
        self.leave, self.stop, self.late, diverged = self._ranks.any(
            stop is not None,
            stop is not None and not (stop.keep and self.keeps),
            self._ranks.rank == 0 and time.monotonic() - self._clock >= self._every,
            diverged,
        )
        return diverged


class BuffersCallback(LightningCallback):
    """Validate with the buffers of the first rank: running means differ between ranks.

    DDP does that itself, except while a gradient is accumulated. Otherwise values that depend on the metric,
    such as a learning rate, would differ between ranks.
    """

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        model = trainer.strategy.model
        if isinstance(model, DistributedDataParallel) and model.broadcast_buffers and model.modules_buffers:
            model._sync_buffers()
