"""Callbacks that adjust the temperature of each layer so that its entropy follows a target.

``EntropyControl`` is for trainings without a study, ``PlannedControl`` for the parameters of a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import lightning as L
import torch
from torch import Tensor

from tempopt.attention.functional.attention import visible_keys
from tempopt.attention.functional.entropy import attention_entropy, normalised_entropy
from tempopt.attention.modules.entropy_controller import (
    EntropyController,
    EntropyTarget,
    contrast,
    curriculum,
    entropy_slope,
)
from tempopt.errors import SpecError, UsageError, unknown
from tempopt.temperature import Constant, ControlParameters, Cosine, SoftmaxNormaliser, progress
from tempopt.temperature.entropy_control import CONTRAST, CURRICULUM
from tempopt.training.callbacks import TemperatureTarget, TemperedCallback
from tempopt.training.messages import CONTROLLED_CURVE
from tempopt.training.steps import Curves, RecordedCurves, current_step, total_steps

CHANGES = 200
"""Number of changes of the temperatures over a training; one per step in shorter trainings."""

_LOWEST, _HIGHEST = 0.01, 100.0
# The largest rate that converges without overshoot at this decay; see EntropyController.
_RATE, _DECAY = 0.17, 0.5
_MAX_STEP = 0.2

# Slopes only scale the step and need not be exact: for all queries they would take the n x n matrix.
_SLOPE_QUERIES = 64

_TARGETS: dict[str, Callable[[], EntropyTarget]] = {"curriculum": curriculum, "contrast": contrast}


class EntropyControl(TemperedCallback):
    """Adjust the temperature of each layer during training, so that its entropy follows a target.

    .. code-block:: python

        control = EntropyControl(curriculum(init=0.9, final=0.4), every=10)
        lightning.Trainer(max_steps=10_000, callbacks=[control]).fit(module)

    The plan gives the initial temperatures; later ones are the controller's, in validation too. The
    checkpoint of a TemperedModule contains them; those of an attachment have to be set again by
    ``attachment.set_temperatures`` if a checkpoint is only evaluated. The entropy is measured exactly, in the
    first batch of a step at which a change is due, before training on it, and averaged over all queries of
    all processes that see more than one key. Compiled attention cannot be observed. The callback is for
    trainings without a study. A study refuses it, since it would also control the runs at temperature 1, and
    searches the parameter ``entropy_control`` instead, which a TemperedModule takes as well.

    Args:
        target: Target entropies; ``curriculum`` and ``contrast`` name those targets with their defaults.
        tempered: The object with the temperatures: an attachment, or None for the LightningModule itself, a
            TemperedModule.
        every: Optimizer steps between changes, >= 1.
        lowest: As for :class:`tempopt.attention.modules.entropy_controller.EntropyController`.
        highest: As for ``EntropyController``.
        **options: ``rate``, ``decay``, ``newton`` and ``max_step`` of ``EntropyController``; slopes are
            measured at 64 queries of each sequence.

    Raises:
        SpecError: A name is unknown or a number is out of range.
    """

    def __init__(
        self,
        target: EntropyTarget | str = "curriculum",
        *,
        tempered: TemperatureTarget | None = None,
        every: int = 10,
        lowest: float = 0.1,
        highest: float = 10.0,
        **options: Any,
    ) -> None:
        super().__init__(tempered=tempered)
        self._target = _target(target)
        self._every = every
        self._options: dict[str, Any] = {**options, "lowest": lowest, "highest": highest}
        self._has_slopes = bool(options.get("newton", False))
        if not lowest < highest:
            raise SpecError(f"lowest={lowest!r} is not below highest={highest!r}. Exchange or correct them.")
        # raises errors now instead of when training begins
        EntropyController(1, target=self._target, every=every, initial=lowest, **self._options)
        self._controller: EntropyController | None = None
        self._loaded: dict[str, Any] | None = None
        self._watching = ExitStack()
        self._step = -1
        self._total = 1
        self._sums: dict[int, Tensor] = {}

    @property
    def temperatures(self) -> tuple[float, ...] | None:
        """The temperature of each layer; None before training has begun."""
        return None if self._controller is None else self._controller.temperatures

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        tempered = self._of(pl_module)
        _check(tempered, self._options["lowest"], self._options["highest"])
        self._total = total_steps(trainer)
        self._controller = EntropyController(
            tempered.layers,
            target=self._target,
            initial=tempered.temperatures,
            every=self._every,
            **self._options,
        )
        if self._loaded is not None:
            self._controller.load_state_dict(self._loaded)
            self._loaded = None
        self._step = -1
        tempered.set_temperatures(self._controller.temperatures)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._loaded is not None:
            # the checkpoint is from the end of the training, which did not begin again
            self._of(pl_module).set_temperatures(self._loaded["temperatures"])

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        assert self._controller is not None
        if current_step(trainer) == self._step:
            return
        self._step = current_step(trainer)
        self._sums = {}
        if self._controller.due:
            self._watching.enter_context(self._of(pl_module).observed(self._observe))

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        assert self._controller is not None
        self._watching.close()
        if current_step(trainer) == self._step:
            # gradients are accumulated over batches, all at one temperature
            return
        step_progress = progress(self._step, self._total)
        if not self._controller.due:
            self._controller.update(None, progress=step_progress)
            return
        shares, slopes, counts = self._means(trainer).tolist()
        if min(counts) == 0:
            # no query had a choice, as in sequences of one token: a later step will measure
            return
        newton_slopes = slopes if self._has_slopes else None
        self._of(pl_module).set_temperatures(
            self._controller.update(shares, progress=step_progress, slopes=newton_slopes)
        )

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        self._watching.close()

    @torch.no_grad()
    def _observe(
        self,
        layer: int,
        q_BHQD: Tensor,
        k_BHKD: Tensor,
        *,
        scale: float | None,
        valid_BQ: Tensor | None,
        **masking: Any,
    ) -> None:
        if layer in self._sums:
            # activation checkpointing computes a layer again in backward
            return
        entropy_BHQ = attention_entropy(q_BHQD, k_BHKD, scale=scale, **masking)
        num_keys = visible_keys(q_BHQD.shape[-2], k_BHKD.shape[-2], device=q_BHQD.device, **masking)
        share_BHQ, counts_BHQ = normalised_entropy(entropy_BHQ, num_keys)
        if valid_BQ is not None:
            counts_BHQ = counts_BHQ & valid_BQ.unsqueeze(1)
        count = counts_BHQ.sum()
        slope = torch.zeros_like(count)
        if self._has_slopes:
            options: dict[str, Any] = {"scale": scale, "valid_BQ": valid_BQ, "num_queries": _SLOPE_QUERIES}
            slope = count * entropy_slope(q_BHQD, k_BHKD, **options, **masking)
        total = share_BHQ.masked_fill(~counts_BHQ, 0.0).sum()
        self._sums[layer] = torch.stack([tensor.double().cpu() for tensor in (total, slope, count)])

    def _means(self, trainer: L.Trainer) -> Tensor:
        """Return entropies, slopes and numbers of queries by layer, over all processes, (3, layers)."""
        assert self._controller is not None
        # a layer that one process has not observed is NaN on all, so that all of them raise or none
        missing_sums = torch.full((3,), math.nan, dtype=torch.float64)
        local_sums = torch.stack(
            [self._sums.get(layer, missing_sums) for layer in range(self._controller.num_layers)]
        )
        device = trainer.strategy.root_device
        # Apple's devices do not support float64
        local_sums = local_sums.to(device, torch.float32 if device.type == "mps" else torch.float64)
        sums = trainer.strategy.reduce(local_sums, reduce_op="sum")
        assert isinstance(sums, Tensor)
        totals, slopes, counts = sums.double().cpu().unbind(1)
        missing_layers = counts.isnan().nonzero().flatten().tolist()
        if missing_layers:
            raise UsageError(
                f"The attention of layers {missing_layers} was not observed in a step of training, so their "
                "temperature cannot follow its entropy. A TemperedModule shows what goes through "
                "self.attend, an attachment the layers that it tempers, and neither what is compiled. Leave "
                "these layers out, or have them attend so."
            )
        clamped_counts = counts.clamp(min=1)
        return torch.stack([totals / clamped_counts, slopes / clamped_counts, counts])

    def state_dict(self) -> dict[str, Any]:
        return {"controller": None if self._controller is None else self._controller.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict["controller"]


def _target(target: EntropyTarget | str) -> EntropyTarget:
    if isinstance(target, EntropyTarget):
        return target
    if target not in _TARGETS:
        raise SpecError(unknown("target", target, _TARGETS))
    return _TARGETS[target]()


def _check(tempered: TemperatureTarget, lowest: float, highest: float) -> None:
    """Refuse a module that cannot be controlled.

    Raises:
        SpecError: The normaliser is not softmax, or the plan begins outside of the bounds.
    """
    normaliser = tempered.plan.normaliser.name
    if normaliser != SoftmaxNormaliser.name:
        raise SpecError(
            f'EntropyControl measures the entropy of softmax, and the normaliser is "{normaliser}". Give '
            'normaliser="softmax", or take the control out.'
        )
    outliers = [temperature for temperature in tempered.temperatures if not lowest <= temperature <= highest]
    if outliers:
        raise SpecError(
            f"The plan begins with the temperatures {outliers}, and EntropyControl is given "
            f"lowest={lowest!r} and highest={highest!r}. Give wider bounds, or a temperature_init between "
            "them."
        )


def entropy_target(control: ControlParameters) -> EntropyTarget:
    """Return the target that the parameters name; they must have one."""
    if control.entropy_control == CURRICULUM and control.control_start != control.control_level:
        level = Cosine(temperature_init=control.control_start, temperature_final=control.control_level)
        return EntropyTarget(level=level)
    if control.entropy_control == CONTRAST and control.control_spread != 1.0:
        return contrast(level=control.control_level, spread=control.control_spread)
    assert control.controls, "the parameters have no target"
    return EntropyTarget(level=Constant(temperature_init=control.control_level))


class PlannedControl(EntropyControl):
    """Adjusts the temperatures of a run so that they follow the target in its parameters.

    The temperatures change about 200 times over a training of any length, by Newton's step from 64 queries of
    each sequence, and stay between 0.01 and 100, or at the plan's start if that is beyond.

    Args:
        control: Parameters with a target.
        tempered: As for :class:`EntropyControl`.
    """

    def __init__(self, control: ControlParameters, *, tempered: TemperatureTarget | None = None) -> None:
        super().__init__(
            entropy_target(control),
            tempered=tempered,
            rate=_RATE,
            decay=_DECAY,
            lowest=_LOWEST,
            highest=_HIGHEST,
            newton=True,
            max_step=_MAX_STEP,
        )
        self.control = control
        self._recorded = RecordedCurves()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        num_steps = total_steps(trainer)
        self._every = max(1, num_steps // CHANGES)
        initial_temperatures = self._of(pl_module).plan.temperatures(0.0)
        self._options |= {
            "lowest": min(_LOWEST, *initial_temperatures),
            "highest": max(_HIGHEST, *initial_temperatures),
        }
        self._recorded.begin(num_steps)
        super().on_train_start(trainer, pl_module)
        if not self.curves:
            self._note(current_step(trainer))

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        super().on_train_batch_end(trainer, pl_module, *args)
        if self._recorded.is_due(current_step(trainer)):
            self._note(current_step(trainer))

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        self._note(current_step(trainer))

    def _note(self, step: int) -> None:
        temperatures = enumerate(self.temperatures or ())
        self._recorded.record(step, {f"{CONTROLLED_CURVE}{layer}": tau for layer, tau in temperatures})

    @property
    def curves(self) -> Curves:
        """Temperatures at some steps, from the first to the last, as ``controlled/LAYER``."""
        return self._recorded.curves

    def reported_curves(self, *, is_observed: bool) -> Curves:
        """Return the curves; for a run that is not observed, only their first and last points."""
        return {name: path if is_observed else [path[0], path[-1]] for name, path in self.curves.items()}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "curves": self._recorded.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._recorded.load_state_dict(state_dict["curves"])
