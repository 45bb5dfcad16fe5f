"""Callbacks that set one number of a module by a schedule, in a study and with any Trainer.

They need no study, service or database. ``tempopt.attention.attach.values`` writes the number.
"""

from __future__ import annotations

import functools
from typing import Any

import lightning as L
from torch import Tensor, nn

from tempopt.attention.attach.checkpoints import VALUES
from tempopt.attention.attach.values import Transform, ValueAttachment, attach_value
from tempopt.training.callbacks import TemperatureCallback

# Reading a tensor of a GPU waits for all of its pending work.
_READ_ON_GPU = 2


class ValueTemperatureCallback(TemperatureCallback):
    """Set one number of a module at each optimizer step, and end a training whose own code changes it too.

    Args:
        attachment: The schedule on the number; None until it is attached.
        validate_at: As for :class:`tempopt.training.callbacks.TemperatureCallback`.
        as_found: Whether a number without a schedule must stay as found.
    """

    def __init__(
        self, attachment: ValueAttachment | None = None, *, validate_at: str, as_found: bool = False
    ) -> None:
        super().__init__(validate_at=validate_at, tempered=attachment)
        self.attachment = attachment
        self._as_found = as_found
        self._began = False
        self._batch = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        # a loaded checkpoint contains the number of validation
        self._began = False
        self._batch = 0

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._began:
            self._require_kept(batch_idx)
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self._began, self._batch = True, batch_idx

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        """Check the number that the loss was computed with."""
        self._require_kept(self._batch)

    def _require_kept(self, batch: int) -> None:
        attachment = self.attachment
        if attachment is None or not attachment.attached:
            return
        tensor = attachment.tensor
        if tensor is None or tensor.device.type == "cpu" or batch < _READ_ON_GPU:
            attachment.require_kept(as_found=self._as_found)


class ValueCallback(ValueTemperatureCallback):
    """Set one number of a LightningModule by a temperature schedule over the steps of training.

    The number is the temperature of a loss, a sampler or a gate, such as ``criterion.temperature``. It is
    written before each training batch, as a function of the step only, so that a resumed training is exact.
    Use one callback per number. LightningCLI takes it too, by its class path ``tempopt.ValueCallback``.

    Under ``torch.compile`` one graph serves all values of a tensor. A Python number is compiled as a constant
    at first: when it changes, torch compiles once more with the number as an input.

    Checkpoints contain the last temperature of the plan in a buffer or parameter of the module, or with
    ``validate_at="current"`` that of the step. A Python number, or a buffer that is not saved, is stored
    beside the weights; :func:`tempopt.load_checkpoint` sets it.

    The callback attaches before the ``setup`` of the module, so a number that is created in ``setup`` or
    ``configure_model`` is not found.

    Args:
        path: Path of the number, as for :func:`tempopt.attach_value`.
        parameters: The schedule, as temperature parameters by name; missing ``temperature_init`` and
            ``warmup_start`` are the temperature as found.
        transform: How the number stores the temperature τ: ``identity`` τ, ``inverse`` 1/τ, ``log_inverse``
            ln(1/τ).
        validate_at: ``final``: validation, testing and prediction use the plan's last temperature, and
            checkpoints contain it; ``current``: they use the one that training has reached.
        at_inference: Another temperature for ``validate``, ``test`` and ``predict`` of the Trainer and for
            its checkpoints; None for the same.

    Attributes:
        attachment: The attachment; None before the first ``fit``, ``validate``, ``test`` or ``predict``.

    Raises:
        AttachError: There is no such number in the module, it cannot be written, or the code of the module
            changes it in training too.
        SpecError: A parameter is out of range, or the transform is unknown.
    """

    def __init__(
        self,
        path: str,
        parameters: dict[str, Any],
        transform: Transform = "identity",
        validate_at: str = "final",
        at_inference: float | None = None,
    ) -> None:
        super().__init__(validate_at=validate_at)
        self.path = path
        self.parameters = dict(parameters)
        self.transform = transform
        self.at_inference = at_inference
        self._module: L.LightningModule | None = None
        self._trained: float | None = None

    @property
    def state_key(self) -> str:
        """Distinguishes this callback from one for another number."""
        return self._generate_state_key(path=self.path)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Attach the schedule to the number."""
        if self._module is not pl_module:
            self._attach(pl_module)
        if self.at_inference is not None and self.attachment is not None and self.attachment.attached:
            self.attachment.use(self.parameters if stage == "fit" else self._evaluated)
            self._restore_trained(stage)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Leave the number at the temperature of evaluation."""
        attachment = self.attachment
        if attachment is None or not attachment.attached:
            return
        if self.at_inference is not None:
            if stage == "fit":
                self._trained = attachment.read()
            attachment.use(self._evaluated)
        if self.at_inference is not None or self.validate_at == "final":
            attachment.set_progress(1.0)

    def state_dict(self) -> dict[str, Any]:
        """Return the training value of the module if its checkpoints contain another temperature."""
        attachment = self.attachment
        if self.at_inference is None or attachment is None or not attachment.attached:
            return {}
        return {"trained": attachment.read()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the training value of the resumed training."""
        self._trained = state_dict.get("trained")
        self._restore_trained("fit")

    def _restore_trained(self, stage: str) -> None:
        attachment = self.attachment
        if stage == "fit" and self._trained is not None and attachment is not None:
            attachment.put(self._trained)

    @property
    def _evaluated(self) -> dict[str, Any]:
        return {"temperature_init": self.at_inference}

    def _attach(self, module: L.LightningModule) -> None:
        attachment = attach_value(module, self.path, self.parameters, transform=self.transform)
        self._module, self.attachment, self._tempered = module, attachment, attachment
        # Callback hooks are not called for weights-only checkpoints.
        saving = module.on_save_checkpoint
        module.on_save_checkpoint = functools.partial(self._save, saving)  # type: ignore[method-assign]

    def _save(self, hook: Any, checkpoint: dict[str, Any]) -> None:
        hook(checkpoint)
        attachment, module = self.attachment, self._module
        assert attachment is not None and module is not None
        if not attachment.attached:
            return
        if self.at_inference is not None:
            number: float | None = attachment.stored_value(self.at_inference)
        elif self.validate_at == "final" or attachment.final is None:
            number = attachment.final
        else:
            number = attachment.stored_value(attachment.temperatures[0])
        if number is None:
            return
        names = _tensor_names(module, attachment)
        state = checkpoint["state_dict"]
        if names and all(name in state for name in names):
            state.update({name: state[name].detach().clone().fill_(number) for name in names})
        else:
            checkpoint.setdefault(VALUES, {})[self.path] = number


def _tensor_names(module: nn.Module, attachment: ValueAttachment) -> list[str]:
    """Return the names of an attachment's tensor in the module, whether saved or not."""
    tensor = attachment.tensor
    named_tensors = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return [name for name, candidate in named_tensors if candidate is tensor]
