"""What does it cost to get the answer, in optimizer steps at full size, by each way to search?

The ways are plain search (the default sampler over start, end and shape), ``hold`` (the same sampler over
schedules with common beginnings), ``population`` and ``proxy`` (benchmarks/simulated/answers.py). Each study
is whole: arms, choosing, transfer and confirmation are tempopt's own, and it goes on until the interval of
its primary answer excludes 0. Counted are the steps of all its runs; regret is what is named behind the best.
Worths are such that more is better: those of a loss have the other sign.

    python -m benchmarks.answer_cost courses --draws 12     # worlds in closed form, all ways
    python -m benchmarks.answer_cost recorded --draws 8     # recorded curves: plain and hold
    python -m benchmarks.answer_cost trained --draws 3      # real trainings, all ways
    python -m benchmarks.answer_cost trained --task clip_digits --way proxy
    python -m benchmarks.answer_cost courses --table

Results are lines of a file below build/, and a study that is there is not run again.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.population import BINS, KINDS, Course
from benchmarks.recorded.tasks import TASKS as RECORDED
from benchmarks.recorded.world import Training, World
from benchmarks.simulated.answers import (
    Parameters,
    Priced,
    Way,
    answered,
    asking,
    keep,
    known,
    median,
    until_shown,
    ways,
)
from benchmarks.simulated.whole import with_study
from tempopt.spec.study_spec import StudySpec

LINES = Path("build/answer_cost.jsonl")
AGREEMENTS = (0.9, 0.5)
"""Correlations of the best course of ln τ on the proxy with that at full size."""
SHARE = 0.25
"""What a step of a proxy costs in the worlds in closed form, in steps at full size: it is a quarter of it."""

Record = dict[str, Any]
Job = tuple[str, int, Callable[[], Iterator[Record]]]


class Answering(Course):
    """A world in closed form, in which members of a population end where their intervals do.

    Args:
        name: Its class.
        draw: Which of the class.
        agreement: Correlation of its best course with that of full size, of which it is the proxy.
    """

    def __init__(self, name: str, draw: int, agreement: float = 1.0) -> None:
        super().__init__(name, draw, {"temperature_init": {"low": 0.25, "high": 4.0}})
        if agreement < 1.0:
            other = Course(name, draw + 10_000, {"temperature_init": {"low": 0.25, "high": 4.0}})
            self._best = agreement * self._best + math.sqrt(1.0 - agreement**2) * other._best
            self._gain = float(self._weights @ self._best**2)

    def train(self, parameters: Parameters, seed: int) -> Training:
        training = super().train(parameters, seed)
        return Training(final=training.final, current=training.current, test=float(training.final[-1]))

    def reached(self, parameters: Parameters, seed: int, until: float) -> float:
        """Return what a validation shows at a progress, at the temperature of the moment."""
        return float(self.shown(parameters, seed)[max(round(until * BINS) - 1, 0)])


def in_courses(name: str, draw: int) -> Iterator[Record]:
    """Yield what came of each way in a world in closed form; regret is in units of the known gain."""
    for way, made in ways().items():
        for agreement in AGREEMENTS if way == "proxy" else (1.0,):
            world = Answering(name, draw)
            small = Answering(name, draw, agreement) if way == "proxy" else None
            study = Priced(world, asking(world.spec, made, seed=draw), small)
            called = way if small is None else f"{way}, agreement {agreement:g}"
            yield {"way": called, "best": 1.0, "verdicts": answered(study, world.worth, made.more)}


def _recorded_ways(spec: StudySpec) -> dict[str, Way]:
    """Return the ways that recorded curves can tell of; each searches what its task does besides."""
    made, bundled = ways(trials=16), spec.to_json()["search"]
    others = {name: each for name, each in bundled.items() if name in spec.other_names}
    scaling = {name: each for name, each in bundled.items() if name == "length_scaling"}
    hold = {**others, **scaling, **made["hold"].search}
    return {
        "plain": Way(search=bundled, study={"trials": 16}, more=16),
        "hold": Way(search=hold, study=made["hold"].study, more=16),
    }


def in_recorded(world: World, draw: int) -> Iterator[Record]:
    """Yield what came of each way on recorded curves; regret is in the task's metric."""
    sign = 1.0 if world.spec.study.direction == "maximize" else -1.0
    bundled = world.spec.study.seeds
    # as in the other parts, or more where the bundled study takes more
    seeds = {"choose": bundled.choose, "confirm": {"min": 4, "max": max(16, bundled.confirm.max)}}

    def worth(parameters: Parameters) -> float:
        return sign * (world.truth([parameters])[0] if parameters else world.baseline)

    for way, made in _recorded_ways(world.spec).items():
        spec = asking(world.spec, made, seed=draw, seeds=seeds)
        verdicts = answered(Priced(world, spec), worth, made.more)
        yield {"way": way, "best": sign * world.best, "verdicts": verdicts}


