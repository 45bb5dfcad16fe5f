"""How good is what a search names, in worlds that no default was chosen on?

tempopt's sampler and pruner, unmodified, beside Optuna's on the simulated clock: four workers, as many
training steps as 40 complete trainings have. A share is the true mean of what is named: 1 is the best
configuration, 0 is τ = 1. Named are the one that the tuner itself holds to be best; the best of its first
three on four fresh seeds; and, of Optuna GP's trials, what tempopt would name of them. On odd draws nothing
was chosen. Results are kept as lines of a file; a search that is there is not run again.

    python -m benchmarks.unseen_worlds --draws 20
    python -m benchmarks.unseen_worlds --table                      # of the draws that were held back
    python -m benchmarks.unseen_worlds --table --half "chosen on"
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulated.clock import Job, Parameters, Wish, simulate
from benchmarks.simulated.tuners import TUNERS, Optuna
from benchmarks.simulated.unseen import WORLDS, Unseen, half
from tempopt.sampling.features import Features
from tempopt.sampling.knowledge_gradient import KnowledgeGradient

Array = NDArray[np.float64]

_LINES = Path("build/unseen.jsonl")
_TUNERS = ("tempopt", "Optuna TPE, Median", "Optuna GP", "Optuna random")
_WORKERS = 4
_MOST = 4
_CANDIDATES, _FRESH_SEEDS = 3, 4
_FRESH = 10**6
_BOOTSTRAPS = 4000
_BY_SURROGATE = "Optuna GP, by the surrogate"


class AtTheEnd:
    """A tuner that is asked only at its end what it would name, since that takes longer than all else.

    Args:
        tuner: The tuner.
        most: Trainings that it may ask for; one that repeats another to the bit spends no step.
    """

    def __init__(self, tuner: Any, most: int) -> None:
        self._ask, self._report, self.end = tuner.ask, tuner.report, tuner.end
        self._left = most

    def ask(self) -> Job | None:
        if not self._left:
            return None
        job: Job | None = self._ask()
        self._left -= job is not None
        return job

    def report(self, job: Job, step: int, value: float) -> Wish:
        wish: Wish = self._report(job, step, value)
        return wish

    def selected(self) -> Parameters | None:
        return None


def one(name: str, tuner_name: str, draw: int, budget: int) -> list[dict[str, Any]]:
    """Return what one search came to, named in each way that there is."""
    world, began = WORLDS[name](draw), time.process_time()
    tuner = TUNERS[tuner_name](world, draw)  # type: ignore[arg-type]
    trace = simulate(
        world,  # type: ignore[arg-type]
        lambda: AtTheEnd(tuner, _MOST * budget),  # type: ignore[arg-type, return-value]
        budget=budget * world.total_steps,
        workers=_WORKERS,
        seed=draw,
    )
    seconds = time.process_time() - began
    sets = {json.dumps(each, sort_keys=True) for each in trace.asked}
    same = {"kind": name, "draw": draw, "budget": budget, "asked": len(trace.asked), "sets": len(sets)}
    named = {tuner_name: tuner.named(_CANDIDATES)}
    if tuner_name == "Optuna GP":
        named[_BY_SURROGATE] = by_surrogate(world, tuner)
    return [
        {
            **same,
            "tuner": by,
            "share": world.worth(found[0]),
            "rerun": _rerun(world, found),
            "seconds": seconds,
        }
        for by, found in named.items()
    ]


def by_surrogate(world: Unseen, tuner: Optuna) -> list[Parameters]:
    """Return what tempopt would name of another tuner's trials."""
    features = Features(world.spec)
    strategy = KnowledgeGradient(
        world.spec.space(),
        lambda sampled: features(world.spec.parameters("search", sampled)),
        maximize=True,
        streams=None,
        seed=world.draw,
    )
    found = strategy.recommend(tuner.trials(), count=_CANDIDATES, seed=world.draw)
    return [world.spec.parameters("search", each) for each in found] or tuner.named(_CANDIDATES)


def _rerun(world: Unseen, named: Sequence[Parameters]) -> float:
    """Return the true share of the set that is best on fresh seeds."""
    seeds = range(_FRESH, _FRESH + _FRESH_SEEDS)
    means = [np.mean([world.train(each, seed).final[-1] for seed in seeds]) for each in named]
    return world.worth(named[int(np.argmax(means))])


