"""A pre-norm transformer layer whose attention is handed in; temperature is not its business.

Shapes: B batch, N tokens, M model dimension, H heads, Q queries, K keys, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

# (q_BHQD, k_BHKD, v_BHKD) -> (B, H, Q, D); what masks it and at which temperature is the caller's business.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def rotate(x_BHND: Tensor, *, base: float = 10_000.0) -> Tensor:
    """Return queries or keys with rotary positions, so that logits know only of distances.

    Su et al. 2021, "RoFormer", arXiv:2104.09864. The pairs that turn together are the halves of the head.

    Args:
        x_BHND: Shape (batch, heads, tokens, head dimension); the head dimension is even.
        base: Ratio of the slowest to the fastest wavelength, > 1.
    """
    num_tokens, half = x_BHND.shape[-2], x_BHND.shape[-1] // 2
    speed_D = torch.pow(base, -torch.arange(half, device=x_BHND.device) / half)
    angle_ND = torch.arange(num_tokens, device=x_BHND.device)[:, None] * speed_D
    cos_ND, sin_ND = angle_ND.cos().to(x_BHND.dtype), angle_ND.sin().to(x_BHND.dtype)
    first, second = x_BHND[..., :half], x_BHND[..., half:]
    return torch.cat([first * cos_ND - second * sin_ND, second * cos_ND + first * sin_ND], dim=-1)


class TransformerLayer(nn.Module):
    """Attention and an MLP, each after a LayerNorm and beside a residual path.

    Args:
        d_model: Width, >= 1.
        num_heads: Heads of the attention; divides ``d_model``.
        rotary: Whether queries and keys get rotary positions; else the layer knows of none.
    """

    def __init__(self, d_model: int, num_heads: int, *, rotary: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.rotary = rotary
        self.attention_norm = nn.LayerNorm(d_model)
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.mlp = nn.Sequential(
            nn.LayerNorm(d_model), nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model)
        )

    def _heads(self, x_BNM: Tensor) -> Tensor:
        heads_BHND: Tensor = x_BNM.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return heads_BHND

    def forward(self, x_BNM: Tensor, attend: Attend) -> Tensor:
        """Return the tokens after this layer, in the shape they came in.

        Args:
            x_BNM: Tokens, shape (batch, tokens, model dimension).
            attend: The attention.
        """
        normed_BNM = self.attention_norm(x_BNM)
        q_BHND = self._heads(self.q_proj(normed_BNM))
        k_BHND = self._heads(self.k_proj(normed_BNM))
        if self.rotary:
            q_BHND, k_BHND = rotate(q_BHND), rotate(k_BHND)
        attended_BHND = attend(q_BHND, k_BHND, self._heads(self.v_proj(normed_BNM)))
        x_BNM = x_BNM + self.out_proj(attended_BHND.transpose(1, 2).flatten(2))
        out_BNM: Tensor = x_BNM + self.mlp(x_BNM)
        return out_BNM
