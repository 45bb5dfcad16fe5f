"""The callback with which any Trainer, LightningCLI's too, begins from trained weights."""

from __future__ import annotations

import lightning as L

from tempopt.attention.attach.checkpoints import load_as_trained


class LoadCallback(L.Callback):
    """Load trained weights into a LightningModule before it is trained, validated, tested or predicts.

    ``tempopt export`` writes it for a model that is only evaluated. Unlike ``--ckpt_path`` of LightningCLI it
    reads state dicts and folders of transformers, too, and leaves the module's arguments as they are written:
    ``--ckpt_path`` puts those in their place that the checkpoint was trained with, a temperature among them.

    Put it before :class:`tempopt.AttachCallback`.

    Args:
        path: A checkpoint of Lightning, a state dict that ``torch.save`` or safetensors wrote, or a folder
            that ``save_pretrained`` of transformers wrote. It is read as data.

    Raises:
        UsageError: It is missing, cannot be read, or is of another model.
        AttachError: The weights have a temperature in them, and are not beside it as they were trained.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self._module: L.LightningModule | None = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Load the weights, once for each module."""
        if self._module is not pl_module:
            load_as_trained(pl_module, self.path)
            self._module = pl_module
