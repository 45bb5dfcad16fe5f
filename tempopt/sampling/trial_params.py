"""The parameters of a search trial as Optuna's tables hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, distribution_to_json

from tempopt.storage.rows import TrialParam


def trial_params(
    params: Mapping[str, Any], distributions: Mapping[str, BaseDistribution]
) -> list[TrialParam]:
    """Return parameters as Optuna's tables hold them."""
    return [
        TrialParam(
            name=name,
            value=float(distributions[name].to_internal_repr(value)),
            distribution=distribution_to_json(distributions[name]),
        )
        for name, value in params.items()
        if name in distributions
    ]
