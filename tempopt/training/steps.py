"""Steps of a run: how many it has taken and will take, and values recorded at some of them.

They are optimizer steps. Under manual optimization Lightning ends a training by one of two counts: the steps
of all optimizers together (``max_steps``), or batches (``max_epochs``). The steps of a run are then counted
in the same way.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import lightning as L
from lightning.pytorch.callbacks import GradientAccumulationScheduler

from tempopt.errors import SpecError
from tempopt.training import lightning_internals as internals
from tempopt.training.lightning_package import in_either_package

_RESUMED_TOTALS: WeakKeyDictionary[L.Trainer, int] = WeakKeyDictionary()
_ACCUMULATION_SCHEDULER = in_either_package(GradientAccumulationScheduler)


def current_step(trainer: L.Trainer) -> int:
    """Return the number of steps that a training has taken, from 0 to :func:`total_steps`.

    The last batch under manual optimization may exceed ``max_steps`` if it takes several steps.
    """
    if _counts_batches(trainer):
        counts: Any = trainer.fit_loop.epoch_loop.batch_progress.total
        return int(counts.processed)
    return trainer.global_step


def total_steps(trainer: L.Trainer) -> int:
    """Return the number of steps of a whole training, which its schedules are laid out over.

    Raises:
        SpecError: The length of the training is not known in advance.
    """
    total = _RESUMED_TOTALS.get(trainer)
    return estimate_total_steps(trainer) if total is None else total


def resume_total_steps(trainer: L.Trainer, total: int) -> None:
    """Have a resumed training laid out over as many steps as when it began: its epochs may have grown."""
    _RESUMED_TOTALS[trainer] = total


def estimate_total_steps(trainer: L.Trainer) -> int:
    """Return the number of steps of a whole training if its other epochs are like the present one.

    Raises:
        SpecError: The length of the training is not known in advance.
    """
    total = _estimated_steps(trainer)
    if not math.isfinite(total) or total < 0:
        raise SpecError(
            "The temperature follows the progress of training, and this training has no known end. "
            "Give the trainer max_steps, or max_epochs with a dataloader that has a length."
        )
    if trainer.lightning_module.automatic_optimization or _counts_batches(trainer):
        return int(total)
    if trainer.max_epochs != -1 and math.isfinite(trainer.num_training_batches):
        raise SpecError(
            f"The temperature follows the progress of training, and with max_steps={trainer.max_steps} and "
            f"max_epochs={trainer.max_epochs} the end of this training is not known: under manual "
            "optimization max_steps counts the steps of all optimizers and max_epochs counts batches. Give "
            "the trainer one of the two."
        )
    return trainer.max_steps


def _estimated_steps(trainer: L.Trainer) -> float:
    """Return Lightning's estimate, corrected for its callbacks that change what an epoch is."""
    total = trainer.estimated_stepping_batches
    max_epochs, num_batches = internals.max_epochs_with_steps(trainer), trainer.num_training_batches
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    schedulers = [callback for callback in callbacks if isinstance(callback, _ACCUMULATION_SCHEDULER)]
    has_other_epochs = schedulers or max_epochs != trainer.max_epochs
    if not has_other_epochs or max_epochs == -1 or not math.isfinite(num_batches):
        return total
    accumulated_batches = [
        schedulers[-1].get_accumulate_grad_batches(epoch) if schedulers else trainer.accumulate_grad_batches
        for epoch in range(max_epochs)
    ]
    num_steps = sum(math.ceil(num_batches / accumulated) for accumulated in accumulated_batches)
    # in the epoch for batch norms Lightning steps once, at its end, without gradients
    num_steps += max_epochs != trainer.max_epochs
    return num_steps if trainer.max_steps == -1 else min(num_steps, trainer.max_steps)


def other_length(num_steps: int, total_steps: int) -> str:
    """Return what to say of a training that took another number of steps than its schedules have."""
    return (
        f"The training took {num_steps} steps, and its schedules are laid out over {total_steps}: "
        f"temperatures {'did not reach' if num_steps < total_steps else 'stayed at'} their end. Where epochs "
        "differ in length, or a hook skips batches, give trainer.max_steps together with max_epochs: -1."
    )


def _counts_batches(trainer: L.Trainer) -> bool:
    return not trainer.lightning_module.automatic_optimization and trainer.max_steps == -1


Curves = dict[str, list[list[float]]]
"""Name to [[optimizer step, value], ...]."""

_NUM_OBSERVED_STEPS = 24


def spread_steps(last_step: int) -> list[int]:
    """Return 24 steps at which a run is observed, from its first to its last."""
    return [round(i * last_step / (_NUM_OBSERVED_STEPS - 1)) for i in range(_NUM_OBSERVED_STEPS)]


class RecordedCurves:
    """Values at steps that are spread over a training, including the first and the last.

    Attributes:
        curves: The recorded values.
    """

    def __init__(self) -> None:
        self.curves: Curves = {}
        self._steps: frozenset[int] = frozenset()

    def begin(self, num_steps: int) -> None:
        """Set the number of steps of the training."""
        self._steps = frozenset(spread_steps(num_steps))

    def is_due(self, step: int) -> bool:
        """Return whether values are recorded at a step."""
        return step in self._steps

    def record(self, step: int, values: Mapping[str, float]) -> None:
        """Add values to their curves, unless these already have a point at this step."""
        for name, value in values.items():
            curve = self.curves.setdefault(name, [])
            if not curve or curve[-1][0] != step:
                curve.append([step, value])

    def state_dict(self) -> Curves:
        """Return a copy of the recorded values."""
        return copy.deepcopy(self.curves)

    def load_state_dict(self, state: Curves) -> None:
        """Restore a state from :meth:`state_dict`."""
        self.curves = copy.deepcopy(state)
