"""Queries and keys are shown as attention sees them, under the right layer, or not at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tempopt import attach
from tempopt.attention.functional.entropy import attention_entropy

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


class LayerRecorder:
    """Notes down the layers that it is shown, and their heads."""

    def __init__(self) -> None:
        self.layers: list[tuple[int, int]] = []

    def __call__(self, layer: int, q_BHQD: Tensor, k_BHKD: Tensor, **masking: Any) -> None:
        self.layers.append((layer, q_BHQD.shape[1]))


def attention(heads: int) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(8, heads, batch_first=True)


def test_attention_that_multiplies_matrices_itself_is_seen_too() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.explicit, self.fused = attention(2), attention(4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.explicit(x, x, x, need_weights=True)[0]
            return self.fused(x, x, x, need_weights=False)[0]

    recorder, model = LayerRecorder(), Two().train()
    with attach(model, {}).observed(recorder):
        model(X)
    assert recorder.layers == [(0, 2), (1, 4)]


def test_observers_may_leave_in_any_order() -> None:
    model = attention(2).train()
    attachment = attach(model, {})
    first, second = LayerRecorder(), LayerRecorder()
    first_context, second_context = (attachment.observed(recorder) for recorder in (first, second))
    with first_context:
        second_context.__enter__()
        model(X, X, X, need_weights=False)
    model(X, X, X, need_weights=False)
    second_context.__exit__(None, None, None)
    model(X, X, X, need_weights=False)
    assert (len(first.layers), len(second.layers)) == (1, 2)


class ProjectedAttention(nn.Module):
    """Attention over one projection of the query; the keys are the input."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k = (tensor.unflatten(-1, (self.heads, -1)).transpose(1, 2) for tensor in (self.q_proj(x), x))
        return F.scaled_dot_product_attention(q, k, k).transpose(1, 2).flatten(2)


def test_a_layer_that_is_left_out_is_not_shown() -> None:
    model, recorder = nn.Sequential(ProjectedAttention(2), ProjectedAttention(4)).train(), LayerRecorder()
    with attach(model, {}, layers=["1.q_proj"]) as attachment, attachment.observed(recorder):
        model(X)
    assert recorder.layers == [(0, 4)]


class ProductAttention(ProjectedAttention):
    def forward(self, x: Tensor) -> Tensor:
        q, k = (tensor.unflatten(-1, (self.heads, -1)).transpose(1, 2) for tensor in (self.q_proj(x), x))
        logits = q @ k.transpose(-2, -1) * (8 / self.heads) ** -0.5
        return (logits.masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf).softmax(-1) @ k)[:, 0]


def test_what_is_shown_of_logits_that_are_written_out_has_their_entropy() -> None:
    model = ProductAttention(2).double().train()
    x, entropies = X.double(), []

    def observe(
        layer: int, q_BHQD: Tensor, k_BHKD: Tensor, *, valid_BQ: Tensor | None, **masking: Any
    ) -> None:
        entropies.append(attention_entropy(q_BHQD, k_BHKD, **masking))

    with attach(model, {"temperature_init": 0.5}, example=lambda: model(x)).observed(observe):
        model(x)
    q, k = (tensor.unflatten(-1, (2, -1)).transpose(1, 2) for tensor in (model.q_proj(x), x))
    logits = (q @ k.transpose(-2, -1)).masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf)
    weights = (logits * 2.0 / 2.0).softmax(-1)
    torch.testing.assert_close(entropies[0], torch.special.entr(weights).sum(-1))


def test_looking_on_changes_no_bit_of_an_encoder() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    attachment, recorder = attach(encoder, {}), LayerRecorder()
    with torch.no_grad():
        before = encoder(X)
        with attachment.observed(recorder):
            during = encoder(X)
    assert torch.equal(before, during)
    assert recorder.layers == [(0, 2), (1, 2)]
