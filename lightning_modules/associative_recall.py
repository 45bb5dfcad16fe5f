"""Multi-query associative recall: key-value pairs are shown, then keys are asked for, more than in training.

Arora et al. 2023, "Zoology", arXiv:2312.04927. Temperature and learning rate are entangled here: some
seeds do not learn at all, so the interesting number is how many do.

Shapes: B sequences, N tokens, Q queries, V vocabulary, M model dimension.
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
from lightning_modules.transformer import TransformerLayer
from tempopt import TemperedModule


class Recall(NamedTuple):
    """A batch of sequences: pairs ``key value key value ...``, then the same keys in another order.

    ``tokens_BN`` are numbers below the vocabulary's size, N = 3 * pairs; ``values_BQ`` what each of the
    last N / 3 tokens asks for.
    """

    tokens_BN: Tensor
    values_BQ: Tensor


def draw_recall(
    num_sequences: int, num_pairs: int, *, vocabulary: int, generator: torch.Generator | None = None
) -> Recall:
    """Draw sequences with distinct keys from the vocabulary's lower half and values from its upper half.

    Args:
        num_sequences: Sequences in the batch, >= 1.
        num_pairs: Pairs in a sequence, 1 <= num_pairs <= vocabulary / 2.
        vocabulary: Number of tokens, even.
        generator: What to draw from; None for torch's global generator.
    """
    half = vocabulary // 2
    keys_BQ = torch.rand(num_sequences, half, generator=generator).argsort(1)[:, :num_pairs]
    values_BQ = torch.randint(half, vocabulary, (num_sequences, num_pairs), generator=generator)
    order_BQ = torch.rand(num_sequences, num_pairs, generator=generator).argsort(1)
    pairs_BN = torch.stack([keys_BQ, values_BQ], dim=-1).flatten(1)
    return Recall(torch.cat([pairs_BN, keys_BQ.gather(1, order_BQ)], dim=1), values_BQ.gather(1, order_BQ))


class AssociativeRecall(TemperedModule):
    """A causal transformer that has to name the value of each key it is asked for.

    A token is joined with the one before it on its way in (the short convolution of Zoology), and there
    are no positions otherwise, so that sequences may be longer than in training. Logs ``val_accuracy``,
    the mean over the numbers of pairs, ``val_accuracy_<pairs>`` for each of them, and ``val_success``, 1
    if the accuracy is above one half: a run that has learned.

    Args:
        vocabulary: Number of tokens, even; as in the data.
        d_model: Width, >= 1.
        num_layers: Layers, >= 1.
        num_heads: Heads per layer; divides ``d_model``.
        lr: Peak learning rate of AdamW, > 0.
        weight_decay: Decoupled weight decay, >= 0.
        **temperature: The temperature of the attention, see :class:`tempopt.TemperedModule`.
    """

    def __init__(
        self,
        vocabulary: int = 128,
        d_model: int = 64,
        num_layers: int = 2,
        num_heads: int = 2,
        lr: float = 4e-3,
        weight_decay: float = 0.05,
        **temperature: Any,
    ) -> None:
        super().__init__(num_layers=num_layers, **temperature)
        self.lr = lr
        self.weight_decay = weight_decay
        self.embed = nn.Embedding(vocabulary, d_model)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.embed_previous = nn.Linear(d_model, d_model)
        self.body = nn.ModuleList(
            TransformerLayer(d_model, num_heads, rotary=False) for _ in range(num_layers)
        )
        self.read = nn.Sequential(nn.LayerNorm(d_model), nn.Linear(d_model, vocabulary))
        self.accuracy = Grouped(
            partial(MulticlassAccuracy, num_classes=vocabulary, average="micro", validate_args=False)
        )

    def forward(self, recall: Recall) -> Tensor:
        """Return logits over the vocabulary for each query, of shape (sequences, vocabulary, queries)."""
        token_BNM = self.embed(recall.tokens_BN)
        previous_BNM = F.pad(token_BNM[:, :-1], (0, 0, 1, 0))
        x_BNM = token_BNM + self.embed_previous(previous_BNM)
        for number, layer in enumerate(self.body):
            x_BNM = layer(x_BNM, partial(self.attend, layer=number, is_causal=True))
        logits_BQV: Tensor = self.read(x_BNM[:, -recall.values_BQ.shape[1] :])
        return logits_BQV.transpose(1, 2)

    def training_step(self, batch: Recall, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch), batch.values_BQ)

    def validation_step(self, batch: Recall, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.accuracy.update(str(batch.values_BQ.shape[1]), self(batch), batch.values_BQ)

    def on_validation_epoch_end(self) -> None:
        accuracy = self.accuracy.compute()
        mean = torch.stack(list(accuracy.values())).mean()
        self.log_dict({f"val_accuracy_{pairs}": value for pairs, value in accuracy.items()}, sync_dist=True)
        self.log_dict({"val_accuracy": mean, "val_success": (mean > 0.5).float()}, sync_dist=True)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        return adamw_with_cosine(self, lr=self.lr, weight_decay=self.weight_decay)


class AssociativeRecallData(L.LightningDataModule):
    """Sequences drawn as they are needed: few pairs to train on, more to validate and test on.

    Training sequences follow torch's global generator. Validation sequences follow ``seed`` and are the
    same in all runs. Test sequences follow the seed that the global generator was last given: new for
    every seed of a run.

    Args:
        num_pairs: Pairs in a training sequence, >= 1.
        vocabulary: Number of tokens, even; as in the module.
        batch_size: Sequences in a batch, >= 1.
        epoch_batches: Training batches that are counted as an epoch, >= 1.
        pairs: Numbers of pairs to validate and test on, each at most half the vocabulary.
        num_sequences: For each of ``pairs``, how many sequences to validate and test on, >= 1.
        seed: Seed of the validation sequences.
        num_workers: Processes that draw training sequences.
    """

    def __init__(
        self,
        num_pairs: int = 8,
        vocabulary: int = 128,
        batch_size: int = 32,
        epoch_batches: int = 150,
        pairs: Sequence[int] = (16, 32, 64),
        num_sequences: int = 32,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        self.num_pairs = num_pairs
        self.vocabulary = vocabulary
        self.batch_size = batch_size
        self.epoch_batches = epoch_batches
        self.pairs = tuple(pairs)
        self.num_sequences = num_sequences
        self.seed = seed
        self.num_workers = num_workers
        self.validation: list[DataLoader[Recall]] = []

    def setup(self, stage: str) -> None:
        if not self.validation:
            self.validation = self._evaluation(self.seed)

    def _evaluation(self, seed: int) -> list[DataLoader[Recall]]:
        generator = torch.Generator().manual_seed(seed)
        loaders = []
        for num_pairs in self.pairs:
            stored = Stored(
                draw_recall(self.num_sequences, num_pairs, vocabulary=self.vocabulary, generator=generator)
            )
            loaders.append(batches(stored, self.batch_size))
        return loaders

    def train_dataloader(self) -> DataLoader[Recall]:
        draw = partial(draw_recall, num_pairs=self.num_pairs, vocabulary=self.vocabulary)
        epoch = Drawn(draw, self.batch_size * self.epoch_batches)
        return batches(epoch, self.batch_size, num_workers=self.num_workers)

    def val_dataloader(self) -> list[DataLoader[Recall]]:
        return self.validation

    def test_dataloader(self) -> list[DataLoader[Recall]]:
        return self._evaluation(torch.initial_seed())
