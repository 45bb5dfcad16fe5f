"""Planted answers: scale a trained model's logits, and the best temperature moves by the same factor."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import lightning as L
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch.nn import functional as F

from tempopt.results.study_result import Best
from tempopt.study.api import search

HERE = Path(__file__).parent
FACTORS = (0.25, 0.5, 2.0, 4.0)
RANGE = {"low": 0.1, "high": 10.0}
# Over ten study seeds and three factors, with so many trials of the default sampler the worst temperature was
# 0.5 % off.
TRIALS = 80

Find = Callable[[str, str, float], Best]

# The machine that the tests run on may have one.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:GPU available but not used:UserWarning")]


def _train(path: Path) -> None:
    """Write the checkpoint of a small model, calibrated by temperature scaling (Guo et al. 2017)."""
    from planted_modules import Planted, PlantedData

    torch.manual_seed(0)
    module, data = Planted(), PlantedData()
    trainer = L.Trainer(
        max_steps=200,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    trainer.fit(module, datamodule=data)
    with torch.no_grad():
        *given, label_B = next(iter(data.val_dataloader()))
        logits_BC = module(*given).double()
        scaling = minimize_scalar(
            lambda temperature: F.cross_entropy(logits_BC / temperature, label_B).item(),
            bounds=(0.05, 20.0),
            method="bounded",
        )
        for parameter in module.classify.parameters():
            parameter.div_(scaling.x)
    trainer.save_checkpoint(path)


@pytest.fixture(scope="module")
def find(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Find]:
    """Return a search for the best value of a parameter after a layer was scaled by a factor."""
    folder = tmp_path_factory.mktemp("planted")
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng(devices=[]):
        patch.syspath_prepend(str(HERE))
        patch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{HERE.parents[1]}")
        _train(folder / "trained.ckpt")

        def search_planted(parameter: str, layer: str, factor: float) -> Best:
            planted = folder / f"{layer}-{factor}.ckpt"
            content = torch.load(folder / "trained.ckpt", weights_only=True)
            for name in (f"{layer}.weight", f"{layer}.bias"):
                content["state_dict"][name] *= factor
            torch.save(content, planted)
            spec = {
                "study": {
                    "name": f"{parameter}-{factor}",
                    "metric": "val_loss",
                    "direction": "minimize",
                    "trials": TRIALS,
                    "evaluate_only": str(planted),
                },
                "model": {"class_path": "planted_modules.Planted"},
                "data": {"class_path": "planted_modules.PlantedData"},
                "trainer": {"accelerator": "cpu"},
                "search": {parameter: RANGE},
            }
            result = search(
                spec, storage=f"sqlite:///{folder / 'tempopt.db'}", checkpoints=folder / "runs", workers=1
            )
            assert result.trials["complete"] == TRIALS
            assert result.best is not None
            return result.best

        yield search_planted
        sys.modules.pop("planted_modules", None)


def test_the_best_temperature_moves_by_the_factor_that_the_queries_of_a_frozen_model_were_scaled_by(
    find: Find,
) -> None:
    unscaled = find("temperature_init", "q_proj", 1.0)
    for factor in FACTORS:
        scaled = find("temperature_init", "q_proj", factor)
        assert scaled.params["temperature_init"] == pytest.approx(
            factor * unscaled.params["temperature_init"], rel=0.02
        )
        # at its own best temperature the scaled model is the unscaled one
        assert scaled.value == pytest.approx(unscaled.value, rel=1e-3)


def test_the_best_output_temperature_of_a_calibrated_classifier_is_the_factor_that_its_logits_were_scaled_by(
    find: Find,
) -> None:
    calibrated = find("output_temperature", "classify", 1.0)
    assert calibrated.params["output_temperature"] == pytest.approx(1.0, rel=0.02)
    for factor in FACTORS:
        scaled = find("output_temperature", "classify", factor)
        assert scaled.params["output_temperature"] == pytest.approx(
            factor * calibrated.params["output_temperature"], rel=0.02
        )
        assert scaled.value == pytest.approx(calibrated.value, rel=1e-3)
