"""Does a budget of GPU-hours show more gains if it is split by `tempopt plan`, and is it kept?

Whole studies in worlds where it is known what temperature is worth (benchmarks/simulated/worlds.py), on a
simulated clock: a training takes what its steps take, a tenth more or less, and in the mean 5 % more than was
priced. Beside each study whose budget is planned there are one with the numbers of a default study and the
same limit, and one with all of these numbers made smaller alike until the budget holds it.

    python -m benchmarks.budget                          # 60 GPU-hours, trainings of one hour
    python -m benchmarks.budget --hours 60 --run 6       # what is said of too small a budget
    python -m benchmarks.budget --hours 360 --run 6
    python -m benchmarks.budget --hours 60 --run 6 --proxy 0.3   # the search trains a smaller model

With ``--proxy`` each world is looked at with proxies that agree with full size more or less: what a drawn
configuration gains on the proxy is correlated with what it gains at full size by one of :data:`AGREEMENTS`.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.simulated.courses import course
from benchmarks.simulated.luck import PAIR
from benchmarks.simulated.whole import Whole, with_study
from benchmarks.simulated.worlds import Gain, Made, world_of
from tempopt.agent.stopping import ended_by
from tempopt.confirmation.costs import MeanCosts, spent
from tempopt.confirmation.pairs import winner_of
from tempopt.errors import SpecError
from tempopt.forecast.outcomes import most
from tempopt.forecast.prices import costs_given
from tempopt.forecast.split import divided, split
from tempopt.records.rows import SEARCHING, TicketRow
from tempopt.sampling.unit_cube import at_places
from tempopt.spec.budget import NUMBERS, QUESTIONS
from tempopt.spec.model_sizes import full_size, size_of
from tempopt.spec.study_spec import StudySpec

WORLDS = ("null-0", "level-0@1", "level-0@2", "level-0@3", "schedule-0@2")

WITH_PROXY = ("null-0", "level-0@1", "level-0@2", "level-0@3")
AGREEMENTS = (0.9, 0.6, 0.0, -0.9)

WAYS = ("planned", "scaled", "default")

_HOUR = 3600.0
_DEARER, _UNEVEN = 1.05, 0.1

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Small(Made):
    """A world as its proxy shows it: in part by what it gains at full size, in part by schedules alone.

    Args:
        agreement: Correlation of what drawn configurations gain here and at full size.
    """

    agreement: float

    def _gained(self, parameters: Any, evaluated: Any) -> float:
        own, other = self._both(parameters)
        slope, scale = self._rest
        return self.agreement * own + float(np.sqrt(1 - self.agreement**2)) * scale * (other - slope * own)

    def _both(self, parameters: Any) -> tuple[float, float]:
        return super()._gained(parameters, None), Gain(of="schedule", size=1.0).trained(course(parameters))

    @cached_property
    def _rest(self) -> tuple[float, float]:
        """What share of the gain at full size to take off what schedules gain, and the scale of the rest."""
        if self.gain is None:
            return 0.0, 0.0
        draw, space = np.random.default_rng(0), self.spec.space("search")
        points = [at_places(space, draw.random(len(space)).tolist()) for _ in range(2000)]
        both = [self._both(self.spec.parameters("search", each)) for each in points]
        own_N, other_N = np.array(both).T
        slope = float(np.cov(own_N, other_N)[0, 1] / own_N.var(ddof=1))
        return slope, float(own_N.std() / (other_N - slope * own_N).std())


def small_of(world: Made, agreement: float) -> Small:
    """Return what the proxy shows of a world."""
    fields = {each.name: getattr(world, each.name) for each in dataclasses.fields(world)}
    return Small(**fields, agreement=agreement)


class Timed(Whole):
    """A study in memory whose trainings take time, and whose limits end its search.

    Args:
        world: What trainings come to.
        spec: The study's spec.
        costs: GPU-hours of a training in the mean.
        seed: What chance does to them follows from it.
        small: What trainings of the proxy come to; None: there is none.
    """

    def __init__(
        self, world: Any, spec: StudySpec, *, costs: MeanCosts, seed: int, small: Any = None
    ) -> None:
        super().__init__(world, spec, shares=False)
        self._own_spec = spec
        self._full, self._small = world, small
        self._costs = costs
        self._draw = np.random.default_rng(seed)
        self.reason: str | None = None

    @property
    def gpu_hours(self) -> float:
        """GPU-hours that were spent."""
        return sum(map(spent, self.rows)) / _HOUR

    def _do(self, ticket: TicketRow) -> None:
        small = size_of(ticket, self._own_spec) < full_size(self._own_spec)
        self._world = self._small if small else self._full
        super()._do(ticket)
        row = self.rows[ticket.id]
        hours = (
            (self._costs.smallest if small else self._costs.full) * (row.steps or 0) / (row.total_steps or 1)
        )
        seconds = _HOUR * hours * float(np.exp(_UNEVEN * self._draw.standard_normal()))
        self.rows[ticket.id] = dataclasses.replace(row, seconds=seconds, gpu_seconds=seconds)

    def _ended(self, ticket: TicketRow) -> bool:
        if ticket.kind not in SEARCHING or ticket.parameters is not None:
            return False
        if self.reason is None:
            cache: Any = SimpleNamespace(
                tickets={row.id: row for row in self.rows},
                of_kind=lambda kind: [row for row in self.rows if row.kind == kind],
                spent=sum(map(spent, self.rows)),
                age=0.0,
            )
            self.reason = ended_by(self._own_spec, cache, workers=1)
        return self.reason is not None


def open_spec(name: str, hours: float, run: float, proxy: float | None = None) -> StudySpec:
    """Return a study of a world whose budget is to be split."""
    data = world_of(name).spec.to_json()
    decided = {each.partition(".")[0] for each in (*NUMBERS, *QUESTIONS)}
    study = {key: each for key, each in data["study"].items() if key not in decided}
    study["limits"] = {"gpu_hours": hours, "run_gpu_hours": run, "proxy_gpu_hours": proxy}
    # worlds that search the same are split once
    study["name"] = "budget"
    study["proxy"] = None if proxy is None else {"set": {"model.width": 1}}
    return StudySpec.from_json({**data, "study": study})


def split_by(way: str, spec: StudySpec) -> StudySpec:
    """Return a study with its numbers as one of :data:`WAYS` has them."""
    if way == "planned":
        return divided(spec)
    limits = {**spec.study.limits.model_dump(), "split": []}
    default = with_study(spec, limits=limits)
    if spec.study.proxy is not None:
        # else no numbers at all are small enough
        default = with_study(default, init_only=False, learned=False, ablation="none")
    costs, budget = costs_given(spec), spec.study.limits.gpu_hours
    assert costs is not None and budget is not None
    for tenths in range(10, 0, -1) if way == "scaled" else ():
        study = default.study
        numbers: dict[str, Any] = {
            "trials": max(2, study.trials * tenths // 10),
            "candidates": max(1, study.candidates * tenths // 10),
            "seeds": {
                "choose": max(2, study.seeds.choose * tenths // 10),
                "confirm": max(2, study.seeds.confirm.max * tenths // 10),
            },
        }
        if spec.study.proxy is not None:
            numbers["proxy"] = {"set": {"model.width": 1}, "finalists": max(1, 3 * tenths // 10)}
        smaller = with_study(default, **numbers)
        hours = [sum(costs.sizes[size_of(row, smaller)] for row in made.rows) for made in most(smaller)]
        if max(hours) <= budget:
            return smaller
    return default


def study(job: tuple[str, int, float, float, str, float | None, float]) -> dict[str, Any]:
    """Carry out a study and return what became of it."""
    name, seed, hours, run, way, proxy, agreement = job
    world = world_of(name)
    spec = with_study(split_by(way, open_spec(name, hours, run, proxy)), seed=seed)
    costs = MeanCosts(sizes=tuple(_DEARER * each for each in (proxy, run) if each), basis="stated")
    made = Timed(world, spec, costs=costs, seed=seed, small=small_of(world, agreement))
    verdict = made.run()
    winner = winner_of(made.rows, spec, of_round=0)
    neutral = spec.parameters("baseline", {})
    true = 0.0 if winner is None else float(world.worth(winner) - world.worth(neutral)) / PAIR
    return {
        "world": name if proxy is None or world.gain is None else f"{name}, agreement {agreement:g}",
        "way": way,
        "gpu_hours": made.gpu_hours,
        "shown": verdict is not None and verdict.total.significant,
        "gain": true,
        "trials": sum(row.kind == "search" and row.state == "done" for row in made.rows),
    }


def forecast(hours: float, run: float, proxy: float | None) -> str:
    """Return what is said of the budget beforehand."""
    chosen = open_spec(WORLDS[0], hours, run, proxy)
    found = split(
        chosen, MeanCosts(sizes=tuple(each for each in (proxy, run) if each), basis="stated"), hours
    )
    assert found is not None, "refused before"
    pairs = found.numbers["seeds.confirm"].max
    small = "" if proxy is None else f", {proxy:g} one of the proxy"
    raced = "" if proxy is None else f"{found.numbers['proxy.finalists']} at full size, "
    return (
        f"{hours:g} GPU-hours, {run:g} a run{small}: {found.numbers['trials']} trials, "
        f"{found.numbers['candidates']} candidates on {found.numbers['seeds.choose']} seeds, "
        f"{raced}{pairs} pairs; "
        f"asked besides: {', '.join(found.asks) or 'nothing'}. At most {found.gpu_hours:.4g} GPU-hours. "
        f"Forecast: {found.effect:.2f} sd shown with 80 % power; a winner's gain of {found.gain:.2f} sd, "
        f"shown with a chance of {found.shown:.0%}, where anything up to 3 sd may be found."
    )


def table(found: Sequence[Record], hours: float) -> Iterator[str]:
    """Yield what happened."""
    columns = (
        "world",
        "numbers",
        "studies",
        "trials",
        "GPU-hours",
        "most",
        "beyond the budget",
        "gain shown",
        "gain of the winner, sd",
        "of those shown, sd",
    )
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    names = [*dict.fromkeys(each["world"] for each in found), "all with a gain"]
    for name in names:
        for way in dict.fromkeys(each["way"] for each in found):
            own = [
                each
                for each in found
                if each["way"] == way
                and (each["world"] == name or (name == names[-1] and "null" not in each["world"]))
            ]
            spending = [each["gpu_hours"] for each in own]
            yield (
                f"| {name} | {way} | {len(own)} | "
                f"{fmean(each['trials'] for each in own):.1f} | "
                f"{fmean(spending):.1f} | {max(spending):.1f} | "
                f"{sum(each > hours for each in spending)} | "
                f"{fmean(each['shown'] for each in own):.0%} | "
                f"{fmean(each['gain'] for each in own):.2f} | "
                f"{fmean(each['gain'] * each['shown'] for each in own):.2f} |"
            )


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("worlds", nargs="*")
    parser.add_argument("--studies", type=int, default=10, help="in each world, of each kind")
    parser.add_argument("--hours", type=float, default=60.0, help="the budget in GPU-hours")
    parser.add_argument("--run", type=float, default=1.0, help="GPU-hours of a run as priced")
    parser.add_argument("--proxy", type=float, help="GPU-hours of a run of the proxy; without: there is none")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    worlds = given.worlds or (WORLDS if given.proxy is None else WITH_PROXY)
    try:
        divided(open_spec(WORLDS[0], given.hours, given.run, given.proxy))
    except SpecError as error:
        print(error)
        return
    print(forecast(given.hours, given.run, given.proxy), flush=True)
    # threads of a library for matrices this small only wait for one another
    os.environ["OMP_NUM_THREADS"] = "1"
    jobs = [
        (world, seed, given.hours, given.run, way, given.proxy, agreement)
        for seed in range(given.studies)
        for world in worlds
        # without a gain nothing differs between sizes
        for agreement in (AGREEMENTS if given.proxy is not None and "null" not in world else (1.0,))
        for way in (WAYS if given.proxy is None else WAYS[:2])
    ]
    if given.processes == 1:
        found = list(map(study, jobs))
    else:
        with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
            found = list(pool.imap(study, jobs))
    print("\n".join(table(found, given.hours)))


if __name__ == "__main__":
    main()
