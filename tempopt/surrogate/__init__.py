"""What runs tell of parameter sets that were not tried, and what one more run would tell: numbers only."""

from tempopt.surrogate.forecast import Forecast
from tempopt.surrogate.gradient import best_together, knowledge_gradient, worth_of_going_on
from tempopt.surrogate.process import Beliefs, Runs, Surrogate, near

__all__ = [
    "Beliefs",
    "Forecast",
    "Runs",
    "Surrogate",
    "best_together",
    "knowledge_gradient",
    "near",
    "worth_of_going_on",
]
