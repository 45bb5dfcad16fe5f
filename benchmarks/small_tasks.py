"""The tasks of small_training.py: what is trained there, at full size and as its proxy.

Each is a bundled study in small: with fewer steps, less data or a smaller model. Shapes: K optimizer steps.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import lightning as L
import torch

from benchmarks.simulated.answers import Space
from lightning_modules import ClipDigits, DigitsData, MaxRetrieval, MaxRetrievalData, QKNormLM, SourceData
from tempopt.seeds import derive
from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.training.callbacks import seed_generators

_STUDIES = Path(__file__).parents[1] / "studies"
Batches = Iterable[Iterable[Any]]
"""Batches by data loader."""


class Task(ABC):
    """A training, with what a plain loop needs of it.

    Attributes:
        name: Name of the bundled study.
        total: Optimizer steps of a training.
        every: Steps between two validations.
        space: Which temperatures are searched.
        plain: The temperature of the baseline.
        constants: Temperatures that are tried as constants.
        lr: Peak learning rate.
        settings: What differs from the bundled study, as in ``--set``.
        proxy: What is written over the spec for the proxy.
    """

    name: str
    total: int
    every: int
    space: Space
    plain: float
    constants: tuple[float, ...]
    lr: float
    settings: tuple[str, ...] = ()
    proxy: Mapping[str, Any]

    @functools.cached_property
    def spec(self) -> StudySpec:
        """The bundled study with the small training."""
        return self.spec_with({})

    def spec_with(self, more: Mapping[str, Any]) -> StudySpec:
        """Return the bundled study with the small training, and with more written over it."""
        own = {"trainer.max_steps": self.total, "trainer.val_check_interval": self.every, **more}
        settings = [*self.settings, *(f"{path}={value}" for path, value in own.items())]
        return load_spec(_STUDIES / f"{self.name}.yaml", settings)

    @property
    def sign(self) -> float:
        """1 if more of the metric is better, −1 if less is."""
        return 1.0 if self.spec.study.direction == "maximize" else -1.0

    @functools.cached_property
    def rungs(self) -> tuple[int, ...]:
        """Steps after which there is a validation."""
        return tuple(range(self.every, self.total + 1, self.every))

    def data_of(self, kind: type[L.LightningDataModule], small: bool) -> Any:
        """Return the data module of the study, or of its proxy."""
        given = dict((self.spec.program().data or {})["init_args"])
        if small:
            given |= {
                key.removeprefix("data."): each for key, each in self.proxy.items() if key.startswith("data.")
            }
        data = kind(**given)
        data.setup("fit")
        return data

    @abstractmethod
    def module(self, small: bool) -> L.LightningModule:
        """Return a new module, at full size or as the proxy."""

    @abstractmethod
    def batch(self, seed: int, step: int, small: bool) -> Any:
        """Return the batch of a step of a seed's training."""

    @abstractmethod
    def temper(self, module: Any, tau: float) -> None:
        """Set the temperature."""

    @abstractmethod
    def validation(self, small: bool) -> Batches:
        """Return what is validated on, the same for all seeds."""

    @abstractmethod
    def test(self, seed: int, small: bool) -> Batches:
        """Return what is tested on."""

    @abstractmethod
    def computed(self, module: Any) -> float:
        """Return the metric of what was validated since it was last asked, and forget it."""


class Retrieval(Task):
    """max_retrieval with the temperature of attention; its proxy has a quarter of the width."""

    name = "max_retrieval"
    total, every = 100, 20
    space = Space()
    plain = 1.0
    constants = (0.25, 0.5, 2**-0.5, 1.0, 2**0.5, 2.0)
    lr = 0.01
    settings = ("data.sizes=[64, 128]", "data.num_sets=[256, 128]", "model.d_model=32")
    proxy: ClassVar = {"model.d_model": 8}

    def module(self, small: bool) -> MaxRetrieval:
        return MaxRetrieval(d_model=8 if small else 32, lr=self.lr, weight_decay=0.05)

    @functools.cached_property
    def _data(self) -> MaxRetrievalData:
        data: MaxRetrievalData = self.data_of(MaxRetrievalData, False)
        return data

    def batch(self, seed: int, step: int, small: bool) -> Any:
        seed_generators(seed, "items", 0, step)
        return self._data.draw(self._data.batch_size)

    def temper(self, module: Any, tau: float) -> None:
        module.set_temperatures((tau,))

    def validation(self, small: bool) -> Batches:
        return self._data.val_dataloader()

    def test(self, seed: int, small: bool) -> Batches:
        return self._data._evaluation(derive(seed, "test"))

    def computed(self, module: Any) -> float:
        accuracy = module.accuracy.compute()
        return float(torch.stack([each for size, each in accuracy.items() if size != "id"]).mean())


