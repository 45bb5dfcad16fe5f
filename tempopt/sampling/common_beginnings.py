"""How many steps of a run need not be trained, since runs before it with its seed have begun the same way.

It follows from the parameters and the seeds of these runs alone: which checkpoints are really there, at the
time, is none of what decisions may depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState

from tempopt.temperature import Beginning, beginning

_LEAVES = (TrialState.COMPLETE, TrialState.PRUNED)


class CommonBeginnings:
    """What runs that are over spare others that begin at the same constant temperature.

    A run leaves a checkpoint where its schedule first moves, or where it was ended before that. What comes
    behind is common only to equal parameters, of which a run that was ended is gone on with.

    Args:
        whole: Turns sampled values into the whole parameter set that a run trains with.
        validated_at_end: Whether runs are validated at the last temperature of their schedule
            (``study.validate_at: final``): of two that end at different ones, neither has the reports that
            the other is judged by, so that neither begins from the other.
    """

    def __init__(
        self, whole: Callable[[Mapping[str, Any]], Mapping[str, Any]], *, validated_at_end: bool
    ) -> None:
        self._whole = whole
        self._validated_at_end = validated_at_end

    def spared(
        self, pool: Sequence[Mapping[str, Any]], trials: Sequence[FrozenTrial], total_steps: int
    ) -> NDArray[np.float64]:
        """Return for each parameter set how many steps it need not train, from 0 to below ``total_steps``.

        Args:
            pool: Sampled values of the sets.
            trials: Trials with the seed that they would be trained with; those in progress spare nothing.
            total_steps: Optimizer steps of a whole training, >= 1.
        """
        left: dict[Hashable, set[int]] = {}
        for trial in trials:
            last = max(trial.intermediate_values, default=0)
            if trial.state in _LEAVES and last > 0:
                found = self._of(trial.params, total_steps)
                if 0 < (step := min(found.steps, last)) < total_steps:
                    left.setdefault(self._kind(found), set()).add(step)
        spared = np.zeros(len(pool))
        if not left:
            return spared
        for place, sampled in enumerate(pool):
            own = self._of(sampled, total_steps)
            reached = (step for step in left.get(self._kind(own), ()) if step <= own.steps)
            spared[place] = max(reached, default=0)
        return spared

    def _of(self, sampled: Mapping[str, Any], total_steps: int) -> Beginning:
        return beginning(self._whole(sampled), total_steps)

    def _kind(self, found: Beginning) -> Hashable:
        return found.start, found.end if self._validated_at_end else None
