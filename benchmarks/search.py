"""How many training steps does a search take to the right answer? Tuners compared on recorded trainings.

A simulated clock, several asynchronous workers, the same budget for all (benchmarks/simulated); what
trainings come to is recorded (benchmarks/recorded). Each search is judged by what the configuration it would
name comes to in truth, not by the best value that it has seen. Results are kept as lines of a file, so that
tuners of another environment can be added, and a search that is there is not run again.

    python -m benchmarks.search --repetitions 30 --budget 40        # whatever can be imported here
    python -m benchmarks.search --table
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.recorded.make import known
from benchmarks.recorded.tasks import TASKS
from benchmarks.recorded.world import World
from benchmarks.simulated.clock import simulate
from benchmarks.simulated.others import OTHERS
from benchmarks.simulated.tuners import TUNERS

RESULTS = Path("build/search.jsonl")
ENOUGH = 0.95
_AT = (10, 20, 40, 80)
_LEAST = 30


def one(world: World, name: str, *, repetition: int, budget: int, workers: int, see: Any) -> dict[str, Any]:
    """Return what one simulated search came to."""
    make = {**TUNERS, **OTHERS}[name]
    began = time.process_time()
    trace = simulate(
        world,
        lambda: make(world, repetition),
        budget=budget * world.total_steps,
        workers=workers,
        seed=repetition,
        see=see,
    )
    seconds = time.process_time() - began
    sign = 1.0 if world.spec.study.direction == "maximize" else -1.0
    whole = world.best - world.unit
    truth = dict.fromkeys(map(_key, trace.selected), 0.0)
    if truth:
        truth = dict(zip(truth, world.truth([json.loads(each) for each in truth]), strict=True))
    asked = {_key(each): early for each, early in zip(trace.asked, trace.ended_early, strict=True)}
    reached = sign * world.truth([json.loads(each) for each in asked])
    good = [early for early, value in zip(asked.values(), reached, strict=True) if value >= world.high]
    return {
        "task": world.task,
        "tuner": name,
        "repetition": repetition,
        "budget": budget,
        "workers": workers,
        "see": see,
        "trainings": world.trainings,
        "steps": [steps / world.total_steps for steps in trace.steps],
        "share": [(truth[_key(each)] - world.unit) / whole for each in trace.selected],
        "asked": len(trace.asked),
        "good": len(good),
        "good_ended": sum(good),
        "seconds": seconds,
    }


def _key(parameters: Any) -> str:
    return json.dumps(parameters, sort_keys=True)


def needed(result: dict[str, Any]) -> float:
    """Return full trainings until the selection first has 95 % of the best known gain; inf: never."""
    reached = [s for s, share in zip(result["steps"], result["share"], strict=True) if share >= ENOUGH]
    return reached[0] if reached else float("inf")


def at(result: dict[str, Any], trainings: float) -> float:
    """Return the share of the best known gain that the selection has after so many full trainings."""
    found = [share for s, share in zip(result["steps"], result["share"], strict=True) if s <= trainings]
    return found[-1] if found else 0.0


def table(results: Sequence[dict[str, Any]]) -> None:
    """Print what the searches came to, task by task."""
    for task in dict.fromkeys(each["task"] for each in results):
        budget = max(each["budget"] for each in results if each["task"] == task)
        points = [point for point in _AT if point <= budget]
        print(f"\n{task}: true share of the best known gain over τ = 1 that is selected, mean (10 to 90 %)")
        print(f"| tuner | n | {' | '.join(map(str, points))} | trainings to 95 % | good ones ended early |")
        print("|---" * (len(points) + 4) + "|")
        names = dict.fromkeys(each["tuner"] for each in results if each["task"] == task)
        for name in names:
            own = [each for each in results if (each["task"], each["tuner"]) == (task, name)]
            cells = []
            for point in points:
                shares = np.array([at(each, point) for each in own])
                low, high = np.quantile(shares, [0.1, 0.9])
                cells.append(f"{shares.mean():.2f} ({low:.2f} to {high:.2f})")
            reached = np.array([needed(each) for each in own])
            median = float(np.median(reached))
            when = f"{median:.1f}" if np.isfinite(median) else f"> {budget}"
            good = sum(each["good"] for each in own)
            ended = f"{sum(each['good_ended'] for each in own) / good:.0%}" if good else "none tried"
            print(
                f"| {name} | {len(own)} | {' | '.join(cells)} | {when}, "
                f"{np.isfinite(reached).mean():.0%} reached it | {ended} |"
            )


def main() -> None:
    """Simulate, or print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--tuners", nargs="*", default=None, help="all that can be imported by default")
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--budget", type=int, default=40, help="full trainings")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--see", choices=["final", "current"], default="final")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print what there is")
    given = parser.parse_args()
    lines = given.results.read_text().splitlines() if given.results.exists() else []
    results = [json.loads(line) for line in lines]
    if given.table:
        table([each for each in results if each["see"] == given.see])
        return
    there = [name for name in {**TUNERS, **OTHERS} if _importable(name)]
    done = {(e["task"], e["tuner"], e["repetition"], e["see"], e["budget"]) for e in results}
    given.results.parent.mkdir(parents=True, exist_ok=True)
    for task in given.tasks:
        if len(known(task)) < _LEAST:
            print(f"{task}: too few trainings are recorded")
            continue
        world = World(task)
        print(task, {name: round(value, 4) for name, value in world.fit_quality().items()})
        print(f"τ = 1: {world.unit:.4f}, best known: {world.best:.4f}", flush=True)
        for name in given.tuners or there:
            for repetition in range(given.repetitions):
                if (task, name, repetition, given.see, given.budget) in done:
                    continue
                result = one(
                    world,
                    name,
                    repetition=repetition,
                    budget=given.budget,
                    workers=given.workers,
                    see=given.see,
                )
                with given.results.open("a") as file:
                    file.write(json.dumps(result) + "\n")
            print(f"{task}: {name}", flush=True)


def _importable(name: str) -> bool:
    needs = {"Ray": "ray.tune", "Syne": "syne_tune"}.get(name.split()[0])
    if needs is None:
        return True
    package = needs.partition(".")[0]
    old = name.endswith(("MOBSTER", "DyHPO"))
    return find_spec(package) is not None and (
        not old or find_spec("syne_tune.optimizer.schedulers.searchers.bayesopt") is not None
    )


if __name__ == "__main__":
    main()
