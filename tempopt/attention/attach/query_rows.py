"""Finds the rows that make the queries in the attention layers of a model, and scales them in place.

Knows projections by their place and shape; what temperature they get, and when, is not decided here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from tempopt.errors import AttachError

Layers = Sequence[str] | Literal["auto"]

# Last parts of module names, in lower case, as they are in use in public models.
QUERY_NAMES = frozenset(
    "q query queries q_proj q_lin q_linear query_proj query_projection proj_q proj_query to_q to_query "
    "wq w_q q_net fc_q linear_q query_layer q_b_proj".split()
)
FUSED_NAMES = frozenset("qkv wqkv w_qkv in_proj in_proj_qkv qkv_proj proj_qkv to_qkv c_attn attn_qkv".split())
INTERLEAVED_NAMES = frozenset({"query_key_value", "linear_qkv"})
PROJECTION_NAMES = QUERY_NAMES | FUSED_NAMES | INTERLEAVED_NAMES

# What makes queries beside the projection and has its temperature: those of tokens that all others attend
# to (Longformer), those of positions (DeBERTa), and, as parameters of the attention itself, the query's
# biases for content and for position (Transformer-XL, Conformer).
MORE_PROJECTIONS = ("query_global", "pos_query_proj")
MORE_PARAMETERS = ("pos_bias_u", "pos_bias_v", "bias_u", "bias_v")

# What comes between projection and logits, beside the projection.
_QUERY_NORMS = ("q_norm", "query_norm", "q_layernorm", "query_layernorm", "qk_norm", "norm_q")
QUERY_BIASES = ("q_bias", "query_bias")
# What the query makes beside the logits: kernels of a convolution (ConvBERT).
MADE_OF_QUERY = ("conv_kernel_layer",)

_SAYS_QUERY = re.compile(r"(^|_)(q|query|queries)(_|$)")
# Of low rank, the query is made in two steps, with a norm between them: only the second keeps a factor.
_FIRST_HALF = re.compile(r"(^|_)q(uery)?_(a|down)(_|$)|_(a|down)_q(_|$)")
# What mixes tokens without a softmax, though its projections have the names that those of attention have.
_RECURRENT = re.compile(
    r"mamba|ssm|lightning|linear_?attention|delta_?(net|attention)|short_?conv|rwkv|retention|recurrent|"
    r"rg_?lru|hgrn|gated_?linear|lstm",
    re.IGNORECASE,
)

# What parametrizations, weight_norm, spectral_norm and pruning keep instead, which is refused on its own.
_COMPUTED_FROM = frozenset({"parametrizations", "weight_g", "weight_v", "weight_orig", "bias_orig"})
_HINTS = ("attn", "attention", "query", "qkv", "proj", "wq")
_MAX_LISTED_NAMES = 12
AS_TEMPERED_MODULE = "write the module as a tempopt.TemperedModule whose attention calls self.attend"
# For a softmax that is written out, where there is nothing to be found.
_RECIPE = """ Or attend by, with 1/temperature as a buffer of the module:
from tempopt.attention import tempered_attention
output = tempered_attention(query, key, value, inverse_temperature=self.inverse_temperature)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRows:
    """Where the query lies in one parameter.

    Args:
        parameter: Name of the parameter in its module.
        parts: Number of equal parts along ``axis``, of which the query is the first: 3 where query, key
            and value are fused, else 1.
        axis: Axis of the parameter that runs over output features.
    """

    parameter: str
    parts: int
    axis: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRows:
    """The query projection of one attention layer.

    Args:
        name: Name of ``module`` in the model, as in ``named_modules``.
        module: Module that owns the parameters.
        rows: Where the query lies in its weight and, if it has one, its bias.
        beside: What else makes queries of this attention, with rows of its own; it shares the temperature.
    """

    name: str
    module: nn.Module
    rows: tuple[ParameterRows, ...]
    beside: tuple[QueryRows, ...] = ()

    @property
    def every(self) -> tuple[QueryRows, ...]:
        """All that makes queries of this attention, the projection first."""
        return (self, *self.beside)

    def scale_(self, factor: float) -> None:
        """Multiply the query's rows of weight and bias, and of what is beside, by ``factor``, in place.

        This bakes the temperature ``1 / factor`` into the weights.

        Args:
            factor: Dimensionless; rounded as PyTorch rounds a Python number to the parameter's type.
        """
        with torch.no_grad():
            for rows, parameter in (pair for projection in self.every for pair in projection.parameters()):
                parameter.narrow(rows.axis, 0, parameter.shape[rows.axis] // rows.parts).mul_(factor)

    def parameters(self) -> list[tuple[ParameterRows, Tensor]]:
        """Return its own parameters as the optimizer has them, whether a temperature is attached or not."""
        return [(rows, _parameter(self.module, rows.parameter)) for rows in self.rows]


def leaf(name: str) -> str:
    """Return the last part of a name, in lower case."""
    return name.rpartition(".")[2].lower()


def says_query(name: str) -> bool:
    """Whether the last part of a name says that the module makes queries, in one of its words."""
    return leaf(name) in QUERY_NAMES or bool(_SAYS_QUERY.search(leaf(name)))


def is_first_half(name: str) -> bool:
    """Whether it is the first of two projections of low rank that make the query together."""
    return bool(_FIRST_HALF.search(leaf(name)))


def query_norm(attention: nn.Module) -> str | None:
    """Return the name of what normalises the query after its projection (QK-norm), None without it."""
    for name in _QUERY_NORMS:
        child = attention._modules.get(name)
        if child is not None and not isinstance(child, nn.Identity):
            return name
    return None


def has_no_softmax(mixer: nn.Module) -> bool:
    """Whether it is known for a state space, a linear attention or the like, on which no temperature acts."""
    return bool(_RECURRENT.search(type(mixer).__name__)) or "A_log" in mixer._parameters


def query_rows(model: nn.Module, layers: Layers = "auto") -> list[QueryRows]:
    """Return the query projections of a model, in depth order (the order of ``named_modules``).

    Known by themselves are ``nn.MultiheadAttention`` and what keeps its parameters as it does, linear
    maps and convolutions named as in ``QUERY_NAMES``, and fused ones named as in ``FUSED_NAMES``, if
    their output is three times as wide as their input: query, key and value, in equal parts. With each comes
    what else makes queries of the same attention. State spaces and linear attention, by whatever names, are
    left out: they have no softmax.

    Args:
        model: Any module; not changed.
        layers: ``"auto"``, or patterns as in ``fnmatch`` (``*`` matches dots too). A pattern takes what
            is known among the modules it matches and inside them. Where it finds nothing known, each
            module it matches is taken for a query projection, or for a fused one if its output is three
            times as wide as its input.

    Raises:
        AttachError: if there is none, a pattern finds none, or one cannot be scaled as it is.
    """
    projection_names = _known_projections(model) if layers == "auto" else _match_patterns(model, layers)
    if not projection_names:
        raise AttachError(_nothing_found(model))
    owners = _owners(model)
    for name in projection_names:
        _check_behind(model, name)
    rows_by_name = {
        name: _read(name, module, owners)
        for name, module in model.named_modules()
        if name in projection_names
    }
    return [
        replace(rows, beside=_beside(model, name, owners, projection_names))
        for name, rows in rows_by_name.items()
    ]


def _known_projections(model: nn.Module) -> set[str]:
    return {name for name in _names_of_query_projections(model) if not _without_softmax(model, name)}


def _names_of_query_projections(model: nn.Module) -> list[str]:
    return [
        name for name, module in model.named_modules() if is_packed(module) or leaf(name) in PROJECTION_NAMES
    ]


def _without_softmax(model: nn.Module, name: str) -> bool:
    """Whether a projection feeds what is known to have no softmax, as that of a state space does."""
    return bool(name) and has_no_softmax(model.get_submodule(name.rpartition(".")[0]))


def _match_patterns(model: nn.Module, patterns: Sequence[str]) -> set[str]:
    if isinstance(patterns, str):
        raise AttachError(
            f'layers="{patterns}" is a single text. Give "auto" or a list of patterns, as in ["{patterns}"].'
        )
    known_names = _known_projections(model)
    projection_names: set[str] = set()
    for pattern in patterns:
        matches = {
            name for name in known_names if any(fnmatchcase(ancestor, pattern) for ancestor in lineage(name))
        }
        projection_names |= matches or _unknown_projections(model, pattern)
    return projection_names


def lineage(name: str) -> list[str]:
    """Return the name and the names of all that it is in: ``a.b.c``, ``a.b``, ``a``."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _unknown_projections(model: nn.Module, pattern: str) -> set[str]:
    """Return the projections that are matched but not known, at most one in each parent."""
    names = [name for name, _ in model.named_modules() if name and fnmatchcase(name, pattern)]
    if not names:
        raise AttachError(f'Pattern "{pattern}" in layers matches no module. {_candidates(model)}')
    projections = [name for name in names if output_axis(model.get_submodule(name)) is not None]
    if not projections:
        raise AttachError(
            f'Pattern "{pattern}" in layers matches {some_names(names)}, none of which is a projection '
            f"(nn.Linear, nn.Conv or a Conv1D as in transformers). {_candidates(model)}"
        )
    parents = Counter(name.rpartition(".")[0] for name in projections)
    parent, count = parents.most_common(1)[0]
    if count > 1:
        siblings = [name for name in projections if name.rpartition(".")[0] == parent]
        raise AttachError(
            f'Pattern "{pattern}" in layers matches {count} projections side by side: '
            f"{some_names(siblings)}. Only one of them makes the query: give a pattern that matches it alone."
        )
    return set(projections)


def _read(name: str, module: nn.Module, owners: dict[int, list[str]]) -> QueryRows:
    rows = _rows_of_packed(module) if is_packed(module) else _projection_rows(name, module)
    for row in rows:
        _check_own(name, module, row.parameter, owners)
    return QueryRows(name=name, module=module, rows=rows)


def _beside(
    model: nn.Module, name: str, owners: dict[int, list[str]], projection_names: set[str]
) -> tuple[QueryRows, ...]:
    """Return what makes queries of the same attention beside a projection.

    Raises:
        AttachError: if something else has a name that says so.
    """
    if not name:
        return ()
    attention_name = name.rpartition(".")[0]
    attention = model.get_submodule(attention_name)
    extra_rows = []
    for child, module in attention.named_children():
        full_name = f"{attention_name}.{child}".lstrip(".")
        if full_name in projection_names or output_axis(module) is None or is_first_half(child):
            continue
        if child in MORE_PROJECTIONS:
            extra_rows.append(_read(full_name, module, owners))
        elif says_query(child) and leaf(name) in QUERY_NAMES:
            raise AttachError(
                f'Beside "{name}" there is "{full_name}", by its name another projection that makes queries, '
                "which the temperature would miss. If it makes none, or one of its own, name both in "
                f"layers=[...]; else {AS_TEMPERED_MODULE}."
            )
    parameter_names = [key for key in MORE_PARAMETERS if attention._parameters.get(key) is not None]
    for key in parameter_names:
        _check_own(attention_name, attention, key, owners)
    if parameter_names:
        rows = tuple(ParameterRows(parameter=key, parts=1) for key in parameter_names)
        extra_rows.append(QueryRows(name=attention_name, module=attention, rows=rows))
    return tuple(extra_rows)


def output_axes(model: nn.Module, name: str) -> dict[str, int]:
    """Return the parameters of a projection by name, each with its axis that runs over output features.

    Args:
        model: The model.
        name: Name of the projection in it.

    Raises:
        AttachError: if it is no projection, or rows of its parameters cannot be scaled.
    """
    module, owners = model.get_submodule(name), _owners(model)
    axis = output_axis(module)
    if axis is None:
        raise AttachError(f'"{name}" is a {type(module).__name__}, which is no projection that is known.')
    _check_whole(name, module)
    axes = {"weight": axis} | {rows.parameter: 0 for rows in _bias_rows(module, "bias", parts=1)}
    for parameter in axes:
        _check_own(name, module, parameter, owners)
    return axes


def check_own(model: nn.Module, name: str, parameter: str) -> None:
    """Refuse a parameter that cannot be scaled for one module alone.

    Raises:
        AttachError: if it is computed, quantised or shared.
    """
    _check_own(name, model.get_submodule(name), parameter, _owners(model))


def is_packed(module: nn.Module) -> bool:
    """Whether the module keeps its projections as ``nn.MultiheadAttention`` does."""
    return isinstance(module, nn.MultiheadAttention) or any(
        module._parameters.get(name) is not None for name in ("in_proj_weight", "q_proj_weight")
    )


def _rows_of_packed(module: nn.Module) -> tuple[ParameterRows, ...]:
    # A module with other sizes of key and value has None for in_proj_weight, and q_proj_weight instead.
    is_separate = module._parameters.get("q_proj_weight") is not None
    weight = (
        ParameterRows(parameter="q_proj_weight", parts=1)
        if is_separate
        else ParameterRows(parameter="in_proj_weight", parts=3)
    )
    return (weight, *_bias_rows(module, "in_proj_bias", parts=3))


def _bias_rows(module: nn.Module, name: str, *, parts: int) -> tuple[ParameterRows, ...]:
    # What pruning and weight_norm compute lies in __dict__.
    is_computed = parametrize.is_parametrized(module, name) or module.__dict__.get(name) is not None
    return (
        (ParameterRows(parameter=name, parts=parts),)
        if is_computed or module._parameters.get(name) is not None
        else ()
    )


def _projection_rows(name: str, module: nn.Module) -> tuple[ParameterRows, ...]:
    if leaf(name) in INTERLEAVED_NAMES:
        raise AttachError(
            f'"{name}" holds query, key and value head by head, so its query is not one block of rows. '
            f"Split it into three projections, or {AS_TEMPERED_MODULE}."
        )
    axis = output_axis(module)
    if axis is None:
        raise AttachError(
            f'"{name}" is a {type(module).__name__}; a temperature can be put on nn.Linear, nn.Conv, Conv1D '
            "as in transformers, and nn.MultiheadAttention. If it is an adapter around such a projection "
            "(LoRA), merge it first. If it makes no query, give patterns of the modules that do "
            "(layers=[...])."
        )
    _check_whole(name, module)
    parts = _parts(name, module, axis)
    return (
        ParameterRows(parameter="weight", parts=parts, axis=axis),
        *_bias_rows(module, "bias", parts=parts),
    )


def _parts(name: str, module: nn.Module, axis: int) -> int:
    if leaf(name) in QUERY_NAMES:
        return 1
    output_width, input_width = _widths(module, axis)
    if output_width == 3 * input_width:
        return 3
    if leaf(name) not in FUSED_NAMES:
        return 1
    raise AttachError(
        f'"{name}" looks like query, key and value in one, but its output has {output_width} features and '
        f"not {3 * input_width}, three times its input, so which of them make the query cannot be read from "
        "its shape (keys may be shared by groups of heads). Split it into a projection for the query and one "
        f"for key and value, or {AS_TEMPERED_MODULE}. If it is no attention, give patterns of the modules "
        "that are (layers=[...])."
    )


def _widths(module: nn.Module, axis: int) -> tuple[int, int]:
    """Return the numbers of output and input features."""
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return module.out_channels, module.in_channels
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.shape[axis], weight.shape[1 - axis]


def output_axis(module: nn.Module) -> int | None:
    """Return the weight's axis of output features, None if the module is no known kind of projection."""
    if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return 0
    # Read by name, so that transformers need not be installed: its weight is (input, output).
    if any(kind.__name__ == "Conv1D" for kind in type(module).__mro__):
        return 1
    return None


def _check_behind(model: nn.Module, name: str) -> None:
    """Refuse a projection whose query does not keep a factor on its rows, by what lies beside it."""
    attention = model.get_submodule(name.rpartition(".")[0])
    if is_first_half(name):
        raise AttachError(
            f'"{name}" is the first half of a query of low rank, which is normalised before the second half '
            f"makes the query of it: a factor on its rows is undone. {_candidates(model)}"
        )
    others = [child for child in MADE_OF_QUERY if child in attention._modules]
    biases = [bias for bias in QUERY_BIASES if attention._parameters.get(bias) is not None]
    reason = ""
    if (norm := query_norm(attention)) is not None:
        reason = (
            f'is normalised by "{norm}" after its projection, which undoes a factor on its rows (QK-norm)'
        )
    elif others:
        reason = f'goes into "{others[0]}", too, which is no attention and would be tempered with it'
    elif biases:
        reason = (
            f'gets its bias from "{biases[0]}" beside the projection, where no factor on the rows reaches'
        )
    if reason:
        raise AttachError(
            f'The query of "{name}" {reason}. Attach a model of transformers by its attention interface, or '
            f"{AS_TEMPERED_MODULE}."
        )


def _check_whole(name: str, module: nn.Module) -> None:
    """Refuse a projection that adds something of its own to weight and bias, as a LoRA layer does."""
    member_names = {key for key, value in module._parameters.items() if value is not None} | set(
        module._modules
    )
    extra_names = sorted(member_names - {"weight", "bias"} - _COMPUTED_FROM)
    if extra_names:
        raise AttachError(
            f'"{name}" ({type(module).__name__}) has more than a weight and a bias: '
            f"{some_names(extra_names)}. What that adds to the output would miss the temperature. Merge it "
            f"into the weight first, or {AS_TEMPERED_MODULE}."
        )


def _check_own(
    name: str,
    module: nn.Module,
    parameter: str,
    owners: dict[int, list[str]],
) -> None:
    """Refuse a parameter that is computed, quantised or shared."""
    full_name = f"{name}.{parameter}".lstrip(".")
    value: Tensor | Any = module._parameters.get(parameter)
    reason = ""
    if isinstance(module, torch.jit.ScriptModule):
        reason = "is in TorchScript, which cannot be changed. Attach before scripting"
    elif value is None:
        reason = (
            "is not a parameter but computed from others (a parametrization, weight_norm, spectral_norm or "
            "pruning). Make it one first, as with torch.nn.utils.parametrize.remove_parametrizations"
        )
    elif is_lazy(value):
        reason = "has no shape before the first batch. Make the module with its sizes"
    elif not value.is_floating_point():
        reason = f"is quantised ({value.dtype}). Attach to the model in floating point"
    elif len(owners[id(value)]) > 1:
        reason = f"is shared by {some_names(owners[id(value)])}. Give each its own parameter"
    if reason:
        raise AttachError(f'"{full_name}" {reason}, or {AS_TEMPERED_MODULE}.')


def _owners(model: nn.Module) -> dict[int, list[str]]:
    """Return the full names of each parameter by its id, one for each module that holds it."""
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for key, value in module._parameters.items():
            if value is not None:
                owners.setdefault(id(value), []).append(f"{name}.{key}".lstrip("."))
    return owners


def _parameter(module: nn.Module, name: str) -> Tensor:
    value = module._parameters[name]
    assert value is not None
    return value


def _nothing_found(model: nn.Module) -> str:
    return (
        f"No attention was found in {type(model).__name__}, so no temperature would act: it has no "
        "nn.MultiheadAttention and no projection named as queries usually are "
        f"({', '.join(sorted(QUERY_NAMES | FUSED_NAMES))}) outside of state spaces and linear attention, "
        "which have no softmax. "
        f"{_candidates(model)}{_RECIPE}"
    )


def _candidates(model: nn.Module) -> str:
    """Return the advice on which patterns could be given, with the likeliest modules of this model."""
    projections = [name for name, module in model.named_modules() if name and output_axis(module) is not None]
    if not projections:
        return f"The model has no projections at all: {AS_TEMPERED_MODULE}."
    likely = [name for name in projections if any(hint in name.lower() for hint in _HINTS)] or projections
    likely = [name for name in likely if not is_first_half(name)] or likely
    example = next((name for name in likely if says_query(name)), likely[0])
    return (
        f"Candidates: {some_names(likely)}. Give patterns of those that make the queries, as in "
        f'layers=["{example}"].'
    )


def some_names(names: Iterable[str]) -> str:
    """Return the first names of many, and how many more there are."""
    all_names = list(names)
    suffix = f" and {len(all_names) - _MAX_LISTED_NAMES} more" if len(all_names) > _MAX_LISTED_NAMES else ""
    return ", ".join(all_names[:_MAX_LISTED_NAMES]) + suffix
