"""Reads trained weights and loads them into a model: checkpoints, state dicts and folders of transformers.

Everything is read as data, never as code. What is said of temperatures beside the weights is
``tempopt.attention.attach.checkpoints``' to read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from tempopt.attention.attach.baked_marker import MARK, config_of, is_attached
from tempopt.errors import AttachError, UsageError

Kind = Literal["checkpoint", "state dict", "folder"]
"""A checkpoint of Lightning, a state dict by itself, or a folder that ``save_pretrained`` wrote."""

REMEDY = (
    "Give a checkpoint of Lightning, a file that torch.save(model.state_dict(), path) or safetensors wrote, "
    "or a folder that save_pretrained wrote."
)
BAKED = (
    "The weights in {} have a temperature in them already (tempopt.bake), and another would come on top of "
    "it. Give weights that were saved before they were baked."
)
_SAFE = ".safetensors"
_CONFIG = "config.json"
_MAX_LISTED_NAMES = 5


def kind_of(path: Path) -> Kind:
    """Return the kind of the weights at a path, as far as it is visible: a file of torch may be either kind.

    Raises:
        UsageError: There is nothing, or a folder that ``save_pretrained`` did not write.
    """
    if path.is_dir():
        if not (path / _CONFIG).is_file():
            raise UsageError(f"{path} is a folder without a {_CONFIG}, so no model is in it. {REMEDY}")
        return "folder"
    if not path.is_file():
        raise UsageError(f"There is no checkpoint {path}. {REMEDY}")
    return "state dict" if path.suffix == _SAFE or _begins_safe(path) else "checkpoint"


def _begins_safe(path: Path) -> bool:
    """Return whether a file begins as safetensors writes it: a size, and a mapping in JSON of that size."""
    # caches keep files under names of their own
    with contextlib.suppress(OSError), path.open("rb") as file:
        size, begin = int.from_bytes(file.read(8), "little"), file.read(2)
        return begin == b'{"' and 2 < size <= path.stat().st_size - 8
    return False


def read_file(path: Path) -> dict[str, Any]:
    """Return a checkpoint as Lightning writes it; of a state dict by itself one with that alone.

    Raises:
        UsageError: The file is missing, holds more than data, or holds no weights by name.
    """
    if kind_of(path) == "state dict":
        return {"state_dict": _read_safe(path)}
    try:
        content = _read_without_objects(path)
    except Exception as error:
        raise UsageError(_unreadable(path, error)) from error
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict) or not any(isinstance(value, Tensor) for value in state.values()):
        raise UsageError(f"{path} holds no weights by name. {REMEDY}")
    return content if "state_dict" in content else {"state_dict": content}


class _Placeholder:
    """Stands for an object in a checkpoint, whose code is not imported."""

    def __new__(cls, *args: object, **kwargs: object) -> _Placeholder:
        return super().__new__(cls)

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def _read_without_objects(path: Path) -> Any:
    """Return the content of a file of torch, of which hyperparameters may be objects, as data.

    Raises:
        Exception: It cannot be read, or the weights are within objects.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError:
        with safe_globals([(_Placeholder, name) for name in get_unsafe_globals_in_checkpoint(path)]):
            content = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
            raise
        return content


def _read_safe(path: Path) -> dict[str, Tensor]:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise UsageError(
            f"{path} is read by the package safetensors. Install it: pip install safetensors"
        ) from error
    try:
        state: dict[str, Tensor] = load_file(path)
    except Exception as error:
        raise UsageError(_unreadable(path, error)) from error
    return state


def _unreadable(path: Path, error: Exception) -> str:
    kind = type(error).__name__
    # what torch and safetensors raise for a file that ends too early or has no content of theirs
    reason = "it is damaged, incomplete or no file of weights"
    if kind == "UnpicklingError":
        reason = "a pickle of objects, such as a whole module, can run code and is refused"
    return f"{path} cannot be loaded as data ({kind}): {reason}. {REMEDY}"


