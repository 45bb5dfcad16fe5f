"""Parameters of entropy control: the target that the attention entropy of each layer follows.

The resulting temperatures are found in training, by ``tempopt.attention.modules.entropy_controller``. This
module has the searched parameters and says which of them have an effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tempopt.errors import SpecError, unknown
from tempopt.temperature.normalisers import SoftmaxNormaliser
from tempopt.temperature.ranges import FlatParameters, check_number

CONTROL = "entropy_control"
"""Name of the parameter that selects the target."""

NO_CONTROL = "none"
"""Value for no target: the temperatures follow the schedule."""

HOLD = "hold"
CURRICULUM = "curriculum"
CONTRAST = "contrast"

CONTROLS: dict[str, frozenset[str]] = {
    NO_CONTROL: frozenset(),
    HOLD: frozenset({"control_level"}),
    CURRICULUM: frozenset({"control_level", "control_start"}),
    CONTRAST: frozenset({"control_level", "control_spread"}),
}
"""Name of a target to the numbers that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlParameters(FlatParameters):
    """Target of the attention entropy, as flat values; the defaults are neutral (no control).

    A target is a share of ln n, the largest entropy of n keys. Under control each layer begins at the plan's
    temperature of progress 0; after that its temperature is the one at which its entropy equals the target.
    The schedule has no effect.

    Args:
        entropy_control: ``none``: temperatures follow the schedule. ``hold``: the entropy of each layer is
            held at ``control_level``. ``curriculum``: the entropy changes from ``control_start`` to
            ``control_level`` on a cosine. ``contrast``: the layers begin at ``control_level`` and diverge
            around it.
        control_level: Share of ln n, between 0 and 1: at the end of ``curriculum``, otherwise throughout.
            Under ``contrast`` it is the middle of the layers, in terms of the odds h / (1 - h).
        control_start: Share of ln n, between 0 and 1, at the start of a curriculum.
        control_spread: Odds h / (1 - h) of the first layer over those of the last at the end of ``contrast``;
            below 1 the last layer has the largest entropy. From 1e-6 to 1e6.

    Raises:
        SpecError: The target is unknown, or a number is out of range.
    """

    entropy_control: str = NO_CONTROL
    control_level: float = 0.6
    control_start: float = 0.9
    control_spread: float = 4.0

    def __post_init__(self) -> None:
        for name in CONTROL_PARAMETERS:
            check_control_parameter(name, getattr(self, name))

    @property
    def controls(self) -> bool:
        """Whether there is a target."""
        return self.entropy_control != NO_CONTROL


CONTROL_PARAMETERS = ControlParameters.names()
"""Names of the parameters of entropy control."""


def check_control_parameter(name: str, value: object) -> None:
    """Refuse a value that a parameter of control cannot have.

    Raises:
        SpecError: The value is of the wrong type, out of range, or an unknown target.
    """
    if name != CONTROL:
        check_number(name, value)
    elif not (isinstance(value, str) and value in CONTROLS):
        raise SpecError(unknown(name, value, CONTROLS))


def has_target(parameters: Mapping[str, Any]) -> bool:
    """Return whether parameters name a target, whether or not it has an effect with the normaliser."""
    return bool(parameters.get(CONTROL, NO_CONTROL) != NO_CONTROL)


def is_controlled(parameters: Mapping[str, Any]) -> bool:
    """Return whether the temperatures of attention follow a target of its softmax entropy."""
    softmax = SoftmaxNormaliser.name
    return has_target(parameters) and parameters.get("normaliser", softmax) == softmax


def canonicalize_control(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with the target replaced by ``hold`` where its numbers make the two equal.

    A curriculum that ends at its start holds its level, and so does a contrast of spread 1.
    """
    control = parameters.get(CONTROL)
    level = parameters.get("control_level")
    is_flat = control == CURRICULUM and level is not None and parameters.get("control_start") == level
    is_flat = is_flat or (control == CONTRAST and parameters.get("control_spread") == 1.0)
    return {**parameters, CONTROL: HOLD} if is_flat else dict(parameters)


def unused_control_params(parameters: Mapping[str, Any]) -> set[str]:
    """Return the parameters of entropy control that have no effect; empty if the target is not in the
    mapping.

    Raises:
        SpecError: The target is unknown.
    """
    if CONTROL not in parameters:
        return set()
    check_control_parameter(CONTROL, parameters[CONTROL])
    return set(CONTROL_PARAMETERS) - {CONTROL} - CONTROLS[parameters[CONTROL]]
