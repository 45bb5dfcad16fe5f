"""What is recommended where the truth is known: how often a change, and what it is worth in truth.

Whole studies as in verdicts.py, in the same worlds, by tempopt's own decisions. One line a world: how often
each action is recommended, how often what is recommended is in truth worse than τ = 1 or no better, what it
gains in truth on average, and what the winner of the search would have gained in its place.

    python -m benchmarks.recommendations null-3 ridge level-3@1 --studies 200 --processes 2
    python -m benchmarks.recommendations --min-gain 0.01 --sampler random
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import get_args

from benchmarks.simulated.whole import StudySimulation, sampled_by, with_study
from benchmarks.simulated.worlds import NAMES, world_of
from tempopt.verdict.recommendation import Action, Recommendation

_NEVER_WORSE = 1e-9


@dataclass(frozen=True, slots=True)
class Question:
    """One study to simulate."""

    world: str
    trials: int
    sampler: str
    min_gain: float | str | None
    seed: int


@dataclass(frozen=True, slots=True)
class Advice:
    """What one study recommends, and what that and the winner gain over τ = 1 in truth."""

    world: str
    action: Action
    now: Action
    gain: float
    winner: float


def main() -> None:
    """Simulate and print."""
    args = _parse_arguments()
    os.environ["OMP_NUM_THREADS"] = "1"
    questions = [
        Question(world, args.trials, args.sampler, args.min_gain, seed)
        for seed, world in itertools.product(range(args.studies), args.worlds or NAMES)
    ]
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        advice = [entry for entry in pool.imap_unordered(advise, questions) if entry is not None]
    print(*table(advice), sep="\n")


def advise(question: Question) -> Advice | None:
    """Return what a study recommends; None: it has no verdict."""
    world = world_of(question.world)
    settings = {"seed": question.seed, "trials": question.trials, "min_gain": question.min_gain} | sampled_by(
        question.sampler
    )
    (verdict,) = StudySimulation(world, with_study(world.spec, **settings)).rounds(1, 0)
    if verdict is None:
        return None
    recommendation = verdict.recommendation
    assert isinstance(recommendation, Recommendation)
    at_one = world.worth(verdict.baseline_params)
    return Advice(
        world=question.world,
        action=recommendation.action,
        now=recommendation.action_without_training,
        gain=world.worth(recommendation.params, recommendation.at_inference) - at_one,
        winner=world.worth(verdict.params) - at_one,
    )


def table(advice: Sequence[Advice]) -> list[str]:
    """Return a line for each world."""
    actions = get_args(Action)
    head = ["world", "studies", *actions, "a change that gains nothing", "gain in truth", "the winner's"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for world in sorted({entry.world for entry in advice}):
        world_entries = [entry for entry in advice if entry.world == world]
        counts = Counter(entry.action for entry in world_entries)
        changed_entries = [entry for entry in world_entries if entry.now != "change_nothing"]
        num_wrong = sum(entry.gain <= _NEVER_WORSE for entry in changed_entries)
        cells = [
            world,
            str(len(world_entries)),
            *(str(counts[action]) for action in actions),
            f"{num_wrong} ({100 * num_wrong / len(world_entries):.1f} %)",
            f"{fmean(entry.gain for entry in world_entries):+.4f}",
            f"{fmean(entry.winner for entry in world_entries):+.4f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("worlds", nargs="*", help=f"{', '.join(NAMES)}; all of them if none is given")
    parser.add_argument("--studies", type=int, default=100, help="in each world")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--sampler", default="knowledge_gradient", help="or random, tpe, ...")
    parser.add_argument("--min-gain", type=_amount, help="study.min_gain: a number, 1%%, or '0.5 sd'")
    parser.add_argument("--processes", type=int, default=1)
    return parser.parse_args()


def _amount(text: str) -> float | str:
    """Return a number as such, and an amount with a unit as the spec has it."""
    return float(text) if text.replace(".", "", 1).isdigit() else text


if __name__ == "__main__":
    main()
