"""Models as other people write them, small and random, each under an attached temperature.

What by-hand models are made of (a halved ``scaling``, halved weights) shares nothing with tempopt.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.nn.functional import scaled_dot_product_attention

from tempopt import attach

WIDTH, HEADS, LAYERS = 32, 4, 2
VOCABULARY, TOKENS = 40, 9
# Each query of these models attends with a scale that a power of two changes exactly.
HOT = {"temperature_init": 2.0}

SIZES = dict(hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=HEADS)
DECODER = SIZES | dict(
    vocab_size=VOCABULARY,
    num_key_value_heads=HEADS // 2,
    head_dim=8,
    max_position_embeddings=64,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=0,
)


def of_transformers(name: str) -> Any:
    pytest.importorskip(
        "transformers", reason="NOT TESTED: models of transformers. Install tempopt[transformers]."
    )
    return getattr(importlib.import_module("transformers"), name)


def hugging_face(model: str, config: str, **options: Any) -> nn.Module:
    return of_transformers(model)(of_transformers(config)(**options))


def bert() -> nn.Module:
    return hugging_face("BertModel", "BertConfig", vocab_size=VOCABULARY, max_position_embeddings=64, **SIZES)


def gpt2() -> nn.Module:
    tokens = dict(vocab_size=VOCABULARY, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    return hugging_face(
        "GPT2LMHeadModel", "GPT2Config", n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=64, **tokens
    )


def llama() -> nn.Module:
    return hugging_face("LlamaForCausalLM", "LlamaConfig", **DECODER)


def qwen3() -> nn.Module:
    return hugging_face("Qwen3ForCausalLM", "Qwen3Config", **DECODER)


def gemma2() -> nn.Module:
    options = DECODER | {"attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 8, "sliding_window": 4}
    model = hugging_face("Gemma2ForCausalLM", "Gemma2Config", **options)
    model.set_attn_implementation("eager")
    return model


def t5() -> nn.Module:
    sizes = dict(d_model=WIDTH, d_kv=8, d_ff=48, num_layers=1, num_decoder_layers=1, num_heads=HEADS)
    return hugging_face(
        "T5Model", "T5Config", vocab_size=VOCABULARY, decoder_start_token_id=0, pad_token_id=0, **sizes
    )


def vit() -> nn.Module:
    return hugging_face("ViTModel", "ViTConfig", image_size=12, patch_size=4, **SIZES)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 48, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)


# ---- vision transformers of timm, and one with its calls for where timm is not installed


class TimmAttention(nn.Module):
    """Attention with the calls of timm's, whose ``scale`` its fused way never reads."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = (WIDTH // HEADS) ** -0.5
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.q_norm, self.k_norm = nn.Identity(), nn.Identity()
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        x = scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0)
        return self.proj(x.transpose(1, 2).reshape(batch, tokens, width))


class TimmBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = TimmAttention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def timm_like() -> nn.Module:
    return nn.Sequential(*(TimmBlock() for _ in range(LAYERS)))


def of_timm(name: str, **options: Any) -> nn.Module:
    timm: Any = pytest.importorskip(
        "timm",
        # A torchvision that was built for another torch, as for CUDA, cannot even be imported.
        reason="NOT TESTED: timm's own models (timm_like has their calls). Install timm, and a torchvision "
        "that was built for the torch that is installed.",
        exc_type=Exception,
    )
    sizes = dict(img_size=12, patch_size=4, embed_dim=WIDTH, depth=LAYERS, num_heads=HEADS, num_classes=5)
    return getattr(timm.models, name)(**sizes, **options)


def timm_vit() -> nn.Module:
    return of_timm("VisionTransformer")


def timm_vit_unfused() -> nn.Module:
    model = timm_vit()
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    return model


def timm_eva() -> nn.Module:
    """Rotary positions, and a projection for each of query, key and value."""
    model = of_timm("Eva", qkv_fused=False, use_rot_pos_emb=True, head_init_scale=1.0)
    for name, parameter in model.named_parameters():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            nn.init.normal_(parameter, std=0.5)
    return model


def draw_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def tokens() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, VOCABULARY, (2, TOKENS), generator=generator)
    padding = torch.ones(2, TOKENS, dtype=torch.long)
    padding[1, -3:] = 0
    return {"input_ids": ids, "attention_mask": padding}


