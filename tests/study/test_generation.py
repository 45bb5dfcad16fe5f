"""A language model is trained once; a study searches how it is evaluated, by real workers to the export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import yaml

import tempopt
from lightning_modules import GraphWalks, GraphWalksData
from tempopt.cli import main
from tempopt.results.export import to_yaml
from tempopt.results.verdict_text import verdict_lines

# The machine that the tests run on may have a GPU.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
QUIET: dict[str, Any] = dict(
    logger=False, enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False
)
DATA: dict[str, Any] = {"num_graphs": 128}


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def spec(weights: Path) -> dict[str, Any]:
    return {
        "study": {
            "name": "walks",
            "metric": "val_pass_at_4",
            "direction": "maximize",
            "trials": 10,
            "evaluate_only": str(weights),
        },
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
    (logged,) = L.Trainer(accelerator="cpu", **QUIET).validate(module, GraphWalksData(**DATA), verbose=False)
    return float(logged["val_pass_at_4"])


def test_a_trained_model_has_its_generation_and_its_attention_searched_and_said_apart(trained: Path) -> None:
    result = tempopt.search(spec(trained), workers=1)
    found = result.evaluated
    assert found is not None and found.apart is not None and found.on == "test" and not found.at_one
    # each evaluation is what anybody gets of the checkpoint
    neutral, *others = found.curve
    assert neutral.params == {
        "temperature_init": 1.0,
        "sampling_temperature": 1.0,
        "top_k_tokens": 0,
    }
    for point in (neutral, others[0], max(others, key=lambda each: each.value)):
        assert value(trained, point.params) == pytest.approx(point.value)
    # five more at τ = 1, and ten anywhere
    assert found.tried == 1 + 5 + 10
    assert found.apart.generation.params["temperature_init"] == 1.0
    assert found.apart.generation.gain + found.apart.temperature.gain == pytest.approx(found.gain)
    assert found.apart.generation.interval is not None and found.apart.generation.interval.low > 0
    assert any("generation alone, the best at τ = 1" in line for line in verdict_lines(result))
    exported = yaml.safe_load(to_yaml(result))
    arguments = exported["model"]["init_args"]
    assert {name: arguments[name] for name in found.params} == found.params
    assert main(["report", "walks"]) == 0
