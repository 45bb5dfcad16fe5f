"""How the families of attach_families.py are built, run, and brought to temperature 2 without tempopt."""

from __future__ import annotations

import importlib
import math
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

V, T, W, H, L = 40, 9, 32, 4, 2

SIZES = dict(
    vocab_size=V,
    hidden_size=W,
    intermediate_size=48,
    num_hidden_layers=L,
    num_attention_heads=H,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=None,
)
GROUPED = SIZES | dict(num_key_value_heads=2, head_dim=8)


@dataclass(frozen=True)
class Family:
    """One family: its name in the table, how it is made and run, and what brings a copy to temperature 2."""

    name: str
    make: Callable[[], nn.Module]
    run: Callable[[nn.Module], Tensor]
    oracle: Callable[[nn.Module], AbstractContextManager[None]]


def model_builder(
    model: str, config: str, options: dict[str, Any], eager: bool = False
) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(0)
        transformers = importlib.import_module("transformers")
        model_instance: Any = getattr(transformers, model)(getattr(transformers, config)(**options))
        if eager:
            model_instance.set_attn_implementation("eager")
        return model_instance

    return make


def draw_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def ids(length: int = T) -> Tensor:
    return torch.randint(3, V, (2, length), generator=torch.Generator().manual_seed(1))


def flat(output: Any) -> Tensor:
    tensors = (
        [output]
        if isinstance(output, Tensor)
        else list(output.values() if hasattr(output, "values") else output)
    )
    return torch.cat([tensor.float().flatten() for tensor in tensors if isinstance(tensor, Tensor)])


def text(model: nn.Module) -> Tensor:
    padding = torch.ones(2, T, dtype=torch.long)
    padding[1, -3:] = 0
    model_inputs: dict[str, Any] = {"input_ids": ids(), "attention_mask": padding}
    return flat(first(model(**model_inputs)))


def plain(model: nn.Module) -> Tensor:
    return flat(first(model(input_ids=ids())))


def long_text(model: nn.Module) -> Tensor:
    return flat(first(model(input_ids=ids(64))))


def global_text(model: nn.Module) -> Tensor:
    mask = torch.zeros(2, 16, dtype=torch.long)
    mask[:, [0, 5]] = 1
    return flat(first(model(input_ids=ids(16), global_attention_mask=mask)))


def pairs(model: nn.Module) -> Tensor:
    return flat(first(model(input_ids=ids(), decoder_input_ids=ids(5))))


def global_pairs(model: nn.Module) -> Tensor:
    mask = torch.zeros(2, 16, dtype=torch.long)
    mask[:, [0, 5]] = 1
    return flat(first(model(input_ids=ids(16), decoder_input_ids=ids(5), global_attention_mask=mask)))


def image(model: nn.Module) -> Tensor:
    size = getattr(model.config, "image_size", 32)
    size = size[0] if isinstance(size, (list, tuple)) else size
    return flat(first(model(pixel_values=draw_tensor(2, 3, size, size))))


def all_outputs(model: nn.Module) -> Tensor:
    """Every output of an image tower, the pooled one too."""
    out = model(pixel_values=draw_tensor(2, 3, model.config.image_size, model.config.image_size))
    return flat([out.last_hidden_state, out.pooler_output])


def wave(model: nn.Module) -> Tensor:
    return flat(first(model(draw_tensor(2, 400))))


def features(model: nn.Module) -> Tensor:
    return flat(first(model(draw_tensor(2, 40, 16))))


def spectrogram(model: nn.Module) -> Tensor:
    return flat(first(model(input_features=draw_tensor(2, 16, 20), decoder_input_ids=ids(5))))


def first(output: Any) -> Any:
    if hasattr(output, "logits"):
        return output.logits
    return output[0]


@contextmanager
def scale(model: nn.Module) -> Iterator[None]:
    """Halve what attention modules multiply their logits by."""
    num_found = 0
    for module in model.modules():
        for name in ("scaling", "scale"):
            if isinstance(vars(module).get(name), float):
                vars(module)[name] *= 0.5
                num_found += 1
    assert num_found, "no module has a scale"
    yield


def roots(factor: float) -> Callable[[nn.Module], AbstractContextManager[None]]:
    """Multiply the square roots that the family's own code divides logits by."""

    @contextmanager
    def multiply(model: nn.Module) -> Iterator[None]:
        names = vars(sys.modules[type(model).__module__])
        longer = types.SimpleNamespace(**vars(math) | {"sqrt": lambda x: factor * math.sqrt(x)})
        original_sqrt = names.get("scaled_size_sqrt")
        scaled_sqrt = (
            {"scaled_size_sqrt": lambda *args: factor * original_sqrt(*args)} if original_sqrt else {}
        )
        with mock.patch.dict(names, {"math": longer} | scaled_sqrt):
            yield

    return multiply


