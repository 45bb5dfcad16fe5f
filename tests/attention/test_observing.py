"""Queries and keys are shown as attention sees them, under the right layer, or not at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tempopt import attach
from tempopt.attention.attach.observers import fused_attention_observed

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


class LayerRecorder:
    """Notes down the layers that it is shown, and their heads."""

    def __init__(self) -> None:
        self.layers: list[tuple[int, int]] = []

    def __call__(self, layer: int, q_BHQD: Tensor, k_BHKD: Tensor, **masking: Any) -> None:
        self.layers.append((layer, q_BHQD.shape[1]))


def attention(heads: int) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(8, heads, batch_first=True)


def test_a_layer_that_multiplies_matrices_itself_is_not_taken_for_the_next_one() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.explicit, self.fused = attention(2), attention(4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.explicit(x, x, x, need_weights=True)[0]
            return self.fused(x, x, x, need_weights=False)[0]

    recorder, model = LayerRecorder(), Two().train()
    with fused_attention_observed(model, ["explicit"], recorder):
        model(X)
    assert recorder.layers == []
    with fused_attention_observed(model, ["explicit", "fused"], recorder):
        model(X)
    assert recorder.layers == [(1, 4)]


def test_observers_may_leave_in_any_order() -> None:
    original_attention, model = F.scaled_dot_product_attention, attention(2).train()
    first, second = LayerRecorder(), LayerRecorder()
    first_context, second_context = (
        fused_attention_observed(model, [""], recorder) for recorder in (first, second)
    )
    with first_context:
        second_context.__enter__()
        model(X, X, X, need_weights=False)
    model(X, X, X, need_weights=False)
    second_context.__exit__(None, None, None)
    assert F.scaled_dot_product_attention is original_attention
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


def test_calls_belong_to_the_projections_that_they_follow() -> None:
    model, recorder = nn.Sequential(ProjectedAttention(2), ProjectedAttention(4)).train(), LayerRecorder()
    with fused_attention_observed(model, ["0.q_proj", "1.q_proj"], recorder):
        model(X)
    assert recorder.layers == [(0, 2), (1, 4)]
    with fused_attention_observed(model, ["1.q_proj"], recorder):
        model(X)
    assert recorder.layers[2:] == [(0, 4)]


def test_what_cannot_be_told_apart_is_not_shown() -> None:
    class CrossedLayers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            first, second = self.one(x)[:, None], self.two(x)[:, None]
            y = F.scaled_dot_product_attention(second, x[:, None], x[:, None])
            return y + F.scaled_dot_product_attention(first, x[:, None], x[:, None])

    model, recorder = CrossedLayers().train(), LayerRecorder()
    with fused_attention_observed(model, ["one", "two"], recorder):
        model(X)
    assert recorder.layers == []


def test_looking_on_changes_no_bit_of_a_frozen_encoder_on_its_fast_path() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    attachment, recorder = attach(encoder, {}), LayerRecorder()
    with torch.no_grad():
        before = encoder(X)
        with attachment.observed(recorder):
            during = encoder(X)
    assert torch.equal(before, during)
    assert recorder.layers == []
    encoder.train()
    with attachment.observed(recorder):
        encoder(X)
    assert recorder.layers == [(0, 2), (1, 2)]
