"""What is a prior worth that is right, and what does one cost that is wrong? Searches on recorded trainings.

Each search has no prior, one that is right (around the best temperatures of the task, in truth), one that is
wrong (at the other end of the range, with the other length scaling), or one of those in circulation. What it
would name after each second trial is judged by what it comes to in truth. Searches of one seed are paired.

    python -m benchmarks.priors --searches 40
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from scipy.stats import t

from benchmarks.recorded.tasks import TASKS
from benchmarks.recorded.world import World
from benchmarks.simulated.whole import Whole, with_study
from tempopt.spec.priors import PRIORS, LogNormal, Prior
from tempopt.temperature import TemperatureParameters, own_parameters

_TRIALS = 40
_EVERY = 2
_ENOUGH = 0.9
_FACTOR = 2.0
# on the first hundred it was decided how far a prior is followed
_FIRST = 100
_IN_CIRCULATION = {
    "max_retrieval": "long_context",
    "associative_recall": "pretraining",
    "source_lm": "long_context",
}


def best_of(world: World) -> dict[str, Any]:
    """Return the parameter set that is best in truth, of many that cover the space."""
    drawn = world.drawn(0)
    return dict(drawn[int(np.argmax(world.truth(drawn)))])


def planted(world: World, *, right: bool) -> Prior:
    """Return a prior around the best temperatures of a task, or as far from them as the range goes."""
    best, space = best_of(world), world.spec.space()
    schedule = TemperatureParameters.from_mapping(own_parameters(best, "")).plan(1).schedule
    ends = {"temperature_init": schedule(0.0), "temperature_final": schedule(1.0)}
    if not right:
        ends = {name: _far(space[name], tau) for name, tau in ends.items() if name in space}
    choices = {}
    if "length_scaling" in space:
        choices["length_scaling"] = best.get("length_scaling", "none")
        if not right:
            others = space["length_scaling"].choices  # type: ignore[attr-defined]
            choices["length_scaling"] = next(each for each in others if each != choices["length_scaling"])
    trial: Mapping[str, Any] = {"schedule": "linear", **ends, **choices}
    return Prior(
        about="planted",
        numbers={name: LogNormal(median=tau, factor=_FACTOR) for name, tau in ends.items()},
        choices=choices,
        trial=trial,
        sources=("the world",),
    )


def _far(distribution: Any, tau: float) -> float:
    """Return the end of a range that is farther away, a little inside."""
    inside = distribution.low * 1.2, distribution.high / 1.2
    return max(inside, key=lambda end: abs(math.log(end / tau)))


def shares(world: World, seed: int, prior: str | None) -> Iterator[float]:
    """Yield the share of the best known gain that is named after every second trial."""
    study = Whole(world, with_study(world.spec, seed=seed, trials=_TRIALS, prior=prior), shares=False)
    for row in study.searched():
        if row.kind == "search" and (row.number + 1) % _EVERY == 0:
            named = study.recommend(1)
            yield (float(world.truth(named)[0]) - world.floor) / (world.best - world.floor) if named else 0.0


def needed(along: np.ndarray) -> int:
    """Return after how many trials enough of the gain is named, for the first time; all, if never."""
    enough = np.flatnonzero(along >= _ENOUGH)
    return _EVERY * (int(enough[0]) + 1) if enough.size else _TRIALS


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=[name for name in TASKS if name != "digits"])
    parser.add_argument("--searches", type=int, default=40, help="of each task and each prior")
    given = parser.parse_args()
    print("| task | prior | trials until 90 % | less than without (95 %) | after 8 | after 16 | after 40 |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for task in given.tasks:
        world = World(task)
        PRIORS["right"], PRIORS["wrong"] = (planted(world, right=right) for right in (True, False))
        without: np.ndarray | None = None
        for prior in (None, "right", "wrong", _IN_CIRCULATION[task]):
            table = np.array(
                [list(shares(world, seed, prior)) for seed in range(_FIRST, _FIRST + given.searches)]
            )
            counts = np.array([needed(along) for along in table], dtype=float)
            without = counts if without is None else without
            saved = without - counts
            half = t.ppf(0.975, len(saved) - 1) * saved.std(ddof=1) / math.sqrt(len(saved))
            less = (
                ""
                if prior is None
                else f"{saved.mean():+.1f} ({saved.mean() - half:+.1f} to {saved.mean() + half:+.1f})"
            )
            after = " | ".join(f"{table[:, at // _EVERY - 1].mean():.2f}" for at in (8, 16, 40))
            print(f"| {task} | {prior or 'none'} | {counts.mean():.1f} | {less} | {after} |", flush=True)


if __name__ == "__main__":
    main()
