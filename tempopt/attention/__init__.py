"""What a temperature acts on: attention, its entropy, and models that attend.

Each name is imported from its file when it is first used, so that this package loads no torch by itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tempopt.attention.analysis.diagnose import TrainingCurves as TrainingCurves
    from tempopt.attention.analysis.diagnose import anomalies as anomalies
    from tempopt.attention.analysis.diagnose import troubleshoot as troubleshoot
    from tempopt.attention.analysis.head_importance import contributions as contributions
    from tempopt.attention.analysis.head_importance import importance_intervals as importance_intervals
    from tempopt.attention.analysis.head_importance import pruning_curve as pruning_curve
    from tempopt.attention.analysis.head_measures import Specialisations as Specialisations
    from tempopt.attention.analysis.heatmap import heatmap as heatmap
    from tempopt.attention.analysis.monitor import AttentionMonitor as AttentionMonitor
    from tempopt.attention.analysis.specialisation import HeadSpecialisation as HeadSpecialisation
    from tempopt.attention.analysis.specialisation import specialisations as specialisations
    from tempopt.attention.analysis.statistics import attention_weights as attention_weights
    from tempopt.attention.functional.attention import temper_query as temper_query
    from tempopt.attention.functional.attention import tempered_attention as tempered_attention
    from tempopt.attention.functional.entropy import attention_entropy as attention_entropy
    from tempopt.attention.functional.entropy import attention_with_entropy as attention_with_entropy
    from tempopt.attention.functional.entropy import max_logits as max_logits
    from tempopt.attention.functional.entropy import normalised_entropy as normalised_entropy
    from tempopt.attention.functional.entropy import sampled_entropy as sampled_entropy
    from tempopt.attention.modules.entropy_controller import EntropyController as EntropyController
    from tempopt.attention.modules.entropy_controller import EntropyTarget as EntropyTarget
    from tempopt.attention.modules.entropy_controller import contrast as contrast
    from tempopt.attention.modules.entropy_controller import curriculum as curriculum
    from tempopt.attention.modules.head_gates import AttendGates as AttendGates
    from tempopt.attention.modules.head_gates import ProjectionGates as ProjectionGates
    from tempopt.attention.modules.head_gates import least_important as least_important
    from tempopt.attention.modules.learned import ConditionalTemperature as ConditionalTemperature
    from tempopt.attention.modules.learned import HeadTemperature as HeadTemperature
    from tempopt.attention.modules.learned import LearnedTemperature as LearnedTemperature
    from tempopt.attention.modules.learned import QueryKeyNorm as QueryKeyNorm
    from tempopt.attention.modules.learned import ScalableSoftmax as ScalableSoftmax
    from tempopt.attention.modules.learned import parameter_groups as parameter_groups
    from tempopt.attention.modules.losses import LearnedOutputTemperature as LearnedOutputTemperature
    from tempopt.attention.modules.losses import OutputTemperature as OutputTemperature
    from tempopt.attention.modules.losses import calibrated_temperature as calibrated_temperature
    from tempopt.attention.modules.losses import contrastive_loss as contrastive_loss
    from tempopt.attention.modules.losses import distillation_loss as distillation_loss
    from tempopt.attention.modules.losses import tempered_cross_entropy as tempered_cross_entropy

_NAMES = {
    "modules.entropy_controller": ["EntropyController", "EntropyTarget", "contrast", "curriculum"],
    "analysis.diagnose": ["TrainingCurves", "anomalies", "troubleshoot"],
    "functional.entropy": [
        "attention_entropy",
        "attention_with_entropy",
        "max_logits",
        "normalised_entropy",
        "sampled_entropy",
    ],
    "functional.attention": ["temper_query", "tempered_attention"],
    "modules.head_gates": ["AttendGates", "ProjectionGates", "least_important"],
    "modules.learned": [
        "ConditionalTemperature",
        "HeadTemperature",
        "LearnedTemperature",
        "QueryKeyNorm",
        "ScalableSoftmax",
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
    "analysis.head_measures": ["Specialisations"],
    "analysis.head_importance": ["contributions", "importance_intervals", "pruning_curve"],
    "analysis.heatmap": ["heatmap"],
    "analysis.monitor": ["AttentionMonitor"],
    "analysis.specialisation": ["HeadSpecialisation", "specialisations"],
    "analysis.statistics": ["attention_weights"],
}
_HOME = {name: f"tempopt.attention.{file}" for file, names in _NAMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f'module "{__name__}" has no attribute "{name}"; it has {", ".join(__all__)}')
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
