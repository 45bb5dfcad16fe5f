"""Runnable LightningModules with their data, on generated data or on data that every user has.

Each module is here for a question about temperature, for which ``studies/`` holds a search. In ``ClipDigits``
and ``DistilledDigits`` it is the temperature of a loss, in ``GumbelDigits`` of a sampler, in all others
attention's; ``GraphWalks`` draws tokens at one, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_modules.associative_recall import AssociativeRecall, AssociativeRecallData
    from lightning_modules.clip_digits import ClipDigits
    from lightning_modules.digits import DigitsViT
    from lightning_modules.digits_data import DigitsData
    from lightning_modules.digits_stock import StockDigits
    from lightning_modules.distillation import DistilledDigits, TaughtDigits
    from lightning_modules.graph_walks import GraphWalks, GraphWalksData
    from lightning_modules.gumbel_digits import GumbelDigits
    from lightning_modules.max_retrieval import MaxRetrieval, MaxRetrievalData
    from lightning_modules.qk_norm_lm import QKNormLM
    from lightning_modules.source_data import SourceData
    from lightning_modules.source_lm import SourceLM

_HOMES = {
    "AssociativeRecall": "associative_recall",
    "AssociativeRecallData": "associative_recall",
    "ClipDigits": "clip_digits",
    "DigitsData": "digits_data",
    "DigitsViT": "digits",
    "DistilledDigits": "distillation",
    "GraphWalks": "graph_walks",
    "GraphWalksData": "graph_walks",
    "GumbelDigits": "gumbel_digits",
    "MaxRetrieval": "max_retrieval",
    "MaxRetrievalData": "max_retrieval",
    "QKNormLM": "qk_norm_lm",
    "SourceData": "source_data",
    "SourceLM": "source_lm",
    "StockDigits": "digits_stock",
    "TaughtDigits": "distillation",
}

__all__ = [
    "AssociativeRecall",
    "AssociativeRecallData",
    "ClipDigits",
    "DigitsData",
    "DigitsViT",
    "DistilledDigits",
    "GraphWalks",
    "GraphWalksData",
    "GumbelDigits",
    "MaxRetrieval",
    "MaxRetrievalData",
    "QKNormLM",
    "SourceData",
    "SourceLM",
    "StockDigits",
    "TaughtDigits",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f'module "{__name__}" has no attribute "{name}"; it has {", ".join(__all__)}')
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
