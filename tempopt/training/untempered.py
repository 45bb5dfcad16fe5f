"""A module whose temperature is not set.

Only parameter sets that are compared may leave the temperature alone; a search is always about one.
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
        """Raise: no plan but its own can be in force."""
        raise AssertionError("a module without a temperature was to be evaluated under one")

    def set_progress(self, progress: float) -> None:
        """Remember the progress, which nothing follows."""
        self.progress = progress

    def set_temperatures(self, temperatures: Sequence[float]) -> None:
        """Raise: there are no layers to hold at a temperature."""
        raise AssertionError("a module without a temperature was to be held at one")

    def learn(self) -> None:
        """Do nothing: there are no layers."""

    def learn_heads(self) -> HeadTemperatures:
        """Return no temperatures: there are no layers."""
        return HeadTemperatures(())

    def log_gradients(self) -> None:
        """Return None: no backward pass reaches a temperature."""

    def observed(self, observe: Observe) -> contextlib.AbstractContextManager[None]:
        """Return a context in which nothing is shown."""
        return contextlib.nullcontext()
