"""Which class has the item of highest priority? Learned on small sets, asked of large ones.

Softmax attention disperses as sets grow beyond those of training, so accuracy on them is a matter of
temperature (Velickovic et al. 2024, "Softmax is not enough", arXiv:2410.01104).

Shapes: B sets, N items, F features of an item, D model dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

from lightning_modules.batches import Drawn, Stored, batches
from lightning_modules.grouped import Grouped
from lightning_modules.optimisation import adamw_with_cosine
from tempopt import TemperedModule

# As many as the processor's cache holds the activations of: larger batches take longer per item.
ITEMS_AT_ONCE = 8192


class Sets(NamedTuple):
    """A batch of sets.

    ``items_BNF`` holds the priority in [0, 1) and the one-hot class, zeros beyond the set's end;
    ``query_B1`` a number in [0, 1) that means nothing; ``valid_BN`` what is an item and what is padding,
    None if nothing is; ``label_B`` the class of the item of highest priority.
    """

    items_BNF: Tensor
    query_B1: Tensor
    valid_BN: Tensor | None
    label_B: Tensor


def draw_sets(
    num_sets: int,
    min_items: int,
    max_items: int,
    *,
    num_classes: int,
    generator: torch.Generator | None = None,
) -> Sets:
    """Draw sets whose sizes, priorities and classes are uniform.

    Args:
        num_sets: Sets in the batch, >= 1.
        min_items: Fewest items of a set, >= 1.
        max_items: Most items of a set, >= min_items.
        num_classes: Classes of an item, >= 2.
        generator: What to draw from; None for torch's global generator.
    """
    priority_BN = torch.rand(num_sets, max_items, generator=generator)
    class_BN = torch.randint(num_classes, (num_sets, max_items), generator=generator)
    query_B1 = torch.rand(num_sets, 1, generator=generator)
    items_BNF = torch.cat([priority_BN[..., None], F.one_hot(class_BN, num_classes)], dim=-1)
    valid_BN = None
    if min_items < max_items:
        sizes_B1 = torch.randint(min_items, max_items + 1, (num_sets, 1), generator=generator)
        valid_BN = torch.arange(max_items) < sizes_B1
        items_BNF *= valid_BN[..., None]
        priority_BN = priority_BN * valid_BN
    label_B = class_BN.gather(1, priority_BN.argmax(1, keepdim=True)).squeeze(1)
    return Sets(items_BNF, query_B1, valid_BN, label_B)


class MaxRetrieval(TemperedModule):
    """One attention head that has to find the item of highest priority.

    Items and query are encoded by MLPs, the query attends once over the items, and an MLP reads the class
    from what was retrieved. Logs ``val_accuracy``, the mean over the out-of-distribution sizes,
    ``val_accuracy_<size>`` for each of them, and ``val_accuracy_id`` on sets as in training.

    Args:
        num_classes: Classes of an item, >= 2; as in the data.
        d_model: Width of everything but the item encoder, which is twice as wide, >= 1.
        lr: Peak learning rate of AdamW, > 0.
        weight_decay: Decoupled weight decay, >= 0.
        **temperature: The temperature of the attention, see :class:`tempopt.TemperedModule`.
    """

    def __init__(
        self,
        num_classes: int = 10,
        d_model: int = 64,
        lr: float = 0.01,
        weight_decay: float = 0.05,
        **temperature: Any,
    ) -> None:
        super().__init__(num_layers=1, **temperature)
        self.lr = lr
        self.weight_decay = weight_decay
        hidden = 2 * d_model
        self.encode_item = nn.Sequential(
            nn.Linear(1 + num_classes, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, d_model),
        )
        self.encode_query = nn.Sequential(nn.Linear(1, d_model), nn.GELU(), nn.Linear(d_model, d_model))
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.classify = nn.Sequential(nn.Linear(d_model, d_model), nn.GELU(), nn.Linear(d_model, num_classes))
        self.accuracy = Grouped(
            partial(MulticlassAccuracy, num_classes=num_classes, average="micro", validate_args=False)
        )

    def forward(self, sets: Sets) -> Tensor:
        """Return class logits of shape (sets, classes)."""
        items_BND = self.encode_item(sets.items_BNF)
        query_BD = self.encode_query(sets.query_B1)
        mask = None if sets.valid_BN is None else sets.valid_BN[:, None, None]
        retrieved_B11D = self.attend(
            self.q_proj(query_BD)[:, None, None],
            self.k_proj(items_BND)[:, None],
            self.v_proj(items_BND)[:, None],
            layer=0,
            attn_mask=mask,
        )
        logits_BC: Tensor = self.classify(self.out_proj(retrieved_B11D[:, 0, 0]))
        return logits_BC

    def training_step(self, batch: Sets, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch), batch.label_B)

    def validation_step(self, batch: Sets, batch_idx: int, dataloader_idx: int = 0) -> None:
        size = "id" if batch.valid_BN is not None else str(batch.items_BNF.shape[1])
        self.accuracy.update(size, self(batch), batch.label_B)

    def on_validation_epoch_end(self) -> None:
        accuracy = self.accuracy.compute()
        self.log_dict({f"val_accuracy_{size}": value for size, value in accuracy.items()}, sync_dist=True)
        beyond = [value for size, value in accuracy.items() if size != "id"]
        self.log("val_accuracy", torch.stack(beyond).mean(), sync_dist=True)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        return adamw_with_cosine(self, lr=self.lr, weight_decay=self.weight_decay)


class MaxRetrievalData(L.LightningDataModule):
    """Sets drawn as they are needed: small ones to train on, large ones to validate and test on.

    Training sets follow torch's global generator. Validation sets follow ``seed`` and are the same in all
    runs. Test sets follow the seed that the global generator was last given: new for every seed of a run.

    Args:
        min_items: Fewest items of a training set, >= 1.
        max_items: Most items of a training set, > min_items.
        num_classes: Classes of an item, >= 2; as in the module.
        batch_size: Sets in a training batch, >= 1.
        epoch_batches: Training batches that are counted as an epoch, >= 1.
        sizes: Items of the sets to validate and test on.
        num_sets: For each of ``sizes``, how many sets; large ones cost as much more as they are larger.
        num_sets_id: How many sets of the sizes of training to validate and test on beside them.
        seed: Seed of the validation sets.
        num_workers: Processes that draw training sets.
    """

    def __init__(
        self,
        min_items: int = 4,
        max_items: int = 16,
        num_classes: int = 10,
        batch_size: int = 64,
        epoch_batches: int = 500,
        sizes: Sequence[int] = (64, 256, 1024),
        num_sets: Sequence[int] = (384, 192, 72),
        num_sets_id: int = 512,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        self.draw = partial(draw_sets, min_items=min_items, max_items=max_items, num_classes=num_classes)
        self.num_classes = num_classes
        self.batch_size = batch_size
        self.epoch_batches = epoch_batches
        self.num_sets_by_size = dict(zip(sizes, num_sets, strict=True))
        self.num_sets_id = num_sets_id
        self.seed = seed
        self.num_workers = num_workers
        self.validation: list[DataLoader[Sets]] = []

    def setup(self, stage: str) -> None:
        if not self.validation:
            self.validation = self._evaluation(self.seed)

    def _evaluation(self, seed: int) -> list[DataLoader[Sets]]:
        generator = torch.Generator().manual_seed(seed)
        loaders = [batches(Stored(self.draw(self.num_sets_id, generator=generator)), self.num_sets_id)]
        for size, num_sets in self.num_sets_by_size.items():
            sets = draw_sets(num_sets, size, size, num_classes=self.num_classes, generator=generator)
            loaders.append(batches(Stored(sets), max(1, ITEMS_AT_ONCE // size)))
        return loaders

    def train_dataloader(self) -> DataLoader[Sets]:
        epoch = Drawn(self.draw, self.batch_size * self.epoch_batches)
        return batches(epoch, self.batch_size, num_workers=self.num_workers)

    def val_dataloader(self) -> list[DataLoader[Sets]]:
        return self.validation

    def test_dataloader(self) -> list[DataLoader[Sets]]:
        return self._evaluation(torch.initial_seed())
