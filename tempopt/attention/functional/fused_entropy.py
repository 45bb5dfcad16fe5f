"""Attention and its entropy in one pass over tiles of the logits, without their whole matrix.

This file has the operator and its derivative; entropy.py documents its use. Shape suffixes as in
attention.py; N is batch and heads flattened, R the rows and C the columns of a tile.

A tile is processed while it is in the cache. Maximum, sum and sum of a_ij ln a_ij are carried from tile to
tile as in online softmax (Milakov and Gimelshein 2018; Dao et al. 2022), so the entropy costs one more pass
over a tile and no matrix product. The derivative recomputes each tile: dL/ds_ij = a_ij (g_i·v_j - g_i·o_i -
h_i (ln a_ij + H_i)), with g and h the gradients of the output and the entropy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tempopt.attention.functional.logits import above_lowest, full_precision, repeat_heads, wide_type

# Added to a hidden logit: its weight is then 0, and 0 times it is 0 and not NaN, unlike minus infinity.
_HIDDEN = -1e30
# 2^x is several times faster than e^x where MKL computes the latter.
_LOG2_E = 1.0 / math.log(2.0)
_LN_2 = math.log(2.0)
# Numbers in a tile per thread: a megabyte in float32, the size of a core's second-level cache. These columns
# were the fastest of those tried on a CPU; the lower a tile, the less of a causal one is computed in vain.
_TILE, _COLUMNS, _CAUSAL_COLUMNS = 1 << 18, 512, 1024
_SMALLEST_TILE = 1 << 14
# smaller tiles do not saturate a GPU
_CUDA_TILE = 1 << 25


def attention_and_entropy(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKD: Tensor | None,
    attn_mask: Tensor | None,
    scale: float,
    is_causal: bool,
) -> tuple[Tensor, Tensor]:
    """Return softmax(Q K^T scale + mask) V, and the entropy of the softmax in nats, in O(Q + K) memory.

    Args:
        q_BHQD: Queries.
        k_BHKD: Keys; of as many heads as the queries, or of a number that divides theirs.
        v_BHKD: Values, of the keys' heads and of any head dimension; None for the entropy alone.
        attn_mask: Boolean or floating mask that broadcasts to BHQK, or None. It gets no gradient.
        scale: Factor on the logits.
        is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.

    Returns:
        The output in the queries' type, empty without values, and the entropy (B, H, Q) in float32, or in
        float64 for float64 queries. Both are 0, with gradient 0, for a query that sees no key.

    Only the first derivative exists: PyTorch refuses to differentiate twice.
    """
    if attn_mask is None and _is_kernel_applicable(q_BHQD, k_BHKD, v_BHKD):
        return _entropy_with_keys_as_values(_cuda_kernel, q_BHQD, k_BHKD, v_BHKD, scale, is_causal)
    out_BHQD, entropy_BHQ, *_ = _forward(q_BHQD, k_BHKD, v_BHKD, attn_mask, scale, is_causal)
    return out_BHQD, entropy_BHQ


@torch.no_grad()
def largest_logits(
    q_BHQD: Tensor, k_BHKD: Tensor, attn_mask: Tensor | None, scale: float, is_causal: bool
) -> Tensor:
    """Return the largest visible logit of each query, (B, H, Q), from the pass of the entropy."""
    return _forward(q_BHQD, k_BHKD, None, attn_mask, scale, is_causal)[3]  # type: ignore[no-any-return]


def _is_kernel_applicable(q: Tensor, k: Tensor, v: Tensor | None) -> bool:
    """Return whether torch's memory-efficient CUDA kernel supports these; it requires aligned, dense rows."""
    if not q.is_cuda or k.shape[-2] == 0 or q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return False
    is_aligned = all(
        tensor is None or (tensor.dtype == q.dtype and tensor.shape[-1] % 8 == 0) for tensor in (q, k, v)
    )
    # Values are concatenated with the keys first, which makes their rows dense.
    return is_aligned and q.stride(-1) == k.stride(-1) == 1


def _cuda_kernel(q: Tensor, k: Tensor, v: Tensor, scale: float, is_causal: bool) -> tuple[Tensor, Tensor]:
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        q, k, v, None, True, 0.0, is_causal, scale=scale
    )
    # the kernel pads the rows
    return out, lse[..., : q.shape[-2]]


