"""Models whose attention ends in a call of PyTorch, and the same models at temperatures without tempopt.

A reference is a copy of the model. Either its attention is written out with exponentials, or its own scale or
the rows of its query projection are divided by the temperature. B sequences of T tokens (S of a memory) in E
dimensions; H heads of D dimensions, Q queries, K keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The names that a module imports before tempopt is imported are those of PyTorch for ever.
from torch.nn.functional import scaled_dot_product_attention, softmax
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, HEAD_DIM, BATCH, TOKENS, MEMORY, VOCABULARY = 32, 4, 8, 2, 8, 6, 40

Temperatures = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class CallModel:
    """A model, a forward pass of it, and how a copy is given temperatures without tempopt.

    Attributes:
        build: Returns the model, with the same weights each time.
        run: Returns the output of the model on fixed inputs, as one tensor.
        temper: Gives a model the temperature of each layer.
        layers: Names of the modules that call attention, each once in a forward pass.
        may_refuse: Whether ``attach`` may refuse the model with an ``AttachError``.
        tolerance: Error that is allowed, relative to the greatest output or gradient.
    """

    build: Callable[[], nn.Module]
    run: Callable[[nn.Module], Tensor]
    temper: Callable[[nn.Module, Temperatures], None]
    layers: tuple[str, ...]
    may_refuse: bool = False
    tolerance: float = 1e-9


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sharpened(model: nn.Module) -> nn.Module:
    """Return the model in float64, with biases, gains and attention that are far from neutral."""
    generator = torch.Generator().manual_seed(0)
    model.double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim >= 2:
                parameter.copy_(1.3 * noise / math.sqrt(parameter.shape[-1]))
            else:
                # biases around 0, gains of norms around 1
                parameter.copy_(0.3 * noise + float(name.endswith("weight")))
    return model


# ---- the two ways to give a copy its temperature


class DividedRows(nn.Module):
    """Divides the first rows of a weight or bias as they are read; the gradient is that of the original."""

    def __init__(self, rows: int, temperature: float) -> None:
        super().__init__()
        self.rows, self.temperature = rows, temperature

    def forward(self, weight: Tensor) -> Tensor:
        return torch.cat([weight[: self.rows] / self.temperature, weight[self.rows :]])


def original_name(name: str) -> str:
    """Return the name that a parameter had before its rows were divided."""
    return re.sub(r"parametrizations\.(\w+)\.original", r"\1", name)


def divide_rows(module: nn.Module, names: tuple[str, ...], rows: int, temperature: float) -> None:
    for name in names:
        if getattr(module, name, None) is not None:
            parametrize.register_parametrization(module, name, DividedRows(rows, temperature))


def temper_multihead(model: nn.Module, temperatures: Temperatures) -> None:
    """Divide the query rows, and the query bias, of each ``nn.MultiheadAttention``."""
    for name, temperature in temperatures.items():
        module: Any = model.get_submodule(name)
        weights = ("in_proj_weight", "q_proj_weight", "in_proj_bias")
        divide_rows(module, weights, module.embed_dim, temperature)


def temper_linear(query: str, model: nn.Module, temperatures: Temperatures) -> None:
    """Divide weight and bias of the query projection of that name in each layer."""
    for name, temperature in temperatures.items():
        projection: Any = model.get_submodule(f"{name}.{query}")
        divide_rows(projection, ("weight", "bias"), projection.weight.shape[0], temperature)


def temper_scale(attribute: str, model: nn.Module, temperatures: Temperatures) -> None:
    """Divide the model's own scale, a number that it multiplies logits with."""
    for name, temperature in temperatures.items():
        module = model.get_submodule(name)
        setattr(module, attribute, getattr(module, attribute) / temperature)


def temper_form(model: nn.Module, temperatures: Temperatures) -> None:
    """Have attention of ours written out with exponentials, at a temperature."""
    for name, temperature in temperatures.items():
        layer: Any = model.get_submodule(name)
        layer.form = partial(by_hand, temperature=temperature)


# ---- home-grown attention; a form takes the layer, q, k and v


