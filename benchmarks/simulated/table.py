"""What searches came to, kept, and their table: the true value of what each would name, by trainings spent.

They are lines of a file while they are run, a table in the repository when they are packed. A result is of
one world. A task of which more was recorded is another world, and what was found in the old one is left out.
So is what tempopt came to in the repetitions by which its defaults were chosen: the best of several on some
seeds is partly lucky there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.recorded.world import RecordedWorld

SEARCHES_PATH = Path(__file__).with_name("searches.parquet")
LINES = Path("build/search.jsonl")
OURS = "tempopt"
"""How the names of all of tempopt's searches begin."""
CHOSEN_BY = 30
"""So many repetitions, the first ones, have chosen what tempopt does by default."""
_WHICH = ("task", "tuner", "repetition", "see", "budget", "workers", "world")


def is_peer(tuner: str) -> bool:
    """Return whether a tuner is none of tempopt's own."""
    return not tuner.startswith(OURS)


def result_key(result: dict[str, Any]) -> tuple[Any, ...]:
    """Return what tells one search from another."""
    return tuple(result[name] for name in _WHICH)


def load_results(lines: Path = LINES) -> list[dict[str, Any]]:
    """Return what there is of all searches; of one that was run again, the last result."""
    rows: list[dict[str, Any]] = pq.read_table(SEARCHES_PATH).to_pylist() if SEARCHES_PATH.exists() else []
    if lines.exists():
        rows += [json.loads(line) for line in lines.read_text().splitlines()]
    return list({result_key(row): row for row in rows}.values())


def keep(result: dict[str, Any], lines: Path = LINES) -> None:
    """Write one result down."""
    lines.parent.mkdir(parents=True, exist_ok=True)
    with lines.open("a") as file:
        file.write(json.dumps(result) + "\n")


def of_worlds(
    worlds: Mapping[str, RecordedWorld], lines: Path = LINES, *, first: int = CHOSEN_BY
) -> list[dict[str, Any]]:
    """Return what there is of searches in the worlds that there are.

    Args:
        worlds: By task.
        lines: What has not been packed.
        first: Repetition from which on tempopt's own count.
    """
    marks = {task: world.mark for task, world in worlds.items()}
    of_these = [row for row in load_results(lines) if row["world"] == marks.get(row["task"])]
    return [row for row in of_these if row["repetition"] >= first or is_peer(row["tuner"])]


def pack(worlds: Mapping[str, RecordedWorld], lines: Path = LINES) -> None:
    """Put what there is of searches in the worlds of all tasks into the table of the repository."""
    rows = of_worlds(worlds, lines)
    pq.write_table(pa.Table.from_pylist(rows), SEARCHES_PATH, compression="zstd")
    lines.unlink(missing_ok=True)
    print(f"{SEARCHES_PATH.name}: {len(rows)} searches, {SEARCHES_PATH.stat().st_size} bytes")


ENOUGH = 0.95
_AT = (10, 20, 40, 80, 160)
_BOOTSTRAPS = 500
Array = NDArray[np.float64]


def share_at(result: dict[str, Any], trainings: float) -> float:
    """Return the share of the best known gain that the selection has after so many full trainings."""
    shares = [share for s, share in zip(result["steps"], result["share"], strict=True) if s <= trainings]
    return shares[-1] if shares else 0.0


def curve(results: Sequence[dict[str, Any]], budget: int) -> Array:
    """Return the share that each search has selected, by trainings spent, shape (searches, times)."""
    shares: Array = np.array(
        [[share_at(result, num_trainings) for num_trainings in _times(budget)] for result in results]
    )
    return shares


def _times(budget: int) -> Array:
    return np.arange(1, 2 * budget + 1) / 2


def crossing(shares_RT: Array, level: float) -> float:
    """Return trainings until the mean share is at a level and stays there; inf: it does not."""
    indices = np.flatnonzero(shares_RT.mean(axis=0) < level - 1e-9)
    index = int(indices[-1]) + 1 if len(indices) else 0
    return float((index + 1) / 2) if index < shares_RT.shape[1] else float("inf")


def interval(shares_RT: Array, level: float) -> tuple[float, float]:
    """Return a 95 % interval of :func:`crossing`, by bootstrap over the searches."""
    rng = np.random.default_rng(0)
    draws = rng.integers(len(shares_RT), size=(_BOOTSTRAPS, len(shares_RT)))
    crossings = [crossing(shares_RT[draw], level) for draw in draws]
    low, high = np.quantile(crossings, [0.025, 0.975], method="nearest")
    return float(low), float(high)


