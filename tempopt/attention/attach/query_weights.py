"""Finds the parameters that make the queries of an attached model, by a forward and its graph of gradients.

A query is proportional to some parameters, those that it was last multiplied with: rows of a projection with
their bias, or the weight of a norm. By Euler's theorem its derivative along them is the query itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from tempopt.attention.attach.call_mode import CallMode, operands_of, use_mode
from tempopt.attention.attach.call_state import CallState
from tempopt.attention.attach.example_inputs import Forward
from tempopt.attention.attach.preserve_state import preserve_model_state, preserve_rng_state
from tempopt.errors import AttachError

# What rounding, and a constant that keeps a norm from dividing by zero, may make of the derivative.
_TOLERANCE = 1e-2
# Nodes of the graph that leave a tensor as it is but for its shape and type.
_VIEWS = frozenset(
    "T Transpose Permute View UnsafeView ReshapeAlias ToCopy Expand Unsqueeze Squeeze Split Slice Select "
    "Unbind Clone Alias".split()
)
_SUMS = frozenset({"Add", "Sub"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What a temperature makes of one parameter.

    Args:
        layer: Name of the attention layer in the model.
        module: Module that owns the parameter.
        parameter: Its name there.
        query: True where the parameter makes the query, broadcasting to it.
        inverse: 1/temperature.
        plus: What the module adds to the parameter before it multiplies with it: 1 in some norms, else 0.
    """

    layer: str
    module: nn.Module
    parameter: str
    query: Tensor
    inverse: float = 1.0
    plus: float = 0.0

    @property
    def temperature(self) -> float:
        """The temperature, without the last digits that its inverse has lost."""
        return float(f"{1.0 / self.inverse:.12g}")

    @property
    def value(self) -> Tensor:
        """The parameter, whether a temperature is attached or not."""
        parameter = self.module._parameters[self.parameter]
        assert parameter is not None
        return parameter

    def of(self, value: Tensor) -> Tensor:
        """Return the scaled value of the parameter, rounded as an attached temperature rounds it."""
        wide_dtype = torch.float64 if value.dtype == torch.float64 else torch.float32
        factor = torch.ones(self.query.shape, dtype=wide_dtype).masked_fill_(self.query, self.inverse)
        factor = factor.to(value.device)
        scaled_value = (value + self.plus) * factor - self.plus if self.plus else value * factor
        return scaled_value.to(value.dtype)

    def at(self, inverse: float) -> Scaling:
        """Return the same for another temperature."""
        return replace(self, inverse=inverse)


