"""Drawing tokens from a language model, and scores of what was drawn, as functions of tensors.

Which parameters there are is ``tempopt.temperature``'s business.
"""

from __future__ import annotations

from tempopt.generation.sampling import allowed_logits, generation_kwargs, sample
from tempopt.generation.scores import exact_match, majority_vote, pass_at_k, pass_at_k_of
from tempopt.temperature.generation import GenerationParameters

__all__ = [
    "GenerationParameters",
    "allowed_logits",
    "exact_match",
    "generation_kwargs",
    "majority_vote",
    "pass_at_k",
    "pass_at_k_of",
    "sample",
]
