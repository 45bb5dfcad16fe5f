"""Finds one number of a model by a dotted path, and reads and writes it where the model keeps it.

What is written there is decided in ``tempopt.attention.attach.values``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tempopt.errors import AttachError, unknown

_LIKELY = re.compile(r"temperature|temp$|^temp_|tau|logit_scale|(^|_)t$")
_MOST_NAMED = 12


@dataclass(frozen=True, slots=True)
class AttributePath:
    """Where a model keeps one number: an attribute or an item that holds a number or a tensor of one element.

    The tensor is looked up at each use, since ``module.to(...)`` puts another one in the place of a buffer.

    Args:
        path: The dotted path from the model.
        owner: What has the attribute or the item.
        key: Name of the attribute, key or index of the item.
    """

    path: str
    owner: Any
    key: str | int

    @property
    def value(self) -> Any:
        """What is there: a number or a tensor."""
        return _part(self.owner, self.key)

    @property
    def tensor(self) -> Tensor | None:
        """The tensor that holds the number; None where a Python number does."""
        value = self.value
        return value if isinstance(value, Tensor) else None

    def read(self) -> float:
        """Return the number."""
        value = self.value
        return float(value.detach()) if isinstance(value, Tensor) else float(value)

    def write(self, number: float) -> None:
        """Put a number there, in place where a tensor holds it.

        Raises:
            AttachError: What holds it cannot be written, or reads otherwise than it was written.
        """
        value = self.value
        if isinstance(value, Tensor):
            with torch.no_grad():
                value.fill_(number)
            return
        self.hold(number)

    def hold(self, value: object) -> None:
        """Put an object there, whatever was there before.

        Raises:
            AttachError: What is read there afterwards is another one.
        """
        try:
            if isinstance(self.owner, Mapping) or isinstance(self.key, int):
                self.owner[self.key] = value
            else:
                setattr(self.owner, self.key, value)
        except (AttributeError, TypeError) as error:
            raise AttachError(
                f'"{self.path}" cannot be written: {type(error).__name__}: {error}. {_REMEDY}'
            ) from error
        if self.value is not value and not same_number(self.value, value):
            raise AttachError(f'"{self.path}" is {self.value!r} after {value!r} was written to it. {_REMEDY}')

    def same_as(self, other_location: AttributePath) -> bool:
        """Return whether another path leads to the same number."""
        tensor, other_tensor = self.tensor, other_location.tensor
        if tensor is not None or other_tensor is not None:
            return tensor is other_tensor
        return self.owner is other_location.owner and self.key == other_location.key


def same_number(value: object, written_value: object) -> bool:
    """Return whether a number is the one that was written, or that as a tensor of 32 bits rounds it."""
    if value == written_value:
        return True
    are_real = isinstance(value, Real) and isinstance(written_value, Real)
    return are_real and float(value) == float(np.float32(written_value))  # type: ignore[arg-type]


_REMEDY = (
    "Give the path of what it is computed from, or keep the number in an attribute of the module that its "
    "code reads in every forward."
)


def find_number(model: nn.Module, path: str) -> AttributePath:
    """Return the place of a number of a model.

    Args:
        model: Where the path begins.
        path: Names of attributes, keys of mappings and indices of sequences, with dots between them, as in
            ``criterion.temperature`` or ``losses.0.tau``.

    Raises:
        AttachError: The path leads nowhere, or to something that is not one real number or cannot be written.
    """
    parts = path.split(".")
    if not all(parts):
        raise AttachError(f'"{path}" is no path. Give names with dots between them, {_example(model)}.')
    owner: Any = model
    for depth, part in enumerate(parts[:-1]):
        owner = _part(owner, _key(owner, part, ".".join(parts[:depth]), model))
    if isinstance(owner, torch.jit.ScriptModule):
        raise AttachError(
            f'"{path}" is in TorchScript, whose numbers cannot be changed. Give the module unscripted.'
        )
    location = AttributePath(path, owner, _key(owner, parts[-1], ".".join(parts[:-1]), model))
    _check(location, model)
    return location


def _check(location: AttributePath, model: nn.Module) -> None:
    value = location.value
    kind = _what_is_wrong(value)
    if kind:
        raise AttachError(
            f'"{location.path}" is {kind}, not one real number. Give a path to one, {_example(model)}.'
        )
    if not isinstance(value, Tensor):
        # what has no setter is found out before training
        location.write(value)
    elif location.value is not value:
        raise AttachError(f'"{location.path}" is computed anew each time it is read. {_REMEDY}')


def _what_is_wrong(value: object) -> str:
    """Return what something is that is not one real number; empty if it is one."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            return f"a tensor of shape {tuple(value.shape)}"
        if not value.is_floating_point():
            return f"a tensor of {str(value.dtype).removeprefix('torch.')}"
        return ""
    if isinstance(value, bool) or not isinstance(value, Real):
        return (
            f"{value!r:.80}"
            if value is None or isinstance(value, bool | str)
            else f"a {type(value).__name__}"
        )
    return "" if math.isfinite(value) else repr(value)


def _key(owner: Any, part: str, path: str, model: nn.Module) -> str | int:
    """Return the attribute's name, or the key or index, that a part of a path stands for."""
    if isinstance(owner, Mapping):
        if part in owner:
            return part
        keys: Sequence[Any] = [key for key in owner if isinstance(key, str)]
    elif isinstance(owner, Sequence | nn.ModuleList | nn.Sequential | nn.ParameterList):
        if re.fullmatch(r"[0-9]+", part) and int(part) < len(owner):
            return int(part)
        if isinstance(owner, nn.Module) and hasattr(owner, part):
            return part
        keys = [str(index) for index in range(len(owner))]
    else:
        if hasattr(owner, part):
            return part
        keys = [name for name in _names(owner) if not name.startswith("_")]
        attributes = getattr(owner, "__dict__", {})
        keys = [name for name in keys if not isinstance(attributes.get(name), bool | str)]
    owner_name = f'"{path}"' if path else type(model).__name__
    close = unknown("name", part, keys[:_MOST_NAMED], where=f" in {owner_name}")
    raise AttachError(f"{close} Give a path to a number, {_example(model)}.")


def _part(owner: Any, key: str | int) -> Any:
    return owner[key] if isinstance(key, int) or isinstance(owner, Mapping) else getattr(owner, key)


def _names(owner: Any) -> list[str]:
    containers = ("_parameters", "_buffers", "_modules", "__dict__")
    names = [name for container in containers for name in getattr(owner, container, ())]
    properties = [name for name, value in vars(type(owner)).items() if isinstance(value, property)]
    return [*names, *properties]


def _example(model: nn.Module) -> str:
    """Return numbers of the model whose names say that they may be temperatures, or else an example."""
    paths = suggest_attributes(model)
    return f"such as {', '.join(paths)}" if paths else "as in criterion.temperature"


def suggest_attributes(model: nn.Module) -> list[str]:
    """Return paths of the numbers of a model that by their names may be temperatures, twelve at most."""
    paths: list[str] = []
    for prefix, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        attributes = {**module.__dict__, **module._parameters, **module._buffers}
        for name, value in attributes.items():
            if not name.startswith("_") and _LIKELY.search(name.lower()) and not _what_is_wrong(value):
                paths.append(f"{prefix}.{name}" if prefix else name)
    return paths[:_MOST_NAMED]
