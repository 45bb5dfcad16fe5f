"""Proves on a model itself that its attached temperatures act, and act as baked weights do.

Leaves the model as it was. What is tempered, and how, is not decided here.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tempopt.attention.projection import Factors, TemperedProjection, place_of, untempered
from tempopt.attention.query_rows import AS_TEMPERED_MODULE, QueryRows
from tempopt.errors import AttachError

Forward = Callable[[], Any]

# Not a power of two, so that arithmetic in another order would show.
_PROBE = 3.0
# As good as infinite, so that attention is uniform; at infinity itself a normalisation would divide by zero.
_UNIFORM = 2.0**20
# Part of the way to uniform attention that the probe must move the output. A normalisation behind the
# projection (QK-norm) leaves its epsilon's share, a thousandth and less; attention goes several tenths.
_LEAST_MOVE = 0.02
# A parameter that is nowhere larger is as good as closed (zero initialisation, LayerScale).
_CLOSED = 1e-4

_WITHOUT_IT = f"Leave the layer out (layers=[...] takes patterns), or {AS_TEMPERED_MODULE}."


def self_test(model: nn.Module, rows: Sequence[QueryRows], factors: Factors, forward: Forward) -> None:
    """Test every layer as :meth:`tempopt.attention.attach.Attachment.self_test` says.

    Args:
        model: The model, with temperatures attached.
        rows: Its tempered projections.
        factors: Their 1/temperature; as before afterwards.
        forward: Runs the model on a fixed batch and returns tensors in any nesting.

    Raises:
        AttachError: if a layer does not pass, or ``forward`` is not fit for the test.
    """
    values = factors.values
    try:
        with _unchanged(model):
            _Test(rows, factors, forward).run()
    finally:
        factors.set(values)


@dataclass(frozen=True, slots=True)
class _Test:
    rows: Sequence[QueryRows]
    factors: Factors
    forward: Forward

    def run(self) -> None:
        base = self.outputs()
        if not _close(base, self.outputs()):
            raise AttachError(
                "The forward of the self-test gave different outputs for the same model and random state. "
                "Draw the batch once, outside of it, as in self_test(lambda: model(batch))."
            )
        for index, layer in enumerate(self.rows):
            self.check_equal(index, layer)
            self.check_moves(index, layer, base)
            if layer.fused:
                self.check_split(layer, base)

    def check_equal(self, index: int, layer: QueryRows) -> None:
        """Compare with the model's own classes and the temperature in the weights."""
        for grad in (False, True):
            tempered = self.outputs({index: _PROBE}, grad=grad)
            with _baked(layer, 1.0 / _PROBE), self.own_classes():
                baked = self.outputs(grad=grad)
            if not _close(tempered, baked):
                raise AttachError(
                    f'The temperature of layer "{layer.name}" does not act as it should: the output is not '
                    "that of the same model with the temperature multiplied into its query weights. The "
                    f"forward may read a copy or a cache of the weights. {_WITHOUT_IT}"
                )

    def check_moves(self, index: int, layer: QueryRows, base: Sequence[Tensor]) -> None:
        """Compare the way that the output goes with the whole way to uniform attention."""
        # Both ways, since a loss may by chance be the same at one other temperature.
        moved = max(_distance(self.outputs({index: probe}), base) for probe in (_PROBE, 1 / _PROBE))
        whole = _distance(self.outputs({index: _UNIFORM}), base)
        # A power of two leaves a normalised query the same to the last bit, where the probe rounds it.
        if whole == 0 or moved < _LEAST_MOVE * whole:
            raise AttachError(
                f'The temperature of layer "{layer.name}" did not move the output. Its query may be '
                "normalised after the projection, which undoes any scale (QK-norm); it may have but one key "
                "to attend to, so try a longer batch; or this forward does not use it. " + _WITHOUT_IT
            )

    def check_split(self, layer: QueryRows, base: Sequence[Tensor]) -> None:
        """Double the query and halve the key: their product is then the same to the last bit."""
        with _baked(layer, 2.0), _baked(layer, 0.5, part=1):
            outputs = self.outputs()
        if not _close(outputs, base):
            raise AttachError(
                f'Query, key and value of layer "{layer.name}" are not the three equal blocks, in this '
                "order, that they were taken for: a doubled query and a halved key do not cancel. Split the "
                f"projection into three and attach again, or {AS_TEMPERED_MODULE}."
            )

    def outputs(self, temperatures: Mapping[int, float] | None = None, *, grad: bool = False) -> list[Tensor]:
        """Return the tensors of a forward at temperature 1, or another in some layers."""
        given = temperatures or {}
        self.factors.set([1.0 / given.get(index, 1.0) for index in range(len(self.rows))])
        devices = {place_of(layer)[0] for layer in self.rows}
        with torch.inference_mode(False), torch.set_grad_enabled(grad), _same_randomness(devices):
            outputs = list(_tensors(self.forward()))
        if not outputs:
            raise AttachError(
                "The forward of the self-test returned no tensor. Return the model's output, as in "
                "self_test(lambda: model(batch))."
            )
        return outputs

    @contextmanager
    def own_classes(self) -> Iterator[None]:
        with ExitStack() as stack:
            for layer in self.rows:
                assert isinstance(layer.module, TemperedProjection)
                stack.enter_context(untempered(layer.module))
            yield


