"""What do attention's temperature and the parameters of generation gain of trained models, apart?

Trains small models that walk through graphs, one for each seed, and searches how each is evaluated:
attention's temperature, and how tokens are drawn. The metric is pass@4 on graphs that are larger than in
training; the gains are estimated on test graphs that chose nothing.

    python -m benchmarks.generation
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L

import tempopt
from lightning_modules import GraphWalks, GraphWalksData

STEPS = 150
SEARCH: dict[str, Any] = {
    "temperature_init": {"low": 0.125, "high": 2.0},
    "sampling_temperature": {"low": 0.125, "high": 2.0},
    "top_k_tokens": [0, 2, 4],
    "top_p": {"low": 0.5, "high": 1.0},
    "min_p": {"low": 0.0, "high": 0.5},
}


def train(path: Path, seed: int) -> None:
    """Write the checkpoint of a model that was trained at τ = 1."""
    L.seed_everything(seed, verbose=False)
    trainer = L.Trainer(
        max_steps=STEPS,
        limit_val_batches=0,
        gradient_clip_val=1.0,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(GraphWalks(), GraphWalksData())
    trainer.save_checkpoint(path)


def spec(name: str, trials: int) -> dict[str, Any]:
    """Return the study of how a trained model is evaluated."""
    return {
        "study": {
            "name": name,
            "metric": "val_pass_at_4",
            "direction": "maximize",
            "trials": trials,
        },
        "model": {"class_path": "lightning_modules.GraphWalks"},
        "data": {"class_path": "lightning_modules.GraphWalksData", "init_args": {"num_graphs": 256}},
        "trainer": {"accelerator": "cpu"},
        "search": SEARCH,
    }


def main() -> None:
    """Print the verdict on each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=40)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.seeds):
            start_time = time.monotonic()
            weights = Path(folder) / f"{seed}.ckpt"
            train(weights, seed)
            result = tempopt.evaluate(
                spec(f"seed-{seed}", args.trials), weights, storage=f"sqlite:///{folder}/studies.db"
            )
            print(
                f"seed {seed}, {time.monotonic() - start_time:.0f} s", *result.lines(), sep="\n", flush=True
            )


if __name__ == "__main__":
    main()
