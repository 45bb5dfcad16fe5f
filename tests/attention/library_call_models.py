"""Attention of PyTorch, transformers, timm, peft and others, as models of ``call_models``."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.attention.call_models import (
    BATCH,
    HEADS,
    MEMORY,
    STACK_LAYERS,
    TOKENS,
    WIDTH,
    Attention,
    Block,
    CallModel,
    Stack,
    Temperatures,
    causal_mask,
    divide_rows,
    random,
    run_tokens,
    sdpa,
    sharpened,
    temper_form,
    temper_linear,
    temper_multihead,
    temper_scale,
    tokens_BTE,
)

# The second sequence is three tokens shorter than the first.
IS_PADDING_BT = torch.arange(TOKENS) >= torch.tensor([TOKENS, TOKENS - 3])[:, None]
IS_PADDING_BS = torch.arange(MEMORY) >= torch.tensor([MEMORY, MEMORY - 2])[:, None]

# ---- nn.MultiheadAttention


class NarrowMultihead(nn.MultiheadAttention):
    """A derived class that takes one tensor and returns no weights."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        attended: Tensor = super().forward(x, x, x, need_weights=False)[0]
        return attended


class MultiheadPair(nn.Module):
    """Two ``nn.MultiheadAttention``, the first over the tokens themselves and the second over a memory."""

    def __init__(self, kdim: int, vdim: int, **options: Any) -> None:
        super().__init__()
        self.first = nn.MultiheadAttention(WIDTH, HEADS, **options)
        self.second = nn.MultiheadAttention(WIDTH, HEADS, kdim=kdim, vdim=vdim, **options)

    def forward(
        self, x: Tensor, key: Tensor, value: Tensor, first: dict[str, Any], second: dict[str, Any]
    ) -> tuple[Tensor | None, ...]:
        attended, weights = self.first(x, x, x, **first)
        attended_memory, memory_weights = self.second(x + attended, key, value, **second)
        return x + attended + attended_memory, weights, memory_weights


def multihead(
    shape: str = "BTE",
    *,
    first: dict[str, Any] | None = None,
    second: dict[str, Any] | None = None,
    kdim: int = WIDTH,
    vdim: int = WIDTH,
    **options: Any,
) -> CallModel:
    """Return the pair on inputs of a shape; ``first`` and ``second`` are options of the two calls."""

    def draw(tokens: int, width: int, seed: int) -> Tensor:
        x_BTE = random(BATCH, tokens, width, seed=seed)
        return {"BTE": x_BTE, "TBE": x_BTE.transpose(0, 1).contiguous(), "TE": x_BTE[0]}[shape]

    def run(model: nn.Module) -> Tensor:
        memory = draw(MEMORY, kdim, 2), draw(MEMORY, vdim, 3)
        outputs = model(draw(TOKENS, WIDTH, 1), *memory, first or {}, second or {})
        return torch.cat([output.flatten() for output in outputs if output is not None])

    return CallModel(
        build=lambda: sharpened(MultiheadPair(kdim, vdim, batch_first=shape == "BTE", **options)),
        run=run,
        temper=temper_multihead,
        layers=("first", "second"),
    )


def without_weights(**options: Any) -> dict[str, Any]:
    return {"need_weights": False, **options}


CAUSAL = causal_mask(TOKENS, TOKENS)
IS_LATER = CAUSAL < 0
# A bias of positions that nn.MultiheadAttention adds to logits, which the temperature does not divide.
BIAS_TS = random(TOKENS, MEMORY, seed=5)
BIAS_HTS = random(BATCH * HEADS, TOKENS, MEMORY, seed=6)
HEADWISE = {"average_attn_weights": False}

