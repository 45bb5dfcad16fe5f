"""How large a module is: what a dry run tells of a proxy and of the model at full size."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from tempopt.training.run import Run
from tempopt.workers.messages import Finished


@contextlib.contextmanager
def head_dims(run: Run) -> Iterator[set[int]]:
    """Yield a set that fills with the dimensions of the heads of tempered attention, as a module trains.

    It stays empty where attention cannot be looked at from outside, and where sizes are not asked for.
    """
    found: set[int] = set()
    if not run.request.sizes:
        yield found
        return

    def see(layer: int, q_BHQD: Tensor, k_BHKD: Tensor, **masking: Any) -> None:
        found.add(q_BHQD.shape[-1])

    with run.tempered.observed(see):
        yield found


def with_sizes(finished: Finished, run: Run, dims: set[int]) -> Finished:
    """Return a message with the size of a module, if it is asked for.

    A process that holds a shard counts the parameters of that.

    Args:
        finished: The message.
        run: The run.
        dims: What :func:`head_dims` has seen.
    """
    if not run.request.sizes:
        return finished
    count = sum(each.numel() for each in run.module.parameters())
    return dataclasses.replace(finished, parameters=count, head_dim=dims.pop() if len(dims) == 1 else None)
