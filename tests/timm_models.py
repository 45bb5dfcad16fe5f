"""Vision transformers of timm, small and random, and one with its calls for where timm is not installed."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

WIDTH, HEADS, LAYERS = 32, 4, 2


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
