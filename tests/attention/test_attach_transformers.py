from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tempopt import AttachError, attach

transformers: Any = pytest.importorskip(
    "transformers", reason="NOT TESTED: the attention interface. Install tempopt[transformers]."
)

WIDTH, HEADS, KEY_HEADS, LAYERS, VOCABULARY, TOKENS = 32, 4, 2, 2, 40, 9
LOG_N = {"length_scaling": "log_n", "n0": 4.0}


def llama(implementation: str = "sdpa", **options: Any) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        **options,
    )
    return sharp(transformers.LlamaForCausalLM(config), implementation)


def bert(implementation: str = "sdpa") -> Any:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return sharp(transformers.BertModel(config), implementation)


def sharp(model: Any, implementation: str) -> Any:
    """Return the model with weights for which attention is far from uniform."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(0.25 * torch.randn(parameter.shape, generator=generator))
    model.set_attn_implementation(implementation)
    return model.eval()


def text(padded: str | None = "right") -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    if padded == "right":
        mask[1, -3:] = 0
    elif padded == "left":
        mask[1, :3] = 0
    return {
        "input_ids": torch.randint(1, VOCABULARY, (2, TOKENS), generator=generator),
        "attention_mask": mask,
    }


MODELS = {"llama": llama, "bert": bert}
both_models = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
both_implementations = pytest.mark.parametrize("implementation", ["sdpa", "eager"])


def scale_by_hand(model: nn.Module, factor_B1Q1: Tensor) -> None:
    """Have transformers' own eager attention multiply each query by a factor of ours."""
    eager_forward = sys.modules[type(model).__module__].eager_attention_forward

    def scaled_attention(module, query, key, value, attention_mask, **options):
        return eager_forward(module, query * factor_B1Q1, key, value, attention_mask, **options)

    transformers.AttentionInterface.register("by_hand", scaled_attention)
    transformers.AttentionMaskInterface.register(
        "by_hand", transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["eager"]
    )
    model.set_attn_implementation("by_hand")


@pytest.fixture(autouse=True)
def _registries_are_left_clean() -> Any:
    yield
    for registry in (transformers.AttentionInterface, transformers.AttentionMaskInterface):
        registry._global_mapping.pop("by_hand", None)


@pytest.mark.parametrize("padded", [None, "right", "left"])
@both_implementations
@both_models
def test_each_query_is_scaled_by_the_keys_that_it_sees(make, implementation, padded) -> None:
    inputs = text(padded)
    valid_BK = inputs["attention_mask"].bool()
    # Counted here from the tokens, not from any mask of four dimensions.
    seen_BQ = valid_BK.cumsum(-1) if make is llama else valid_BK.sum(-1, keepdim=True).expand(-1, TOKENS)
    by_hand = make("eager")
    scale_by_hand(by_hand, (seen_BQ.clamp(min=2).double().log() / math.log(4.0)).float()[:, None, :, None])
    model = make(implementation)
    attach(model, LOG_N)
    ours, theirs = model(**inputs)[0], by_hand(**inputs)[0]
    # What a padded query attends to does not matter.
    torch.testing.assert_close(ours[valid_BK], theirs[valid_BK], rtol=1e-4, atol=1e-5)
    assert (ours - make(implementation)(**inputs)[0])[valid_BK].abs().max() > 1e-2


