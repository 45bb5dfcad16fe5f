"""What the init arguments of a TemperedModule cannot be together, and how its subclass declares them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from tempopt.errors import SpecError
from tempopt.temperature import (
    Constant,
    ControlParameters,
    EntropyParameters,
    SoftmaxNormaliser,
    TemperatureParameters,
)


def check_entropy_known(entropy: EntropyParameters, parameters: TemperatureParameters) -> None:
    """Refuse an entropy term beside a normaliser that is not softmax.

    Raises:
        SpecError: There is a term, and the weights are not those of softmax.
    """
    if entropy.has_term and parameters.normaliser != SoftmaxNormaliser.name:
        raise SpecError(
            f"entropy_lambda={entropy.entropy_lambda!r} cannot be had with normaliser="
            f'"{parameters.normaliser}": the entropy term is that of softmax, whose weights these are '
            'not. Give entropy_lambda=0.0, or normaliser="softmax".'
        )


def check_controllable(control: ControlParameters, parameters: Mapping[str, Any]) -> None:
    """Refuse control of the entropy beside a plan that it would not follow.

    Raises:
        SpecError: There is a target, and a schedule that moves or a normaliser that is not softmax.
    """
    if not control.controls:
        return
    normaliser = parameters.get("normaliser", SoftmaxNormaliser.name)
    if normaliser != SoftmaxNormaliser.name:
        raise SpecError(
            f'entropy_control="{control.entropy_control}" cannot be had with normaliser='
            f'"{normaliser}": the entropy that is controlled is that of softmax, whose weights '
            'these are not. Give entropy_control="none", or normaliser="softmax".'
        )
    schedule = parameters.get("schedule", Constant.name)
    if schedule != Constant.name:
        raise SpecError(
            f'schedule="{schedule}" has no effect with entropy_control='
            f'"{control.entropy_control}": the temperatures begin at temperature_init and follow the '
            'entropy. Give schedule="constant", or entropy_control="none".'
        )


def takes_num_layers(cls: type, base: type) -> bool:
    """Return whether a subclass takes ``num_layers`` as an argument, or says itself how many there are."""
    subclasses = cls.__mro__[: cls.__mro__.index(base)]
    return any("num_layers" in inspect.signature(subclass).parameters for subclass in subclasses)
