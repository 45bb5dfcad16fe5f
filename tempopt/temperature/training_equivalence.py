"""Whether two parameter sets are the same training.

Numbers are compared bit by bit.
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
    """Return whether two parameter sets give the same training, including evaluations at its end.

    Args:
        parameters: Flat parameters; missing temperature parameters are neutral.
        other_parameters: Flat parameters to compare with.

    Raises:
        SpecError: A temperature parameter has a value that is not allowed.
    """
    return training_key(parameters) == training_key(other_parameters)


def training_key(parameters: Mapping[str, Any]) -> str:
    """Return a text that is equal for parameter sets of the :func:`same_training`.

    Raises:
        SpecError: A temperature parameter has a value that is not allowed.
    """
    # the cache key includes repr: 1, 1.0 and true are equal as values, and so are 0.0 and -0.0
    return _key(tuple((name, repr(value), hashable(value)) for name, value in parameters.items()))


def hashable(value: Any) -> Any:
    """Return a parameter value with lists and mappings as tuples, for caches."""
    if isinstance(value, dict):
        value = [list(item) for item in value.items()]
    return tuple(map(hashable, value)) if isinstance(value, list | tuple) else value


@lru_cache(maxsize=10_000)
def _key(items: tuple[tuple[str, str, Any], ...]) -> str:
    """Return the parameters that have an effect as text, without named temperatures that stay as found."""
    parameters = {name: value for name, _, value in items}
    effective_parameters = drop_unused_params({**neutral_values(parameters), **parameters})
    for name, found_temperature in initial_named_temperatures(parameters).items():
        group = parameters_of_temperature(effective_parameters, name)
        if group["schedule"] == Constant.name and group["temperature_init"] == found_temperature:
            effective_parameters = {
                key: value for key, value in effective_parameters.items() if split_name(key)[0] != name
            }
    return json.dumps(effective_parameters, sort_keys=True)
