"""How often does a comparison of given sets show a gain where there is none, and how often one that there is?

Which runs there are, when they end and what is shown is decided by tempopt/verdict/set_comparison.py.
Each run is any recorded training of a task, whatever its parameters, so that no set is better than another.
With ``--gain`` the first variant is better by that many standard deviations of the recorded values. With
``--all-pairs`` each two of two and of four sets are compared, and ``better`` is that any difference is shown;
with ``--gain`` also how often the first variant is taken.

    python -m benchmarks.comparisons --comparisons 250          # of each task
    python -m benchmarks.comparisons --comparisons 250 --all-pairs
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from statistics import stdev
from typing import Any

from scipy.stats import binomtest

from benchmarks.recorded.tasks import TASKS
from benchmarks.recorded.world import RecordedWorld
from benchmarks.simulated.whole import row
from tempopt.spec.comparison_spec import comparison_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import NewTicket, TicketRow
from tempopt.verdict.set_comparison import Comparison, check_comparison, evaluate_comparison
from tempopt.verdict.stages import initial_tickets, next_tickets

_SETTINGS: dict[str, dict[str, Any]] = {
    "8 pairs": {"seeds": {"confirm": 8}},
    "4 to 16 pairs": {"seeds": {"confirm": {"min": 4, "max": 16}}},
}
_VARIANTS = (1, 3)
_NUM_SEEDS = 200


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--comparisons", type=int, default=250, help="of each task")
    parser.add_argument(
        "--gain", type=float, default=0.0, help="of the first variant, in standard deviations"
    )
    parser.add_argument("--all-pairs", action="store_true", help="compare each two sets")
    args = parser.parse_args()
    print("| pairs | variants | comparisons | better shown | only losses | first variant taken | runs |")
    print("|---|---|---|---|---|---|---|", flush=True)
    tasks = [_Task(task, args.gain) for task in args.tasks]
    for name, study in _SETTINGS.items():
        for variants in _VARIANTS:
            comparisons = [
                _run_comparison(task, task.spec({**study, "all_pairs": args.all_pairs}, variants, seed))
                for task in tasks
                for seed in range(args.comparisons)
            ]
            print(_line(name, variants, comparisons), flush=True)


def _line(name: str, variants: int, comparisons: Sequence[tuple[Comparison, int]]) -> str:
    num_studies = len(comparisons)
    num_better = sum(comparison.outcome == "better" for comparison, _ in comparisons)
    num_worse = sum(comparison.outcome == "worse" for comparison, _ in comparisons)
    low, high = binomtest(num_better, num_studies).proportion_ci()
    runs = sum(count for _, count in comparisons) / num_studies
    better_text = f"{num_better}: {num_better / num_studies:.1%} ({low:.1%} to {high:.1%})"
    share_taken = (
        sum(comparison.recommended_set == comparison.variants[0].name for comparison, _ in comparisons)
        / num_studies
    )
    worse_text = f"{num_worse}: {num_worse / num_studies:.1%}"
    return (
        f"| {name} | {variants} | {num_studies} | {better_text} | {worse_text} "
        f"| {share_taken:.1%} | {runs:.1f} |"
    )


class _Task:
    """One task: its world, the sets that are compared in it, and what the first variant gains."""

    def __init__(self, name: str, gain: float) -> None:
        self.world = RecordedWorld(name, is_shuffled=True)
        # any that differ: no set is better than another
        self._sets = self.world.draw_sets(0)[: 1 + max(_VARIANTS)]
        values = [self.world.train(self._sets[0], seed).test for seed in range(_NUM_SEEDS)]
        sign = 1.0 if self.world.spec.study.direction == "maximize" else -1.0
        self.gain = sign * gain * stdev(values)

    def spec(self, study: Mapping[str, Any], variants: int, seed: int) -> StudySpec:
        """Return the spec of one comparison."""
        data = self.world.spec.to_json()
        data["study"] = {**data["study"], "test": "t", **study, "seed": seed}
        return comparison_spec(data, self._sets[: 1 + variants])


def _run_comparison(task: _Task, spec: StudySpec) -> tuple[Comparison, int]:
    """Return what a comparison found, and how many runs it took."""
    check_comparison(spec)
    rows: list[TicketRow] = []
    new_tickets = initial_tickets(spec)
    while new_tickets:
        rows += [_train_ticket(task, spec, ticket, len(rows) + n) for n, ticket in enumerate(new_tickets)]
        new_tickets = next_tickets(rows, spec)
    comparison = evaluate_comparison(rows, spec)
    assert comparison is not None
    return comparison, len(rows)


def _train_ticket(task: _Task, spec: StudySpec, ticket: NewTicket, id: int) -> TicketRow:
    assert ticket.parameters is not None and spec.compare is not None
    value = float(task.world.train(ticket.parameters, ticket.seed).test)
    value += task.gain * (ticket.arm == spec.compare[1].name)
    return row(ticket, id, state="done", outcome="complete", value=value)


if __name__ == "__main__":
    main()
