"""Changes of Optuna trials: intermediate values, and how a trial ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tempopt.storage.rows import Outcome

_STATES: dict[Outcome, str] = {
    "complete": "COMPLETE",
    "pruned": "PRUNED",
    "diverged": "PRUNED",
    "failed": "FAIL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnd:
    """The end of a trial; ``diverged_at``, ``error`` and ``numbers`` become user attributes.

    Args:
        numbers: Further numbers to show, by name; finite.
        constraints: By how much the limit of each guard is exceeded, by name; <= 0 satisfies it.
    """

    outcome: Outcome
    value: float | None = None
    diverged_at: int | None = None
    error: str | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    constraints: Mapping[str, float] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """The name of Optuna's state."""
        return _STATES[self.outcome]

    def attributes(self) -> dict[str, Any]:
        """Return the user attributes, with facts that Optuna's states do not distinguish."""
        attributes: dict[str, Any] = dict(self.numbers)
        if self.outcome == "diverged":
            attributes["diverged_at"] = self.diverged_at
        if self.outcome == "failed":
            attributes["error"] = (self.error or "")[:1000]
        return attributes

    def constraint_attributes(self) -> dict[str, float]:
        """Return the system attributes that ``trial.set_constraint`` of Optuna 5 writes."""
        return {f"constraints:{name}": value for name, value in self.constraints.items()}


@dataclass(slots=True, kw_only=True)
class TrialChange:
    """Changes of one running trial.

    Args:
        values: Intermediate values by step; NaN and infinities are preserved.
        end: Its end; None: it is still running.
        last_step: Values of an earlier attempt after this step are deleted; None: no value is.
    """

    values: dict[int, float] = field(default_factory=dict)
    end: TrialEnd | None = None
    last_step: int | None = None
