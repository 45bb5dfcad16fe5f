"""Ray Tune's PBT and PB2 and Optuna's GP beside tempopt's searches, at equal optimizer steps, real trainings.

Each searcher has the steps of 8 trainings of a task of benchmarks/small_training.py. Ray's are its own
schedulers on a cluster of its own, synchronous, with the temperature as the hyperparameter that is mutated:
PBT's on a logarithmic range, PB2's as ln τ, since it draws and models its ranges as they are. Of either the
best member counts, by its last validation. What was taken over, and at which step of its checkpoint, is noted
where Ray does it; the schedule along the best member's line (benchmarks/lineage.py) is trained again from
step 0. With the seed of the line's first member it has to end with the member's value, bit for bit, or the
run is void.

Everything that is named is trained from step 0 on the same fresh seeds, beside τ = 1 and constants. What
tempopt would choose on fresh seeds of its own is left out on all sides: searching alone is compared.

The temperature of a loss has no population of tempopt's: that searches attention's. Where the metric is a
loss, differences are still such that more is better.

    python -m benchmarks.answer_peers --repetitions 4
    python -m benchmarks.answer_peers clip_digits --repetitions 4
    python -m benchmarks.answer_peers qk_norm_lm --repetitions 4
    python -m benchmarks.answer_peers --table

Results are lines of a file below build/, and what is there is not run again. Needs ray[tune].
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lineage import Segments, Taken, lineage
from benchmarks.simulated.answers import Priced, Way, asking, keep, known, ways
from benchmarks.small_training import TASKS, Run, Task, Trained, course_of, judged, steps_course
from tempopt.seeds import derive
from tempopt.statistics.t_interval import half_width

LINES = Path("build/answer_peers.jsonl")
MEMBERS = 8
"""Trainings whose steps a search has."""
SEEDS = 12
"""Fresh seeds on which everything is judged."""

Found = dict[str, Any]


def by_ray(task: Task, kind: str, repetition: int) -> Found:
    """Return what the best member of a population of Ray Tune comes to, and its schedule.

    Args:
        task: What is trained.
        kind: ``PBT`` or ``PB2``.
        repetition: Seed of the scheduler; the members' seeds follow from it.
    """
    import ray
    from ray import tune

    os.environ |= {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    # Ray draws from both
    random.seed(repetition)
    np.random.seed(repetition)
    scheduler = _noting(task, kind)
    with tempfile.TemporaryDirectory() as folder:
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=100_000_000,
            _temp_dir=folder,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}},
        )
        try:
            tuner = tune.Tuner(
                # both processors, so that one trains at a time
                tune.with_resources(_member(task.name), {"cpu": 2}),
                param_space={"member": tune.grid_search(list(range(MEMBERS))), "repetition": repetition},
                tune_config=tune.TuneConfig(scheduler=scheduler, reuse_actors=True),
                run_config=tune.RunConfig(storage_path=folder, name="peers", verbose=0),
            )
            results = tuner.fit()
            assert not results.errors, f"void: {results.errors}"
            scheduler.agrees(Path(folder) / "peers/pbt_global.txt")
        finally:
            ray.shutdown()
    budget = MEMBERS * task.total
    assert scheduler.reports * task.every == budget, f"void: {scheduler.reports} reports"
    best = max(scheduler.ended, key=lambda member: (task.sign * scheduler.ended[member], -member))
    first, segments = lineage(scheduler.begun, scheduler.taken, best)
    course, run = steps_course(task, segments), Run(task, _seed(repetition, first))
    run.advance(course, task.total)
    again = run.validated(course.last)
    assert again == scheduler.ended[best], f"void: replayed {again}, trained {scheduler.ended[best]}"
    return {"segments": segments, "steps": budget, "seen": again, "taken": len(scheduler.taken)}


def _seed(repetition: int, member: int) -> int:
    return derive("peers", repetition, member)


def _member(name: str) -> Any:
    import torch
    from ray import tune

    class Member(tune.Trainable):  # type: ignore[misc, no-any-unimported]
        """A training that Ray steps from validation to validation."""

        def setup(self, config: dict[str, Any]) -> None:
            torch.set_num_threads(1)
            self.reset_config(config)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self._tau = math.exp(new_config["ln_tau"]) if "ln_tau" in new_config else new_config["tau"]
            self._run = Run(TASKS[name], _seed(new_config["repetition"], new_config["member"]))
            return True

        def step(self) -> dict[str, Any]:
            task = TASKS[name]
            self._run.advance(steps_course(task, [(0, self._tau)]), self._run.step + task.every)
            value = self._run.validated(self._tau)
            return {"value": value, "steps": self._run.step, "done": self._run.step >= task.total}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            torch.save(self._run.state(), Path(checkpoint_dir) / "state.pt")

        def load_checkpoint(self, checkpoint: str) -> None:
            self._run.load(torch.load(Path(checkpoint) / "state.pt", weights_only=True))

    return Member


def _noting(task: Task, kind: str) -> Any:
    """Return a scheduler of Ray Tune that notes who takes over which checkpoint, and how all ended."""
    import torch
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining
    from ray.tune.schedulers.pb2 import PB2

    shared = {
        "time_attr": "steps",
        "metric": "value",
        "mode": "max" if task.sign > 0 else "min",
        "perturbation_interval": task.every,
        "synch": True,
    }
    low, high = task.space.low, task.space.high
    mutated = {
        "PBT": {"hyperparam_mutations": {"tau": tune.loguniform(low, high)}},
        "PB2": {"hyperparam_bounds": {"ln_tau": [math.log(low), math.log(high)]}},
    }
    base: Any = {"PBT": PopulationBasedTraining, "PB2": PB2}[kind]

    class Noting(base):  # type: ignore[misc]
        """Ray's scheduler, with notes."""

        def __init__(self) -> None:
            super().__init__(**shared, **mutated[kind])
            self.begun: dict[int, float] = {}
            self.taken: list[Taken] = []
            self.ended: dict[int, float] = {}
            self.reports = 0
            self._who: dict[str, int] = {}

        def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
            super().on_trial_add(tune_controller, trial)
            # what is copied from a donor is the donor's number, too
            self._who[trial.trial_id] = trial.config["member"]
            self.begun[trial.config["member"]] = _tau(trial.config)

        def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> Any:
            self.reports += 1
            return super().on_trial_result(tune_controller, trial, result)

        def on_trial_complete(self, tune_controller: Any, trial: Any, result: Any) -> None:
            self.reports += 1
            self.ended[self._who[trial.trial_id]] = result["value"]
            super().on_trial_complete(tune_controller, trial, result)

        def _exploit(self, tune_controller: Any, trial: Any, trial_to_clone: Any) -> None:
            with self._trial_state[trial_to_clone].last_checkpoint.as_directory() as folder:
                step = torch.load(Path(folder) / "state.pt", weights_only=True)["step"]
            super()._exploit(tune_controller, trial, trial_to_clone)
            who = self._who[trial.trial_id], self._who[trial_to_clone.trial_id]
            self.taken.append(Taken(*who, step, _tau(trial.config)))

        def agrees(self, history: Path) -> None:
            """Assert that Ray's own history has the same members, donors and temperatures."""
            rows = [json.loads(row) for row in history.read_text().splitlines()] if history.exists() else []
            theirs = [(_number(row[0]), _number(row[1]), _tau(row[5])) for row in rows]
            assert theirs == [(each.member, each.donor, each.tau) for each in self.taken], rows

    return Noting()


