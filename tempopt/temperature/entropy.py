"""The entropy term of a loss over progress: how much it weighs, and what it aims at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tempopt.errors import SpecError
from tempopt.temperature.plan import TemperatureParameters, check_value
from tempopt.temperature.ranges import FlatParameters
from tempopt.temperature.schedules import Constant, Schedule

_SCHEDULE = "entropy_schedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyParameters(FlatParameters):
    """Everything that decides the entropy term, as flat values; the defaults are neutral (no term).

    The weight at progress t is lambda_final + (lambda - lambda_final) * (s(t) - 1), with s the named schedule
    from 2 to 1: a temperature is never 0, and a weight may be that or of either sign.

    Args:
        entropy_lambda: Weight of the attention entropy in the loss at progress 0: > 0 rewards entropy, < 0
            punishes it; with a target > 0 draws entropy to it and < 0 drives it away.
        entropy_lambda_final: Weight at progress 1; None for ``entropy_lambda``.
        entropy_schedule: Name in ``SCHEDULES`` of the way between them, in its default form: ``power``,
            ``cycles`` and the like are the temperature's. ``warmup_anneal`` begins at
            ``entropy_lambda_final`` and is at ``entropy_lambda`` after a tenth of training.
        entropy_target: Share of ln n in [0, 1] that the term aims at; None for a term that is linear.

    Raises:
        SpecError: if the schedule is not known, a number is out of range, or ``constant`` is given an
            ``entropy_lambda_final`` that it would never reach.

    Attributes:
        has_term: Whether the weight is other than 0 anywhere.
        has_target: Whether the term aims at a share.
    """

    entropy_lambda: float = 0.0
    entropy_lambda_final: float | None = None
    entropy_schedule: str = Constant.name
    entropy_target: float | None = None
    has_term: bool = field(init=False, repr=False, compare=False)
    has_target: bool = field(init=False, repr=False, compare=False)
    _weight_schedule: Schedule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ENTROPY_PARAMETERS:
            check_value(name, getattr(self, name))
        if self.entropy_schedule == Constant.name and self._final != self.entropy_lambda:
            raise SpecError(
                f"entropy_lambda_final={self.entropy_lambda_final!r} has no effect: entropy_schedule "
                f'"constant" stays at entropy_lambda={self.entropy_lambda!r}. Leave entropy_lambda_final '
                'out, or choose a schedule that moves, as in entropy_schedule="linear".'
            )
        # a constant one stays at 2, where the weight is entropy_lambda
        final = None if self.entropy_schedule == Constant.name else 1.0
        shape = TemperatureParameters(
            temperature_init=2.0, temperature_final=final, schedule=self.entropy_schedule
        )
        object.__setattr__(self, "_weight_schedule", shape.plan(1).schedule)
        # Kept, since a number that is read where attention is compiled would become part of the graph.
        object.__setattr__(self, "has_term", self.entropy_lambda != 0.0 or self._final != 0.0)
        object.__setattr__(self, "has_target", self.entropy_target is not None)

    @property
    def _final(self) -> float:
        return self.entropy_lambda if self.entropy_lambda_final is None else self.entropy_lambda_final

    @property
    def moves(self) -> bool:
        """Whether the weight is not the same throughout."""
        return self._final != self.entropy_lambda

    def weight(self, progress: float) -> float:
        """Return the weight at a training progress.

        Raises:
            UsageError: if the progress is outside [0, 1].
        """
        level = self._weight_schedule(progress) - 1.0
        return self._final + (self.entropy_lambda - self._final) * level


ENTROPY_PARAMETERS = EntropyParameters.names()
"""Names of the parameters that decide the entropy term."""


def canonicalize_entropy(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters, ``entropy_schedule`` being ``constant`` where the weight stays."""
    is_complete = {"entropy_lambda", "entropy_lambda_final", _SCHEDULE} <= parameters.keys()
    if is_complete and parameters["entropy_lambda_final"] in (None, parameters["entropy_lambda"]):
        return {**parameters, _SCHEDULE: Constant.name}
    return dict(parameters)


def unread_entropy(parameters: Mapping[str, Any]) -> set[str]:
    """Return the parameters of the entropy term that have no effect; the schedule must be as plain as it is.

    A schedule that is not in the mapping is not known, and may move.
    """
    if parameters.get(_SCHEDULE) != Constant.name:
        return set()
    without_term = parameters.get("entropy_lambda") == 0.0
    return {"entropy_lambda_final", "entropy_target"} if without_term else {"entropy_lambda_final"}
