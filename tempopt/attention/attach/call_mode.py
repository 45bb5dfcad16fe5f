"""Tempers the attention calls inside of a module, whatever the module is.

A module's class is exchanged for a subclass of it, whose ``forward`` runs under a function mode. The mode
sees the calls of PyTorch that the forward makes: fused attention gets a tempered query, and of attention that
is written out the product that makes the logits gets a tempered operand, so that what is added to logits
(masks, position biases) and what caps them stays outside of the temperature. Which calls these are is found
by ``tempopt.attention.attach.discovery``; parameters, buffers, names and state dicts stay as they are.

Shape suffixes as in attention.py; G is the heads of the keys.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tempopt.attention.attach.call_state import CallState, LayerNumbers, Numbers
from tempopt.attention.attach.multihead import compute_logits, multi_head_attention
from tempopt.attention.functional.attention import temper_query, tempered_attention
from tempopt.attention.functional.entropy import add_to_gradient, logits_term, regularised_attention
from tempopt.attention.functional.local_heads import NearKeys, local_attention, local_mask, near_keys
from tempopt.attention.functional.logits import AttentionOptions, above_lowest, visible, wide_type
from tempopt.attention.functional.normalisers import normalised_weights
from tempopt.errors import AttachError
from tempopt.temperature import NORMALISERS

BINDING = "_tempopt_call"
"""Name under which an attached module holds what it knows."""

MULTI_HEAD = F.multi_head_attention_forward
FUSED = F.scaled_dot_product_attention
SOFTMAX = frozenset({torch.softmax, Tensor.softmax, F.softmax, torch.special.softmax})
# Products that may make logits, with the position of an operand in which they are linear.
PRODUCTS: dict[Any, int] = {
    torch.matmul: 0,
    Tensor.matmul: 0,
    Tensor.__matmul__: 0,
    Tensor.__rmatmul__: 0,
    torch.bmm: 0,
    Tensor.bmm: 0,
    torch.mm: 0,
    Tensor.mm: 0,
    torch.baddbmm: 1,
    Tensor.baddbmm: 1,
    torch.einsum: 1,
}
# What closes the fast paths of modules, where a function mode does not, as under torch.compile.
_FAST_PATHS = {
    nn.TransformerEncoder: "use_nested_tensor",
    nn.TransformerEncoderLayer: "activation_relu_or_gelu",
}
_OPERAND_NAMES = ("input", "batch1")
# By the names of functions: what leaves logits as they are, multiplies them by a number, adds to them.
VIEWS = frozenset(
    "view reshape transpose permute flatten unflatten squeeze unsqueeze contiguous float to type_as "
    "__getitem__ detach clone double half bfloat16".split()
)
FACTORS = frozenset("mul multiply div divide true_divide imul itruediv truediv idiv rmul".split())
TERMS = frozenset("add iadd radd masked_fill where".split())
_MAKE_LOGITS = VIEWS | FACTORS | TERMS | {"tanh"}
_CROSS = ("cross", "encoder_attn", "encdec")


@dataclass(frozen=True, slots=True)
class SoftmaxPattern:
    """One softmax of a forward of a module.

    Args:
        is_attention: Whether its output is weights of attention.
        num_products: Number of products before it.
        is_bare: Whether its logits are a product with nothing but numbers multiplied to it and masks added.
        obstacle: Why the keys that a query sees cannot be told at this softmax; empty if they can.
        head_dim: Dimension of its logits that is that of heads, counted from the last, -1; None where none
            is, or that cannot be told.
    """

    is_attention: bool
    num_products: int
    is_bare: bool
    obstacle: str
    head_dim: int | None


@dataclass(frozen=True, slots=True)
class CallPattern:
    """The attention calls of one forward of a module.

    Args:
        num_fused: Number of calls of fused attention; None where no forward was seen: at least one.
        fused_head_dim: Dimension of heads of their queries, as for :class:`SoftmaxPattern`.
        softmaxes: Each softmax; empty where none is attention.
        products: Which of the products make logits, or what is added to logits by way of a mask, counted
            from 0, with the dimension of heads of the operand that is tempered.
        num_products: Number of products; 0 where none makes logits.
        is_gate: Whether it does not attend, but makes the logits of another softmax.
        num_forwards: Number of forwards of the module in one forward of its model.
    """

    num_fused: int | None = None
    fused_head_dim: int | None = None
    softmaxes: tuple[SoftmaxPattern, ...] = ()
    products: Mapping[int, int | None] = field(default_factory=dict)
    num_products: int = 0
    is_gate: bool = False
    num_forwards: int = 1

    @property
    def num_calls(self) -> int:
        """Number of calls of attention in a forward; 1 where none was seen."""
        return (self.num_fused or 0) + sum(softmax.is_attention for softmax in self.softmaxes) or 1

    @property
    def obstacle(self) -> str:
        """Why the keys that a query sees cannot be told at a softmax; empty if they can at all of them."""
        obstacles = (softmax.obstacle for softmax in self.softmaxes if softmax.is_attention)
        return next(filter(None, obstacles), "")

    @property
    def has_heads(self) -> bool:
        """Whether it is known of all calls which dimension is that of heads."""
        head_dims = [softmax.head_dim for softmax in self.softmaxes if softmax.is_attention]
        head_dims += [*self.products.values(), *([] if self.num_fused == 0 else [self.fused_head_dim])]
        return self.is_gate or None not in head_dims


@dataclass(slots=True)
class CallBinding:
    """Which layer an attached module is, and what its attention calls read.

    Args:
        name: Name of the module in its model.
        layer: Number of the layer.
        pattern: Its attention calls.
        state: What they read.
        nests: Whether it is in another attached layer, or one is in it.
    """

    name: str
    layer: int
    pattern: CallPattern
    state: CallState
    nests: bool = False
    # read on their own, so that one compiled graph serves layers of all numbers and names
    numbers: LayerNumbers = field(init=False)
    is_cross: bool = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = self.state.layers[self.layer]
        self.is_cross = any(hint in self.name.lower() for hint in _CROSS)


class AttachedModule(nn.Module):
    """Base of the classes that attached modules have; never made by itself."""

    _base_class: type[nn.Module]

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._create_numbers()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._create_numbers()

    def _create_numbers(self) -> None:
        """Create the numbers that the calls read, on the device of the parameters.

        Compiled code cannot create them.
        """
        binding: CallBinding | None = self.__dict__[BINDING]
        if binding is None:
            return
        for parameter in self.parameters():
            if parameter.is_floating_point() and not parameter.is_meta:
                binding.state.create((parameter.device, wide_type(parameter)))
                break

    def __prepare_scriptable__(self) -> Any:
        # the compiler of TorchScript would read the code of the class without temperatures
        raise AttachError(
            "A temperature is attached to this model, and torch.jit.script would leave it out. Write it into "
            "the weights first (tempopt.bake), or use torch.jit.trace or torch.export, which keep the "
            "temperature in force."
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class exists only here: say how to make it again from one that can be imported.
        reduced: Any = super().__reduce_ex__(protocol)
        make, arguments, *state = reduced
        importable = tuple(self._base_class if argument is type(self) else argument for argument in arguments)
        return _rebuild, (make, importable), *state


def bind(module: nn.Module, binding: CallBinding | None) -> None:
    """Temper a module's attention calls; None only closes its fast path, for modules inside of it."""
    module.__dict__[BINDING] = binding
    kind: Any = type(module)
    object.__setattr__(module, "__class__", _attached_class(kind))
    assert isinstance(module, AttachedModule)
    module._create_numbers()


