"""Callbacks that load weights and train a plan with any Trainer, including LightningCLI's.

They need no study, service or database. ``tempopt.attention.attach.checkpoints`` decides how a checkpoint
holds the temperature.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_warn

from tempopt.attention.attach.attachment import Attachment, attach_untested
from tempopt.attention.attach.checkpoints import load_as_trained, put_beside, put_in_weights, take_out
from tempopt.attention.attach.query_weights import Scaling
from tempopt.attention.attach.scalings import scalings
from tempopt.errors import AttachError, SpecError
from tempopt.run_handle import RunParams
from tempopt.temperature import CONTROL_PARAMETERS, TEMPERATURE_PARAMETERS, ControlParameters
from tempopt.training.callbacks import LossScaleCallback, TemperatureCallback
from tempopt.training.entropy_control import PlannedControl
from tempopt.training.example_step import batch_loss, training_step
from tempopt.training.lightning_package import LightningCallback
from tempopt.training.module import TemperedModule, check_controllable
from tempopt.training.untempered import Untempered


class AttachCallback(TemperatureCallback):
    """Attach a temperature plan to a LightningModule, and update it at each training step.

    It is a callback for ``lightning.Trainer`` and, by its class path ``tempopt.AttachCallback``, for
    LightningCLI. The runs of a study set their temperatures in the same way, so a config from ``tempopt
    export`` trains what the study has trained.

    Its checkpoints contain the temperature of evaluation in their weights, as written by
    :func:`tempopt.bake`: ``load_from_checkpoint`` gives the validated model, without tempopt. The trained
    weights are stored beside them, and a ``Trainer`` with this callback resumes from these. Where weights
    cannot contain the temperature, as with length scaling, a warning appears when training begins, and
    :func:`tempopt.load_checkpoint` loads the checkpoints; ``load_from_checkpoint`` refuses them.

    The callback attaches before the ``setup`` of the module, so layers that are created in ``setup`` or
    ``configure_model`` are not found. The first batch of a training tests that the temperature acts as it
    should on the attention that was found; a warning appears if that cannot be tested. With ``layers`` as
    ``auto`` attention of that batch without a temperature is refused.

    With ``entropy_control`` the temperatures follow the entropy of attention, and checkpoints contain these.

    Args:
        parameters: The plan, as a mapping of temperature parameters by name, or ``params`` of a run.
        layers: As for :func:`tempopt.attach`: ``auto``, or patterns of names.
        validate_at: ``final``: validation during training uses the plan's last temperature, and checkpoints
            contain it; ``current``: both use the temperature that training has reached.
        at_inference: Temperature parameters of another plan, for ``validate``, ``test`` and ``predict`` of
            the Trainer and for its checkpoints; None for the same plan.

    Attributes:
        attachment: The attachment; None before the first ``fit``, ``validate``, ``test`` or ``predict``.

    Raises:
        SpecError: A parameter is unknown or out of range, or has no effect under ``entropy_control``, or the
            module is a TemperedModule.
        AttachError: The temperature cannot be attached to the module, does not act as it should, or is
            already baked into its weights.
    """

    attachment: Attachment | None

    def __init__(
        self,
        parameters: dict[str, Any],
        layers: list[str] | str = "auto",
        validate_at: Literal["final", "current"] = "final",
        at_inference: dict[str, Any] | None = None,
    ) -> None:
        if isinstance(parameters, RunParams):
            # the program reads the others itself
            parameters = {name: parameters[name] for name in parameters if name in TEMPERATURE_PARAMETERS}
        plan_parameters = {
            name: value for name, value in parameters.items() if name not in CONTROL_PARAMETERS
        }
        super().__init__(validate_at=validate_at)
        self.attachment = None
        self.parameters = plan_parameters
        self._module: L.LightningModule | None = None
        self._elsewhere = at_inference is not None
        self._at_evaluation = self.parameters if at_inference is None else dict(at_inference)
        self._changes: Sequence[Scaling] = ()
        self._final: Sequence[float] = ()
        control = ControlParameters.from_mapping(parameters)
        check_controllable(control, parameters)
        self._control = control
        self.layers = layers
        self.at_inference = None if at_inference is None else dict(at_inference)
        self._beside = ""
        self._helpers: list[L.Callback] = []
        self._has_tried = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Attach the plan, and determine its factors on the weights."""
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if self._module is not pl_module:
            for helper in filter(callbacks.__contains__, self._helpers):
                callbacks.remove(helper)
            example = training_step(pl_module, getattr(trainer, "datamodule", None))
            attachment = self._attach(pl_module, example)
            self._module, self.attachment, self._tempered = pl_module, attachment, attachment
            self._has_tried = False
            attachment.use(self._at_evaluation)
            self._final = attachment.plan.temperatures(1.0)
            self._changes, self._beside = self._find_scalings(pl_module, example)
            attachment.use(self.parameters)
            # Callback hooks are not called for weights-only checkpoints, nor before weights are loaded.
            saving, loading = pl_module.on_save_checkpoint, pl_module.on_load_checkpoint
            pl_module.on_save_checkpoint = functools.partial(self._save, saving)  # type: ignore[method-assign]
            pl_module.on_load_checkpoint = functools.partial(self._load, loading)  # type: ignore[method-assign]
        if not all(helper in callbacks for helper in self._helpers):
            # before callbacks that write checkpoints, since its state is part of these
            position = callbacks.index(self) + 1
            callbacks[position:position] = self._helpers
        assert self.attachment is not None
        if not self.attachment.attached:
            if stage == "fit":
                raise AttachError(
                    "The temperature was detached from the model, or baked into its weights, so training "
                    "would continue without it. Train a new model, or load the checkpoint to resume."
                )
            # baked into the weights, or detached on purpose
            self._tempered = Untempered()
        elif self._elsewhere:
            self.attachment.use(self.parameters if stage == "fit" else self._at_evaluation)

        if stage == "fit" and self._beside:
            rank_zero_warn(
                "The checkpoints of this training hold its temperatures beside the weights. Load them with "
                f"tempopt.load_checkpoint(model, path, example=lambda: model(batch)). {self._beside}"
            )

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the temperature, and test on the first batch of a new training that it acts as it should."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        attachment = self.attachment
        # a training that goes on was tested when it began
        if self._has_tried or trainer.global_step or attachment is None or not attachment.attached:
            return
        self._has_tried = True
        if _can_test(trainer, pl_module):
            with torch.compiler.set_stance("force_eager"):
                compute_loss = batch_loss(trainer, pl_module, batch)
                attachment.try_test(compute_loss, is_whole=self.layers == "auto")
        if not attachment.tested:
            rank_zero_warn(
                "Whether the attached temperatures act as they should was not tested on the first batch. "
                f"{attachment.not_tested} To test them: attachment.self_test(lambda: model(batch))."
            )

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Leave the model at the temperature of evaluation."""
        attachment = self.attachment
        if attachment is None or not attachment.attached:
            return
        if self._elsewhere:
            attachment.use(self._at_evaluation)
        if self._elsewhere or self.validate_at == "final":
            attachment.set_progress(1.0)

    def _attach(self, module: L.LightningModule, example: Callable[[], Any]) -> Attachment:
        if isinstance(module, TemperedModule):
            raise SpecError(
                f"{type(module).__name__} is a TemperedModule, which sets its own temperature by its init "
                "arguments. Take AttachCallback out of the trainer's callbacks."
            )
        attachment = attach_untested(module, self.parameters, layers=self.layers, forward=example)
        self._helpers = [LossScaleCallback(tempered=attachment)] if attachment.entropy.has_term else []
        if self._control.controls:
            self._helpers.append(PlannedControl(self._control, tempered=attachment))
        return attachment

    @staticmethod
    def _find_scalings(
        module: L.LightningModule, example: Callable[[], Any]
    ) -> tuple[Sequence[Scaling], str]:
        """Return the plan's factors on the weights, or why the weights cannot contain the temperature."""
        try:
            return scalings(module, at="final"), ""
        except AttachError as error:
            reason = str(error)
        try:
            # names do not show it, but a training step may
            return scalings(module, at="final", example=example), ""
        except AttachError as error:
            return [], str(error)
        except Exception:
            return [], reason

    def _save(self, hook: Any, checkpoint: dict[str, Any]) -> None:
        hook(checkpoint)
        attachment, module = self.attachment, self._module
        assert attachment is not None and module is not None
        # some strategies give no weights on ranks that save nothing
        if not attachment.attached or not checkpoint["state_dict"]:
            return
        is_current = (self._control.controls or self.validate_at == "current") and not self._elsewhere
        layer_temperatures = attachment.temperatures if is_current else self._final
        temperatures = dict(zip(attachment.layers, layer_temperatures, strict=True))
        changes = [change.at(1.0 / temperatures[change.layer]) for change in self._changes]
        if not changes or not put_in_weights(checkpoint, module, changes):
            put_beside(checkpoint, self._at_evaluation, temperatures)

    def _load(self, hook: Any, checkpoint: dict[str, Any]) -> None:
        hook(checkpoint)
        # weights from elsewhere may have temperatures of which this object does not know
        weight_temperatures = {
            temperature for name, temperature in take_out(checkpoint).items() if self._is_own(name)
        }
        if not weight_temperatures:
            return
        final_texts = {f"{temperature:.6g}" for temperature in self._final} - {"1"}
        # under entropy control, the temperatures of the resumed training are not known
        if (
            not self._control.controls
            and {f"{temperature:.6g}" for temperature in weight_temperatures} != final_texts
        ):
            raise AttachError(
                f"The checkpoint has the temperatures {sorted(weight_temperatures)} in its weights and no "
                f"others beside it, and {type(self).__name__} is to set {sorted(set(self._final))}. Take the "
                "callback out, or give a checkpoint that can be resumed, or one of a model at temperature 1."
            )
        assert self.attachment is not None
        self.attachment.detach()
        self._tempered = Untempered()

    def _is_own(self, name: str) -> bool:
        """Return whether a module is one that this callback has attached to, or is inside of one."""
        assert self.attachment is not None and self._module is not None
        changed_ids = {id(change.module) for change in self._changes}
        own_names = [*self.attachment.layers]
        own_names += [
            module_name for module_name, module in self._module.named_modules() if id(module) in changed_ids
        ]
        return any(name == own_name or name.startswith(f"{own_name}.") for own_name in own_names)


