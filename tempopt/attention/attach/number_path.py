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
class Place:
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
    def held(self) -> Any:
        """What is there: a number or a tensor."""
        return _part(self.owner, self.key)

    @property
    def tensor(self) -> Tensor | None:
        """The tensor that holds the number; None where a Python number does."""
        held = self.held
        return held if isinstance(held, Tensor) else None

    def read(self) -> float:
        """Return the number."""
        held = self.held
        return float(held.detach()) if isinstance(held, Tensor) else float(held)

    def write(self, number: float) -> None:
        """Put a number there, in place where a tensor holds it.

        Raises:
            AttachError: What holds it cannot be written, or reads otherwise than it was written.
        """
        held = self.held
        if isinstance(held, Tensor):
            with torch.no_grad():
                held.fill_(number)
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
        if self.held is not value and not same_number(self.held, value):
            raise AttachError(f'"{self.path}" is {self.held!r} after {value!r} was written to it. {_REMEDY}')

    def same_as(self, other: Place) -> bool:
        """Return whether another path leads to the same number."""
        mine, theirs = self.tensor, other.tensor
        if mine is not None or theirs is not None:
            return mine is theirs
        return self.owner is other.owner and self.key == other.key


def same_number(there: object, written: object) -> bool:
    """Return whether a number is the one that was written, or that as a tensor of 32 bits rounds it."""
    if there == written:
        return True
    both = isinstance(there, Real) and isinstance(written, Real)
    return both and float(there) == float(np.float32(written))  # type: ignore[arg-type]


_REMEDY = (
    "Give the path of what it is computed from, or keep the number in an attribute of the module that its "
    "code reads in every forward."
)


def find_number(model: nn.Module, path: str) -> Place:
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
    place = Place(path, owner, _key(owner, parts[-1], ".".join(parts[:-1]), model))
    _check(place, model)
    return place


def _check(place: Place, model: nn.Module) -> None:
    held = place.held
    if "schedule" in str(place.key) and (length := _length_of_table(held)):
        raise AttachError(
            f'"{place.path}" is a table of {length} numbers, not one real number. What is read from a table '
            "by step or epoch is a schedule of the module's own: have the module read one attribute in its "
            "place, and give the path of that."
        )
    kind = _what_is_wrong(held)
    if kind:
        raise AttachError(
            f'"{place.path}" is {kind}, not one real number. Give a path to one, {_example(model)}.'
        )
    if not isinstance(held, Tensor):
        # what has no setter is found out before training
        place.write(held)
    elif place.held is not held:
        raise AttachError(f'"{place.path}" is computed anew each time it is read. {_REMEDY}')


def _what_is_wrong(held: object) -> str:
    """Return what something is that is not one real number; empty if it is one."""
    if isinstance(held, Tensor):
        if held.numel() != 1:
            return f"a tensor of shape {tuple(held.shape)}"
        if not held.is_floating_point():
            return f"a tensor of {str(held.dtype).removeprefix('torch.')}"
        return ""
    if isinstance(held, bool) or not isinstance(held, Real):
        return f"{held!r:.80}" if held is None or isinstance(held, bool | str) else f"a {type(held).__name__}"
    return "" if math.isfinite(held) else repr(held)


def _length_of_table(held: object) -> int:
    """Return of how many numbers in a row something is, 0 if it is no such table."""
    if isinstance(held, Tensor | np.ndarray):
        return len(held) if held.ndim == 1 and len(held) > 1 else 0
    if not isinstance(held, list | tuple) or len(held) < 2:
        return 0
    return 0 if any(_what_is_wrong(each) for each in held) else len(held)


def tables_beside(place: Place) -> list[str]:
    """Return paths of the tables beside a number whose names say that they are of its temperature."""
    own = {**getattr(place.owner, "__dict__", {}), **getattr(place.owner, "_buffers", {})}
    prefix = place.path.removesuffix(str(place.key))
    return [
        f"{prefix}{name}"
        for name, held in own.items()
        if name.startswith(str(place.key)) and _length_of_table(held)
    ]


def _key(owner: Any, part: str, path: str, model: nn.Module) -> str | int:
    """Return the attribute's name, or the key or index, that a part of a path stands for."""
    if isinstance(owner, Mapping):
        if part in owner:
            return part
        known: Sequence[Any] = [each for each in owner if isinstance(each, str)]
    elif isinstance(owner, Sequence | nn.ModuleList | nn.Sequential | nn.ParameterList):
        if re.fullmatch(r"[0-9]+", part) and int(part) < len(owner):
            return int(part)
        if isinstance(owner, nn.Module) and hasattr(owner, part):
            return part
        known = [str(index) for index in range(len(owner))]
    else:
        if hasattr(owner, part):
            return part
        known = [name for name in _names(owner) if not name.startswith("_")]
        own = getattr(owner, "__dict__", {})
        known = [name for name in known if not isinstance(own.get(name), bool | str)]
    there = f'"{path}"' if path else type(model).__name__
    close = unknown("name", part, known[:_MOST_NAMED], where=f" in {there}")
    raise AttachError(f"{close} Give a path to a number, {_example(model)}.")


def _part(owner: Any, key: str | int) -> Any:
    return owner[key] if isinstance(key, int) or isinstance(owner, Mapping) else getattr(owner, key)


def _names(owner: Any) -> list[str]:
    kept = ("_parameters", "_buffers", "_modules", "__dict__")
    names = [name for each in kept for name in getattr(owner, each, ())]
    properties = [name for name, each in vars(type(owner)).items() if isinstance(each, property)]
    return [*names, *properties]


def _example(model: nn.Module) -> str:
    """Return numbers of the model whose names say that they may be temperatures, or else an example."""
    found = likely_numbers(model)
    return f"such as {', '.join(found)}" if found else "as in criterion.temperature"


def likely_numbers(model: nn.Module) -> list[str]:
    """Return paths of the numbers of a model that by their names may be temperatures, twelve at most."""
    found: list[str] = []
    for prefix, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        own = {**module.__dict__, **module._parameters, **module._buffers}
        for name, held in own.items():
            if not name.startswith("_") and _LIKELY.search(name.lower()) and not _what_is_wrong(held):
                found.append(f"{prefix}.{name}" if prefix else name)
    return found[:_MOST_NAMED]