def load_state(model: nn.Module, state: Mapping[str, Any], path: Path) -> None:
    """Load a state dict into the model that it is of; names of tied weights may be missing.

    Raises:
        UsageError: Weights are missing, there are others, or shapes differ; up to five of each are named.
        AttachError: The weights have a temperature in them already, and the model has one attached.
    """
    model_state = dict(model.state_dict(keep_vars=True))
    shared_ids = {id(model_state[name]) for name in state if name in model_state}
    missing = [name for name in model_state if name not in state and id(model_state[name]) not in shared_ids]
    others = [name for name in state if name not in model_state]
    shapes = [
        f"{name} ({_shape_text(value)}, in the model {_shape_text(model_state[name])})"
        for name, value in state.items()
        if isinstance(value, Tensor) and _shape_text(value) != _shape_text(model_state.get(name, value))
    ]
    differences = {
        "it does not have": missing,
        "it has what the model does not": others,
        "other shapes": shapes,
    }
    if any(differences.values()):
        texts = [f"{text}: {_format_names(names)}" for text, names in differences.items() if names]
        raise UsageError(
            f"{path} is of another model than {type(model).__name__}: {'; '.join(texts)}. Build it with the "
            "arguments that it was trained with, or give the checkpoint that belongs to it."
        )
    # a plain model calls its own hooks, and refuses by itself what it must not be given
    model.load_state_dict(state, strict=all(name in state for name in model_state))


def _shape_text(value: Any) -> str:
    """Return the shape of a tensor as messages give it."""
    return " x ".join(map(str, getattr(value, "shape", ()))) or "a number"


def _format_names(names: Sequence[str]) -> str:
    """Return the first names of a list as messages give them, and how many more there are."""
    num_more = len(names) - _MAX_LISTED_NAMES
    return ", ".join([*names[:_MAX_LISTED_NAMES], *([f"and {num_more} more"] if num_more > 0 else [])])


def load_folder(model: nn.Module, folder: Path, *, baked: bool) -> None:
    """Load a folder that ``save_pretrained`` wrote into the model of transformers that is in a module.

    Args:
        model: The module, or that model itself; changed.
        folder: The folder.
        baked: Whether weights with a temperature in them are taken, and the model marked as having it.

    Raises:
        UsageError: There is no such model in the module, or more than it; the folder is of another one, or
            cannot be read.
        AttachError: The weights have a temperature in them, and must not, or one is attached.
    """
    target = _pretrained_model(model, folder)
    cls: Any = type(target)
    target_ids = {id(parameter) for parameter in target.parameters()}
    outside_names = [name for name, parameter in model.named_parameters() if id(parameter) not in target_ids]
    if outside_names:
        raise UsageError(
            f"{folder} has the weights of {cls.__name__} alone, and {type(model).__name__} has others, which "
            f"would stay as they were initialised: {_format_names(outside_names)}. "
            "Give a state dict of the whole module: torch.save(model.state_dict(), path)."
        )
    try:
        loaded, loading_info = cls.from_pretrained(
            folder, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True
        )
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0][:300]
        raise UsageError(
            f"{folder} cannot be loaded as {cls.__name__} ({type(error).__name__}: {first_line}). Give a "
            "folder that save_pretrained of that class wrote."
        ) from error
    marks = getattr(loaded.config, MARK, None)
    if marks and (not baked or is_attached(model)):
        raise AttachError(BAKED.format(folder))
    # the class may have parts that this model was built without, and that the folder need not have
    target_state, unknown_names = (
        target.state_dict(),
        {name for name, *_ in loading_info["mismatched_keys"]} | set(loading_info["missing_keys"]),
    )
    state = {
        name: tensor
        for name, tensor in loaded.state_dict().items()
        if name in target_state and name not in unknown_names
    }
    load_state(target, state, folder)
    if marks:
        setattr(config_of(target), MARK, marks)


def _pretrained_model(model: nn.Module, folder: Path) -> nn.Module:
    """Return the model of transformers in a module, the outermost where they nest.

    Raises:
        UsageError: There is none, or there are several.
    """
    pretrained_models: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        is_nested = any(not outer or name.startswith(f"{outer}.") for outer in pretrained_models)
        if not is_nested and hasattr(type(module), "from_pretrained") and config_of(module) is not None:
            pretrained_models[name] = module
    if len(pretrained_models) == 1:
        return next(iter(pretrained_models.values()))
    names = ", ".join(pretrained_models)
    number = f"several models of transformers ({names})" if names else "no model of transformers"
    raise UsageError(
        f"{folder} is a folder of transformers, and {type(model).__name__} has {number} to load it into. "
        f"{REMEDY}"
    )
