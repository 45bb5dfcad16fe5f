"""Does `tempopt plan` say what then happens, and do its ranges hold?

    python -m benchmarks.plan max_retrieval --set study.trials=10     # plans, searches, compares
    python -m benchmarks.plan --coverage        # how often a range holds the gain that can be shown
    python -m benchmarks.plan --correlation     # of runs that share a seed, in the recorded trainings
    python -m benchmarks.plan --pruning         # which share of its steps a sampled run trains

What is compared is runs and summed seconds of training, since the time that passes depends on what else the
machine does.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.recorded.make import known
from benchmarks.recorded.tasks import TASKS
from benchmarks.recorded.world import World
from benchmarks.simulated.whole import Whole, with_study
from tempopt.forecast.outcomes import CLEAR_GAIN, Drawn, Space, carried_out
from tempopt.forecast.power import CONFIDENCE, Known, detectable, known_of
from tempopt.forecast.runs import TRAINED
from tempopt.records.rows import SAMPLED, TicketRow
from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.store.store import Store
from tempopt.study import api

_CORRELATIONS = (0.0, 0.25, 0.5, 0.75)
_SEEDS = 6
# of the recorded configurations, those that candidates come from
_BETTER = 0.5


def compare(name: str, overrides: Sequence[str], workers: int, storage: str | None = None) -> Iterator[str]:
    """Plan a study, carry it out in an empty database or the one given, and yield the two side by side."""
    spec = load_spec(name, overrides)
    with tempfile.TemporaryDirectory() as folder:
        url = storage or f"sqlite:///{folder}/plan.db"
        began = time.monotonic()
        plan = api.plan(spec, storage=url, workers=workers)
        planned, began = time.monotonic() - began, time.monotonic()
        result = api.search(spec, storage=url, workers=workers, checkpoints=Path(folder))
        passed = time.monotonic() - began
        again = api.plan(spec, storage=url, workers=workers)
        with Store.open(url, create=False) as store:
            tickets = store.tickets(store.load_study(spec.study.name).id)
    rows = [row for row in tickets if row.state == "done"]
    shown = result.verdict is not None and result.verdict.total.significant
    counts = Counter(row.kind for row in rows)
    trained = sum(row.seconds for row in rows)
    found = "a gain is shown" if shown else "no gain is shown"
    yield f"{spec.study.name}: {found}; the plan took {planned:.0f} s"
    yield "| | at least | expected | with that verdict | at most | happened | to what was expected |"
    yield "|---|---|---|---|---|---|---|"
    spans = {kind: (span, counts[kind]) for kind, span in plan.by_kind.items()}
    totals = {
        "runs": (plan.runs, len(rows)),
        "s of training": (plan.train_seconds, trained),
        "s that passed": (plan.seconds, passed),
    }
    for what, (span, happened) in {**spans, **totals}.items():
        of_verdict = span.with_gain if shown else span.without_gain
        numbers = (span.least, span.expected, of_verdict, span.most, happened)
        off = happened / span.expected - 1
        yield f"| {what} | {' | '.join(f'{each:.0f}' for each in numbers)} | {off:+.0%} |"
    if again.gain is not None and again.known is not None:
        low, high = again.gain
        yield f"Known after it: gains from {low:.3g} to {high:.3g} ({again.known.source})"


def coverage(studies: int) -> Iterator[str]:
    """Yield how often the ranges hold the smallest gain that can be shown, whatever runs they rest on.

    Whole studies in memory; runs are normal, and those that share a seed correlated.
    """
    yield "| study | correlation | baseline runs | choosing runs | confirming runs | high end / low end |"
    yield "|---|---|---|---|---|---|"
    for name in ("max_retrieval", "digits"):
        yield from _coverage(load_spec(name), studies)


def _coverage(spec: StudySpec, studies: int) -> Iterator[str]:
    able, space = detectable(spec), Space(spec)
    assert able is not None
    for correlation in _CORRELATIONS:
        held: dict[str, list[bool]] = defaultdict(list)
        wide: dict[str, list[float]] = defaultdict(list)
        for seed in range(studies):
            drawn = Drawn(space, gain=CLEAR_GAIN * (seed % 2), seed=seed, correlation=correlation)
            made = carried_out(spec, drawn)
            truth = able.effect * drawn.difference
            for source, found in _by_source(made.rows, spec).items():
                low, high = able.range(found)
                held[source].append(low <= truth <= high)
                wide[source].append(high / low)
        sources = ("baseline", "choose", "confirm")
        # by chance, runs that tune a learning rate may have equal ones
        shown = {each for each in sources if len(held[each]) > studies / 2}
        shares = " | ".join(f"{np.mean(held[each]):.1%}" if each in shown else "" for each in sources)
        widths = ", ".join(f"{np.median(wide[each]):.1f}" if each in shown else "–" for each in sources)
        yield f"| {spec.study.name} | {correlation:g} | {shares} | {widths} |"


def _by_source(rows: Sequence[TicketRow], spec: StudySpec) -> dict[str, Known]:
    found: dict[str, Known] = {}
    for source, kinds in (
        ("baseline", ("baseline",)),
        ("choose", ("baseline", "choose")),
        ("confirm", ("baseline", "choose", "confirm")),
    ):
        known_now = known_of([row for row in rows if row.kind in kinds], spec)
        if known_now is not None and known_now.source == source:
            found[source] = known_now
    return found


def correlation() -> Iterator[str]:
    """Yield how much runs of different configurations have in common if they share a seed."""
    yield "| task | configurations | standard deviation between seeds | correlation, all | the better half |"
    yield "|---|---|---|---|---|"
    for task in TASKS:
        values: dict[str, dict[int, float]] = defaultdict(dict)
        for row in known(task):
            if row["outcome"] == "complete":
                values[row["configuration"]][row["seed"]] = row["final_values"][-1]
        seeds = sorted({seed for each in values.values() for seed in each})
        table_CS = np.array([[each[s] for s in seeds] for each in values.values() if len(each) == len(seeds)])
        sign = 1 if TASKS[task].spec.study.direction == "maximize" else -1
        better = np.argsort(-sign * table_CS.mean(axis=1))[: int(len(table_CS) * _BETTER)]
        deviation = math.sqrt(table_CS.var(axis=1, ddof=1).mean())
        yield (
            f"| {task} | {len(table_CS)} | {deviation:.3g} | {_in_common(table_CS):.2f} | "
            f"{_in_common(table_CS[better]):.2f} |"
        )


def _in_common(table_CS: np.ndarray) -> float:
    """Return the mean covariance of two configurations over the seeds, as a share of the mean variance."""
    rest_CS = table_CS - table_CS.mean(axis=1, keepdims=True)
    configurations, seeds = rest_CS.shape
    covariances = (rest_CS.sum(axis=0) ** 2).sum() - (rest_CS**2).sum()
    mean = covariances / (configurations * (configurations - 1) * (seeds - 1))
    return float(mean / table_CS.var(axis=1, ddof=1).mean())


def pruning() -> Iterator[str]:
    """Yield the share of their steps that sampled runs train, in worlds of recorded trainings."""
    yield "| task | arm | runs of a study | trained |"
    yield "|---|---|---|---|"
    many: list[tuple[int, int]] = []
    for task in TASKS:
        world, steps, counts = World(task), defaultdict(list), Counter()
        for seed in range(_SEEDS):
            whole = Whole(world, with_study(world.spec, seed=100 + seed), shares=False)
            whole.run()
            for row in whole.rows:
                if row.kind in SAMPLED:
                    steps[row.kind].append((row.steps or 0, row.total_steps or 1))
                    counts[row.kind] += 1
        for kind, each in steps.items():
            runs = counts[kind] // _SEEDS
            trained = sum(done for done, _ in each) / sum(whole for _, whole in each)
            yield f"| {task} | {kind} | {runs} | {trained:.2f} |"
            # arms that tune nothing are not pruned, small ones hardly
            if runs >= 20:
                many += each
    share = sum(done for done, _ in many) / sum(whole for _, whole in many)
    yield f"All arms of at least 20 runs: {share:.3f}; tempopt plan reckons with {TRAINED}."


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", nargs="?", help="bundled study to plan and to carry out")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--storage", metavar="URL", help="where the study is kept; default: nowhere")
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("--studies", type=int, default=1000, help="simulated studies of --coverage")
    parser.add_argument("--correlation", action="store_true")
    parser.add_argument("--pruning", action="store_true")
    arguments = parser.parse_args()
    if arguments.study is not None:
        for line in compare(arguments.study, arguments.set, arguments.workers, arguments.storage):
            print(line, flush=True)
    if arguments.coverage:
        print(f"Nominal: {CONFIDENCE:.0%} at least.")
        for line in coverage(arguments.studies):
            print(line, flush=True)
    if arguments.correlation:
        print(*correlation(), sep="\n")
    if arguments.pruning:
        for line in pruning():
            print(line, flush=True)


if __name__ == "__main__":
    main()
