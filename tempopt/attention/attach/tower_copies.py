"""Finds towers that are copies of others, as the teacher of a student is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations

import torch
from torch import nn

from tempopt.temperature.towers import layers_by_tower

_FROM_NUMBER_ON = re.compile(r"(^|\.)\d+(\..*)?$")


def find_originals(model: nn.Module, layers: Sequence[str]) -> list[int]:
    """Return the number of the original of each layer; a layer that is no copy has its own number.

    A tower is a copy of an earlier one where all parameters around both are equal, as after
    ``copy.deepcopy``.
    """
    originals = list(range(len(layers)))
    numbers = {name: number for number, name in enumerate(layers)}
    for tower, later_tower in combinations(layers_by_tower(layers).values(), 2):
        root, later_root = (_FROM_NUMBER_ON.sub("", names[0]) for names in (tower, later_tower))
        suffixes = [name.removeprefix(root) for name in tower]
        if root == later_root or suffixes != [name.removeprefix(later_root) for name in later_tower]:
            continue
        if _has_same_parameters(model.get_submodule(root), model.get_submodule(later_root)):
            for name, later_name in zip(tower, later_tower, strict=True):
                originals[numbers[later_name]] = originals[numbers[name]]
    return originals


def _has_same_parameters(module: nn.Module, later_module: nn.Module) -> bool:
    parameters, later_parameters = dict(module.named_parameters()), dict(later_module.named_parameters())
    return parameters.keys() == later_parameters.keys() != set() and all(
        x.shape == y.shape and x.device == y.device and torch.equal(x, y)
        for x, y in ((x, later_parameters[name]) for name, x in parameters.items())
        if not x.is_meta
    )
