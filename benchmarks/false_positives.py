"""How often does a study show a gain where there is none? Whole studies on worlds without differences.

Each training is any recorded one of the task, whatever its parameters, so that no configuration is better
than another. Search, choosing, confirmation and verdict are tempopt's own (benchmarks/simulated/whole.py).

    python -m benchmarks.false_positives --studies 250          # of each task
"""

from __future__ import annotations

import argparse
import time

from scipy.stats import binomtest

from benchmarks.recorded.tasks import TASKS
from benchmarks.recorded.world import World
from benchmarks.simulated.whole import Whole, with_study

# the tests are two-sided at 5 %, and a gain is one side of them
_ALLOWED = 0.025


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--studies", type=int, default=250, help="of each task")
    parser.add_argument("--trials", type=int, default=20)
    given = parser.parse_args()
    print("| task | studies | gain over τ = 1 shown | over the best constant, too | CPU s a study |")
    print("|---|---|---|---|---|", flush=True)
    shown = both = studies = 0
    for task in given.tasks:
        world = World(task, shuffled=True)
        began = time.process_time()
        found = [_one(world, seed, given.trials) for seed in range(given.studies)]
        seconds = (time.process_time() - began) / given.studies
        own, too = sum(one for one, _ in found), sum(other for _, other in found)
        print(f"| {task} | {given.studies} | {own} | {too} | {seconds:.1f} |", flush=True)
        shown, both, studies = shown + own, both + too, studies + given.studies
    for name, count in (("over τ = 1", shown), ("over both", both)):
        test = binomtest(count, studies, _ALLOWED, alternative="greater")
        low, high = binomtest(count, studies).proportion_ci()
        print(
            f"\nfalse gains {name}: {count} of {studies}, {count / studies:.1%} "
            f"(95 %: {low:.1%} to {high:.1%}); p of so many at {_ALLOWED:.1%}: {test.pvalue:.2g}"
        )


def _one(world: World, seed: int, trials: int) -> tuple[bool, bool]:
    """Return whether a study shows a gain over τ = 1, and one over the best constant as well."""
    verdict = Whole(world, with_study(world.spec, seed=seed, trials=trials)).run()
    assert verdict is not None and verdict.against_constant is not None
    return verdict.total.significant, verdict.total.significant and verdict.against_constant.significant


if __name__ == "__main__":
    main()