def unbind(module: nn.Module) -> CallBinding | None:
    """Undo :func:`bind`, and return the binding."""
    if not isinstance(module, AttachedModule):
        return None
    binding: CallBinding | None = module.__dict__.pop(BINDING)
    object.__setattr__(module, "__class__", module._base_class)
    return binding


def binding_of(module: nn.Module) -> CallBinding | None:
    """Return the binding of an attached layer; None of another module."""
    binding: CallBinding | None = module.__dict__.get(BINDING)
    return binding


def bindings(model: nn.Module) -> Iterator[tuple[str, nn.Module, CallBinding]]:
    """Yield name, module and binding of each attached layer of a model."""
    for name, module in model.named_modules():
        binding = binding_of(module)
        if binding is not None:
            yield name, module, binding


@functools.cache
def _attached_class(base_class: Any) -> type[AttachedModule]:
    """Return the attached class for a class of module; the same each time, since compiled graphs guard it."""

    @functools.wraps(base_class.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        binding: CallBinding | None = self.__dict__[BINDING]
        if binding is None:
            return base_class.forward(self, *args, **kwargs)
        if binding.pattern.is_gate:
            logits = base_class.forward(self, *args, **kwargs)
            binding.state.note_active(binding.name)
            return temper(logits, binding.state.numbers(binding.numbers, logits).inverse_temperature)
        mode = (binding.state.mode or CallMode)(self, binding)
        with _innermost(mode) if binding.nests else mode:
            output = base_class.forward(self, *args, **kwargs)
        mode.check()
        return output

    members: dict[str, Any] = {
        "_base_class": base_class,
        "forward": forward,
        "__module__": base_class.__module__,
        "__qualname__": base_class.__qualname__,
        "__doc__": base_class.__doc__,
    }
    # In evaluation these compute the attention inside of them by kernels of their own, unless told otherwise.
    for kind, name in _FAST_PATHS.items():
        if issubclass(base_class, kind):
            members[name] = property(lambda self: False)
    return type(base_class.__name__, (AttachedModule, base_class), members)


def _rebuild(make: Callable[..., nn.Module], arguments: tuple[Any, ...]) -> nn.Module:
    module = make(*arguments)
    kind: Any = type(module)
    object.__setattr__(module, "__class__", _attached_class(kind))
    return module


class CallMode(TorchFunctionMode):
    """Tempers the attention calls of one forward of a module, and counts them.

    Args:
        module: The module.
        binding: What it knows.
    """

    def __init__(self, module: nn.Module, binding: CallBinding) -> None:
        super().__init__()
        self._module, self._binding = module, binding
        self._state, self._pattern = binding.state, binding.pattern
        self._takes_gradients = torch.is_grad_enabled()
        self._num_fused = self._num_products = self._num_softmaxes = 0
        # queries and keys of different sequences, by the module's name or by the call
        self._is_cross = binding.is_cross
        self._valid_BQ: Tensor | None = None
        # logits that are being made, each with what has been added to it
        self._terms: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if self._binding.nests and _nested.modes[-1] is not self:
            return func(*args, **kwargs)
        if func is Tensor.unflatten:
            # whose Python the compiler cannot follow under a mode
            func = torch.unflatten
        if func is FUSED:
            self._count_fused_call()
            return self.attend(*_read_fused_arguments(*args, **kwargs))
        if func is MULTI_HEAD:
            self._count_fused_call()
            return self.attend_multihead(*args, **kwargs)
        if self._pattern.num_products:
            if func in SOFTMAX:
                return self._on_softmax(func, args, kwargs)
            if func in PRODUCTS and are_matrices(func, args, kwargs):
                number = self._num_products
                self._num_products += 1
                if number in self._pattern.products:
                    self._require_gradients()
                    return self.product(func, args, kwargs, self._pattern.products[number])
        result = func(*args, **kwargs)
        if self._terms and func.__name__.strip("_") in _MAKE_LOGITS:
            self._follow_terms(func, args, kwargs, result)
        return result

    def check(self) -> None:
        """Refuse a forward that attended otherwise than the one that was looked into.

        Raises:
            AttachError: if it did.
        """
        pattern = self._pattern
        is_known = pattern.num_fused is not None
        if self._num_fused != pattern.num_fused if is_known else not self._num_fused:
            expected = pattern.num_fused if is_known else "at least one"
            self._refuse(f"It made {self._num_fused} calls of fused attention; {expected} was expected.")
        if (self._num_softmaxes, self._num_products) != (len(pattern.softmaxes), pattern.num_products):
            self._refuse(
                f"It made {self._num_softmaxes} softmaxes and {self._num_products} products, where "
                f"{len(pattern.softmaxes)} and {pattern.num_products} were expected."
            )
        self._state.note_active(self._binding.name)

    def _refuse(self, problem: str) -> None:
        pattern_source = "in the example that its temperature was attached with"
        if self._pattern.num_fused is None:
            pattern_source = "its code shows"
        raise AttachError(
            f'"{self._binding.name}" attends otherwise than {pattern_source}. {problem} Attach with an '
            "example that runs it as here, as in attach(model, parameters, example=lambda: model(batch)). If "
            "its calls differ from batch to batch, leave the layer out (layers=[...] takes patterns)."
        )

    def _count_fused_call(self) -> None:
        self._num_fused += 1
        self._require_gradients()

    def _require_gradients(self) -> None:
        if self._takes_gradients and not torch.is_grad_enabled():
            raise AttachError(
                f'"{self._binding.name}" attends without gradients inside of a forward with gradients, as '
                "under checkpoint(..., use_reentrant=True) or in an autograd.Function: its backward is not "
                "that of tempered attention. Use use_reentrant=False, or checkpoint the whole module; "
                "replace such a function by the operations of torch."
            )

    # ---- fused attention

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions, enable_gqa: bool = False
    ) -> Tensor:
        """Return tempered attention, as ``scaled_dot_product_attention`` returns attention."""
        if not self._state.has_more:
            # not a factor on the scale: that a checkpoint inside of the module saves other tensors when it
            # runs again without this mode is what makes PyTorch refuse it
            query = temper(query, self._numbers(query).inverse_temperature)
            return FUSED(query, key, value, **options.keywords, enable_gqa=enable_gqa)
        mask = options.attn_mask
        if query.ndim == 3:
            if mask is not None and mask.ndim == 3:
                options = replace(options, attn_mask=mask.unsqueeze(1))
            q, k, v = (x.unsqueeze(1) for x in (query, key, value))
            return self._attend_to(q, k, v, options).squeeze(1)
        if query.ndim != 4:
            raise AttachError(f'"{self._binding.name}" attends with {query.ndim} dimensions. {_MORE}')
        if self._pattern.fused_head_dim != -4:
            return self._attend_to(query, key, value, options)
        if mask is not None and mask.ndim > 2:
            options = replace(options, attn_mask=mask.expand(1, *mask.shape)[-4:].transpose(-4, -3))
        q, k, v = (x.transpose(0, 1) for x in (query, key, value))
        return self._attend_to(q, k, v, options).transpose(0, 1)

    def _attend_to(self, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
        near = self._near_keys(q, k, options)
        if near is not None:
            if not self._has_term() and self._state.is_softmax:
                if self._state.observers.present:
                    self._temper_query(q, k, _with_mask_of_all_heads(q, k, near, options))
                return local_attention(q, k, v, near=near, **self._tempering_options(q), **options.keywords)
            options = _with_mask_of_all_heads(q, k, near, options)
        if not self._state.is_softmax:
            limits = NORMALISERS[self._state.normaliser].limited(self._numbers(q).limit)
            return tempered_attention(
                q,
                k,
                v,
                normaliser=self._state.normaliser,
                **limits,
                **self._tempering_options(q),
                **options.keywords,
            )
        q = self._temper_query(q, k, options)
        if self._has_term():
            valid_BQ = self._unpadded_queries(q, k, options)
            term_options = {**self._term_options(q), "average": self._average}
            return regularised_attention(q, k, v, options, **term_options, valid_BQ=valid_BQ)
        return FUSED(q, k, v, **options.keywords, enable_gqa=q.shape[1] != k.shape[1])

    def attend_multihead(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Return what ``multi_head_attention_forward`` does, of a tempered query."""
        query, key, padding = args[0], args[1], kwargs.get("key_padding_mask")
        self._is_cross = query is not key
        if padding is not None and not self._is_cross:
            valid = visible(padding) if padding.is_floating_point() else ~padding
            self._valid_BQ = valid if valid.ndim == 2 else valid.unsqueeze(0)
        return multi_head_attention(self, *args, **kwargs)

    def attend_with_weights(
        self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, dropout_p: float
    ) -> tuple[Tensor, Tensor]:
        """Return tempered attention and its weights, which are written out."""
        options = AttentionOptions(attn_mask=attn_mask)
        near = self._near_keys(q, k, options)
        if near is not None:
            options = _with_mask_of_all_heads(q, k, near, options)
        q = self._temper_query(q, k, options)
        mask = options.attn_mask
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, float("-inf"))
        logits = compute_logits(q, k, mask)
        is_visible = torch.ones_like(logits, dtype=torch.bool) if mask is None else visible(mask)
        weights = self._compute_weights(logits, is_visible.expand_as(logits), _softmax)
        if dropout_p > 0.0:
            weights = F.dropout(weights, p=dropout_p)
        out_NLD = torch.bmm(weights.flatten(0, 1), v.flatten(0, 1))
        return out_NLD.view(*q.shape[:3], v.shape[-1]), weights

    # ---- attention that is written out

    def product(self, func: Any, args: Any, kwargs: Any, head_dim: int | None) -> Any:
        """Return the product of a tempered operand, whose heads are in that dimension."""
        operand = operand_of(func, args, kwargs)
        inverse = self._numbers(operand).inverse_temperature
        state = self._state
        if state.has_head_factors and head_dim is not None:
            heads_first = self._inverse_temperature(operand.movedim(head_dim, 1))
            inverse = heads_first.reshape(-1, *(1,) * (-1 - head_dim))
        tempered = with_operand(func, args, kwargs, temper(operand, inverse))
        logits = func(*tempered[0], **tempered[1])
        if state.has_more:
            with torch.no_grad():
                self._terms.append((logits, _added_by(func, args, kwargs, logits)))
        return logits

    def _follow_terms(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Do to what was added to logits what is done to these, so that it is known apart from them."""
        terms = [self._term_of(argument) for argument in args]
        if any(term is not None for term in terms):
            pairs = zip(args, terms, strict=True)
            with torch.no_grad():
                added = func(*(argument if term is None else term for argument, term in pairs), **kwargs)
            self._terms = [pair for pair in self._terms if all(pair[0] is not x for x in args)]
            self._terms.append((result, added))

    def _term_of(self, logits: Any) -> Tensor | None:
        return next((added for tensor, added in self._terms if tensor is logits), None)

    def _on_softmax(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        number = self._num_softmaxes
        self._num_softmaxes += 1
        expected = self._pattern.softmaxes
        if number >= len(expected) or expected[number].num_products != self._num_products:
            self._refuse(f"Its softmax number {number + 1} comes after {self._num_products} products.")
        if not expected[number].is_attention:
            return func(*args, **kwargs)  # type: ignore[no-any-return]
        return self.softmax(func, args, kwargs, expected[number])

    def softmax(self, func: Any, args: Any, kwargs: Any, pattern: SoftmaxPattern) -> Tensor:
        """Return the weights that are made of tempered logits."""
        if not self._state.has_more:
            return func(*args, **kwargs)  # type: ignore[no-any-return]
        if self._state.acts_at_softmax:
            self._require_gradients()
        logits = args[0] if args else kwargs["input"]
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        if dim not in (-1, logits.ndim - 1) or logits.ndim not in (3, 4):
            raise AttachError(
                f'"{self._binding.name}" has a softmax over dimension {dim} of {logits.ndim}. {_MORE}'
            )
        added = self._term_of(logits)
        # weights of sharp attention are as small as those of hidden keys: only what was added tells them
        is_visible = above_lowest(logits) if added is None else visible(added)
        head_dim = pattern.head_dim or -3
        if logits.ndim == 3:
            logits_BHQK, visible_BHQK = logits.unsqueeze(1), is_visible.unsqueeze(1)
        else:
            logits_BHQK, visible_BHQK = (x.movedim(head_dim, 1) for x in (logits, is_visible))
        if self._state.has_length_scaling or self._state.has_local_heads:
            logits_BHQK, visible_BHQK = self._scale_by_visible_keys(logits_BHQK, visible_BHQK)
        if self._state.observers.present:
            self._show_logits(logits_BHQK, visible_BHQK)
        positional = (-1, *args[2:]) if len(args) > 1 else ()
        others = {name: -1 if name == "dim" else value for name, value in kwargs.items() if name != "input"}
        weights_BHQK = self._compute_weights(
            logits_BHQK, visible_BHQK, lambda logits: func(logits, *positional, **others)
        )
        return weights_BHQK.squeeze(1) if logits.ndim == 3 else weights_BHQK.movedim(1, head_dim)

    def _scale_by_visible_keys(self, logits_BHQK: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits with what depends on the keys that a query sees, and the mask with local heads."""
        state = self._state
        near = self._near_keys(logits_BHQK, logits_BHQK.transpose(-2, -1), AttentionOptions(attn_mask=mask))
        if near is not None:
            mask = local_mask(logits_BHQK.shape[1], logits_BHQK.shape[-1], near=near, attn_mask=mask)
            logits_BHQK = logits_BHQK.masked_fill(~mask, torch.finfo(logits_BHQK.dtype).min)
        scaled = temper_query(
            logits_BHQK,
            logits_BHQK.shape[-1],
            inverse_temperature=1.0,
            length_scaling=state.length_scaling,
            length_constant=self._numbers(logits_BHQK).length_constant,
            attn_mask=mask,
        )
        return torch.where(mask, scaled, logits_BHQK), mask

    def _show_logits(self, logits_BHQK: Tensor, visible_BHQK: Tensor) -> None:
        """Show logits to observers as queries whose keys are the unit vectors."""
        k_len = logits_BHQK.shape[-1]
        unit_BHKD = torch.eye(k_len, dtype=logits_BHQK.dtype, device=logits_BHQK.device)
        self._state.observers.show(
            self._binding.layer,
            logits_BHQK.masked_fill(~visible_BHQK, 0.0),
            unit_BHKD.expand(*logits_BHQK.shape[:2], -1, -1),
            scale=1.0,
            attn_mask=visible_BHQK,
            is_causal=False,
            valid_BQ=self._self_visible_queries(visible_BHQK, *logits_BHQK.shape[-2:]),
        )

    def _compute_weights(
        self, logits_BHQK: Tensor, visible_BHQK: Tensor, softmax: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return the weights of logits with their masks."""
        state = self._state
        if not state.is_softmax:
            limit = self._numbers(logits_BHQK).limit
            return normalised_weights(state.normaliser, logits_BHQK, limit)
        weights = softmax(logits_BHQK)
        if not self._has_term():
            return weights
        valid_BQ = self._valid_BQ
        if not isinstance(self._module, nn.MultiheadAttention):
            valid_BQ = self._self_visible_queries(visible_BHQK, *logits_BHQK.shape[-2:])
        term = logits_term(logits_BHQK, visible_BHQK, **self._term_options(logits_BHQK), valid_BQ=valid_BQ)
        return add_to_gradient(weights, self._average(term))

    # ---- both forms of attention

    # a method: behind a graph break the compiler cannot read a property of a mode
    def _has_term(self) -> bool:
        if not (self._state.entropy.has_term and self._module.training):
            return False
        if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._binding.numbers.calls.may_recompute = True
        return torch.is_grad_enabled()

    def _average(self, term: Tensor) -> Tensor:
        """Return the entropy term of a call as its part of the mean over the calls of the layer in a step."""
        num_example_calls = self._pattern.num_calls * self._pattern.num_forwards
        if torch.compiler.is_compiling():
            return term / num_example_calls
        return self._binding.numbers.calls.average(term, num_example_calls)

    def _numbers(self, q: Tensor) -> Numbers:
        return self._state.numbers(self._binding.numbers, q)

    def _inverse_temperature(self, q_BHQD: Tensor) -> Tensor:
        return self._state.inverse(self._binding.numbers, self._binding.layer, q_BHQD)

    def _term_options(self, q: Tensor) -> dict[str, Any]:
        numbers = self._numbers(q)
        has_target = self._state.entropy.has_target
        target = numbers.entropy_target if has_target else None
        return {"weight": numbers.entropy_weight, "target": target}

    def _tempering_options(self, q_BHQD: Tensor) -> dict[str, Any]:
        return {
            "length_scaling": self._state.length_scaling,
            "length_constant": self._numbers(q_BHQD).length_constant,
            "inverse_temperature": self._inverse_temperature(q_BHQD),
        }

    def _temper_query(self, q: Tensor, k: Tensor, options: AttentionOptions) -> Tensor:
        """Return the tempered queries, having shown them to observers."""
        q = temper_query(q, k.shape[-2], **self._tempering_options(q), **options.masking)
        if self._state.observers.present:
            masking = {"valid_BQ": self._unpadded_queries(q, k, options), **options.masking}
            self._state.observers.show(self._binding.layer, q, k, scale=options.scale, **masking)
        return q

    def _unpadded_queries(self, q: Tensor, k: Tensor, options: AttentionOptions) -> Tensor | None:
        """Return which queries are not padding, (B, Q) or (1, Q); None: all."""
        q_len, k_len = q.shape[-2], k.shape[-2]
        if options.attn_mask is None or isinstance(self._module, nn.MultiheadAttention):
            return self._valid_BQ
        mask = options.attn_mask.expand(*(1,) * (4 - options.attn_mask.ndim), *options.attn_mask.shape)
        return self._self_visible_queries(visible(mask).expand(-1, -1, q_len, k_len), q_len, k_len)

    def _self_visible_queries(self, visible_BHQK: Tensor, q_len: int, k_len: int) -> Tensor | None:
        """Return which queries see their position among the keys; padding does not."""
        if q_len > k_len or self._is_cross:
            return None
        return visible_BHQK.diagonal(offset=k_len - q_len, dim1=-2, dim2=-1).any(dim=1)

    def _near_keys(self, q: Tensor, k: Tensor, options: AttentionOptions) -> NearKeys | None:
        """Return which keys local heads see; None where there are no such heads, as in cross-attention.

        In a causal module with a cache, a query is the last key that it sees: a cache of a fixed size has
        places behind it.
        """
        if self._is_cross:
            return None
        q_len, k_len = q.shape[-2], k.shape[-2]
        # queries in chunks look like queries behind cached keys
        if 1 < q_len < k_len and self._pattern.num_calls > 1:
            raise AttachError(
                f'"{self._binding.name}" attends in several calls, here with {q_len} queries to {k_len} keys.'
                " Which key each query is cannot be told. Give local_share=0.0, or leave the layer out."
            )
        last_seen = bool(getattr(self._module, "is_causal", True))
        window = self._numbers(q).window
        return near_keys(self._state.local, q, k, window=window, last_seen=last_seen, **options.masking)


_MORE = "Only a temperature can be attached to it, without what depends on heads, keys and weights."


class OracleMode(CallMode):
    """Computes the calls with the temperature put in by other means, for the self-test.

    Fused attention is written out in double precision, of ``nn.MultiheadAttention`` the rows that make the
    query are scaled, and where softmax is written out the logits are, instead of an operand.
    """

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions, enable_gqa: bool = False
    ) -> Tensor:
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = (x.repeat_interleave(groups, dim=-3) for x in (key, value))
        scale = query.shape[-1] ** -0.5 if options.scale is None else options.scale
        logits = query.double() @ key.double().transpose(-2, -1)
        logits = logits * (scale * self._state.values[self._binding.layer])
        if options.is_causal:
            logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -torch.inf)
        mask = options.attn_mask
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
        # a query that sees no key gets zeros
        weights = logits.softmax(dim=-1).nan_to_num(0.0)
        return (F.dropout(weights, options.dropout_p) @ value.double()).to(query.dtype)

    def attend_multihead(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        names = MULTI_HEAD.__code__.co_varnames[: MULTI_HEAD.__code__.co_argcount]
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        inverse, width = self._state.values[self._binding.layer], arguments["embed_dim_to_check"]
        for name in ("in_proj_weight", "q_proj_weight", "in_proj_bias"):
            parameter = arguments.get(name)
            if parameter is not None:
                rows = [parameter[:width].double() * inverse, parameter[width:].double()]
                arguments[name] = torch.cat(rows).to(parameter.dtype)
        return MULTI_HEAD(**arguments)

    def product(self, func: Any, args: Any, kwargs: Any, head_dim: int | None) -> Any:
        inverse = self._state.values[self._binding.layer]
        product = func(*args, **kwargs)
        added = _added_by(func, args, kwargs, product)
        return (added + (product - added).double() * inverse).to(product.dtype)


def _softmax(logits: Tensor) -> Tensor:
    return logits.softmax(dim=-1)


def _added_by(func: Any, args: Any, kwargs: Any, product: Tensor) -> Tensor:
    """Return what a product adds by itself to that of its operands, as baddbmm does."""
    if "baddbmm" not in func.__name__:
        return torch.zeros_like(product)
    nothing = torch.zeros_like(operand_of(func, args, kwargs))
    args, kwargs = with_operand(func, args, kwargs, nothing)
    added: Tensor = func(*args, **kwargs)
    return added


class _NestedModes(threading.local):
    """The modes of layers that nest, in this thread; calls are those of the last one."""

    def __init__(self) -> None:
        self.modes: list[CallMode] = []


_nested = _NestedModes()


@contextmanager
def _innermost(mode: CallMode) -> Iterator[None]:
    _nested.modes.append(mode)
    try:
        with mode:
            yield
    finally:
        _nested.modes.pop()


@contextmanager
def use_mode(state: CallState, mode: type[CallMode]) -> Iterator[None]:
    """Compute the calls with another mode for a while."""
    state.mode = mode
    try:
        yield
    finally:
        state.mode = None


def _read_fused_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor, Tensor, AttentionOptions, bool]:
    """Return the arguments of ``scaled_dot_product_attention`` as :meth:`CallMode.attend` takes them."""
    options = AttentionOptions(attn_mask=attn_mask, is_causal=is_causal, dropout_p=dropout_p, scale=scale)
    return query, key, value, options, enable_gqa


def temper(x: Tensor, inverse: Tensor) -> Tensor:
    """Return a tensor times 1 / τ, in its own type; the product is made in float32 or better."""
    # CUDA rounds a factor without dimensions to the type of the other one first
    factor = inverse.to(wide_type(x))
    return (x * (factor.reshape(1) if factor.ndim == 0 else factor)).to(x.dtype)


def operand_of(func: Any, args: Any, kwargs: Any) -> Tensor:
    """Return the operand of a product that a temperature is put on."""
    position = PRODUCTS[func]
    if position >= len(args):
        operand = next(kwargs[name] for name in _OPERAND_NAMES[::-1] if name in kwargs)
    else:
        operand = args[position][0] if isinstance(args[position], (list, tuple)) else args[position]
    assert isinstance(operand, Tensor)
    return operand


def with_operand(func: Any, args: Any, kwargs: Any, operand: Tensor) -> tuple[Any, Any]:
    """Return the arguments of a product with another tensor in the place of its operand."""
    position = PRODUCTS[func]
    if position >= len(args):
        name = next(name for name in _OPERAND_NAMES[::-1] if name in kwargs)
        return args, {**kwargs, name: operand}
    first = [operand, *args[position][1:]] if isinstance(args[position], (list, tuple)) else operand
    return (*args[:position], first, *args[position + 1 :]), kwargs


def operands_of(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Return the operands of a product."""
    arguments = [*args[PRODUCTS[func] :], *(value for name, value in kwargs.items() if name != "out")]
    flat = [x for value in arguments for x in (value if isinstance(value, (list, tuple)) else [value])]
    return [x for x in flat if isinstance(x, Tensor)]


def are_matrices(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether a product is of two matrices or batches of them, not of vectors."""
    operands = operands_of(func, args, kwargs)
    return len(operands) >= 2 and all(x.ndim >= 2 for x in operands)


def _with_mask_of_all_heads(
    q: Tensor, k: Tensor, near: NearKeys, options: AttentionOptions
) -> AttentionOptions:
    """Return the options with a mask in which the window of local heads is."""
    # a row that is minus infinity throughout would be NaN in a softmax that is written out
    lowest = torch.finfo(q.dtype).min
    mask = local_mask(q.shape[1], k.shape[-2], near=near, hidden=lowest, **options.masking)
    return replace(options, attn_mask=mask, is_causal=False)