def _entropy_with_keys_as_values(
    kernel: Callable[[Tensor, Tensor, Tensor, float, bool], tuple[Tensor, Tensor]],
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKD: Tensor | None,
    scale: float,
    is_causal: bool,
) -> tuple[Tensor, Tensor]:
    """Return output and entropy from a kernel that returns output and log-sum-exp, with keys as extra values.

    H_i = lse_i - q_i·E_i[k] scale. In its derivative only the term of the weights in E_i[k] remains, so the
    other terms are detached, and the kernel's own derivative suffices.
    """
    frozen = k_BHKD.detach()
    values = frozen if v_BHKD is None else torch.cat((v_BHKD, frozen), dim=-1)
    result, lse_BHQ = kernel(q_BHQD, k_BHKD, values, scale, is_causal)
    dtype = wide_type(q_BHQD)
    out_BHQD, mean_key_BHQD = result.split((values.shape[-1] - frozen.shape[-1], frozen.shape[-1]), dim=-1)
    mean_logit = scale * torch.linalg.vecdot(q_BHQD.detach().to(dtype), mean_key_BHQD.to(dtype))
    entropy = lse_BHQ.detach().to(dtype) - mean_logit
    # Negative values are rounding errors; the clamp must not affect the gradient.
    entropy = entropy - entropy.detach().clamp(max=0.0)
    return (out_BHQD if v_BHKD is not None else out_BHQD.new_empty(0)), entropy