def in_trained(name: str, draw: int, only: str = "") -> Iterator[Record]:
    """Yield what came of each way with real trainings; regret is in the task's metric, on fresh seeds.

    The best is not known: regret is counted from the best of all that is named, when the table is made.

    Args:
        name: The task.
        draw: Seed of the studies.
        only: The way that alone is gone; empty: all are.
    """
    from benchmarks.small_training import TASKS, Trained, fresh

    task = TASKS[name]
    for way, made in ways(space=task.space).items():
        if only not in ("", way):
            continue
        world, small = Trained(task), Trained(task, small=True) if way == "proxy" else None
        search = asking(task.spec, made, seed=draw)
        if small is not None:
            proxy = {"set": dict(task.proxy), "temperature": "same", "finalists": 3}
            search = with_study(search, proxy=proxy)
        study = Priced(world, search, small)
        verdicts = answered(study, lambda each: task.sign * float(np.mean(fresh(task, each))), made.more)
        yield {"way": way, "best": math.nan, "verdicts": verdicts}


def steps_in(total: int, records: Sequence[Record], share: float) -> list[float]:
    """Return the whole trainings until the answers of studies were shown; ∞: never."""
    return [each / total for each in until_shown(records, share)]


def row(records: Sequence[Record], total: int, share: float) -> str:
    """Return a line of a table of studies that differ in their draw alone."""
    spent = steps_in(total, records, share)
    shown = [each["verdicts"][-1]["shown"] for each in records]
    firsts = [each["verdicts"][0] for each in records]
    regrets = [each["best"] - each["verdicts"][-1]["worth"] for each in records]
    first = [(each["full"] + share * each["proxy"]) / total for each in firsts]
    searched = [each["verdicts"][-1]["search"] / total for each in records]
    middle = median(spent)
    reached = f"{middle:.1f}" if math.isfinite(middle) else "not shown"
    cells = (
        str(len(records)),
        f"{np.mean(first):.1f}",
        f"{np.mean([each['shown'] for each in firsts]):.0%}",
        f"{np.mean(shown):.0%}",
        reached,
        f"{np.mean(searched):.1f}",
        f"{np.mean([each['verdicts'][-1]['proxy'] / total for each in records]):.1f}",
        _said(regrets),
    )
    return " | ".join(cells)


def _said(values: Sequence[float]) -> str:
    error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{np.mean(values):.3f} ± {error:.3f}"


_HEAD = (
    "studies | trainings to the first verdict | shown by it | shown at all | median trainings until shown "
    "| of these searched | of the proxy | regret"
)


