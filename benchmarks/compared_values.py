"""How often are equal values of a parameter shown to differ, and is the right value recommended?

Which runs there are, when they end, what is shown and recommended is tempopt's own code
(tempopt/confirmation/values.py). Each run is any recorded training of a task, whatever its parameters, plus
what its value is worth in standard deviations of the recorded values: nothing (``alike``), less for the
smallest (``small is worse``), or more for the largest (``large is better``). Searches draw at random.

    python -m benchmarks.compared_values --studies 250          # of each task
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import stdev
from typing import Any

import numpy as np
from scipy.stats import binomtest

from benchmarks.recorded.tasks import TASKS
from benchmarks.recorded.world import World
from tempopt.confirmation.values import ValuesCompared, values_compared
from tempopt.forecast.outcomes import carried_out
from tempopt.records.rows import NewTicket, TicketRow
from tempopt.records.tickets import oriented
from tempopt.sampling.unit_cube import at_places
from tempopt.seeds import derive
from tempopt.spec.study_spec import StudySpec

_HEADS = (1, 2, 4, 8)
_WORLDS: dict[str, dict[int, float]] = {
    "alike": {},
    "small is worse": {1: -2.0},
    "large is better": {8: 2.0},
}
_SETTINGS: dict[str, dict[str, Any]] = {
    "8 pairs": {"seeds": {"choose": 2, "confirm": 8}},
    "4 to 16 pairs": {"seeds": {"choose": 2, "confirm": {"min": 4, "max": 16}}},
    "20 pairs, sign_flip": {"seeds": {"choose": 2, "confirm": 20}, "test": "sign_flip"},
}
_DRAWN = 200


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--studies", type=int, default=250, help="of each task")
    given = parser.parse_args()
    tasks = [Task(task) for task in given.tasks]
    print(
        "| world | pairs | studies | difference shown | recommended: 1, 2, 4, 8 | truth within bound | runs |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    for world, worth in _WORLDS.items():
        for name, study in _SETTINGS.items():
            found = [task.study(study, worth, seed) for task in tasks for seed in range(given.studies)]
            print(_line(world, name, found), flush=True)


def _line(world: str, name: str, found: Sequence[tuple[ValuesCompared, int, bool]]) -> str:
    many = len(found)
    shown = sum(each.shown for each, _, _ in found)
    low, high = binomtest(shown, many).proportion_ci()
    taken = Counter(each.recommended.value for each, _, _ in found if each.recommended is not None)
    shares = ", ".join(f"{taken[heads] / many:.0%}" for heads in _HEADS)
    within = sum(holds for _, _, holds in found) / many
    runs = sum(count for _, count, _ in found) / many
    told = f"{shown}: {shown / many:.1%} ({low:.1%} to {high:.1%})"
    return f"| {world} | {name} | {many} | {told} | {shares} | {within:.1%} | {runs:.0f} |"


class Task:
    """One task: its world, in which no configuration is better than another, and how large its noise is."""

    def __init__(self, name: str) -> None:
        self.world = World(name, shuffled=True)
        drawn = self.world.drawn(0)[0]
        self.deviation = stdev(float(self.world.train(drawn, seed).test) for seed in range(_DRAWN))

    def study(
        self, study: Mapping[str, Any], worth: Mapping[int, float], seed: int
    ) -> tuple[ValuesCompared, int, bool]:
        """Return what a study found, how many runs it took, and whether what is lost is within its bound."""
        data = self.world.spec.to_json()
        own = {"name": data["study"]["name"], "metric": data["study"]["metric"]}
        own |= {"direction": data["study"]["direction"], "compare": "num_heads", "trials": 12, "seed": seed}
        data["model"]["init_args"].pop("num_heads", None)
        data["search"] = {"num_heads": list(_HEADS), **data["search"]}
        data["study"] = {**own, **study}
        spec = StudySpec.parse(data, source="the benchmark")
        rows = carried_out(spec, _Trained(self, spec, worth)).rows
        found = values_compared(rows, spec)
        assert found is not None and found.recommended is not None
        best = max(worth.get(heads, 0.0) for heads in _HEADS)
        lost = (best - worth.get(found.recommended.value, 0.0)) * self.deviation
        return found, len(rows), lost <= found.at_most_lost


class _Trained:
    """Runs of a study: points drawn at random, and any recorded training for each."""

    def __init__(self, task: Task, spec: StudySpec, worth: Mapping[int, float]) -> None:
        self._task, self._spec, self._worth = task, spec, worth

    def sampled(self, ticket: NewTicket, place: int) -> dict[str, Any]:
        space = self._spec.space()
        rng = np.random.default_rng(derive(self._spec.study.seed, "drawn", place))
        return at_places(space, rng.random(len(space)).tolist())

    def value(self, row: TicketRow) -> float:
        parameters = row.parameters or {}
        # of the same plan with another number of heads the training is another one
        seed = derive(row.seed, parameters["num_heads"])
        value = oriented(float(self._task.world.train(parameters, seed).test), self._spec.study.direction)
        return value + self._worth.get(parameters["num_heads"], 0.0) * self._task.deviation


if __name__ == "__main__":
    main()
