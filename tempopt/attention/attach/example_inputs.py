"""Finds inputs that a model names itself, to run it on where no example is given."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Forward = Callable[[], Any]

# Images beyond this are left to a person: a test is worth ten forwards, not minutes.
_LARGEST_IMAGE = 384


def infer_example_inputs(model: nn.Module) -> Forward | None:
    """Return a forward of the model on inputs that it names itself, None if it names none.

    They are ``example_input_array`` of a LightningModule, else of a model of transformers its
    ``dummy_inputs``, or two images of the size and the channels of its configuration.

    Args:
        model: Any module; not run yet.
    """
    inputs = _named_inputs(model)
    if inputs is None:
        return None
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    dtype = next(
        (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()), torch.float32
    )
    inputs = _move_inputs(inputs, device, dtype)

    def forward() -> Any:
        with warnings.catch_warnings():
            # Warnings about example inputs help no user.
            warnings.simplefilter("ignore")
            if isinstance(inputs, Mapping):
                return model(**inputs)
            return model(*inputs) if isinstance(inputs, tuple) else model(inputs)

    return forward


def infer_partial_inputs(model: nn.Module) -> Forward | None:
    """Return a forward of the outermost modules in a model that name inputs themselves, None if none does."""
    forwards: dict[str, Forward] = {}
    for name, module in model.named_modules():
        if not any(name.startswith(f"{outer}.") for outer in forwards):
            forward = infer_example_inputs(module)
            if forward is not None:
                forwards[name] = forward
    return (lambda: [forward() for forward in forwards.values()]) if forwards else None


def _named_inputs(model: nn.Module) -> Any:
    example = getattr(model, "example_input_array", None)
    if example is not None:
        return example
    config, kind = getattr(model, "config", None), getattr(model, "main_input_name", None)
    if kind == "pixel_values":
        return _images(config)
    dummy = getattr(model, "dummy_inputs", None) if kind == "input_ids" else None
    if not isinstance(dummy, Mapping):
        return None
    words = getattr(config, "vocab_size", None)
    largest = max(int(tensor.max()) for tensor in dummy.values() if isinstance(tensor, Tensor))
    return dummy if isinstance(words, int) and largest < words else None


def _images(config: Any) -> dict[str, Tensor] | None:
    size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", 3)
    height, width = size if isinstance(size, (list, tuple)) and len(size) == 2 else (size, size)
    if not (isinstance(height, int) and isinstance(width, int) and max(height, width) <= _LARGEST_IMAGE):
        return None
    generator = torch.Generator().manual_seed(0)
    return {"pixel_values": torch.randn(2, channels, height, width, generator=generator)}


def _move_inputs(inputs: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if isinstance(inputs, Tensor):
        return inputs.to(device, dtype if inputs.is_floating_point() else None)
    if isinstance(inputs, Mapping):
        return {name: _move_inputs(value, device, dtype) for name, value in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        return tuple(_move_inputs(value, device, dtype) for value in inputs)
    return inputs
