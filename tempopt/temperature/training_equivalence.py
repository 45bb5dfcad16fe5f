"""Whether two parameter sets are the same training.

Exact: numbers are compared bit by bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tempopt.temperature.named import initial_named_temperatures, parameters_of_temperature, split_name
from tempopt.temperature.parameters import drop_unused_params, neutral_values
from tempopt.temperature.schedules import Constant


def same_training(parameters: Mapping[str, Any], other_parameters: Mapping[str, Any]) -> bool:
    """Return whether two parameter sets are the same throughout a training, evaluations at its end included.

    Args:
        parameters: Flat parameters; temperature parameters that are missing are neutral.
        other_parameters: The same.

    Raises:
        SpecError: A temperature parameter has a value that it cannot have.
    """
    return training_key(parameters) == training_key(other_parameters)


def training_key(parameters: Mapping[str, Any]) -> str:
    """Return a text that is equal for parameter sets with :func:`same_training`.

    Raises:
        SpecError: A temperature parameter has a value that it cannot have.
    """
    return _key(_as_cached(parameters))


def hashable(value: Any) -> Any:
    """Return a value of a parameter with lists as tuples, for caches."""
    return tuple(map(hashable, value)) if isinstance(value, list | tuple) else value


def _as_cached(parameters: Mapping[str, Any]) -> tuple[tuple[str, str, Any], ...]:
    # as they are written: to a cache 1, 1.0 and true are the same, and so are 0.0 and -0.0
    return tuple((name, repr(value), hashable(value)) for name, value in parameters.items())


@lru_cache(maxsize=10_000)
def _key(parameters: tuple[tuple[str, str, Any], ...]) -> str:
    return _canonical_json(_canonicalize_parameters({name: value for name, _, value in parameters}))


def _canonicalize_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what counts of a parameter set, without the named temperatures that stay as found."""
    effective_parameters = drop_unused_params({**neutral_values(parameters), **parameters})
    for name, found_temperature in initial_named_temperatures(parameters).items():
        temperature_parameters = parameters_of_temperature(effective_parameters, name)
        if (
            temperature_parameters["schedule"] == Constant.name
            and temperature_parameters["temperature_init"] == found_temperature
        ):
            effective_parameters = {
                key: value for key, value in effective_parameters.items() if split_name(key)[0] != name
            }
    return effective_parameters


def _canonical_json(parameters: Mapping[str, Any]) -> str:
    return json.dumps(parameters, sort_keys=True)
