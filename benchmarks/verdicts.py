"""How often is a verdict wrong, and how often right? Whole studies in worlds in which the truth is known.

Search, choosing, confirmation and verdict are tempopt's own (benchmarks/simulated/whole.py); the value of
a training is given by a world in closed form (benchmarks/simulated/worlds.py). What has been run is not run
again.

    python -m benchmarks.verdicts null-3 level-3@1 --studies 300 --rounds 5 --processes 2
    python -m benchmarks.verdicts drawn-constant-1@1 drawn-ridge-1 --studies 100    # drawn.py
    python -m benchmarks.verdicts --table       # what there is
    python -m benchmarks.verdicts --pack        # into the repository
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import multiprocessing
import os
import time

from benchmarks.simulated import judged
from benchmarks.simulated.drawn import world_for
from benchmarks.simulated.judged import Cell, tables
from benchmarks.simulated.worlds import NAMES


def main() -> None:
    """Simulate, print, or pack."""
    args = _parse_arguments()
    if args.fresh:
        judged.forget()
    if not (args.table or args.pack):
        _run(args)
    print(
        "\n".join(
            tables(record for record in judged.load_records() if _is_selected(record["world"], args.worlds))
        )
    )
    if args.pack:
        judged.pack()


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("worlds", nargs="*", help=f"{', '.join(NAMES)}; all of them if none is given")
    parser.add_argument("--studies", type=int, default=100, help="in each cell")
    parser.add_argument("--trials", type=int, nargs="+", default=[12])
    parser.add_argument("--rounds", type=int, default=1, help=f"verdicts, +{judged.MORE} trials between them")
    parser.add_argument("--sampler", nargs="+", default=["knowledge_gradient"], help="or random, tpe, ...")
    parser.add_argument("--explain", action="store_true", help="explain every verdict, as study.explain does")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no study after them")
    parser.add_argument("--fresh", action="store_true", help="forget what there is: other code found it")
    parser.add_argument("--table", action="store_true", help="print what there is, and run nothing")
    parser.add_argument("--pack", action="store_true", help="print it, and put it into the repository")
    args = parser.parse_args()
    for name in args.worlds:
        world_for(name)
    return args


def _is_selected(name: str, selected_names: list[str]) -> bool:
    return not selected_names or name in selected_names


def _run(args: argparse.Namespace) -> None:
    grid = itertools.product(args.worlds or NAMES, args.trials, args.sampler)
    cells = [Cell(world, trials, args.rounds, sampler, args.explain) for world, trials, sampler in grid]
    known_keys = {judged.record_key(record) for record in judged.load_records()}
    # seed by seed, so that all cells are about as full whenever it ends
    jobs = [
        (cell, seed)
        for seed in range(args.studies)
        for cell in cells
        if judged.record_key({**dataclasses.asdict(cell), "seed": seed}) not in known_keys
    ]
    # threads of a library for matrices this small only wait for one another
    os.environ["OMP_NUM_THREADS"] = "1"
    end = time.monotonic() + 60.0 * args.minutes
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        for record in pool.imap_unordered(_study, jobs):
            judged.keep(record)
            if time.monotonic() > end:
                break


def _study(job: tuple[Cell, int]) -> dict[str, object]:
    cell, seed = job
    return cell.study(seed)


if __name__ == "__main__":
    main()