def same_with_a_cache(model: Any, inputs: dict[str, Tensor], cache: str, *, max_new_tokens: int) -> None:
    """Assert that generation with a cache has the logits of generation without one."""

    def logits(**options: Any) -> Tensor:
        generated = model.generate(
            **inputs,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            disable_compile=True,
            **options,
        )
        return torch.stack(generated.logits)

    cached = logits(use_cache=True, cache_implementation=cache)
    torch.testing.assert_close(cached, logits(use_cache=False), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padded", [None, "left"])
@pytest.mark.parametrize("plan", [{"temperature_init": 0.7}, {"local_share": 0.5, "window": 3}])
def test_with_a_cache_each_new_query_counts_the_cached_keys(plan, padded, cache) -> None:
    model = llama()
    attach(model, LOG_N | plan)

    same_with_a_cache(model, text(padded), cache, max_new_tokens=5)


def naive_entropy_term(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Return -mean of H / ln n over layers, from the weights that eager attention returns, in float64."""
    attentions = model(**inputs, output_attentions=True).attentions
    valid_BQ = inputs["attention_mask"].bool()
    causal = isinstance(model, transformers.LlamaForCausalLM)
    seen_BQ = valid_BQ.cumsum(-1) if causal else valid_BQ.sum(-1, keepdim=True).expand(-1, TOKENS)
    counts_BHQ = (valid_BQ & (seen_BQ > 1))[:, None].expand(-1, HEADS, -1)
    total = torch.zeros((), dtype=torch.float64)
    for weights_BHQK in attentions:
        entropy_BHQ = torch.special.entr(weights_BHQK.clamp(min=1e-300)).sum(-1)
        ratio_BHQ = entropy_BHQ / seen_BQ.clamp(min=2).double().log()[:, None]
        total = total - ratio_BHQ[counts_BHQ].mean()
    return total / len(attentions)


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: param.grad.clone() for name, param in model.named_parameters() if param.grad is not None}


@both_implementations
@both_models
def test_the_gradient_of_the_entropy_term_is_that_of_weights_written_out(make, implementation) -> None:
    inputs = text("right")
    plain, model = make("eager").double().train(), make(implementation).double().train()
    attach(model, {"entropy_lambda": 0.3, "temperature_init": 1.0})
    valid_BQ = inputs["attention_mask"].bool()

    def task(network: nn.Module) -> Tensor:
        return network(**inputs)[0][valid_BQ].square().mean()

    expected = gradients(plain, task(plain) + 0.3 * naive_entropy_term(plain, inputs))
    without = gradients(plain, task(plain))
    ours = gradients(model, task(model))
    for name, gradient in expected.items():
        # Norms and softmax of the model are in float32 whatever its type.
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-6)
    assert any((expected[name] - without[name]).abs().max() > 1e-4 for name in without)


def test_layers_are_chosen_by_what_is_around_or_inside_of_them() -> None:
    for pattern in ("model.layers.1", "*.1.self_attn", "model.layers.1.self_attn.q_proj"):
        model = llama()
        with attach(model, LOG_N, layers=[pattern]) as attachment:
            assert attachment.layers == ["model.layers.1.self_attn"]
            attachment.self_test(lambda model=model: model(**text())[0])
    with pytest.raises(AttachError, match=r"matches none of the modules .* model\.layers\.0\.self_attn"):
        attach(llama(), LOG_N, layers=["encoder.*"])


def gemma2() -> Any:
    config = transformers.Gemma2Config(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=8,
    )
    return sharp(transformers.Gemma2ForCausalLM(config), "eager")


def test_the_keys_that_a_query_sees_cannot_be_counted_where_logits_are_capped() -> None:
    model = gemma2()
    attachment = attach(model, {})
    for parameters, option in ((LOG_N, "length_scaling"), ({"local_share": 0.5, "window": 2}, "local_share")):
        with pytest.raises(AttachError, match=rf"{option} cannot .* adds to its logits, or caps them"):
            attachment.use(parameters)


def test_a_capped_logit_is_divided_by_the_temperature_before_it_is_capped() -> None:
    model, by_hand = gemma2(), gemma2()
    attach(model, {"temperature_init": 0.25})
    for module in by_hand.modules():
        if isinstance(vars(module).get("scaling"), float):
            module.scaling *= 4.0
    torch.testing.assert_close(model(**text())[0], by_hand(**text())[0], rtol=1e-5, atol=1e-5)


def test_an_implementation_that_is_set_afterwards_is_refused() -> None:
    model = llama()
    attach(model, LOG_N)
    model.set_attn_implementation("eager")
    with pytest.raises(AttachError, match="attends otherwise than in the example"):
        model(**text())
