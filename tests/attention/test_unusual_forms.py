"""Attention in unusual forms is tempered as by a temperature in its source, or refused."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

from tempopt.attention.attach.attachment import attach
from tempopt.errors import AttachError

TAU, HEADS, WIDTH = 2.5, 2, 8


class UnusualAttention(nn.Module):
    """Attention whose weights a subclass computes, at a temperature in its source."""

    def __init__(self) -> None:
        super().__init__()
        self.tau = 1.0
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.positions = nn.Parameter(torch.randn(5, WIDTH // HEADS))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return x + self.out(self.attend(2 * q, k, v).transpose(1, 2).flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5 / self.tau)


class BatchedSum(UnusualAttention):
    """Adds its bias by a method."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        bias = self.positions[:, :1].expand(5, 5)
        logits = bias.expand(q.shape[0] * HEADS, 5, 5).baddbmm(
            q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), alpha=1 / self.tau
        )
        return (logits.softmax(-1) @ v.flatten(0, 1)).view(q.shape)


class Contextual(UnusualAttention):
    """Positions that are counted by gates of the logits (CoPE)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = q @ k.transpose(-1, -2)
        places = torch.sigmoid(logits).flip(-1).cumsum(-1).flip(-1).clamp(max=4).floor().long()
        logits = logits / self.tau + (q @ self.positions.T).gather(-1, places)
        return logits.softmax(-1) @ v


class Gated(UnusualAttention):
    """Logits times a gate of another product."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        gate = torch.sigmoid(v @ k.transpose(-1, -2))
        return (gate * (q @ k.transpose(-1, -2)) / self.tau).softmax(-1) @ v


class Quadratic(UnusualAttention):
    """Logits that are a product of two products."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q @ k.transpose(-1, -2)) * (k @ q.transpose(-1, -2)) / self.tau).softmax(-1) @ v


class Sigmoid(UnusualAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.sigmoid(q @ k.transpose(-1, -2) / self.tau - math.log(5)) @ v


class Minimum(UnusualAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.softmin(-(q @ k.transpose(-1, -2)) / self.tau, dim=-1) @ v


class Mapped(UnusualAttention):
    """Attention of one head and sequence, mapped over both."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def attend_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return (q @ k.T / self.tau).softmax(-1) @ v

        return torch.vmap(torch.vmap(attend_one))(q, k, v)


class _ByFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, tau: float) -> Tensor:
        weights = (q @ k.transpose(-1, -2) / tau).softmax(-1)
        ctx.save_for_backward(weights)
        return weights @ v

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (weights,) = ctx.saved_tensors
        return None, None, weights.transpose(-1, -2) @ gradient, None


class OwnBackward(UnusualAttention):
    """A function with a backward pass of its own, which no temperature reaches."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result: Tensor = _ByFunction.apply(q, k, v, self.tau)
        return result


class Inner(UnusualAttention):
    """Products by a sum over the last dimensions of both."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = [[torch.inner(q[b, h], k[b, h]) for h in range(HEADS)] for b in range(q.shape[0])]
        logits = torch.stack([torch.stack(row) for row in rows]) / self.tau
        return logits.softmax(-1) @ v


class Distance(UnusualAttention):
    """Logits that are distances of queries and keys."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (-torch.cdist(q, k) / self.tau).softmax(-1) @ v


def attend_elsewhere(x: Tensor) -> Tensor:
    return torch.softmax(x @ x.transpose(-1, -2), dim=-1) @ x


attend_elsewhere.__module__ = "elsewhere"


class Elsewhere(nn.Module):
    """Attends by a function of another file, which its code does not show."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return attend_elsewhere(self.map(x))


