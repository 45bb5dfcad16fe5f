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
    DigitsData,
    DigitsViT,
    GraphWalks,
    GraphWalksData,
    MaxRetrieval,
    MaxRetrievalData,
    QKNormLM,
    SourceData,
    SourceLM,
    StockDigits,
)
from tempopt import TemperedModule
from tempopt.attention.attach.query_rows import query_rows
from tempopt.spec.program import Program
from tempopt.training.messages import Evaluation, RunRequest
from tempopt.training.run import Run

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


@pytest.mark.parametrize("module_class", TEMPERED)
def test_the_saved_hyperparameters_make_the_module_again(module_class: type[TemperedModule]) -> None:
    arguments: dict[str, Any] = dict(BEST)
    module = module_class(**arguments)
    saved = dict(module.hparams)
    assert saved.items() >= arguments.items()
    loaded_module = module_class(**saved)
    assert loaded_module.hparams == module.hparams
    assert loaded_module.plan == module.plan


@pytest.mark.parametrize(
    ("module_class", "data_class"),
    [
        (AssociativeRecall, AssociativeRecallData),
        (DigitsViT, DigitsData),
        (GraphWalks, GraphWalksData),
        (MaxRetrieval, MaxRetrievalData),
        (QKNormLM, SourceData),
        (SourceLM, SourceData),
    ],
)
def test_a_checkpoint_makes_the_module_again(
    module_class: type[TemperedModule], data_class: type[L.LightningDataModule], tmp_path: Path, fit: Fit
) -> None:
    arguments: dict[str, Any] = dict(BEST)
    module = module_class(**arguments)
    trainer = fit(module, data_class(), steps=1)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    loaded_module = module_class.load_from_checkpoint(tmp_path / "run.ckpt", weights_only=True)
    assert loaded_module.hparams == module.hparams
    for name, parameter in loaded_module.named_parameters():
        assert torch.equal(parameter, module.get_parameter(name))


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


@pytest.mark.parametrize(
    ("name", "data", "metric", "number_as_found"),
    [
        ("ClipDigits", "DigitsData", "val_mrr", 0.5),
        ("DistilledDigits", "TaughtDigits", "val_loss", 4.0),
        ("GumbelDigits", "DigitsData", "val_nelbo", 1.0),
    ],
)
def test_a_worker_trains_a_module_whose_temperature_is_not_of_attention(
    name: str, data: str, metric: str, number_as_found: float, listener: Any
) -> None:
    program = Program(
        model={"class_path": f"lightning_modules.{name}"},
        data={"class_path": f"lightning_modules.{data}"},
        trainer={"max_steps": 4, "accelerator": "cpu"},
        attach=None,
        metric=metric,
        validate_at="final",
        data_seed=0,
        weights=None,
        compile=None,
        compared=True,
    )

    def measure(temperature: float) -> dict[str, Any]:
        request = RunRequest(
            ticket=1,
            attempt=1,
            program=program,
            parameters={"temperature": temperature},
            seed=0,
            evaluations=[Evaluation(name="test", on="test")],
        )
        finished = Run(request, listener()).execute()
        assert (finished.state, finished.step) == ("complete", 4)
        return finished.measurements

    measurements = measure(number_as_found)
    assert set(measurements) == {"validate", "test"}
    assert measure(number_as_found) == measurements
    assert measure(number_as_found / 10)["validate"] != measurements["validate"]
