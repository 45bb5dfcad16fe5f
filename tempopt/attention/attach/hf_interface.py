"""Tempers models of Hugging Face transformers where they ask for their attention function.

Owns that function, its mask beside it, and what it reads: the temperature of each layer and whatever needs
the keys, as length scaling, entropy term and normaliser. What they are is decided in
``tempopt.attention.attach.attachment``; transformers itself is loaded only for a model of its own.

Shape suffixes as in attention.py.
"""

from __future__ import annotations

import functools
import gc
import importlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tempopt.attention.attach.heads import HeadFactors
from tempopt.attention.attach.hf_layers import (
    IMPLEMENTATIONS,
    SETTING,
    InterfaceLayer,
    attention_by,
    check_implementation,
    config_of,
    implementation_of,
    interface_layers,
    own_attention,
)
from tempopt.attention.attach.hf_masks import (
    GLOBAL,
    is_causal_by_flag,
    local_heads,
    local_heads_mask,
    valid_queries,
)
from tempopt.attention.attach.hf_numbers import Numbers, place_of
from tempopt.attention.attach.learning import HeadTemperatures, by_sums, require_gradients, taken_gradient
from tempopt.attention.attach.observers import Observers
from tempopt.attention.functional.attention import temper_query, tempered_attention
from tempopt.attention.functional.entropy import add_to_gradient, entropy_term, regularised_attention
from tempopt.attention.functional.local_heads import local_attention
from tempopt.errors import AttachError
from tempopt.temperature import (
    NORMALISERS,
    EntropyParameters,
    LengthScaling,
    NoLengthScaling,
    SoftmaxNormaliser,
    TemperaturePlan,
)

BINDING = "_tempopt_interface"
"""Name under which a tempered module holds what it reads."""

# The registered name of each implementation that can be tempered: its own function does the rest.
_NAMES = {implementation: f"tempopt_{implementation}" for implementation in IMPLEMENTATIONS}
_IMPLEMENTATION_BY_NAME = {name: implementation for implementation, name in _NAMES.items()}

# What some models hand over beside query, key and mask, and what then cannot be computed beside it.
_MORE_IN_THE_LOGITS = ("softcap", "s_aux", "sinks", "position_bias", "cache")


@dataclass(slots=True)
class InterfaceBinding:
    """What a tempered module knows; ``index`` is None in one whose temperature stays 1."""

    name: str
    index: int | None
    interface: Interface
    attention: Callable[..., tuple[Tensor, Tensor | None]]