def repeated(k_BHKD: Tensor, heads: int) -> Tensor:
    return k_BHKD.repeat_interleave(heads // k_BHKD.shape[1], dim=1)


def softmax_by_hand(logits: Tensor) -> Tensor:
    exponentials = (logits - logits.amax(-1, keepdim=True).detach()).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def causal_mask(queries: int, keys: int) -> Tensor:
    """Return minus infinity where a key is later than the query; the last query sees all keys."""
    is_later = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)
    return torch.zeros(queries, keys, dtype=torch.float64).masked_fill(is_later, -math.inf)


def by_hand(layer: Any, q: Tensor, k: Tensor, v: Tensor, *, temperature: float | Tensor) -> Tensor:
    """Return attention written out."""
    weights_BHQK = weights_by_hand(layer, q, k, temperature)
    return torch.einsum("bhqk,bhkd->bhqd", weights_BHQK, repeated(v, q.shape[1]))


def weights_by_hand(layer: Any, q: Tensor, k: Tensor, temperature: float | Tensor) -> Tensor:
    """Return the weights: the temperature divides q·k and nothing that is added to it."""
    k = repeated(k, q.shape[1])
    logits = (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1) * layer.scale / temperature
    if layer.cap is not None:
        logits = layer.cap * torch.tanh(logits / layer.cap)
    if (bias := layer.position_bias(q, k)) is not None:
        logits = logits + bias
    if layer.is_causal:
        logits = logits + causal_mask(q.shape[-2], k.shape[-2]).to(logits.dtype)
    return softmax_by_hand(logits)


def sdpa(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        layer.position_bias(q, k),
        0.0,
        layer.is_causal,
        scale=layer.scale,
        enable_gqa=q.shape != k.shape,
    )


def sdpa_by_keywords(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Call it with keywords alone, on repeated keys and with the scale that it has without one."""
    k, v = repeated(k, q.shape[1]), repeated(v, q.shape[1])
    return torch.nn.functional.scaled_dot_product_attention(
        query=q, key=k, value=v, is_causal=layer.is_causal
    )


def sdpa_imported(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=layer.is_causal)


def sdpa_of_aten(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    attended: Tensor = torch.ops.aten.scaled_dot_product_attention(q, k, v, scale=layer.scale)
    return attended


def transposed(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return attention whose keys are the last dimension but one of the logits."""
    weights_BHKQ = F.softmax(k @ q.mT * layer.scale, dim=-2)
    return weights_BHKQ.mT @ v


def flex(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    attended: Any = flex_attention(q, k, v, scale=layer.scale)
    return attended


PRODUCTS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "@": lambda q, k, scale: (q * scale) @ k.transpose(-2, -1),
    "matmul": lambda q, k, scale: torch.matmul(q, k.transpose(-2, -1)) * scale,
    "Tensor.matmul": lambda q, k, scale: q.matmul(k.mT) / (1.0 / scale),
    "bmm": lambda q, k, scale: (torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT) * scale).unflatten(
        0, q.shape[:2]
    ),
    "baddbmm": lambda q, k, scale: torch.baddbmm(
        q.new_zeros(()), q.flatten(0, 1), k.flatten(0, 1).mT, beta=0, alpha=scale
    ).unflatten(0, q.shape[:2]),
    "einsum": lambda q, k, scale: torch.einsum("bhqd,bhkd->bhqk", q, k) * scale,
    "key scaled": lambda q, k, scale: q @ (scale * k).mT,
}
SOFTMAXES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "F.softmax": lambda layer, logits: F.softmax(logits, dim=-1),
    "float32": lambda layer, logits: F.softmax(logits, dim=-1, dtype=torch.float64).to(logits.dtype),
    "torch.softmax": lambda layer, logits: torch.softmax(logits, -1),
    "Tensor.softmax": lambda layer, logits: logits.softmax(dim=-1),
    "nn.Softmax": lambda layer, logits: layer.softmax(logits),
    "special": lambda layer, logits: torch.special.softmax(logits, -1),
    "imported": lambda layer, logits: softmax(logits, dim=-1),
    "log_softmax": lambda layer, logits: F.log_softmax(logits, dim=-1).exp(),
    "exponentials": lambda layer, logits: softmax_by_hand(logits),
}


