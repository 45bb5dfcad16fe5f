"""Tempers models of Hugging Face transformers where they ask for their attention function.

Finds the modules that ask, and owns that function, its mask beside it, and what it reads: the temperature of
each layer and whatever needs the keys, as length scaling, entropy term and normaliser. What they are is
decided in ``tempopt.attention.attach.attachment``; transformers itself is loaded only for a model of its own.

Shape suffixes as in attention.py; G is the heads of the keys.
"""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from tempopt.attention.attach.learning import (
    HeadFactors,
    HeadTemperatures,
    by_sums,
    require_gradients,
    taken_gradient,
)
from tempopt.attention.attach.observers import Observe, Observers
from tempopt.attention.attach.preserve_state import halved, own_scales
from tempopt.attention.attach.query_rows import AS_TEMPERED_MODULE, Layers, baked, lineage, query_rows
from tempopt.attention.functional.attention import temper_query, tempered_attention
from tempopt.attention.functional.entropy import add_to_gradient, entropy_term, regularised_attention
from tempopt.attention.functional.local_heads import NearKeys, local_attention, local_mask, near_keys
from tempopt.attention.functional.logits import AttentionOptions, visible
from tempopt.errors import AttachError
from tempopt.temperature import (
    NORMALISERS,
    EntropyParameters,
    LengthScaling,
    LocalHeads,
    NoLengthScaling,
    SoftmaxNormaliser,
    TemperaturePlan,
    UniformHeads,
)

INTERFACE = "attention_interface"
"""Name of this way of attaching."""

BINDING = "_tempopt_interface"
"""Name under which a tempered module holds what it reads."""

SETTING = "_attn_implementation_internal"
"""Where a configuration keeps the name of its implementation; its property would change parts of it too."""

IMPLEMENTATIONS = ("sdpa", "eager")
"""Names of the implementations that can be tempered."""

RECIPE = """\
attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
output, weights = attend(self, query, key, value, attention_mask, scaling=self.scaling, dropout=dropout)"""
"""What a model of transformers has to write in place of a softmax of its own."""

# The registered name of each implementation that can be tempered: its own function does the rest.
_NAMES = {implementation: f"tempopt_{implementation}" for implementation in IMPLEMENTATIONS}
_IMPLEMENTATION_BY_NAME = {name: implementation for implementation, name in _NAMES.items()}

# What some models hand over beside query, key and mask, and what then cannot be computed beside it.
_MORE_IN_THE_LOGITS = ("softcap", "s_aux", "sinks", "position_bias", "cache")
_CROSS = ("cross", "encoder_attn", "encdec")
_GLOBAL = LocalHeads(window=1, local_share=0.0)
_SOFT_CAPS = ("attn_logit_softcapping", "attn_logit_soft_cap")


@dataclass(frozen=True, slots=True)
class InterfaceLayer:
    """An attention module that asks transformers for its attention function.

    Args:
        name: Its name in the model, as in ``named_modules``.
        module: The module.
    """

    name: str
    module: nn.Module


def interface_layers(model: nn.Module, layers: Layers = "auto") -> list[InterfaceLayer]:
    """Return the attention modules that ask for their attention function, in depth order.

    Args:
        model: Any module; not changed.
        layers: ``"auto"`` for all, or patterns as in ``fnmatch``. A pattern takes a module that it matches,
            or one inside of which or around which it matches a module, as its query projection.
    """
    all_layers = [InterfaceLayer(name, module) for name, module in model.named_modules() if _asks(module)]
    if layers == "auto":
        return all_layers
    return [layer for layer in all_layers if any(_matches(layer, pattern) for pattern in layers)]


def _asks(module: nn.Module) -> bool:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names and config_of(module) is not None


def _matches(layer: InterfaceLayer, pattern: str) -> bool:
    descendants = (f"{layer.name}.{name}" for name, _ in layer.module.named_modules() if name)
    return any(fnmatchcase(name, pattern) for name in (*lineage(layer.name), *descendants))


def config_of(module: nn.Module) -> Any:
    config = module.__dict__.get("config")
    return config if hasattr(config, "_attn_implementation") else None


