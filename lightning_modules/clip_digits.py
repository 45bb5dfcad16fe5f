"""Which left half of a digit belongs to which right half? Two towers learn it from a contrastive loss.

The temperature in question is that of the loss: InfoNCE (van den Oord et al. 2018, arXiv:1807.03748) in both
directions, as in CLIP (Radford et al. 2021, arXiv:2103.00020), on unit embeddings and with 0.5 as in SimCLR's
experiments on CIFAR-10 (Chen et al. 2020, arXiv:2002.05709). The metric ranks by the similarity alone, so the
temperature acts on it through training only.

Shapes: B images, H and W pixels, E embedding dimension.
"""

from __future__ import annotations

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric

from lightning_modules.digits_data import Images
from lightning_modules.optimisation import adamw_with_cosine

HEIGHT = 8
HALF_WIDTH = 4


class InfoNCE(nn.Module):
    """The cross-entropy of finding a pair in its batch, the mean of both directions, in nats.

    Args:
        temperature: What the similarities are divided by, > 0; it is read at every call.

    Raises:
        ValueError: ``temperature`` is not positive.
    """

    def __init__(self, temperature: float = 0.5) -> None:
        super().__init__()
        if not temperature > 0.0:
            raise ValueError(f"temperature is {temperature}; it divides similarities: give a number > 0.")
        self.temperature = temperature

    def forward(self, left_BE: Tensor, right_BE: Tensor) -> Tensor:
        """Return the loss of a batch, a scalar.

        Args:
            left_BE: Unit vectors, shape (pairs, embedding).
            right_BE: The unit vectors that they belong to, in the same order and shape.
        """
        logits_BB = left_BE @ right_BE.T / self.temperature
        own_B = torch.arange(len(logits_BB), device=logits_BB.device)
        return 0.5 * (F.cross_entropy(logits_BB, own_B) + F.cross_entropy(logits_BB.T, own_B))


def reciprocal_ranks(similarity_BB: Tensor) -> Tensor:
    """Return for each query 1 / the rank of its match among all candidates, shape (queries,), in (0, 1].

    The rank counts a candidate as similar as the match as better, so that towers which map everything to one
    point do not look perfect. The same holds for similarities that are not numbers.

    Args:
        similarity_BB: Shape (queries, candidates); the match of a query is on the diagonal.
    """
    worse_B = (similarity_BB < similarity_BB.diagonal()[:, None]).sum(dim=1)
    return 1.0 / (similarity_BB.shape[1] - worse_B)


class ClipDigits(L.LightningModule):
    """Two MLPs that embed the left and the right halves of 8 x 8 images.

    Logs ``val_mrr`` when validating and ``test_mrr`` when testing: the mean reciprocal rank, in (0, 1], of
    the matching half among all halves of the batch, over both directions. ``DigitsData`` validates and tests
    on one batch each.

    ``criterion.temperature`` is a Python number that is read at every step.

    Args:
        d_hidden: Width of the hidden layer of each tower, >= 1.
        d_embed: Dimension of the embeddings, >= 1.
        temperature: Temperature of the loss, > 0.
        lr: Peak learning rate of AdamW, > 0.
        weight_decay: Decoupled weight decay, >= 0.
    """

    def __init__(
        self,
        d_hidden: int = 128,
        d_embed: int = 32,
        temperature: float = 0.5,
        lr: float = 4e-3,
        weight_decay: float = 0.05,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.weight_decay = weight_decay
        self.embed_left = _tower(d_hidden, d_embed)
        self.embed_right = _tower(d_hidden, d_embed)
        self.criterion = InfoNCE(temperature)
        self.val_mrr = MeanMetric()
        self.test_mrr = MeanMetric()

    def forward(self, pixels_BHW: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings of left and right halves, unit vectors of shape (images, embedding) each."""
        left_BHW, right_BHW = pixels_BHW.split(HALF_WIDTH, dim=2)
        left_BE = F.normalize(self.embed_left(left_BHW), dim=1)
        right_BE = F.normalize(self.embed_right(right_BHW), dim=1)
        return left_BE, right_BE

    def _reciprocal_ranks(self, batch: Images) -> Tensor:
        """Return for each image the mean over both directions, shape (images,)."""
        left_BE, right_BE = self(batch.pixels_BHW)
        similarity_BB = left_BE @ right_BE.T
        return 0.5 * (reciprocal_ranks(similarity_BB) + reciprocal_ranks(similarity_BB.T))

    def training_step(self, batch: Images, batch_idx: int) -> Tensor:
        left_BE, right_BE = self(batch.pixels_BHW)
        loss: Tensor = self.criterion(left_BE, right_BE)
        return loss

    def validation_step(self, batch: Images, batch_idx: int) -> dict[str, Tensor]:
        ranked_B = self._reciprocal_ranks(batch)
        self.val_mrr.update(ranked_B)
        self.log("val_mrr", self.val_mrr, on_epoch=True, batch_size=len(ranked_B))
        # of each image, so that an interval over images can be given
        return {"val_mrr": ranked_B}

    def test_step(self, batch: Images, batch_idx: int) -> None:
        ranked_B = self._reciprocal_ranks(batch)
        self.test_mrr.update(ranked_B)
        self.log("test_mrr", self.test_mrr, on_epoch=True, batch_size=len(ranked_B))

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        return adamw_with_cosine(self, lr=self.lr, weight_decay=self.weight_decay)


def _tower(d_hidden: int, d_embed: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(HEIGHT * HALF_WIDTH, d_hidden), nn.GELU(), nn.Linear(d_hidden, d_embed)
    )
