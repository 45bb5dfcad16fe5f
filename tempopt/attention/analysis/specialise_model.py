"""The heads of a whole model looked at in one call; what is measured is said in ``specialisation``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tempopt.attention.analysis.head_measures import Specialisations
from tempopt.attention.analysis.patterns import WINDOW
from tempopt.attention.analysis.specialisation import HeadSpecialisation
from tempopt.attention.modules.head_gates import evaluating
from tempopt.errors import AttachError, UsageError

Batch = TypeVar("Batch")


def specialisations(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    run: Callable[[Batch], Any] | None = None,
    weights: Callable[[Batch], Sequence[Tensor]] | None = None,
    masking: Callable[[Batch], Mapping[str, Any]] | None = None,
    tokens: Callable[[Batch], Tensor] | None = None,
    window: int = WINDOW,
) -> Specialisations:
    """Return what the heads of a model specialise in, over the inputs of some batches, in eval mode.

    A :class:`tempopt.TemperedModule` shows its queries and keys as it runs. For any other model give
    ``weights``: of a model of transformers that was loaded with ``attn_implementation="eager"`` it is
    ``lambda batch: model(**batch, output_attentions=True).attentions``.

    Args:
        model: The model.
        batches: Whole inputs, at least two in all and better two or more in each batch.
        run: Runs the model on a batch; None for ``model(batch)``. Not used with ``weights``.
        weights: Runs the model on a batch and returns the attention weights (B, H, Q, K) of each layer in
            depth order; None for a model that shows its attention.
        masking: With ``weights``: returns how they were masked, by ``attn_mask``, ``is_causal`` and
            ``valid_BQ`` as for :meth:`HeadSpecialisation.update_weights`; None if every query sees all keys.
        tokens: Returns whole numbers (B, K) that tell the tokens of a batch, for ``same_token`` and
            ``induction``; None to leave these out.
        window: Distance of the farthest keys that are ``local``, >= 1.

    Raises:
        AttachError: if the model shows no attention and ``weights`` is None.
        UsageError: if no attention was seen, fewer than two inputs were, or weights do not sum to 1.
    """
    specialisation = HeadSpecialisation(window=window)
    observed: Any = getattr(model, "observed", None)
    if weights is None and not callable(observed):
        raise AttachError(
            f"{type(model).__name__} does not show its attention, as a TemperedModule does. Give weights, a "
            "function that returns the attention weights of each layer for a batch."
        )
    num_batches = 0
    with evaluating(model), torch.no_grad():
        for batch in batches:
            token_arguments: dict[str, Any] = {} if tokens is None else {"tokens_BK": tokens(batch)}
            if weights is None:
                look = functools.partial(_look, specialisation, token_arguments)
                with observed(look):
                    model(batch) if run is None else run(batch)
            else:
                mask_arguments = {} if masking is None else masking(batch)
                for layer, weights_BHQK in enumerate(weights(batch)):
                    specialisation.update_weights(layer, weights_BHQK, **mask_arguments, **token_arguments)
            num_batches += 1
    if num_batches and not specialisation.layers:
        raise UsageError(
            "The model ran and no attention was seen: only softmax attention is shown, and compiled code is "
            "not. Give weights, a function that returns the attention weights of each layer for a batch."
        )
    return specialisation.report()


def _look(
    specialisation: HeadSpecialisation,
    token_arguments: Mapping[str, Any],
    layer: int,
    q: Tensor,
    k: Tensor,
    **masking: Any,
) -> None:
    specialisation.update(layer, q, k, **masking, **token_arguments)
