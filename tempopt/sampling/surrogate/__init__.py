"""What runs tell of parameter sets that were not tried, and what one more run would tell: numbers only."""

from tempopt.sampling.surrogate.acquisition import continuation_value, knowledge_gradient, select_batch
from tempopt.sampling.surrogate.gaussian_process import (
    Observations,
    Posterior,
    Surrogate,
    pull_in_low_outliers,
)
from tempopt.sampling.surrogate.learning_curve import CurveExtrapolator

__all__ = [
    "CurveExtrapolator",
    "Observations",
    "Posterior",
    "Surrogate",
    "continuation_value",
    "knowledge_gradient",
    "pull_in_low_outliers",
    "select_batch",
]