def written(layer: Any, q: Tensor, k: Tensor, v: Tensor, *, product: str = "@", normaliser: str) -> Tensor:
    """Return attention as people write it out: product, cap, bias, mask, softmax."""
    k, v = repeated(k, q.shape[1]), repeated(v, q.shape[1])
    logits = PRODUCTS[product](q, k, layer.scale)
    if layer.cap is not None:
        logits = torch.tanh(logits / layer.cap) * layer.cap
    if (bias := layer.position_bias(q, k)) is not None:
        logits = logits + bias
    if layer.is_causal:
        logits = logits.masked_fill(causal_mask(q.shape[-2], k.shape[-2]) < 0, -math.inf)
    return SOFTMAXES[normaliser](layer, logits) @ v


class Attention(nn.Module):
    """Attention of a home-grown model.

    Args:
        form: What turns q, k and v into the output.
        layout: ``separate`` projections, or one whose output is cut into ``thirds`` (vit_pytorch),
            ``head_major`` (q, k, v of each head) or ``grouped`` (the queries of a group, its key, its value).
        key_heads: Heads of keys and values.
        head_dim: Dimensions of a head.
        is_causal: Whether a query sees no later key.
        cap: Bound of the logits, by tanh, or None.
    """

    def __init__(
        self,
        form: Callable[..., Tensor] = sdpa,
        *,
        layout: str = "separate",
        key_heads: int = HEADS,
        head_dim: int = HEAD_DIM,
        is_causal: bool = False,
        cap: float | None = None,
    ) -> None:
        super().__init__()
        self.form, self.layout, self.is_causal, self.cap = form, layout, is_causal, cap
        self.key_heads, self.head_dim, self.scale = key_heads, head_dim, head_dim**-0.5
        inner, key_inner = HEADS * head_dim, key_heads * head_dim
        if layout == "separate":
            self.q_proj = nn.Linear(WIDTH, inner)
            self.k_proj = nn.Linear(WIDTH, key_inner)
            self.v_proj = nn.Linear(WIDTH, key_inner)
        else:
            self.to_qkv = nn.Linear(WIDTH, inner + 2 * key_inner)
        self.softmax = nn.Softmax(dim=-1)
        self.out = nn.Linear(inner, WIDTH)

    def project(self, x_BTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v as B, H, T, D."""
        if self.layout == "separate":
            parts = [projection(x_BTE) for projection in (self.q_proj, self.k_proj, self.v_proj)]
        elif self.layout == "thirds":
            parts = list(self.to_qkv(x_BTE).chunk(3, dim=-1))
        elif self.layout == "head_major":
            parts = list(self.to_qkv(x_BTE).unflatten(-1, (HEADS, 3, self.head_dim)).unbind(-2))
        else:
            queries = HEADS // self.key_heads
            groups = self.to_qkv(x_BTE).unflatten(-1, (self.key_heads, queries + 2, self.head_dim))
            parts = list(groups.split([queries, 1, 1], dim=-2))
        q, k, v = (part.flatten(2).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in parts)
        return q, k, v

    def position_bias(self, q: Tensor, k: Tensor) -> Tensor | None:
        """Return what is added to the logits, or None."""
        return None

    def forward(self, x_BTE: Tensor) -> Tensor:
        attended_BHTD = self.form(self, *self.project(x_BTE))
        return self.out(attended_BHTD.transpose(1, 2).flatten(2))


class AlibiAttention(Attention):
    """Attention whose logits fall with the distance, at another slope in each head."""

    def position_bias(self, q: Tensor, k: Tensor) -> Tensor:
        slopes_H = 2.0 ** -torch.arange(1, HEADS + 1, dtype=q.dtype)
        distances_QK = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]
        return -slopes_H[:, None, None] * distances_QK.abs()


class AdditiveMaskAttention(Attention):
    """Attention with a finite mask that is added, as in BERT's first code."""

    def __init__(self, form: Callable[..., Tensor], hidden: float = -1e4) -> None:
        super().__init__(form)
        self.hidden = hidden

    def position_bias(self, q: Tensor, k: Tensor) -> Tensor:
        return causal_mask(q.shape[-2], k.shape[-2]).clamp(min=self.hidden)


class WindowAttention(Attention):
    """Attention in shifted windows of four tokens, with a learned bias of positions (Swin)."""

    def __init__(self, form: Callable[..., Tensor], *, shift: int) -> None:
        super().__init__(form, layout="thirds")
        self.shift = shift
        self.bias_table = nn.Parameter(torch.zeros(7, HEADS))

    def position_bias(self, q: Tensor, k: Tensor) -> Tensor:
        places = torch.arange(4)
        bias_HQK = self.bias_table[places[:, None] - places + 3].permute(2, 0, 1)
        windows = TOKENS // 4
        region_WK = (torch.arange(TOKENS) >= TOKENS - self.shift).view(windows, 4)
        is_other_region = region_WK[:, :, None] != region_WK[:, None]
        mask_W1QK = torch.zeros(windows, 1, 4, 4, dtype=q.dtype).masked_fill(is_other_region[:, None], -100.0)
        return (bias_HQK + mask_W1QK).repeat(q.shape[0] // windows, 1, 1, 1)

    def forward(self, x_BTE: Tensor) -> Tensor:
        windows = x_BTE.roll(-self.shift, 1).reshape(-1, 4, WIDTH)
        return super().forward(windows).reshape(x_BTE.shape).roll(self.shift, 1)


class NormalisedAttention(Attention):
    """Attention with rotary positions whose queries and keys are normalised behind them (nanochat)."""

    def project(self, x_BTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x_BTE)
        return self.normalise(rotated(q)), self.normalise(rotated(k)), v

    def normalise(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],))


