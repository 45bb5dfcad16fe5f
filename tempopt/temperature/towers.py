"""Groups the attention layers of a model into towers, each with a depth of its own.

A tower is a repeated structure: layers whose names differ in numbers only, as ``blocks.0.attn`` and
``blocks.1.attn``, or ``layers.0.blocks.1.attn`` over stages. Encoder, decoder and cross-attention, student
and teacher, and the encoders of text and images are towers of their own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

# A name that ends in a number is one of a series, as in block1.attn and block2.attn. In a path with numbers
# alone it is so before one (block1.0.attn), else of another kind (blocks.0.attn1 and blocks.0.attn2).
_ENTRIES = re.compile(r"(?<![^.])\d+(?![^.])|\d+(?=\.\d+(?![^.]))")
_SERIES = re.compile(r"\d+(?![^.])")


def tower_of(layer: str) -> str:
    """Return the name of a layer with ``*`` for the numbers that count depth, which its tower shares."""
    name, num_entries = _ENTRIES.subn("*", layer)
    return name if num_entries else _SERIES.sub("*", layer)


def layers_by_tower(layers: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of layers by tower; towers in the order of their first layers."""
    towers: dict[str, list[str]] = {}
    for layer in layers:
        towers.setdefault(tower_of(layer), []).append(layer)
    return towers


def over_towers(layers: Sequence[str], values: Callable[[int], Sequence[float]]) -> tuple[float, ...]:
    """Return a value for each layer, from the values over depth of a tower with so many layers."""
    towers = [tower_of(layer) for layer in layers]
    depth_values = {tower: iter(values(count)) for tower, count in Counter(towers).items()}
    return tuple(next(depth_values[tower]) for tower in towers)


def describe_layers(layers: Sequence[str]) -> str:
    """Return the names of layers as a text, with brackets around each tower of several if there are such."""
    towers = list(layers_by_tower(layers).values())
    has_several = sum(len(names) > 1 for names in towers) > 1
    texts = [", ".join(names) for names in towers]
    pairs = zip(texts, towers, strict=True)
    return ", ".join(f"[{text}]" if has_several and len(names) > 1 else text for text, names in pairs)
