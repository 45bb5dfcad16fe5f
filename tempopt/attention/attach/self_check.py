"""Proves on a model itself that its attached temperatures act, and act as baked weights do.

Leaves the model as it was. What is tempered, and how, is not decided here.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from tempopt.attention.attach.hf_interface import Interface
from tempopt.attention.attach.hf_layers import InterfaceLayer
from tempopt.attention.attach.projection import Factors, TemperedProjection, place_of, untempered
from tempopt.attention.attach.proof import UNIFORM, Proof, UnfitError, halved, own_scales, prove, unmoved
from tempopt.attention.attach.query_rows import AS_TEMPERED_MODULE, QueryRows, is_packed, query_rows
from tempopt.errors import AttachError
from tempopt.temperature import EntropyParameters, NoLengthScaling, SoftmaxNormaliser

Forward = Callable[[], Any]

# Part of the way to uniform attention that the probe must move the output. A normalisation behind the
# projection (QK-norm) leaves its epsilon's share, a thousandth and less; attention goes several tenths.
_LEAST_MOVE = 0.02
# A parameter that is nowhere larger is as good as closed (zero initialisation, LayerScale).
_CLOSED = 1e-4

# What another order may make of the way that all layers together move an output. Rows that do not make the
# query are off by most of it.
_OFF_BY_HAND, _MOST = 1e-3, 0.3
# Half precision rounds an output itself by so many units, which may be more than the temperature moves it.
_ROUNDINGS = 4

_WITHOUT_IT = f"Leave the layer out (layers=[...] takes patterns), or {AS_TEMPERED_MODULE}."


class Tempered(Protocol):
    """The tempered layers of a model, whichever way their temperatures are attached."""

    probe: ClassVar[float]
    """A temperature for which :meth:`by_hand` computes in the same order, or one that would show it."""

    by_hand_is: ClassVar[str]
    """What :meth:`by_hand` does, and what may be wrong where it gives another output."""

    @property
    def names(self) -> list[str]:
        """Names of the layers in depth order."""

    @property
    def attentions(self) -> list[str]:
        """Names of the modules that hold the layers, or are them, in depth order."""

    @property
    def values(self) -> tuple[float, ...]:
        """1 / temperature of each layer, as set."""

    def set_values(self, values: Sequence[float]) -> None:
        """Set 1 / temperature of each layer."""

    def devices(self) -> set[torch.device]:
        """Return where the layers are."""

    def by_temperature_alone(self) -> AbstractContextManager[None]:
        """Leave out, for a while, whatever else is attached."""

    def by_hand(self, layer: int, temperature: float) -> AbstractContextManager[None]:
        """Have the model without temperatures attached, but one of a layer put in by other means."""

    def cancelled(self, layer: int) -> AbstractContextManager[None] | None:
        """Have the query doubled and the key halved, if it is to be shown which is which; None if not."""


def self_test(
    model: nn.Module, tempered: Tempered, forward: Forward, *, whole: bool, thorough: bool = True
) -> list[str]:
    """Test every layer as :meth:`tempopt.attention.attach.Attachment.self_test` says.

    Args:
        model: The model, with temperatures attached.
        tempered: Its tempered layers; their temperatures are as before afterwards.
        forward: Runs the model on a fixed batch and returns tensors in any nesting.
        whole: Whether all attention of the model is meant to be tempered.
        thorough: Whether to compare each layer with itself by other means, some seven forwards each, and to
            refuse those that the forward does not use; if not, some ten forwards are all of it.

    Returns:
        Names of the layers that the forward did not use.

    Raises:
        AttachError: if a layer does not pass, or ``forward`` is not fit for the test.
    """
    values = tempered.values
    try:
        with _unchanged(model), tempered.by_temperature_alone():
            return _Test(model, tempered, forward, whole).run(thorough=thorough)
    finally:
        tempered.set_values(values)


@dataclass(frozen=True, slots=True)
class TemperedRows:
    """Query rows under test.

    Args:
        rows: The tempered projections.
        factors: Their 1/temperature.
    """

    # Not a power of two, so that arithmetic in another order would show.
    probe: ClassVar[float] = 3.0
    by_hand_is: ClassVar[str] = (
        "the same model with the temperature multiplied into its query weights. The forward may read a copy "
        "or a cache of the weights"
    )

    rows: Sequence[QueryRows]
    factors: Factors

    @property
    def names(self) -> list[str]:
        """Names of the projections in depth order."""
        return [layer.name for layer in self.rows]

    @property
    def attentions(self) -> list[str]:
        """Names of the modules that hold the projections."""
        return [
            layer.name if is_packed(layer.module) else layer.name.rpartition(".")[0] for layer in self.rows
        ]

    @property
    def values(self) -> tuple[float, ...]:
        """1 / temperature of each layer, as set."""
        return self.factors.values

    def set_values(self, values: Sequence[float]) -> None:
        """Set 1 / temperature of each layer."""
        self.factors.set(values)

    def devices(self) -> set[torch.device]:
        """Return where the projections are."""
        return {place_of(layer)[0] for layer in self.rows}

    def by_temperature_alone(self) -> AbstractContextManager[None]:
        """Do nothing: there is nothing else."""
        return nullcontext()

    @contextmanager
    def by_hand(self, layer: int, temperature: float) -> Iterator[None]:
        """Give the projections their own classes, and one the temperature in its weights."""
        with baked(self.rows[layer], 1.0 / temperature), ExitStack() as stack:
            for each in (each for layer in self.rows for each in layer.every):
                assert isinstance(each.module, TemperedProjection)
                stack.enter_context(untempered(each.module))
            yield

    def cancelled(self, layer: int) -> AbstractContextManager[None] | None:
        """Double the query and halve the key of a fused projection."""
        return _doubled_and_halved(self.rows[layer]) if self.rows[layer].fused else None


@dataclass(frozen=True, slots=True)
class TemperedInterface:
    """An interface under test.

    Args:
        layers: The tempered attention modules.
        interface: Their temperatures.
    """

    # The query times a power of two is, to the last bit, the same as the scale times it.
    probe: ClassVar[float] = 2.0
    by_hand_is: ClassVar[str] = (
        "the same model with its scale divided by the temperature. Its attention may be another under "
        "another name than sdpa or eager"
    )

    layers: Sequence[InterfaceLayer]
    interface: Interface

    @property
    def names(self) -> list[str]:
        """Names of the attention modules in depth order."""
        return [layer.name for layer in self.layers]

    @property
    def attentions(self) -> list[str]:
        """Names of the attention modules themselves."""
        return self.names

    @property
    def values(self) -> tuple[float, ...]:
        """1 / temperature of each layer, as set."""
        return self.interface.values

    def set_values(self, values: Sequence[float]) -> None:
        """Set 1 / temperature of each layer."""
        self.interface.set_values(values)

    def devices(self) -> set[torch.device]:
        """Return where the modules are."""
        return {next(layer.module.parameters()).device for layer in self.layers}

    @contextmanager
    def by_temperature_alone(self) -> Iterator[None]:
        """Leave out length scaling, entropy term and normaliser."""
        interface = self.interface
        kept = interface.length_scaling, interface.normaliser, interface.entropy
        interface.length_scaling, interface.normaliser = NoLengthScaling(), SoftmaxNormaliser.name
        interface.entropy = EntropyParameters()
        try:
            yield
        finally:
            interface.length_scaling, interface.normaliser, interface.entropy = kept

    @contextmanager
    def by_hand(self, layer: int, temperature: float) -> Iterator[None]:
        """Have the model ask for its own functions, and change the scale of one layer."""
        with self.interface.own_implementation(), _scaled(self.layers[layer], 1.0 / temperature):
            yield

    def cancelled(self, layer: int) -> AbstractContextManager[None] | None:
        """Return None: the function is given the query by itself."""
        return None


def same_by_hand(
    model: nn.Module,
    tempered: TemperedInterface,
    forward: Forward,
    by_hand: Callable[[float], AbstractContextManager[None]],
) -> bool | None:
    """Return whether the model without its interface is the same with a temperature put in by other means.

    Args:
        model: The model, with temperatures attached; afterwards as before.
        tempered: Its layers.
        forward: Runs the model on a fixed batch.
        by_hand: Puts 1/temperature into all of these layers for a while.

    Returns:
        None if the temperature moves what ``forward`` returns by no more than rounding does, so that nothing
        can be told.
    """
    test, values = _Test(model, tempered, forward, False), tempered.values
    every = dict.fromkeys(range(len(tempered.names)), tempered.probe)
    try:
        with _unchanged(model), tempered.by_temperature_alone():
            plain, wanted = test.outputs(), test.outputs(every)
            with tempered.interface.own_implementation(), by_hand(1.0 / tempered.probe):
                found = test.outputs()
    finally:
        tempered.set_values(values)
    moved = _distance(wanted, plain)
    types = {each.dtype for each in model.parameters() if each.is_floating_point()}
    size = _distance(wanted, [torch.zeros_like(each) for each in wanted])
    rounded = _ROUNDINGS * max(torch.finfo(each).eps for each in types) * size
    if moved and _distance(wanted, found) <= max(_OFF_BY_HAND * moved, min(rounded, _MOST * moved)):
        return True
    return None if rounded >= _MOST * moved else False


def _scaled(layer: InterfaceLayer, factor: float) -> AbstractContextManager[None]:
    names = own_scales(layer.module)
    if not names:
        # It scales its query itself, or not at all.
        return baked(query_rows(layer.module)[0], factor)
    return halved([(layer.module, names[0])], factor)


@dataclass(frozen=True, slots=True)
class _Test:
    model: nn.Module
    tempered: Tempered
    forward: Forward
    whole: bool

    def run(self, *, thorough: bool) -> list[str]:
        base = self.outputs()
        if not _close(base, self.outputs()):
            raise UnfitError(
                "The forward of the self-test gave different outputs for the same model and random state. "
                "Draw the batch once, outside of it, as in self_test(lambda: model(batch))."
            )
        names = self.tempered.names
        for index, name in enumerate(names if thorough else []):
            self.check_equal(index, name)
            self.check_moves(index, name, base)
        proof = self.prove()
        for index, name in enumerate(names):
            if index in proof.proven or (index in proof.not_run and not thorough):
                continue
            if not thorough:
                self.check_equal(index, name)
                self.check_moves(index, name, base)
            self.check_split(index, name, base)
        return [names[index] for index in sorted(proof.not_run)]

    def prove(self) -> Proof:
        """Look at all logits at once."""
        return prove(self.model, self.tempered, self.outputs, _close, whole=self.whole)

    def check_equal(self, index: int, name: str) -> None:
        """Compare with the model's own attention and the temperature put in by other means."""
        probe = self.tempered.probe
        for grad in (False, True):
            tempered = self.outputs({index: probe}, grad=grad)
            with self.tempered.by_hand(index, probe):
                by_hand = self.outputs(grad=grad)
            if not _close(tempered, by_hand):
                raise AttachError(
                    f'The temperature of layer "{name}" does not act as it should: the output is not that of '
                    f"{self.tempered.by_hand_is}. {_WITHOUT_IT}"
                )

    def check_moves(self, index: int, name: str, base: Sequence[Tensor]) -> None:
        """Compare the way that the output goes with the whole way to uniform attention."""
        # Both ways, since a loss may by chance be the same at one other temperature.
        probe = self.tempered.probe
        moved = max(_distance(self.outputs({index: each}), base) for each in (probe, 1 / probe))
        whole = _distance(self.outputs({index: UNIFORM}), base)
        # A power of two leaves a normalised query the same to the last bit, where the probe rounds it.
        if whole == 0 or moved < _LEAST_MOVE * whole:
            raise AttachError(unmoved(name))

    def check_split(self, index: int, name: str, base: Sequence[Tensor]) -> None:
        """Double the query and halve the key: their product is then the same to the last bit."""
        cancelled = self.tempered.cancelled(index)
        if cancelled is None:
            return
        with cancelled:
            outputs = self.outputs()
        if not _close(outputs, base):
            raise AttachError(
                f'Query, key and value of layer "{name}" are not the three equal blocks, in this '
                "order, that they were taken for: a doubled query and a halved key do not cancel. Split the "
                f"projection into three and attach again, or {AS_TEMPERED_MODULE}."
            )

    def outputs(self, temperatures: Mapping[int, float] | None = None, *, grad: bool = False) -> list[Tensor]:
        """Return the tensors of a forward at temperature 1, or another in some layers."""
        given = temperatures or {}
        self.tempered.set_values([1.0 / given.get(index, 1.0) for index in range(len(self.tempered.names))])
        devices = self.tempered.devices()
        with torch.inference_mode(False), torch.set_grad_enabled(grad), _same_randomness(devices):
            outputs = list(_tensors(self.forward()))
        if not outputs:
            raise UnfitError(
                "The forward of the self-test returned no tensor. Return the model's output, as in "
                "self_test(lambda: model(batch))."
            )
        return outputs


@contextmanager
def baked(layer: QueryRows, factor: float, *, part: int = 0) -> Iterator[None]:
    """Have the rows of one part multiplied by a factor for a while (``QueryRows.scale_``)."""
    every = [parameter for each in layer.every for _, parameter in each.parameters()]
    kept = [(parameter, parameter.detach().clone()) for parameter in every]
    layer.scale_(factor, part=part)
    try:
        yield
    finally:
        _copy_back(kept)


@contextmanager
def _doubled_and_halved(layer: QueryRows) -> Iterator[None]:
    with baked(layer, 2.0), baked(layer, 0.5, part=1):
        yield


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