class Contrast(Task):
    """clip_digits with the temperature of its contrastive loss; its proxy has a quarter of the batch."""

    name = "clip_digits"
    total, every = 300, 60
    space = Space(prefix="contrast.", low=0.02, high=1.0, starts=(0.125, 0.25, 0.5))
    plain = 0.5
    constants = (0.03125, 0.0625, 0.125, 0.25, 0.5, 1.0)
    lr = 4e-3
    proxy: ClassVar = {"data.batch_size": 50}

    def module(self, small: bool) -> ClipDigits:
        return ClipDigits(lr=self.lr, weight_decay=0.05)

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def _data(self, small: bool) -> DigitsData:
        data: DigitsData = self.data_of(DigitsData, small)
        return data

    @functools.lru_cache(maxsize=1024)  # noqa: B019
    def _order(self, seed: int, epoch: int, small: bool) -> Sequence[list[int]]:
        seed_generators(seed, "order", epoch)
        return list(self._data(small).train_dataloader().batch_sampler)  # type: ignore[arg-type]

    def batch(self, seed: int, step: int, small: bool) -> Any:
        data = self._data(small)
        epoch, number = divmod(step, data.num_train // data.batch_size)
        return data.splits["train"].__getitems__(self._order(seed, epoch, small)[number])

    def temper(self, module: Any, tau: float) -> None:
        module.criterion.temperature = tau

    def validation(self, small: bool) -> Batches:
        return [self._data(small).val_dataloader()]

    def test(self, seed: int, small: bool) -> Batches:
        return [self._data(small).test_dataloader()]

    def computed(self, module: Any) -> float:
        found = float(module.val_mrr.compute())
        module.val_mrr.reset()
        return found


class Language(Task):
    """qk_norm_lm, whose metric is a loss, with one layer; its proxy has a quarter of the length."""

    name = "qk_norm_lm"
    total, every = 100, 20
    space = Space()
    plain = 1.0
    constants = (0.25, 0.5, 2**-0.5, 1.0, 2**0.5, 2.0)
    lr = 8e-3
    settings = (
        "model.num_layers=1",
        "data.length=64",
        "data.lengths=[64]",
        "data.batch_size=8",
        "data.num_bytes=16384",
    )
    proxy: ClassVar = {"data.length": 16, "data.lengths": [16]}

    def module(self, small: bool) -> QKNormLM:
        return QKNormLM(num_layers=1, lr=self.lr, weight_decay=0.05)

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def _data(self, small: bool) -> SourceData:
        data: SourceData = self.data_of(SourceData, small)
        return data

    def batch(self, seed: int, step: int, small: bool) -> Any:
        seed_generators(seed, "items", 0, step)
        data = self._data(small)
        return data.draw(data.batch_size, data.texts["train"], length=data.length)

    def temper(self, module: Any, tau: float) -> None:
        module.set_temperatures((tau,))

    def validation(self, small: bool) -> Batches:
        return self._data(small).val_dataloader()

    def test(self, seed: int, small: bool) -> Batches:
        return self._data(small)._evaluation("test", derive(seed, "test"))

    def computed(self, module: Any) -> float:
        # the accuracy begins anew as well
        module.accuracy.compute()
        return float(torch.stack(list(module.bits.compute().values())).mean())


TASKS: dict[str, Task] = {task.name: task for task in (Retrieval(), Contrast(), Language())}
