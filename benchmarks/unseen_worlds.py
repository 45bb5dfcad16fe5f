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
from benchmarks.simulated.unseen import WORLDS, UnseenWorld, half
from tempopt.sampling.features import Features
from tempopt.sampling.knowledge_gradient import KnowledgeGradient

Array = NDArray[np.float64]

_LINES = Path("build/unseen.jsonl")
_TUNERS = ("tempopt", "Optuna TPE, Median", "Optuna GP", "Optuna random")
_WORKERS = 4
_BUDGET_FACTOR = 4
_CANDIDATES, _FRESH_SEEDS = 3, 4
_FRESH = 10**6
_BOOTSTRAPS = 4000
_BY_SURROGATE = "Optuna GP, by the surrogate"


class EndTuner:
    """A tuner that is asked only at its end what it would name, since that takes longer than all else.

    Args:
        tuner: The tuner.
        budget: Trainings that it may ask for; one that repeats another to the bit spends no step.
    """

    def __init__(self, tuner: Any, budget: int) -> None:
        self._ask, self._report, self.end = tuner.ask, tuner.report, tuner.end
        self._remaining = budget

    def ask(self) -> Job | None:
        if not self._remaining:
            return None
        job: Job | None = self._ask()
        self._remaining -= job is not None
        return job

    def report(self, job: Job, step: int, value: float) -> Wish:
        wish: Wish = self._report(job, step, value)
        return wish

    def best_set(self) -> Parameters | None:
        return None


def run_search(name: str, tuner_name: str, draw: int, budget: int) -> list[dict[str, Any]]:
    """Return what one search came to, named in each way that there is."""
    world, start_time = WORLDS[name](draw), time.process_time()
    tuner = TUNERS[tuner_name](world, draw)  # type: ignore[arg-type]
    trace = simulate(
        world,  # type: ignore[arg-type]
        lambda: EndTuner(tuner, _BUDGET_FACTOR * budget),  # type: ignore[arg-type, return-value]
        budget=budget * world.total_steps,
        workers=_WORKERS,
        seed=draw,
    )
    seconds = time.process_time() - start_time
    sets = {json.dumps(params, sort_keys=True) for params in trace.parameter_sets}
    common_fields = {
        "kind": name,
        "draw": draw,
        "budget": budget,
        "asked": len(trace.parameter_sets),
        "sets": len(sets),
    }
    normalize_sets = {tuner_name: tuner.best_sets(_CANDIDATES)}
    if tuner_name == "Optuna GP":
        normalize_sets[_BY_SURROGATE] = by_surrogate(world, tuner)
    return [
        {
            **common_fields,
            "tuner": tuner_label,
            "share": world.worth(sets_of_tuner[0]),
            "rerun": _rerun(world, sets_of_tuner),
            "seconds": seconds,
        }
        for tuner_label, sets_of_tuner in normalize_sets.items()
    ]


def by_surrogate(world: UnseenWorld, tuner: Optuna) -> list[Parameters]:
    """Return what tempopt would name of another tuner's trials."""
    features = Features(world.spec)
    strategy = KnowledgeGradient(
        world.spec.space(),
        lambda sampled_params: features(world.spec.parameters("search", sampled_params)),
        maximize=True,
        num_seeds=None,
        seed=world.draw,
    )
    recommended_sets = strategy.recommend(tuner.trials(), count=_CANDIDATES, seed=world.draw)
    return [world.spec.parameters("search", params) for params in recommended_sets] or tuner.best_sets(
        _CANDIDATES
    )


def _rerun(world: UnseenWorld, sets: Sequence[Parameters]) -> float:
    """Return the true share of the set that is best on fresh seeds."""
    seeds = range(_FRESH, _FRESH + _FRESH_SEEDS)
    means = [np.mean([world.train(params, seed).final[-1] for seed in seeds]) for params in sets]
    return world.worth(sets[int(np.argmax(means))])


