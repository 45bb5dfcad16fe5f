"""Draw the next token from logits: temperature, top-k, top-p and min-p, in the order of transformers.

Shapes: V vocabulary, ... any dimensions before it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tempopt.errors import UsageError
from tempopt.temperature.generation import GenerationParameters


def allowed_logits(logits: Tensor, parameters: GenerationParameters) -> Tensor:
    """Return logits over the temperature, with −∞ for each token that may not be drawn.

    First the temperature divides the logits. Top-k keeps the ``top_k_tokens`` largest. Top-p keeps the most
    likely tokens of their softmax until their sum is ``top_p``. Min-p keeps the tokens of the resulting
    softmax with at least ``min_p`` times the largest probability. The most likely token always stays. At
    temperature 0 only that token stays; if several are equal, the first.

    Args:
        logits: Shape (..., V).
        parameters: Parameters of generation.

    Returns:
        Shape (..., V), in float32 or better; tokens are drawn from their softmax.

    Raises:
        UsageError: There is no token to draw.
    """
    if logits.dim() < 1 or logits.shape[-1] == 0:
        raise UsageError(
            f"The logits have the shape {tuple(logits.shape)}. Give one logit for each token of the "
            "vocabulary, in the last dimension."
        )
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if parameters.is_greedy:
        best = torch.zeros_like(logits, dtype=torch.bool)
        best.scatter_(-1, logits.argmax(-1, keepdim=True), True)
        return logits.masked_fill(~best, -math.inf)
    logits = logits / parameters.sampling_temperature
    if 0 < parameters.top_k_tokens < logits.shape[-1]:
        threshold = logits.topk(parameters.top_k_tokens, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < threshold, -math.inf)
    if parameters.top_p < 1:
        logits = logits.masked_fill(~_nucleus(logits, parameters.top_p), -math.inf)
    if parameters.min_p > 0:
        probability = logits.softmax(-1)
        threshold = parameters.min_p * probability.amax(-1, keepdim=True)
        logits = logits.masked_fill(probability < threshold, -math.inf)
    return logits


def _nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Return a mask of the fewest most likely tokens whose probabilities sum to at least ``top_p``."""
    # ascending as in transformers, so that small probabilities are summed before large ones
    sorted_logits, order = logits.sort(dim=-1)
    mask = sorted_logits.softmax(-1).cumsum(-1) > 1 - top_p
    mask[..., -1] = True
    return torch.zeros_like(mask).scatter(-1, order, mask)


def sample(
    logits: Tensor, parameters: GenerationParameters, *, generator: torch.Generator | None = None
) -> Tensor:
    """Return a token for each row of logits, drawn from the softmax of :func:`allowed_logits`.

    Generators in the same state draw the same noise for any parameters: two evaluations that differ in the
    parameters are paired, which narrows the interval of their difference.

    Args:
        logits: Shape (..., V).
        parameters: Parameters of generation.
        generator: Source of the noise, on its own device; None for torch's global generator of the logits'
            device.

    Returns:
        Token indices, of shape (...).

    Raises:
        UsageError: There is no token to draw.
    """
    allowed = allowed_logits(logits, parameters)
    device = allowed.device if generator is None else generator.device
    noise = torch.empty(allowed.shape, dtype=allowed.dtype, device=device)
    # an exponential race: the token with the smallest time is drawn; the rates are the softmax
    noise.exponential_(generator=generator).clamp_(min=torch.finfo(noise.dtype).tiny)
    return (allowed - noise.to(allowed.device).log()).argmax(-1)


def generation_kwargs(parameters: GenerationParameters) -> dict[str, Any]:
    """Return the parameters as arguments of ``transformers.GenerationConfig``.

    All of them are returned, including neutral ones: transformers takes missing ones from the model's own
    ``generation_config``, which may have a top-k of 50 or another temperature.

    Args:
        parameters: Parameters of generation.
    """
    if parameters.is_greedy:
        # neutral values, and the default of transformers for top-k, about which it does not warn
        return {"do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 50}
    return {
        "do_sample": True,
        "temperature": float(parameters.sampling_temperature),
        "top_p": float(parameters.top_p),
        "top_k": parameters.top_k_tokens,
        "min_p": float(parameters.min_p),
    }
