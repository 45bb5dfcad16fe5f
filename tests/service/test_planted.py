"""Planted answers: scale what a temperature divides, and the best temperature moves by the same factor."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch.nn import functional as F

import tempopt
from tempopt import EvaluationResult
from tempopt.api.calls import search
from tempopt.report.study_result import StudyResult

SERVICE_TESTS = Path(__file__).parent
FACTORS = (0.25, 0.5, 2.0, 4.0)
RANGE = {"low": 0.1, "high": 10.0}
# Over ten study seeds and three factors, with so many trials of the default sampler the worst temperature was
# 0.5 % off.
TRIALS = 80
DIVISORS = (4.0, 1 / 3)
"""By what a loss divides its temperature, whose best value is then as many times what it was."""
CONSTANTS = 30

Find = Callable[[str, str, float], EvaluationResult]

# The machine that the tests run on may have one.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:GPU available but not used:UserWarning")]


def _train(path: Path) -> None:
    """Write the checkpoint of a small model, calibrated by temperature scaling (Guo et al. 2017)."""
    from planted_modules import PlantedData, PlantedModule

    torch.manual_seed(0)
    module, data = PlantedModule(), PlantedData()
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
        *inputs, label_B = next(iter(data.val_dataloader()))
        logits_BC = module(*inputs).double()
        scaling = minimize_scalar(
            lambda temperature: F.cross_entropy(logits_BC / temperature, label_B).item(),
            bounds=(0.05, 20.0),
            method="bounded",
        )
        for parameter in module.classify.parameters():
            parameter.div_(scaling.x)
    trainer.save_checkpoint(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, from which workers find the modules of these tests."""
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng(devices=[]):
        patch.syspath_prepend(str(SERVICE_TESTS))
        patch.setenv("PYTHONPATH", f"{SERVICE_TESTS}{os.pathsep}{SERVICE_TESTS.parents[1]}")
        yield tmp_path_factory.mktemp("planted")
        sys.modules.pop("planted_modules", None)


@pytest.fixture(scope="module")
def find(folder: Path) -> Find:
    """Return a search for the best value of a parameter after a layer was scaled by a factor."""
    _train(folder / "trained.ckpt")

    def search_planted(parameter: str, layer: str, factor: float) -> EvaluationResult:
        checkpoint_path = folder / f"{layer}-{factor}.ckpt"
        content = torch.load(folder / "trained.ckpt", weights_only=True)
        for name in (f"{layer}.weight", f"{layer}.bias"):
            content["state_dict"][name] *= factor
        torch.save(content, checkpoint_path)
        spec = {
            "study": {
                "name": f"{parameter}-{factor}",
                "metric": "val_loss",
                "direction": "minimize",
                "trials": TRIALS,
            },
            "model": {"class_path": "planted_modules.PlantedModule"},
            "data": {"class_path": "planted_modules.PlantedData"},
            "trainer": {"accelerator": "cpu"},
            "search": {parameter: RANGE},
        }
        return tempopt.evaluate(spec, checkpoint_path, storage=f"sqlite:///{folder / 'tempopt.db'}")

    return search_planted


def _run_search(folder: Path, spec: dict[str, Any]) -> StudyResult:
    return search(spec, storage=f"sqlite:///{folder / 'tempopt.db'}", checkpoints=folder / "runs", workers=1)


def _best_constant(folder: Path, transform: str, divisor: float) -> float:
    """Return the constant temperature that wins a whole study of trainings of a student."""
    from planted_modules import NUM_STEPS

    spec = {
        "study": {
            "name": f"{transform}-{divisor:.3g}",
            "metric": "val_error",
            "direction": "minimize",
            "trials": CONSTANTS,
            "arms": {"constant": 10},
            "seeds": {"choose": 2, "confirm": 2},
            "learned": False,
        },
        "model": {
            "class_path": "planted_modules.Student",
            "init_args": {"transform": transform, "divisor": divisor},
        },
        "data": {"class_path": "planted_modules.Teaching"},
        "trainer": {"max_steps": NUM_STEPS, "accelerator": "cpu"},
        "temperatures": {"loss": {"value": "stored_tau", "transform": transform}},
        "search": {"loss.temperature_init": {"low": 0.02, "high": 10.0}},
    }
    verdict = _run_search(folder, spec).verdict
    assert verdict is not None
    assert verdict.params["loss.as_found"] == pytest.approx(1.0)
    return float(verdict.params["loss.temperature_init"])


def test_the_best_temperature_moves_by_the_factor_that_the_queries_of_a_frozen_model_were_scaled_by(
    find: Find,
) -> None:
    unscaled = find("temperature_init", "q_proj", 1.0)
    for factor in FACTORS:
        scaled_result = find("temperature_init", "q_proj", factor)
        assert scaled_result.params["temperature_init"] == pytest.approx(
            factor * unscaled.params["temperature_init"], rel=0.1
        )
        # at its own best temperature the scaled model is the unscaled one
        assert scaled_result.chosen_value == pytest.approx(unscaled.chosen_value, rel=5e-3)


def test_the_best_output_temperature_of_a_calibrated_classifier_is_the_factor_that_its_logits_were_scaled_by(
    find: Find,
) -> None:
    calibrated = find("output_temperature", "classify", 1.0)
    # The best set may be the spec as it stands, which does not name the parameter.
    best = calibrated.params.get("output_temperature", 1.0)
    assert best == pytest.approx(1.0, rel=0.1)
    for factor in FACTORS:
        scaled_result = find("output_temperature", "classify", factor)
        assert scaled_result.params["output_temperature"] == pytest.approx(factor * best, rel=0.1)
        assert scaled_result.chosen_value == pytest.approx(calibrated.chosen_value, rel=5e-3)


@pytest.mark.parametrize(
    "transform",
    [
        *(pytest.param(transform, marks=pytest.mark.nightly) for transform in ("identity", "inverse")),
        "log_inverse",
    ],
)
def test_the_best_constant_of_a_loss_moves_by_what_its_module_divides_the_temperature_by(
    folder: Path, transform: str
) -> None:
    from planted_modules import TOO_SURE

    plain = _best_constant(folder, transform, 1.0)
    assert plain == pytest.approx(TOO_SURE, rel=0.05)
    for divisor in DIVISORS:
        best_constant = _best_constant(folder, transform, divisor)
        assert best_constant == pytest.approx(divisor * plain, rel=0.05)
