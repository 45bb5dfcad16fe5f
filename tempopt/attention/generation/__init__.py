"""Draw tokens from a language model and score the samples, as functions of tensors.

The parameters are ``tempopt.temperature.GenerationParameters``.
"""

from __future__ import annotations

from tempopt.attention.generation.sampling import allowed_logits, generation_kwargs, sample
from tempopt.attention.generation.scores import exact_match, majority_vote, pass_at_k, pass_at_k_of

__all__ = [
    "allowed_logits",
    "exact_match",
    "generation_kwargs",
    "majority_vote",
    "pass_at_k",
    "pass_at_k_of",
    "sample",
]