class _Tiles:
    """The tiles in the order of visiting, and their logits in bits (log to the base 2)."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor | None, mask: Tensor | None, scale: float, is_causal: bool
    ) -> None:
        self.dtype = wide_type(q)
        self.batch, self.num_heads, self.q_len, _ = q.shape
        self.k_len = k.shape[-2]
        self.group = max(1, self.num_heads // max(1, k.shape[1]))
        self.q_NQD = q.flatten(0, 1)
        self.k_NKD = k.flatten(0, 1)
        self.v_NKD = None if v is None else v.flatten(0, 1)
        self.mask = mask if mask is None else mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
        self.scale = scale
        self.is_causal = is_causal
        # Tiles larger than the result would dominate the memory in use.
        tile_size = min(_TILE, max(_SMALLEST_TILE, q.numel()))
        budget = _CUDA_TILE if q.is_cuda else tile_size * torch.get_num_threads()
        heads = self.q_NQD.shape[0]
        self.columns = max(1, min(_CAUSAL_COLUMNS if is_causal else _COLUMNS, self.k_len))
        rows = max(1, min(tile_size // self.columns, self.q_len))
        self.heads = max(1, min(heads, budget // (rows * self.columns)))
        self.rows = max(rows, min(self.q_len, budget // (self.heads * self.columns)))

    def head_slices(self) -> Iterator[slice]:
        heads = self.q_NQD.shape[0]
        return (slice(start, min(start + self.heads, heads)) for start in range(0, heads, self.heads))

    def row_slices(self) -> Iterator[slice]:
        return (slice(start, min(start + self.rows, self.q_len)) for start in range(0, self.q_len, self.rows))

    def column_slices(self, rows: slice) -> Iterator[slice]:
        end = min(self.k_len, rows.stop) if self.is_causal else self.k_len
        return (slice(start, min(start + self.columns, end)) for start in range(0, end, self.columns))

    def buffer(self) -> Tensor:
        size = self.heads * self.rows * self.columns
        return torch.empty(size, dtype=self.dtype, device=self.q_NQD.device)

    def queries(self, heads: slice, rows: slice) -> Tensor:
        return self.q_NQD[heads, rows].to(self.dtype) * (self.scale * _LOG2_E)

    def select_kv(self, x_NKD: Tensor, heads: slice) -> Tensor:
        """Return the keys or values that these heads share, in the type of the computation."""
        kv_index = self.kv_heads(heads)
        return x_NKD[kv_index].to(self.dtype)

    def kv_heads(self, heads: slice) -> slice | Tensor:
        if self.group == 1:
            return heads
        if heads.stop - heads.start == 1:
            return slice(heads.start // self.group, heads.start // self.group + 1)
        return torch.arange(heads.start, heads.stop, device=self.q_NQD.device) // self.group

    def hide(self, logits: Tensor, heads: slice, rows: slice, columns: slice) -> None:
        """Add the mask to the logits of a tile: some rows of some heads against some keys."""
        if self.mask is not None:
            logits.add_(self._bias(self.mask, heads, rows, columns))
        column, row = columns.start, rows.start
        if self.is_causal and columns.stop - 1 > row:
            seen_by_all = max(row - column, 0)
            edge = logits[..., seen_by_all:]
            hidden = torch.full(edge.shape[-2:], _HIDDEN, dtype=self.dtype, device=logits.device)
            edge.add_(hidden.triu(1 + row - column - seen_by_all))

    def _bias(self, mask: Tensor, heads: slice, rows: slice, columns: slice) -> Tensor:
        mask = mask[..., rows if mask.shape[-2] > 1 else slice(None), :]
        mask = mask[..., columns if mask.shape[-1] > 1 else slice(None)]
        if mask.shape[0] == 1 and mask.shape[1] == 1:
            part = mask[0]
        else:
            head_N = torch.arange(heads.start, heads.stop, device=mask.device)
            shape = (self.batch, self.num_heads, *mask.shape[-2:])
            part = mask.expand(shape)[head_N // self.num_heads, head_N % self.num_heads]
        if part.dtype == torch.bool:
            return torch.zeros(part.shape, dtype=self.dtype, device=part.device).masked_fill_(~part, _HIDDEN)
        return (part.to(self.dtype) * _LOG2_E).masked_fill_(~above_lowest(part), _HIDDEN)


def _slice_buffers(buffers: tuple[Tensor, ...], heads: int, rows: int, columns: int) -> list[Tensor]:
    return [buffer[: heads * rows * columns].view(heads, rows, columns) for buffer in buffers]


def _forward_kernel(
    q: Tensor, k: Tensor, v: Tensor | None, mask: Tensor | None, scale: float, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    with full_precision(q.device.type):
        tiles = _Tiles(q, k, v, mask, scale, is_causal)
        entropy, lse = (torch.zeros(q.shape[:3], dtype=tiles.dtype, device=q.device) for _ in range(2))
        largest = torch.full_like(lse, -math.inf)
        out = q.new_zeros((*q.shape[:3], v.shape[-1]) if v is not None else (0,))
        buffers = tiles.buffer(), tiles.buffer()
        for heads in tiles.head_slices():
            keys = tiles.select_kv(tiles.k_NKD, heads)
            values = None if tiles.v_NKD is None else tiles.select_kv(tiles.v_NKD, heads)
            for rows in tiles.row_slices():
                part = _forward_rows(tiles, heads, rows, keys, values, buffers)
                if part is None:
                    continue
                entropy.flatten(0, 1)[heads, rows] = part[1]
                lse.flatten(0, 1)[heads, rows] = part[2]
                largest.flatten(0, 1)[heads, rows] = part[3]
                if part[0] is not None:
                    out.flatten(0, 1)[heads, rows] = part[0].to(q.dtype)
        return out, entropy, lse, largest


def _forward_rows(
    tiles: _Tiles,
    heads: slice,
    rows: slice,
    keys: Tensor,
    values: Tensor | None,
    buffers: tuple[Tensor, Tensor],
) -> tuple[Tensor | None, Tensor, Tensor, Tensor] | None:
    """Return output, entropy in nats, log-sum-exp in bits and largest logit of some rows.

    It is None if there are no keys.
    """
    queries = tiles.queries(heads, rows)
    num_heads, num_rows, _ = queries.shape
    parts: list[Tensor] = []
    top = out = None
    for columns in tiles.column_slices(rows):
        width = columns.stop - columns.start
        if not parts or parts[0].shape[-1] != width:
            parts = _slice_buffers(buffers, num_heads, num_rows, width)
        logits, weights = parts
        torch.bmm(queries, keys[:, columns].transpose(-2, -1), out=logits)
        tiles.hide(logits, heads, rows, columns)
        new_top = logits.amax(dim=-1, keepdim=True)
        if top is not None:
            new_top = torch.maximum(new_top, top)
        logits.sub_(new_top)
        torch.exp2(logits, out=weights)
        new_total = weights.sum(dim=-1, keepdim=True)
        new_moment = logits.mul_(weights).sum(dim=-1, keepdim=True)
        if top is None:
            total, moment = new_total, new_moment
            out = None if values is None else torch.bmm(weights, values[:, columns])
        else:
            lower = top - new_top
            factor = lower.exp2()
            moment = factor * (moment + lower * total) + new_moment
            total = factor * total + new_total
            if out is not None and values is not None:
                out.mul_(factor).baddbmm_(weights, values[:, columns])
        top = new_top
    if top is None:
        return None
    bits = total.log2()
    # A row whose keys are all hidden looks as if it attended to all of them equally.
    is_empty = top < _HIDDEN / 2
    entropy = (_LN_2 * (bits - moment / total)).masked_fill(is_empty, 0.0).squeeze(-1)
    lse = (top + bits).masked_fill(is_empty, 0.0).squeeze(-1)
    largest = (_LN_2 * top).masked_fill(is_empty, -math.inf).squeeze(-1)
    return None if out is None else (out / total).masked_fill_(is_empty, 0.0), entropy, lse, largest


def _backward_kernel(
    grad_out: Tensor,
    grad_entropy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    mask: Tensor | None,
    scale: float,
    is_causal: bool,
    out: Tensor,
    entropy: Tensor,
    lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    with full_precision(q.device.type):
        tiles = _Tiles(q, k, v, mask, scale, is_causal)
        grad_q = torch.empty_like(q, memory_format=torch.contiguous_format)
        grad_k = torch.zeros(k.shape, dtype=tiles.dtype, device=k.device)
        grad_v = torch.zeros(v.shape if v is not None else (0,), dtype=tiles.dtype, device=k.device)
        constant = entropy * grad_entropy
        if v is not None:
            constant += torch.linalg.vecdot(grad_out.to(tiles.dtype), out.to(tiles.dtype))
        row_tensors = _BackwardRowTensors(
            grad_out=None if v is None else grad_out.flatten(0, 1),
            # the logits of a tile are in bits
            grad_entropy=(_LN_2 * grad_entropy).flatten(0, 1),
            constant=constant.flatten(0, 1),
            lse=lse.flatten(0, 1),
            grad_q=grad_q.flatten(0, 1),
        )
        buffers = tiles.buffer(), tiles.buffer(), tiles.buffer()
        for heads in tiles.head_slices():
            _backward_heads(tiles, heads, row_tensors, grad_k.flatten(0, 1), grad_v, buffers)
        grad_k *= _LN_2
        return grad_q, grad_k.to(k.dtype), grad_v if v is None else grad_v.to(v.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BackwardRowTensors:
    """Inputs of the derivative beside queries, keys and values, with batch and heads flattened."""

    grad_out: Tensor | None
    grad_entropy: Tensor
    constant: Tensor
    lse: Tensor
    grad_q: Tensor


def _backward_heads(
    tiles: _Tiles,
    heads: slice,
    row_tensors: _BackwardRowTensors,
    grad_k_NKD: Tensor,
    grad_v: Tensor,
    buffers: tuple[Tensor, Tensor, Tensor],
) -> None:
    keys = tiles.select_kv(tiles.k_NKD, heads)
    values = None if tiles.v_NKD is None else tiles.select_kv(tiles.v_NKD, heads)
    kv_index = tiles.kv_heads(heads)
    is_shared = isinstance(kv_index, Tensor)
    grad_keys = torch.zeros_like(keys) if is_shared else grad_k_NKD[kv_index]
    grad_values = None
    if values is not None:
        grad_values = torch.zeros_like(values) if is_shared else grad_v.flatten(0, 1)[kv_index]
    for rows in tiles.row_slices():
        _backward_rows(tiles, heads, rows, row_tensors, (keys, values), (grad_keys, grad_values), buffers)
    if isinstance(kv_index, Tensor):
        grad_k_NKD.index_add_(0, kv_index, grad_keys)
        if grad_values is not None:
            grad_v.flatten(0, 1).index_add_(0, kv_index, grad_values)


def _backward_rows(
    tiles: _Tiles,
    heads: slice,
    rows: slice,
    row_tensors: _BackwardRowTensors,
    kv: tuple[Tensor, Tensor | None],
    grad_kv: tuple[Tensor, Tensor | None],
    buffers: tuple[Tensor, Tensor, Tensor],
) -> None:
    keys, values = kv
    grad_keys, grad_values = grad_kv
    queries = tiles.queries(heads, rows)
    num_heads, num_rows, _ = queries.shape
    parts: list[Tensor] = []
    lse, constant, grad_entropy = (
        tensor[heads, rows].unsqueeze(-1)
        for tensor in (row_tensors.lse, row_tensors.constant, row_tensors.grad_entropy)
    )
    grad_out = None if row_tensors.grad_out is None else row_tensors.grad_out[heads, rows].to(tiles.dtype)
    grad_queries = torch.zeros_like(queries)
    for columns in tiles.column_slices(rows):
        width = columns.stop - columns.start
        if not parts or parts[0].shape[-1] != width:
            parts = _slice_buffers(buffers, num_heads, num_rows, width)
        logits, weights, grad_logits = parts
        torch.bmm(queries, keys[:, columns].transpose(-2, -1), out=logits)
        tiles.hide(logits, heads, rows, columns)
        logits.sub_(lse)
        torch.exp2(logits, out=weights)
        if values is None or grad_out is None or grad_values is None:
            torch.mul(logits, -grad_entropy, out=grad_logits)
        else:
            grad_values[:, columns].baddbmm_(weights.transpose(-2, -1), grad_out)
            torch.bmm(grad_out, values[:, columns].transpose(-2, -1), out=grad_logits)
            grad_logits.addcmul_(logits, grad_entropy, value=-1.0)
        grad_logits.sub_(constant).mul_(weights)
        grad_queries.baddbmm_(grad_logits, keys[:, columns])
        grad_keys[:, columns].baddbmm_(grad_logits.transpose(-2, -1), queries)
    row_tensors.grad_q[heads, rows] = (grad_queries * tiles.scale).to(row_tensors.grad_q.dtype)


# Custom operators, so that a compiler treats each as one step and does not unroll the tiles.
_forward = torch.library.custom_op(
    "tempopt::attention_and_entropy",
    _forward_kernel,
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor? v, Tensor? mask, float scale, bool is_causal)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
_backward = torch.library.custom_op(
    "tempopt::attention_and_entropy_backward",
    _backward_kernel,
    mutates_args=(),
    schema="(Tensor grad_out, Tensor grad_entropy, Tensor q, Tensor k, Tensor? v, Tensor? mask, float scale,"
    " bool is_causal, Tensor out, Tensor entropy, Tensor lse) -> (Tensor, Tensor, Tensor)",
)


@_forward.register_fake
def _forward_shapes(
    q: Tensor, k: Tensor, v: Tensor | None, mask: Tensor | None, scale: float, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype = wide_type(q)
    out = q.new_empty((*q.shape[:3], v.shape[-1]) if v is not None else (0,))
    entropy, lse, largest = (q.new_empty(q.shape[:3], dtype=dtype) for _ in range(3))
    return out, entropy, lse, largest


@_backward.register_fake
def _backward_shapes(
    grad_out: Tensor, grad_entropy: Tensor, q: Tensor, k: Tensor, v: Tensor | None, *args: Any
) -> tuple[Tensor, Tensor, Tensor]:
    grad_v = k.new_empty(v.shape, dtype=v.dtype) if v is not None else k.new_empty(0, dtype=args[-1].dtype)
    return q.new_empty(q.shape), k.new_empty(k.shape), grad_v


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    q, k, v, mask, ctx.scale, ctx.is_causal = inputs
    ctx.save_for_backward(q, k, v, mask, *output[:3])


def _differentiate(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, mask, *output = ctx.saved_tensors
    grad_q, grad_k, grad_v = _backward(*grads[:2], q, k, v, mask, ctx.scale, ctx.is_causal, *output)
    return grad_q, grad_k, None if v is None else grad_v, None, None, None


_forward.register_autograd(_differentiate, setup_context=_save)
