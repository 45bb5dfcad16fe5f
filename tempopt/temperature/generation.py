"""The parameters of sampling from a language model: which tokens may be drawn, and how likely each is.

They act where a model generates, so in validation and testing, and on no training. None of them is a
temperature of attention. How tokens are drawn is ``tempopt.attention.generation``'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tempopt.temperature.ranges import FlatParameters, ValidatedParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParameters(FlatParameters, ValidatedParameters):
    """How the next token is drawn from a model's logits; the defaults draw from its distribution as it is.

    Args:
        sampling_temperature: Number that divides the logits before their softmax, >= 0; 0 takes the most
            likely token, whatever the other parameters are.
        top_p: Probability in (0, 1]: the fewest of the most likely tokens that have as much together may be
            drawn (nucleus sampling, Holtzman et al. 2020); 1 allows all.
        top_k_tokens: Number of the most likely tokens that may be drawn; 0 allows all.
        min_p: Share of the most likely token's probability, in [0, 1), that a token needs to be drawn
            (Nguyen et al. 2025); 0 allows all.

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


def unread_generation(parameters: Mapping[str, Any]) -> set[str]:
    """Return the parameters of generation that have no effect: under greedy decoding all but its own."""
    is_greedy = parameters.get("sampling_temperature") == 0
    return {name for name in GENERATION if is_greedy and name != "sampling_temperature"}
