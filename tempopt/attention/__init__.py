"""What a temperature acts on: attention, its entropy, and models that attend.

Each name is imported from its file when it is first used, so that this package loads no torch by itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tempopt.attention.entropy import add_to_gradient as add_to_gradient
    from tempopt.attention.entropy import attention_entropy as attention_entropy
    from tempopt.attention.entropy import entropy_regulariser as entropy_regulariser
    from tempopt.attention.entropy import normalised_entropy as normalised_entropy
    from tempopt.attention.functional import temper_query as temper_query
    from tempopt.attention.functional import tempered_attention as tempered_attention
    from tempopt.attention.functional import visible_keys as visible_keys

_HOME = {
    "add_to_gradient": "tempopt.attention.entropy",
    "attention_entropy": "tempopt.attention.entropy",
    "entropy_regulariser": "tempopt.attention.entropy",
    "normalised_entropy": "tempopt.attention.entropy",
    "temper_query": "tempopt.attention.functional",
    "tempered_attention": "tempopt.attention.functional",
    "visible_keys": "tempopt.attention.functional",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f'module "{__name__}" has no attribute "{name}"; it has {", ".join(__all__)}')
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