MULTIHEAD = {
    "weights": multihead(),
    "no weights": multihead(first=without_weights(), second=without_weights()),
    "weights of heads": multihead(first=HEADWISE, second=HEADWISE),
    "sequence first": multihead("TBE", first=without_weights()),
    "unbatched": multihead("TE", second=without_weights()),
    "kdim and vdim": multihead(kdim=12, vdim=20, second=without_weights()),
    "kdim, no bias": multihead("TBE", kdim=12, bias=False),
    "no bias": multihead(bias=False, first=without_weights()),
    "bias_kv": multihead(add_bias_kv=True, second=without_weights()),
    "zero_attn": multihead("TBE", add_zero_attn=True, first=without_weights()),
    "bias_kv and zero_attn": multihead(add_bias_kv=True, add_zero_attn=True),
    "boolean mask": multihead(first={"attn_mask": IS_LATER}, second=without_weights(attn_mask=BIAS_TS > 1)),
    "float mask": multihead(first=without_weights(attn_mask=CAUSAL), second={"attn_mask": BIAS_TS}),
    "float mask, no weights": multihead(
        "TBE", first={"attn_mask": CAUSAL}, second=without_weights(attn_mask=BIAS_TS)
    ),
    "mask of heads": multihead(first=without_weights(), second=HEADWISE | {"attn_mask": BIAS_HTS}),
    "padding": multihead(
        first=without_weights(key_padding_mask=IS_PADDING_BT), second={"key_padding_mask": IS_PADDING_BS}
    ),
    "padding and mask": multihead(
        first={"key_padding_mask": IS_PADDING_BT, "attn_mask": IS_LATER},
        second=without_weights(
            key_padding_mask=torch.zeros(BATCH, MEMORY, dtype=torch.float64).masked_fill(
                IS_PADDING_BS, -torch.inf
            ),
            attn_mask=BIAS_TS,
        ),
    ),
    "is_causal": multihead(first=without_weights(attn_mask=IS_LATER, is_causal=True)),
    "is_causal, weights": multihead("TBE", first={"attn_mask": CAUSAL, "is_causal": True}),
    "root of a model": CallModel(
        build=lambda: sharpened(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)),
        run=lambda model: model(tokens_BTE(), tokens_BTE(), tokens_BTE())[0],
        temper=temper_multihead,
        layers=("",),
        may_refuse=True,
    ),
    "derived class": CallModel(
        build=lambda: sharpened(
            Stack(*(Block(NarrowMultihead(WIDTH, HEADS, batch_first=True)) for _ in range(2)))
        ),
        run=run_tokens,
        temper=temper_multihead,
        layers=STACK_LAYERS,
        may_refuse=True,
    ),
}


# ---- nn.TransformerEncoder and nn.TransformerDecoder


def build_encoder(layers: int = 2, *, nested: bool = False, **options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 48, **{"dropout": 0.0, "batch_first": True} | options)
    return sharpened(nn.TransformerEncoder(layer, layers, enable_nested_tensor=nested))


def encoder(*, padded: bool = False, causal: bool = False, nested: bool = False, **options: Any) -> CallModel:
    batch_first = options.get("batch_first", True)

    def run(model: nn.Module) -> Tensor:
        masks: dict[str, Any] = {"src_key_padding_mask": IS_PADDING_BT} if padded else {}
        masks |= {"mask": IS_LATER, "is_causal": not padded} if causal else {}
        x_BTE = tokens_BTE()
        output = (
            model(x_BTE, **masks) if batch_first else model(x_BTE.transpose(0, 1), **masks).transpose(0, 1)
        )
        # In evaluation without gradients, PyTorch sets the outputs of padded positions to 0.
        return output[~IS_PADDING_BT] if padded else output

    return CallModel(
        build=lambda: build_encoder(nested=nested, **options),
        run=run,
        temper=temper_multihead,
        layers=("layers.0.self_attn", "layers.1.self_attn"),
    )


def decoder(*, padded: bool = False, batch_first: bool = True, norm_first: bool = False) -> CallModel:
    def build() -> nn.Module:
        options: dict[str, Any] = {"batch_first": batch_first, "norm_first": norm_first}
        layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 48, dropout=0.0, **options)
        return sharpened(nn.TransformerDecoder(layer, 2))

    def run(model: nn.Module) -> Tensor:
        x, memory = tokens_BTE(), random(BATCH, MEMORY, WIDTH, seed=2)
        masks: dict[str, Any] = {"tgt_mask": IS_LATER, "tgt_is_causal": not padded}
        if padded:
            masks |= {"tgt_key_padding_mask": IS_PADDING_BT, "memory_key_padding_mask": IS_PADDING_BS}
        output_BTE = (
            model(x, memory, **masks)
            if batch_first
            else model(x.transpose(0, 1), memory.transpose(0, 1), **masks).transpose(0, 1)
        )
        return output_BTE[~IS_PADDING_BT] if padded else output_BTE

    names = [f"layers.{layer}.{part}" for layer in range(2) for part in ("self_attn", "multihead_attn")]
    return CallModel(build=build, run=run, temper=temper_multihead, layers=tuple(names))


TRANSFORMER = {
    "encoder": encoder(),
    "encoder, norm first": encoder(norm_first=True),
    "encoder, sequence first": encoder(batch_first=False),
    "encoder, padding": encoder(padded=True),
    "encoder, padding, nested": encoder(padded=True, nested=True),
    "encoder, padding, norm and sequence first": encoder(padded=True, norm_first=True, batch_first=False),
    "encoder, causal": encoder(causal=True),
    "encoder, causal, padding": encoder(causal=True, padded=True, norm_first=True),
    "encoder, gelu, no bias": encoder(activation="gelu", bias=False),
    "decoder": decoder(),
    "decoder, padding": decoder(padded=True, norm_first=True),
    "decoder, sequence first": decoder(batch_first=False, norm_first=True),
    "decoder, sequence first, padding": decoder(batch_first=False, padded=True),
}


