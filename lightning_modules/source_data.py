"""The source files of the running Python's standard library as bytes: real text that every user has.

Which files are read follows from their names, so another version of Python has other text; what a study
compares ran on one interpreter, or on several of one version.

Shapes: B windows, N bytes.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_modules.batches import Drawn, Stored, batches

SPLITS = ("train", "train", "train", "train", "train", "train", "train", "train", "val", "test")
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
# Bytes that validation sees at once: larger batches take no less time per byte.
BYTES_AT_ONCE = 8192


class Windows(NamedTuple):
    """A batch of windows into text.

    ``bytes_BN`` are numbers from 0 to 255; ``masked_BN`` is True where a masked language model shall not see
    the byte and has to guess it. A causal one has no use for it.
    """

    bytes_BN: Tensor
    masked_BN: Tensor


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=8).digest()


def _python_files(root: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name not in LEFT_OUT]
        yield from ((Path(folder) / name).relative_to(root) for name in files if name.endswith(".py"))


def read_sources(root: Path, *, max_bytes: int) -> dict[str, Tensor]:
    """Read Python files and split them into training, validation and test text, file by file.

    Files are taken in the order of a hash of their names until there is enough of each split; the hash also
    says which split a file belongs to, so that neither order nor split depends on the file system.

    Args:
        root: Folder with the files; those of installed packages and of tests below it are left out.
        max_bytes: Bytes of text in all, at most; a tenth of it is for validation, a tenth for testing.

    Returns:
        One tensor of bytes, dtype uint8, for each of ``train``, ``val`` and ``test``.

    Raises:
        FileNotFoundError: There is not enough text below ``root``.
    """
    names = list(_python_files(root))
    room = {split: max_bytes * SPLITS.count(split) // len(SPLITS) for split in ("train", "val", "test")}
    texts: dict[str, list[bytes]] = {split: [] for split in room}
    for name in sorted(names, key=lambda name: _digest(name.as_posix())):
        split = SPLITS[_digest(name.as_posix())[-1] % len(SPLITS)]
        if room[split] > 0:
            text = (root / name).read_bytes()[: room[split]]
            texts[split].append(text)
            room[split] -= len(text)
    if not all(texts.values()):
        raise FileNotFoundError(
            f"{root} holds {len(names)} Python files, which is not enough to train, validate and test on. "
            "Give data.root a folder with Python source files."
        )
    joined = {split: bytearray(b"".join(parts)) for split, parts in texts.items()}
    return {split: torch.frombuffer(text, dtype=torch.uint8) for split, text in joined.items()}


def draw_windows(
    num_windows: int,
    text: Tensor,
    *,
    length: int,
    masked_fraction: float,
    generator: torch.Generator | None = None,
) -> Windows:
    """Draw windows from anywhere in a text.

    Args:
        num_windows: Windows in the batch, >= 1.
        text: Bytes, dtype uint8.
        length: Bytes of a window, 1 <= length <= len(text).
        masked_fraction: Probability that a byte is masked, in (0, 1).
        generator: What to draw from; None for torch's global generator.
    """
    start_B1 = torch.randint(len(text) - length + 1, (num_windows, 1), generator=generator)
    bytes_BN = text[start_B1 + torch.arange(length)].long()
    masked_BN = torch.rand(num_windows, length, generator=generator) < masked_fraction
    return Windows(bytes_BN, masked_BN)


class SourceData(L.LightningDataModule):
    """Windows into source text: short ones to train on, longer ones from other files to validate and test on.

    Training windows follow torch's global generator. Validation windows follow ``seed`` and are the same in
    all runs. Test windows lie in files of their own, at places that follow the seed that the global generator
    was last given.

    Args:
        length: Bytes of a training window, >= 1.
        batch_size: Windows in a training batch, >= 1.
        epoch_batches: Training batches that are counted as an epoch, >= 1.
        lengths: Bytes of the windows to validate and test on.
        num_bytes: For each of ``lengths``, how many bytes of windows to validate and test on.
        masked_fraction: Probability that a byte is masked, in (0, 1).
        root: Folder with Python files; None for the standard library of the running interpreter.
        max_bytes: Bytes of text to read, at most.
        seed: Seed of the validation windows.
        num_workers: Processes that draw training windows.

    Raises:
        FileNotFoundError: In ``setup``: there is not enough text below ``root``.
    """

    def __init__(
        self,
        length: int = 64,
        batch_size: int = 32,
        epoch_batches: int = 500,
        lengths: Sequence[int] = (64, 128, 256, 512, 1024),
        num_bytes: int = 16_384,
        masked_fraction: float = 0.15,
        root: str | None = None,
        max_bytes: int = 4_000_000,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        self.draw = partial(draw_windows, masked_fraction=masked_fraction)
        self.length = length
        self.batch_size = batch_size
        self.epoch_batches = epoch_batches
        self.lengths = tuple(lengths)
        self.num_bytes = num_bytes
        self.root = Path(root or sysconfig.get_path("stdlib"))
        self.max_bytes = max_bytes
        self.seed = seed
        self.num_workers = num_workers
        self.texts: dict[str, Tensor] = {}

    def setup(self, stage: str) -> None:
        if not self.texts:
            self.texts = read_sources(self.root, max_bytes=self.max_bytes)
            self.validation = self._evaluation("val", self.seed)

    def _evaluation(self, split: str, seed: int) -> list[DataLoader[Windows]]:
        generator = torch.Generator().manual_seed(seed)
        loaders = []
        for length in self.lengths:
            num_windows = max(1, self.num_bytes // length)
            windows = self.draw(num_windows, self.texts[split], length=length, generator=generator)
            loaders.append(batches(Stored(windows), max(1, BYTES_AT_ONCE // length)))
        return loaders

    def train_dataloader(self) -> DataLoader[Windows]:
        draw = partial(self.draw, text=self.texts["train"], length=self.length)
        epoch = Drawn(draw, self.batch_size * self.epoch_batches)
        return batches(epoch, self.batch_size, num_workers=self.num_workers)

    def val_dataloader(self) -> list[DataLoader[Windows]]:
        return self.validation

    def test_dataloader(self) -> list[DataLoader[Windows]]:
        return self._evaluation("test", torch.initial_seed())
