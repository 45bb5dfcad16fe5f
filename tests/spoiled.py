"""Documents with one part that no program of ours has written."""

from __future__ import annotations

import copy
import random
from typing import Any

PARTS = [
    None,
    True,
    "text",
    "x" * 3000,
    -1,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    [],
    {},
    [[[]]],
    {"a": 1},
]
"""Values in place of a part of a document."""


def spoil_document(document: Any, chance: random.Random) -> Any:
    """Change one part of a document: another value, a key that is missing or unknown, a deeper level."""
    document = copy.deepcopy(document)
    places = []
    stack = [document]
    while stack:
        node = stack.pop()
        entries = (
            node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        )
        for key, value in entries:
            places.append((node, key))
            stack.append(value)
    if not places:
        return chance.choice(PARTS)
    node, key = chance.choice(places)
    draw = chance.random()
    if draw < 0.6:
        node[key] = chance.choice(PARTS)
    elif draw < 0.8:
        del node[key]
    elif isinstance(node, dict):
        node["unknown\x1b"] = chance.choice(PARTS)
    else:
        node.append(chance.choice(PARTS))
    return document
