"""QK-norm with a fixed gain: logits are cosines times gain over temperature, whatever the weights."""

from __future__ import annotations

from collections.abc import Callable

import lightning as L
import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch.nn import functional as F

from lightning_modules.qk_norm_lm import QKNormLM
from lightning_modules.source_data import SourceData
from lightning_modules.source_lm import SourceLM

Fit = Callable[..., L.Trainer]


def model(kind: type[SourceLM] = QKNormLM, **arguments: object) -> SourceLM:
    L.seed_everything(0, verbose=False)
    return kind(d_model=32, **arguments)  # type: ignore[arg-type]


def heads(seed: int) -> torch.Tensor:
    return torch.randn(2, 2, 7, 16, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_attention_is_the_softmax_of_cosines_times_the_gain_over_the_temperature(temperature: float) -> None:
    q, k, v = (heads(seed) for seed in range(3))
    attended = model(gain=5.0, temperature_init=temperature).attention(1)(q, k, v)
    unit_q, unit_k = (x.numpy() / np.linalg.norm(x.numpy(), axis=-1, keepdims=True) for x in (q, k))
    logits = 5.0 / temperature * unit_q @ np.swapaxes(unit_k, -1, -2)
    later = np.triu(np.ones((7, 7), dtype=bool), 1)
    expected = softmax(np.where(later, -np.inf, logits), axis=-1) @ v.numpy()
    assert attended.numpy() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_gain_as_found_is_the_default_scale_on_queries_and_keys_of_mean_square_1() -> None:
    q, k, v = (heads(seed) for seed in range(3))
    expected = F.scaled_dot_product_attention(F.rms_norm(q, (16,)), F.rms_norm(k, (16,)), v, is_causal=True)
    assert torch.allclose(model().attention(0)(q, k, v), expected, atol=1e-5)


def test_without_the_norm_it_is_the_same_model() -> None:
    ours, plain = model(), model(SourceLM, objective="causal")
    assert ours.hparams["objective"] == "causal"
    for (name, param), (plain_name, plain_param) in zip(
        ours.named_parameters(), plain.named_parameters(), strict=True
    ):
        assert name == plain_name
        assert torch.equal(param, plain_param)


def test_a_training_learns_more_than_how_frequent_bytes_are(fit: Fit) -> None:
    data = SourceData(length=32, lengths=[32], num_bytes=4096, max_bytes=200_000)
    trainer = fit(model(num_layers=1, lr=0.01), data, steps=90)
    share = torch.bincount(data.texts["train"].long(), minlength=256).double() / len(data.texts["train"])
    unigram = -(share.log2().clamp(min=-64.0) * share).sum().item()
    assert trainer.callback_metrics["val_bits"].item() < unigram - 0.5