class Normed(UnusualAttention):
    """Logits behind a norm, which undoes a temperature before it."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (F.layer_norm(q @ k.transpose(-1, -2), (5,)) / self.tau).softmax(-1) @ v


class Standardised(UnusualAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = q @ k.transpose(-1, -2)
        return (logits / logits.std(-1, keepdim=True) / self.tau).softmax(-1) @ v


class Sparsemax(UnusualAttention):
    """Weights that are the projection of logits on the simplex, by sorting."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = q @ k.transpose(-1, -2) / self.tau
        largest = logits.sort(-1, descending=True).values
        counts = torch.arange(1, 6, dtype=logits.dtype)
        sums = largest.cumsum(-1) - 1
        support = (largest * counts > sums).sum(-1, keepdim=True)
        return (logits - sums.gather(-1, support - 1) / support).clamp(min=0) @ v


class IntoBuffer(UnusualAttention):
    """Products into a tensor that is there."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.no_grad():
            logits = torch.empty(*q.shape[:3], 5, dtype=q.dtype)
            torch.matmul(q, k.transpose(-1, -2), out=logits)
            logits /= self.tau
        return logits.softmax(-1) @ v


class BothWays(UnusualAttention):
    """Weights that are large for a query among keys and for a key among queries."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = torch.einsum("bhqd,bhkd->bhqk", q, k) / self.tau
        return (logits.softmax(-1) * logits.softmax(-2)) @ v


class Pieces(UnusualAttention):
    """Keys in two pieces, whose logits are put together."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pieces = [q @ piece.transpose(-1, -2) for piece in k.split(3, dim=-2)]
        return (torch.cat(pieces, dim=-1) / self.tau).softmax(-1) @ v


class _SavedSoftmax(torch.autograd.Function):
    """Softmax that saves its weights alone."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        weights = logits.softmax(-1)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        products = gradients[0] * weights
        return products - weights * products.sum(-1, keepdim=True)


class SoftmaxByFunction(UnusualAttention):
    """Softmax with a backward pass that is written by hand."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _SavedSoftmax.apply(q @ k.transpose(-1, -2) / self.tau) @ v  # type: ignore[no-untyped-call]


class Chunks(UnusualAttention):
    """Some queries at a time."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = [chunk @ k.transpose(-1, -2) / self.tau for chunk in q.split(2, dim=2)]
        return torch.cat([chunk.softmax(-1) @ v for chunk in logits], dim=2)