def known(lines: Path) -> list[dict[str, Any]]:
    """Return what there is of all searches."""
    return [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []


def shares(results: Sequence[dict[str, Any]], tuner: str, what: str) -> dict[tuple[str, int], float]:
    """Return what a tuner came to, by class and draw.

    Args:
        results: What there is.
        tuner: The tuner.
        what: ``share`` or ``rerun``.
    """
    return {(each["kind"], each["draw"]): each[what] for each in results if each["tuner"] == tuner}


def difference(one: dict[tuple[str, int], float], other: dict[tuple[str, int], float]) -> str:
    """Return the mean paired difference over the classes as text, with its 95 % interval by bootstrap.

    The mean is over classes, and draws are drawn again within each.
    """
    pairs: dict[str, list[float]] = {}
    for kind, draw in sorted(one.keys() & other.keys()):
        pairs.setdefault(kind, []).append(one[kind, draw] - other[kind, draw])
    rng, again = np.random.default_rng(0), np.zeros(_BOOTSTRAPS)
    for each in pairs.values():
        drawn = rng.integers(len(each), size=(_BOOTSTRAPS, len(each)))
        again += np.array(each)[drawn].mean(axis=1) / len(pairs)
    low, high = np.quantile(again, [0.025, 0.975])
    mean = np.mean([np.mean(each) for each in pairs.values()])
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"


def show(results: Sequence[dict[str, Any]], ours: str) -> None:
    """Print the means of each class and of all, and the paired differences to tempopt.

    Args:
        results: What there is.
        ours: The tuner that the others are compared with.
    """
    names = [ours, *(n for n in dict.fromkeys(each["tuner"] for each in results) if n != ours)]
    for what, title in (("share", "named by the tuner"), ("rerun", "best of three on four fresh seeds")):
        found = {name: shares(results, name, what) for name in names}
        print(f"\n**{title}**\n\n| class | draws | {' | '.join(names)} |\n{'|---' * (len(names) + 2)}|")
        kinds = [kind for kind in WORLDS if any(key[0] == kind for key in found[ours])]
        for kind in kinds:
            cells = [[v for key, v in found[n].items() if key[0] == kind] for n in names]
            text = " | ".join(f"{np.mean(cell):.2f}" if cell else "" for cell in cells)
            print(f"| {kind} | {len(cells[0])} | {text} |")
        means = [_mean_of_classes(found[name], kinds) for name in names]
        print(f"| mean of the classes | {len(found[ours])} | {' | '.join(f'{m:.2f}' for m in means)} |")
        print(f"\n| {ours} less | {' | '.join(names[1:])} |\n{'|---' * len(names)}|")
        for kind in (*kinds, None):
            cells = [
                difference(_of(found[ours], kind), _of(found[name], kind))
                if _of(found[name], kind)
                else ""
                for name in names[1:]
            ]  # fmt: skip
            print(f"| {kind or 'mean of the classes'} | {' | '.join(cells)} |")


def _of(found: dict[tuple[str, int], float], kind: str | None) -> dict[tuple[str, int], float]:
    return {key: value for key, value in found.items() if kind in (None, key[0])}


def _mean_of_classes(found: dict[tuple[str, int], float], kinds: Sequence[str]) -> float:
    by_kind = [[value for key, value in found.items() if key[0] == kind] for kind in kinds]
    return float(np.mean([np.mean(each) for each in by_kind if each]))


def main() -> None:
    """Simulate, or print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", default=list(WORLDS))
    parser.add_argument("--tuners", nargs="*", default=list(_TUNERS))
    parser.add_argument("--draws", type=int, default=20, help="worlds of each class")
    parser.add_argument("--first", type=int, default=0, help="first draw")
    parser.add_argument("--step", type=int, default=1, help="2 and --first 1: those held back")
    parser.add_argument("--budget", type=int, default=40, help="full trainings")
    parser.add_argument("--results", type=Path, default=_LINES)
    parser.add_argument("--table", action="store_true", help="print what there is")
    parser.add_argument("--half", choices=["held back", "chosen on", "all"], default="held back")
    parser.add_argument("--ours", default="tempopt", help="what the others are compared with in the table")
    given = parser.parse_args()
    results = known(given.results)
    if given.table:
        show([each for each in results if given.half in (half(each["draw"]), "all")], given.ours)
        return
    done = {(each["kind"], each["draw"], each["tuner"]) for each in results}
    given.results.parent.mkdir(parents=True, exist_ok=True)
    for draw in range(given.first, given.first + given.draws * given.step, given.step):
        for kind in given.kinds:
            for tuner in given.tuners:
                if (kind, draw, tuner) not in done:
                    with given.results.open("a") as file:
                        file.writelines(
                            f"{json.dumps(each)}\n" for each in one(kind, tuner, draw, given.budget)
                        )
        print(f"draw {draw}", flush=True)


if __name__ == "__main__":
    main()
