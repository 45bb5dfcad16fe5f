"""Finds the attention calls of a model, by a forward that is looked into or by the code of its modules.

Attention is fused attention, or a softmax whose input comes from a product of activations and whose output
goes into one. What is done to these calls is decided in ``tempopt.attention.attach.call_mode``.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import re
import types
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from tempopt.attention.attach.call_mode import (
    FACTORS,
    FUSED,
    MULTI_HEAD,
    PRODUCTS,
    SOFTMAX,
    TERMS,
    VIEWS,
    CallPattern,
    SoftmaxPattern,
    are_matrices,
    operands_of,
)
from tempopt.attention.attach.example_inputs import Forward
from tempopt.attention.attach.feature_tracer import FeatureTracer
from tempopt.attention.attach.outputs import around, iter_nested_tensors
from tempopt.attention.attach.preserve_state import force_eager, preserve_model_state, preserve_rng_state
from tempopt.attention.functional.logits import visible
from tempopt.errors import AttachError

Layers = Sequence[str] | Literal["auto"]
AS_TEMPERED_MODULE = "write the module as a tempopt.TemperedModule whose attention calls self.attend"

# Behind these begins another part of a network: what they make is no logits of what they are given.
_MAPS = frozenset(
    "linear conv1d conv2d conv3d addmm embedding layer_norm rms_norm group_norm batch_norm".split()
)
# A map of logits themselves, over heads, is passed once.
_MOST_MAPS = 1
# A product with a parameter as it is may be attention with learned queries, but is so more rarely.
_PARAMETER_PRODUCT = 10
# What makes weights of logits, as softmax does, and cannot be told from other uses of it.
_OTHER_WEIGHTS = frozenset("exp sigmoid relu clamp clamp_min softmin gumbel_softmax log_softmax".split())
# Behind these half the logits do not make half of the result.
_BENDS = frozenset(
    "exp sigmoid softmin gumbel_softmax log_softmax logsigmoid softplus silu gelu elu pow square sqrt log "
    "log1p normalize layer_norm rms_norm group_norm instance_norm batch_norm".split()
)
# What makes logits of queries and keys, and is linear in neither or tempered in none.
_OTHER_PRODUCTS = frozenset("cdist inner tensordot".split())
# What makes weights of logits, in a router or a loss too.
_TO_WEIGHTS = frozenset({"softmax", "log_softmax", "cross_entropy"})
# What hides keys where it is done to weights, beside products with a mask.
_HIDES = frozenset("masked_fill where setitem tril triu scatter index_fill masked_scatter".split())
# What merges attention to chunks of keys, by the sum of the exponentials of each.
_MERGES = frozenset({"exp", "logsumexp"})
_LATE_MASK = "it masks or multiplies its weights after the softmax, which hides keys that the softmax sees"
_MERGING = "it takes {} of its logits beside their softmax, as to merge attention to chunks of the keys"
# Attention by other kernels, which cannot be tempered from outside.
_OPAQUE = re.compile(r"attention|attn|flash", re.IGNORECASE)
_FUSED_NAMES = frozenset({"scaled_dot_product_attention", "ALL_ATTENTION_FUNCTIONS"})
_PRODUCT_NAMES = frozenset({"matmul", "bmm", "baddbmm", "einsum"})
_EAGER = "eager_attention_forward"
_MOST_NAMED = 8
_OUTSIDE = "what calls the model"
_NAME_LAYERS = "name the layers that are to have a temperature (layers=[...])"


class NeedsExampleError(AttachError):
    """Which calls are attention cannot be told from the code alone."""


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """A module that attends.

    Args:
        name: Its name in the model, as in ``named_modules``.
        module: The module.
        pattern: Its attention calls.
    """

    name: str
    module: nn.Module
    pattern: CallPattern

    def is_inside(self, outer_layer: AttentionLayer) -> bool:
        """Return whether it is a part of another module that attends."""
        is_within = not outer_layer.name or self.name.startswith(f"{outer_layer.name}.")
        return self is not outer_layer and is_within


def discover(
    model: nn.Module, layers: Layers = "auto", forward: Forward | None = None, *, needs_all: bool = True
) -> list[AttentionLayer]:
    """Return the modules of a model that attend, in depth order.

    Args:
        model: Any module; not changed.
        layers: ``"auto"`` for all, or patterns as in ``fnmatch``. A pattern takes a module that it matches,
            or one inside of which or around which it matches a module, as its query projection. Of linear
            maps it takes those whose output the forward shows to go into a softmax, as routers have, if it
            matches no module around them.
        forward: Runs the model on some batch; it is looked into. None goes by the code of the modules,
            which finds ``nn.MultiheadAttention``, and fused attention in modules without matrix products.
        needs_all: Whether a pattern is refused that matches nothing in the forward.

    Raises:
        NeedsExampleError: if a softmax is written out, and there is no forward.
        AttachError: if there is no attention, or one that cannot be tempered.
    """
    if isinstance(layers, str) and layers != "auto":
        raise AttachError(
            f'layers="{layers}" is a single text. Give "auto" or a list of patterns, as in ["{layers}"].'
        )
    is_whole = layers == "auto"
    trace = _Trace()
    if forward is not None:
        trace = _trace_forward(model, forward)
    trace.opaque |= set(_compiled_attention(model))
    fused_names = _find_by_code(model, asks=is_whole and forward is None)
    patterns = trace.patterns()
    known_layers = [
        AttentionLayer(name, module, patterns.get(name) or _code_pattern(module))
        for name, module in model.named_modules()
        if name in patterns or (name in fused_names and name not in trace.ran)
    ]
    if is_whole:
        trace.refuse_unclear()
        selected, unmatched = known_layers, []
    else:
        gates = [
            AttentionLayer(name, module, CallPattern(is_gate=True))
            for name, module in model.named_modules()
            if name in trace.gates
        ]
        selected = [layer for layer in known_layers + gates if any(_matches(layer, p) for p in layers)]
        unmatched = [p for p in layers if not any(_matches(layer, p) for layer in selected)]
    if not selected or (unmatched and (needs_all or forward is None)):
        raise _create_refusal(model, layers, known_layers, trace, has_forward=forward is not None)
    _refuse_nested(selected, known_layers)
    trace.refuse_bent({layer.name for layer in selected})
    return selected


def refuse_missed(model: nn.Module, names: Container[str], forward: Forward) -> None:
    """Refuse attention, or what may be some, in a forward of an attached model that is in none of its layers.

    Raises:
        AttachError: if there is some.
    """
    trace = _trace_forward(model, forward)
    trace.refuse_unclear(names)
    trace.refuse_bent(names)
    for call in trace.calls:
        if call.owner is not None and not call.is_in(names):
            raise AttachError(
                f'"{call.owner.name}" attends, and has no temperature: its code does not show it. Name the '
                f'layers that are to have one (layers=[...]), with "{call.owner.name}" or without it.'
            )


def _matches(layer: AttentionLayer, pattern: str) -> bool:
    if layer.pattern.is_gate:
        # a pattern of what it is in does not name it: the last map of a classifier is one, too
        is_matched, *are_around_matched = [fnmatchcase(name, pattern) for name in around(layer.name)]
        return is_matched and not any(are_around_matched)
    descendants = (f"{layer.name}.{name}" for name, _ in layer.module.named_modules() if name)
    return any(fnmatchcase(name, pattern) for name in (*around(layer.name), *descendants))


def _describe_other_weights(call: _Call) -> str:
    return (
        f'"{call.frames[-1].name}" makes weights of a matrix product by {call.bend}, which cannot be '
        "tempered from outside: as attention it would stay at temperature 1."
    )


def _create_refusal(
    model: nn.Module,
    layers: Layers,
    known_layers: Sequence[AttentionLayer],
    trace: _Trace,
    *,
    has_forward: bool,
) -> AttachError:
    kind = type(model).__name__
    untempered = [
        f'"{name}" attends by {kernel}, whose logits cannot be reached from outside.'
        for name, kernel in sorted(trace.opaque)
    ]
    untempered += [
        _describe_other_weights(call) for call in trace.calls if call.kind == "other" and call.feeds_product
    ]
    reasons = "".join(f" {reason}" for reason in dict.fromkeys(untempered))
    # a forward may show more
    error = AttachError if has_forward else NeedsExampleError
    if not has_forward:
        _find_by_code(model, asks=True)
    if known_layers:
        names = ", ".join(layer.name for layer in known_layers[:_MOST_NAMED])
        return error(
            f"A pattern in layers={layers!r} matches none of the modules of {kind} that attend: {names}."
            f"{reasons} Give patterns of those."
        )
    source = "in the forward that was run" if has_forward else "by its code"
    advice = (
        "If that leaves attention out, give another example. Else "
        if has_forward
        else "Give an example that attends, as in attach(model, parameters, example=lambda: model(batch)), "
        "or "
    )
    return error(
        f"No attention {'can be tempered' if reasons else 'was found'} in {kind}, {source}: neither "
        "nn.MultiheadAttention nor a call of scaled_dot_product_attention, nor a softmax (torch.softmax) "
        f"whose input is made by a matrix product and whose output goes into one.{reasons} {advice}"
        f"{AS_TEMPERED_MODULE} or divides its logits by self.temperature(NAME) (register_temperature)."
    )


def _refuse_nested(selected: Sequence[AttentionLayer], known_layers: Sequence[AttentionLayer]) -> None:
    for layer in selected:
        for inner in known_layers:
            if inner.is_inside(layer) and inner not in selected:
                raise AttachError(
                    f'"{layer.name}" attends itself, and so does "{inner.name}" inside of it, which is left '
                    f"out. Name both in layers=[...], or neither."
                )


# ---- by code


def _code_pattern(module: nn.Module) -> CallPattern:
    return CallPattern(fused_head_dim=-3 if isinstance(module, nn.MultiheadAttention) else None)


def _find_by_code(model: nn.Module, *, asks: bool) -> set[str]:
    """Return the names of modules that are known to attend by fused attention from their code.

    Raises:
        NeedsExampleError: if ``asks`` and a module may write its softmax out.
    """
    names: set[str] = set()
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        if isinstance(module, nn.MultiheadAttention):
            names.add(name)
            continue
        kind: Any = type(module)
        code = _code_names(kind)
        is_eager = "ALL_ATTENTION_FUNCTIONS" in code and _implementation(module) != "sdpa"
        is_fused, has_products = bool(code & _FUSED_NAMES) and not is_eager, bool(code & _PRODUCT_NAMES)
        if is_fused and not (asks and has_products):
            names.add(name)
        elif asks and (is_eager or is_fused or ("softmax" in code and has_products)):
            raise NeedsExampleError(
                f'Which calls of "{name or type(module).__name__}" are attention cannot be told without a '
                "forward, for it multiplies matrices itself. Give an example, as in attach(model, "
                "parameters, example=lambda: model(batch))."
            )
    return names


def _compiled_attention(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the names of modules whose attention is in a graph, and what the graph is."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and hasattr(module, "inlined_graph"):
            if re.search(r"aten::(softmax|scaled_dot_product)", str(module.inlined_graph)):
                yield name, "TorchScript"
        elif isinstance(module, torch.fx.GraphModule) and "aten.scaled_dot_product" in module.code:
            yield name, "torch.export"


def _implementation(module: nn.Module) -> str | None:
    return getattr(module.__dict__.get("config"), "_attn_implementation", None)


@functools.cache
def _code_names(kind: type[nn.Module]) -> frozenset[str]:
    """Return the names that the forward of a class uses, in its other methods and functions beside it too.

    What transformers has for another implementation is left out.
    """
    names: set[str] = set()
    pending: list[Any] = [kind.forward]
    while pending:
        function = inspect.unwrap(pending.pop())
        if not isinstance(function, types.FunctionType) or str(function.__module__).startswith("torch."):
            continue
        for name in _names_of(function.__code__) - names:
            names.add(name)
            beside = function.__globals__.get(name)
            is_beside = getattr(beside, "__module__", None) == function.__module__ and name != _EAGER
            pending += [beside if is_beside else None, *(vars(base).get(name) for base in kind.__mro__)]
    return frozenset(names)


def _names_of(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    if any(instruction.argrepr in ("@", "@=") for instruction in dis.get_instructions(code)):
        names.add("matmul")
    for constant in code.co_consts:
        names |= _names_of(constant) if isinstance(constant, types.CodeType) else set()
    return names


# ---- by a forward


_CallKind = Literal["fused", "product", "softmax", "other"]


@dataclass(slots=True, eq=False)
class _Frame:
    """One forward of a module, the forward of the model that it is in, if any, and the calls in it."""

    name: str
    model: _Frame | None = None
    calls: list[_Call] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Call:
    """A fused attention, a product or a softmax.

    Args:
        kind: Which of them.
        frames: The forwards that it was made in, outermost first.
        products: Of a softmax the products that its input comes from, of fused attention those that are added
            to its logits by way of the mask, as scores of positions are.
        is_certain: Whether that is without a map between them.
        is_bare: Whether nothing but numbers was multiplied to its input, and nothing but masks added.
        bend: Of a product what it goes through by which a temperature would act otherwise than on logits; of
            other weights than those of softmax what makes them.
        obstacle: As for :class:`~tempopt.attention.attach.call_mode.SoftmaxPattern`.
        feeds_product: Whether its output goes into a product.
        maps: Of a product or a fused attention the maps that its queries and keys come from.
        head_dim: Dimension of heads of the tempered operand or of logits, as for
            :class:`~tempopt.attention.attach.call_mode.SoftmaxPattern`.
        num_heads: Its size.
    """

    kind: _CallKind
    frames: tuple[_Frame, ...]
    products: list[_Call] = field(default_factory=list)
    is_certain: bool = False
    is_bare: bool = False
    bend: str = ""
    obstacle: str = ""
    feeds_product: bool = False
    maps: frozenset[int] = frozenset()
    head_dim: int | None = None
    num_heads: int = 0

    @property
    def owner(self) -> _Frame | None:
        """The innermost forward that an attention is in with all of its products; None of another call."""
        if self.kind == "fused" and not self.products:
            return self.frames[-1]
        if not self.products or self.kind == "other" or not (self.feeds_product or self.kind == "fused"):
            return None
        return [frame for frame in self.frames if all(frame in p.frames for p in self.products)][-1]

    def is_in(self, names: Container[str]) -> bool:
        """Return whether it was made in a forward of one of these modules."""
        return any(frame.name in names for frame in self.frames)


@dataclass(slots=True)
class _Origin:
    """What a tensor comes from.

    Args:
        products: Each product that it was last made by, to the number of maps since.
        softmaxes: The same of softmaxes.
        is_parameter: Whether it is a parameter as it is, or a view of one.
        is_bare: Whether it is such a product with nothing but numbers multiplied to it and masks added.
        is_learned: Whether a parameter has a part in it, as in all but inputs and masks.
        is_masked: Whether keys may be hidden in it that are not in the softmaxes.
        maps: The maps that it was last made by.
    """

    products: dict[_Call, int] = field(default_factory=dict)
    softmaxes: dict[_Call, int] = field(default_factory=dict)
    is_parameter: bool = False
    is_bare: bool = False
    is_learned: bool = False
    is_masked: bool = False
    maps: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Trace:
    """What was seen of a forward.

    Args:
        frames: The forwards that are under way.
        calls: The calls that were made.
        opaque: Modules that attend by other kernels, and these.
        ran: Names of the modules that ran.
        gates: Names of linear maps whose output goes into a softmax that is not attention, as of routers.
    """

    frames: list[_Frame] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    opaque: set[tuple[str, str]] = field(default_factory=set)
    ran: set[str] = field(default_factory=set)
    gates: set[str] = field(default_factory=set)

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """Record a forward of a module."""
        frame = _Frame(name, next((outer for outer in self.frames if not outer.name), None))
        self.frames.append(frame)
        self.ran.add(name)
        try:
            yield
        finally:
            self.frames.pop()

    def record(self, kind: _CallKind) -> _Call:
        """Record a call in every forward that is under way."""
        call = _Call(kind, tuple(self.frames))
        self.calls.append(call)
        for frame in self.frames:
            frame.calls.append(call)
        return call

    def refuse_unclear(self, tempered: Container[str] = ()) -> None:
        """Refuse to temper all attention where it is not clear what is attention.

        Args:
            tempered: Names of the layers that have a temperature, whose softmaxes are clear.

        Raises:
            AttachError: if other kernels ran, attention is in no module, or a softmax of products goes into
                no product.
        """
        for name, kernel in sorted(self.opaque):
            raise AttachError(
                f'"{name}" attends by {kernel}, whose logits cannot be reached from outside: it would stay '
                "at temperature 1 while the rest is tempered. Have it call scaled_dot_product_attention "
                f"(attach before it is scripted or exported), or {_NAME_LAYERS}."
            )
        for call in self.calls:
            if call.is_in(tempered):
                continue
            if call.owner is not None and call.owner.name == _OUTSIDE:
                raise AttachError(
                    "An attention is computed outside of the forward of every module, as in a training step: "
                    "no temperature can be attached there. Have a module of its own compute it in its "
                    f"forward, or {_NAME_LAYERS}."
                )
            if call.kind == "other" and call.feeds_product:
                raise AttachError(f"{_describe_other_weights(call)} Have it call softmax, or {_NAME_LAYERS}.")
            if call.is_certain and not call.feeds_product:
                raise AttachError(
                    f'"{call.frames[-1].name}" takes a softmax of a matrix product, but what comes out '
                    "goes into no matrix product, so it may be attention or not, as in a loss. Name the "
                    "layers beside it that are to have a temperature (layers=[...]), or "
                    f"{AS_TEMPERED_MODULE}."
                )

    def refuse_bent(self, names: Container[str]) -> None:
        """Refuse layers whose logits do not follow their products.

        Raises:
            AttachError: if there is one among these names.
        """
        for call in self.calls:
            bends = [product.bend for product in call.products if product.bend]
            if bends and call.owner is not None and call.owner.name in names:
                raise AttachError(
                    f'The logits of "{call.owner.name}" cannot be tempered from outside: the products that '
                    f"they are made of go through {bends[0]}, too. Leave the layer out (layers=[...] takes "
                    f"patterns), or {AS_TEMPERED_MODULE}."
                )

        logits = {product for call in self.calls if call.owner is not None for product in call.products}
        for call in self.calls:
            name = call.frames[-1].name
            if call.kind == "other" and call.bend in _MERGES and name in names:
                if not logits.issuperset(call.products):
                    raise AttachError(
                        f'"{name}" takes {call.bend} of a matrix product beside its attention: that part of '
                        f"it would stay at temperature 1. Leave the layer out (layers=[...] takes "
                        f"patterns), or {AS_TEMPERED_MODULE}."
                    )

    def patterns(self) -> dict[str, CallPattern]:
        """Return the attention calls of each module that attends.

        Raises:
            AttachError: if a module attends differently from call to call.
        """
        owners = dict.fromkeys(call.owner for call in self.calls if call.owner is not None)
        patterns: dict[str, CallPattern] = {}
        for owner in owners:
            pattern = _call_pattern(owner, owners)
            previous = patterns.get(owner.name, pattern)
            if pattern != previous:
                # a bias of positions may be added in some of its calls
                pattern, previous = _without_bare(pattern), _without_bare(previous)
            if pattern != previous:
                raise AttachError(
                    f'"{owner.name}" attends differently from call to call of one forward, so that its '
                    f"attention cannot be told from its other products. To have a temperature there, "
                    f"{AS_TEMPERED_MODULE}."
                )
            patterns[owner.name] = pattern
        # a model may run its layer several times, and an example its model
        counts = Counter((owner.name, owner.model) for owner in owners)
        for (name, _), count in counts.items():
            patterns[name] = replace(patterns[name], num_forwards=count)
        return patterns


def _without_bare(pattern: CallPattern) -> CallPattern:
    softmaxes = tuple(replace(softmax, is_bare=False) for softmax in pattern.softmaxes)
    return replace(pattern, softmaxes=softmaxes)


def _call_pattern(owner: _Frame, owners: Container[_Frame]) -> CallPattern:
    """Return the calls of a forward, without those of forwards inside of it that attend too."""
    calls = [
        call
        for call in owner.calls
        if not any(frame in owners for frame in call.frames[call.frames.index(owner) + 1 :])
    ]
    num_fused = sum(call.kind == "fused" for call in calls)
    products = [call for call in calls if call.kind == "product"]
    attention = [call for call in calls if call.owner is owner and call.products]
    fused_head_dims = {call.head_dim for call in calls if call.kind == "fused"} or {None}
    fused_head_dim = fused_head_dims.pop() if len(fused_head_dims) == 1 else None
    # of several calls with one head each may be another one
    has_several = sum(call.kind == "fused" or call in attention for call in calls) > 1
    if has_several and any(call.num_heads == 1 for call in calls if call.kind == "fused"):
        fused_head_dim = None
    if not attention:
        return CallPattern(num_fused=num_fused, fused_head_dim=fused_head_dim)
    logits = {product for call in attention for product in call.products}
    for merge in calls:
        if merge.kind == "other" and merge.bend in _MERGES:
            for call in attention:
                if not call.obstacle and not set(merge.products).isdisjoint(call.products):
                    call.obstacle = _MERGING.format(merge.bend)
    return CallPattern(
        num_fused=num_fused,
        fused_head_dim=fused_head_dim,
        softmaxes=tuple(
            SoftmaxPattern(
                is_attention=call in attention,
                num_products=sum(previous.kind == "product" for previous in calls[:position]),
                is_bare=call.is_bare,
                obstacle=call.obstacle,
                head_dim=None if call.num_heads == 1 and has_several else call.head_dim,
            )
            for position, call in enumerate(calls)
            if call.kind == "softmax"
        ),
        products={number: call.head_dim for number, call in enumerate(products) if call in logits},
        num_products=len(products),
    )


class _TraceMode(TorchFunctionMode):
    """Follows what tensors come from."""

    def __init__(self, trace: _Trace) -> None:
        super().__init__()
        self._trace = trace
        self._origins: Any = WeakIdKeyDictionary()
        self._nothing = _Origin()
        self._features = FeatureTracer()
        self._map_names: list[str] = []
        # where keys are hidden in logits
        self._logit_masks: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is FUSED or func is MULTI_HEAD:
            call, mask = self._trace.record("fused"), args[3] if len(args) > 3 else kwargs.get("attn_mask")
            if func is MULTI_HEAD:
                call.head_dim = -3
                return result
            query, key = (args[i] if i < len(args) else kwargs[n] for i, n in enumerate(("query", "key")))
            call.head_dim, call.num_heads = self._features.head_dim(query, key, dims=range(query.ndim - 2))
            if mask is not None:
                call.maps = self._origin(query).maps | self._origin(key).maps
                added = self._origin(mask).products
                call.products = [product for product in added if product.maps & call.maps]
            return result
        name = getattr(func, "__name__", "default")
        if _OPAQUE.search(str(func) if name == "default" else name):
            self._trace.opaque.add((self._trace.frames[-1].name, str(name)))
            return result
        origin = self._origin_after(func, name, args, kwargs)
        is_product = func in PRODUCTS and are_matrices(func, args, kwargs)
        operands = operands_of(func, args, kwargs) if is_product else []
        weights = [operand for operand in operands if self._origin(operand).is_parameter]
        heads = self._features.follow(func, args, kwargs, result, weights=weights)
        if func in SOFTMAX or is_product:
            self._trace.calls[-1].head_dim, self._trace.calls[-1].num_heads = heads
        if origin is self._nothing:
            return result
        targets = [args[0]] if name == "__setitem__" else iter_nested_tensors(result)
        for tensor in targets:
            if not isinstance(tensor, nn.Parameter):
                self._origins[tensor] = origin
        return result

    def _origin_after(self, func: Any, name: str, args: Any, kwargs: Any) -> _Origin:
        origins = [self._origin(tensor) for tensor in iter_nested_tensors((args, kwargs))]
        if name in _TO_WEIGHTS and not origins[0].products:
            self._trace.gates |= {self._map_names[number] for number in origins[0].maps}
        if func in SOFTMAX:
            return self._softmax(origins[0])
        if func in PRODUCTS and are_matrices(func, args, kwargs):
            operands = [self._origin(operand) for operand in operands_of(func, args, kwargs)]
            origin = self._product(operands)
            added = args[0] if "baddbmm" in name else None
            origin.is_bare = origin.is_bare and (added is None or _is_mask(added))
            return origin
        if name in _OTHER_PRODUCTS or (name == "linear" and len(origins) > 1 and origins[1].maps):
            return self._product(origins, bend=name)
        if not any(origin is not self._nothing for origin in origins):
            return self._nothing
        self._note_bends(name.strip("_"), origins)
        merged = _merge_origins(origins, maps=int(name in _MAPS))
        beside = [x for x in iter_nested_tensors((args, kwargs)) if not self._origin(x).products]
        direct = [product for product, num_maps in merged.products.items() if num_maps == 0]
        if name in (_OTHER_WEIGHTS | _MERGES) and direct:
            call = self._trace.record("other")
            call.bend, call.products = name, direct
            if name in _OTHER_WEIGHTS:
                merged.softmaxes[call] = 0
        self._note_masks(name.strip("_"), args, kwargs, merged)
        if name in _MAPS:
            # a map over heads makes others of them (talking heads)
            for product in merged.products:
                product.head_dim = None
            merged.maps = frozenset({len(self._map_names)})
            self._map_names.append(self._trace.frames[-1].name)
        merged.is_bare = any(origin.is_bare for origin in origins) and (
            name in VIEWS
            or (name.strip("_") in FACTORS and all(x.numel() == 1 for x in beside))
            or (name.strip("_") in TERMS and all(map(_is_mask, beside)))
        )
        return merged

    def _note_bends(self, name: str, origins: Sequence[_Origin]) -> None:
        """Note which products go through what a temperature on them would not pass."""
        direct = [[call for call, maps in origin.products.items() if not maps] for origin in origins]
        multiplies = name in FACTORS and sum(map(bool, direct)) > 1
        if multiplies or name in _BENDS:
            for product in itertools.chain(*direct):
                product.bend = "another product" if multiplies else name

    def _note_masks(self, name: str, args: Any, kwargs: Any, merged: _Origin) -> None:
        """Note masks of logits, and weights that are masked by others."""
        operands = list(iter_nested_tensors((args, kwargs)))
        weights = [x for x in operands if 0 in self._origin(x).softmaxes.values()]
        if not weights:
            if 0 in merged.products.values() and name in TERMS:
                self._logit_masks += [x for x in operands if x.dtype == torch.bool]
        elif name in _HIDES and (name != "setitem" or args[0] is weights[0]):
            merged.is_masked |= not any(map(self._is_logit_mask, operands))
        elif name in FACTORS:
            merged.is_masked |= any(x is not weights[0] and self._is_key_factor(x) for x in operands)

    def _is_logit_mask(self, mask: Tensor) -> bool:
        # two masks that hide nothing in the example may hide other keys in training
        return mask.dtype == torch.bool and any(
            mask is logit_mask or (bool(mask.any()) and torch.equal(mask, logit_mask))
            for logit_mask in self._logit_masks
        )

    def _is_key_factor(self, factor: Tensor) -> bool:
        """Return whether a factor of weights may differ between keys, or leave out queries as a mask does."""
        is_of_keys = factor.ndim > 0 and factor.shape[-1] > 1
        is_of_queries = factor.ndim > 1 and factor.shape[-2] > 1
        origin = self._origin(factor)
        return is_of_keys or (is_of_queries and not origin.is_learned and not origin.softmaxes)

    def _origin(self, tensor: Tensor) -> _Origin:
        if isinstance(tensor, nn.Parameter):
            return _Origin(is_parameter=True, is_learned=True)
        origin: _Origin = self._origins.get(tensor, self._nothing)
        return origin

    def _softmax(self, origin: _Origin) -> _Origin:
        call = self._trace.record("softmax")
        fewest = min(origin.products.values(), default=0)
        call.products = [product for product, maps in origin.products.items() if maps == fewest]
        # what queries or keys make with a parameter is part of their logits, as scores of segments are
        maps = _maps_of(call.products)
        call.products += [
            product for product in origin.products if product not in call.products and product.maps & maps
        ]
        call.is_certain = bool(call.products) and fewest == 0
        call.is_bare = origin.is_bare
        return _Origin(softmaxes={call: 0})

    def _product(self, operands: Sequence[_Origin], bend: str = "") -> _Origin:
        call = self._trace.record("other" if bend else "product")
        call.bend = bend
        call.maps = _maps_of(operands)
        if any(operand.is_parameter for operand in operands):
            origin = _merge_origins(operands, maps=1)
            origin.products[call] = _PARAMETER_PRODUCT
            return origin
        for operand in operands:
            for softmax in operand.softmaxes:
                softmax.feeds_product = True
                softmax.obstacle = softmax.obstacle or (_LATE_MASK if operand.is_masked else "")
        # one of inputs alone is rather of masks than of queries and keys
        is_learned = any(operand.is_learned for operand in operands)
        # what attention returns goes through a map into the softmax of a router or of pooling
        is_output = any(operand.softmaxes for operand in operands)
        num_maps = int(is_output or not is_learned)
        return _Origin(products={call: num_maps}, is_bare=True, is_learned=is_learned)


class SoftmaxInputs(TorchFunctionMode):
    """Records the inputs of softmaxes.

    Args:
        replacements: Inputs to give to the softmaxes instead, where shapes are equal.
    """

    def __init__(self, replacements: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.inputs: list[Tensor] = []
        self._replacements = iter(replacements)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = dict(kwargs or {})
        if getattr(func, "__name__", "") not in _TO_WEIGHTS:
            return func(*args, **arguments)
        logits = args[0] if args else arguments.pop("input")
        self.inputs.append(logits.detach().clone())
        replacement = next(self._replacements, logits)
        return func(replacement if replacement.shape == logits.shape else logits, *args[1:], **arguments)


def _is_mask(tensor: Any) -> bool:
    """Return whether a term of logits, or what replaces them, only hides keys: softmax knows no constant."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or not tensor.ndim:
        return True
    return not bool((tensor - tensor.amax(dim=-1, keepdim=True))[visible(tensor)].any())


