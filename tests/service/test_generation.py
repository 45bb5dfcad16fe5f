"""A language model is trained once; a study finds how it is best evaluated, by a real worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

import tempopt
from lightning_modules import GraphWalks, GraphWalksData

# The machine that the tests run on may have a GPU.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
QUIET: dict[str, Any] = dict(
    logger=False, enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False
)
DATA: dict[str, Any] = {"num_graphs": 128}


@pytest.fixture
def trained_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of a model that was trained at τ = 1, in the folder that is worked in."""
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        trainer = L.Trainer(
            max_steps=150, limit_val_batches=0, gradient_clip_val=1.0, accelerator="cpu", **QUIET
        )
        trainer.fit(GraphWalks(), GraphWalksData())
    trainer.save_checkpoint(tmp_path / "trained.ckpt")
    return tmp_path / "trained.ckpt"


SPEC = {
    "study": {"name": "walks", "metric": "val_pass_at_4", "direction": "maximize"},
    "model": {"class_path": "lightning_modules.GraphWalks"},
    "data": {"class_path": "lightning_modules.GraphWalksData", "init_args": DATA},
    "trainer": {"accelerator": "cpu"},
    "search": {
        "temperature_init": {"low": 0.25, "high": 2.0},
        "sampling_temperature": {"low": 0.125, "high": 0.9},
        "top_k_tokens": [2, 4],
    },
}


def value(weights: Path, params: dict[str, Any]) -> float:
    """Return what a plain Trainer validates of the checkpoint with these parameters."""
    module = GraphWalks(**params)
    module.load_state_dict(torch.load(weights, weights_only=True)["state_dict"])
    (logged_metrics,) = L.Trainer(accelerator="cpu", **QUIET).validate(
        module, GraphWalksData(**DATA), verbose=False
    )
    return float(logged_metrics["val_pass_at_4"])


def test_generation_and_attention_of_a_trained_model_are_tuned_and_their_gains_told_apart(
    trained_checkpoint: Path,
) -> None:
    result = tempopt.evaluate(SPEC, trained_checkpoint, trials=13)
    assert result.trials == 13 and result.on == "test" and not result.is_reference
    # what anybody gets of the checkpoint
    assert value(trained_checkpoint, {}) == pytest.approx(result.chosen_reference)
    assert value(trained_checkpoint, result.params) == pytest.approx(result.chosen_value)
    assert result.is_shown
    assert result.generation is not None and result.temperature is not None
    assert result.generation.gain + result.temperature.gain == pytest.approx(result.gain.gain)
    assert any("its generation alone" in line for line in result.lines())
    # evaluated once, it is known
    second_result = tempopt.evaluate(SPEC, trained_checkpoint, trials=13)
    assert second_result.to_json() == result.to_json()