# ---- other libraries


def lora_build() -> nn.Module:
    peft: Any = pytest.importorskip("peft", reason="NOT TESTED: LoRA on home-grown attention. Install peft.")
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    model = peft.get_peft_model(Stack(*(Block(Attention(sdpa)) for _ in range(2))), config)
    return sharpened(model)


def build_graph() -> nn.Module:
    reason = "NOT TESTED: attention over the edges of a graph. Install torch_geometric."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library: Any = pytest.importorskip("torch_geometric.nn", reason=reason)
    convolutions = (library.TransformerConv(WIDTH, WIDTH // HEADS, heads=HEADS) for _ in range(2))
    return sharpened(library.Sequential("x, edges", [(layer, "x, edges -> x") for layer in convolutions]))


def run_graph(model: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    output: Tensor = model(random(12, WIDTH), torch.randint(12, (2, 50), generator=generator))
    return output


def build_timm(
    name: str, *, is_fused: bool = True, img_size: int = 12, patch_size: int = 4, **options: Any
) -> nn.Module:
    timm: Any = pytest.importorskip(
        "timm",
        # A torchvision that was built for another torch cannot even be imported.
        reason="NOT TESTED: timm's own models. Install timm and its torchvision, -p tests.torchvision_names.",
        exc_type=Exception,
    )
    model = getattr(timm.models, name)(
        img_size=img_size, patch_size=patch_size, embed_dim=WIDTH, num_classes=5, **options
    )
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = is_fused
    return sharpened(model)


def build_vit_pytorch() -> nn.Module:
    library: Any = pytest.importorskip(
        "vit_pytorch", reason="NOT TESTED: vit_pytorch's own model. Install vit-pytorch.", exc_type=Exception
    )
    sizes = dict(image_size=12, patch_size=4, num_classes=5, dim=WIDTH, depth=2, heads=HEADS, mlp_dim=48)
    return sharpened(library.ViT(**sizes, dim_head=16))


def temper_thirds(model: nn.Module, temperatures: Temperatures) -> None:
    """Divide the first third of the rows of ``qkv``."""
    for name, temperature in temperatures.items():
        divide_rows(model.get_submodule(f"{name}.qkv"), ("weight", "bias"), WIDTH, temperature)


def temper_norm(model: nn.Module, temperatures: Temperatures) -> None:
    """Divide what the norm of the query returns."""
    for name, temperature in temperatures.items():
        model.get_submodule(f"{name}.q_norm").register_forward_hook(
            lambda module, inputs, output, temperature=temperature: output / temperature
        )


def run_images(model: nn.Module, size: int = 12) -> Tensor:
    output: Tensor = model(random(BATCH, 3, size, size))
    return output


TIMM_LAYERS = ("blocks.0.attn", "blocks.1.attn")
TIMM_SIZES = dict(depth=2, num_heads=HEADS)
build_swin = partial(
    build_timm,
    "SwinTransformer",
    img_size=16,
    patch_size=2,
    depths=(2,),
    num_heads=(HEADS,),
    window_size=4,
    drop_path_rate=0.0,
)
swin = partial(
    CallModel,
    run=partial(run_images, size=16),
    temper=temper_thirds,
    layers=("layers.0.blocks.0.attn", "layers.0.blocks.1.attn"),
)
vit = partial(CallModel, run=run_images, temper=temper_thirds, layers=TIMM_LAYERS)
OTHER_LIBRARIES = {
    "timm ViT": vit(build=partial(build_timm, "VisionTransformer", **TIMM_SIZES)),
    "timm ViT, eager": vit(build=partial(build_timm, "VisionTransformer", is_fused=False, **TIMM_SIZES)),
    "timm ViT, QK-norm": vit(
        build=partial(build_timm, "VisionTransformer", qk_norm=True, **TIMM_SIZES), temper=temper_norm
    ),
    "timm Swin": swin(build=build_swin),
    "timm Swin, eager": swin(build=partial(build_swin, is_fused=False), may_refuse=True),
    "vit_pytorch's ViT": CallModel(
        build=build_vit_pytorch,
        run=run_images,
        temper=partial(temper_scale, "scale"),
        layers=("transformer.layers.0.0", "transformer.layers.1.0"),
    ),
    "LoRA": CallModel(
        build=lora_build,
        run=run_tokens,
        temper=temper_form,
        layers=tuple(f"base_model.model.{name}" for name in STACK_LAYERS),
    ),
    "TransformerConv": CallModel(
        build=build_graph,
        run=run_graph,
        temper=partial(temper_linear, "lin_query"),
        layers=("module_0", "module_1"),
        may_refuse=True,
    ),
}
