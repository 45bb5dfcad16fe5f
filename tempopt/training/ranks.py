"""The processes that train one run together: how they meet, and how they decide as one.

Knows nothing of agents and of what is trained; process.py starts the processes.
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

# Who hangs is for the agent to tell, by the lease; a rank that waits for a slow one is no fault.
_PATIENCE = datetime.timedelta(days=7)
# Without a wish of the person's own: at every validation, and no longer than this apart.
AT_LATEST = 300.0


class Ranks:
    """The processes that train one run together, as one of them sees them.

    One process alone asks no other, and pays nothing for being able to.

    Args:
        rank: Which of them this one is, from 0.
        size: How many they are.
        group: A group of theirs on the CPU, for what they decide; None for one alone.
    """

    def __init__(self, rank: int = 0, size: int = 1, group: Any = None) -> None:
        assert (group is None) == (size == 1)
        self.rank = rank
        self.size = size
        self._group = group

    @property
    def rank_seed_parts(self) -> tuple[int, ...]:
        """What tells this rank's seeds from those of the first one, which has those of a single device."""
        return (self.rank,) if self.rank else ()

    @classmethod
    def join(cls, *, rank: int, size: int, store: Path) -> Ranks:
        """Meet the other processes at a file, and return them; Lightning finds the group that is made.

        Args:
            rank: Which of them this one is, from 0.
            size: How many they are, >= 2.
            store: A file that is there for all of them, and for no other process, as long as they live.
        """
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(
            backend,
            store=distributed.FileStore(str(store), size),  # type: ignore[attr-defined]
            rank=rank,
            world_size=size,
            timeout=_PATIENCE,
        )
        # one of our own: what is decided waits for no card, and is in no other order of collectives
        return cls(rank, size, distributed.new_group(backend="gloo", timeout=_PATIENCE))

    def any(self, *flags: bool) -> list[bool]:
        """Return for each flag whether any rank has raised it; all ranks have to ask."""
        if self._group is None:
            return list(flags)
        raised_flags = torch.tensor(flags, dtype=torch.uint8)
        distributed.all_reduce(raised_flags, distributed.ReduceOp.MAX, self._group)
        return [bool(flag) for flag in raised_flags.tolist()]

    def mean(self, values: list[float]) -> list[float]:
        """Return the means over all ranks, equal on each of them; all ranks have to ask."""
        if self._group is None:
            return values
        sums = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(sums, distributed.ReduceOp.SUM, self._group)
        return [value / self.size for value in sums.tolist()]

    def broadcast_from_first(self, decide: Callable[[], T]) -> T:
        """Return what the first rank decides; only there it is asked, and all have to wait for it."""
        if self._group is None:
            return decide()
        objects = [decide() if self.rank == 0 else None]
        distributed.broadcast_object_list(objects, src=0, group=self._group)
        decision: Any = objects[0]
        return decision  # type: ignore[no-any-return]

    def all_gather(self, value: T) -> list[T]:
        """Return on the first rank what each of them has, by rank; on the others what they have."""
        if self._group is None:
            return [value]
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        distributed.gather_object(value, values, dst=0, group=self._group)
        return [value] if values is None else values


ALONE = Ranks()
"""One process by itself."""


class RankEnvironment(ClusterEnvironment):
    """Tells Lightning that its processes are there, whatever a cluster's variables say of the agent's."""

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
        # several have met already; one alone may have to, under a strategy for several
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
    """What is to become of a run after a batch, known to all of its ranks alike.

    A rank that acted on what it alone has read would leave the others waiting for it.

    Args:
        ranks: Who train the run.
        stop: Returns the agent's wish that the run end, as far as this rank has heard of it.
        interval_seconds: Seconds between checkpoints; None for ``AT_LATEST`` at most.

    Attributes:
        keeps: Whether the run writes checkpoints; if not, none is waited for.
        stop: Whether the run is to end at once.
        leave: Whether it is to end, when what it has done is kept.
        late: Whether a checkpoint is due by the clock, as the first rank sees it.
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
        """Begin to count the seconds to the next checkpoint."""
        self._clock = time.monotonic()

    def exchange(self, *, diverged: bool = False) -> bool:
        """Have all ranks know what each of them does; return whether the run has diverged on any."""
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

    DDP sees to that itself, but not while a gradient is accumulated. What goes by the metric, a learning rate
    say, would then become another one on each rank.
    """

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        model = trainer.strategy.model
        if isinstance(model, DistributedDataParallel) and model.broadcast_buffers and model.modules_buffers:
            model._sync_buffers()
