"""The entropy term of a loss over progress: its weight and its target."""

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
    """All parameters of the entropy term, as flat values; the defaults are neutral (no term).

    The weight at progress t is lambda_final + (lambda - lambda_final) * (s(t) - 1), where s is the named
    schedule from 2 to 1: a temperature is never 0, whereas a weight may be 0 or negative.

    Args:
        entropy_lambda: Weight of the attention entropy in the loss at progress 0: > 0 rewards entropy, < 0
            penalises it. With a target, > 0 moves the entropy towards it and < 0 away from it.
        entropy_lambda_final: Weight at progress 1; None for ``entropy_lambda``.
        entropy_schedule: Name in ``SCHEDULES`` of the course between the two weights, in its default form:
            ``power``, ``cycles`` and the like belong to the temperature. ``warmup_anneal`` begins at
            ``entropy_lambda_final`` and reaches ``entropy_lambda`` after a tenth of training.
        entropy_target: Target as a share of ln n, in [0, 1]; None for a term that is linear in the entropy.

    Raises:
        SpecError: The schedule is unknown, a number is out of range, or ``constant`` is given an
            ``entropy_lambda_final`` that it would never reach.

    Attributes:
        has_term: Whether the weight differs from 0 anywhere.
        has_target: Whether the term has a target.
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
        # the constant schedule stays at 2, where the weight is entropy_lambda
        final = None if self.entropy_schedule == Constant.name else 1.0
        shape = TemperatureParameters(
            temperature_init=2.0, temperature_final=final, schedule=self.entropy_schedule
        )
        object.__setattr__(self, "_weight_schedule", shape.plan(1).schedule)
        # Stored, since a number that is read in compiled attention would become part of the graph.
        object.__setattr__(self, "has_term", self.entropy_lambda != 0.0 or self._final != 0.0)
        object.__setattr__(self, "has_target", self.entropy_target is not None)

    @property
    def _final(self) -> float:
        return self.entropy_lambda if self.entropy_lambda_final is None else self.entropy_lambda_final

    @property
    def moves(self) -> bool:
        """Whether the weight changes during training."""
        return self._final != self.entropy_lambda

    def weight(self, progress: float) -> float:
        """Return the weight at a training progress.

        Raises:
            UsageError: The progress is outside [0, 1].
        """
        level = self._weight_schedule(progress) - 1.0
        return self._final + (self.entropy_lambda - self._final) * level


ENTROPY_PARAMETERS = EntropyParameters.names()
"""Names of the parameters of the entropy term."""


def canonicalize_entropy(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with ``entropy_schedule`` replaced by ``constant`` where the weight does not
    change.
    """
    is_complete = {"entropy_lambda", "entropy_lambda_final", _SCHEDULE} <= parameters.keys()
    if is_complete and parameters["entropy_lambda_final"] in (None, parameters["entropy_lambda"]):
        return {**parameters, _SCHEDULE: Constant.name}
    return dict(parameters)


def unused_entropy_params(parameters: Mapping[str, Any]) -> set[str]:
    """Return the parameters of the entropy term that have no effect, for canonical parameters.

    A schedule that is not in the mapping is unknown and may change the weight.
    """
    if parameters.get(_SCHEDULE) != Constant.name:
        return set()
    has_no_term = parameters.get("entropy_lambda") == 0.0
    return {"entropy_lambda_final", "entropy_target"} if has_no_term else {"entropy_lambda_final"}