root = roots(2.0)


def attribute(name: str, factor: float) -> Callable[[nn.Module], AbstractContextManager[None]]:
    """Multiply an attribute, or a buffer, of attention modules."""

    @contextmanager
    def multiply(model: nn.Module) -> Iterator[None]:
        holders = [module for module in model.modules() if hasattr(module, name)]
        assert holders, "no module has it"
        for module in holders:
            setattr(module, name, getattr(module, name) * factor)
        yield

    return multiply


def weights(*ends: str, parts: int = 1, axis: int = 0) -> Callable[[nn.Module], AbstractContextManager[None]]:
    """Halve parameters by the ends of their names, or the first of their parts."""

    @contextmanager
    def halve(model: nn.Module) -> Iterator[None]:
        num_found = 0
        for name, parameter in model.named_parameters():
            if name.endswith(ends):
                halved_axis = axis if parameter.ndim > 1 else 0
                size = parameter.shape[halved_axis] // parts
                with torch.no_grad():
                    parameter.narrow(halved_axis, 0, size).mul_(0.5)
                num_found += 1
        assert num_found, "no parameter is named so"
        yield

    return halve


def apply_all(*oracles: Any) -> Callable[[nn.Module], AbstractContextManager[None]]:
    """Apply several, of a model whose attention is of several kinds."""

    @contextmanager
    def apply(model: nn.Module) -> Iterator[None]:
        with ExitStack() as stack:
            for oracle in oracles:
                stack.enter_context(oracle(model))
            yield

    return apply


QUERY = weights("query.weight", "query.bias")
Q_PROJ = weights("q_proj.weight", "q_proj.bias")


def decoder(name: str, *, oracle: Any = scale, run: Any = text, model: str = "", **options: Any) -> Family:
    stem = name.split(" ")[0]
    make_model = model_builder(model or f"{stem}ForCausalLM", f"{stem}Config", {**GROUPED, **options})
    return Family(name, make_model, run, oracle)


def encoder(name: str, *, oracle: Any = scale, run: Any = text, **options: Any) -> Family:
    stem = name.split(" ")[0]
    return Family(name, model_builder(f"{stem}Model", f"{stem}Config", {**SIZES, **options}), run, oracle)


IMAGE = dict(
    hidden_size=W,
    intermediate_size=48,
    num_hidden_layers=L,
    num_attention_heads=H,
    image_size=16,
    patch_size=4,
)


def vision(
    name: str, *, oracle: Any = scale, run: Any = image, model: str = "", config: str = "", **options: Any
) -> Family:
    stem = name.split(" ")[0]
    all_options = {**IMAGE, **options}
    return Family(
        name, model_builder(model or f"{stem}Model", config or f"{stem}Config", all_options), run, oracle
    )


SEQ = dict(
    vocab_size=V,
    d_model=W,
    encoder_layers=L,
    decoder_layers=L,
    encoder_attention_heads=H,
    decoder_attention_heads=H,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
    forced_eos_token_id=None,
)
T5 = dict(
    vocab_size=V,
    d_model=W,
    d_kv=8,
    d_ff=48,
    num_layers=L,
    num_decoder_layers=L,
    num_heads=H,
    decoder_start_token_id=0,
    pad_token_id=0,
)


def pair(
    name: str, sizes: dict[str, Any], *, oracle: Any = scale, run: Any = pairs, **options: Any
) -> Family:
    stem = name.split(" ")[0]
    return Family(name, model_builder(f"{stem}Model", f"{stem}Config", {**sizes, **options}), run, oracle)


SPEECH = dict(
    hidden_size=W,
    num_hidden_layers=L,
    num_attention_heads=H,
    intermediate_size=48,
    vocab_size=V,
    conv_dim=(16, 16),
    conv_stride=(5, 2),
    conv_kernel=(10, 3),
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    num_feat_extract_layers=2,
    feat_extract_norm="layer",
)
GPT = dict(vocab_size=V, n_embd=W, n_layer=L, n_head=H, n_positions=64, bos_token_id=None, eos_token_id=None)
MOE = dict(num_local_experts=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
MLA = dict(
    num_key_value_heads=H,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=8,
    moe_intermediate_size=16,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_shared_experts=1,
    first_k_dense_replace=1,
    n_group=1,
    topk_group=1,
    head_dim=4,
)
SWIN = dict(image_size=16, patch_size=2, embed_dim=W, depths=[1, 1], num_heads=[2, 4], window_size=2)
MAMBA = dict(
    mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=8, mamba_d_conv=4, mamba_expand=2
)
