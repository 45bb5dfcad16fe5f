"""What is searched and changes nothing on a model: layer patterns, length scalings, unread parameters.

Whether a name can change anything at all is known from the spec (``tempopt.spec.cross_checks``); whether it
does on a model is known once its layers are found and it has run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tempopt.errors import SpecError
from tempopt.temperature import GENERATION, NEUTRAL, TEMPERATURE_PARAMETERS, TemperatureParameters
from tempopt.training.messages import RunRequest
from tempopt.training.module import TemperedModule


def check_params_have_effect(request: RunRequest, layers: Sequence[str], num_keys: Collection[int]) -> None:
    """Refuse to search what gives the same model as without it.

    Args:
        request: The dry run, with the values that stand for all that is searched.
        layers: Names of the tempered layers.
        num_keys: The different numbers of keys that queries have seen; empty where they were not counted.

    Raises:
        SpecError: Something changes nothing; there is a line for each.
    """
    init_args = request.program.model.get("init_args") or {}
    temperature_args = {name: value for name, value in init_args.items() if name in TEMPERATURE_PARAMETERS}
    fixed = {**NEUTRAL, **temperature_args, **request.parameters}
    values = {name: request.space.get(name, [fixed[name]]) for name in NEUTRAL}
    faults = [*_flat_patterns(values, layers), *_without_length(values, num_keys)]
    lines = []
    for names, reason in faults:
        # what is set and not searched takes no dimension of the search
        searched_names = [name for name in names if name in request.space]
        lines += [f"search.{searched_names[0]}: {reason}."] if searched_names else []
    if lines:
        raise SpecError("\n".join(lines))


def refuse_unread_generation(module: object, space: Collection[str]) -> None:
    """Refuse to search parameters of generation that a TemperedModule has not read in its evaluations.

    Args:
        module: The module, evaluated.
        space: The searched names.

    Raises:
        SpecError: It has read none of them.
    """
    searched_names = [name for name in GENERATION if name in space]
    if searched_names and isinstance(module, TemperedModule) and not module.reads_generation:
        class_name = type(module).__name__
        raise SpecError(
            f"search.{searched_names[0]}: {class_name} never reads self.generation in its evaluation, so "
            "that it changes nothing. Draw tokens by "
            "tempopt.attention.generation.sample(logits, self.generation) in "
            f"validation_step, or take {' and '.join(searched_names)} out."
        )


_Faults = Iterator[tuple[Sequence[str], str]]
"""Names, of which the first that is searched is at fault, and why."""


def _flat_patterns(values: Mapping[str, Sequence[Any]], layers: Sequence[str]) -> _Faults:
    if not layers:
        return
    names = ("layer_pattern", "layer_ratio")
    shapes = {
        pattern: [
            factor
            for ratio in values["layer_ratio"]
            for factor in TemperatureParameters(layer_pattern=pattern, layer_ratio=ratio)
            .plan(len(layers))
            .layers.factors(len(layers))
        ]
        for pattern in values["layer_pattern"]
        if pattern != "uniform"
    }
    number = f"{len(layers)} tempered layers" if len(layers) > 1 else f'one tempered layer, "{layers[0]}"'
    reason = (
        "they all get the same temperature" if len(layers) > 1 else "a module that is used again counts once"
    )
    flat_patterns = [pattern for pattern, shape in shapes.items() if all(map(_is_one, shape))]
    for pattern in flat_patterns:
        ratio_remedy = " and layer_ratio" if len(flat_patterns) == len(shapes) else ""
        yield (
            names,
            f'"{pattern}" changes nothing on this model, which has {number} ({reason}). '
            f'Take "{pattern}"{ratio_remedy} out',
        )
    for first_pattern, second_pattern in itertools.combinations(
        [pattern for pattern in shapes if pattern not in flat_patterns], 2
    ):
        if all(
            math.isclose(a, b, rel_tol=1e-9)
            for a, b in zip(shapes[first_pattern], shapes[second_pattern], strict=True)
        ):
            yield (
                names,
                f'"{first_pattern}" and "{second_pattern}" are the same on this model, which has {number}. '
                "Keep one of them",
            )


def _without_length(values: Mapping[str, Sequence[Any]], num_keys: Collection[int]) -> _Faults:
    if not num_keys:
        return
    key_counts = sorted(num_keys)
    keys_text = (
        f"{key_counts[0]} to {key_counts[-1]} keys" if len(key_counts) > 1 else f"{key_counts[0]} keys"
    )
    observation = f"in the batches of the dry run each query sees {keys_text}"
    numbers = ("n0", "length_power", "length_slope")
    for scaling in values["length_scaling"]:
        combinations = itertools.product(*(values[name] for name in numbers))
        length_scalings = [
            TemperatureParameters(length_scaling=scaling, **dict(zip(numbers, combination, strict=True)))
            .plan(1)
            .length_scaling
            for combination in combinations
        ]
        if scaling != "none" and all(
            _is_one(length_scaling.factor(n)) for length_scaling in length_scalings for n in key_counts
        ):
            n0 = " to ".join(f"{value:g}" for value in values["n0"])
            yield (
                ("length_scaling", *numbers),
                f'"{scaling}" with n0={n0} changes nothing here: {observation}, and there its factor is 1. '
                f'Choose n0 below {key_counts[-1]}, or take "{scaling}" out',
            )
    if "top_k" in values["normaliser"] and min(values["top_k"]) >= key_counts[-1]:
        yield (
            ("normaliser", "top_k"),
            f'"top_k" with top_k={min(values["top_k"])} or more is the same as softmax here: {observation}. '
            f'Choose top_k below {key_counts[-1]}, or take "top_k" out',
        )
    if max(values["local_share"]) > 0 and min(values["window"]) > key_counts[-1]:
        yield (
            ("window", "local_share"),
            f"with window={min(values['window'])} or more local heads see what the others see: "
            f"{observation}. Choose window below {key_counts[-1]}, or take local_share out",
        )


def _is_one(factor: float) -> bool:
    return math.isclose(factor, 1.0, rel_tol=1e-12)