class AlibiNormalisedAttention(AlibiAttention, NormalisedAttention):
    """Both: query rows cannot take the temperature, and a softmax cannot tell the bias from the product."""


class CosineAttention(NormalisedAttention):
    """Attention by cosines, with a learned factor (Swin v2)."""

    def __init__(self, form: Callable[..., Tensor]) -> None:
        super().__init__(form)
        self.scale, self.gain = 1.0, nn.Parameter(torch.ones(HEADS))

    def normalise(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * (2.0 * self.gain.exp().sqrt())[:, None, None]


def rotated(x_BHTD: Tensor) -> Tensor:
    tokens, half = x_BHTD.shape[-2], x_BHTD.shape[-1] // 2
    frequencies = 100.0 ** (-torch.arange(half, dtype=x_BHTD.dtype) / half)
    angles = torch.arange(tokens, dtype=x_BHTD.dtype)[:, None] * frequencies
    first, second = x_BHTD.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1)


class GatedAttention(NormalisedAttention):
    """Attention with a second softmax in the same module, over its heads."""

    def __init__(self, form: Callable[..., Tensor]) -> None:
        super().__init__(form)
        self.gate = nn.Linear(WIDTH, HEADS)

    def forward(self, x_BTE: Tensor) -> Tensor:
        shares_BTH = F.softmax(self.gate(x_BTE), dim=-1)
        attended_BHTD = self.form(self, *self.project(x_BTE)) * shares_BTH.transpose(1, 2)[..., None]
        return self.out(attended_BHTD.transpose(1, 2).flatten(2))


