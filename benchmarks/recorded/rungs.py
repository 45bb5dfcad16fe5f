"""How much do early validations tell of the end, under the last temperature and under that of the moment?

For each rung: the rank correlation (Spearman) between one training's validation there and what the other
seeds of its configuration come to on test data; and how often a training of the best tenth of the
configurations is in the lower half there, which is where a median pruner ends it. Schedules that move only,
as constants have one temperature, and with all configurations.

    python -m benchmarks.recorded.rungs
"""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.recorded.make import known
from benchmarks.recorded.tasks import SEEDS, TASKS
from benchmarks.recorded.world import World

_BEST = 0.1


def table(
    task: str, *, moving: bool
) -> tuple[tuple[int, ...], NDArray[np.float64], NDArray[np.float64], int]:
    """Return rungs, correlations and shares of wrong cuts (2 x rungs each), and the number of configurations.

    Args:
        task: Name of the task.
        moving: Whether only schedules that move are looked at.
    """
    world = World(task)
    rows = [row for row in known(task) if row["outcome"] == "complete"]
    curves = np.array([world.curve(row) for row in rows])
    groups: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        if not moving or json.loads(row["parameters"])["schedule"] != "constant":
            groups.setdefault(row["configuration"], []).append(place)
    whole = [places for places in groups.values() if len(places) == SEEDS]
    test = curves[:, -1]
    means = np.array([test[places].mean() for places in whole])
    best = means >= np.quantile(means, 1 - _BEST)
    count = len(world.rungs)
    found = np.zeros((2, count))
    cut = np.zeros((2, count))
    for kind in range(2):
        for rung in range(count):
            column = kind * count + rung
            by_seed = [
                spearmanr(
                    [curves[places[seed], column] for places in whole],
                    [np.mean([test[p] for p in places if p != places[seed]]) for places in whole],
                ).statistic
                for seed in range(SEEDS)
            ]
            found[kind, rung] = np.mean(by_seed)
            then = np.array([[curves[place, column] for place in places] for places in whole])
            cut[kind, rung] = (then[best] < np.median(then, axis=0)).mean()
    return world.rungs, found, cut, len(whole)


def main() -> None:
    """Print the tables."""
    for task in TASKS:
        for moving in (True, False):
            try:
                rungs, found, cut, count = table(task, moving=moving)
            except StopIteration:
                continue
            print(f"\n{task}: {count} configurations{' whose schedule moves' if moving else ''}")
            print("| step | " + " | ".join(map(str, rungs)) + " |")
            print("|---" * (len(rungs) + 1) + "|")
            for kind, name in enumerate(("last τ", "τ of the moment")):
                print(f"| rank correlation, {name} | " + " | ".join(f"{x:.2f}" for x in found[kind]) + " |")
            for kind, name in enumerate(("last τ", "τ of the moment")):
                print(
                    f"| best tenth below the median, {name} | "
                    + " | ".join(f"{x:.0%}" for x in cut[kind])
                    + " |"
                )


if __name__ == "__main__":
    main()
