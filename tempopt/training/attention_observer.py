"""Observes the attention of a run at some steps of the training, as curves and maps.

Observation changes nothing: no gradient, no random generator, no value of the training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import lightning as L
from torch import Tensor

from tempopt.attention.analysis.monitor import AttentionMonitor
from tempopt.attention.functional.entropy import max_logits
from tempopt.training.attention_maps import AttentionMaps
from tempopt.training.callbacks import TemperatureTarget
from tempopt.training.lightning_package import LightningCallback
from tempopt.training.steps import Curves, RecordedCurves, current_step, spread_steps, total_steps

# A model with hundreds of heads is observed at fewer steps, so that the stored curves stay small.
_MAX_POINTS = 4096


class AttentionObserver(LightningCallback):
    """Observe each tempered layer at steps spread over the training, from its first to its last.

    The steps follow from the length of the training and the queries from the seed, so that an interrupted run
    makes the same observations. If attention cannot be observed, the observation ends and the run continues;
    :attr:`notes` has the reason.

    Args:
        tempered: The object with the temperature of this attention.
        seed: Seed of the run.
        maps: Whether to store maps of the attention of each head as well.
    """

    def __init__(self, tempered: TemperatureTarget, seed: int, *, maps: bool = False) -> None:
        self._tempered = tempered
        self._monitor = AttentionMonitor(every=1, seed=seed)
        self._max_logits = RecordedCurves()
        self._steps: list[int] = []
        self._watching = ExitStack()
        self._step = -1
        self.notes: list[str] = []
        self._maps = AttentionMaps(len(tempered.layers)) if maps else None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        last_step = max(total_steps(trainer) - 1, 0)
        self._steps = spread_steps(last_step)
        if self._maps is not None:
            self._maps.begin(last_step + 1)
            self._steps = sorted({*self._steps, *self._maps.steps})

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        # under manual optimization a batch may take several steps
        if not self.notes and any(self._step < step <= current_step(trainer) for step in self._steps):
            self._step = current_step(trainer)
            with self._note_errors("The attention"):
                self._watching.enter_context(self._tempered.observed(self._observe))

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        self._watching.close()
        if self._maps is not None and not self.notes:
            with self._note_errors("The attention"):
                self._maps.finish_step(self._step)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        self._watching.close()

    def _observe(self, layer: int, q_BHQD: Tensor, k_BHKD: Tensor, **masking: Any) -> None:
        temperature = self._tempered.temperatures[layer]
        if self.notes:
            return
        with self._note_errors(f"The attention of layer {layer}"):
            self._monitor.update(self._step, layer, q_BHQD, k_BHKD, temperature=temperature, **masking)
            self._record_max_logit(layer, q_BHQD, k_BHKD, **masking)
            if self._maps is not None and self._maps.should_capture(self._step):
                self._maps.see(self._step, layer, q_BHQD, k_BHKD, **masking)

    def _record_max_logit(
        self, layer: int, q_BHQD: Tensor, k_BHKD: Tensor, *, valid_BQ: Tensor | None, **masking: Any
    ) -> None:
        largest_BHQ = max_logits(q_BHQD, k_BHKD, **masking)
        if valid_BQ is not None:
            largest_BHQ = largest_BHQ.masked_fill(~valid_BQ.unsqueeze(1), -math.inf)
        value = float(largest_BHQ.max())
        if math.isfinite(value):
            self._max_logits.record(self._step, {f"max_logit/{layer}": value})

    @contextmanager
    def _note_errors(self, subject: str) -> Iterator[None]:
        """Record an error instead of raising it: it ends the observation, not the run."""
        try:
            yield
        except Exception as error:
            self.notes.append(
                f"{subject} was not observed from step {self._step} on: {type(error).__name__}: {error}"
            )

    @property
    def curves(self) -> Curves:
        """``entropy/<layer>/<head>``, as a share of ln n, in [0, 1], and ``max_logit/<layer>``.

        The entropy is the mean over a sample of queries, the logit the largest of all of them in the batch.
        """
        histories = self._monitor.report().of("entropy")
        max_points = max(_MAX_POINTS // max(len(histories), 1), 2)
        entropies = {
            f"entropy/{history.layer}/{history.head}": _subsample(
                [[step, value] for step, value in zip(history.steps, history.values, strict=True)], max_points
            )
            for history in histories
        }
        return entropies | self._max_logits.curves

    def at(self, step: int) -> dict[str, float]:
        """Return the points of the curves at a step, by name; empty if nothing was observed."""
        if step not in self._steps:
            return {}
        return {name: points[-1][1] for name, points in self.curves.items() if points[-1][0] == step}

    @property
    def maps(self) -> dict[str, Any] | None:
        """Maps of the attention of the heads, as plain data; None if there are none."""
        return None if self._maps is None else self._maps.to_json

    def state_dict(self) -> dict[str, Any]:
        maps = None if self._maps is None else self._maps.state_dict()
        return {
            "monitor": self._monitor.state_dict(),
            "max_logits": self._max_logits.state_dict(),
            "step": self._step,
            "maps": maps,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._monitor.load_state_dict(state_dict["monitor"])
        self._max_logits.load_state_dict(state_dict["max_logits"])
        self._step = state_dict["step"]
        if self._maps is not None and state_dict["maps"] is not None:
            self._maps.load_state_dict(state_dict["maps"])


def _subsample(points: list[list[float]], max_points: int) -> list[list[float]]:
    """Return at most ``max_points`` of the points, evenly spread, with the first and the last."""
    if len(points) <= max_points:
        return points
    return [points[round(i * (len(points) - 1) / (max_points - 1))] for i in range(max_points)]