class Interface:
    """The temperatures of a model's layers, as its attention function reads them.

    It is held by the modules themselves, so that a copy of the model keeps the same temperatures.

    Args:
        model: The model, whose configurations name our attention function from now on, until
            :meth:`detach`.
        layers: The attention modules to temper, first layer first.

    Raises:
        AttachError: if one of them is set to an attention that cannot be tempered.
    """

    def __init__(self, model: nn.Module, layers: Sequence[InterfaceLayer]) -> None:
        self._configs = _own_configs(model)
        for layer in layers:
            check_implementation(layer)
        self.attached = True
        self._learning = False
        self.values: tuple[float, ...] = (1.0,) * len(layers)
        self.final: tuple[float, ...] = (1.0,) * len(layers)
        self.length_scaling: LengthScaling = NoLengthScaling()
        self.normaliser = SoftmaxNormaliser.name
        self.local = GLOBAL
        self.entropy = EntropyParameters()
        self.observers = Observers()
        self.heads: HeadTemperatures | None = None
        self.head_factors = HeadFactors()
        self.loss_scale = 1.0
        self._entropy_weight = 0.0
        self._limit = 0.0
        self._modules = [layer.module for layer in layers]
        self._build()
        self._bind(model, layers)
        self._see_to_registration()

    def _bind(self, model: nn.Module, layers: Sequence[InterfaceLayer]) -> None:
        index_of = {id(layer.module): index for index, layer in enumerate(layers)}
        attention_layers = [
            layer for layer in interface_layers(model) if implementation_of(layer.module) in _NAMES
        ]
        attentions = [own_attention(layer) for layer in attention_layers]
        for layer, attention in zip(attention_layers, attentions, strict=True):
            index = index_of.get(id(layer.module))
            layer.module.__dict__[BINDING] = InterfaceBinding(layer.name, index, self, attention)
        for config in self._configs:
            setattr(config, SETTING, _NAMES[getattr(config, SETTING)])

    def use(self, plan: TemperaturePlan, entropy: EntropyParameters) -> None:
        """Take what a plan says beside the temperatures, and the entropy term."""
        self.heads = None
        self.head_factors.use(plan.heads)
        self.length_scaling = plan.length_scaling
        self.normaliser = plan.normaliser.name
        self.local = plan.local
        self.entropy = entropy
        self._limit = sum(plan.normaliser.limits.values())
        self._write()

    def set_values(self, values: Sequence[float], entropy_weight: float | None = None) -> None:
        """Set 1 / temperature of every layer, first layer first.

        Args:
            entropy_weight: Weight of the entropy term over all layers; None: as it is.
        """
        weight = self._entropy_weight if entropy_weight is None else entropy_weight
        is_unchanged = (self.values, self._entropy_weight) == (tuple(values), weight)
        if not is_unchanged or self._places != self._current_places():
            self.values, self._entropy_weight = tuple(values), weight
            self._write()

    def learn(self) -> None:
        """Have backward passes leave the gradient of every temperature from now on."""
        self._learning = True
        require_gradients(self._inverses)

    def log_gradients(self) -> list[float] | None:
        """Return the gradient with respect to ln τ of each layer, and forget it; None: none was left."""
        gradients = map(taken_gradient, self._inverses)
        return by_sums([[] if gradient is None else [gradient] for gradient in gradients], self.values)

    @property
    def _inverses(self) -> list[Tensor]:
        return [numbers.inverse_temperature for numbers in self._numbers]

    def require_in_place(self) -> None:
        """Refuse to go on after the model was set to another attention implementation.

        Raises:
            AttachError: if it was.
        """
        for config in self._configs:
            if getattr(config, SETTING) not in _IMPLEMENTATION_BY_NAME:
                raise AttachError(
                    f'The attention implementation of the model was set to "{getattr(config, SETTING)}" '
                    "after a temperature was attached, which took the temperature off. Detach first, then "
                    "set the implementation, then attach again."
                )

    def set_loss_scale(self, loss_scale: float) -> None:
        """Set the factor by which the loss is multiplied before its gradient is taken."""
        self.loss_scale = loss_scale
        self._write()

    def detach(self) -> None:
        """Give the configurations back what they named before, and forget the layers."""
        self.attached = False
        for config in self._configs:
            implementation = _IMPLEMENTATION_BY_NAME.get(getattr(config, SETTING))
            if implementation is not None:
                setattr(config, SETTING, implementation)
        _live.discard(self)
        if not _live:
            _unregister()

    @contextmanager
    def own_implementation(self) -> Iterator[None]:
        """Have the configurations name what they named before, for a while."""
        settings = [getattr(config, SETTING) for config in self._configs]
        for config, name in zip(self._configs, settings, strict=True):
            setattr(config, SETTING, _IMPLEMENTATION_BY_NAME[name])
        try:
            yield
        finally:
            for config, name in zip(self._configs, settings, strict=True):
                setattr(config, SETTING, name)

    def _see_to_registration(self) -> None:
        """Have the functions registered for as long as this is attached; a copy comes here as well."""
        if self.attached:
            _live.add(self)
            _register()

    def numbers(self, index: int, device: torch.device) -> Numbers:
        """Return what one layer reads, on the device that its query is on."""
        has_moved = not self._numbers or self._numbers[index].inverse_temperature.device != device
        # Only where they are somewhere else: what is written again stops a backward that is under way.
        if has_moved and self._places != self._current_places():
            self._write()
            has_moved = self._numbers[index].inverse_temperature.device != device
        return self._numbers[index].to(device) if has_moved else self._numbers[index]

    def inverse(self, index: int, q_BHQD: Tensor) -> Tensor:
        """Return 1/τ of a layer as its queries take it: one number, or one for each head."""
        layer = self.numbers(index, q_BHQD.device).inverse_temperature
        if self.heads is not None:
            return layer * self.heads.factor(index, q_BHQD)
        return layer * self.head_factors.factor(q_BHQD) if self.head_factors.present else layer

    def _current_places(self) -> list[tuple[torch.device, torch.dtype]]:
        return [place_of(module) for module in self._modules]

    def _build(self) -> None:
        self._places = self._current_places()
        count = len(self.values)
        # A tensor that is made in inference mode could never be trained with.
        with torch.inference_mode(False), torch.no_grad():
            self._flat = {
                placement: torch.ones(count + 6, device=placement[0], dtype=placement[1])
                for placement in dict.fromkeys(self._places)
            }
            self._numbers = [
                Numbers(
                    inverse_temperature=flat[index],
                    entropy_weight=flat[count],
                    entropy_target=flat[count + 1],
                    length_constant=flat[count + 2 : count + 4],
                    limit=flat[count + 4],
                    window=flat[count + 5],
                )
                for index, flat in enumerate(self._flat[placement] for placement in self._places)
            ]
        if self._learning:
            self.learn()

    def _write(self) -> None:
        if self._places != self._current_places():
            self._build()
        weight = self.loss_scale * self._entropy_weight / len(self.values)
        target = self.entropy.entropy_target or 0.0
        values = (*self.values, weight, target, *self.length_scaling.constant, self._limit, self.local.window)
        with torch.no_grad():
            numbers = torch.tensor(values, dtype=torch.float64)
            for flat in self._flat.values():
                # Waiting for the device at each step would cost more than the copy.
                flat.copy_(numbers.to(flat.dtype).to(flat.device, non_blocking=True))

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in vars(self).items() if name not in ("_flat", "_numbers", "_places")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Where the modules are now is theirs to say, as soon as they are back themselves.
        self.__dict__.update(state)
        self._places, self._numbers, self._learning = [], [], False
        self._see_to_registration()


