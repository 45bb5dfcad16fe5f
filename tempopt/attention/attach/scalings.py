"""Finds what a temperature makes of the weights of an attached model, and writes it into them.

How such weights are marked is decided in ``tempopt.attention.attach.baked_marker``.
"""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tempopt.attention.attach.attachment import Example, detach
from tempopt.attention.attach.baked_marker import mark, mark_configurations
from tempopt.attention.attach.call_mode import bindings
from tempopt.attention.attach.call_state import CallState
from tempopt.attention.attach.example_inputs import Forward, infer_example_inputs, infer_partial_inputs
from tempopt.attention.attach.outputs import tensors
from tempopt.attention.attach.preserve_state import copy_back, preserve_model_state, preserve_rng_state
from tempopt.attention.attach.query_weights import Scaling, find_scalings
from tempopt.attention.attach.self_check import same_outputs
from tempopt.errors import AttachError

TemperatureChoice = Literal["final", "current"] | Sequence[float]

AT_LOAD = (
    "Keep the temperature beside the weights: save checkpoints with tempopt.AttachCallback and load them "
    "with tempopt.load_checkpoint(model, path, example=lambda: model(batch)), or attach it to the model once "
    "its weights are loaded."
)
# A temperature by which the outputs are compared.
_PROBE = 3.0


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
            length scaling, other normalisers than softmax, norms without a weight, shared parameters. The
            message says what to do instead. The model is then as it was.
    """
    changes = scalings(model, at=at, example=example)
    detach(model)
    write(changes)
    change_of_module = {id(change.module): change for change in changes}
    for change in change_of_module.values():
        mark(change.module, change.temperature)
    temperatures = {change.layer: change.temperature for change in changes}
    mark_configurations(model, temperatures.values())
    _warn_of_adapters(model, change_of_module)
    return temperatures


def _warn_of_adapters(model: nn.Module, changed_ids: Container[int]) -> None:
    """Warn where weights are scaled that peft does not save with its adapters."""
    adapted_models = (module for module in model.modules() if hasattr(module, "peft_config"))
    if any(id(module) in changed_ids for adapted in adapted_models for module in adapted.modules()):
        warnings.warn(
            "The temperature is in weights of the base model, too, which an adapter that peft saves does not "
            "have. Before save_pretrained merge the adapter (model.merge_and_unload()), or save the state "
            "dict of the whole model. To save the adapter alone, do so before bake, and attach the "
            "temperature when it is loaded.",
            stacklevel=3,
        )


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
    layers_of_state: dict[int, tuple[CallState, dict[int, tuple[str, nn.Module]]]] = {}
    for name, module, binding in bindings(model):
        state_layers = layers_of_state.setdefault(id(binding.state), (binding.state, {}))[1]
        state_layers[binding.layer] = name, module
    changes: list[Scaling] = []
    for state, layers in layers_of_state.values():
        _refuse_behind(state)
        if len(layers) != len(state.values):
            raise AttachError(
                f"This module has {len(layers)} of the {len(state.values)} layers that a temperature is "
                "attached to. Give the whole model."
            )
        inverse = _inverse(at, state)
        changes += [change.at(inverse[layer]) for layer, change in _find(model, state, layers, example)]
    if not changes:
        raise AttachError(
            f"{type(model).__name__} has no temperature attached, so there is none to write into its "
            "weights. Attach one first (tempopt.attach). A tempopt.TemperedModule has its temperature among "
            "its arguments, which its checkpoints hold."
        )
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


def _find(
    model: nn.Module, state: CallState, layers: Mapping[int, tuple[str, nn.Module]], example: Example
) -> list[tuple[int, Scaling]]:
    """Return what makes the queries of each layer, with its number, as a forward proves.

    Raises:
        AttachError: if nothing does, or no forward tells.
    """
    if all(isinstance(module, nn.MultiheadAttention) for _, module in layers.values()):
        return [
            pair for layer, (name, module) in layers.items() for pair in _of_multihead(layer, name, module)
        ]
    names = {layer: name for layer, (name, _) in layers.items()}
    inferred = (infer_example_inputs(model), infer_partial_inputs(model))
    for forward in inferred if example == "auto" else [example]:
        if forward is None:
            continue
        try:
            scalings_by_layer = find_scalings(model, state, names, forward)
        except AttachError as error:
            raise AttachError(
                f"The temperature cannot be written into the weights. {error} {AT_LOAD}"
            ) from error
        except Exception:
            if example != "auto":
                raise
            # on inputs that a person's model names, but does not run on, nothing can be told
            continue
        if scalings_by_layer.keys() != layers.keys():
            continue
        changes = [
            (layer, change)
            for layer, layer_scalings in sorted(scalings_by_layer.items())
            for change in layer_scalings
        ]
        is_same = _is_same_by_hand(model, state, forward, [change for _, change in changes])
        if is_same:
            return changes
        if is_same is not None:
            raise AttachError(
                f'The temperature of "{layers[0][0]}" cannot be written into its weights: with it in those '
                f"that make the query, the output is another. {AT_LOAD}"
            )
    raise AttachError(
        f'Which weights make the query of "{layers[0][0]}" is told by a forward over more than one token. '
        f"Give an example, as in tempopt.bake(model, example=lambda: model(batch)). {AT_LOAD}"
    )


def _of_multihead(layer: int, name: str, module: nn.Module) -> Iterator[tuple[int, Scaling]]:
    """Yield the rows of ``nn.MultiheadAttention`` that make its query.

    Raises:
        AttachError: if they are not its own parameters.
    """
    width: Any = module.embed_dim
    is_packed = module._parameters.get("q_proj_weight") is None
    names = ["in_proj_weight" if is_packed else "q_proj_weight", "in_proj_bias"]
    for parameter_name in names:
        if getattr(module, parameter_name, None) is None:
            continue
        value = module._parameters.get(parameter_name)
        if value is None or not value.is_floating_point():
            raise AttachError(
                f'"{name}.{parameter_name}" is not a parameter in floating point but computed of others or '
                f"quantised. {AT_LOAD}"
            )
        query = (torch.arange(len(value)) < width).view(-1, *[1] * (value.ndim - 1))
        yield layer, Scaling(layer=name, module=module, parameter=parameter_name, query=query)


def _is_same_by_hand(
    model: nn.Module,
    state: CallState,
    forward: Forward,
    changes: Sequence[Scaling],
) -> bool | None:
    """Return whether the output of a forward is the same by hand, None if nothing can be told."""
    num_layers = len(state.values)
    parameters = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    eps = max(torch.finfo(parameter.dtype).eps for parameter in parameters)

    def run() -> list[Tensor]:
        with torch.inference_mode(False), torch.no_grad():
            with preserve_rng_state({parameter.device for parameter in parameters}):
                return list(tensors(forward()))

    with preserve_model_state(model), state.by_temperature_alone():
        state.set_values([1.0 / _PROBE] * num_layers)
        tempered = run()
        state.set_values([1.0] * num_layers)
        plain = run()
        with write_temporarily([change.at(1.0 / _PROBE) for change in changes]):
            return same_outputs(run, plain, tempered, eps)