class _RecordingMode(CallMode):
    """Records what the logits of each call are a product of."""

    def attend(self, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self._record(query, key)
        return super().attend(query, key, *args, **kwargs)

    def attend_with_weights(self, q: Tensor, k: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self._record(q, k)
        return super().attend_with_weights(q, k, *args, **kwargs)

    def product(self, func: Any, args: Any, kwargs: Any, head_dim: int | None) -> Any:
        self._record(*operands_of(func, args, kwargs)[:2])
        return super().product(func, args, kwargs, head_dim)

    def _record(self, query: Tensor, key: Tensor) -> None:
        if not torch.is_grad_enabled():
            raise AttachError(
                "What makes the query is found by gradients, and this forward runs without them: give an "
                "example without torch.no_grad() and torch.inference_mode()."
            )
        self._state.operands.append((self._binding.layer, query, key))


def find_scalings(
    model: nn.Module, state: CallState, names: Mapping[int, str], forward: Forward
) -> dict[int, list[Scaling]]:
    """Return what makes the queries of each layer, by its number, at temperature 1.

    Args:
        model: An attached model; not changed.
        state: What its calls read.
        names: Name of each layer by its number.
        forward: Runs it.

    Raises:
        AttachError: if the queries of a layer are not proportional to parameters, or to some that are shared.
    """
    owners = _owners(model)
    scalings: dict[int, dict[int, Scaling]] = {}
    devices = {parameter.device for parameter in model.parameters()}
    with preserve_model_state(model), preserve_rng_state(devices), _gradients_of_all(model):
        state.operands.clear()
        with use_mode(state, _RecordingMode):
            outputs = forward()
        # of two factors one is tempered, and a parameter is so in all products or in none
        tempered: set[int] = set()
        untempered: set[int] = set()
        for layer, *factors in state.operands:
            sources = [_nearest_parameters(factor) for factor in factors]
            first_ids = sources[0].keys()
            is_second = not tempered & first_ids and bool(untempered & first_ids)
            tempered |= sources[is_second].keys()
            untempered |= sources[not is_second].keys()
            layer_scalings = scalings.setdefault(layer, {})
            if not any(sources):  # a mask that a product makes
                continue
            name, query = names[layer], factors[is_second]
            for scaling in _proportional_parts(name, query, sources[is_second], owners):
                key = id(scaling.value)
                if key in layer_scalings:
                    scaling = replace(scaling, query=scaling.query | layer_scalings[key].query)
                layer_scalings[key] = scaling
        state.operands.clear()
        del outputs
    return {layer: list(layer_scalings.values()) for layer, layer_scalings in scalings.items()}


@contextmanager
def _gradients_of_all(model: nn.Module) -> Iterator[None]:
    """Have all parameters in the graph of gradients for a while."""
    frozen = [x for x in model.parameters() if not x.requires_grad and x.is_floating_point()]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def _nearest_parameters(x: Tensor) -> dict[int, tuple[Tensor, float]]:
    """Return the parameters that a tensor was last multiplied with, and those added since, by their id.

    With each comes what is added to it before.
    """
    parameters: dict[int, tuple[Tensor, float]] = {}
    pending, visited = [x.grad_fn], set()
    while pending:
        node: Any = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        inputs = [source for source, _ in node.next_functions if source is not None]
        leaves = [leaf for leaf in map(_leaf, inputs) if leaf is not None]
        if (node_leaf := _leaf(node)) is not None:
            leaves = [node_leaf]
        parameters |= {id(leaf[0]): leaf for leaf in leaves}
        if not leaves or (node_leaf is None and _kind(node) in _SUMS):
            pending += [source for source in inputs if _leaf(source) is None]
    return parameters


def _leaf(node: Any) -> tuple[Tensor, float] | None:
    """Return the parameter of which alone a node is made, and what is added to it."""
    plus = 0.0
    while not hasattr(node, "variable"):
        inputs = [source for source, _ in node.next_functions if source is not None]
        if len(inputs) != 1 or _kind(node) not in _VIEWS | _SUMS:
            return None
        plus = 1.0 if _kind(node) in _SUMS else plus
        node = inputs[0]
    return node.variable, plus


def _kind(node: Any) -> str:
    kind: str = node.name().partition("Backward")[0]
    return kind


def _proportional_parts(
    layer: str, query: Tensor, sources: Mapping[int, tuple[Tensor, float]], owners: Mapping[int, _Owners]
) -> Iterator[Scaling]:
    """Yield the parameters to which queries are proportional, in all of the rows that reach them."""
    parameters = [parameter for parameter, _ in sources.values()]
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(query.shape, generator=generator).to(query)
    gradients = torch.autograd.grad(query, parameters, direction, retain_graph=True) if parameters else ()
    # by each parameter, the derivative along it
    slopes = [
        float((gradient.double() * (parameter.detach().double() + plus)).sum())
        for gradient, (parameter, plus) in zip(gradients, sources.values(), strict=True)
    ]
    size = float((query.detach().double() * direction.double()).sum())
    # of a product of two parameters either may be scaled
    subsets = [range(len(slopes)), *combinations(range(len(slopes)), len(slopes) - 1)] if slopes else []
    fitting = [
        subset for subset in subsets if abs(sum(slopes[i] for i in subset) - size) <= _TOLERANCE * abs(size)
    ]
    if not fitting:
        raise AttachError(
            "Its query is not proportional to parameters, as behind a norm without a weight (QK-norm) or "
            "where weights are computed (parametrizations)."
        )
    for index in fitting[0]:
        gradient, (parameter, plus) = gradients[index], list(sources.values())[index]
        owner = owners.get(id(parameter), [])
        if len(owner) != 1:
            names = ", ".join(f"{name}.{key}".lstrip(".") for name, _, key in owner)
            raise AttachError(
                f'"{names}" is no parameter of the model.'
                if not owner
                else f"Its query is made by a parameter that is shared by {names}. Give each its own."
            )
        _, module, key = owner[0]
        rows = _used_rows(module, gradient)
        yield Scaling(layer=layer, module=module, parameter=key, query=rows, plus=plus)


def _used_rows(module: nn.Module, gradient: Tensor) -> Tensor:
    """Return where a parameter makes the query, as rows, of which some entries may have no gradient."""
    dims = range(gradient.ndim)
    if gradient.ndim > 1 and isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        dims = range(1)
    # read by name, so that transformers need not be installed: its weight is (input, output)
    elif gradient.ndim == 2 and any(kind.__name__ == "Conv1D" for kind in type(module).__mro__):
        dims = range(1, 2)
    query = torch.ones([1] * gradient.ndim, dtype=torch.bool, device=gradient.device)
    for dim in dims:
        other_dims = [index for index in range(gradient.ndim) if index != dim]
        query = query & ((gradient != 0).any(dim=other_dims, keepdim=True) if other_dims else gradient != 0)
    return query.cpu()


_Owners = list[tuple[str, nn.Module, str]]


def _owners(model: nn.Module) -> dict[int, _Owners]:
    """Return for each parameter the modules that hold it, with the names of both, by its id."""
    owners: dict[int, _Owners] = {}
    for name, module in model.named_modules():
        for key, value in module._parameters.items():
            if value is not None:
                owners.setdefault(id(value), []).append((name, module, key))
    return owners
