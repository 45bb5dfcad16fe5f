"""Which temperature of a study the plots of one temperature show, and what it is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tempopt.results.course import course_text, shape
from tempopt.results.study_result import StudyResult
from tempopt.temperature import TemperatureParameters, own_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A temperature that is plotted.

    Args:
        name: Its name in the spec; the empty text for attention's.
        neutral: Where it changes nothing: 1 for attention, else the temperature as found.
    """

    name: str = ""
    neutral: float = 1.0

    @property
    def axis(self) -> str:
        """What the axis of the temperature is called."""
        return f"temperature {self.name}" if self.name else "temperature τ"

    @property
    def baseline(self) -> str:
        """What the line or the mark of the baseline is called."""
        return f"{self.name} = {self.neutral:.4g}, as found" if self.name else "τ = 1"

    @property
    def title(self) -> str:
        """What a panel that shows it is called."""
        return self.name or "attention, τ"

    def parameters(self, parameters: Mapping[str, Any]) -> TemperatureParameters:
        """Return the parameters of this temperature in a parameter set."""
        return TemperatureParameters.from_mapping(own_parameters(parameters, self.name))

    def shape(self, parameters: Mapping[str, Any]) -> tuple[tuple[float, float], ...]:
        """Return progress and temperature where a piecewise schedule begins, bends, ends; empty: no bend."""
        return shape(parameters, self.name)

    def course(self, parameters: Mapping[str, Any]) -> str:
        """Return how a piecewise schedule that bends goes, in words; empty for others."""
        return course_text(parameters, self.name)

    def levels(self, parameters: Mapping[str, Any], progress: tuple[float, ...]) -> tuple[float, ...]:
        """Return the level of its plan, the geometric mean over its layers, at each progress."""
        schedule = self.parameters(parameters).plan(1).schedule
        return tuple(schedule(each) for each in progress)


ATTENTION = Shown()
"""Attention's temperature."""


def all_shown(result: StudyResult) -> list[Shown]:
    """Return the temperatures of a study, attention's first; at least one."""
    spec = result.spec
    named = [
        Shown(name=name, neutral=each.as_found if each.as_found is not None else 1.0)
        for name, each in spec.temperatures.items()
    ]
    return [*([ATTENTION] if spec.attends else []), *named]