class NestedAttention(Attention):
    """Attention with another one inside, which is called before its own call."""

    def __init__(self, form: Callable[..., Tensor]) -> None:
        super().__init__(form)
        self.inner = Attention(form)

    def project(self, x_BTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, _ = super().project(x_BTE)
        return q, k, super().project(self.inner(x_BTE))[2]


class ChunkedAttention(NormalisedAttention):
    """Attention that calls for each half of the queries where there are more than ``TOKENS`` tokens."""

    def forward(self, x_BTE: Tensor) -> Tensor:
        q, k, v = self.project(x_BTE)
        parts = q.chunk(1 if x_BTE.shape[1] <= TOKENS else 2, dim=-2)
        attended_BHTD = torch.cat([self.form(self, part, k, v) for part in parts], dim=-2)
        return self.out(attended_BHTD.transpose(1, 2).flatten(2))


class BranchingAttention(NormalisedAttention):
    """Attention that takes a form that is not seen for sequences of more than ``TOKENS`` tokens."""

    def forward(self, x_BTE: Tensor) -> Tensor:
        form = self.form if x_BTE.shape[1] <= TOKENS else partial(written, normaliser="exponentials")
        attended_BHTD = form(self, *self.project(x_BTE))
        return self.out(attended_BHTD.transpose(1, 2).flatten(2))


class CachedAttention(Attention):
    """Causal attention that appends to the keys and values of earlier tokens, for one token at a time."""

    cache: list[Tensor] | None = None

    def project(self, x_BTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x_BTE)
        if self.cache is not None:
            k, v = (torch.cat(pair, dim=-2) for pair in zip(self.cache, (k, v), strict=True))
            self.cache = [k, v]
        return q, k, v


class InnerCheckpointAttention(NormalisedAttention):
    """Attention that recomputes its own call in the backward pass."""

    def __init__(self, form: Callable[..., Tensor], *, use_reentrant: bool) -> None:
        super().__init__(form)
        self.use_reentrant = use_reentrant

    def forward(self, x_BTE: Tensor) -> Tensor:
        qkv = self.project(x_BTE)
        attended: Any = checkpoint(partial(self.form, self), *qkv, use_reentrant=self.use_reentrant)
        return self.out(attended.transpose(1, 2).flatten(2))


class Head(nn.Module):
    """One head with projections of its own (as in lectures on GPT)."""

    position_bias = Attention.position_bias

    def __init__(self, form: Callable[..., Tensor]) -> None:
        super().__init__()
        self.form, self.is_causal, self.cap, self.scale = form, True, None, HEAD_DIM**-0.5
        self.query, self.key, self.value = (nn.Linear(WIDTH, HEAD_DIM, bias=False) for _ in range(3))
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x_BTE: Tensor) -> Tensor:
        q, k, v = (projection(x_BTE)[:, None] for projection in (self.query, self.key, self.value))
        return self.form(self, q, k, v)[:, 0]


class HeadList(nn.Module):
    def __init__(self, form: Callable[..., Tensor]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head(form) for _ in range(2))
        self.out = nn.Linear(2 * HEAD_DIM, WIDTH)

    def forward(self, x_BTE: Tensor) -> Tensor:
        return self.out(torch.cat([head(x_BTE) for head in self.heads], dim=-1))


class LearnedQueryAttention(Attention):
    """Attention whose queries are parameters, one for each head, as in pooling by attention."""

    def __init__(self, form: Callable[..., Tensor]) -> None:
        super().__init__(form)
        del self.q_proj
        self.query_HD = nn.Parameter(torch.zeros(HEADS, HEAD_DIM))

    def project(self, x_BTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, v = (
            projection(x_BTE).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
            for projection in (self.k_proj, self.v_proj)
        )
        return self.query_HD[:, None].expand(len(x_BTE), -1, -1, -1), k, v


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDTH), attention
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH))

    def forward(self, x_BTE: Tensor) -> Tensor:
        x_BTE = x_BTE + self.attn(self.norm(x_BTE))
        return x_BTE + self.mlp(x_BTE)


class DirectBlock(Block):
    """A block that calls ``forward`` of its attention, which runs no hooks."""

    def forward(self, x_BTE: Tensor) -> Tensor:
        x_BTE = x_BTE + self.attn.forward(self.norm(x_BTE))
        return x_BTE + self.mlp(x_BTE)


