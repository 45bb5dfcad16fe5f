"""Stands for the temperature of a module that has none.

Only compared parameter sets may be without a temperature; a search always has one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tempopt.attention.attach.learning import HeadTemperatures
from tempopt.attention.attach.observers import Observe
from tempopt.temperature import EntropyParameters, TemperatureParameters, TemperaturePlan


class Untempered:
    """No layers, and a plan at temperature 1 that acts on none."""

    def __init__(self) -> None:
        self.layers: Sequence[str] = ()
        self.plan: TemperaturePlan = TemperatureParameters().plan(1)
        self.entropy = EntropyParameters()
        self.progress = 0.0
        self.temperatures: tuple[float, ...] = ()

    def use(self, parameters: TemperatureParameters) -> None:
        """Raise: no other plan can be applied."""
        raise AssertionError("a module without a temperature cannot follow a plan")

    def set_progress(self, progress: float) -> None:
        """Store the progress, which has no effect."""
        self.progress = progress

    def set_temperatures(self, temperatures: Sequence[float]) -> None:
        """Raise: there are no layers."""
        raise AssertionError("a module without a temperature cannot be held at one")

    def learn(self) -> None:
        """Do nothing: there are no layers."""

    def learn_heads(self) -> HeadTemperatures:
        """Return no temperatures: there are no layers."""
        return HeadTemperatures(())

    def log_gradients(self) -> None:
        """Return None: no backward pass reaches a temperature."""

    def observed(self, observe: Observe) -> contextlib.AbstractContextManager[None]:
        """Return a context in which nothing is observed."""
        return contextlib.nullcontext()