def show(results: Sequence[dict[str, Any]], worlds: Mapping[str, RecordedWorld]) -> None:
    """Print what the searches came to, task by task, and over all tasks."""
    by_task: dict[str, dict[str, Array]] = {}
    for task, world in worlds.items():
        of_task = [result for result in results if result["task"] == task]
        if not of_task:
            continue
        budget = max(result["budget"] for result in of_task)
        names = list(dict.fromkeys(result["tuner"] for result in of_task))
        by_task[task] = {n: curve([e for e in of_task if e["tuner"] == n], budget) for n in names}
        _shares(world, of_task, by_task[task])
    for name in (OURS, f"{OURS}, no pruning"):
        _over_best_peer(name, {task: curves for task, curves in by_task.items() if name in curves}, worlds)


def end_of_best_peer(curves: Mapping[str, Array]) -> float:
    """Return the share that the best peer has when all is spent."""
    return max((float(curve[:, -1].mean()) for name, curve in curves.items() if is_peer(name)), default=1.0)


def ratio(name: str, curves: Mapping[str, Array]) -> float:
    """Return trainings until one has what the best peer has in the end, over the least of a peer."""
    level = end_of_best_peer(curves)
    first = min(crossing(curve, level) for tuner, curve in curves.items() if is_peer(tuner))
    return crossing(curves[name], level) / first


def _over_best_peer(
    name: str, by_task: Mapping[str, Mapping[str, Array]], worlds: Mapping[str, RecordedWorld]
) -> None:
    """Print the ratio to the best peer: of each task, and the mean, with intervals by bootstrap."""
    rng = np.random.default_rng(0)
    ratios, bootstrap_ratios = {}, {}
    for task, curves in by_task.items():
        if not any(map(is_peer, curves)):
            continue
        ratios[task] = ratio(name, curves)
        resampled_curves = [
            {n: curve[rng.integers(len(curve), size=len(curve))] for n, curve in curves.items()}
            for _ in range(_BOOTSTRAPS)
        ]
        bootstrap_ratios[task] = np.array([ratio(name, curves) for curves in resampled_curves])
    with_gain = [task for task in ratios if worlds[task].floor == worlds[task].baseline]
    print(f"\n{name}: trainings to what the best peer has in the end, over what that peer takes (95 %)")
    for task in ratios:
        _print_ratio(task, [task], ratios, bootstrap_ratios)
    if len(ratios) > 1:
        _print_ratio("mean of the tasks with a gain", with_gain, ratios, bootstrap_ratios)
        _print_ratio("mean of all", list(ratios), ratios, bootstrap_ratios)


def _print_ratio(
    title: str, tasks: Sequence[str], ratios: Mapping[str, float], bootstrap_ratios: Mapping[str, Array]
) -> None:
    low, high = np.quantile(
        sum(bootstrap_ratios[task] for task in tasks) / len(tasks), [0.025, 0.975], method="nearest"
    )
    mean = np.mean([ratios[task] for task in tasks])
    cells = [_trainings_text(round(float(trainings), 2)) for trainings in (mean, low, high)]
    print(f"{title}: {cells[0]} ({cells[1]} to {cells[2]})")


def _shares(world: RecordedWorld, results: Sequence[dict[str, Any]], curves: Mapping[str, Array]) -> None:
    level, gain = end_of_best_peer(curves), world.floor == world.baseline
    since = "τ = 1" if gain else "the median configuration, since none is better than τ = 1 by more than the"
    since += "" if gain else " forest may be wrong"
    best = f"{level:.2f}, what the best peer has in the end"
    print(f"\n**{world.task.replace('_', ' ')}**, shares from {since}; to L: to {best}.\n")
    points = [point for point in _AT if 2 * point <= next(iter(curves.values())).shape[1]]
    head = ["search", "searches", *map(str, points[:-1]), f"{points[-1]} trainings", "to 95 %", "to L"]
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for name, shares in curves.items():
        tuner_results = [result for result in results if result["tuner"] == name]
        cells = [_mean_and_range(shares[:, 2 * point - 1]) for point in points]
        for target in (ENOUGH, level):
            num_trainings, bounds = crossing(shares, target), interval(shares, target)
            is_certain = {num_trainings, *bounds} == {float("inf")}
            cells.append(
                _trainings_text(num_trainings)
                + ("" if is_certain else f" ({' to '.join(map(_trainings_text, bounds))})")
            )
        print(f"| {name} | {len(tuner_results)} | {' | '.join(cells)} |", flush=True)


def _mean_and_range(shares: Array) -> str:
    low, high = np.quantile(shares, [0.1, 0.9])
    return f"{shares.mean():.2f} ({low:.2f} to {high:.2f})"


def _trainings_text(trainings: float) -> str:
    return f"{trainings:g}" if np.isfinite(trainings) else "never"
