"""The next token from a model's logits: temperature, top-k, top-p and min-p, in the order of transformers.

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

    First the temperature divides the logits. Top-k then keeps the ``top_k_tokens`` largest; of their softmax
    top-p keeps the most likely tokens until they have ``top_p`` together, and of the softmax of these min-p
    keeps those with at least ``min_p`` times the largest probability. The most likely token always stays. At
    temperature 0 it alone does; of equal ones the first.

    Args:
        logits: Shape (..., V).
        parameters: What may be drawn.

    Returns:
        Shape (..., V), in float32 or better; their softmax is what is drawn from.

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
    """Return which tokens are among the fewest of the most likely ones that have ``top_p`` together."""
    # from the least likely one on, as transformers does: the small are summed before the large
    sorted_logits, order = logits.sort(dim=-1)
    mask = sorted_logits.softmax(-1).cumsum(-1) > 1 - top_p
    mask[..., -1] = True
    return torch.zeros_like(mask).scatter(-1, order, mask)


def sample(
    logits: Tensor, parameters: GenerationParameters, *, generator: torch.Generator | None = None
) -> Tensor:
    """Return a token for each row of logits, drawn from the softmax of :func:`allowed_logits`.

    Generators in the same state draw with the same noise whatever the parameters are: two evaluations that
    differ in the parameters are paired, which narrows the interval of their difference.

    Args:
        logits: Shape (..., V).
        parameters: What may be drawn.
        generator: What the noise is drawn from, on its own device; None for torch's global generator of the
            logits' device.

    Returns:
        Numbers of tokens, of shape (...).

    Raises:
        UsageError: There is no token to draw.
    """
    allowed = allowed_logits(logits, parameters)
    device = allowed.device if generator is None else generator.device
    noise = torch.empty(allowed.shape, dtype=allowed.dtype, device=device)
    # an exponential race: the token with the smallest time is drawn, times having the rates of the softmax
    noise.exponential_(generator=generator).clamp_(min=torch.finfo(noise.dtype).tiny)
    return (allowed - noise.to(allowed.device).log()).argmax(-1)


def generation_kwargs(parameters: GenerationParameters) -> dict[str, Any]:
    """Return the parameters as arguments of ``transformers.GenerationConfig``.

    All of them are given, neutral ones too: transformers fills in what is left out from the model's own
    ``generation_config``, which may have a top-k of 50 or another temperature.

    Args:
        parameters: What may be drawn.
    """
    if parameters.is_greedy:
        # neutral values and, of top-k, transformers' own, of which it does not warn
        return {"do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 50}
    return {
        "do_sample": True,
        "temperature": float(parameters.sampling_temperature),
        "top_p": float(parameters.top_p),
        "top_k": parameters.top_k_tokens,
        "min_p": float(parameters.min_p),
    }
