"""Leaves a model and the random generators as they were, whatever a self-test does with them meanwhile."""

from __future__ import annotations

import copy
import functools
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# A parameter that is nowhere larger is as good as closed (zero initialisation, LayerScale).
_CLOSED = 1e-4
_STATES: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], object]]] = {
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
    np.random.Generator: (
        lambda generator: generator.bit_generator.state,
        lambda generator, state: setattr(generator.bit_generator, "state", state),
    ),
    np.random.RandomState: (np.random.RandomState.get_state, np.random.RandomState.set_state),
    random.Random: (random.Random.getstate, random.Random.setstate),
}


def force_eager() -> AbstractContextManager[None]:
    """Run compiled models by their Python for a while, where function modes see all calls."""
    if "torch._dynamo" not in sys.modules:  # then nothing is compiled, and it takes seconds to load
        return nullcontext()
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance


@contextmanager
def preserve_model_state(model: nn.Module) -> Iterator[None]:
    """Have a model in eval mode with all its branches open for a while, and leave it as it was."""
    is_training = [(module, module.training) for module in model.modules()]
    closed_parameters = [parameter for parameter in model.parameters() if _is_closed(parameter)]
    saved_values = [(parameter, parameter.detach().clone()) for parameter in closed_parameters]
    with preserve_attributes(model):
        try:
            for module, _ in is_training:
                # Not by eval(): of some modules it does more, as merging weights.
                module.training = False
            _open(closed_parameters)
            yield
        finally:
            for module, training in is_training:
                module.training = training
            copy_back(saved_values)


@contextmanager
def preserve_attributes(model: nn.Module) -> Iterator[None]:
    """Put back what a forward or a training step changes by itself: attributes, and all that they hold.

    Of parameters these are averages of weights, as of a momentum encoder: without gradients, and with the
    shape of a trained one.
    """
    shapes = {parameter.shape for parameter in model.parameters() if parameter.requires_grad}
    # of what is in TorchScript buffers alone
    python_modules = (module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule))
    pending: list[Any] = [*map(vars, python_modules), *model.buffers()]
    restores: dict[int, Callable[[], object]] = {}
    while pending:
        value = pending.pop()
        is_weight = isinstance(value, nn.Parameter) and (value.requires_grad or value.shape not in shapes)
        if id(value) in restores or is_weight:
            continue
        read, write = generator_state(value)
        if read is not None:
            restores[id(value)] = functools.partial(write, value, read(value))
        elif isinstance(value, Tensor):
            restores[id(value)] = functools.partial(_write, value, value.detach().clone())
        elif type(value) in (list, dict, set, deque):
            restores[id(value)] = functools.partial(_replace, value, copy.copy(value))
            pending += value.values() if isinstance(value, dict) else value
    try:
        yield
    finally:
        for restore in restores.values():
            restore()


def generator_state(value: object) -> tuple[Any, Any]:
    """Return the functions that read and write the state of a random generator; None for another object."""
    return next((state for kind, state in _STATES.items() if isinstance(value, kind)), (None, None))


def _write(tensor: Tensor, value: Tensor) -> None:
    # not to the tensor itself, which could not be differentiated any more
    tensor.data.copy_(value)


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