class Stack(nn.Module):
    """Blocks, and a softmax at the end that is no attention."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)
        self.router = nn.Linear(WIDTH, 3)

    def forward(self, x_BTE: Tensor, use_reentrant: bool | None = None) -> Tensor:
        for layer in self.layers:
            x_BTE = layer(x_BTE) if use_reentrant is None else recompute(layer, x_BTE, use_reentrant)
        return torch.cat([x_BTE.flatten(1), F.softmax(self.router(x_BTE), dim=-1).flatten(1)], dim=-1)


def recompute(layer: nn.Module, x: Tensor, use_reentrant: bool) -> Tensor:
    """Return what the layer returns, to be computed again in the backward pass."""
    recomputed: Any = checkpoint(layer, x, use_reentrant=use_reentrant)
    return recomputed


def tokens_BTE() -> Tensor:
    return random(BATCH, TOKENS, WIDTH)


def run_tokens(model: nn.Module) -> Tensor:
    output: Tensor = model(tokens_BTE())
    return output


STACK_LAYERS = ("layers.0.attn", "layers.1.attn")


def home_grown(
    kind: Callable[..., nn.Module] = Attention,
    form: Callable[..., Tensor] = sdpa,
    *,
    block: Callable[[nn.Module], nn.Module] = Block,
    may_refuse: bool = False,
    layers: tuple[str, ...] = STACK_LAYERS,
    **options: Any,
) -> CallModel:
    """Return two blocks with that kind and form of attention."""
    return CallModel(
        build=lambda: sharpened(Stack(*(block(kind(form, **options)) for _ in range(2)))),
        run=run_tokens,
        temper=temper_form,
        layers=layers,
        may_refuse=may_refuse,
    )


def build_window() -> nn.Module:
    form = partial(written, normaliser="Tensor.softmax")
    return sharpened(Stack(*(Block(WindowAttention(form, shift=shift)) for shift in (0, 2))))


def build_mixed() -> nn.Module:
    """Return a model of which only the first layer calls what tempopt can see."""
    return sharpened(Stack(*(Block(NormalisedAttention(form)) for form in (sdpa, sdpa_imported))))


def build_shared() -> nn.Module:
    block = Block(Attention())
    return sharpened(Stack(block, block))


def build_pool() -> nn.Module:
    return sharpened(nn.Sequential(Block(Attention()), LearnedQueryAttention(sdpa)))


class Nanochat(nn.Module):
    """nanochat's model: rotary positions, normalised queries, grouped keys, norms without gains."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(NormalisedAttention(sdpa, key_heads=2, is_causal=True) for _ in range(2))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 48, bias=False), nn.ReLU(), nn.Linear(48, WIDTH, bias=False))
            for _ in range(2)
        )
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTE = F.rms_norm(self.embed(ids_BT), (WIDTH,))
        for attention, mlp in zip(self.layers, self.mlps, strict=True):
            x_BTE = x_BTE + attention(F.rms_norm(x_BTE, (WIDTH,)))
            x_BTE = x_BTE + mlp(F.rms_norm(x_BTE, (WIDTH,)))
        return 15.0 * torch.tanh(self.lm_head(F.rms_norm(x_BTE, (WIDTH,))) / 15.0)


def ids_BT(seed: int = 1) -> Tensor:
    return torch.randint(1, VOCABULARY, (BATCH, TOKENS), generator=torch.Generator().manual_seed(seed))


def run_ids(model: nn.Module) -> Tensor:
    output: Tensor = model(ids_BT())
    return output


