"""How many training steps need not be trained twice? Whole studies on recorded trainings, two kinds of them.

The bundled studies as they are, in which runs that were ended are continued; and studies of a family of
schedules that hold a temperature before they move, which share their beginnings. That both are the same to
the bit as training from the start is shown by tests (test_forks.py in tests/study and tests/training).
Then, how many need not be trained at all: searches that end by themselves, and what that costs them.

    python -m benchmarks.spared --studies 10
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from benchmarks.recorded.tasks import TASKS
from benchmarks.recorded.world import World
from benchmarks.simulated.whole import Whole, with_study
from tempopt.records.tickets import of_kind
from tempopt.spec.study_spec import StudySpec

_LIMIT = 0.25
_TRIALS = (40, 80)
_FAMILY = {
    "schedule": ["hold_anneal"],
    "temperature_init": [0.5, 1.0, 2.0],
    "temperature_final": {"low": 0.25, "high": 4.0, "log": True},
    "hold_fraction": [0.25, 0.5, 0.75],
}


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--studies", type=int, default=10, help="of each task and kind")
    given = parser.parse_args()
    print("| task | search | trials | trainings' worth of steps | spared, of all that were asked for |")
    print("|---|---|---|---|---|", flush=True)
    for task in given.tasks:
        world = World(task)
        for name, spec in (("as bundled", world.spec), ("hold, then anneal", _family(world.spec))):
            studies = [Whole(world, with_study(spec, seed=seed)) for seed in range(given.studies)]
            spent = []
            for study in studies:
                study.run()
                search = [row for row in study.rows if row.kind == "search"]
                spent.append(sum(row.steps or 0 for row in search) / world.total_steps)
            spared = sum(study.spared for study in studies) / world.total_steps
            share = spared / sum(spent)
            print(
                f"| {task} | {name} | {spec.study.trials} | {np.mean(spent):.1f} | {share:.1%} |", flush=True
            )
    _ended(given.tasks, given.studies)


def _ended(tasks: Sequence[str], studies: int) -> None:
    """Print what ``study.limits.standard_errors`` spares."""
    print("\n| task | trials | limit | trained | share of the best known gain that is confirmed |")
    print("|---|---|---|---|---|", flush=True)
    for task in tasks:
        world = World(task)
        for trials in _TRIALS:
            for limit in (None, _LIMIT):
                found = []
                for seed in range(studies):
                    spec = with_study(world.spec, seed=seed, trials=trials, limits={"standard_errors": limit})
                    study = Whole(world, spec)
                    study.run()
                    begun = sum(row.state != "withdrawn" for row in of_kind(study.rows, "search"))
                    winner = of_kind(study.rows, "confirm", "search")[0].parameters or {}
                    gain = float(world.truth([winner])[0]) - world.floor
                    found.append((begun, gain / (world.best - world.floor)))
                begun, share = np.mean(found, axis=0)
                print(f"| {task} | {trials} | {limit or 'none'} | {begun:.1f} | {share:.2f} |", flush=True)


def _family(spec: StudySpec) -> StudySpec:
    data = spec.to_json()
    others = {name: each for name, each in data["search"].items() if name in spec.other_names}
    data["study"]["validate_at"] = "current"
    return StudySpec.from_json({**data, "search": {**others, **_FAMILY}})


if __name__ == "__main__":
    main()
