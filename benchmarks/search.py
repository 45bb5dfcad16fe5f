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
from numpy.typing import NDArray
from scipy.stats import t

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
_BOOTSTRAPS = 500
_OURS = "tempopt"
Array = NDArray[np.float64]


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
    whole = world.best - world.floor
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
        "from_unit": world.floor == world.unit,
        "steps": [steps / world.total_steps for steps in trace.steps],
        "share": [(truth[_key(each)] - world.floor) / whole for each in trace.selected],
        "asked": len(trace.asked),
        "good": len(good),
        "good_ended": sum(good),
        "seconds": seconds,
    }


def _key(parameters: Any) -> str:
    return json.dumps(parameters, sort_keys=True)


def at(result: dict[str, Any], trainings: float) -> float:
    """Return the share of the best known gain that the selection has after so many full trainings."""
    found = [share for s, share in zip(result["steps"], result["share"], strict=True) if s <= trainings]
    return found[-1] if found else 0.0


def curve(results: Sequence[dict[str, Any]], budget: int) -> Array:
    """Return the share that each search has selected, by trainings spent, shape (searches, times)."""
    found: Array = np.array([[at(each, spent) for spent in _times(budget)] for each in results])
    return found


def _times(budget: int) -> Array:
    return np.arange(1, 2 * budget + 1) / 2


def crossing(shares_RT: Array, level: float) -> float:
    """Return trainings until the mean share is at a level and stays there; inf: it does not."""
    below = np.flatnonzero(shares_RT.mean(axis=0) < level - 1e-9)
    place = int(below[-1]) + 1 if len(below) else 0
    return float((place + 1) / 2) if place < shares_RT.shape[1] else float("inf")


def interval(shares_RT: Array, level: float) -> tuple[float, float]:
    """Return a 95 % interval of :func:`crossing`, by bootstrap over the searches."""
    rng = np.random.default_rng(0)
    draws = rng.integers(len(shares_RT), size=(_BOOTSTRAPS, len(shares_RT)))
    many = [crossing(shares_RT[draw], level) for draw in draws]
    low, high = np.quantile(many, [0.025, 0.975], method="nearest")
    return float(low), float(high)


def decided(shares_RT: Array, gain: float, deviation: float) -> tuple[float, float]:
    """Return trainings until the verdict's 95 % interval is narrower than half the gain, and when to confirm.

    What is selected after some trainings is confirmed on pairs of fresh seeds, of two trainings each, until
    the interval is narrow enough. The moment to begin is the best one in the median over the searches.

    Args:
        shares_RT: As of :func:`curve`.
        gain: Best known gain over τ = 1.
        deviation: Standard deviation of the difference of a pair.
    """
    pairs = np.arange(2, 2000)
    widths = 2 * t.ppf(0.975, pairs - 1) * deviation / np.sqrt(pairs)
    # widths fall, so that the first that is small enough is where they are sorted in from behind
    needed_RT = len(pairs) - np.searchsorted(widths[::-1], np.maximum(shares_RT * gain, 0) / 2, side="left")
    cost_RT = np.where(needed_RT < len(pairs), 2.0 * (needed_RT + 2), np.inf)
    whole_T = np.median(cost_RT, axis=0) + _times(shares_RT.shape[1] // 2)
    best = int(np.argmin(whole_T))
    return float(whole_T[best]), (best + 1) / 2


def table(results: Sequence[dict[str, Any]]) -> None:
    """Print what the searches came to, task by task, and over all tasks."""
    ratios: dict[str, dict[str, float]] = {}
    with_gain = []
    for task in dict.fromkeys(each["task"] for each in results):
        of_task = [each for each in results if each["task"] == task]
        budget = max(each["budget"] for each in of_task)
        names = list(dict.fromkeys(each["tuner"] for each in of_task))
        curves = {n: curve([e for e in of_task if e["tuner"] == n], budget) for n in names}
        peers = {name: shares for name, shares in curves.items() if not name.startswith(_OURS)}
        level = max(float(shares[:, -1].mean()) for shares in peers.values()) if peers else 1.0
        world = World(task)
        _shares(task, of_task, curves, world, level)
        fastest = min((crossing(each, level) for each in peers.values()), default=float("inf"))
        for name in names:
            if name.startswith(_OURS) and peers:
                ratios.setdefault(name, {})[task] = crossing(curves[name], level) / fastest
        with_gain += [task] if world.floor == world.unit else []
    print("\ntrainings to what the best peer has in the end, over what that peer takes")
    for name, by_task in ratios.items():
        each = ", ".join(f"{task} {_until(round(ratio, 2))}" for task, ratio in by_task.items())
        mean = np.mean([by_task[task] for task in with_gain if task in by_task])
        print(f"{name}: {each}; mean over tasks with a gain {mean:.2f}")


def _shares(
    task: str, results: Sequence[dict[str, Any]], curves: dict[str, Array], world: World, level: float
) -> None:
    known = world.best - world.floor
    points = [point for point in _AT if 2 * point <= next(iter(curves.values())).shape[1]]
    deviation = world.pair_deviation()
    since = "τ = 1" if world.floor == world.unit else "the median configuration: none is better than τ = 1"
    print(f"\n{task}: true share of the best known gain that is selected, from {since}; mean (10 to 90 %)")
    head = [*map(str, points), "trainings to 95 %", f"to {level:.2f}", "better ones in the space"]
    head += ["trainings to a verdict", "good ones ended early"]
    print(f"| tuner | n | {' | '.join(head)} |\n{'|---' * (len(head) + 2)}|")
    sign = 1.0 if world.spec.study.direction == "maximize" else -1.0
    space = np.sort((sign * (world.truth(world.drawn(1)) - world.floor)) / abs(known))
    for name, shares in curves.items():
        own = [each for each in results if each["tuner"] == name]
        cells = []
        for point in points:
            low, high = np.quantile(shares[:, 2 * point - 1], [0.1, 0.9])
            cells.append(f"{shares[:, 2 * point - 1].mean():.2f} ({low:.2f} to {high:.2f})")
        for wanted in (ENOUGH, level):
            low, high = interval(shares, wanted)
            cells.append(f"{_until(crossing(shares, wanted))} ({_until(low)} to {_until(high)})")
        cells.append(f"{np.median(1 - np.searchsorted(space, shares[:, -1]) / len(space)):.1%}")
        if world.floor == world.unit:
            total, begun = decided(shares, abs(known), deviation)
            cells.append(f"{_until(total)} ({begun:g} of them searching)")
        else:
            cells.append("no gain to show")
        good = sum(each["good"] for each in own)
        cells.append(f"{sum(each['good_ended'] for each in own) / good:.0%}" if good else "none tried")
        print(f"| {name} | {len(own)} | {' | '.join(cells)} |")


def _until(trainings: float) -> str:
    return f"{trainings:g}" if np.isfinite(trainings) else "never"


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
        print(f"τ = 1: {world.unit:.4f}, best: {world.best:.4f}, shares from {world.floor:.4f}", flush=True)
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
    if name == "Optuna CMA-ES":
        return find_spec("cmaes") is not None
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
