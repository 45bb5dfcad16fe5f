"""How a temperature of attention moves with the size of a model: stated rules, each a shift of ln τ.

A rule says where a temperature that was found on a small model is expected on a large one. None of them is a
law; whether one holds is measured at full size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tempopt.errors import UsageError
from tempopt.temperature.groups import is_neutral
from tempopt.temperature.length import NoLengthScaling
from tempopt.temperature.named import join_name, split_name

_LEVELS = ("temperature_init", "temperature_final", "warmup_start")
_FEWEST_KEYS = 2


def head_dim_shift(small: int, large: int) -> float:
    """Return the shift of ln τ from heads of ``small`` to heads of ``large`` dimensions: ½ ln(large / small).

    muP divides logits by d and not by √d (Yang et al. 2022, "Tensor Programs V", section 4). With τ beside
    1/√d that is a temperature that grows with √d.

    Args:
        small: Dimension of a head of the small model, >= 1.
        large: Dimension of a head of the large model, >= 1.

    Raises:
        UsageError: A dimension is below 1.
    """
    if min(small, large) < 1:
        raise UsageError(f"given head dimensions {small} and {large}. Give whole numbers of at least 1.")
    return 0.5 * math.log(large / small)


def length_shift(small: int, large: int) -> float:
    """Return the shift of ln τ from ``small`` to ``large`` keys: −ln(ln large / ln small).

    Logits that grow with ln n keep the entropy of attention (Chiang & Cholak 2022, arXiv 2202.12172; Su
    2021), so that the temperature falls with 1 / ln n.

    Args:
        small: Number of keys that the small model attends to, >= 2.
        large: The same of the large model, >= 2.

    Raises:
        UsageError: A number of keys is below 2.
    """
    if min(small, large) < _FEWEST_KEYS:
        raise UsageError(f"given lengths {small} and {large}. Give whole numbers of at least {_FEWEST_KEYS}.")
    return -math.log(math.log(large) / math.log(small))


def shifted(parameters: Mapping[str, Any], shift: float, temperature: str = "") -> dict[str, Any]:
    """Return parameters with each value of one temperature multiplied by exp(shift), clipped nowhere.

    The shape of a schedule stays: it runs by the progress of the training. What stays at the baseline (τ = 1)
    stays there, and a value that is not among the parameters is not added.

    Args:
        parameters: Flat parameters.
        shift: What is added to ln τ.
        temperature: Which temperature: attention's, the empty text, or the name of another.
    """
    own = {name: value for name, value in parameters.items() if split_name(name)[0] == temperature}
    if not shift or is_neutral(own):
        return dict(parameters)
    levels = {join_name(temperature, level) for level in _LEVELS}
    factor = math.exp(shift)
    return {
        name: value * factor if name in levels and value is not None else value
        for name, value in parameters.items()
    }


def scales_with_length(parameters: Mapping[str, Any]) -> bool:
    """Return whether parameters have a length scaling, which follows the number of keys by itself."""
    return bool(parameters.get("length_scaling", NoLengthScaling.name) != NoLengthScaling.name)
