"""Leaves a model and the random generators as they were, whatever a self-test does with them meanwhile."""

from __future__ import annotations

import copy
import random
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# A parameter that is nowhere larger is as good as closed (zero initialisation, LayerScale).
_CLOSED = 1e-4


def force_eager() -> AbstractContextManager[None]:
    """Run compiled models by their Python for a while, where function modes see all calls."""
    if "torch._dynamo" not in sys.modules:  # then nothing is compiled, and it takes seconds to load
        return nullcontext()
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance


@contextmanager
def preserve_model_state(model: nn.Module) -> Iterator[None]:
    """Have a model in eval mode with all its branches open for a while, and leave it as it was."""
    # of what is in TorchScript the values of buffers are put back, as those of all others
    python_modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    states = [(module, dict(vars(module)), dict(module._buffers)) for module in python_modules]
    is_training = [(module, module.training) for module in model.modules()]
    closed_parameters = [parameter for parameter in model.parameters() if _is_closed(parameter)]
    # Metrics keep their states in plain attributes.
    loose_tensors = [
        value for module in python_modules for value in vars(module).values() if isinstance(value, Tensor)
    ]
    # a step may append to lists, as of its outputs
    containers = [
        (value, copy.copy(value))
        for module in python_modules
        for value in vars(module).values()
        if type(value) in (list, dict, set, deque)
    ]
    tensors = [*closed_parameters, *model.buffers(), *loose_tensors]
    saved_values = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        for module, _ in is_training:
            # Not by eval(): of some modules it does more, as merging weights.
            module.training = False
        _open(closed_parameters)
        yield
    finally:
        for module, training in is_training:
            module.training = training
        for module, attributes, buffers in states:
            _replace(vars(module), attributes)
            _replace(module._buffers, buffers)
        for container, contents in containers:
            _replace(container, contents)
        copy_back(saved_values)


def _replace(entries: Any, saved_entries: Any) -> None:
    entries.clear()
    extend = entries.update if hasattr(entries, "update") else entries.extend
    extend(saved_entries)


def _is_closed(parameter: Tensor) -> bool:
    if not parameter.is_floating_point() or parameter.numel() == 0:
        return False
    return bool(parameter.detach().abs().max() < _CLOSED)


def _open(parameters: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for parameter in parameters:
            # alike for student and teacher, so that moving the teacher to the student changes nothing
            generator = torch.Generator().manual_seed(0)
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))


@contextmanager
def preserve_rng_state(devices: set[torch.device]) -> Iterator[None]:
    """Give back all random states afterwards, so that the next forward draws the same."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device.index for device in devices if device.type == "cuda"]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def copy_back(saved_values: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Write values back into the tensors that had them."""
    with torch.no_grad():
        for tensor, value in saved_values:
            tensor.copy_(value)