def _number(tag: str) -> int:
    """Return the number of the trial that a tag begins with; members are numbered as trials are."""
    return int(tag.partition("_")[0])


def _tau(config: Mapping[str, Any]) -> float:
    return float(math.exp(config["ln_tau"]) if "ln_tau" in config else config["tau"])


def by_tempopt(task: Task, way: Way, repetition: int) -> Found:
    """Return what a search of tempopt names within the budget."""
    asked = asking(task.spec, way, seed=repetition, trials=way.study.get("trials", 40))
    study = Priced(Trained(task), asked)
    found: Found = {}
    for row in study.searched():
        if study.steps > MEMBERS * task.total:
            break
        if row.number >= 5:
            named = study.recommend(1) or [_best(study)]
            found = {"parameters": dict(named[0]), "steps": study.steps, "trials": row.number + 1}
    return found


def _best(study: Priced) -> Mapping[str, Any]:
    over = [row for row in study.rows if row.kind == "search" and row.outcome == "complete"]
    sign = 1.0 if study.spec.study.direction == "maximize" else -1.0
    worth = {row.id: -math.inf if row.value is None else sign * row.value for row in over}
    return max(over, key=lambda row: worth[row.id], default=study.rows[0]).parameters or {}


def by_gp(task: Task, repetition: int) -> Found:
    """Return the best trial of Optuna's GP sampler, without a pruner, each trial with a seed of its own."""
    import optuna

    from benchmarks.simulated.tuners import Optuna

    world: Any = Trained(task)
    world.spec = asking(task.spec, ways(space=task.space)["plain"])
    sampler = optuna.samplers.GPSampler(seed=repetition)
    tuner = Optuna(world, sampler, optuna.pruners.NopPruner(), seed=repetition)
    for _ in range(MEMBERS):
        job = tuner.ask()
        assert job is not None
        tuner.end(job, world.reached(job.parameters, derive("gp", job.seed), 1.0))
    assert world.steps == MEMBERS * task.total, world.steps
    return {"parameters": dict(tuner.selected() or {}), "steps": world.steps}


def _way(task: Task, name: str) -> Way:
    made = ways(MEMBERS, task.space)[name]
    # enough trials for any budget: it ends with the steps
    more = {} if name == "population" else {"trials": 40}
    return Way(search=made.search, study={**made.study, **more, "candidates": 1}, more=made.more)