def check_implementation(layer: InterfaceLayer) -> None:
    implementation = getattr(config_of(layer.module), SETTING, None)
    if implementation not in IMPLEMENTATIONS:
        raise AttachError(
            f'"{layer.name}" attends by "{implementation}"; a temperature can be put on '
            f"{' and '.join(IMPLEMENTATIONS)}. Call "
            'model.set_attn_implementation("sdpa") before attaching.'
        )
    if implementation == "eager" and getattr(config_of(layer.module), "reorder_and_upcast_attn", False):
        raise AttachError(
            f'"{layer.name}" computes its attention itself where reorder_and_upcast_attn is set, past the '
            'attention interface. Build the model without it, or attach with method="query_rows".'
        )


def own_attention(layer: InterfaceLayer) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return the function that an attention module would use if nothing was attached.

    Raises:
        AttachError: if it cannot be found.
    """
    implementation = getattr(config_of(layer.module), SETTING, None)
    try:
        return attention_by(str(implementation), layer.module)
    except KeyError:
        raise AttachError(
            f'"{layer.name}" attends by "{implementation}", but where that is cannot be found: its file has '
            'no eager_attention_forward. Call model.set_attn_implementation("sdpa") before attaching, or '
            'attach with method="query_rows".'
        ) from None


def attention_by(implementation: str, module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return the function that transformers has under a name for an attention module."""
    names = inspect.unwrap(type(module).forward).__globals__
    attention: Any = (
        names["eager_attention_forward"]
        if implementation == "eager"
        else names["ALL_ATTENTION_FUNCTIONS"][implementation]
    )
    return attention  # type: ignore[no-any-return]


def check_deliverable(
    layers: Sequence[InterfaceLayer], plan: TemperaturePlan, entropy: EntropyParameters
) -> None:
    """Refuse what the logits of these layers do not allow.

    Raises:
        AttachError: if an entropy term or another normaliser is wanted where logits are soft-capped, or an
            entropy term of another normaliser than softmax.
    """
    normaliser = plan.normaliser.name
    option = f'normaliser="{normaliser}"' if normaliser != SoftmaxNormaliser.name else ""
    if entropy.has_term:
        if option:
            raise AttachError(
                f"entropy_lambda={entropy.entropy_lambda!r} cannot be had with {option}: the entropy term is "
                "that of softmax, whose weights these are not. Give entropy_lambda=0.0, or "
                'normaliser="softmax".'
            )
        option = f"entropy_lambda={entropy.entropy_lambda!r}"
    for layer in layers if option else ():
        for name in _SOFT_CAPS:
            if getattr(config_of(layer.module), name, None) is not None:
                raise AttachError(
                    f'{option} cannot be had in "{layer.name}": its logits are capped ({name}) behind the '
                    "temperature, and what is computed beside its attention would be of others. Take "
                    f"{option} out, or {AS_TEMPERED_MODULE}."
                )


@dataclass(slots=True)
class InterfaceBinding:
    """What a tempered module knows; ``index`` is None in one whose temperature stays 1."""

    name: str
    index: int | None
    interface: Interface
    attention: Callable[..., tuple[Tensor, Tensor | None]]


class Numbers(NamedTuple):
    """What one layer reads, as views of one tensor, so that a compiled graph serves all values."""

    inverse_temperature: Tensor
    entropy_weight: Tensor
    entropy_target: Tensor
    length_constant: Tensor
    limit: Tensor
    window: Tensor