def _can_test(trainer: L.Trainer, module: L.LightningModule) -> bool:
    """Return whether a step can run by itself: on whole weights, and on a batch instead of an iterator."""
    kinds = {kind.__name__ for kind in type(trainer.strategy).__mro__}
    takes_iterator = "dataloader_iter" in inspect.signature(module.training_step).parameters
    return bool(kinds & {"SingleDeviceStrategy", "DDPStrategy"}) and not takes_iterator


class LoadCallback(LightningCallback):
    """Load trained weights into a LightningModule before training, validation, testing or prediction.

    ``tempopt export`` writes it for a model that is only evaluated. Unlike ``--ckpt_path`` of LightningCLI it
    also reads state dicts and folders of transformers, and keeps the module's arguments: ``--ckpt_path``
    replaces these, including temperatures, by those of the checkpoint.

    Put it before :class:`tempopt.AttachCallback`.

    Args:
        path: A checkpoint of Lightning, a state dict written by ``torch.save`` or safetensors, or a folder
            written by ``save_pretrained`` of transformers. It is read as data.

    Raises:
        UsageError: It is missing, cannot be read, or is of another model.
        AttachError: The weights contain a temperature, and the trained weights are not stored beside them.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self._module: L.LightningModule | None = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Load the weights, once per module."""
        if self._module is not pl_module:
            load_as_trained(pl_module, self.path)
            self._module = pl_module
