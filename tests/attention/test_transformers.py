"""Generation by transformers: tokens are drawn by the parameters, under attention's temperature."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tempopt import attach
from tempopt.attention.generation import allowed_logits, generation_kwargs
from tempopt.temperature import GenerationParameters

transformers = pytest.importorskip("transformers", reason="NOT TESTED: generation by transformers.")
ROWS = 4000


@pytest.fixture(params=["gpt2", "llama"])
def model(request: pytest.FixtureRequest) -> Any:
    """A tiny model with random weights, whose queries are enlarged so that attention is sharp."""
    sizes: dict[str, Any] = {"vocab_size": 20, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if request.param == "gpt2":
            config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=32, **sizes)
            tiny_model = transformers.GPT2LMHeadModel(config)
        else:
            config = transformers.LlamaConfig(
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=2,
                **sizes,
            )
            tiny_model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, param in tiny_model.named_parameters():
            if param.dim() == 2:
                param.mul_(30.0 if "c_attn" in name or "q_proj" in name else 6.0)
    # a default of the model's own, which the parameters have to replace
    tiny_model.generation_config.top_k = 3
    tiny_model.generation_config.do_sample = True
    return tiny_model.eval()


PROMPT = torch.tensor([[3, 7, 1, 12, 5, 9]])


def draw_tokens(model: Any, parameters: GenerationParameters, *, rows: int = ROWS, tokens: int = 1) -> Tensor:
    config = transformers.GenerationConfig(
        max_new_tokens=tokens, pad_token_id=0, **generation_kwargs(parameters)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        sequences: Tensor = model.generate(PROMPT.expand(rows, -1), generation_config=config)
    return sequences[:, PROMPT.shape[1] :]


@pytest.mark.parametrize(
    "options", [{}, {"sampling_temperature": 0.5, "top_p": 0.9}, {"min_p": 0.1, "top_k_tokens": 8}], ids=str
)
@pytest.mark.parametrize("tau", [1.0, 4.0])
def test_tokens_are_drawn_by_the_parameters_from_the_logits_at_attentions_temperature(
    model: Any, options: dict[str, Any], tau: float
) -> None:
    with torch.no_grad():
        plain = model(PROMPT).logits[:, -1]
    attachment = attach(model, {"temperature_init": tau})
    with torch.no_grad():
        logits = model(PROMPT).logits[:, -1]
    assert torch.allclose(plain, logits) == (tau == 1.0)
    parameters = GenerationParameters(**options)
    share = draw_tokens(model, parameters)[:, 0].bincount(minlength=20) / ROWS
    expected = allowed_logits(logits, parameters).softmax(-1)[0]
    assert torch.all(share[expected == 0] == 0)
    assert torch.all((share - expected).abs() <= 4.5 * (expected * (1 - expected) / ROWS).sqrt() + 1e-7)
    attachment.detach()


def test_greedy_generation_takes_the_largest_logit_of_each_step_under_attentions_temperature(
    model: Any,
) -> None:
    greedy, tokens_by_tau = GenerationParameters(sampling_temperature=0.0), {}
    for tau in (1.0, 4.0):
        attachment = attach(model, {"temperature_init": tau})
        tokens = PROMPT
        with torch.no_grad():
            for _ in range(6):
                tokens = torch.cat([tokens, model(tokens).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
        assert torch.equal(draw_tokens(model, greedy, rows=1, tokens=6), tokens[:, PROMPT.shape[1] :])
        tokens_by_tau[tau] = tokens.tolist()
        attachment.detach()
    assert tokens_by_tau[1.0] != tokens_by_tau[4.0]
