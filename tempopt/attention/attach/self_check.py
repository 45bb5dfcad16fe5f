"""Proves on a model itself that its attached temperatures act, and act as they should.

Leaves the model as it was. What is tempered, and how, is not decided here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tempopt.attention.attach.call_mode import OracleMode, binding_of, use_mode
from tempopt.attention.attach.call_state import CallState
from tempopt.attention.attach.discovery import AS_TEMPERED_MODULE, SoftmaxInputs
from tempopt.attention.attach.example_inputs import Forward
from tempopt.attention.attach.outputs import (
    Outputs,
    distance,
    enclosing_modules,
    few_numbers,
    outputs_close,
    record_outputs,
    tensors,
)
from tempopt.attention.attach.preserve_state import force_eager, preserve_model_state, preserve_rng_state
from tempopt.errors import AttachError

# Neighbours differ, so that a layer that has the temperature of another is found. No powers of two, so that
# arithmetic in another order shows.
_TEMPERATURES = (3.0, 1.0 / 3.0, 9.0)
# What another order of arithmetic may make of the way that all layers together move an output.
_MAX_RELATIVE_DIFFERENCE = 1e-3
# Half precision rounds an output itself by so many units, which may be more than the temperature moves it.
_ROUNDINGS, _MAX_ROUNDING_TOLERANCE = 4, 0.3
# How far logits of a gate may be from a straight line over 1/τ, as a share of their change, by rounding or a
# soft cap. A square is 0.67 from it, and what a norm leaves of a change is more.
_MAX_BEND = 0.3


class UnfitError(AttachError):
    """Nothing can be told from this forward."""


def self_test(
    model: nn.Module, state: CallState, names: Sequence[str], forward: Forward, *, thorough: bool = True
) -> list[str]:
    """Test every layer as :meth:`tempopt.attention.attach.attachment.Attachment.self_test` says.

    Args:
        model: The model, with temperatures attached.
        state: What its attention calls read; afterwards as before.
        names: Names of its layers, first layer first.
        forward: Runs the model on a fixed batch and returns tensors in any nesting.
        thorough: Whether to run with gradients too, to look at the first, the middle and the last layer by
            itself, and to refuse layers that the forward does not use.

    Returns:
        Names of the layers that the forward did not use.

    Raises:
        AttachError: if a layer does not pass, or ``forward`` is not fit for the test.
    """
    with preserve_model_state(model), state.by_temperature_alone():
        return _Test(model, state, names, forward).run(thorough=thorough)


def same_outputs(
    forward: Forward, plain: Sequence[Tensor], tempered: Sequence[Tensor], eps: float
) -> bool | None:
    """Return whether a forward gives tempered outputs, but for rounding.

    Args:
        forward: Runs a model that has a temperature in its weights.
        plain: Outputs of the model without it.
        tempered: Outputs of the model with it attached.
        eps: Rounding error of the weights, relative to 1.

    Returns:
        None if the temperature moves the outputs by no more than rounding does, so that nothing can be told.
    """
    effect = distance(tempered, plain)
    rounding = _ROUNDINGS * eps * distance(tempered, [torch.zeros_like(output) for output in tempered])
    tolerance = max(_MAX_RELATIVE_DIFFERENCE * effect, min(rounding, _MAX_ROUNDING_TOLERANCE * effect))
    if effect and distance(tempered, list(tensors(forward()))) <= tolerance:
        return True
    return None if rounding >= _MAX_ROUNDING_TOLERANCE * effect else False


@dataclass(frozen=True, slots=True)
class _Test:
    model: nn.Module
    state: CallState
    names: Sequence[str]
    forward: Forward

    def run(self, *, thorough: bool) -> list[str]:
        self.state.active = set()
        base = self.observe()
        unused = [name for name in self.names if name not in self.state.active]
        if not base.close(self.observe()):
            raise UnfitError(
                "The forward of the self-test gave different outputs for the same model and random state. "
                "Draw the batch once, outside of it, as in self_test(lambda: model(batch))."
            )
        if thorough and unused:
            raise AttachError(_unmoved_message(unused[0], "This forward does not use it."))
        for takes_gradients in (False, True) if thorough else (False,):
            self.check_equal(base, takes_gradients)
        if thorough:
            with force_eager():
                self.check_gates(base)
        count = len(self.names)
        for index in sorted({0, count // 2, count - 1}) if thorough else ():
            self.check_moves(index, base)
        return unused

    def check_equal(self, base: Outputs, takes_gradients: bool) -> None:
        """Compare with the temperatures put in by other means, all layers at once."""
        temperatures = {index: _TEMPERATURES[index % 3] for index in range(len(self.names))}
        if self.first_unequal(temperatures, base, takes_gradients) is None:
            return
        unequal = [
            index
            for index, temperature in temperatures.items()
            if self.first_unequal({index: temperature}, base, takes_gradients) is not None
        ]
        name = self.names[unequal[0] if unequal else 0]
        raise AttachError(
            f'The temperature of layer "{name}" does not act as it should: the output is not that of the '
            f"same model with its logits divided by the temperature. {_WITHOUT}"
        )

    def first_unequal(self, temperatures: Mapping[int, float], base: Outputs, grad: bool) -> int | None:
        """Return the first layer of which something around it is not as by other means, None if all is."""
        tempered = self.observe(temperatures, grad=grad)
        with use_mode(self.state, OracleMode):
            expected = self.observe(temperatures, grad=grad)
        for index, name in enumerate(self.names):
            for enclosing in enclosing_modules(name, tempered.inside):
                others = (expected.inside.get(enclosing, []), base.inside.get(enclosing, []))
                if not _outputs_match(tempered.inside[enclosing], *others):
                    return index
        return None if _outputs_match(tempered.result, expected.result, base.result) else 0

    def check_moves(self, index: int, base: Outputs) -> None:
        """Refuse a layer whose temperature moves nothing, by itself.

        What comes out of the attention and of the modules around it is looked at, not only what the forward
        returns, in which, as in a loss, the effect of one layer of many may average out.
        """
        name = self.names[index]
        hot = self.observe({index: _TEMPERATURES[0]})
        changes = {
            enclosing: distance(hot.inside.get(enclosing, []), base.inside[enclosing])
            for enclosing in enclosing_modules(name, base.inside)
        }
        result_change = distance(hot.result, base.result)
        binding = binding_of(self.model.get_submodule(name))
        if binding is not None and binding.pattern.is_gate and not result_change:
            reason = "The softmax behind it has one entry in this forward, or only its largest is used."
            raise AttachError(_unmoved_message(name, reason))
        if not changes.get(name, result_change):
            reason = "No query of this forward has more than one key to attend to: try a longer batch."
            raise AttachError(_unmoved_message(name, reason))
        outer = [change for enclosing, change in changes.items() if enclosing != name]
        if not any((*outer, result_change)) and (outer or not few_numbers(base.result)):
            raise AttachError(_unmoved_message(name, "Nothing behind it depends on what it attends to."))

    def check_gates(self, base: Outputs) -> None:
        """Refuse a linear map whose output is no logits of a softmax, or more than those."""
        modules = [self.model.get_submodule(name) for name in self.names]
        all_bindings = [binding_of(module) for module in modules]
        plain = self.softmax_inputs(1.0)
        names_by_softmax: dict[int, str] = {}
        for index, (name, module, binding) in enumerate(zip(self.names, modules, all_bindings, strict=True)):
            if binding is None or not binding.pattern.is_gate:
                continue
            doubled, tripled = (self.softmax_inputs(factor, index) for factor in (2.0, 3.0))
            changed = (
                n for n, (x, y) in enumerate(zip(plain, doubled, strict=False)) if not torch.equal(x, y)
            )
            softmax = next(changed, None)
            if softmax is None:
                raise AttachError(_unmoved_message(name, "No input of a softmax changes with its output."))
            one, two, three = (inputs[softmax] for inputs in (plain, doubled, tripled))
            bend = distance([three - one], [2 * (two - one)])
            with SoftmaxInputs(plain):
                beside = self.observe({index: 0.5})
            makes_logits_alone = getattr(module, "out_features", None) == one.shape[-1]
            reason = (
                "The input of the softmax behind it is not proportional to its output."
                if bend > _MAX_BEND * distance([two], [one])
                else f'The temperature of "{names_by_softmax[softmax]}" acts in the same softmax.'
                if softmax in names_by_softmax
                else "Its output is more than the input of a softmax, as where one map makes values too."
                if not (makes_logits_alone or outputs_close(beside.result, base.result))
                else ""
            )
            if reason:
                raise AttachError(f'"{name}" cannot have a temperature. {reason} {_WITHOUT}')
            names_by_softmax[softmax] = name

    def softmax_inputs(self, factor: float, layer: int = 0) -> list[Tensor]:
        """Return the inputs of softmaxes of a forward in which the logits of one layer have a factor."""
        mode = SoftmaxInputs()
        with mode:
            self.observe({layer: 1.0 / factor})
        return mode.inputs

    def observe(self, temperatures: Mapping[int, float] | None = None, *, grad: bool = False) -> Outputs:
        """Return outputs of a forward, and those inside, at temperature 1 or another in some layers."""
        at = temperatures or {}
        self.state.set_values([1.0 / at.get(index, 1.0) for index in range(len(self.names))])
        devices = {parameter.device for parameter in self.model.parameters()}
        with (
            torch.inference_mode(False),
            torch.set_grad_enabled(grad),
            preserve_rng_state(devices),
            preserve_model_state(self.model),
            record_outputs(self.model, self.names) as module_outputs,
        ):
            result = list(tensors(self.forward()))
        if not result:
            raise UnfitError(
                "The forward of the self-test returned no tensor. Return the model's output, as in "
                "self_test(lambda: model(batch))."
            )
        return Outputs(result, module_outputs)


_WITHOUT = f"Leave the layer out (layers=[...] takes patterns), or {AS_TEMPERED_MODULE}."


def _outputs_match(tempered: Sequence[Tensor], expected: Sequence[Tensor], base: Sequence[Tensor]) -> bool:
    """Return whether outputs differ by little beside the effect of the temperature."""
    if outputs_close(tempered, expected):
        return True
    return 0 < distance(tempered, expected) <= _MAX_RELATIVE_DIFFERENCE * distance(tempered, base) < math.inf


def _unmoved_message(layer: str, reason: str) -> str:
    return f'The temperature of layer "{layer}" did not move the output. {reason} {_WITHOUT}'
