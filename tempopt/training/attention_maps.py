"""Small maps of the attention of the heads of a run, at the start, the middle and the end of training.

Observed in the forward passes of the training itself, without changing them.
"""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tempopt.attention.analysis.heatmap import heatmap
from tempopt.attention.analysis.specialisation import HeadSpecialisation
from tempopt.attention.analysis.statistics import attention_weights
from tempopt.attention.functional.logits import visible_pairs
from tempopt.training.messages import MOMENTS

MAX_BYTES = 300 * 1024
"""Largest size in bytes of all maps of a run."""

_SIDE, _LEAST_SIDE = 32, 8
_MOST_WEIGHTS = 1 << 24
_MOST_EXAMPLES = 16
# base64 takes four bytes for three, and each head has some numbers beside its cells
_BYTES_PER_HEAD = 144


class AttentionMaps:
    """Stores a map of each head for one input, and specialisations over a batch, at three moments.

    A map has at most 32 x 32 cells of neighbouring queries and keys, fewer in a model with many heads, so
    that all of them take at most :data:`MAX_BYTES`. Specialisations are measured over at most 16 inputs of
    the batch, by position only, since the tokens are unknown.

    Args:
        num_layers: Number of observed layers.
    """

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers
        self._steps: dict[int, str] = {}
        self._record_by_moment: dict[str, dict[str, Any]] = {}
        self._specialisation: HeadSpecialisation | None = None
        self._notes: list[str] = []

    def begin(self, total_steps: int) -> None:
        """Set the number of optimizer steps of the training; in a short one, moments may coincide."""
        last_step = max(total_steps - 1, 0)
        self._steps = {last_step: "end", last_step // 2: "middle"} if last_step else {}
        self._steps[0] = "start"

    @property
    def steps(self) -> list[int]:
        """The steps in which attention is observed."""
        return sorted(self._steps)

    def should_capture(self, step: int) -> bool:
        """Return whether attention is observed in this step."""
        moment = self._record_by_moment.get(self._steps.get(step, ""))
        return step in self._steps and (moment is None or self._specialisation is not None)

    def see(
        self,
        step: int,
        layer: int,
        q_BHQD: Tensor,
        k_BHKD: Tensor,
        *,
        valid_BQ: Tensor | None,
        **kwargs: Any,
    ) -> None:
        """Observe a layer in a step of :attr:`steps`; arguments as for an observer of attention."""
        moment = self._record_by_moment.setdefault(
            self._steps[step], {"step": step, "heads": [], "measures": [], "seen": []}
        )
        if layer in moment["seen"]:
            # activation checkpointing computes a layer again in backward
            return
        if not moment["seen"]:
            self._specialisation = HeadSpecialisation()
        moment["seen"].append(layer)
        moment["heads"] += self._compute_head_maps(layer, q_BHQD, k_BHKD, **kwargs)
        self._measure(layer, q_BHQD, k_BHKD, valid_BQ, **kwargs)

    def finish_step(self, step: int) -> None:
        """Compute the measures of a step after its first forward pass."""
        moment = self._record_by_moment.get(self._steps.get(step, ""))
        if moment is None or self._specialisation is None:
            return
        if self._specialisation.layers:
            measures = self._specialisation.report().measures
            moment["measures"] = [_to_plain(measure) for measure in measures if measure.named]
        self._specialisation = None

    @torch.no_grad()
    def _compute_head_maps(
        self,
        layer: int,
        q_BHQD: Tensor,
        k_BHKD: Tensor,
        *,
        scale: float | None,
        attn_mask: Tensor | None,
        is_causal: bool,
    ) -> list[dict[str, Any]]:
        """Return the maps of a layer for the first input."""
        heads, queries, keys = q_BHQD.shape[1], q_BHQD.shape[-2], k_BHKD.shape[-2]
        if queries * keys > _MOST_WEIGHTS:
            self._note(f"{queries} x {keys} weights of a head are too many for a map")
            return []
        head_indices = _spread_evenly(heads, _max_heads(self._num_layers))
        if len(head_indices) < heads:
            self._note(f"of the {heads} heads of a layer {len(head_indices)} have a map")
        side, groups = _map_size(self._num_layers * heads), heads // k_BHKD.shape[1]
        maps = []
        for head in head_indices:
            masking: dict[str, Any] = {"attn_mask": _select_head(attn_mask, head), "is_causal": is_causal}
            query, key = q_BHQD[:1, head : head + 1], k_BHKD[:1, head // groups : head // groups + 1]
            weights = attention_weights(query, key, scale=scale, **masking)[0, 0]
            visible_mask = visible_pairs(queries, keys, device=query.device, **masking).expand(
                1, 1, queries, keys
            )
            picture = heatmap(weights, visible_mask[0, 0], rows=side, columns=side)
            cells = np.array(picture.cells)
            max_weight = float(cells.max())
            shades = np.round(255 * cells / max_weight if max_weight > 0 else cells).astype(np.uint8)
            maps.append(
                {
                    "layer": layer,
                    "head": head,
                    "queries": queries,
                    "keys": keys,
                    "rows": len(cells),
                    "columns": len(cells[0]),
                    "most": float(f"{max_weight:.4g}"),
                    "cells": base64.b64encode(shades.tobytes()).decode(),
                }
            )
        return maps

    def _measure(
        self,
        layer: int,
        q_BHQD: Tensor,
        k_BHKD: Tensor,
        valid_BQ: Tensor | None,
        *,
        attn_mask: Tensor | None,
        **kwargs: Any,
    ) -> None:
        """Accumulate the measures of a layer's heads over some inputs."""
        assert self._specialisation is not None
        size = q_BHQD.shape[1] * q_BHQD.shape[-2] * k_BHKD.shape[-2]
        count = min(len(q_BHQD), _MOST_EXAMPLES, _MOST_WEIGHTS // max(size, 1))
        if count < 2:
            self._note("what heads specialise in takes two inputs of a batch, which are too large or too few")
            return
        if attn_mask is not None and attn_mask.ndim == 4 and attn_mask.shape[0] > 1:
            attn_mask = attn_mask[:count]
        valid_BQ = None if valid_BQ is None else valid_BQ[:count]
        self._specialisation.update(
            layer, q_BHQD[:count], k_BHKD[:count], attn_mask=attn_mask, valid_BQ=valid_BQ, **kwargs
        )

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    @property
    def to_json(self) -> dict[str, Any] | None:
        """What was seen, as plain data; None: nothing."""
        if not self._record_by_moment:
            return None
        moments = {
            name: {key: value for key, value in self._record_by_moment[name].items() if key != "seen"}
            for name in MOMENTS
            if name in self._record_by_moment
        }
        return {"moments": moments, "notes": list(self._notes)}

    def state_dict(self) -> dict[str, Any]:
        """Return the maps so far, with which a resumed training continues."""
        return {"found": self._record_by_moment, "notes": self._notes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._record_by_moment, self._notes = dict(state["found"]), list(state["notes"])


def _map_size(heads: int) -> int:
    """Return how many rows and columns the map of each head may have."""
    head_bytes = MAX_BYTES / (len(MOMENTS) * heads) - _BYTES_PER_HEAD
    return min(_SIDE, max(_LEAST_SIDE, math.isqrt(max(int(0.75 * head_bytes), 0))))


def _max_heads(num_layers: int) -> int:
    """Return how many heads of a layer may have a map."""
    of_one = _LEAST_SIDE**2 * 4 // 3 + _BYTES_PER_HEAD
    return max(1, MAX_BYTES // (len(MOMENTS) * num_layers * of_one))


def _spread_evenly(count: int, max_count: int) -> list[int]:
    if count <= max_count:
        return list(range(count))
    return sorted({round(position * (count - 1) / max(max_count - 1, 1)) for position in range(max_count)})


def _select_head(mask: Tensor | None, head: int) -> Tensor | None:
    """Return the mask of the first input and a head, in four dimensions."""
    if mask is None:
        return None
    mask = mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))[:1]
    return mask if mask.shape[1] == 1 else mask[:, head : head + 1]


def _to_plain(measure: Any) -> dict[str, Any]:
    numbers = ("score", "low", "high", "value", "chance")
    return {
        "layer": measure.layer,
        "head": measure.head,
        "measure": measure.measure,
        **{name: float(f"{getattr(measure, name):.4g}") for name in numbers},
    }
