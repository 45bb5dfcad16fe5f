"""Finds what a temperature makes of the weights of an attached model, and writes it into them.

How such weights are marked is decided in ``tempopt.attention.attach.baked_marker``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from tempopt.attention.attach.attachment import Example, detach
from tempopt.attention.attach.baked_marker import config_of, mark, mark_configurations
from tempopt.attention.attach.call_mode import bindings
from tempopt.attention.attach.call_state import CallState
from tempopt.attention.attach.example_inputs import Forward, infer_example_inputs, infer_partial_inputs
from tempopt.attention.attach.outputs import tensors
from tempopt.attention.attach.preserve_state import copy_back, preserve_model_state, preserve_rng_state
from tempopt.attention.attach.query_rows import (
    FUSED_NAMES,
    INTERLEAVED_NAMES,
    QueryRows,
    check_own,
    is_packed,
    leaf,
    output_axes,
    query_norm,
    query_rows,
)
from tempopt.attention.attach.self_check import same_outputs
from tempopt.errors import AttachError

TemperatureChoice = Literal["final", "current"] | Sequence[float]

AT_LOAD = (
    "Keep the temperature beside the weights: save checkpoints with tempopt.AttachCallback and load them "
    "with tempopt.load_checkpoint(model, path), or attach it to the model once its weights are loaded."
)
# A temperature by which the outputs are compared.
_PROBE = 3.0
# A norm that scales its output rounds in another order, and no more.
_OFF = 1e-2


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
        return dataclasses.replace(self, inverse=inverse)


@dataclass(frozen=True, slots=True)
class _Layer:
    """An attached module."""

    name: str
    module: nn.Module


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choices:
    """The weights that may make the query of one layer, likeliest first, and whether that is certain."""

    of: list[list[Scaling]]
    certain: bool

    def at(self, number: int, inverse: float) -> list[Scaling]:
        """Return one of them, or the last if there are not as many."""
        return [scaling.at(inverse) for scaling in self.of[min(number, len(self.of) - 1)]]


def bake(
    model: nn.Module, *, at: Literal["final", "current"] = "final", example: Example = "auto"
) -> dict[str, float]:
    """Write the attached temperatures into the weights of a model, and take the attachment off.

    What makes the query is multiplied by 1/temperature: the rows of its projection, or weight and bias of the
    norm behind it (QK-norm). The outputs are what they were up to rounding. State dicts, checkpoints and
    ``save_pretrained`` folders of the model then load in a process without tempopt.

    The weights are marked, in state dicts as metadata and in configurations of transformers as
    ``tempopt_baked``, so that :func:`tempopt.attach` refuses them. To save the module as a whole
    (``torch.save(model)``) keeps a reference to tempopt: save its state dict.

    Args:
        model: A model with a temperature attached, or a module around it.
        at: ``final`` for the temperatures at the end of the plan, which a trained model is evaluated with;
            ``current`` for those in force.
        example: A forward that proves which weights make the query. ``auto`` takes inputs that the model or
            modules in it name themselves, as :func:`tempopt.attach` does. For ``nn.MultiheadAttention`` it is
            not needed.

    Returns:
        The temperature by name of each layer.

    Raises:
        AttachError: if no temperature is attached, or weights cannot hold it: head patterns, local heads,
            length scaling, other normalisers than softmax, norms without a weight, shared, computed and
            quantised parameters. The message says what to do instead. The model is then as it was.
    """
    changes = scalings(model, at=at, example=example)
    detach(model)
    write(changes)
    change_of_module = {id(change.module): change for change in changes}
    for change in change_of_module.values():
        mark(change.module, change.temperature)
    temperatures = {change.layer: change.temperature for change in changes}
    mark_configurations(model, temperatures.values())
    return temperatures


def scalings(model: nn.Module, *, at: TemperatureChoice, example: Example = "auto") -> list[Scaling]:
    """Return what the temperatures that are attached to a model make of its weights.

    Args:
        model: A model with all of its tempered layers; not changed.
        at: ``final`` for the temperatures at the end of the plan, ``current`` for those in force, or one for
            each layer.
        example: As for :func:`bake`.

    Raises:
        AttachError: if no temperature is attached, or weights cannot hold it.
    """
    layers_of_state: dict[int, tuple[CallState, dict[int, _Layer]]] = {}
    for name, module, binding in bindings(model):
        state_layers = layers_of_state.setdefault(id(binding.state), (binding.state, {}))[1]
        state_layers[binding.layer] = _Layer(name, module)
    changes: list[Scaling] = []
    for state, layers in layers_of_state.values():
        _refuse_behind(state)
        if len(layers) != len(state.values):
            raise AttachError(
                f"This module has {len(layers)} of the {len(state.values)} layers that a temperature is "
                "attached to. Give the whole model."
            )
        ordered = [layers[index] for index in sorted(layers)]
        changes += _of_layers(model, state, ordered, example, _inverse(at, state))
    if not changes:
        raise AttachError(
            f"{type(model).__name__} has no temperature attached, so there is none to write into its "
            "weights. Attach one first (tempopt.attach). A tempopt.TemperedModule has its temperature among "
            "its arguments, which its checkpoints hold."
        )
    return changes


def _of_rows(rows: QueryRows, layer: str) -> list[Scaling]:
    """Return what a temperature makes of the query rows of one layer."""
    changes = []
    for projection in rows.every:
        for part, value in projection.parameters():
            axis = part.axis if value.ndim > 1 else 0
            is_query = torch.arange(value.shape[axis]) < value.shape[axis] // part.parts
            query = _rows_along(value, axis, is_query)
            name = part.parameter
            changes.append(Scaling(layer=layer, module=projection.module, parameter=name, query=query))
    return changes


def write(changes: Sequence[Scaling]) -> None:
    """Write scaled values into the parameters, in place."""
    with torch.no_grad():
        for change in changes:
            change.value.copy_(change.of(change.value))


@contextmanager
def write_temporarily(changes: Sequence[Scaling]) -> Iterator[None]:
    """Have scaled values in the parameters for a while."""
    saved_values = [(change.value, change.value.detach().clone()) for change in changes]
    write(changes)
    try:
        yield
    finally:
        copy_back(saved_values)


def _rows_along(value: Tensor, axis: int, rows: Tensor) -> Tensor:
    """Return rows of a parameter in a shape that broadcasts to it."""
    return rows.view([-1 if dim == axis else 1 for dim in range(value.ndim)])


def _inverse(at: TemperatureChoice, source: CallState) -> Sequence[float]:
    """Return 1/temperature of each layer."""
    if at == "current":
        return source.values
    return [1.0 / temperature for temperature in (source.final if at == "final" else at)]


def _refuse_behind(state: CallState) -> None:
    """Refuse what is decided where heads and keys are seen, which no weight of the query can do."""
    options = {
        f'head_pattern="{state.head_factors.pattern.name}"': state.head_factors.present,
        f'length_scaling="{state.length_scaling.name}"': state.has_length_scaling,
        f"local_share={state.local.local_share:g}": state.has_local_heads,
        f'normaliser="{state.normaliser}"': not state.is_softmax,
    }
    for option, is_present in options.items():
        if is_present:
            raise AttachError(
                f"{option} cannot be written into weights: they hold one temperature for all heads, queries "
                f"and keys of a layer, and the softmax is in the model's code. {AT_LOAD}"
            )


def _prove(
    model: nn.Module,
    state: CallState,
    example: Example,
    by_hand: Callable[[float], AbstractContextManager[None]],
) -> bool | None:
    """Return whether the output of a forward is the same by hand, None if nothing can be told."""
    forwards: list[Forward | None] = [infer_example_inputs(model), infer_partial_inputs(model)]
    for forward in forwards if example == "auto" else [example]:
        if forward is None:
            continue
        try:
            return _is_same_by_hand(model, state, forward, by_hand)
        except AttachError:
            raise
        except Exception:
            if example != "auto":
                raise
            # on inputs that a person's model names, but does not run on, nothing can be told
    return None


def _is_same_by_hand(
    model: nn.Module,
    state: CallState,
    forward: Forward,
    by_hand: Callable[[float], AbstractContextManager[None]],
) -> bool | None:
    values = state.values
    parameters = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    eps = max(torch.finfo(parameter.dtype).eps for parameter in parameters)

    def run() -> list[Tensor]:
        with torch.inference_mode(False), torch.no_grad():
            with preserve_rng_state({parameter.device for parameter in parameters}):
                return list(tensors(forward()))

    try:
        with preserve_model_state(model), state.by_temperature_alone():
            state.set_values([1.0 / _PROBE] * len(values))
            tempered = run()
            state.set_values([1.0] * len(values))
            plain = run()
            with by_hand(1.0 / _PROBE):
                return same_outputs(run, plain, tempered, eps)
    finally:
        state.set_values(values)


def _of_layers(
    model: nn.Module,
    state: CallState,
    layers: Sequence[_Layer],
    example: Example,
    inverse: Sequence[float],
) -> list[Scaling]:
    """Return the likeliest weights that make the query, as a forward proves or as their names say."""
    names = [layer.name for layer in layers]
    choices = [_choices(model, layer) for layer in layers]
    uncertain_names = [name for name, choice in zip(names, choices, strict=True) if not choice.certain]
    verdicts: list[bool | None] = []
    for number in range(max(len(choice.of) for choice in choices)):

        def by_hand(factor: float, number: int = number) -> AbstractContextManager[None]:
            return write_temporarily([scaling for choice in choices for scaling in choice.at(number, factor)])

        verdicts.append(_prove(model, state, example, by_hand) if uncertain_names else None)
        if verdicts[-1] or not uncertain_names:
            return [
                scaling
                for choice, factor in zip(choices, inverse, strict=True)
                for scaling in choice.at(number, factor)
            ]
    if None in verdicts:
        raise AttachError(
            f'Which weights make the query of "{uncertain_names[0]}" cannot be told from their names. Give '
            "an example to prove it on, as in tempopt.bake(model, example=lambda: model(batch)). "
            f"{AT_LOAD}"
        )
    raise AttachError(
        f'The temperature of "{names[0]}" cannot be written into its weights: with it in those that make the '
        f"query by their names, the output is another. {AT_LOAD}"
    )


def _choices(model: nn.Module, layer: _Layer) -> _Choices:
    """Return the weights that may make the query of a layer.

    Raises:
        AttachError: if none can.
    """
    norm = query_norm(layer.module)
    names = [name for name in layer.module._modules if leaf(name) in FUSED_NAMES | INTERLEAVED_NAMES]
    try:
        if norm is not None:
            return _Choices(of=[_norm(model, layer, norm)], certain=False)
        if len(names) == 1 and hasattr(config_of(layer.module), "num_attention_heads"):
            return _Choices(
                of=_fused_layouts(model, layer, f"{layer.name}.{names[0]}".lstrip(".")), certain=False
            )
        # a module that is given queries, keys and values has its projections beside it
        has_own = next(layer.module.parameters(), None) is not None
        name = layer.name if has_own else layer.name.rpartition(".")[0]
        rows = query_rows(model, [name] if name else "auto")
        changes = [scaling for row in rows for scaling in _of_rows(row, layer.name)]
        return _Choices(of=[changes], certain=is_packed(layer.module))
    except AttachError as error:
        raise AttachError(
            f'The temperature of "{layer.name}" cannot be written into its weights. {error} {AT_LOAD}'
        ) from error


def _fused_layouts(model: nn.Module, layer: _Layer, name: str) -> list[list[Scaling]]:
    """Return the layouts that a fused projection may have: the query first, or head by head."""
    module = model.get_submodule(name)
    axes = output_axes(model, name)
    config = config_of(layer.module)
    heads = config.num_attention_heads
    width = getattr(layer.module, "head_dim", None) or config.hidden_size // heads
    count = module._parameters["weight"].shape[axes["weight"]]  # type: ignore[union-attr]
    layouts = [torch.arange(count) < heads * width]
    if count == 3 * heads * width:
        layouts.append(torch.tensor([True, False, False]).repeat(heads).repeat_interleave(width))
    return [
        [
            Scaling(
                layer=layer.name,
                module=module,
                parameter=parameter,
                query=_rows_along(module._parameters[parameter], axis, rows),  # type: ignore[arg-type]
            )
            for parameter, axis in axes.items()
        ]
        for rows in layouts
    ]


def _norm(model: nn.Module, layer: _Layer, name: str) -> list[Scaling]:
    """Return what scales the output of a norm behind the query's projection: its weight and bias."""
    norm, full_name = layer.module.get_submodule(name), f"{layer.name}.{name}".lstrip(".")
    if norm._parameters.get("weight") is None:
        raise AttachError(
            f'Its query is normalised by "{full_name}", which has no weight that could take it.'
        )
    parameter_names = [
        parameter_name for parameter_name, value in norm._parameters.items() if value is not None
    ]
    for parameter_name in parameter_names:
        check_own(model, full_name, parameter_name)
    for plus in (0.0, 1.0):
        changes = [
            Scaling(
                layer=layer.name,
                module=norm,
                parameter=parameter_name,
                query=torch.ones([1] * norm._parameters[parameter_name].ndim, dtype=torch.bool),  # type: ignore[union-attr]
                plus=plus if parameter_name == "weight" else 0.0,
            )
            for parameter_name in parameter_names
        ]
        if _scales_output(norm, changes):
            return changes
    raise AttachError(f'Its query is normalised by "{full_name}", whose output its weight does not scale.')


def _scales_output(norm: nn.Module, changes: Sequence[Scaling]) -> bool:
    """Whether the output of a norm is halved by what is to halve it."""
    weight = changes[0].value
    noise = torch.randn(2, 3, *weight.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        inputs = noise.to(weight.device, weight.dtype)
        output = norm(inputs).double()
        with write_temporarily([change.at(0.5) for change in changes]):
            halved_output = norm(inputs).double()
    return bool((halved_output - output / 2).norm() <= _OFF * output.norm())