def table(records: Sequence[Record], totals: Mapping[str, int], shares: Mapping[str, float]) -> Iterator[str]:
    """Yield what there is, world by world and way by way."""
    yield f"| world | way | {_HEAD} |"
    yield "|---|---|" + "---|" * (_HEAD.count("|") + 1)
    for world in dict.fromkeys(each["world"] for each in records):
        for way in dict.fromkeys(each["way"] for each in records if each["world"] == world):
            own = [each for each in records if (each["world"], each["way"]) == (world, way)]
            yield f"| {world} | {way} | {row(own, totals[world], shares[world])} |"


def _run(part: str, jobs: Sequence[Job], minutes: float, way: str) -> None:
    """Run what is missing and write it down.

    Args:
        part: Part of the benchmark.
        jobs: What there is to run of it.
        minutes: Begin nothing after so long.
        way: The way that shows that a draw was run.
    """
    end = time.monotonic() + 60 * minutes
    for world, draw, job in jobs:
        key = part, world, draw
        there = {each["way"] for each in known(LINES) if (each["part"], each["world"], each["draw"]) == key}
        if way in there:
            continue
        if time.monotonic() > end:
            return
        began = time.process_time()
        # a world's ways are compared on the same draws: all of a draw or none
        found = list(job())
        for each in found:
            if each["way"] in there:
                continue
            keep({"part": part, "world": world, "draw": draw, **each}, LINES)
        print(f"{part} {world} {draw}: {time.process_time() - began:.1f} CPU s", flush=True)


def _courses(draws: int) -> Iterator[Job]:
    # odd ones, as in benchmarks.population: on even ones the population's steps were chosen
    for draw, name in itertools.product(range(1, 2 * draws, 2), KINDS):
        yield name, draw, lambda name=name, draw=draw: in_courses(name, draw)


def main() -> None:
    """Simulate, train or print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["courses", "recorded", "trained"])
    parser.add_argument("--draws", type=int, default=8, help="studies of each way in each world")
    parser.add_argument("--task", default="", help="of the trained ones, this alone")
    parser.add_argument("--way", choices=list(ways()), help="of the trained ones, this alone")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no more after so long")
    parser.add_argument("--table", action="store_true", help="print what there is")
    given = parser.parse_args()
    jobs, totals, shares = _part(given.part, given.draws, given.way or "")
    jobs = [each for each in jobs if each[0].startswith(given.task)]
    # every part begins with plain search
    _run(given.part, jobs, 0.0 if given.table else given.minutes, given.way or "plain")
    records = [each for each in known(LINES) if each["part"] == given.part]
    if given.part == "trained":
        best = {
            world: max(
                verdict["worth"] for each in records if each["world"] == world for verdict in each["verdicts"]
            )
            for world in {each["world"] for each in records}
        }
        records = [{**each, "best": best[each["world"]]} for each in records]
    print("\n".join(table(records, totals, shares)))


def _part(part: str, draws: int, way: str) -> tuple[list[Job], dict[str, int], dict[str, float]]:
    """Return what a part consists of, the steps of a training by world, and the price of a proxy's step."""
    if part == "courses":
        totals = dict.fromkeys(KINDS, Course.total_steps)
        return list(_courses(draws)), totals, dict.fromkeys(totals, SHARE)
    if part == "recorded":
        worlds = {task: World(task) for task in RECORDED}
        jobs: list[Job] = [
            (task, draw, lambda world=world, draw=draw: in_recorded(world, draw))
            for draw in range(draws)
            for task, world in worlds.items()
        ]
        totals = {task: world.total_steps for task, world in worlds.items()}
        return jobs, totals, dict.fromkeys(totals, SHARE)
    from benchmarks.small_training import TASKS, share

    names = {f"{task.name}, {task.total} steps": task for task in TASKS.values()}
    trained: list[Job] = [
        (world, draw, lambda task=task, draw=draw: in_trained(task.name, draw, way))
        for draw in range(draws)
        for world, task in names.items()
    ]
    totals = {world: task.total for world, task in names.items()}
    return trained, totals, {world: share(task) for world, task in names.items()}


if __name__ == "__main__":
    main()