HOME_GROWN = {
    "sdpa": home_grown(),
    "sdpa causal": home_grown(is_causal=True),
    "sdpa by keywords": home_grown(form=sdpa_by_keywords, key_heads=2, is_causal=True),
    "sdpa imported": home_grown(form=sdpa_imported, may_refuse=True),
    "sdpa with a bias": home_grown(AlibiAttention),
    "sdpa with enable_gqa": home_grown(key_heads=2),
    "sdpa of one key head": home_grown(key_heads=1, is_causal=True),
    "@, F.softmax": home_grown(form=partial(written, normaliser="F.softmax"), is_causal=True),
    "matmul, torch.softmax": home_grown(form=partial(written, product="matmul", normaliser="torch.softmax")),
    "Tensor.matmul, Tensor.softmax": home_grown(
        form=partial(written, product="Tensor.matmul", normaliser="Tensor.softmax"), key_heads=2
    ),
    "bmm, nn.Softmax": home_grown(form=partial(written, product="bmm", normaliser="nn.Softmax")),
    "baddbmm, F.softmax": home_grown(form=partial(written, product="baddbmm", normaliser="F.softmax")),
    "einsum, float32": home_grown(
        form=partial(written, product="einsum", normaliser="float32"), is_causal=True
    ),
    "key scaled, Tensor.softmax": home_grown(
        form=partial(written, product="key scaled", normaliser="Tensor.softmax")
    ),
    "softmax imported": home_grown(form=partial(written, normaliser="imported"), may_refuse=True),
    "log_softmax": home_grown(form=partial(written, normaliser="log_softmax"), may_refuse=True),
    "exponentials": home_grown(form=partial(written, normaliser="exponentials"), may_refuse=True),
    "QK-norm, eager": home_grown(
        NormalisedAttention, partial(written, normaliser="F.softmax"), is_causal=True
    ),
    "cosines": home_grown(CosineAttention),
    "nanochat": CallModel(
        build=lambda: sharpened(Nanochat()), run=run_ids, temper=temper_form, layers=("layers.0", "layers.1")
    ),
    "vit_pytorch": home_grown(form=partial(written, normaliser="nn.Softmax"), layout="thirds", head_dim=16),
    "head-major": home_grown(layout="head_major"),
    "grouped projection": home_grown(layout="grouped", key_heads=2, is_causal=True),
    "projections of each head": home_grown(
        HeadList,
        partial(written, normaliser="F.softmax"),
        layers=tuple(f"layers.{layer}.attn.heads.{head}" for layer in range(2) for head in range(2)),
    ),
    "learned query": CallModel(build=build_pool, run=run_tokens, temper=temper_form, layers=("0.attn", "1")),
    "one block twice": CallModel(
        build=build_shared, run=run_tokens, temper=temper_form, layers=("layers.0.attn",)
    ),
    "additive mask": home_grown(
        AdditiveMaskAttention, partial(written, normaliser="Tensor.softmax"), may_refuse=True
    ),
    "Swin": CallModel(
        build=build_window, run=run_tokens, temper=temper_form, layers=STACK_LAYERS, may_refuse=True
    ),
    "ALiBi": home_grown(AlibiAttention, partial(written, normaliser="F.softmax"), may_refuse=True),
    "ALiBi, QK-norm": home_grown(
        AlibiNormalisedAttention, partial(written, normaliser="F.softmax"), may_refuse=True
    ),
    "soft cap": home_grown(form=partial(written, normaliser="F.softmax"), cap=1.5, may_refuse=True),
    "soft cap, QK-norm": home_grown(
        NormalisedAttention, partial(written, normaliser="F.softmax"), cap=1.5, may_refuse=True
    ),
    "two softmaxes": home_grown(GatedAttention, partial(written, normaliser="F.softmax"), may_refuse=True),
    "sdpa beside a softmax": home_grown(GatedAttention, may_refuse=True),
    "attention in attention": home_grown(
        NestedAttention,
        layers=tuple(f"layers.{layer}.attn{part}" for layer in range(2) for part in (".inner", "")),
    ),
    "attention in attention, written": home_grown(
        NestedAttention,
        partial(written, normaliser="F.softmax"),
        layers=tuple(f"layers.{layer}.attn{part}" for layer in range(2) for part in (".inner", "")),
    ),
    "keys first": home_grown(NormalisedAttention, transposed, may_refuse=True),
    "one layer imported": CallModel(
        build=build_mixed, run=run_tokens, temper=temper_form, layers=STACK_LAYERS, may_refuse=True
    ),
    "sdpa imported, QK-norm": home_grown(NormalisedAttention, sdpa_imported, may_refuse=True),
    "sdpa of aten, QK-norm": home_grown(NormalisedAttention, sdpa_of_aten, may_refuse=True),
    **{
        f"{name}, QK-norm": home_grown(
            NormalisedAttention, partial(written, normaliser=name), may_refuse=True
        )
        for name in ("imported", "special", "log_softmax", "exponentials")
    },
    "direct forward": home_grown(block=DirectBlock, may_refuse=True),
    "direct forward, QK-norm": home_grown(NormalisedAttention, block=DirectBlock, may_refuse=True),
}
