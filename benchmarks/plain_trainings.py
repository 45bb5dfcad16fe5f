"""Do plain trainings agree with a verdict? The same configurations on fresh seeds, without tempopt's engine.

Reads a study that has a verdict from a database. Trains its baseline, its winner, the winner without each of
its parts and what is recommended, with a plain
``lightning.Trainer`` and ``seed_everything`` on seeds of its own, evaluates them on the test data, and prints
each comparison of the verdict beside the one of the plain trainings. They agree if neither mean is outside of
what the other's interval allows: |difference| of the two estimates against the two standard errors together.

    python -m benchmarks.plain_trainings max_retrieval --storage sqlite:///tempopt.db --seeds 20
"""

from __future__ import annotations

import argparse
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import lightning as L
from scipy.stats import t

import tempopt
from tempopt.confirmation.comparisons import Answer
from tempopt.confirmation.verdict import Verdict
from tempopt.results.study_result import StudyResult
from tempopt.temperature import TemperatureParameters, training_key
from tempopt.workers.class_paths import load_class

_FIRST_SEED = 70_000
Sets = dict[str, tuple[dict[str, Any], dict[str, Any] | None]]
Asked = dict[str, tuple[Answer | None, str, str]]


def main() -> None:
    """Train and print."""
    given = _given()
    warnings.filterwarnings("ignore")
    result = tempopt.load_study(given.storage, given.study)
    assert result.verdict is not None, "the study has no verdict"
    print(f"{result.name}: {result.metric}; recommended: {result.verdict.recommendation.action}")
    found = _trained(result, given.seeds, _sets(result.verdict))
    print(*_table(_asked(result.verdict, found), found), sep="\n")


def _sets(verdict: Verdict) -> Sets:
    """Return what is trained by name, and under which other temperature it is evaluated."""
    found = {"baseline": (verdict.baseline_params, None), "winner": (verdict.params, None)}
    for part in verdict.parts:
        found[f"without {part.name}"] = (part.parameters, None)
    advice = verdict.recommendation
    if advice is not None and advice.now != "change_nothing":
        found["recommended"] = (advice.parameters, advice.at_inference)
    return found


def _trained(result: StudyResult, seeds: int, sets: Sets) -> dict[str, list[float]]:
    """Return the metric on the test data by name, seed by seed; what trains the same is trained once."""
    values: dict[str, list[float]] = {name: [] for name in sets}
    for seed in range(_FIRST_SEED, _FIRST_SEED + seeds):
        models: dict[str, tuple[Any, Any, Any]] = {}
        for name, (parameters, at_inference) in sets.items():
            key = training_key(parameters)
            if key not in models:
                models[key] = _train(result, parameters, seed)
            model, trainer, data = models[key]
            if at_inference is not None:
                model.use(TemperatureParameters.from_mapping(at_inference))
            (logged,) = trainer.validate(model, dataloaders=data.test_dataloader(), verbose=False)[:1]
            values[name].append(
                trainer.callback_metrics[result.metric].item() if logged is not None else math.nan
            )
            if at_inference is not None:
                model.use(TemperatureParameters.from_mapping(parameters))
    return values


def _train(result: StudyResult, parameters: Mapping[str, Any], seed: int) -> tuple[Any, Any, Any]:
    spec = result.spec
    assert spec.data is not None
    L.seed_everything(seed, verbose=False)
    model = load_class(spec.model["class_path"], base=L.LightningModule, where="model")(
        **{**spec.model["init_args"], **parameters}
    )
    data = load_class(spec.data["class_path"], base=L.LightningDataModule, where="data")(
        **spec.data.get("init_args", {})
    )
    trainer = L.Trainer(
        **spec.trainer,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(model, datamodule=data)
    data.setup("test")
    return model, trainer, data


def _asked(verdict: Verdict, found: Mapping[str, Sequence[float]]) -> Asked:
    """Return what the verdict compares by what it is called."""
    asked: Asked = {"winner over τ = 1": (verdict.over_baseline, "winner", "baseline")}
    for part in verdict.parts:
        asked[f"winner over itself without {part.name}"] = (part.answer, "winner", f"without {part.name}")
    advice = verdict.recommendation
    if "recommended" in found and advice is not None:
        asked["recommended over τ = 1"] = (advice.gain, "recommended", "baseline")
        asked["winner over what is recommended"] = (None, "winner", "recommended")
    return asked


def _table(asked: Asked, found: Mapping[str, Sequence[float]]) -> list[str]:
    lines = ["| comparison | verdict | plain trainings | apart by |", "|---|---|---|---|"]
    for name, (answer, arm, reference) in asked.items():
        gains = [one - other for one, other in zip(found[arm], found[reference], strict=True)]
        mean, error = fmean(gains), stdev(gains) / math.sqrt(len(gains))
        margin = float(t.ppf(0.975, len(gains) - 1)) * error
        told = apart = "–"
        if answer is not None:
            test = answer.paired
            own = (test.ci_high - test.ci_low) / 2 / float(t.ppf((1 + test.confidence) / 2, test.n_pairs - 1))
            told = f"{test.gain:+.4f} ({test.ci_low:+.4f} to {test.ci_high:+.4f})"
            apart = f"{abs(test.gain - mean) / math.hypot(own, error):.1f} standard errors"
        lines.append(
            f"| {name} | {told} | {mean:+.4f} ({mean - margin:+.4f} to {mean + margin:+.4f}) | {apart} |"
        )
    return lines


def _given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", help="name of a study with a verdict, of a TemperedModule that maximizes")
    parser.add_argument("--storage", default="sqlite:///tempopt.db")
    parser.add_argument("--seeds", type=int, default=20)
    return parser.parse_args()


if __name__ == "__main__":
    main()