def _place_of(module: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Return where a layer's numbers lie: where its parameters are, in no less than float32."""
    parameter = next(module.parameters())
    return parameter.device, torch.float64 if parameter.dtype == torch.float64 else torch.float32


class Interface:
    """The temperatures of a model's layers, as its attention function reads them; a ``Mechanism``.

    It is held by the modules themselves, so that a copy of the model keeps the same temperatures.

    Args:
        model: The model, whose configurations name our attention function from now on, until
            :meth:`detach`.
        layers: The attention modules to temper, first layer first.

    Raises:
        AttachError: if one of them is set to an attention that cannot be tempered.
    """

    method: ClassVar[str] = INTERFACE
    # The query times a power of two is, to the last bit, the same as the scale times it.
    probe: ClassVar[float] = 2.0
    by_hand_is: ClassVar[str] = (
        "the same model with its scale divided by the temperature. Its attention may be another under "
        "another name than sdpa or eager"
    )

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
        self.local = _GLOBAL
        self.entropy = EntropyParameters()
        self.observers = Observers()
        self.heads: HeadTemperatures | None = None
        self.head_factors = HeadFactors()
        self.loss_scale = 1.0
        self._entropy_weight = 0.0
        self._limit = 0.0
        self.layers = list(layers)
        self._build()
        self._bind(model, layers)
        self._see_to_registration()

    def _bind(self, model: nn.Module, layers: Sequence[InterfaceLayer]) -> None:
        index_of = {id(layer.module): index for index, layer in enumerate(layers)}
        attention_layers = [
            layer
            for layer in interface_layers(model)
            if getattr(config_of(layer.module), SETTING, None) in _NAMES
        ]
        attentions = [own_attention(layer) for layer in attention_layers]
        for layer, attention in zip(attention_layers, attentions, strict=True):
            index = index_of.get(id(layer.module))
            layer.module.__dict__[BINDING] = InterfaceBinding(layer.name, index, self, attention)
        for config in self._configs:
            setattr(config, SETTING, _NAMES[getattr(config, SETTING)])

    @property
    def names(self) -> list[str]:
        """Names of the attention modules in depth order."""
        return [layer.name for layer in self.layers]

    attentions = names

    def devices(self) -> set[torch.device]:
        """Return where the modules are."""
        return {next(layer.module.parameters()).device for layer in self.layers}

    def use(self, plan: TemperaturePlan, entropy: EntropyParameters) -> None:
        """Take what a plan says beside the temperatures, and the entropy term.

        Raises:
            AttachError: if the logits of a layer do not allow it.
        """
        check_deliverable(self.layers, plan, entropy)
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

    def set_final(self, temperatures: Sequence[float]) -> None:
        """Take the temperatures at the end of the plan, which a model is evaluated with."""
        self.final = tuple(temperatures)

    def learn_heads(self, base: Sequence[float]) -> HeadTemperatures:
        """Give each head a temperature of its own, from those of the layers and the head pattern."""
        self.heads = HeadTemperatures(base, self.head_factors.pattern)
        return self.heads

    def observed(self, observe: Observe) -> AbstractContextManager[None]:
        """Show queries and keys for a while."""
        return self.observers.observer_added(observe)

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

    @contextmanager
    def by_temperature_alone(self) -> Iterator[None]:
        """Leave out head pattern, local heads, length scaling, entropy term and normaliser."""
        names = ("length_scaling", "normaliser", "entropy", "local")
        pattern, settings = self.head_factors.pattern, {name: getattr(self, name) for name in names}
        self.length_scaling, self.normaliser = NoLengthScaling(), SoftmaxNormaliser.name
        self.entropy, self.local = EntropyParameters(), _GLOBAL
        self.head_factors.use(UniformHeads())
        try:
            yield
        finally:
            vars(self).update(settings)
            self.head_factors.use(pattern)

    @contextmanager
    def by_hand(self, temperatures: Mapping[int, float]) -> Iterator[None]:
        """Have the model ask for its own functions, and change the scale of some layers."""
        with self.own_implementation(), ExitStack() as stack:
            for index, temperature in temperatures.items():
                module = self.layers[index].module
                if names := own_scales(module):
                    stack.enter_context(halved([(module, names[0])], 1.0 / temperature))
                else:
                    # It scales its query itself, or not at all.
                    stack.enter_context(baked(query_rows(module)[0], 1.0 / temperature))
            yield

    def cancelled(self, layer: int) -> AbstractContextManager[None] | None:
        """Return None: the function is given the query by itself."""
        return None

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
        numbers = self._numbers[index]
        return Numbers(*(number.to(device) for number in numbers)) if has_moved else numbers

    def inverse(self, index: int, q_BHQD: Tensor) -> Tensor:
        """Return 1/τ of a layer as its queries take it: one number, or one for each head."""
        layer = self.numbers(index, q_BHQD.device).inverse_temperature
        if self.heads is not None:
            return layer * self.heads.factor(index, q_BHQD)
        return layer * self.head_factors.factor(q_BHQD) if self.head_factors.present else layer

    def _current_places(self) -> list[tuple[torch.device, torch.dtype]]:
        return [_place_of(layer.module) for layer in self.layers]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One call of the attention function by a tempered module.

    Args:
        implementation: Name of the implementation that the model is set to.
        module: The attention module.
        binding: What it knows.
        numbers: What its layer reads.
        q_BHQD: Queries.
        k_BGKD: Keys; each head may serve a group of heads of queries, as may those of the values.
        v_BGKD: Values.
        attention_mask: The mask as the module's own function takes it.
        options: Mask, causality, dropout and scale as ours take them.
        kwargs: What else the module hands over.
    """

    implementation: str
    module: nn.Module
    binding: InterfaceBinding
    numbers: Numbers
    q_BHQD: Tensor
    k_BGKD: Tensor
    v_BGKD: Tensor
    attention_mask: Tensor | None
    options: AttentionOptions
    kwargs: Mapping[str, Any]

    @property
    def tempering(self) -> dict[str, Any]:
        """Temperature and length scaling as keyword arguments."""
        interface, index = self.binding.interface, self.binding.index
        assert index is not None
        return {
            "length_scaling": interface.length_scaling,
            "length_constant": self.numbers.length_constant,
            "inverse_temperature": interface.inverse(index, self.q_BHQD),
        }

    @property
    def has_term(self) -> bool:
        """Whether an entropy term is added to the gradient."""
        has_term = self.binding.interface.entropy.has_term
        return has_term and self.module.training and torch.is_grad_enabled()

    @property
    def is_softmax(self) -> bool:
        """Whether the weights are those of softmax."""
        return self.binding.interface.normaliser == SoftmaxNormaliser.name

    @property
    def adds_to_logits(self) -> bool:
        """Whether the module adds to the logits, or caps them, itself."""
        return any(self.kwargs.get(name) is not None for name in _MORE_IN_THE_LOGITS)

    @property
    def is_plain(self) -> bool:
        """Whether attention is what ``scaled_dot_product_attention`` computes, and nothing else."""
        is_extended = self.has_term or not self.is_softmax or self.adds_to_logits
        return self.implementation == "sdpa" and not is_extended

    @property
    def valid_BQ(self) -> Tensor | None:
        """Where a query is no padding, (B, Q) or (1, Q): where it sees itself among the keys."""
        attn_mask, q_len, k_len = self.options.attn_mask, self.q_BHQD.shape[-2], self.k_BGKD.shape[-2]
        if attn_mask is None or q_len > k_len or _is_cross(self.binding.name):
            return None
        seen_BHQK = visible(attn_mask).expand(-1, -1, q_len, k_len)
        return seen_BHQK.diagonal(offset=k_len - q_len, dim1=-2, dim2=-1).any(dim=1)

    def tempered(self) -> Tensor:
        """Return the tempered queries, having shown them to observers unless the module adds to logits."""
        interface, index = self.binding.interface, self.binding.index
        options = self.options
        q_BHQD = temper_query(self.q_BHQD, self.k_BGKD.shape[-2], **self.tempering, **options.masking)
        if interface.observers.present and index is not None and not self.adds_to_logits:
            masking: dict[str, Any] = {"valid_BQ": self.valid_BQ, **options.masking}
            interface.observers.show(index, q_BHQD, self.k_BGKD, scale=options.scale, **masking)
        return q_BHQD

    def require_whole(self, names: Sequence[str], option: str) -> None:
        """Refuse what would be computed of other logits, or other keys, than the module's."""
        for name in names:
            if self.kwargs.get(name) is not None:
                raise AttachError(
                    f'{option} cannot be had in "{self.binding.name}": its attention is given {name}, which '
                    f"changes the logits or the keys after the query. Take {option} out, or leave the layer "
                    "out (layers=[...] takes patterns)."
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

    Named as transformers names its own, for some models call it by keyword.
    """
    binding: InterfaceBinding | None = getattr(module, BINDING, None)
    if binding is None or binding.index is None:
        # A layer that was left out, or of another model with the same configuration.
        attention = attention_by(implementation, module) if binding is None else binding.attention
        return attention(module, query, key, value, attention_mask, **kwargs)
    options = AttentionOptions(
        attn_mask=None if attention_mask is None else attention_mask[..., : key.shape[-2]],
        is_causal=implementation == "sdpa"
        and _is_causal_by_flag(module, query, attention_mask, kwargs.get("is_causal")),
        dropout_p=kwargs.get("dropout", 0.0),
        scale=kwargs.get("scaling"),
    )
    call = _Call(
        implementation=implementation,
        module=module,
        binding=binding,
        numbers=binding.interface.numbers(binding.index, query.device),
        q_BHQD=query,
        k_BGKD=key,
        v_BGKD=value,
        attention_mask=attention_mask,
        options=options,
        kwargs=kwargs,
    )
    near = _near_keys(call)
    if near is None:
        return _attend_by_mask(call)
    call.require_whole(("cache",), "local_share")
    if not call.is_plain:
        return _attend_by_mask(_with_mask_of_all_heads(call, near))
    if binding.interface.observers.present:
        _with_mask_of_all_heads(call, near).tempered()
    out_BHQD = local_attention(query, key, value, near=near, **call.tempering, **options.keywords)
    return out_BHQD.transpose(1, 2).contiguous(), None


def _attend_by_mask(call: _Call) -> tuple[Tensor, Tensor | None]:
    """Return attention in which the mask says all that heads do not see."""
    interface, options = call.binding.interface, call.options
    if not call.is_softmax:
        call.require_whole(_MORE_IN_THE_LOGITS, f'normaliser="{interface.normaliser}"')
        out_BHQD = tempered_attention(
            call.q_BHQD,
            call.k_BGKD,
            call.v_BGKD,
            normaliser=interface.normaliser,
            **NORMALISERS[interface.normaliser].limited(call.numbers.limit),
            **call.tempering,
            **options.keywords,
        )
        return out_BHQD.transpose(1, 2).contiguous(), None
    if not isinstance(interface.length_scaling, NoLengthScaling):
        call.require_whole(("cache",), "length_scaling")
    qkv = call.tempered(), call.k_BGKD, call.v_BGKD
    if not call.has_term:
        return call.binding.attention(call.module, *qkv, call.attention_mask, **call.kwargs)
    call.require_whole(_MORE_IN_THE_LOGITS, "entropy_lambda")
    term: dict[str, Any] = {
        "weight": call.numbers.entropy_weight,
        "target": call.numbers.entropy_target if interface.entropy.has_target else None,
        "valid_BQ": call.valid_BQ,
    }
    if call.implementation == "sdpa" and not call.kwargs.get("dropout"):
        # It returns nothing but the output, so that and the entropy come from one pass.
        return regularised_attention(*qkv, options, **term).transpose(1, 2).contiguous(), None
    out_BQHD, weights = call.binding.attention(call.module, *qkv, call.attention_mask, **call.kwargs)
    return add_to_gradient(out_BQHD, entropy_term(*qkv[:2], options, **term)), weights


def _is_cross(name: str) -> bool:
    """Return whether a module, by its name, has queries and keys of different sequences."""
    return any(hint in name.lower() for hint in _CROSS)


def _near_keys(call: _Call) -> NearKeys | None:
    """Return which keys local heads see; None where there are no such heads, as in cross-attention.

    In a causal module with a cache, a query is the last key that it sees: a cache of a fixed size has places
    behind it.
    """
    if _is_cross(call.binding.name):
        return None
    return near_keys(
        call.binding.interface.local,
        call.q_BHQD,
        call.k_BGKD,
        window=call.numbers.window,
        last_seen=bool(getattr(call.module, "is_causal", True)),
        **call.options.masking,
    )


def _with_mask_of_all_heads(call: _Call, near: NearKeys) -> _Call:
    """Return the call with the mask of all heads as the function takes it: ``eager`` adds it to logits."""
    attn_mask, (num_heads, k_len) = call.options.attn_mask, (call.q_BHQD.shape[1], call.k_BGKD.shape[-2])
    lowest = torch.finfo(call.q_BHQD.dtype).min
    if call.implementation == "eager" and (attn_mask is None or attn_mask.dtype == torch.bool):
        blank = torch.zeros((1, 1, 1, k_len), dtype=call.q_BHQD.dtype, device=call.q_BHQD.device)
        attn_mask = blank if attn_mask is None else blank.masked_fill(~attn_mask, lowest)
    # a row that is minus infinity throughout would be NaN in a softmax that is written out
    masking: dict[str, Any] = {"attn_mask": attn_mask, "is_causal": call.options.is_causal, "hidden": lowest}
    mask = local_mask(num_heads, k_len, near=near, **masking)
    options = replace(call.options, attn_mask=mask, is_causal=False)
    return replace(call, attention_mask=mask, options=options)


def _is_causal_by_flag(
    module: nn.Module, q_BHQD: Tensor, attention_mask: Tensor | None, is_causal: bool | None
) -> bool:
    """Whether the module's own function hides what comes after each query, without a mask that says so."""
    # The shape first: compiled for all lengths, a length is not a bool.
    if q_BHQD.shape[-2] > 1 and attention_mask is None:
        return bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    return False