def _own_configs(model: nn.Module) -> list[Any]:
    """Return the configurations in the model by which an attention can be found, each once.

    Raises:
        AttachError: if one belongs to another model too, to which a temperature is attached.
    """
    configs = {id(config): config for config in map(config_of, model.modules()) if config is not None}
    if _tempered_config_ids() & configs.keys():
        # A model without references remains until its cycles are collected.
        gc.collect()
    taken_ids = _tempered_config_ids()
    for config in configs.values():
        if id(config) in taken_ids:
            raise AttachError(
                f"The model shares its configuration ({type(config).__name__}) with another one, to which a "
                "temperature is attached. Build each from its own: Model(copy.deepcopy(config))."
            )
        # of a model that was deleted without being detached
        if getattr(config, SETTING) in _IMPLEMENTATION_BY_NAME:
            setattr(config, SETTING, _IMPLEMENTATION_BY_NAME[getattr(config, SETTING)])
    return [config for config in configs.values() if getattr(config, SETTING) in _NAMES]


def _tempered_config_ids() -> set[int]:
    return {id(config) for interface in _live for config in interface._configs}


_live: weakref.WeakSet[Interface] = weakref.WeakSet()


def _register() -> None:
    functions, masks = _registries()
    for implementation, name in _NAMES.items():
        if name not in functions._global_mapping:
            type(functions).register(name, functools.partial(_attend, implementation))
            # Without a mask under the same name the function would be given none at all.
            type(masks).register(name, masks[implementation])


def _unregister() -> None:
    for registry in _registries():
        for name in _IMPLEMENTATION_BY_NAME:
            registry._global_mapping.pop(name, None)


