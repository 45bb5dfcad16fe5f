"""Attention-O against Attention-E by length: studies/length_extrapolation.yaml trained on paired seeds.

Su 2021 ("entropy invariance", kexue.fm/archives/8823) trained masked language models on 64 tokens and read
longer texts: attention scaled by ln n / ln n0 (E) lost less than attention as it is (O). Here both train
with the same seeds, and the accuracy at each length is printed beside the article's numbers, whichever way
it comes out. The article's models, text and number of seeds are others: only the pattern can be compared.
"""

from __future__ import annotations

import argparse
import copy
import logging
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
import yaml
from scipy import stats

from lightning_modules import SourceData, SourceLM

SPEC = Path(__file__).parents[1] / "studies" / "length_extrapolation.yaml"
ARMS = {"O": "none", "E": "log_n"}
ARTICLE = {
    "O": {64: 43.27, 128: 36.53, 256: 23.02, 512: 15.12, 1024: 11.54},
    "E": {64: 43.11, 128: 41.17, 256: 34.04, 512: 20.15, 1024: 13.58},
}


def accuracies(spec: dict[str, Any], scaling: str, seed: int) -> dict[int, float]:
    """Return the validation accuracy in percent, by length, of one training."""
    L.seed_everything(seed, verbose=False)
    data = SourceData(**spec["data"].get("init_args", {}))
    module = SourceLM(**spec["model"]["init_args"], length_scaling=scaling)
    trainer = L.Trainer(
        **spec["trainer"],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return {length: 100 * metrics[f"val_accuracy_{length}"] for length in data.lengths}


def compare_cells(arm_values: Any, other_values: Any) -> list[str]:
    """Return the paired gain with its 95 % interval, and the p-value of Student's test."""
    if (arm_values == other_values).all():
        return ["the same to the bit", ""]
    paired_test = stats.ttest_rel(arm_values, other_values)
    low, high = paired_test.confidence_interval()
    return [
        f"{(arm_values - other_values).mean():+.2f} ({low:+.2f} to {high:+.2f})",
        f"{paired_test.pvalue:.2g}",
    ]


def main() -> None:
    """Train all pairs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, help="of training; default: as the study says")
    arguments = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="The '.*_dataloader' does not have many workers")
    torch.set_num_threads(1)
    spec = yaml.safe_load(SPEC.read_text(encoding="utf-8"))
    if arguments.steps is not None:
        spec["trainer"]["max_steps"] = arguments.steps
        spec["trainer"]["val_check_interval"] = arguments.steps
    results: dict[str, list[dict[int, float]]] = {arm: [] for arm in ARMS}
    for seed in range(arguments.seeds):
        for arm, scaling in ARMS.items():
            results[arm].append(accuracies(copy.deepcopy(spec), scaling, seed))
        print(f"  seed {seed}: " + ", ".join(f"{arm} {results[arm][-1]}" for arm in ARMS), flush=True)
    heads = ["bytes", "O", "E", "E - O (95 %)", "p", "article: O", "E", "E - O"]
    print("\n| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for length in results["O"][0]:
        values_by_arm = {arm: np.array([result[length] for result in results[arm]]) for arm in ARMS}
        means = [f"{values_by_arm[arm].mean():.2f} ± {values_by_arm[arm].std(ddof=1):.2f}" for arm in ARMS]
        article_values = [ARTICLE[arm][length] for arm in ARMS]
        cells = [
            str(length),
            *means,
            *compare_cells(values_by_arm["E"], values_by_arm["O"]),
            *(f"{value:.2f}" for value in article_values),
        ]
        print("| " + " | ".join([*cells, f"{article_values[1] - article_values[0]:+.2f}"]) + " |")


if __name__ == "__main__":
    main()