def load_results(lines: Path) -> list[dict[str, Any]]:
    """Return what there is of all searches."""
    return [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []


def shares(results: Sequence[dict[str, Any]], tuner: str, quantity: str) -> dict[tuple[str, int], float]:
    """Return what a tuner came to, by class and draw.

    Args:
        results: What there is.
        tuner: The tuner.
        quantity: ``share`` or ``rerun``.
    """
    return {
        (result["kind"], result["draw"]): result[quantity] for result in results if result["tuner"] == tuner
    }


def difference(scores: dict[tuple[str, int], float], other_scores: dict[tuple[str, int], float]) -> str:
    """Return the mean paired difference over the classes as text, with its 95 % interval by bootstrap.

    The mean is over classes, and draws are drawn again within each.
    """
    pairs: dict[str, list[float]] = {}
    for kind, draw in sorted(scores.keys() & other_scores.keys()):
        pairs.setdefault(kind, []).append(scores[kind, draw] - other_scores[kind, draw])
    rng, bootstrap_means = np.random.default_rng(0), np.zeros(_BOOTSTRAPS)
    for differences in pairs.values():
        indices = rng.integers(len(differences), size=(_BOOTSTRAPS, len(differences)))
        bootstrap_means += np.array(differences)[indices].mean(axis=1) / len(pairs)
    low, high = np.quantile(bootstrap_means, [0.025, 0.975])
    mean = np.mean([np.mean(differences) for differences in pairs.values()])
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"


def show(results: Sequence[dict[str, Any]], own_tuner: str) -> None:
    """Print the means of each class and of all, and the paired differences to tempopt.

    Args:
        results: What there is.
        own_tuner: The tuner that the others are compared with.
    """
    names = [own_tuner, *(n for n in dict.fromkeys(result["tuner"] for result in results) if n != own_tuner)]
    for quantity, title in (("share", "named by the tuner"), ("rerun", "best of three on four fresh seeds")):
        scores = {name: shares(results, name, quantity) for name in names}
        print(f"\n**{title}**\n\n| class | draws | {' | '.join(names)} |\n{'|---' * (len(names) + 2)}|")
        kinds = [kind for kind in WORLDS if any(key[0] == kind for key in scores[own_tuner])]
        for kind in kinds:
            cells = [[v for key, v in scores[n].items() if key[0] == kind] for n in names]
            text = " | ".join(f"{np.mean(cell):.2f}" if cell else "" for cell in cells)
            print(f"| {kind} | {len(cells[0])} | {text} |")
        means = [_mean_of_classes(scores[name], kinds) for name in names]
        print(f"| mean of the classes | {len(scores[own_tuner])} | {' | '.join(f'{m:.2f}' for m in means)} |")
        print(f"\n| {own_tuner} less | {' | '.join(names[1:])} |\n{'|---' * len(names)}|")
        for kind in (*kinds, None):
            cells = [
                difference(_scores_of(scores[own_tuner], kind), _scores_of(scores[name], kind))
                if _scores_of(scores[name], kind)
                else ""
                for name in names[1:]
            ]  # fmt: skip
            print(f"| {kind or 'mean of the classes'} | {' | '.join(cells)} |")


def _scores_of(scores: dict[tuple[str, int], float], kind: str | None) -> dict[tuple[str, int], float]:
    return {key: value for key, value in scores.items() if kind in (None, key[0])}


def _mean_of_classes(scores: dict[tuple[str, int], float], kinds: Sequence[str]) -> float:
    by_kind = [[value for key, value in scores.items() if key[0] == kind] for kind in kinds]
    return float(np.mean([np.mean(class_values) for class_values in by_kind if class_values]))


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
    args = parser.parse_args()
    results = load_results(args.results)
    if args.table:
        show([result for result in results if args.half in (half(result["draw"]), "all")], args.ours)
        return
    done_keys = {(result["kind"], result["draw"], result["tuner"]) for result in results}
    args.results.parent.mkdir(parents=True, exist_ok=True)
    for draw in range(args.first, args.first + args.draws * args.step, args.step):
        for kind in args.kinds:
            for tuner in args.tuners:
                if (kind, draw, tuner) not in done_keys:
                    with args.results.open("a") as file:
                        file.writelines(
                            f"{json.dumps(result)}\n" for result in run_search(kind, tuner, draw, args.budget)
                        )
        print(f"draw {draw}", flush=True)


if __name__ == "__main__":
    main()
