"""A byte-level language model of source text with QK-norm, whose gain is fixed.

Queries and keys have length 1, so the logits are a gain times a cosine, and no weights make attention sharper
than the gain allows (Henry et al. 2020, arXiv:2010.04245, who learn the gain). Speed runs of small GPTs hold
it constant and tune it by hand. modded-nanogpt multiplies the default scale, 1 / sqrt(128) for its heads, by
1.36 (``attn_scale = 0.12``), and nanochat by 1.32 (queries and keys by 1.15 each): attention at the
temperatures 0.74 and 0.76. What is such a constant worth, and should it stay one during training?

Shapes: B batch, H heads, Q queries, K keys, D head dimension.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from lightning_modules.source_lm import SourceLM
from lightning_modules.transformer import Attend
from tempopt.attention.modules.learned import check_scale


class QKNormLM(SourceLM):
    """SourceLM whose attention has the logits gain * cos(query, key) / temperature.

    The temperature acts behind the norms. One that is baked into the weights of a query projection is undone
    by them.

    Args:
        objective: As of SourceLM.
        gain: Factor on the cosines, from 1e-6 to 1e6; None for the square root of the head dimension, which
            is the default scale on queries and keys whose root mean square is 1.
        **source_lm: The other arguments of SourceLM, the temperature of the attention among them.

    Raises:
        SpecError: ``gain`` is out of range.
    """

    def __init__(self, objective: str = "causal", gain: float | None = None, **source_lm: Any) -> None:
        super().__init__(objective=objective, **source_lm)
        if gain is not None:
            check_scale("gain", gain)
        self.gain = gain

    def attention(self, layer: int) -> Attend:
        """Return the attention of a layer, which normalises queries and keys first."""
        attend = partial(self.attend, layer=layer, is_causal=self.causal)

        def normed(q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor) -> Tensor:
            gain = math.sqrt(q_BHQD.shape[-1]) if self.gain is None else self.gain
            return attend(F.normalize(q_BHQD, dim=-1), F.normalize(k_BHKD, dim=-1), v_BHKD, scale=gain)

        return normed
