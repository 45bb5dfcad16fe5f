"""AttentionMonitor: statistics of attention over training, from small samples of queries.

It receives queries and keys from wherever attention is computed and is independent of trainers;
``tempopt.attention.analysis.diagnose`` judges its report. In a distributed run each process observes its own
part of the data.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tempopt.attention.analysis.histories import QUERY_KEY_MAGNITUDE, HeadHistory, MonitorReport
from tempopt.attention.analysis.statistics import (
    STATISTICS,
    attention_weights,
    head_sums,
    query_key_magnitude,
    visible_attention,
)
from tempopt.attention.functional.logits import visible_pairs
from tempopt.attention.modules.learned import check_count
from tempopt.errors import UsageError

# Values of each statistic by head; None if no query counted or the value is not finite.
_Values = Mapping[str, list[float | None]]


class AttentionMonitor:
    """Collects statistics of attention over training, by layer and head.

    .. code-block:: python

        monitor = AttentionMonitor(every=100)
        ...
        if monitor.due(step):
            monitor.update(step, layer, q, k, is_causal=True)
        ...
        print(anomalies(monitor.report()))

    It costs O(queries * keys) at due steps and nothing elsewhere. A step and layer are observed once, even if
    activation checkpointing computes a layer again in backward, or a step has several batches. The sampled
    queries depend on ``seed``, step and layer only, without a global generator. Values that are not finite,
    as in a run that diverges, are dropped. Call it outside of compiled code.

    Args:
        every: Observe each step that is a multiple of this, >= 1.
        queries: Number of queries to sample at each observation, >= 1.
        examples: Number of examples of the batch to sample at each observation, >= 1.
        keep: Number of latest observations to keep of each layer, >= 1.
        seed: Seed of the draws, >= 0.

    Raises:
        SpecError: A number is not an integer, or below 1 (``seed``: below 0).
    """

    def __init__(
        self, *, every: int = 100, queries: int = 64, examples: int = 4, keep: int = 512, seed: int = 0
    ) -> None:
        counts = {"every": every, "queries": queries, "examples": examples, "keep": keep}
        for name, value in counts.items():
            check_count(name, value)
        check_count("seed", seed, min_value=0)
        self.every = every
        self.queries = queries
        self.examples = examples
        self.keep = keep
        self.seed = seed
        self._last_step_by_layer: dict[int, int] = {}
        self._first: dict[tuple[int, str, int], float] = {}
        self._history: dict[int, deque[tuple[int, _Values]]] = {}

    def due(self, step: int) -> bool:
        """Return whether a step is to be observed."""
        return step % self.every == 0

    @torch.no_grad()
    def update(
        self,
        step: int,
        layer: int,
        q_BHQD: Tensor,
        k_BHKD: Tensor,
        *,
        scale: float | None = None,
        temperature: Tensor | float = 1.0,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        valid_BQ: Tensor | None = None,
    ) -> None:
        """Observe softmax attention by its queries and keys, if the step is due and not yet observed.

        Args:
            step: Step of training, not below earlier ones.
            layer: Depth of the layer, >= 0.
            q_BHQD: Queries, tempered already (:func:`tempopt.attention.functional.attention.temper_query`).
            k_BHKD: Keys; of fewer heads than the queries where groups of heads share them.
            scale: Factor on the logits; None is 1 / sqrt(D).
            temperature: tau that the queries were divided by, > 0; a tensor broadcasts to (B, H, Q) without B
                and Q, such as 0-d or (H, 1). The Jacobian depends on it; ``query_key_magnitude`` does not.
            attn_mask: Boolean or floating mask, or None.
            is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.
            valid_BQ: True where a query is not padding; None if there is no padding.
        """
        if not self._should_observe(step, layer):
            return
        b, q = self._sample(step, layer, q_BHQD, valid_BQ)
        q_BHQD, k_BHKD = q_BHQD.detach()[b][:, :, q], k_BHKD.detach()[b]
        valid_BQ = None if valid_BQ is None else valid_BQ[b][:, q]
        masking = _select_mask(attn_mask, b, q), is_causal
        weights_BHQK = attention_weights(
            q_BHQD, k_BHKD, scale=scale, attn_mask=masking[0], is_causal=is_causal, position_Q=q
        )
        attention = visible_attention(
            weights_BHQK,
            attn_mask=visible_pairs(len(q), k_BHKD.shape[-2], *masking, position_Q=q, device=q.device),
            valid_BQ=valid_BQ,
            position_Q=q,
            temperature=temperature,
        )
        results = {
            name: statistic(attention)
            for name, statistic in STATISTICS.items()
            if weights_BHQK.shape[1] > 1 or name != "head_similarity"
        }
        # average over the keys that at least one counting query sees
        counts_BHQ = attention.counts_BHQ
        seen_BHK = (attention.visible_BHQK & counts_BHQ.unsqueeze(-1)).any(dim=-2)
        size_BHQ = query_key_magnitude(q_BHQD, k_BHKD, scale=scale, seen_BHK=seen_BHK)
        tau = torch.as_tensor(temperature, device=size_BHQ.device)
        results[QUERY_KEY_MAGNITUDE] = (size_BHQ * tau, counts_BHQ)
        self._store(step, layer, results)

    def report(self) -> MonitorReport:
        """Return the observations so far."""
        series: dict[tuple[str, int, int], tuple[list[int], list[float]]] = {}
        for layer, observations in sorted(self._history.items()):
            for step, values in observations:
                for name, heads in values.items():
                    for head, value in enumerate(heads):
                        if value is not None:
                            steps, head_values = series.setdefault((name, layer, head), ([], []))
                            steps.append(step)
                            head_values.append(value)
        return MonitorReport(
            histories=tuple(
                HeadHistory(
                    statistic=name,
                    layer=layer,
                    head=head,
                    first=self._first[layer, name, head],
                    steps=tuple(steps),
                    values=tuple(values),
                )
                for (name, layer, head), (steps, values) in sorted(series.items())
            )
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the observations as numbers, names and lists, from which the monitor continues exactly."""
        return {
            "seen": [list(entry) for entry in self._last_step_by_layer.items()],
            "first": [[*key, value] for key, value in self._first.items()],
            "history": [
                [layer, [[step, dict(values)] for step, values in observations]]
                for layer, observations in self._history.items()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state_dict` of a monitor with the same arguments."""
        self._last_step_by_layer = {layer: step for layer, step in state["seen"]}
        self._first = {(layer, name, head): value for layer, name, head, value in state["first"]}
        self._history = {
            layer: deque(((step, values) for step, values in observations), maxlen=self.keep)
            for layer, observations in state["history"]
        }

    def _should_observe(self, step: int, layer: int) -> bool:
        """Return whether to observe this step and layer, and mark it as observed."""
        last_step = self._last_step_by_layer.get(layer, -1)
        if not self.due(step) or step == last_step:
            return False
        if step < last_step:
            raise UsageError(
                f"Given step {step} of layer {layer} after step {last_step}. Give steps in ascending order; "
                "for another run make another monitor."
            )
        self._last_step_by_layer[layer] = step
        return True

    def _sample(
        self, step: int, layer: int, rows_BHQX: Tensor, valid_BQ: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the sampled examples, and the sampled queries among those that are not padding in all of
        them.
        """
        entropy = np.random.SeedSequence((self.seed, step, layer)).generate_state(1)
        generator = torch.Generator().manual_seed(int(entropy[0]))
        examples = torch.randperm(len(rows_BHQX), generator=generator)[: self.examples]
        queries = torch.arange(rows_BHQX.shape[2])
        if valid_BQ is not None:
            queries = valid_BQ.cpu()[examples].any(dim=0).nonzero().squeeze(-1)
        order = torch.randperm(len(queries), generator=generator)[: self.queries]
        return examples.to(rows_BHQX.device), queries[order].sort().values.to(rows_BHQX.device)

    def _store(self, step: int, layer: int, results: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        sums = [head_sums(*result) for result in results.values()]
        # a single transfer from the device for all statistics
        totals, counts = torch.stack(
            [torch.stack([total, count.double()], dim=0) for total, count in sums], dim=1
        ).tolist()
        values = {
            name: [t / c if c and math.isfinite(t) else None for t, c in zip(total, count, strict=True)]
            for name, total, count in zip(results, totals, counts, strict=True)
        }
        self._history.setdefault(layer, deque(maxlen=self.keep)).append((step, values))
        for name, heads in values.items():
            for head, value in enumerate(heads):
                if value is not None:
                    self._first.setdefault((layer, name, head), value)


def _select_mask(attn_mask: Tensor | None, b: Tensor, q: Tensor) -> Tensor | None:
    """Return the mask of the sampled examples and queries."""
    if attn_mask is None:
        return None
    if attn_mask.ndim == 4 and attn_mask.shape[0] > 1:
        attn_mask = attn_mask[b]
    return attn_mask[..., q, :] if attn_mask.ndim >= 2 and attn_mask.shape[-2] > 1 else attn_mask
