"""What callbacks share that attach a temperature which weights can hold: checkpoints of the evaluated model.

What is attached is theirs to say. How a checkpoint holds it is decided in
``tempopt.attention.attach.checkpoints``.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L

from tempopt.attention.attach.attachment import Attachment
from tempopt.attention.attach.checkpoints import put_in_weights, take_out
from tempopt.attention.attach.rows import RowsAttachment
from tempopt.attention.attach.scalings import Scaling
from tempopt.errors import AttachError
from tempopt.training.callbacks import TemperatureCallback
from tempopt.training.untempered import Untempered, configure_untempered


class WeightsCallback(TemperatureCallback):
    """Move an attached temperature over training, and have checkpoints hold that of evaluation in weights.

    Args:
        parameters: The plan of training, as temperature parameters by name.
        validate_at: As for :class:`tempopt.training.callbacks.TemperatureCallback`; checkpoints hold the
            temperature that validation runs at.
        at_inference: Temperature parameters of another plan, for ``validate``, ``test`` and ``predict`` of
            the Trainer and for its checkpoints; None for the same.

    Attributes:
        attachment: What is attached; None before the first ``fit``, ``validate``, ``test`` or ``predict``.
    """

    attachment: Attachment | RowsAttachment | None

    def __init__(
        self, parameters: Mapping[str, Any], *, validate_at: str, at_inference: Mapping[str, Any] | None
    ) -> None:
        super().__init__(validate_at=validate_at)
        self.attachment = None
        self.parameters = dict(parameters)
        self._module: L.LightningModule | None = None
        self._elsewhere = at_inference is not None
        self._at_evaluation = self.parameters if at_inference is None else dict(at_inference)
        self._changes: Sequence[Scaling] = ()
        self._final: Sequence[float] = ()
        self._measures = False

    @abstractmethod
    def _attach(self, module: L.LightningModule) -> Attachment | RowsAttachment:
        """Attach the plan of training."""

    @abstractmethod
    def _scalings(self, module: L.LightningModule) -> Sequence[Scaling]:
        """Return what the temperature that is attached makes of the weights."""

    @abstractmethod
    def _put_beside(self, checkpoint: dict[str, Any], temperatures: Mapping[str, float]) -> None:
        """Say in a checkpoint what its weights cannot hold: the temperature of each layer by name."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Attach the plan, and see what it makes of the weights."""
        if self._module is not pl_module:
            attachment = self._attach(pl_module)
            self._module, self.attachment, self._tempered = pl_module, attachment, attachment
            configure_untempered(pl_module)
            attachment.use(self._at_evaluation)
            self._final = _of_layers(attachment, attachment.plan.temperatures(1.0))
            self._changes = self._scalings(pl_module)
            attachment.use(self.parameters)
            # Callbacks are not asked of checkpoints with weights alone, nor before weights are loaded.
            saving, loading = pl_module.on_save_checkpoint, pl_module.on_load_checkpoint
            pl_module.on_save_checkpoint = functools.partial(self._save, saving)  # type: ignore[method-assign]
            pl_module.on_load_checkpoint = functools.partial(self._load, loading)  # type: ignore[method-assign]
        assert self.attachment is not None
        if not self.attachment.attached:
            if stage == "fit":
                raise AttachError(
                    "The temperature was taken off the model, or written into its weights, so training would "
                    "go on without it. Train a new model, or load the checkpoint that is to be resumed."
                )
            # it is in the weights, or was taken off on purpose
            self._tempered = Untempered()
        elif self._elsewhere:
            self.attachment.use(self.parameters if stage == "fit" else self._at_evaluation)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Leave the model at the temperature of evaluation."""
        attachment = self.attachment
        if attachment is None or not attachment.attached:
            return
        if self._elsewhere:
            attachment.use(self._at_evaluation)
        if self._elsewhere or self.validate_at == "final":
            attachment.set_progress(1.0)

    def _save(self, own: Any, checkpoint: dict[str, Any]) -> None:
        own(checkpoint)
        attachment, module = self.attachment, self._module
        assert attachment is not None and module is not None
        # on ranks that save nothing, some strategies give no weights
        if not attachment.attached or not checkpoint["state_dict"]:
            return
        current = (self._measures or self.validate_at == "current") and not self._elsewhere
        held = _of_layers(attachment, attachment.temperatures) if current else self._final
        temperatures = dict(zip(attachment.layers, held, strict=True))
        changes = [each.at(1.0 / temperatures[each.layer]) for each in self._changes]
        if not changes or not put_in_weights(checkpoint, module, changes):
            self._put_beside(checkpoint, temperatures)

    def _load(self, own: Any, checkpoint: dict[str, Any]) -> None:
        own(checkpoint)
        # of what others have put into the weights these may know nothing
        found = {each for name, each in take_out(checkpoint).items() if self._is_own(name)}
        if not found:
            return
        own = {f"{each:.6g}" for each in self._final} - {"1"}
        # where they follow what is measured, which they are to be is not known
        if not self._measures and {f"{each:.6g}" for each in found} != own:
            raise AttachError(
                f"The checkpoint has the temperatures {sorted(found)} in its weights and no others beside "
                f"it, and {type(self).__name__} is to set {sorted(set(self._final))}. Take the callback out, "
                "or give a checkpoint that can be resumed, or one of a model at temperature 1."
            )
        assert self.attachment is not None
        self.attachment.detach()
        self._tempered = Untempered()

    def _is_own(self, name: str) -> bool:
        """Whether a module is one of what this has attached to, or is in it."""
        assert self.attachment is not None and self._module is not None
        changed = {id(each.module) for each in self._changes}
        own = [*self.attachment.layers]
        own += [each for each, module in self._module.named_modules() if id(module) in changed]
        return any(name == each or name.startswith(f"{each}.") for each in own)


def _of_layers(attachment: Attachment | RowsAttachment, temperatures: Sequence[float]) -> Sequence[float]:
    """Return the temperature of each layer: those of projections have one together."""
    shared = isinstance(attachment, RowsAttachment)
    return [*temperatures] * (len(attachment.layers) if shared else 1)