DEFAULT = "tempopt, default"


def searchers(task: Task) -> dict[str, Callable[[int], Found]]:
    """Return what searches a task, by name; each is given the number of the repetition."""
    found: dict[str, Callable[[int], Found]] = {
        DEFAULT: lambda repetition: by_tempopt(task, _way(task, "plain"), repetition)
    }
    if "population" in ways(space=task.space):
        found["tempopt, population"] = lambda repetition: by_tempopt(
            task, _way(task, "population"), repetition
        )
    return found | {
        "Ray Tune PBT": lambda repetition: by_ray(task, "PBT", repetition),
        "Ray Tune PB2": lambda repetition: by_ray(task, "PB2", repetition),
        "Optuna GP": lambda repetition: by_gp(task, repetition),
    }


def _judged(task: Task, found: Found) -> list[float]:
    segments: Segments = [(int(first), float(tau)) for first, tau in found.get("segments", [])]
    course = steps_course(task, segments) if segments else course_of(task, found["parameters"])
    return judged(task, course, SEEDS)


def _constant(tau: float) -> str:
    return f"τ = {tau:.3g}"


def _constants(task: Task) -> None:
    """Judge the constants once, that of the baseline among them."""
    done = {each["searcher"] for each in known(LINES) if each["task"] == task.name}
    for tau in task.constants:
        if (name := _constant(tau)) not in done:
            parameters = task.space.named({"schedule": "constant", "temperature_init": tau})
            found: Found = {"parameters": parameters, "steps": 0}
            record = {"task": task.name, "searcher": name, "repetition": 0, **found}
            keep({**record, "tested": _judged(task, found)}, LINES)


def run(task: Task, repetitions: int, minutes: float) -> None:
    """Run what is missing, repetition by repetition, and write it down."""
    end = time.monotonic() + 60 * minutes
    _constants(task)
    done = {(each["searcher"], each["repetition"]) for each in known(LINES) if each["task"] == task.name}
    for repetition in range(repetitions):
        for name, searcher in searchers(task).items():
            if (name, repetition) in done:
                continue
            if time.monotonic() > end:
                return
            found = searcher(repetition)
            assert found["steps"] <= MEMBERS * task.total
            record = {"task": task.name, "searcher": name, "repetition": repetition, **found}
            tested = _judged(task, found)
            keep({**record, "tested": tested}, LINES)
            print(f"{name} {repetition}: {np.mean(tested):.4f}, {found['steps']} steps", flush=True)


def interval(values: Sequence[float]) -> str:
    """Return a mean with its 95 % t interval."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:+.3f}"
    half = half_width(float(np.std(values, ddof=1)) / math.sqrt(len(values)), len(values))
    return f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})"


def table(task: Task, records: Sequence[Found]) -> str:
    """Return what was found of a task, as Markdown: means on fresh seeds, and by how much each is better."""
    constants = {each["searcher"]: np.array(each["tested"]) for each in records if each["steps"] == 0}
    one = constants[_constant(task.plain)]
    names = list(searchers(task))
    best = max(constants, key=lambda name: task.sign * constants[name].mean())
    by_name = {
        name: {each["repetition"]: np.array(each["tested"]) for each in records if each["searcher"] == name}
        for name in names
    }
    default = by_name[DEFAULT]
    steps = {name: [each["steps"] for each in records if each["searcher"] == name] for name in names}
    lines = [
        f"| searcher | searches | steps | mean | each search | over {_constant(task.plain)} "
        "| over the best constant | over tempopt's default |",
        f"|{'---|' * 8}",
    ]
    for name, found in by_name.items():
        if not found:
            continue
        means = [float(each.mean()) for each in found.values()]
        beside = [
            task.sign * float((found[each] - default[each]).mean()) for each in found if each in default
        ]
        lines.append(
            f"| {name} | {len(found)} | {np.mean(steps[name]):.0f} | {np.mean(means):.4f} "
            f"| {', '.join(f'{each:.3f}' for each in means)} "
            f"| {interval([task.sign * (mean - one.mean()) for mean in means])} "
            f"| {interval([task.sign * (mean - constants[best].mean()) for mean in means])} "
            f"| {'' if name == DEFAULT else interval(beside)} |"
        )
    for name, tested in constants.items():
        over = "" if name == _constant(task.plain) else interval(list(task.sign * (tested - one)))
        lines.append(f"| {name} | | | {tested.mean():.4f} | | {over} | | |")
    return "\n".join(lines).replace("-0.", "−0.")


def main() -> None:
    """Search and judge, or print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", nargs="?", choices=list(TASKS), default="max_retrieval")
    parser.add_argument("--repetitions", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing after so long")
    parser.add_argument("--table", action="store_true", help="print what there is")
    given = parser.parse_args()
    task = TASKS[given.task]
    if not given.table:
        run(task, given.repetitions, given.minutes)
    print(table(task, [each for each in known(LINES) if each["task"] == task.name]))


if __name__ == "__main__":
    main()
