"""Head patterns where attention runs, against softmax written out head by head."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tempopt
from tempopt import TemperedModule, attach
from tempopt.attention.attach.checkpoints import put_beside
from tempopt.attention.functional.entropy import attention_entropy
from tempopt.temperature import HEAD_PATTERNS
from tests.attention.test_attach_transformers import llama, text

PATTERNED = [name for name in HEAD_PATTERNS if name != "uniform"]
RATIO = 5.0
each_pattern = pytest.mark.parametrize("pattern", PATTERNED)


class PatternHeads(TemperedModule):
    """Two layers that do nothing but attend."""

    def __init__(self, **temperature: Any) -> None:
        super().__init__(num_layers=2, **temperature)


def draw_qkv(num_heads: int = 4, key_heads: int | None = None, n: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(2, num_heads, n, 8, generator=generator, dtype=torch.float64)
    k, v = torch.randn(2, 2, key_heads or num_heads, n, 8, generator=generator, dtype=torch.float64)
    return q, k, v


def factors(pattern: str, num_heads: int) -> np.ndarray:
    """Return the factors on the temperature, written out."""
    r = np.arange(num_heads) / (num_heads - 1)
    shape = {
        "linear": 1 + (RATIO - 1) * r,
        "exp": RATIO**r,
        "alternate": np.where(np.arange(num_heads) % 2, RATIO, 1.0),
    }[pattern]
    return shape / np.exp(np.log(shape).mean())


def by_loops(q: Tensor, k: Tensor, v: Tensor, tau_HQ: np.ndarray) -> np.ndarray:
    """Return causal attention, one query at a time, each at its own temperature."""
    qs, ks, vs = q.numpy(), k.numpy(), v.numpy()
    batch, num_heads, n, d = qs.shape
    group = num_heads // ks.shape[1]
    out = np.zeros((batch, num_heads, n, vs.shape[-1]))
    for b, h, i in np.ndindex(batch, num_heads, n):
        logits = np.array([qs[b, h, i] @ ks[b, h // group, j] for j in range(i + 1)])
        exponentials = np.exp((logits - logits.max()) / (math.sqrt(d) * tau_HQ[h, i]))
        out[b, h, i] = exponentials @ vs[b, h // group, : i + 1] / exponentials.sum()
    return out


def each_query(tau_H: np.ndarray, n: int = 7) -> np.ndarray:
    return np.repeat(tau_H[:, None], n, axis=1)


@each_pattern
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_each_head_attends_at_its_own_temperature(pattern: str, key_heads: int) -> None:
    q, k, v = draw_qkv(key_heads=key_heads)
    layers = {"layer_pattern": "linear", "layer_ratio": 4.0}
    module = (
        PatternHeads(temperature_init=0.7, head_pattern=pattern, head_ratio=RATIO, **layers).double().eval()
    )
    out = module.attend(q, k, v, layer=1, is_causal=True)
    tau_H = 0.7 * 2.0 * factors(pattern, 4)
    np.testing.assert_allclose(out.numpy(), by_loops(q, k, v, each_query(tau_H)), rtol=1e-5, atol=1e-6)


def test_it_goes_with_length_scaling_and_with_a_learned_factor() -> None:
    q, k, v = draw_qkv()
    module = (
        PatternHeads(head_pattern="exp", head_ratio=RATIO, length_scaling="log_n", n0=4.0).double().eval()
    )
    learned_H = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
    out = module.attend(q, k, v, layer=0, is_causal=True, inverse_temperature=learned_H[:, None, None])
    grown_Q = np.log(np.maximum(np.arange(1, 8), 2)) / np.log(4.0)
    tau_HQ = (factors("exp", 4) / learned_H.numpy())[:, None] / grown_Q
    np.testing.assert_allclose(out.numpy(), by_loops(q, k, v, tau_HQ), rtol=1e-5, atol=1e-6)


def test_the_entropy_term_is_of_each_heads_own_weights() -> None:
    q, k, v = draw_qkv()
    module = PatternHeads(head_pattern="exp", head_ratio=RATIO, entropy_lambda=0.3).double().train()
    q.requires_grad_(True)
    (by_module,) = torch.autograd.grad(module.attend(q, k, v, layer=0, is_causal=True).sum(), q)
    tempered = q / torch.from_numpy(factors("exp", 4))[:, None, None]
    out = nn.functional.scaled_dot_product_attention(tempered, k, v, is_causal=True)
    # -lambda / layers times the mean of H / ln n over the queries that see more than one key
    share = attention_entropy(tempered, k, is_causal=True)[..., 1:] / torch.arange(2, 8).double().log()
    (by_hand,) = torch.autograd.grad(out.sum() - 0.3 / 2 * share.mean(), q)
    torch.testing.assert_close(by_module, by_hand, rtol=1e-5, atol=1e-8)


def test_learned_heads_begin_at_the_pattern_and_say_so() -> None:
    q, k, v = draw_qkv()
    module = PatternHeads(temperature_init=2.0, head_pattern="exp", head_ratio=RATIO).double()
    before = module.attend(q, k, v, layer=0)
    heads = module.learn_heads()
    torch.testing.assert_close(module.attend(q, k, v, layer=0), before, rtol=1e-6, atol=1e-8)
    assert heads.layers[0].temperatures == pytest.approx(2.0 * factors("exp", 4))
    heads.layers[0].set_temperatures([1.0] * 4)
    at_one = PatternHeads().double().attend(q, k, v, layer=0)
    torch.testing.assert_close(module.attend(q, k, v, layer=0), at_one, rtol=1e-6, atol=1e-8)


def test_learned_layers_keep_the_pattern() -> None:
    q, k, v = draw_qkv(n=5)
    module = PatternHeads(head_pattern="exp", head_ratio=RATIO).double()
    module.learn()
    weight = torch.randn(q.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def loss(tau: float) -> Tensor:
        module.set_temperatures([tau, 1.0])
        return (module.attend(q, k, v, layer=0) * weight).sum()

    loss(1.5).backward()
    gradients = module.log_gradients()
    step = 1e-3
    slope = (loss(1.5 * math.exp(step)) - loss(1.5 * math.exp(-step))).item() / (2 * step)
    assert gradients is not None
    assert gradients[0] == pytest.approx(slope, rel=1e-2)


def test_it_is_tested_copied_pickled_and_taken_off_with_the_model() -> None:
    inputs, model = text(None), llama("sdpa")
    plain = model(**inputs)[0]
    parameters = {"head_pattern": "exp", "head_ratio": RATIO}
    attachment = attach(model, parameters, example=lambda: model(**inputs)[0])
    assert attachment.tested
    hot = model(**inputs)[0]
    assert (hot - plain).abs().max() > 1e-2
    assert torch.equal(copy.deepcopy(model)(**inputs)[0], hot)
    assert torch.equal(pickle.loads(pickle.dumps(model))(**inputs)[0], hot)
    attachment.use({"head_pattern": "uniform"})
    assert torch.equal(model(**inputs)[0], plain)
    attachment.detach()
    assert torch.equal(model(**inputs)[0], plain)


# ---- the attention interface of transformers


def test_a_checkpoint_keeps_the_pattern_beside_its_weights(tmp_path: Path) -> None:
    inputs, model = text(None), llama("sdpa")
    parameters = {"temperature_init": 0.5, "head_pattern": "alternate", "head_ratio": RATIO}
    attachment = attach(model, parameters)
    checkpoint: dict[str, Any] = {"state_dict": model.state_dict()}
    put_beside(checkpoint, parameters, dict.fromkeys(attachment.layers, 0.5))
    torch.save(checkpoint, tmp_path / "model.ckpt")
    loaded = llama("sdpa")
    tempopt.load_checkpoint(loaded, tmp_path / "model.ckpt")
    assert torch.equal(loaded(**inputs)[0], model(**inputs)[0])