def _maps_of(sources: Iterable[_Origin | _Call]) -> frozenset[int]:
    return frozenset[int]().union(*(source.maps for source in sources))


def _merge_origins(origins: Sequence[_Origin], *, maps: int) -> _Origin:
    """Return the origin of a result of tensors with these origins, behind so many maps."""
    merged = _Origin(
        is_parameter=not maps and all(origin.is_parameter for origin in origins),
        is_learned=any(origin.is_learned for origin in origins),
        is_masked=any(origin.is_masked for origin in origins),
        maps=_maps_of(origins),
    )
    for origin in origins:
        for sources, targets in ((origin.products, merged.products), (origin.softmaxes, merged.softmaxes)):
            for source, count in sources.items():
                if (count + maps) % _PARAMETER_PRODUCT <= _MOST_MAPS:
                    targets[source] = min(count + maps, targets.get(source, count + maps))
    return merged


def _trace_forward(model: nn.Module, forward: Forward) -> _Trace:
    """Run a forward in eval mode and return its trace; leave the model as it was."""
    trace = _Trace()
    devices = {parameter.device for parameter in model.parameters()}
    with ExitStack() as stack:
        stack.enter_context(preserve_model_state(model))
        stack.enter_context(preserve_rng_state(devices))
        stack.enter_context(force_eager())
        for name, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                _watch(stack, trace, name, module)
        stack.enter_context(trace.within(_OUTSIDE))
        stack.enter_context(torch.no_grad())
        stack.enter_context(_TraceMode(trace))
        forward()
    return trace


def _watch(stack: ExitStack, trace: _Trace, name: str, module: nn.Module) -> None:
    """Record the forwards of a module by a subclass, as an attached module has one.

    A forward in the instance does not call that of the class: its calls count as those of the parent.
    """
    own_class: Any = type(module)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with trace.within(name):
            return own_class.forward(self, *args, **kwargs)

    watched = type(own_class.__name__, (own_class,), {"forward": functools.wraps(own_class.forward)(forward)})
    object.__setattr__(module, "__class__", watched)
    stack.callback(object.__setattr__, module, "__class__", own_class)
