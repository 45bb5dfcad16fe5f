"""How often does a search find a winner that keeps a guard, weighing by the chance to keep it or not?

Whole studies in worlds in which temperature gains in one metric and costs in another (``guarded-*`` of
benchmarks/simulated/worlds.py): the best temperature breaks the guard, one with most of the gain keeps it.

    python -m benchmarks.guards --studies 40
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from scipy.stats import binomtest

from benchmarks.simulated.whole import StudySimulation, with_study
from benchmarks.simulated.worlds import world_of

WORLDS = ("guarded-0@3", "guarded-3@3")

Record = Mapping[str, Any]


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("worlds", nargs="*", default=list(WORLDS))
    parser.add_argument("--studies", type=int, default=40, help="in each world, with and without")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    # threads of a library for matrices this small only wait for one another
    os.environ["OMP_NUM_THREADS"] = "1"
    jobs = [
        (world, seed, args.trials, weighs)
        for seed in range(args.studies)
        for world in args.worlds
        for weighs in (True, False)
    ]
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        print("\n".join(table(pool.imap_unordered(_study, jobs))))


def study(name: str, seed: int, trials: int, *, weighs: bool) -> dict[str, Any]:
    """Run a study and return what became of it.

    Args:
        name: Name of the world.
        seed: Seed of the study.
        trials: Search trials.
        weighs: Whether the search is told what its runs measure of the guarded metric.
    """
    world = world_of(name)
    spec = with_study(world.spec, seed=seed, trials=trials)
    verdict = StudySimulation(world, spec, weighs=weighs).run()
    assert verdict is not None, "a study in these worlds has a verdict"
    return {
        "world": name,
        "weighs": weighs,
        "feasible": world.keeps(verdict.params),
        "kept": verdict.guards_kept,
        "broken": any(guard.state == "broken" for guard in verdict.guards),
        "gain": verdict.primary.significant,
        "recommended": verdict.primary.significant and verdict.guards_kept,
        "worth": world.worth(verdict.params) - world.worth(verdict.baseline_params),
        "false": verdict.guards_kept and not world.keeps(verdict.params),
    }


def _study(job: tuple[str, int, int, bool]) -> dict[str, Any]:
    name, seed, trials, weighs = job
    return study(name, seed, trials, weighs=weighs)


_COLUMNS = {
    "feasible": "winner keeps the guard in truth",
    "kept": "shown to keep it",
    "broken": "shown to break it",
    "gain": "gain shown",
    "recommended": "gain and guard shown",
    "false": "shown to keep it, and does not",
}


def table(records: Iterable[Record]) -> Iterator[str]:
    """Yield the lines of a table: in how many studies what was so, with 95 % intervals (Clopper, Pearson)."""
    cells: dict[tuple[str, bool], list[Record]] = defaultdict(list)
    for record in records:
        cells[record["world"], record["weighs"]].append(record)
    yield f"| world | search weighs | studies | {' | '.join(_COLUMNS.values())} | gain in truth, mean |"
    yield "|---" * (4 + len(_COLUMNS)) + "|"
    for (world, weighs), cell_records in sorted(cells.items()):
        shares = " | ".join(_share(cell_records, name) for name in _COLUMNS)
        mean = sum(record["worth"] for record in cell_records) / len(cell_records)
        yield f"| {world} | {'yes' if weighs else 'no'} | {len(cell_records)} | {shares} | {mean:+.4f} |"


def _share(records: Sequence[Record], name: str) -> str:
    count = sum(record[name] for record in records)
    interval = binomtest(count, len(records)).proportion_ci(0.95)
    return f"{count} ({interval.low:.0%} to {interval.high:.0%})"


if __name__ == "__main__":
    main()
