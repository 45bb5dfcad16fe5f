"""The callback with which any Trainer, LightningCLI's too, trains a plan that is attached from outside.

It needs no study, service or database. How its checkpoints hold the temperature is ``weights_callback.py``'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import lightning as L
from lightning.pytorch.utilities import rank_zero_warn

from tempopt.attention.attach.attachment import Attachment, attach
from tempopt.attention.attach.checkpoints import put_beside
from tempopt.attention.attach.scalings import Scaling, scalings
from tempopt.errors import AttachError, SpecError
from tempopt.temperature import CONTROL_PARAMETERS, ControlParameters
from tempopt.training.callbacks import LossScaleCallback
from tempopt.training.module import TemperedModule
from tempopt.training.module_checks import check_controllable
from tempopt.training.planned_control import PlannedControl
from tempopt.training.weights_callback import WeightsCallback


class AttachCallback(WeightsCallback):
    """Attach a temperature plan to a LightningModule, and have it follow the steps of training.

    It is a callback for ``lightning.Trainer`` and, by its class path ``tempopt.AttachCallback``, for
    LightningCLI. A study's runs set their temperatures in the same way, so that a config that
    ``tempopt export`` writes trains what the study has trained.

    Its checkpoints have the temperature of evaluation in their weights, as :func:`tempopt.bake` writes it:
    ``load_from_checkpoint`` gives the model that was validated, and needs no tempopt. The weights as they
    were trained are beside it, from which a ``Trainer`` with this callback resumes. Where weights cannot hold
    the temperature, as with length scaling, a warning says so when training begins, and
    :func:`tempopt.load_checkpoint` loads the checkpoints; ``load_from_checkpoint`` refuses them.

    The module is attached to before its ``setup``, so layers that ``setup`` or ``configure_model`` make are
    not found. It is not tested on the module that the temperature acts on all of its attention;
    ``tempopt check --dry-run`` and :meth:`tempopt.Attachment.self_test` do that.

    With ``entropy_control`` the temperatures follow the entropy of attention, and are what checkpoints hold.

    Args:
        parameters: The plan, as a mapping of temperature parameters by name.
        layers: As for :func:`tempopt.attach`: ``auto``, or patterns of names.
        way: As for :func:`tempopt.attach`.
        validate_at: ``final``: validation while training runs under the plan's last temperature, and
            checkpoints hold it; ``current``: under that which training has reached.
        at_inference: Temperature parameters of another plan, for ``validate``, ``test`` and ``predict`` of
            the Trainer and for its checkpoints; None for the same.

    Attributes:
        attachment: What is attached; None before the first ``fit``, ``validate``, ``test`` or ``predict``.

    Raises:
        SpecError: A parameter is not known or out of range, has no effect under ``entropy_control``, or the
            module is a TemperedModule.
        AttachError: The temperature cannot be attached to the module, or its weights are baked.
    """

    attachment: Attachment | None

    def __init__(
        self,
        parameters: dict[str, Any],
        layers: list[str] | str = "auto",
        way: Literal["auto", "query_rows", "attention_interface"] = "auto",
        validate_at: Literal["final", "current"] = "final",
        at_inference: dict[str, Any] | None = None,
    ) -> None:
        attached = {name: each for name, each in parameters.items() if name not in CONTROL_PARAMETERS}
        super().__init__(attached, validate_at=validate_at, at_inference=at_inference)
        control = ControlParameters.from_mapping(parameters)
        check_controllable(control, parameters)
        self._control = PlannedControl(control) if control.controls else None
        self._measures = self._control is not None
        self.layers = layers
        self.way = way
        self.at_inference = None if at_inference is None else dict(at_inference)
        self._beside = ""
        self._loss_scale: LossScaleCallback | None = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Attach the plan, and see what it makes of the weights."""
        super().setup(trainer, pl_module, stage)
        assert self.attachment is not None
        if stage == "fit" and self._beside:
            rank_zero_warn(
                "The checkpoints of this training hold its temperatures beside the weights. Load them with "
                f"tempopt.load_checkpoint(model, path). {self._beside}"
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin to follow the steps, and the entropy."""
        super().on_train_start(trainer, pl_module)
        if self._control is not None:
            self._control.on_train_start(trainer, pl_module)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the temperature of the step, and the weight of the entropy term."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if self._loss_scale is not None:
            self._loss_scale.on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if self._control is not None:
            self._control.on_train_batch_start(trainer, pl_module, batch, batch_idx)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the temperatures by the entropy that was measured."""
        if self._control is not None:
            self._control.on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take up the temperatures of a checkpoint of the end."""
        if self._control is not None:
            self._control.on_fit_end(trainer, pl_module)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Stop measuring."""
        if self._control is not None:
            self._control.on_exception(trainer, pl_module, exception)

    def state_dict(self) -> dict[str, Any]:
        """Return what was measured, with which a training goes on; empty without control."""
        return {} if self._control is None else self._control.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what :meth:`state_dict` kept."""
        if self._control is not None and state_dict:
            self._control.load_state_dict(state_dict)

    def _attach(self, module: L.LightningModule) -> Attachment:
        if isinstance(module, TemperedModule):
            raise SpecError(
                f"{type(module).__name__} is a TemperedModule, which sets its own temperature by its init "
                "arguments. Take AttachCallback out of the trainer's callbacks."
            )
        attachment = attach(module, self.parameters, layers=self.layers, way=self.way, example=None)
        self._loss_scale = LossScaleCallback(tempered=attachment) if attachment.entropy.has_term else None
        if self._control is not None:
            self._control.follow(attachment)
        return attachment

    def _scalings(self, module: L.LightningModule) -> Sequence[Scaling]:
        try:
            found, self._beside = scalings(module, at="final"), ""
        except AttachError as error:
            found, self._beside = [], str(error)
        return found

    def _put_beside(self, checkpoint: dict[str, Any], temperatures: Mapping[str, float]) -> None:
        assert self.attachment is not None
        held = list(temperatures.values())
        put_beside(checkpoint, self._at_evaluation, held, layers=self.layers, way=self.attachment.way)