class FusedChunks(UnusualAttention):
    """Some queries at a time, by fused attention."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.cat([super(FusedChunks, self).attend(chunk, k, v) for chunk in q.split(2, dim=2)], dim=2)


FORMS = [
    Chunks,
    FusedChunks,
    Normed,
    Standardised,
    Sparsemax,
    IntoBuffer,
    BothWays,
    Pieces,
    UnusualAttention,
    BatchedSum,
    Contextual,
    Gated,
    Quadratic,
    Sigmoid,
    Minimum,
    Mapped,
    OwnBackward,
    SoftmaxByFunction,
    Inner,
    Distance,
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_an_unusual_form_is_tempered_as_by_its_source_or_refused(form: type[UnusualAttention]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(UnusualAttention(), form(), UnusualAttention()).double()
    by_source, x = copy.deepcopy(model), torch.randn(3, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    for layer in by_source:
        layer.tau = TAU
    try:
        attachment = attach(model, {"temperature_init": TAU}, example=lambda: model(x))
    except AttachError:
        return
    outputs = [net(x) for net in (model, by_source)]
    assert attachment.tested
    assert torch.allclose(*outputs, rtol=1e-9, atol=1e-12)
    gradients = [torch.autograd.grad(output.square().sum(), x)[0] for output in outputs]
    assert torch.allclose(*gradients, rtol=1e-9, atol=1e-12)


def test_attention_that_its_code_does_not_show_is_refused_once_a_forward_shows_it() -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(WIDTH, HEADS, batch_first=True), Elsewhere())
    x = torch.randn(3, 5, WIDTH)
    attachment = attach(model, {"entropy_lambda": 0.1})
    assert attachment.layers == ["0.self_attn"]
    with pytest.raises(AttachError, match='"1" attends, and has no temperature'):
        attachment.try_test(lambda: model(x), is_whole=True)
    attachment.try_test(lambda: model[0](x), is_whole=True)


def unclear(x: Tensor) -> Tensor:
    """Return attention whose weights go into a sum instead of a product."""
    return ((x @ x.mT).softmax(-1)[..., None] * x[:, None]).sum(2)


@pytest.mark.parametrize(
    ("attend", "reason"),
    [
        (lambda x: F.scaled_dot_product_attention(x, x, x), "outside of the forward of every module"),
        (attend_elsewhere, "outside of the forward of every module"),
        (lambda x: (x @ x.mT).exp() @ x, "makes weights of a matrix product by exp"),
        (lambda x: flex_attention(*[x[:, None]] * 3), "attends by flex_attention"),
        (unclear, "may be attention or not"),
    ],
    ids=["fused", "written", "exponentials", "flex", "sum"],
)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_attention_outside_of_modules_is_refused_once_a_forward_shows_it(attend: Any, reason: str) -> None:
    model = nn.TransformerEncoderLayer(WIDTH, HEADS, batch_first=True)
    x = torch.randn(3, 5, WIDTH)
    attachment = attach(model, {"temperature_init": 2.0})
    attachment.try_test(lambda: model(x), is_whole=True)
    with pytest.raises(AttachError, match=rf"{reason}.*layers="):
        attachment.try_test(lambda: attend(model(x)), is_whole=True)


@pytest.mark.parametrize("layers", ["auto", ["attention"], ["*"]])
def test_weights_that_are_exponentials_are_refused_with_that_reason(layers: Any) -> None:
    class Exponentials(UnusualAttention):
        def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            weights = (q @ k.mT / self.tau).exp()
            return weights / weights.sum(-1, keepdim=True) @ v

    model, x = nn.ModuleDict({"attention": Exponentials()}), torch.randn(3, 5, WIDTH)
    with pytest.raises(AttachError, match='"attention" makes weights of a matrix product by exp'):
        attach(model, {}, layers=layers, example=lambda: model["attention"](x))


@pytest.mark.parametrize(
    "plan", [{"entropy_lambda": 0.1}, {"normaliser": "sparsemax"}, {"length_scaling": "log_n"}]
)
def test_what_the_backward_pass_of_a_function_cannot_follow_is_refused(plan: dict[str, Any]) -> None:
    model, x = SoftmaxByFunction(), torch.randn(3, 5, WIDTH)
    attach(model, plan, example=lambda: model(x))
    with pytest.raises(AttachError, match="without gradients inside of a forward with gradients"):
        model(x)


@pytest.mark.parametrize("form", [Chunks, FusedChunks])
def test_local_heads_of_queries_in_chunks_are_refused(form: type[UnusualAttention]) -> None:
    model, x = form(), torch.randn(3, 5, WIDTH)
    attach(model, {"local_share": 0.5, "window": 2}, example=lambda: model(x))
    with pytest.raises(AttachError, match="2 queries to 5 keys"):
        model(x)


class BiasedTwice(UnusualAttention):
    """Attends twice, as to regions and within them, with a bias of positions the second time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = WrittenOut()

    def forward(self, x: Tensor) -> Tensor:
        bias = torch.arange(5.0, dtype=x.dtype)
        return self.layer(self.layer(x, torch.zeros_like(bias)), bias)


class WrittenOut(UnusualAttention):
    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        logits = q @ k.transpose(-1, -2) / self.tau
        return x + self.out((logits + bias if bias.any() else logits).softmax(-1) @ v)


def test_a_layer_that_adds_a_bias_in_some_of_its_calls_is_tempered() -> None:
    torch.manual_seed(0)
    model, x = BiasedTwice().double(), torch.randn(3, 5, WIDTH, dtype=torch.float64)
    by_source = copy.deepcopy(model)
    by_source.layer.tau = TAU
    attachment = attach(model, {"temperature_init": TAU}, example=lambda: model(x))
    assert torch.allclose(model(x), by_source(x), rtol=1e-9, atol=1e-12)
    with pytest.raises(AttachError, match="length_scaling"):
        attachment.use({"temperature_init": TAU, "length_scaling": "log_n"})
