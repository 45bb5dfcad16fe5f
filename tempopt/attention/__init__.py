"""What a temperature acts on: attention, its entropy, and models that attend.

Each name is imported from its file when it is first used, so that this package loads no torch by itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tempopt.attention.analysis.diagnose import Anomaly as Anomaly
    from tempopt.attention.analysis.diagnose import TrainingCurves as TrainingCurves
    from tempopt.attention.analysis.diagnose import anomalies as anomalies
    from tempopt.attention.analysis.diagnose import troubleshoot as troubleshoot
    from tempopt.attention.analysis.head_importance import Contribution as Contribution
    from tempopt.attention.analysis.head_importance import Estimate as Estimate
    from tempopt.attention.analysis.head_importance import HeadImportance as HeadImportance
    from tempopt.attention.analysis.head_importance import PruningCurve as PruningCurve
    from tempopt.attention.analysis.head_importance import PruningPoint as PruningPoint
    from tempopt.attention.analysis.head_importance import contributions as contributions
    from tempopt.attention.analysis.head_importance import importance_intervals as importance_intervals
    from tempopt.attention.analysis.head_importance import pruning_curve as pruning_curve
    from tempopt.attention.analysis.head_measures import HeadMeasure as HeadMeasure
    from tempopt.attention.analysis.head_measures import Specialisations as Specialisations
    from tempopt.attention.analysis.heatmap import Heatmap as Heatmap
    from tempopt.attention.analysis.heatmap import heatmap as heatmap
    from tempopt.attention.analysis.histories import HeadHistory as HeadHistory
    from tempopt.attention.analysis.histories import MonitorReport as MonitorReport
    from tempopt.attention.analysis.histories import Trend as Trend
    from tempopt.attention.analysis.metrics import AttentionEntropy as AttentionEntropy
    from tempopt.attention.analysis.metrics import AttentionGini as AttentionGini
    from tempopt.attention.analysis.metrics import AttentionLocality as AttentionLocality
    from tempopt.attention.analysis.metrics import EffectiveTokens as EffectiveTokens
    from tempopt.attention.analysis.metrics import GradientSaturation as GradientSaturation
    from tempopt.attention.analysis.metrics import HeadSimilarity as HeadSimilarity
    from tempopt.attention.analysis.metrics import MaxAttentionWeight as MaxAttentionWeight
    from tempopt.attention.analysis.metrics import PatternScore as PatternScore
    from tempopt.attention.analysis.metrics import QueryKeyMagnitude as QueryKeyMagnitude
    from tempopt.attention.analysis.metrics import SelfAttentionRatio as SelfAttentionRatio
    from tempopt.attention.analysis.metrics import SoftmaxJacobianNorm as SoftmaxJacobianNorm
    from tempopt.attention.analysis.monitor import AttentionMonitor as AttentionMonitor
    from tempopt.attention.analysis.patterns import pattern_keys as pattern_keys
    from tempopt.attention.analysis.patterns import pattern_score as pattern_score
    from tempopt.attention.analysis.specialisation import HeadSpecialisation as HeadSpecialisation
    from tempopt.attention.analysis.specialise_model import specialisations as specialisations
    from tempopt.attention.analysis.statistics import attention_weights as attention_weights
    from tempopt.attention.analysis.statistics import effective_tokens as effective_tokens
    from tempopt.attention.analysis.statistics import gini as gini
    from tempopt.attention.analysis.statistics import gradient_saturation as gradient_saturation
    from tempopt.attention.analysis.statistics import head_similarity as head_similarity
    from tempopt.attention.analysis.statistics import locality as locality
    from tempopt.attention.analysis.statistics import max_weight as max_weight
    from tempopt.attention.analysis.statistics import query_key_magnitude as query_key_magnitude
    from tempopt.attention.analysis.statistics import self_attention as self_attention
    from tempopt.attention.analysis.statistics import softmax_jacobian_norm as softmax_jacobian_norm
    from tempopt.attention.analysis.statistics import visible_pairs as visible_pairs
    from tempopt.attention.analysis.statistics import weight_entropy as weight_entropy
    from tempopt.attention.functional.attention import temper_query as temper_query
    from tempopt.attention.functional.attention import tempered_attention as tempered_attention
    from tempopt.attention.functional.attention import visible_keys as visible_keys
    from tempopt.attention.functional.entropy import add_to_gradient as add_to_gradient
    from tempopt.attention.functional.entropy import attention_entropy as attention_entropy
    from tempopt.attention.functional.entropy import attention_with_entropy as attention_with_entropy
    from tempopt.attention.functional.entropy import entropy_penalty as entropy_penalty
    from tempopt.attention.functional.entropy import entropy_regulariser as entropy_regulariser
    from tempopt.attention.functional.entropy import entropy_term as entropy_term
    from tempopt.attention.functional.entropy import normalised_entropy as normalised_entropy
    from tempopt.attention.functional.entropy import regularised_attention as regularised_attention
    from tempopt.attention.functional.normalisers import normalised_attention as normalised_attention
    from tempopt.attention.functional.sampled_entropy import sampled_entropy as sampled_entropy
    from tempopt.attention.modules.entropy_controller import EntropyController as EntropyController
    from tempopt.attention.modules.entropy_controller import EntropyTarget as EntropyTarget
    from tempopt.attention.modules.entropy_controller import contrast as contrast
    from tempopt.attention.modules.entropy_controller import curriculum as curriculum
    from tempopt.attention.modules.entropy_controller import entropy_slope as entropy_slope
    from tempopt.attention.modules.head_gates import AttendGates as AttendGates
    from tempopt.attention.modules.head_gates import ProjectionGates as ProjectionGates
    from tempopt.attention.modules.head_gates import least_important as least_important
    from tempopt.attention.modules.learned import ConditionalTemperature as ConditionalTemperature
    from tempopt.attention.modules.learned import HeadTemperature as HeadTemperature
    from tempopt.attention.modules.learned import LearnedTemperature as LearnedTemperature
    from tempopt.attention.modules.learned import QueryKeyNorm as QueryKeyNorm
    from tempopt.attention.modules.learned import ScalableSoftmax as ScalableSoftmax
    from tempopt.attention.modules.learned import no_decay_names as no_decay_names
    from tempopt.attention.modules.learned import parameter_groups as parameter_groups
    from tempopt.attention.modules.learned import qk_norm_init_scale as qk_norm_init_scale
    from tempopt.attention.modules.losses import LearnedOutputTemperature as LearnedOutputTemperature
    from tempopt.attention.modules.losses import OutputTemperature as OutputTemperature
    from tempopt.attention.modules.losses import calibrated_temperature as calibrated_temperature
    from tempopt.attention.modules.losses import contrastive_loss as contrastive_loss
    from tempopt.attention.modules.losses import distillation_loss as distillation_loss
    from tempopt.attention.modules.losses import tempered_cross_entropy as tempered_cross_entropy

_NAMES = {
    "modules.entropy_controller": [
        "EntropyController",
        "EntropyTarget",
        "contrast",
        "curriculum",
        "entropy_slope",
    ],
    "analysis.diagnose": ["Anomaly", "TrainingCurves", "anomalies", "troubleshoot"],
    "functional.entropy": [
        "add_to_gradient",
        "attention_entropy",
        "attention_with_entropy",
        "entropy_regulariser",
        "entropy_term",
        "normalised_entropy",
        "regularised_attention",
        "entropy_penalty",
    ],
    "functional.attention": ["temper_query", "tempered_attention", "visible_keys"],
    "modules.head_gates": ["AttendGates", "ProjectionGates", "least_important"],
    "modules.learned": [
        "ConditionalTemperature",
        "HeadTemperature",
        "LearnedTemperature",
        "QueryKeyNorm",
        "ScalableSoftmax",
        "no_decay_names",
        "qk_norm_init_scale",
        "parameter_groups",
    ],
    "modules.losses": [
        "LearnedOutputTemperature",
        "OutputTemperature",
        "calibrated_temperature",
        "contrastive_loss",
        "distillation_loss",
        "tempered_cross_entropy",
    ],
    "analysis.metrics": [
        "AttentionEntropy",
        "AttentionGini",
        "AttentionLocality",
        "EffectiveTokens",
        "GradientSaturation",
        "HeadSimilarity",
        "MaxAttentionWeight",
        "PatternScore",
        "QueryKeyMagnitude",
        "SelfAttentionRatio",
        "SoftmaxJacobianNorm",
    ],
    "analysis.head_measures": ["HeadMeasure", "Specialisations"],
    "analysis.head_importance": [
        "Contribution",
        "Estimate",
        "HeadImportance",
        "PruningCurve",
        "PruningPoint",
        "contributions",
        "importance_intervals",
        "pruning_curve",
    ],
    "analysis.heatmap": ["Heatmap", "heatmap"],
    "analysis.histories": ["HeadHistory", "MonitorReport", "Trend"],
    "analysis.monitor": ["AttentionMonitor"],
    "analysis.patterns": ["pattern_keys", "pattern_score"],
    "analysis.specialisation": ["HeadSpecialisation"],
    "analysis.specialise_model": ["specialisations"],
    "functional.normalisers": ["normalised_attention"],
    "functional.sampled_entropy": ["sampled_entropy"],
    "analysis.statistics": [
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
