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
    StockDigits,
    TaughtDigits,
)
from tempopt import ValueCallback
from tempopt.attention.attach.query_rows import query_rows

Fit = Callable[..., L.Trainer]

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
    (ClipDigits, DigitsData, "criterion.temperature"),
    (DistilledDigits, TaughtDigits, "criterion.temperature"),
    (GumbelDigits, DigitsData, "sampler.temperature"),
]
"""Modules whose temperature is not attention's, their data and where the temperature is."""


@pytest.mark.parametrize(
    ("module_class", "data_class", "arguments"),
    [
        (AssociativeRecall, AssociativeRecallData, BEST),
        (DigitsViT, DigitsData, BEST),
        (GraphWalks, GraphWalksData, BEST),
        (MaxRetrieval, MaxRetrievalData, BEST),
        (QKNormLM, SourceData, BEST),
        (SourceLM, SourceData, BEST),
        *((module_class, data, {"temperature": 0.2, "lr": 0.002}) for module_class, data, _ in OF_A_LOSS),
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


@pytest.mark.parametrize(("module_class", "data_class", "path"), OF_A_LOSS)
def test_a_training_follows_its_seed_and_its_schedule(
    module_class: type[L.LightningModule], data_class: type[L.LightningDataModule], path: str, fit: Fit
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


# behind QK-norm a temperature that is baked in is undone, though there are rows
@pytest.mark.parametrize(
    "module_class",
    [*(module_class for module_class in TEMPERED if module_class is not QKNormLM), StockDigits],
)
def test_every_layer_has_query_rows_that_a_temperature_can_be_baked_into(
    module_class: type[L.LightningModule],
) -> None:
    module = module_class()
    assert len(query_rows(module)) == module.hparams.get("num_layers", 1)
