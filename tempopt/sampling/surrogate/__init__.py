"""What runs tell of parameter sets that were not tried, and what one more run would tell: numbers only."""

from tempopt.sampling.surrogate.acquisition import continuation_value, knowledge_gradient, select_batch
from tempopt.sampling.surrogate.gaussian_process import Posterior, Runs, Surrogate, near
from tempopt.sampling.surrogate.learning_curve import Forecast

__all__ = [
    "Forecast",
    "Posterior",
    "Runs",
    "Surrogate",
    "continuation_value",
    "knowledge_gradient",
    "near",
    "select_batch",
]
