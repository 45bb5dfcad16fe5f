"""Simple patterns of attention, and the weight of a head on each of them beyond chance.

A pattern consists of some keys for each query: its own position, the one before it, the same token elsewhere.
``tempopt.attention.analysis.specialisation`` decides which heads are named by a pattern.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tempopt.attention.functional.logits import to_wide_type
from tempopt.errors import SpecError, UsageError, unknown

WINDOW = 2
"""Default number of positions on either side of a query that are local."""


def _offset(distance: int) -> Callable[[Tensor, Tensor, int], Tensor]:
    def keys(visible_BHQK: Tensor, position_Q: Tensor, window: int) -> Tensor:
        return _offsets(visible_BHQK, position_Q) == distance

    return keys


def _first(visible_BHQK: Tensor, position_Q: Tensor, window: int) -> Tensor:
    seen_BH1K = visible_BHQK.any(dim=-2, keepdim=True)
    return seen_BH1K & (seen_BH1K.cumsum(dim=-1) == 1)


def _local(visible_BHQK: Tensor, position_Q: Tensor, window: int) -> Tensor:
    return _offsets(visible_BHQK, position_Q).abs() <= window


_BY_POSITION: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "diagonal": _offset(0),
    "previous_token": _offset(-1),
    "next_token": _offset(1),
    "first_token": _first,
    "local": _local,
}

POSITION_PATTERNS = tuple(_BY_POSITION)
"""Patterns by position: the query's own, the one before, the one after, the first key that any query of the
example sees, and keys at most ``window`` positions away.
"""

CONTENT_PATTERNS = ("same_token", "induction")
"""Patterns by token: other keys with the query's token, and keys right behind one of these."""

PATTERNS = (*POSITION_PATTERNS, *CONTENT_PATTERNS)


def pattern_keys(
    pattern: str,
    visible_BHQK: Tensor,
    *,
    position_Q: Tensor | None = None,
    tokens_BK: Tensor | None = None,
    window: int = WINDOW,
) -> Tensor:
    """Return the visible keys of a pattern, as a boolean (B, H, Q, K).

    Args:
        pattern: A name in ``PATTERNS``.
        visible_BHQK: Which keys each query sees, a boolean (B, H, Q, K).
        position_Q: Key index of each query; None for 0 to Q - 1.
        tokens_BK: Integers that identify the tokens of the keys; required for ``same_token`` and
            ``induction``. Each query has to be one of the keys, as in self-attention.
        window: Distance of the farthest keys that are ``local``, >= 1.

    Raises:
        SpecError: There is no such pattern, or ``window`` is below 1.
        UsageError: The pattern needs tokens, which are missing or have another shape than the keys.
    """
    if pattern not in PATTERNS:
        raise SpecError(unknown("pattern", pattern, PATTERNS))
    if window < 1:
        raise SpecError(f"window={window!r} is out of range. Give a whole number of at least 1.")
    if position_Q is None:
        position_Q = torch.arange(visible_BHQK.shape[-2], device=visible_BHQK.device)
    if pattern in _BY_POSITION:
        return visible_BHQK & _BY_POSITION[pattern](visible_BHQK, position_Q, window)
    shape = (visible_BHQK.shape[0], visible_BHQK.shape[-1])
    if tokens_BK is None or tokens_BK.shape != shape:
        description = "no tokens" if tokens_BK is None else f"tokens of shape {tuple(tokens_BK.shape)}"
        raise UsageError(f'Given {description} for the pattern "{pattern}". Give tokens_BK of shape {shape}.')
    own_BQ1 = tokens_BK[:, position_Q].unsqueeze(-1)
    if pattern == "same_token":
        elsewhere_QK = _offsets(visible_BHQK, position_Q) != 0
        return visible_BHQK & ((own_BQ1 == tokens_BK.unsqueeze(1)) & elsewhere_QK).unsqueeze(1)
    behind_BQK = own_BQ1 == tokens_BK.roll(1, dims=-1).unsqueeze(1)
    # the first key follows nothing, and the key after the query is the one that it predicts
    behind_BQK[..., 0] = False
    behind_BQK &= _offsets(visible_BHQK, position_Q) != 1
    return visible_BHQK & behind_BQK.unsqueeze(1)


def pattern_weight(weights_BHQK: Tensor, keys_BHQK: Tensor, visible_BHQK: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weight of each query on a pattern's keys, and that of uniform attention.

    Args:
        weights_BHQK: Weights.
        keys_BHQK: The pattern's keys, from :func:`pattern_keys`.
        visible_BHQK: Which keys each query sees.

    Returns:
        (B, H, Q) each, in [0, 1]; 0 where a query sees none of these keys.
    """
    weights_BHQK = to_wide_type(weights_BHQK)
    inside_BHQ = weights_BHQK.masked_fill(~keys_BHQK, 0.0).sum(dim=-1)
    seen_BHQ = visible_BHQK.sum(dim=-1).clamp(min=1)
    return inside_BHQ, keys_BHQK.sum(dim=-1).to(weights_BHQK.dtype) / seen_BHQ


def above_chance(weight: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
    """Return (weight - chance) / (1 - chance), and where a query has a choice: 0 < chance < 1.

    1 is all of the weight, 0 that of uniform attention; below 0 the head avoids these keys.
    """
    counts = (chance > 0.0) & (chance < 1.0)
    room = (1.0 - chance).masked_fill(~counts, 1.0)
    return ((weight - chance) / room).masked_fill(~counts, 0.0), counts


def pattern_score(
    weights_BHQK: Tensor,
    pattern: str,
    visible_BHQK: Tensor | None = None,
    *,
    position_Q: Tensor | None = None,
    tokens_BK: Tensor | None = None,
    window: int = WINDOW,
) -> tuple[Tensor, Tensor]:
    """Return how far the weight on a pattern's keys is above chance, and for which queries this is defined.

    The score is (m - c) / (1 - c) with the weight m on these keys and their share c among the visible keys: 1
    for a head that attends to nothing else, 0 for uniform attention, at any length and mask. Queries that see
    none of the keys, or no others, are not counted.

    Args:
        weights_BHQK: Weights.
        pattern: A name in ``PATTERNS``.
        visible_BHQK: Which keys each query sees.
        position_Q: As for :func:`pattern_keys`, like the following arguments.
        tokens_BK: As for :func:`pattern_keys`.
        window: As for :func:`pattern_keys`.

    Returns:
        (B, H, Q) each; the score is 0 where the boolean is False.
    """
    if visible_BHQK is None:
        visible_BHQK = torch.ones_like(weights_BHQK, dtype=torch.bool)
    visible_BHQK = visible_BHQK.expand(weights_BHQK.shape)
    in_pattern_BHQK = pattern_keys(
        pattern, visible_BHQK, position_Q=position_Q, tokens_BK=tokens_BK, window=window
    )
    return above_chance(*pattern_weight(weights_BHQK, in_pattern_BHQK, visible_BHQK))


def _offsets(visible_BHQK: Tensor, position_Q: Tensor) -> Tensor:
    """Return the offset of each key from each query, (Q, K)."""
    return torch.arange(visible_BHQK.shape[-1], device=visible_BHQK.device) - position_Q[:, None]
