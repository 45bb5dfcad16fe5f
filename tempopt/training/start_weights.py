"""Loads the weights that each run of a study begins from (``study.start_from``) into its module.

Weights alone are loaded, as data: optimizers, steps and generators begin as without them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tempopt.attention.attach.checkpoints import take_out
from tempopt.attention.attach.weights import BAKED, few, read_file, shape_text
from tempopt.errors import AttachError, SpecError, UsageError
from tempopt.store.weights import refuse_other

# Names that are tried to find out which prefix may be meant.
_TRIED = 5
_PICKLED = (
    "It is read without pickle, which could run code. If you trust it, write its weights alone into a file: "
    ' torch.save(torch.load(PATH, weights_only=False)["state_dict"], NEW_PATH)'
)


@dataclass(frozen=True, slots=True)
class _Fit:
    """How the weights of a file lie in a module.

    Args:
        state: What is loaded: value by name in the module.
        missing: Names in the part of the module that is loaded into, which the file lacks.
        others: Names of the file that the module lacks.
        shapes: Names with another shape, with both shapes.
        kinds: Names whose values cannot be loaded as the numbers that the module has there, with both kinds.
    """

    state: dict[str, Any]
    missing: list[str]
    others: list[str]
    shapes: list[str]
    kinds: list[str]


def load_start(module: nn.Module, start: Mapping[str, Any]) -> None:
    """Load the weights that a run begins from.

    Args:
        module: The module, as its ``__init__`` has made it; changed.
        start: As ``Program.start`` has it.

    Raises:
        SpecError: They are no data, have another content than the study was begun with, or are of another
            model.
    """
    state = _read(start)
    fit = _fit(dict(module.state_dict(keep_vars=True)), state, start["prefix"])
    if refusal := _refusal(fit, module, state, start):
        raise SpecError(refusal)
    # what the file lacks was looked at above: tied weights may be among it
    module.load_state_dict(fit.state, strict=False)


def refuse_unfit(start: Mapping[str, Any], made: Iterable[tuple[str, Any, nn.Module]]) -> None:
    """Refuse values of searched arguments with which the module does not take the weights.

    Args:
        start: As for :func:`load_start`.
        made: Name and value of a searched argument, and a module that was made with it; of each.

    Raises:
        SpecError: As :func:`load_start`.
    """
    state = _read(start)
    for name, value, module in made:
        fit = _fit(dict(module.state_dict(keep_vars=True)), state, start["prefix"])
        if refusal := _refusal(fit, module, state, start):
            raise SpecError(f"search.{name}: with {value!r} the weights do not fit. {refusal}")


def fit_text(module: nn.Module, start: Mapping[str, Any]) -> str:
    """Return in words how much of a module is loaded, and what is not.

    Args:
        module: A module that the weights fit.
        start: As for :func:`load_start`.
    """
    own, state = dict(module.state_dict(keep_vars=True)), _read(start)
    fit = _fit(own, state, start["prefix"])
    loaded = {id(own[name]) for name in fit.state}
    missing = [name for name, value in own.items() if id(value) not in loaded]
    told = f"{len(own) - len(missing)} of {_weights(own)} of {type(module).__name__}"
    if missing:
        told += f"; as initialised: {few(missing)}"
    return told + (f"; of the file left out: {few(fit.others)}" if fit.others else "")


def _read(start: Mapping[str, Any]) -> dict[str, Any]:
    path = Path(start["path"])
    try:
        if start["sha256"] is not None:
            refuse_other(path, start["sha256"], str(path))
        content = read_file(path)
        if take_out(content):
            raise AttachError(BAKED.format(path))
    except UsageError as error:
        remedy = f" {_PICKLED}" if "UnpicklingError" in str(error) else ""
        told = str(error).removeprefix("study.start_from: ")
        raise SpecError(f"study.start_from: {told}{remedy}") from error
    state: dict[str, Any] = content["state_dict"]
    return state


def _fit(own: Mapping[str, Any], state: Mapping[str, Any], prefix: str) -> _Fit:
    renamed, scope = _renamed(own, state, prefix)
    shared = {id(own[name]) for name in renamed if name in own}
    return _Fit(
        state={name: value for name, value in renamed.items() if name in own},
        missing=[
            name
            for name in own
            if name.startswith(scope) and name not in renamed and id(own[name]) not in shared
        ],
        others=[name for name in renamed if name not in own],
        shapes=[
            f"{name} ({shape_text(value)}, in the module {shape_text(own[name])})"
            for name, value in renamed.items()
            if isinstance(value, Tensor) and _is_made(own.get(name)) and own[name].shape != value.shape
        ],
        kinds=[
            f"{name} ({_kind(value)}, in the module {_kind(own[name])})"
            for name, value in renamed.items()
            if isinstance(own.get(name), Tensor) and not _is_loadable(value, own[name])
        ],
    )


def _is_made(value: Any) -> bool:
    """Return whether a tensor has a shape: one of a lazy module gets it from what is loaded."""
    return isinstance(value, Tensor) and not is_lazy(value)


def _is_loadable(value: Any, own: Tensor) -> bool:
    """Return whether a value can be copied into a tensor: other precisions can, quantised weights cannot."""
    if not isinstance(value, Tensor) or value.is_meta or value.is_quantized or value.layout != torch.strided:
        return False
    return (value.is_floating_point(), value.is_complex()) == (own.is_floating_point(), own.is_complex())


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    if value.is_meta:
        return "no numbers, but the device meta"
    layout = "" if value.layout == torch.strided else f" {str(value.layout).removeprefix('torch.')}"
    return f"{str(value.dtype).removeprefix('torch.')}{layout}"


def _renamed(own: Mapping[str, Any], state: Mapping[str, Any], prefix: str) -> tuple[dict[str, Any], str]:
    """Return what is loaded by its name in the module, and the beginning of the names it is loaded into.

    Of the three ways to read a prefix that by which most names are the module's is taken, in this order: the
    file is of that part of the module, both have that part, the module is of that part of the file.
    """
    if not prefix:
        return dict(state), ""
    part = {name: value for name, value in state.items() if name.startswith(prefix)}
    ways = (
        ({prefix + name: value for name, value in state.items()}, prefix),
        (part, prefix),
        ({name.removeprefix(prefix): value for name, value in part.items()}, ""),
    )
    return max(ways, key=lambda way: len(way[0].keys() & own.keys()))


def _refusal(fit: _Fit, module: nn.Module, state: Mapping[str, Any], start: Mapping[str, Any]) -> str | None:
    """Return why these weights are not loaded, None if they can be."""
    strict = start["strict"]
    found = {
        "with another shape": fit.shapes,
        "with another kind of number": fit.kinds,
        "that the file lacks": fit.missing if strict else [],
        "that the module lacks": fit.others if strict else [],
    }
    told = "; ".join(f"{_weights(names)} {what}: {few(names)}" for what, names in found.items() if names)
    if not told and fit.state:
        return None
    if not fit.state:
        told = f"None of its {_weights(state)} has a name of the module: {few(list(state))}"
    hint = _other_prefix(module, state)
    remedy = "Build the module with the arguments that the weights were trained with, or give other weights."
    if hint is not None and hint[1] > len(fit.state):
        remedy = (
            f'With prefix: "{hint[0]}" {hint[1]} of the {len(state)} weights would have a name of the module.'
        )
    elif strict and fit.state and not fit.shapes and not fit.kinds:
        remedy += " To begin the missing ones as initialised and to leave out the others: strict: false"
    return f"study.start_from: {start['path']} does not fit {type(module).__name__}. {told}. {remedy}"


def _other_prefix(module: nn.Module, state: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the prefix with which most weights would have a name of the module, and how many would."""
    own = dict(module.state_dict(keep_vars=True))
    some = list(state)[:_TRIED]
    found = {name.removesuffix(each) for each in some for name in own if name.endswith(f".{each}")}
    found |= {name.removesuffix(each) for each in own for name in some if name.endswith(f".{each}")}
    counted = [(len(_fit(own, state, prefix).state), prefix) for prefix in sorted(found)]
    return None if not counted else max(counted)[::-1]


def _weights(names: Collection[str]) -> str:
    return f"{len(names)} weight{'' if len(names) == 1 else 's'}"
