"""What holds for all modules here: found by name, made again from what was saved, baked in by its name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

import lightning_modules
from lightning_modules import (
    AssociativeRecall,
    AssociativeRecallData,
    ClipDigits,
    DigitsData,
    DigitsViT,
    DistilledDigits,
    GraphWalks,
    GraphWalksData,
    GumbelDigits,
    MaxRetrieval,
    MaxRetrievalData,
    QKNormLM,
    SourceData,
    SourceLM,
    TaughtDigits,
)
from tempopt import ValueCallback

Fit = Callable[..., L.Trainer]
Validate = Callable[..., tuple[float, torch.Tensor]]

TEMPERED = [AssociativeRecall, DigitsViT, GraphWalks, MaxRetrieval, QKNormLM, SourceLM]
BEST = {
    "temperature_init": 3.0,
    "temperature_final": 0.5,
    "schedule": "cosine",
    "layer_pattern": "linear",
    "entropy_lambda": 0.01,
    "length_scaling": "log_n",
    "lr": 0.002,
}


def test_the_public_names_are_sorted_and_all_there() -> None:
    assert lightning_modules.__all__ == sorted(lightning_modules.__all__)
    for name in lightning_modules.__all__:
        assert getattr(lightning_modules, name).__name__ == name
    assert set(lightning_modules.__all__) <= set(dir(lightning_modules))


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match='no attribute "MaxRetrival"; it has .*MaxRetrieval'):
        lightning_modules.MaxRetrival  # noqa: B018


def test_importing_the_package_is_light() -> None:
    code = "import sys, lightning_modules; print('torch' in sys.modules, 'lightning' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


OF_A_LOSS = [
    (ClipDigits, DigitsData, "criterion.temperature", ["val_mrr"]),
    (DistilledDigits, TaughtDigits, "criterion.temperature", ["val_accuracy", "val_loss"]),
    (GumbelDigits, DigitsData, "sampler.temperature", ["val_nelbo"]),
]
"""Modules whose temperature is not attention's, their data, where the temperature is, and their metrics."""


@pytest.mark.parametrize(
    ("module_class", "data_class", "arguments"),
    [
        (AssociativeRecall, AssociativeRecallData, BEST),
        (DigitsViT, DigitsData, BEST),
        (GraphWalks, GraphWalksData, BEST),
        (MaxRetrieval, MaxRetrievalData, BEST),
        (QKNormLM, SourceData, BEST),
        (SourceLM, SourceData, BEST),
        *((module_class, data, {"temperature": 0.2, "lr": 0.002}) for module_class, data, *_ in OF_A_LOSS),
    ],
)
def test_a_checkpoint_makes_the_module_again(
    module_class: type[L.LightningModule],
    data_class: type[L.LightningDataModule],
    arguments: dict[str, Any],
    tmp_path: Path,
    fit: Fit,
) -> None:
    module = module_class(**arguments)
    assert dict(module.hparams).items() >= arguments.items()
    fit(module, data_class(), steps=1).save_checkpoint(tmp_path / "run.ckpt")
    loaded_module = module_class.load_from_checkpoint(tmp_path / "run.ckpt", weights_only=True)
    assert loaded_module.hparams == module.hparams
    for name, parameter in loaded_module.named_parameters():
        assert torch.equal(parameter, module.get_parameter(name))


@pytest.mark.parametrize(("module_class", "data_class", "path", "metrics"), OF_A_LOSS)
def test_the_temperature_moves_the_loss_and_no_metric(
    module_class: type[L.LightningModule],
    data_class: type[L.LightningDataModule],
    path: str,
    metrics: list[str],
    validate: Validate,
) -> None:
    L.seed_everything(0, verbose=False)
    module: Any = module_class()
    data = data_class()
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    holder, _, name = path.partition(".")
    losses: set[float] = set()
    measured: list[list[tuple[float, torch.Tensor]]] = []
    for seed, temperature in enumerate((0.1, 1.0, 8.0)):
        setattr(getattr(module, holder), name, temperature)
        torch.manual_seed(0)
        losses.add(module.training_step(batch, 0).item())
        torch.manual_seed(seed)
        measured.append([validate(module, data, metric) for metric in metrics])
    assert len(losses) == 3
    for values in measured[1:]:
        for (value, of_images), (first_value, first_of_images) in zip(values, measured[0], strict=True):
            assert value == first_value and torch.equal(of_images, first_of_images)


@pytest.mark.parametrize(("module_class", "data_class", "path", "metrics"), OF_A_LOSS)
def test_a_training_follows_its_seed_and_its_schedule(
    module_class: type[L.LightningModule],
    data_class: type[L.LightningDataModule],
    path: str,
    metrics: list[str],
    fit: Fit,
) -> None:
    def trained_weights(seed: int, *callbacks: L.Callback) -> torch.Tensor:
        L.seed_everything(seed, verbose=False)
        module = module_class()
        fit(module, data_class(), steps=12, seed=seed, callbacks=callbacks)
        return torch.cat([param.detach().flatten() for param in module.parameters()])

    plain = trained_weights(0)
    assert torch.equal(plain, trained_weights(0, ValueCallback(path, {})))
    assert not torch.equal(plain, trained_weights(1))
    schedule = {"schedule": "exponential", "temperature_final": 0.05}
    assert not torch.equal(plain, trained_weights(0, ValueCallback(path, schedule)))


@pytest.mark.parametrize(("module_class", "metric"), [(ClipDigits, "mrr"), (GumbelDigits, "nelbo")])
def test_testing_logs_the_metric_of_the_test_split(
    module_class: type[L.LightningModule], metric: str
) -> None:
    trainer = L.Trainer(logger=False, enable_progress_bar=False, accelerator="cpu")
    (logged,) = trainer.test(module_class(), datamodule=DigitsData(), verbose=False)
    assert list(logged) == [f"test_{metric}"] and logged[f"test_{metric}"] > 0.0
