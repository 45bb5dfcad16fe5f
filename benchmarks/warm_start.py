"""What is an earlier study worth? Searches on recorded trainings, begun from nothing and from other studies.

Each search begins with what a study of 40 trials has kept, of the same task (with other seeds) or of another
one, and is asked on its way what it would name. What is named is judged by its true value.

    python -m benchmarks.warm_start --searches 10
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from benchmarks.recorded.tasks import TASKS
from benchmarks.recorded.world import RecordedWorld
from benchmarks.simulated.whole import StudySimulation, with_study
from tempopt.storage.rows import PriorRuns
from tempopt.storage.ticket_queries import is_usable, to_maximize

_AT = (8, 12, 16, 24)
_EARLIER = 40
_OTHER_SEEDS = 1000


@cache
def world_of(task: str) -> RecordedWorld:
    """Return the world of a task."""
    return RecordedWorld(task)


@cache
def prior_runs(task: str, seed: int) -> PriorRuns:
    """Return what an earlier study of a task has to say."""
    spec = with_study(world_of(task).spec, seed=_OTHER_SEEDS + seed, trials=_EARLIER)
    study = StudySimulation(world_of(task), spec)
    for _ in study.train_search():
        pass
    direction = spec.study.direction
    runs = [
        (row.parameters, to_maximize(row.value or 0.0, direction)) for row in study.rows if is_usable(row)
    ]
    return [{"name": task, "runs": runs}]


def shares(task: str, seed: int, earlier: PriorRuns) -> Iterator[float]:
    """Yield the share of the best known gain that is named after some trials."""
    world = world_of(task)
    spec = with_study(world.spec, seed=seed, trials=max(_AT))
    study = StudySimulation(world, spec, earlier=earlier)
    for row in study.train_search():
        if row.number + 1 in _AT:
            sets = study.recommend(1)
            yield (float(world.truth(sets)[0]) - world.floor) / (world.best - world.floor) if sets else 0.0


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=[name for name in TASKS if name != "digits"])
    parser.add_argument("--searches", type=int, default=10, help="of each task and each earlier one")
    args = parser.parse_args()
    print(f"| task | earlier study of | {' | '.join(f'after {num_runs}' for num_runs in _AT)} |")
    print(f"|---|---|{'---|' * len(_AT)}", flush=True)
    for task in args.tasks:
        for source_task in (None, task, *(source for source in args.tasks if source != task)):
            table: Any = np.array(
                [
                    list(shares(task, seed, [] if source_task is None else prior_runs(source_task, seed)))
                    for seed in range(args.searches)
                ]
            )
            error = table.std(axis=0, ddof=1) / np.sqrt(args.searches)
            cells = [
                f"{mean:.2f} ± {doubt:.2f}" for mean, doubt in zip(table.mean(axis=0), error, strict=True)
            ]
            print(f"| {task} | {source_task or 'none'} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
