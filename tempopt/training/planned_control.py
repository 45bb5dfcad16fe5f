"""Control of the entropy as the parameters of a run ask for it, with the path that the temperatures take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import lightning as L

from tempopt.attention.modules.entropy_controller import EntropyTarget, contrast, curriculum
from tempopt.temperature import Constant, ControlParameters, Cosine
from tempopt.temperature.entropy_control import CONTRAST, CURRICULUM
from tempopt.training.attention_observer import Curves
from tempopt.training.callbacks import TemperatureTarget
from tempopt.training.entropy_control import EntropyControl
from tempopt.training.messages import CONTROLLED_CURVE
from tempopt.training.steps import current_step, total_steps

CHANGES = 200
"""Number of changes of the temperatures over a training, one every step where it has fewer steps."""

_POINTS = 24
_LOWEST, _HIGHEST = 0.01, 100.0
# The largest rate that, with this decay, reaches the target without going past it; see EntropyController.
_RATE, _DECAY = 0.17, 0.5
_MAX_STEP = 0.2


def entropy_target(control: ControlParameters) -> EntropyTarget:
    """Return the target that parameters ask for; there must be one."""
    if control.entropy_control == CURRICULUM and control.control_start != control.control_level:
        return _curriculum(control.control_start, control.control_level)
    if control.entropy_control == CONTRAST and control.control_spread != 1.0:
        return contrast(level=control.control_level, spread=control.control_spread)
    assert control.controls, "nothing is to be controlled"
    return EntropyTarget(level=Constant(temperature_init=control.control_level))


def _curriculum(start: float, level: float) -> EntropyTarget:
    if level < start:
        return curriculum(init=start, final=level)
    # from sharp to broad it is one the other way about
    return EntropyTarget(level=Cosine(temperature_init=start, temperature_final=level))


class PlannedControl(EntropyControl):
    """Has the temperatures of a run follow the target that its parameters ask for.

    The temperatures change some 200 times over the training, whatever its length, by Newton's step from 64
    queries of each sequence, and stay between 0.01 and 100, or where the plan begins if that is beyond.

    Args:
        control: What is asked for; it has a target.
        tempered: As for :class:`EntropyControl`.
    """

    def __init__(self, control: ControlParameters, *, tempered: TemperatureTarget | None = None) -> None:
        super().__init__(
            entropy_target(control),
            tempered=tempered,
            rate=_RATE,
            decay=_DECAY,
            lowest=_LOWEST,
            highest=_HIGHEST,
            newton=True,
            max_step=_MAX_STEP,
        )
        self.control = control
        self._steps: frozenset[int] = frozenset()
        self.curves: Curves = {}
        """The temperatures at some steps, from the first to the last, by ``controlled/LAYER``."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        num_steps = total_steps(trainer)
        self._every = max(1, num_steps // CHANGES)
        initial_temperatures = self._of(pl_module).plan.temperatures(0.0)
        self._options |= {
            "lowest": min(_LOWEST, *initial_temperatures),
            "highest": max(_HIGHEST, *initial_temperatures),
        }
        self._steps = frozenset(round(i * num_steps / (_POINTS - 1)) for i in range(_POINTS))
        super().on_train_start(trainer, pl_module)
        if not self.curves:
            self._note(current_step(trainer))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if current_step(trainer) in self._steps:
            self._note(current_step(trainer))

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        self._note(current_step(trainer))

    def _note(self, step: int) -> None:
        for layer, tau in enumerate(self.temperatures or ()):
            curve = self.curves.setdefault(f"{CONTROLLED_CURVE}{layer}", [])
            if not curve or curve[-1][0] != step:
                curve.append([step, tau])

    def reported_curves(self, *, is_observed: bool) -> Curves:
        """Return the curves; of a run that is not observed, where each begins and ends."""
        return {name: path if is_observed else [path[0], path[-1]] for name, path in self.curves.items()}

    def state_dict(self) -> dict[str, Any]:
        curves = {name: [list(point) for point in curve] for name, curve in self.curves.items()}
        return {**super().state_dict(), "curves": curves}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.curves = {name: [list(p) for p in curve] for name, curve in state_dict["curves"].items()}


def controls_of(callbacks: Iterable[Any]) -> PlannedControl | None:
    """Return what controls the entropy of a run among its callbacks; None: nothing does."""
    return next((callback for callback in callbacks if isinstance(callback, PlannedControl)), None)