def _registries() -> tuple[Any, Any]:
    """Return transformers' functions and masks by name."""
    return (
        importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS,
        importlib.import_module("transformers.masking_utils").ALL_MASK_ATTENTION_FUNCTIONS,
    )


def _attend(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return what the module's own attention function does of the tempered query; (B, Q, H, D) and weights.

    Named as transformers names its own, for some models call it by keyword. Heads of keys and values, G, may
    each serve a group of heads of queries.
    """
    q_BHQD, k_BGKD, v_BGKD = query, key, value
    binding: InterfaceBinding | None = getattr(module, BINDING, None)
    if binding is None or binding.index is None:
        # A layer that was left out, or of another model with the same configuration.
        attention = attention_by(implementation, module) if binding is None else binding.attention
        return attention(module, q_BHQD, k_BGKD, v_BGKD, attention_mask, **kwargs)
    interface = binding.interface
    numbers = interface.numbers(binding.index, q_BHQD.device)
    arguments: dict[str, Any] = {
        "length_scaling": interface.length_scaling,
        "length_constant": numbers.length_constant,
        "inverse_temperature": interface.inverse(binding.index, q_BHQD),
        "attn_mask": None if attention_mask is None else attention_mask[..., : k_BGKD.shape[-2]],
        "is_causal": implementation == "sdpa"
        and is_causal_by_flag(module, q_BHQD, attention_mask, kwargs.get("is_causal")),
    }
    local_settings: dict[str, Any] = {"local": interface.local, "window": numbers.window}
    if local := local_heads(binding.name, module, q_BHQD, k_BGKD, arguments, **local_settings):
        _require_whole(binding, kwargs, ("cache",), "local_share")
        is_plain, full_arguments = _is_plain(implementation, interface, module, kwargs), arguments
        if not is_plain or interface.observers.present:
            attention_mask = local_heads_mask(implementation, q_BHQD, k_BGKD, arguments, local)
            full_arguments = {**arguments, "attn_mask": attention_mask, "is_causal": False}
        if is_plain:
            return _plain_local(
                binding, q_BHQD, k_BGKD, v_BGKD, local, arguments, full_arguments, kwargs
            ), None
        arguments = full_arguments
    if interface.normaliser != SoftmaxNormaliser.name:
        return _normalised(binding, q_BHQD, k_BGKD, v_BGKD, numbers, arguments, kwargs), None
    if not isinstance(interface.length_scaling, NoLengthScaling):
        _require_whole(binding, kwargs, ("cache",), "length_scaling")
    tempered_BHQD = temper_query(q_BHQD, k_BGKD.shape[-2], **arguments)
    _show(binding, tempered_BHQD, k_BGKD, arguments, kwargs)
    term = _entropy_arguments(binding, module, q_BHQD, k_BGKD, numbers, arguments, kwargs)
    if term is not None and implementation == "sdpa" and not kwargs.get("dropout"):
        # It returns nothing but the output, so that and the entropy come from one pass.
        out_BHQD = regularised_attention(tempered_BHQD, k_BGKD, v_BGKD, **term)
        return out_BHQD.transpose(1, 2).contiguous(), None
    out_BQHD, weights = binding.attention(module, tempered_BHQD, k_BGKD, v_BGKD, attention_mask, **kwargs)
    if term is not None:
        out_BQHD = add_to_gradient(out_BQHD, entropy_term(tempered_BHQD, k_BGKD, **term))
    return out_BQHD, weights


def _show(
    binding: InterfaceBinding,
    q_BHQD: Tensor,
    k_BGKD: Tensor,
    arguments: Mapping[str, Any],
    kwargs: Mapping[str, Any],
) -> None:
    """Show tempered queries to observers, unless the model adds to the logits itself."""
    observers, index = binding.interface.observers, binding.index
    if (
        observers.present
        and index is not None
        and all(kwargs.get(name) is None for name in _MORE_IN_THE_LOGITS)
    ):
        observers.show(
            index,
            q_BHQD,
            k_BGKD,
            scale=kwargs.get("scaling"),
            attn_mask=arguments["attn_mask"],
            is_causal=arguments["is_causal"],
            valid_BQ=valid_queries(binding.name, q_BHQD, k_BGKD, arguments["attn_mask"]),
        )


def _entropy_arguments(
    binding: InterfaceBinding,
    module: nn.Module,
    q_BHQD: Tensor,
    k_BGKD: Tensor,
    numbers: Numbers,
    arguments: Mapping[str, Any],
    kwargs: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Return what the entropy term takes beside queries and keys; None where there is no term."""
    entropy = binding.interface.entropy
    if not (entropy.has_term and module.training and torch.is_grad_enabled()):
        return None
    _require_whole(binding, kwargs, _MORE_IN_THE_LOGITS, "entropy_lambda")
    return {
        "weight": numbers.entropy_weight,
        "target": numbers.entropy_target if entropy.has_target else None,
        "scale": kwargs.get("scaling"),
        "attn_mask": arguments["attn_mask"],
        "is_causal": arguments["is_causal"],
        "valid_BQ": valid_queries(binding.name, q_BHQD, k_BGKD, arguments["attn_mask"]),
    }


def _plain_local(
    binding: InterfaceBinding,
    q_BHQD: Tensor,
    k_BGKD: Tensor,
    v_BGKD: Tensor,
    local: Mapping[str, Any],
    arguments: Mapping[str, Any],
    full_arguments: Mapping[str, Any],
    kwargs: Mapping[str, Any],
) -> Tensor:
    """Return attention with local heads; ``full_arguments`` is what observers are shown of the masks."""
    if binding.interface.observers.present:
        _show(
            binding, temper_query(q_BHQD, k_BGKD.shape[-2], **full_arguments), k_BGKD, full_arguments, kwargs
        )
    attention_options = {"dropout_p": kwargs.get("dropout", 0.0), "scale": kwargs.get("scaling")}
    return (
        local_attention(q_BHQD, k_BGKD, v_BGKD, **local, **arguments, **attention_options)
        .transpose(1, 2)
        .contiguous()
    )


def _is_plain(
    implementation: str, interface: Interface, module: nn.Module, kwargs: Mapping[str, Any]
) -> bool:
    """Whether attention is what ``scaled_dot_product_attention`` computes, and nothing else."""
    term = interface.entropy.has_term and module.training and torch.is_grad_enabled()
    is_extended = term or interface.normaliser != SoftmaxNormaliser.name
    return (
        implementation == "sdpa"
        and not is_extended
        and all(kwargs.get(name) is None for name in _MORE_IN_THE_LOGITS)
    )


def _normalised(
    binding: InterfaceBinding,
    q_BHQD: Tensor,
    k_BGKD: Tensor,
    v_BGKD: Tensor,
    numbers: Numbers,
    arguments: dict[str, Any],
    kwargs: Mapping[str, Any],
) -> Tensor:
    normaliser = binding.interface.normaliser
    _require_whole(binding, kwargs, _MORE_IN_THE_LOGITS, f'normaliser="{normaliser}"')
    out_BHQD = tempered_attention(
        q_BHQD,
        k_BGKD,
        v_BGKD,
        normaliser=normaliser,
        **NORMALISERS[normaliser].limited(numbers.limit),
        dropout_p=kwargs.get("dropout", 0.0),
        scale=kwargs.get("scaling"),
        **arguments,
    )
    return out_BHQD.transpose(1, 2).contiguous()


def _require_whole(
    binding: InterfaceBinding, kwargs: Mapping[str, Any], names: Sequence[str], option: str
) -> None:
    """Refuse what would be computed of other logits, or other keys, than the module's."""
    for name in names:
        if kwargs.get(name) is not None:
            raise AttachError(
                f'{option} cannot be had in "{binding.name}": its attention is given {name}, which changes '
                f"the logits or the keys after the query. Take {option} out, or leave the layer out "
                "(layers=[...] takes patterns)."
            )
