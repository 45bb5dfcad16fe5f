"""Proves on a model itself that its attached temperatures act, and act as baked weights do.

Leaves the model as it was. What is tempered, and how, is not decided here.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from tempopt.attention.attach.hf_interface import Interface
from tempopt.attention.attach.learning import HeadTemperatures
from tempopt.attention.attach.observers import Observe
from tempopt.attention.attach.outputs import (
    Outputs,
    distance,
    enclosing_modules,
    few_numbers,
    outputs_close,
    tensors,
    watched,
)
from tempopt.attention.attach.preserve_state import preserve_model_state, preserve_rng_state
from tempopt.attention.attach.proof import (
    DISCARDED,
    NOT_RUN,
    UNIFORM,
    Prover,
    UnfitError,
    unmoved,
    why_unmoved,
)
from tempopt.attention.attach.query_rows import AS_TEMPERED_MODULE
from tempopt.errors import AttachError
from tempopt.temperature import EntropyParameters, TemperaturePlan

Forward = Callable[[], Any]

# Part of the way to uniform attention that the probe must move the output. A normalisation behind the
# projection (QK-norm) leaves its epsilon's share, a thousandth and less; attention goes several tenths.
_LEAST_MOVE = 0.02

# What another order may make of the way that all layers together move an output. Rows that do not make the
# query are off by most of it.
_OFF_BY_HAND, _MAX_ROUNDING_TOLERANCE = 1e-3, 0.3
# Half precision rounds an output itself by so many units, which may be more than the temperature moves it.
_ROUNDINGS = 4

# Images beyond this are left to a person: a test is worth ten forwards, not minutes.
_LARGEST_IMAGE = 384

_WITHOUT_IT = f"Leave the layer out (layers=[...] takes patterns), or {AS_TEMPERED_MODULE}."


class Mechanism(Protocol):
    """One of the ways in which temperatures lie on a model."""

    method: ClassVar[str]

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
    def attached(self) -> bool:
        """Whether the model still has the temperatures."""

    @property
    def values(self) -> tuple[float, ...]:
        """1 / temperature of each layer, as set."""

    def set_values(self, values: Sequence[float], entropy_weight: float | None = None) -> None:
        """Set 1 / temperature of each layer, and the weight of the entropy term; None leaves that."""

    def set_final(self, temperatures: Sequence[float]) -> None:
        """Take the temperatures at the end of the plan, which a model is evaluated with."""

    def require_in_place(self) -> None:
        """Raise AttachError if the model was given another attention meanwhile."""

    def use(self, plan: TemperaturePlan, entropy: EntropyParameters) -> None:
        """Take what the plan says beside the temperatures."""

    def set_loss_scale(self, loss_scale: float) -> None:
        """Take the factor on the loss."""

    def learn(self) -> None:
        """Have backward passes leave the gradient of the temperatures."""

    def learn_heads(self, base: Sequence[float]) -> HeadTemperatures:
        """Give each head a temperature of its own, from those of the layers and the head pattern."""

    def log_gradients(self) -> list[float] | None:
        """Return the gradient with respect to ln τ of each layer, and forget it."""

    def observed(self, observe: Observe) -> AbstractContextManager[None]:
        """Show queries and keys for a while."""

    def devices(self) -> set[torch.device]:
        """Return where the layers are."""

    def by_temperature_alone(self) -> AbstractContextManager[None]:
        """Leave out, for a while, whatever else is attached."""

    def by_hand(self, temperatures: Mapping[int, float]) -> AbstractContextManager[None]:
        """Have the model without temperatures attached, but those of some layers put in by other means."""

    def cancelled(self, layer: int) -> AbstractContextManager[None] | None:
        """Have the query doubled and the key halved, if it is to be shown which is which; None if not."""


def self_test(
    model: nn.Module,
    tempered: Mechanism,
    forward: Forward,
    *,
    is_whole_model: bool,
    thorough: bool = True,
) -> list[str]:
    """Test every layer as :meth:`tempopt.attention.attach.Attachment.self_test` says.

    Args:
        model: The model, with temperatures attached.
        tempered: Its tempered layers; their temperatures are as before afterwards.
        forward: Runs the model on a fixed batch and returns tensors in any nesting.
        is_whole_model: Whether all attention of the model is meant to be tempered.
        thorough: Whether to compare all layers with themselves by other means, to look at the first, the
            middle and the last one each by itself, and to refuse those that the forward does not use: some
            twenty forwards. If not, some ten forwards are all of it.

    Returns:
        Names of the layers that the forward did not use.

    Raises:
        AttachError: if a layer does not pass, or ``forward`` is not fit for the test.
    """
    values = tempered.values
    try:
        with preserve_model_state(model), tempered.by_temperature_alone():
            return _Test(model, tempered, forward, is_whole_model).run(thorough=thorough)
    finally:
        tempered.set_values(values)


def same_by_hand(
    model: nn.Module,
    tempered: Interface,
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
    temperatures = dict.fromkeys(range(len(tempered.names)), tempered.probe)
    try:
        with preserve_model_state(model), tempered.by_temperature_alone():
            plain_outputs, tempered_outputs = test.outputs(), test.outputs(temperatures)
            with tempered.own_implementation(), by_hand(1.0 / tempered.probe):
                by_hand_outputs = test.outputs()
    finally:
        tempered.set_values(values)
    effect = distance(tempered_outputs, plain_outputs)
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    size = distance(tempered_outputs, [torch.zeros_like(output) for output in tempered_outputs])
    rounding = _ROUNDINGS * max(torch.finfo(dtype).eps for dtype in dtypes) * size
    if effect and distance(tempered_outputs, by_hand_outputs) <= max(
        _OFF_BY_HAND * effect, min(rounding, _MAX_ROUNDING_TOLERANCE * effect)
    ):
        return True
    return None if rounding >= _MAX_ROUNDING_TOLERANCE * effect else False


@dataclass(frozen=True, slots=True)
class _Test:
    model: nn.Module
    tempered: Mechanism
    forward: Forward
    is_whole_model: bool

    def run(self, *, thorough: bool) -> list[str]:
        base = self.observe()
        if not base.close(self.observe()):
            raise UnfitError(
                "The forward of the self-test gave different outputs for the same model and random state. "
                "Draw the batch once, outside of it, as in self_test(lambda: model(batch))."
            )
        names = self.tempered.names
        single_layers = {0, len(names) // 2, len(names) - 1} if thorough else set()
        if thorough:
            self.check_equal(base)
        for index in sorted(single_layers):
            self.check_moves(index, base)
        proof = Prover(self.model, self.tempered, self.outputs, outputs_close, self.is_whole_model).prove()
        if thorough and proof.not_run:
            raise AttachError(unmoved(names[min(proof.not_run)], NOT_RUN))
        unproven_layers = [
            layer for layer in range(len(names)) if layer not in proof.proven and layer not in proof.not_run
        ]
        if unproven_layers and not thorough:
            self.check_equal(base)
        for index in unproven_layers:
            if index not in single_layers:
                self.check_moves(index, base)
            self.check_split(index, names[index], base.result)
        return [names[index] for index in sorted(proof.not_run)]

    def check_equal(self, base: Outputs) -> None:
        """Compare with the model's own attention and the temperatures put in by other means, all at once."""
        probe, names = self.tempered.probe, self.tempered.names
        # Neighbours differ, so that a layer that has the temperature of another is found.
        temperatures = {index: (probe, 1 / probe, probe**2)[index % 3] for index in range(len(names))}
        for grad in (False, True):
            if (layer := self.first_unequal(temperatures, base, grad=grad)) is None:
                continue
            single_layers = (
                index
                for index in temperatures
                if self.first_unequal({index: probe}, base, grad=grad) is not None
            )
            raise AttachError(
                f'The temperature of layer "{names[next(single_layers, layer)]}" does not act as it should: '
                f"the output is not that of {self.tempered.by_hand_is}. {_WITHOUT_IT}"
            )

    def first_unequal(self, temperatures: Mapping[int, float], base: Outputs, *, grad: bool) -> int | None:
        """Return the first layer of which something around it is not as by hand, None if all is."""
        # Without gradients PyTorch takes its fast paths only where no module is watched.
        tempered = self.observe(temperatures, grad=grad, watch=grad)
        with self.tempered.by_hand(temperatures):
            by_hand = self.observe(grad=grad, watch=grad)
        if not _as_by_hand(tempered.result, by_hand.result, base.result):
            fallback_index = 0
        elif tempered.inside.keys() != by_hand.inside.keys():
            return 0
        else:
            fallback_index = None
        for index, attention in enumerate(self.tempered.attentions):
            for name in enclosing_modules(attention, tempered.inside):
                if not _as_by_hand(tempered.inside[name], by_hand.inside[name], base.inside.get(name, [])):
                    return index
        return fallback_index

    def check_moves(self, index: int, base: Outputs) -> None:
        """Compare the way that a layer's output goes with its whole way to uniform attention.

        What comes out of the attention and of the module around it is looked at, not what the forward
        returns, in which, as in a loss, the effect of one layer of many may average out.
        """
        probe, name = self.tempered.probe, self.tempered.names[index]
        hot, last = self.observe({index: probe}), self.observe({index: UNIFORM})
        module_names = enclosing_modules(self.tempered.attentions[index], base.inside)
        full_changes = {
            module_name: distance(last.inside.get(module_name, []), base.inside[module_name])
            for module_name in module_names
        }
        shares = [
            distance(hot.inside.get(module_name, []), base.inside[module_name]) / full_change
            for module_name, full_change in full_changes.items()
            if full_change
        ]
        outer_changes = [*list(full_changes.values())[1:], distance(last.result, base.result)]
        if not shares:
            # No module tells. Both ways, since a loss may by chance be the same at one other temperature.
            result_change = outer_changes[-1]
            other_results = (hot.result, self.outputs({index: 1 / probe}))
            shares = (
                [max(distance(result, base.result) for result in other_results) / result_change]
                if result_change
                else [0.0]
            )
        elif not any(outer_changes) and (len(full_changes) > 1 or not few_numbers(base.result)):
            raise AttachError(unmoved(name, DISCARDED))
        # A module that returns queries shows no more than that they are scaled; what is around it does.
        if min(shares[:2]) < _LEAST_MOVE:
            raise AttachError(unmoved(name, why_unmoved(self.model, self.tempered, self.outputs, index)))

    def check_split(self, index: int, name: str, base: Sequence[Tensor]) -> None:
        """Double the query and halve the key: their product is then the same to the last bit."""
        cancelled = self.tempered.cancelled(index)
        if cancelled is None:
            return
        with cancelled:
            outputs = self.outputs()
        if not outputs_close(outputs, base):
            raise AttachError(
                f'Query, key and value of layer "{name}" are not the three equal blocks, in this '
                "order, that they were taken for: a doubled query and a halved key do not cancel. Split the "
                f"projection into three and attach again, or {AS_TEMPERED_MODULE}."
            )

    def outputs(self, temperatures: Mapping[int, float] | None = None, *, grad: bool = False) -> list[Tensor]:
        """Return the tensors of a forward at temperature 1, or another in some layers."""
        return self.observe(temperatures, grad=grad, watch=False).result

    def observe(
        self, temperatures: Mapping[int, float] | None = None, *, grad: bool = False, watch: bool = True
    ) -> Outputs:
        """Return the same, and, if watched, what comes out of the modules around the layers."""
        temperature_of_layer = temperatures or {}
        self.tempered.set_values(
            [1.0 / temperature_of_layer.get(index, 1.0) for index in range(len(self.tempered.names))]
        )
        devices = self.tempered.devices()
        with (
            torch.inference_mode(False),
            torch.set_grad_enabled(grad),
            preserve_rng_state(devices),
            watched(self.model, self.tempered.attentions if watch else []) as module_outputs,
        ):
            result = list(tensors(self.forward()))
        if not result:
            raise UnfitError(
                "The forward of the self-test returned no tensor. Return the model's output, as in "
                "self_test(lambda: model(batch))."
            )
        return Outputs(result, module_outputs)


def _as_by_hand(tempered: Sequence[Tensor], by_hand: Sequence[Tensor], base: Sequence[Tensor]) -> bool:
    """Whether two outputs are the same but for what is little beside that which the temperature does."""
    if outputs_close(tempered, by_hand):
        return True
    return 0 < distance(tempered, by_hand) <= _OFF_BY_HAND * distance(tempered, base) < math.inf


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
    inputs = _moved(inputs, device, dtype)

    def forward() -> Any:
        with warnings.catch_warnings():
            # Warnings about example inputs help no user.
            warnings.simplefilter("ignore")
            if isinstance(inputs, Mapping):
                return model(**inputs)
            return model(*inputs) if isinstance(inputs, tuple) else model(inputs)

    return forward


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


def _moved(inputs: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if isinstance(inputs, Tensor):
        return inputs.to(device, dtype if inputs.is_floating_point() else None)
    if isinstance(inputs, Mapping):
        return {name: _moved(value, device, dtype) for name, value in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        return tuple(_moved(value, device, dtype) for value in inputs)
    return inputs