def halve_scale(model: nn.Module) -> None:
    """Halve what the modules of transformers, and of timm where they are not fused, multiply logits by."""
    for module in model.modules():
        for name in ("scaling", "scale"):
            if isinstance(vars(module).get(name), float):
                setattr(module, name, 0.5 * vars(module)[name])


def halve_rows(*names: str) -> Callable[[nn.Module], None]:
    """Halve the first WIDTH outputs of the parameters that have these last names."""

    def halve(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if name.endswith(names):
                with torch.no_grad():
                    parameter[:WIDTH] *= 0.5

    return halve


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    run: Callable[[nn.Module], Tensor]
    halve: Callable[[nn.Module], None]

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        model = self.make().eval()
        # A standard deviation of 0.02 leaves attention so uniform that a temperature is hardly seen.
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim == 2 and "embed" not in name and "proj.weight" not in name[-11:]:
                    parameter.mul_(3.0)
        return model

    def scaled_model(self) -> nn.Module:
        model = self.model()
        self.halve(model)
        return model

    def attached_model(self, parameters: dict[str, Any] = HOT) -> tuple[nn.Module, Any]:
        model = self.model()
        return model, attach(model, parameters, example=lambda: self.run(model))


def read_text(model: nn.Module) -> Tensor:
    return model(**tokens())[0]


def read_pairs(model: nn.Module) -> Tensor:
    return model(**tokens(), decoder_input_ids=tokens()["input_ids"][:, :5])[0]


def read_image(model: nn.Module) -> Tensor:
    output = model(draw_tensor(2, 3, 12, 12))
    return output if isinstance(output, Tensor) else output[0]


def read_vectors(model: nn.Module) -> Tensor:
    return model(draw_tensor(2, TOKENS, WIDTH))


PACKED = halve_rows("in_proj_weight", "in_proj_bias")
FUSED = halve_rows("qkv.weight", "qkv.bias")
CASES = {
    "bert": Case(bert, read_text, halve_scale),
    "gpt2": Case(gpt2, read_text, halve_scale),
    "llama": Case(llama, read_text, halve_scale),
    "vit": Case(vit, read_image, halve_scale),
    "gemma2": Case(gemma2, read_text, halve_scale),
    "t5": Case(t5, read_pairs, halve_scale),
    "qwen3": Case(qwen3, read_text, halve_scale),
    "timm": Case(timm_vit, read_image, FUSED),
    "timm unfused": Case(timm_vit_unfused, read_image, halve_scale),
    "timm eva": Case(timm_eva, read_image, halve_rows("q_proj.weight", "q_proj.bias")),
    "timm-like": Case(timm_like, read_vectors, FUSED),
    "encoder": Case(encoder, read_vectors, PACKED),
}
CAUSAL = ("gpt2", "llama", "qwen3", "gemma2")

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def gradients(model: nn.Module, run: Callable[[nn.Module], Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    run(model).square().mean().backward()
    return {name: param.grad.clone() for name, param in model.named_parameters() if param.grad is not None}


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name in actual:
        assert torch.equal(actual[name], expected[name]), name


@every_case
def test_at_temperature_1_outputs_and_gradients_are_those_of_the_untouched_model(case) -> None:
    plain = case.model()
    model, _ = case.attached_model({})
    assert torch.equal(case.run(model), case.run(plain))
    assert_equal(gradients(model, case.run), gradients(plain, case.run))
    with torch.inference_mode():
        # of nn.TransformerEncoder it is another kernel, which rounds otherwise
        torch.testing.assert_close(case.run(model), case.run(plain), rtol=1e-6, atol=1e-6)


@every_case
def test_at_temperature_2_it_is_the_model_with_its_scale_halved_by_hand(case) -> None:
    plain, scaled_model = case.model(), case.scaled_model()
    model, _ = case.attached_model()
    expected = case.run(scaled_model)
    torch.testing.assert_close(case.run(model), expected, rtol=1e-6, atol=1e-6)
    assert (expected - case.run(plain)).abs().max() > 1e-4
    with torch.inference_mode():
        torch.testing.assert_close(case.run(model), case.run(scaled_model), rtol=1e-6, atol=1e-6)


@every_case
def test_the_self_test_passes(case) -> None:
    model, attachment = case.attached_model()
    attachment.self_test(lambda: case.run(model))
    assert attachment.temperatures == (2.0,) * len(attachment.layers)


# The others share their attention modules' code with these, and take seconds each.
COMPILED = ("bert", "gpt2", "vit", "timm", "timm unfused", "timm-like", "encoder")


@pytest.mark.parametrize("case", [CASES[name] for name in COMPILED], ids=COMPILED)
def test_one_compiled_graph_serves_every_temperature(case) -> None:
    model, attachment = case.attached_model()
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled_model = torch.compile(model, backend=counter)
    with torch.no_grad():
        case.run(compiled_model)
        graphs = counter.frame_count
        for temperature in (0.5, 1.0, 3.0):
            attachment.use({"temperature_init": temperature})
            torch.testing.assert_close(case.run(compiled_model), case.run(model), rtol=1e-5, atol=1e-5)
    assert counter.frame_count == graphs <= 1 + (case.make is encoder)


def test_it_is_compiled_forward_and_backward_without_a_break() -> None:
    case = CASES["llama"]
    model, attachment = case.attached_model()
    torch._dynamo.reset()
    compiled_model = torch.compile(model, backend="aot_eager", fullgraph=True)
    for temperature in (2.0, 0.5):
        attachment.use({"temperature_init": temperature})
        compiled_grads = gradients(compiled_model, case.run)
        eager_grads = gradients(model, case.run)
        for name, expected in eager_grads.items():
            torch.testing.assert_close(compiled_grads[f"_orig_mod.{name}"], expected, rtol=1e-4, atol=1e-6)


@every_case
def test_detached_it_is_the_untouched_model(case) -> None:
    plain = case.model()
    model, attachment = case.attached_model()
    with attachment:
        case.run(model)
    assert torch.equal(case.run(model), case.run(plain))
    for module, plain_module in zip(model.modules(), plain.modules(), strict=True):
        assert type(module) is type(plain_module)
        assert vars(module).keys() == vars(plain_module).keys()
    assert_equal(model.state_dict(), plain.state_dict())
    if "config" in vars(plain):
        assert model.config._attn_implementation == plain.config._attn_implementation


@pytest.mark.parametrize("name", CAUSAL)
def test_generation_with_a_cache_is_generation_without_and_by_hand(name) -> None:
    case = CASES[name]
    scaled_model, (model, _) = case.scaled_model(), case.attached_model()

    def generate(generator: Any, *, use_cache: bool) -> Any:
        return generator.generate(
            tokens()["input_ids"][:1, :6],
            max_new_tokens=6,
            do_sample=False,
            use_cache=use_cache,
            output_logits=True,
            return_dict_in_generate=True,
        )

    expected = generate(scaled_model, use_cache=True)
    for use_cache in (True, False):
        generation = generate(model, use_cache=use_cache)
        assert torch.equal(generation.sequences, expected.sequences)
        for logits, expected_logits in zip(generation.logits, expected.logits, strict=True):
            torch.testing.assert_close(logits, expected_logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "qwen3"])
@pytest.mark.filterwarnings("ignore:.*use_cache.*")
def test_with_activations_computed_again_gradients_are_the_same(name) -> None:
    case = CASES[name]
    model, _ = case.attached_model()
    expected = gradients(model, case.run)
    model.activation_checkpointing_enable()
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(vars(module).get("attention_dropout"), float):
            module.attention_dropout = 0.0
    assert_equal(gradients(model, case.run), expected)


@pytest.mark.parametrize("name", ["bert", "llama", "encoder"])
def test_a_copied_model_goes_on_and_is_set_by_its_own_attachment(name) -> None:
    case = CASES[name]
    model, attachment = case.attached_model()
    output_before = case.run(model)
    twin, twin_attachment = copy.deepcopy((model, attachment))
    attachment.detach()
    assert torch.equal(case.run(twin), output_before)
    twin_attachment.use({})
    assert torch.equal(case.run(twin), case.run(model))
    twin_attachment.detach()
    assert torch.equal(case.run(twin), case.run(model))
