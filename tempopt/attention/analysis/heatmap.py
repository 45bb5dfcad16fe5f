"""Attention weights of one head as a small picture: pooled numbers, and text shades for a terminal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tempopt.attention.functional.logits import to_wide_type
from tempopt.attention.modules.learned import check_count
from tempopt.errors import UsageError

FloatArray = NDArray[np.float64]

SHADES = " ░▒▓█"
"""Shades from no weight to the largest weight of the picture, in equal steps."""

HIDDEN = "·"
"""Marks a cell in which no query sees any of its keys."""

ROWS, COLUMNS = 24, 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Heatmap:
    """The weights of one head in cells of neighbouring queries and keys, as plain numbers.

    Args:
        cells: For each group of queries and each group of keys, the weight that a query gives to all keys of
            the group, in [0, 1]; a row sums to 1. The mean is over queries that see a key.
        visible: Whether any query of a cell sees any of its keys, in the same shape.
        query_edges: First query of each row, and the number of queries.
        key_edges: First key of each column, and the number of keys.
    """

    cells: tuple[tuple[float, ...], ...]
    visible: tuple[tuple[bool, ...], ...]
    query_edges: tuple[int, ...]
    key_edges: tuple[int, ...]

    def __str__(self) -> str:
        """Return the picture: one line per row, beginning with the number of its first query."""
        max_cell = max(max(row) for row in self.cells)
        width = len(str(self.query_edges[-2]))
        lines = [f"queries down, keys across 0 to {self.key_edges[-1] - 1}; {SHADES[-1]} is {max_cell:.2g}"]
        for first, cells, visible in zip(self.query_edges, self.cells, self.visible, strict=False):
            shades = "".join(
                SHADES[round((len(SHADES) - 1) * cell / (max_cell or 1.0))] if is_visible else HIDDEN
                for cell, is_visible in zip(cells, visible, strict=True)
            )
            lines.append(f"{first:>{width}} {shades}".rstrip())
        return "\n".join(lines)


def heatmap(
    weights_QK: Tensor, visible_QK: Tensor | None = None, *, rows: int = ROWS, columns: int = COLUMNS
) -> Heatmap:
    """Return the weights of one head as a picture of bounded size; ``print`` it for a terminal.

    Args:
        weights_QK: Weights of one example and head, (Q, K), before dropout.
        visible_QK: Which keys each query sees, a boolean that broadcasts to (Q, K); None for all.
        rows: Largest number of rows, >= 1; more queries are pooled.
        columns: Largest number of columns, >= 1; more keys are pooled.

    Raises:
        UsageError: The weights do not have two dimensions, have no query or key, or are not finite.
        SpecError: ``rows`` or ``columns`` is not an integer or below 1.
    """
    check_count("rows", rows)
    check_count("columns", columns)
    if weights_QK.ndim != 2 or 0 in weights_QK.shape:
        raise UsageError(
            f"Given attention weights of shape {tuple(weights_QK.shape)}; a picture is of one example and "
            "head, (queries, keys). Take one: weights[example, head]."
        )
    weights = np.asarray(to_wide_type(weights_QK.detach()).double().cpu().numpy())
    if not np.isfinite(weights).all():
        raise UsageError("Given attention weights that are not finite. Give a model that has not diverged.")
    visible_QK = torch.tensor(True) if visible_QK is None else visible_QK
    is_visible_QK = torch.broadcast_to(visible_QK, weights_QK.shape).cpu().numpy()
    q_edges, k_edges = _group_edges(weights.shape[0], rows), _group_edges(weights.shape[1], columns)
    has_keys = is_visible_QK.any(axis=1)
    num_rows = np.add.reduceat(has_keys, q_edges[:-1], dtype=np.float64).clip(min=1.0)
    visible_weights = np.where(is_visible_QK, weights, 0.0)
    cells = np.add.reduceat(np.add.reduceat(visible_weights, q_edges[:-1], axis=0), k_edges[:-1], axis=1)
    visible_cells = np.logical_or.reduceat(
        np.logical_or.reduceat(is_visible_QK, q_edges[:-1], axis=0), k_edges[:-1], axis=1
    )
    return Heatmap(
        cells=tuple(tuple(row) for row in (cells / num_rows[:, None]).tolist()),
        visible=tuple(tuple(row) for row in visible_cells.tolist()),
        query_edges=tuple(q_edges),
        key_edges=tuple(k_edges),
    )


def _group_edges(length: int, max_groups: int) -> list[int]:
    """Return the beginnings of groups of nearly equal size, and the length."""
    groups = min(length, max_groups)
    return [index * length // groups for index in range(groups + 1)]
