"""How each tool of peers.py carries the same trainings out, two at a time; each is a program of its own.

Run as ``python peers_tools.py TOOL SIDE`` in an empty folder with job.json, which is the fields of a
:class:`Job`; what has two sides is run twice, side by side. Writes the metric of each parameter set that
it trained to found-SIDE.json, by the set's number.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

URL = "sqlite:///peers.db"
NAME = "peers"
METRIC = "val_loss"
EPOCHS = 5
TRAINER: dict[str, Any] = {"max_epochs": EPOCHS, "gradient_clip_val": 1.0, "accelerator": "cpu"}
QUIET: dict[str, Any] = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "num_sanity_val_steps": 0,
}
"""Everything switched off in Lightning that training can do without."""
SAVING = {**QUIET, "enable_checkpointing": True}
SCHEDULES = ["constant", "linear", "exponential", "cosine"]
LOW, HIGH = 0.25, 4.0


@dataclass(frozen=True)
class PeerJob:
    """The trainings that every tool carries out.

    Args:
        num_sets: Parameter sets, >= 3.
        num_batches: Batches of each of a training's epochs, >= 1.
    """

    num_sets: int
    num_batches: int

    def sets(self) -> list[dict[str, Any]]:
        """Return the parameter sets: two at temperature 1, as tempopt's other arms have it, then others."""
        chance = random.Random(0)

        def temperature() -> float:
            return math.exp(chance.uniform(math.log(LOW), math.log(HIGH)))

        moving = SCHEDULES[1:]
        baseline = {"schedule": "constant", "temperature_init": 1.0, "temperature_final": 1.0}
        return [baseline, baseline] + [
            {
                "schedule": moving[number % len(moving)],
                "temperature_init": temperature(),
                "temperature_final": temperature(),
            }
            for number in range(self.num_sets - 2)
        ]

    def train(self, parameters: dict[str, Any], **trainer: Any) -> float:
        """Train with plain Lightning, with these Trainer arguments on top, and return the metric."""
        from peers_task import fit_plain

        warnings.filterwarnings("ignore")
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
        return fit_plain(parameters, self.num_batches, {**TRAINER, **trainer})


def bare(job: PeerJob, side: int) -> dict[int, float]:
    """Train every other set in a loop, with no tool at all."""
    return {
        number: job.train(parameters, **QUIET)
        for number, parameters in enumerate(job.sets())
        if number % 2 == side
    }


def optuna(job: PeerJob, extras: dict[str, Any]) -> dict[int, float]:
    """Optimize half of the trials of a study, as Optuna's documents and examples have it for Lightning.

    Args:
        job: What to train.
        extras: Trainer arguments.
    """
    import optuna
    from optuna_integration import PyTorchLightningPruningCallback

    sets = job.sets()

    class GivenSampler(optuna.samplers.BaseSampler):
        """Gives each trial the parameter set of its number; of enqueued ones, two programs may take one."""

        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return {}

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
            return {}

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            return sets[trial.number][name]

    def objective(trial: optuna.Trial) -> float:
        parameters = {
            "schedule": trial.suggest_categorical("schedule", SCHEDULES),
            "temperature_init": trial.suggest_float("temperature_init", LOW, HIGH, log=True),
            "temperature_final": trial.suggest_float("temperature_final", LOW, HIGH, log=True),
        }
        pruning = PyTorchLightningPruningCallback(trial, monitor=METRIC)
        return job.train(parameters, callbacks=[pruning], **extras)

    with Path("lock").open("w") as lock:
        # two that make the tables at the same moment fail
        fcntl.flock(lock, fcntl.LOCK_EX)
        options = {"study_name": NAME, "storage": URL, "load_if_exists": True}
        study = optuna.create_study(**options, sampler=GivenSampler(), pruner=optuna.pruners.NopPruner())
    trial_values: dict[int, float] = {}
    study.optimize(
        objective,
        n_trials=job.num_sets // 2,
        callbacks=[lambda study, trial: trial_values.__setitem__(trial.number, trial.value)],
    )
    reports = [len(study.trials[number].intermediate_values) for number in trial_values]
    assert reports == [EPOCHS] * len(trial_values), f"void: Optuna has {reports} reports"
    return trial_values