@contextmanager
def _baked(layer: QueryRows, factor: float, *, part: int = 0) -> Iterator[None]:
    kept = [(parameter, parameter.detach().clone()) for _, parameter in layer.parameters()]
    layer.scale_(factor, part=part)
    try:
        yield
    finally:
        _copy_back(kept)


def _copy_back(kept: Sequence[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for tensor, value in kept:
            tensor.copy_(value)


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode with all its branches open, and leave it as it was."""
    states = [(module, dict(vars(module)), dict(module._buffers)) for module in model.modules()]
    closed = [parameter for parameter in model.parameters() if _is_closed(parameter)]
    # Metrics keep their states in plain attributes.
    loose = [
        value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)
    ]
    tensors = [*closed, *model.buffers(), *loose]
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        for module, _, _ in states:
            # Not by eval(): of some modules it does more, as merging weights.
            module.training = False
        _open(closed)
        yield
    finally:
        for module, attributes, buffers in states:
            _replace(vars(module), attributes)
            _replace(module._buffers, buffers)
        _copy_back(kept)


def _replace(current: dict[str, Any], before: Mapping[str, Any]) -> None:
    current.clear()
    current.update(before)


def _is_closed(parameter: Tensor) -> bool:
    if not parameter.is_floating_point() or parameter.numel() == 0:
        return False
    return bool(parameter.detach().abs().max() < _CLOSED)


def _open(parameters: Sequence[Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))


@contextmanager
def _same_randomness(devices: set[torch.device]) -> Iterator[None]:
    """Give back all random states afterwards, so that the next forward draws the same."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device.index for device in devices if device.type == "cuda"]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors in a nesting, without their graphs, on the CPU."""
    if isinstance(output, Tensor):
        yield output.detach().cpu()
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from _tensors(value)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for each in dataclasses.fields(output):
            yield from _tensors(getattr(output, each.name))


def _close(outputs: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether outputs are equal but for the order of sums, which some kernels do not keep."""
    shapes = [tensor.shape for tensor in outputs]
    return shapes == [tensor.shape for tensor in others] and all(map(_all_close, outputs, others))


def _all_close(output: Tensor, other: Tensor) -> bool:
    tolerance = 16 * torch.finfo(output.dtype).eps if output.is_floating_point() else 0.0
    output, other = output.double(), other.double()
    finite = output[output.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(output, other, rtol=tolerance, atol=tolerance * largest, equal_nan=True)


def _distance(outputs: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """Return the Euclidean distance over all elements that are finite in both."""
    differences = [(a.double() - b.double()).flatten() for a, b in zip(outputs, others, strict=True)]
    every = torch.cat(differences)
    return float(every[every.isfinite()].norm())
