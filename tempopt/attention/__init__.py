"""What a temperature acts on: attention, its entropy, and models that attend.

Each name is imported from its file when it is first used, so that this package loads no torch by itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tempopt.attention.control import EntropyController as EntropyController
    from tempopt.attention.control import EntropyTarget as EntropyTarget
    from tempopt.attention.control import contrast as contrast
    from tempopt.attention.control import curriculum as curriculum
    from tempopt.attention.control import entropy_slope as entropy_slope
    from tempopt.attention.diagnose import Curves as Curves
    from tempopt.attention.diagnose import Finding as Finding
    from tempopt.attention.diagnose import anomalies as anomalies
    from tempopt.attention.diagnose import troubleshoot as troubleshoot
    from tempopt.attention.entropy import add_to_gradient as add_to_gradient
    from tempopt.attention.entropy import attention_entropy as attention_entropy
    from tempopt.attention.entropy import attention_with_entropy as attention_with_entropy
    from tempopt.attention.entropy import entropy_regulariser as entropy_regulariser
    from tempopt.attention.entropy import entropy_term as entropy_term
    from tempopt.attention.entropy import normalised_entropy as normalised_entropy
    from tempopt.attention.entropy import regularised_attention as regularised_attention
    from tempopt.attention.entropy import term_of_entropy as term_of_entropy
    from tempopt.attention.functional import temper_query as temper_query
    from tempopt.attention.functional import tempered_attention as tempered_attention
    from tempopt.attention.functional import visible_keys as visible_keys
    from tempopt.attention.heads import AttendGates as AttendGates
    from tempopt.attention.heads import ProjectionGates as ProjectionGates
    from tempopt.attention.heads import least_important as least_important
    from tempopt.attention.learned import ConditionalTemperature as ConditionalTemperature
    from tempopt.attention.learned import HeadTemperature as HeadTemperature
    from tempopt.attention.learned import LearnedTemperature as LearnedTemperature
    from tempopt.attention.learned import QueryKeyNorm as QueryKeyNorm
    from tempopt.attention.learned import ScalableSoftmax as ScalableSoftmax
    from tempopt.attention.learned import no_decay_names as no_decay_names
    from tempopt.attention.learned import paper_gain as paper_gain
    from tempopt.attention.learned import parameter_groups as parameter_groups
    from tempopt.attention.losses import LearnedOutputTemperature as LearnedOutputTemperature
    from tempopt.attention.losses import OutputTemperature as OutputTemperature
    from tempopt.attention.losses import calibrated_temperature as calibrated_temperature
    from tempopt.attention.losses import contrastive_loss as contrastive_loss
    from tempopt.attention.losses import distillation_loss as distillation_loss
    from tempopt.attention.losses import tempered_cross_entropy as tempered_cross_entropy
    from tempopt.attention.metrics import AttentionEntropy as AttentionEntropy
    from tempopt.attention.metrics import AttentionGini as AttentionGini
    from tempopt.attention.metrics import AttentionLocality as AttentionLocality
    from tempopt.attention.metrics import EffectiveTokens as EffectiveTokens
    from tempopt.attention.metrics import GradientSaturation as GradientSaturation
    from tempopt.attention.metrics import HeadSimilarity as HeadSimilarity
    from tempopt.attention.metrics import MaxAttentionWeight as MaxAttentionWeight
    from tempopt.attention.metrics import QueryKeyMagnitude as QueryKeyMagnitude
    from tempopt.attention.metrics import SelfAttentionRatio as SelfAttentionRatio
    from tempopt.attention.metrics import SoftmaxJacobianNorm as SoftmaxJacobianNorm
    from tempopt.attention.monitor import AttentionMonitor as AttentionMonitor
    from tempopt.attention.monitor import HeadHistory as HeadHistory
    from tempopt.attention.monitor import MonitorReport as MonitorReport
    from tempopt.attention.monitor import Trend as Trend
    from tempopt.attention.normalisers import normalised_attention as normalised_attention
    from tempopt.attention.sampled import sampled_entropy as sampled_entropy
    from tempopt.attention.statistics import attention_weights as attention_weights
    from tempopt.attention.statistics import effective_tokens as effective_tokens
    from tempopt.attention.statistics import gini as gini
    from tempopt.attention.statistics import gradient_saturation as gradient_saturation
    from tempopt.attention.statistics import head_similarity as head_similarity
    from tempopt.attention.statistics import locality as locality
    from tempopt.attention.statistics import max_weight as max_weight
    from tempopt.attention.statistics import query_key_magnitude as query_key_magnitude
    from tempopt.attention.statistics import self_attention as self_attention
    from tempopt.attention.statistics import softmax_jacobian_norm as softmax_jacobian_norm
    from tempopt.attention.statistics import visible_pairs as visible_pairs
    from tempopt.attention.statistics import weight_entropy as weight_entropy

_NAMES = {
    "control": ["EntropyController", "EntropyTarget", "contrast", "curriculum", "entropy_slope"],
    "diagnose": ["Curves", "Finding", "anomalies", "troubleshoot"],
    "entropy": [
        "add_to_gradient",
        "attention_entropy",
        "attention_with_entropy",
        "entropy_regulariser",
        "entropy_term",
        "normalised_entropy",
        "regularised_attention",
        "term_of_entropy",
    ],
    "functional": ["temper_query", "tempered_attention", "visible_keys"],
    "heads": ["AttendGates", "ProjectionGates", "least_important"],
    "learned": [
        "ConditionalTemperature",
        "HeadTemperature",
        "LearnedTemperature",
        "QueryKeyNorm",
        "ScalableSoftmax",
        "no_decay_names",
        "paper_gain",
        "parameter_groups",
    ],
    "losses": [
        "LearnedOutputTemperature",
        "OutputTemperature",
        "calibrated_temperature",
        "contrastive_loss",
        "distillation_loss",
        "tempered_cross_entropy",
    ],
    "metrics": [
        "AttentionEntropy",
        "AttentionGini",
        "AttentionLocality",
        "EffectiveTokens",
        "GradientSaturation",
        "HeadSimilarity",
        "MaxAttentionWeight",
        "QueryKeyMagnitude",
        "SelfAttentionRatio",
        "SoftmaxJacobianNorm",
    ],
    "monitor": ["AttentionMonitor", "HeadHistory", "MonitorReport", "Trend"],
    "normalisers": ["normalised_attention"],
    "sampled": ["sampled_entropy"],
    "statistics": [
        "attention_weights",
        "effective_tokens",
        "gini",
        "gradient_saturation",
        "head_similarity",
        "locality",
        "max_weight",
        "query_key_magnitude",
        "self_attention",
        "softmax_jacobian_norm",
        "visible_pairs",
        "weight_entropy",
    ],
}
_HOME = {name: f"tempopt.attention.{file}" for file, names in _NAMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f'module "{__name__}" has no attribute "{name}"; it has {", ".join(__all__)}')
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