def ray_tune(job: PeerJob, *, save: bool = False) -> dict[int, float]:
    """Fit a Tuner over the sets, as Ray's documents have it for Lightning.

    Args:
        job: What to train.
        save: Whether a checkpoint is kept at every validation.
    """
    import ray
    from ray import tune

    sets = job.sets()

    def train(config: dict[str, Any]) -> None:
        from ray.tune.integration.pytorch_lightning import TuneReportCheckpointCallback

        report = TuneReportCheckpointCallback([METRIC], save_checkpoints=save, on="validation_end")
        job.train(sets[config["number"]], callbacks=[report], **QUIET)

    folder = str(Path.cwd())
    ray.init(address="local", num_cpus=2, include_dashboard=False, _temp_dir=folder)
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={"number": tune.grid_search(list(range(job.num_sets)))},
        tune_config=tune.TuneConfig(metric=METRIC, mode="min", max_concurrent_trials=2, reuse_actors=True),
        run_config=tune.RunConfig(storage_path=folder, name=NAME, verbose=0),
    )
    results = tuner.fit()
    assert not results.errors, f"void: {results.errors}"
    reports = [result.metrics["training_iteration"] for result in results]
    assert reports == [EPOCHS] * job.num_sets, f"void: Ray has {reports} reports"
    values = {result.config["number"]: result.metrics[METRIC] for result in results}
    ray.shutdown()
    return values


def spec(job: PeerJob, *, save: bool) -> dict[str, Any]:
    """Return a study whose trainings are the job's; the first two are its baseline's and its constant's."""
    return {
        "study": {
            # by default there is a checkpoint at every validation
            "checkpoint_every": None if save else 3600.0,
            "name": NAME,
            "metric": METRIC,
            "direction": "minimize",
            "trials": job.num_sets - 2,
            "arms": {"baseline": 1, "constant": 1},
            "pruner": "none",
            "enqueue": job.sets()[2:],
            "confirm_on": "validate",
        },
        "model": {"class_path": "peers_task.Peer"},
        "data": {"class_path": "peers_task.PeerData", "init_args": {"num_batches": job.num_batches}},
        "trainer": TRAINER,
        "search": {
            "schedule": SCHEDULES,
            "temperature_init": {"low": LOW, "high": HIGH, "log": True},
            "temperature_final": {"low": LOW, "high": HIGH, "log": True},
        },
    }


def tempopt(job: PeerJob, *, save: bool = False) -> dict[int, float]:
    """Search with two workers, and end when as many trainings are over as there are sets.

    Args:
        job: What to train.
        save: Whether a checkpoint is kept at every validation.
    """
    from tempopt.agent.observer import NullObserver
    from tempopt.api.calls import search
    from tempopt.storage.opening import open_store

    class StopObserver(NullObserver):
        remaining_sets = job.num_sets

        def on_ticket_end(self, ticket: Any) -> None:
            self.remaining_sets -= 1
            if not self.remaining_sets:
                raise KeyboardInterrupt

    try:
        search(spec(job, save=save), storage=URL, workers=2, observer=StopObserver())
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("void: the study went on to its end")
    with open_store(URL, create=False) as store:
        study = store.load_study(NAME).id
        rows = store.tickets(study)
        reports = len(store.measurements(study, names=["report"]))
    assert reports == EPOCHS * job.num_sets, f"void: tempopt has {reports} reports"
    offsets = {"baseline": 0, "constant": 1, "search": 2}
    return {offsets[row.kind] + row.number: row.value for row in rows if row.value is not None}


TOOLS: dict[str, Callable[[PeerJob, int], dict[int, float]]] = {
    "bare": bare,
    "tempopt": lambda job, side: tempopt(job),
    "optuna": lambda job, side: optuna(job, QUIET),
    "ray": lambda job, side: ray_tune(job),
    "tempopt, saving": lambda job, side: tempopt(job, save=True),
    "optuna, saving": lambda job, side: optuna(job, SAVING),
    "ray, saving": lambda job, side: ray_tune(job, save=True),
}

if __name__ == "__main__":
    tool, side = sys.argv[1:]
    values_by_set = TOOLS[tool](PeerJob(**json.loads(Path("job.json").read_text())), int(side))
    Path(f"found-{side}.json").write_text(json.dumps(values_by_set))
