"""Shows what goes into each softmax of a forward, while what comes out of it is held.

With the weights held, nothing behind an attention depends on its logits: what moves with a temperature is
where the temperature acts, and all layers are seen in one forward. What follows is not decided here.

Shape suffixes as in attention.py; N is sampled rows of logits, K their keys.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

# Enough rows to see every head, few enough to keep of each layer of a large model.
_ROWS, _NUMBERS, _QUERIES = 4096, 2**18, 32
_SOFTMAX = frozenset({"softmax", "special_softmax", "_softmax", "_safe_softmax"})
# Attention by other kernels, whose logits cannot be seen.
_OPAQUE = re.compile(r"attention|attn|flash", re.IGNORECASE)


@dataclass(slots=True)
class Softmax:
    """One softmax, or one fused attention, of a forward.

    Args:
        logits_NK: Some rows of what goes in, with the mask and in float32 or better; in a graph if gradients
            are taken.
        eps: What the model rounds logits to, relative to 1.
        fused: Whether it is ``scaled_dot_product_attention``, which is certainly attention.
        module_names: Names of the modules that it ran in, outermost first.
    """

    logits_NK: Tensor
    eps: float
    fused: bool
    module_names: tuple[str, ...]


@dataclass(slots=True)
class CapturedSoftmaxes:
    """What was seen of one forward.

    Args:
        softmaxes: In the order in which they ran.
        ran: Names of the watched modules that ran.
        inputs: Floating tensors that a watched module was given, by its name, each a leaf of the graphs of
            what ran in it.
        reached: Of those the ones that its output depends on while weights are held: not what is only added
            to logits, as masks and position biases.
        opaque: Attention that could not be seen into, by the names of the functions.
    """

    softmaxes: list[Softmax] = field(default_factory=list)
    ran: set[str] = field(default_factory=set)
    inputs: dict[str, list[Tensor]] = field(default_factory=dict)
    reached: dict[str, list[Tensor]] = field(default_factory=dict)
    opaque: set[str] = field(default_factory=set)

    def release(self) -> None:
        """Release the graphs, for what is kept of a forward is as much as of a training step."""
        self.inputs.clear()
        self.reached.clear()
        for softmax in self.softmaxes:
            softmax.logits_NK = softmax.logits_NK.detach()


@contextmanager
def capture_softmaxes(model: nn.Module, *, cut: Sequence[str] = ()) -> Iterator[CapturedSoftmaxes]:
    """Hold the weights of each attention of a model for a while, and see its logits.

    Args:
        model: What runs.
        cut: Names of modules whose inputs become leaves, so that graphs end there.
    """
    record = CapturedSoftmaxes()
    active_names: list[str] = []
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            enter, leave = _following(name, record, active_names)
            stack.callback(module.register_forward_pre_hook(enter).remove)
            if name in cut:
                pre_hook, post_hook = _cutting(name, record)
                stack.callback(module.register_forward_pre_hook(pre_hook, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(post_hook).remove)
            stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and it takes seconds to load
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_Holding(record, active_names))
        yield record


def _following(name: str, record: CapturedSoftmaxes, active_names: list[str]) -> tuple[Any, Any]:
    def enter(*_: Any) -> None:
        active_names.append(name)
        record.ran.add(name)

    def leave(*_: Any) -> None:
        del active_names[len(active_names) - 1 - active_names[::-1].index(name) :]

    return enter, leave


def _cutting(name: str, record: CapturedSoftmaxes) -> tuple[Any, Any]:
    """Return hooks that make leaves of what a module is given, and note from which its output comes."""

    def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
        leaves: dict[int, Tensor] = {}

        def cut(value: Any) -> Any:
            if not _is_plain(value):
                return value
            # The same tensor given twice, as query and as key, is one input.
            if id(value) not in leaves:
                leaves[id(value)] = value.detach().clone().requires_grad_()
            # Not the leaf itself, which could not be written to in place.
            return leaves[id(value)] * 1

        inputs = tree_map(cut, (args, kwargs)) if torch.is_grad_enabled() else (args, kwargs)
        record.inputs.setdefault(name, []).extend(leaves.values())
        return inputs

    def after(_: nn.Module, args: Any, output: Any) -> None:
        inputs = [tensor for tensor in record.inputs.get(name, []) if tensor.requires_grad]
        total = sum(tensor.double().sum() for tensor in tree_leaves(output) if _is_plain(tensor))
        if inputs and isinstance(total, Tensor) and total.requires_grad:
            grads = torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)
            reached_inputs = [tensor for tensor, grad in zip(inputs, grads, strict=True) if grad is not None]
            known_ids = {id(tensor) for tensor in record.reached.setdefault(name, [])}
            record.reached[name] += [tensor for tensor in reached_inputs if id(tensor) not in known_ids]

    return before, after


def _is_plain(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.layout == torch.strided
        and not value.is_nested
    )


class _Holding(TorchFunctionMode):
    """Records what goes into softmax, and gives the same weights whatever that is."""

    def __init__(self, record: CapturedSoftmaxes, active_names: Sequence[str]) -> None:
        super().__init__()
        self._captured_softmaxes = record
        self._active_names = active_names

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call_kwargs = kwargs or {}
        name = getattr(func, "__name__", "default")
        # Kernels that were registered are all of one name.
        name = str(func) if name == "default" else name
        if name in _SOFTMAX:
            return self.softmax(*args, **call_kwargs)
        if name == "scaled_dot_product_attention":
            return self.attend(*args, **call_kwargs)
        if func is F.multi_head_attention_forward:
            # It would come back here for ever; what it calls is found in its own module.
            replacements = {"softmax": self.softmax, "scaled_dot_product_attention": self.attend}
            with mock.patch.dict(vars(F), replacements):
                return func(*args, **call_kwargs)
        if _OPAQUE.search(name):
            self._captured_softmaxes.opaque.add(name)
        return func(*args, **call_kwargs)

    def softmax(self, input: Tensor, dim: int | None = None, *args: Any, **kwargs: Any) -> Tensor:
        dtype = kwargs.get("dtype") or next(
            (argument for argument in args if isinstance(argument, torch.dtype)), None
        )
        moved_input = input.movedim(-1 if dim is None else dim, -1)
        rows = moved_input.reshape(-1, moved_input.shape[-1])
        self._record(rows[_some_rows(rows)], input.dtype, fused=False)
        weights = torch.full(
            rows.shape, 0.5 / rows.shape[-1], dtype=dtype or input.dtype, device=input.device
        )
        key_indices = _held_keys(len(rows), rows.shape[-1], input.device)[:, None]
        weights.scatter_add_(1, key_indices, weights.new_full(key_indices.shape, 0.5))
        return weights.view(moved_input.shape).movedim(-1, -1 if dim is None else dim)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        scale = kwargs.get("scale")
        if kwargs.get("enable_gqa"):
            groups = query.shape[-3] // key.shape[-3]
            key, value = (tensor.repeat_interleave(groups, dim=-3) for tensor in (key, value))
        self._record(_some_logits(query, key, attn_mask, is_causal, scale), query.dtype, fused=True)
        key_indices = _held_keys(query.shape[-2], key.shape[-2], query.device)
        out = 0.5 * value.index_select(-2, key_indices) + 0.5 * value.mean(dim=-2, keepdim=True)
        return out.expand(*torch.broadcast_shapes(query.shape[:-2], out.shape[:-2]), *out.shape[-2:])

    def _record(self, logits_NK: Tensor, dtype: torch.dtype, *, fused: bool) -> None:
        eps = torch.finfo(dtype).eps
        # In a backward, what was not kept runs again, of which everything has been seen.
        if torch._C._current_graph_task_id() == -1:
            wide_NK = logits_NK.to(torch.promote_types(logits_NK.dtype, torch.float32))
            self._captured_softmaxes.softmaxes.append(Softmax(wide_NK, eps, fused, tuple(self._active_names)))


def _held_keys(count: int, keys: int, device: torch.device) -> Tensor:
    """Return the key that each query reads most: another one for each, so that tokens stay apart."""
    return (torch.arange(count, device=device) * 3 + 1) % keys


def _some_rows(rows: Tensor) -> Tensor:
    count, keys = rows.shape
    num_rows = min(_ROWS, max(64, _NUMBERS // max(keys, 1)))
    if count <= num_rows:
        return torch.arange(count, device=rows.device)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(count, (num_rows,), generator=generator).to(rows.device)


def _some_logits(
    query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float | None
) -> Tensor:
    """Return the logits of all heads for a few examples and queries, (N, K)."""
    q_len, k_len = query.shape[-2], key.shape[-2]
    is_complete = query.numel() // query.shape[-1] * k_len <= _NUMBERS
    lead_shape = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    query, key = query.expand(*lead_shape, *query.shape[-2:]), key.expand(*lead_shape, *key.shape[-2:])
    step = 1 if is_complete else math.ceil(q_len / _QUERIES)
    query_indices = torch.arange(q_len - 1, -1, -step, device=query.device)
    # Only batches come in hundreds.
    examples = slice(None) if is_complete or len(lead_shape) < 2 else slice(0, 2)
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    wide_dtype = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        q = query[examples].index_select(-2, query_indices).to(wide_dtype)
        logits = (q * factor) @ key[examples].to(wide_dtype).transpose(-2, -1)
    if is_causal:
        hidden = torch.arange(k_len, device=query.device)[None, :] > query_indices[:, None]
        logits = logits.masked_fill(hidden, float("-inf"))
    if attn_mask is not None:
        mask = attn_mask.expand(*lead_shape, q_len, k_len)[examples].index_select(-2, query_indices)
        logits = logits.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else logits + mask
    return logits.reshape(-1, k_len)
