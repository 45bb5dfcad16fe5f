"""1,797 scanned digits of 8 x 8 pixels, split once for all runs.

``digits.npz`` has the images of scikit-learn's ``load_digits``: the test set of "Optical Recognition of
Handwritten Digits" by E. Alpaydin and C. Kaynak (1998), UCI Machine Learning Repository, https://doi.org/10.24432/C50P49,
licensed CC BY 4.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_modules.batches import Stored, batches

_FILE = Path(__file__).with_name("digits.npz")


class Images(NamedTuple):
    """A batch of images.

    ``pixels_BHW`` in [0, 1], shape (batch, 8, 8); ``label_B`` the digit.
    """

    pixels_BHW: Tensor
    label_B: Tensor


class DigitsData(L.LightningDataModule):
    """Few images to train on, and two disjoint halves of the rest to validate and to test on.

    Which image is in which split follows from ``seed`` alone, so that no run trains on what another tests on.

    Args:
        num_train: Images to train on, 1 <= num_train < 1797.
        batch_size: Images in a training batch, 1 <= batch_size <= num_train.
        seed: Seed of the split.
    """

    def __init__(self, num_train: int = 300, batch_size: int = 50, seed: int = 0) -> None:
        super().__init__()
        self.num_train = num_train
        self.batch_size = batch_size
        self.seed = seed
        self.splits: dict[str, Stored[Images]] = {}

    def setup(self, stage: str) -> None:
        if self.splits:
            return
        with np.load(_FILE) as arrays:
            pixels_BHW = torch.from_numpy(arrays["pixels"]).float().div(16.0).unflatten(1, (8, 8))
            label_B = torch.from_numpy(arrays["labels"]).long()
        order = torch.randperm(len(label_B), generator=torch.Generator().manual_seed(self.seed))
        half = (len(label_B) - self.num_train) // 2
        sizes = [self.num_train, half, len(label_B) - self.num_train - half]
        for name, index_B in zip(("train", "val", "test"), order.split(sizes), strict=True):
            self.splits[name] = Stored(Images(pixels_BHW[index_B], label_B[index_B]))

    def train_dataloader(self) -> DataLoader[Images]:
        return batches(self.splits["train"], self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Images]:
        return batches(self.splits["val"], len(self.splits["val"]))

    def test_dataloader(self) -> DataLoader[Images]:
        return batches(self.splits["test"], len(self.splits["test"]))
