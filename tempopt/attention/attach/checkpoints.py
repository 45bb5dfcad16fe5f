"""What a checkpoint says of the temperatures of its model: in its weights if they can be, else beside them.

A checkpoint is a dictionary with a ``state_dict``, as Lightning writes it. When it is written and loaded is
decided in ``tempopt.training.attach_callback``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tempopt.attention.attach.attachment import Attachment, Example, attach_layers
from tempopt.attention.attach.baked_marker import BESIDE, mark_state, marked_temperatures, unmark_state
from tempopt.attention.attach.number_path import find_number
from tempopt.attention.attach.query_weights import Scaling
from tempopt.attention.attach.weights import BAKED, REMEDY, kind_of, load_folder, load_state, read_file
from tempopt.errors import AttachError, UsageError

KEY = "tempopt"
"""Key of a checkpoint under which it says of its temperatures what its weights do not."""
VALUES = "tempopt_values"
"""Key of a checkpoint under which it holds numbers of the model by path that are not among its weights."""

# What a plan says beside temperatures, without a schedule: a file must not say which code is imported.
_BESIDE_TEMPERATURES = (
    *("head_pattern", "head_ratio", "window", "local_share"),
    *("length_scaling", "n0", "length_power", "length_slope"),
    *("normaliser", "top_k", "min_weight"),
)


def put_in_weights(checkpoint: dict[str, Any], model: nn.Module, changes: Sequence[Scaling]) -> bool:
    """Scale and mark the weights in a checkpoint, and keep them as they were beside it if training goes on.

    Args:
        checkpoint: What is about to be saved; changed.
        model: Whose weights it has; not changed.
        changes: What the temperatures make of them.

    Returns:
        Whether that could be done; if not, as with weights that are dealt among ranks, nothing was.
    """
    state = checkpoint["state_dict"]
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    named_changes = [(name, change) for change in changes for name in names.get(id(change.value), [""])]
    if not all(name in state and state[name].shape == change.value.shape for name, change in named_changes):
        return False
    original_weights = {name: state[name] for name, _ in named_changes}
    for name, change in named_changes:
        state[name] = change.of(state[name].detach())
    mark_state(state, {name.rpartition(".")[0]: change.temperature for name, change in named_changes})
    if "optimizer_states" in checkpoint:
        # of several temperatures each keeps its own
        metadata = checkpoint.setdefault(KEY, {})
        metadata["weights"] = metadata.get("weights", {}) | original_weights
    return True


def put_beside(
    checkpoint: dict[str, Any], parameters: Mapping[str, Any], temperatures: Mapping[str, float]
) -> None:
    """Say in a checkpoint what is to be attached to its weights, which a plain model then refuses.

    Args:
        checkpoint: What is about to be saved; changed.
        parameters: Temperature parameters to evaluate with.
        temperatures: The temperature of each layer to evaluate with, by name.
    """
    checkpoint["state_dict"][BESIDE] = torch.zeros(0)
    checkpoint[KEY] = {
        **checkpoint.get(KEY, {}),
        "temperatures": dict(temperatures),
        "parameters": {name: parameters[name] for name in _BESIDE_TEMPERATURES if name in parameters},
    }


def take_out(checkpoint: dict[str, Any]) -> dict[str, float]:
    """Have a checkpoint hold the weights as they were trained, so that temperatures can be attached to them.

    Args:
        checkpoint: What was read; changed.

    Returns:
        The temperatures that are in its weights, by module, where it does not hold those without them.
    """
    state, metadata = checkpoint["state_dict"], checkpoint.get(KEY) or {}
    state.pop(BESIDE, None)
    original_weights: Mapping[str, Tensor] = metadata.get("weights") or {}
    if not original_weights:
        return marked_temperatures(state)
    state.update(original_weights)
    unmark_state(state)
    return {}


def load_checkpoint(
    model: nn.Module, path: str | os.PathLike[str], *, example: Example = None
) -> Attachment | None:
    """Load trained weights into a model, with the temperatures that it is to be evaluated with.

    It reads what :class:`tempopt.AttachCallback` and :class:`tempopt.ValueCallback` had written, any other
    checkpoint of Lightning, a state dict that ``torch.save`` or safetensors wrote, and a folder that
    ``save_pretrained`` of transformers wrote, whose weights go into the model of transformers within. Where
    temperatures are beside the weights, attention's are attached to the model, and numbers are set. Where all
    of them are in the weights, or there are none, nothing is attached.

    Args:
        model: A model that was built as the one that was saved; changed.
        path: The file or folder. It is read as data: nothing in it is executed, and objects among
            hyperparameters are left out.
        example: As for :func:`tempopt.attach`, where temperatures are beside the weights. It may leave layers
            unused, as a forward of a student leaves its teacher; they are not tested, and where softmax is
            written out they stay at temperature 1.

    Returns:
        What was attached; None if nothing had to be.

    Raises:
        UsageError: It is missing, holds more than data, holds no weights by name, or is of another model.
        AttachError: The temperatures cannot be attached to this model, or it has no such number.
    """
    full_path = Path(path).expanduser()
    if kind_of(full_path) == "folder":
        load_folder(model, full_path, baked=True)
        return None
    content = read_file(full_path)
    metadata, state = content.get(KEY), content["state_dict"]
    has_temperatures = isinstance(metadata, Mapping) and state.pop(BESIDE, None) is not None
    load_state(model, state, full_path)
    _set_numbers(model, content.get(VALUES))
    if not has_temperatures or metadata is None:
        return None
    parameters = {
        name: metadata["parameters"][name] for name in _BESIDE_TEMPERATURES if name in metadata["parameters"]
    }
    return attach_layers(model, parameters, metadata["temperatures"], example=example)


def load_as_trained(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Load trained weights into a model, without any temperature that they are to be evaluated with.

    Args:
        model: A model that was built as the one that was saved, with a temperature attached or not; changed.
        path: As for :func:`load_checkpoint`.

    Raises:
        UsageError: As for :func:`load_checkpoint`.
        AttachError: The weights have a temperature in them, and are not beside it as they were trained.
    """
    full_path = Path(path).expanduser()
    if kind_of(full_path) == "folder":
        load_folder(model, full_path, baked=False)
        return
    content = read_file(full_path)
    if take_out(content):
        raise AttachError(BAKED.format(full_path))
    load_state(model, content["state_dict"], full_path)


def _set_numbers(model: nn.Module, values: object) -> None:
    for path, number in values.items() if isinstance(values, Mapping) else ():
        if not isinstance(number, float) or not math.isfinite(number):
            raise UsageError(f'The checkpoint gives {number!r} for "{path}", which is no number. {REMEDY}')
        find_number(model, str(path)).write(number)
