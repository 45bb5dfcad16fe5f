"""Parameters of sampling from a language model: which tokens may be drawn, and with which probability.

They act where a model generates, in validation and testing, and never on training. None of them is a
temperature of attention. ``tempopt.attention.generation`` draws the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tempopt.temperature.ranges import FlatParameters, ValidatedParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParameters(FlatParameters, ValidatedParameters):
    """How the next token is drawn from a model's logits; the defaults draw from the model's distribution.

    Args:
        sampling_temperature: Divisor of the logits before their softmax, >= 0; at 0 the most likely token is
            taken, whatever the other parameters are.
        top_p: Probability in (0, 1]: tokens are drawn from the smallest set of most likely tokens with at
            least this probability (nucleus sampling, Holtzman et al. 2020); 1 allows all.
        top_k_tokens: Number of most likely tokens that may be drawn; 0 allows all.
        min_p: Smallest probability of a token that may be drawn, as a share in [0, 1) of the most likely
            token's (Nguyen et al. 2025); 0 allows all.

    Raises:
        SpecError: A number is out of its range.
    """

    sampling_temperature: float = 1.0
    top_p: float = 1.0
    top_k_tokens: int = 0
    min_p: float = 0.0

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.sampling_temperature == 0


GENERATION = GenerationParameters.names()
"""Names of the parameters of generation."""


def unused_generation_params(parameters: Mapping[str, Any]) -> set[str]:
    """Return the parameters of generation without effect: under greedy decoding all but its temperature."""
    is_greedy = parameters.get("sampling_temperature") == 0
    return {name for name in GENERATION if is_greedy and name != "sampling_temperature"}
