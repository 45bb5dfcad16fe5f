"""The simulated clock counts every step once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.recorded.world import Training
from benchmarks.simulated.clock import Job, simulate


class FakeWorld:
    """A world of three rungs in which a training's value is its parameter, whatever the seed."""

    rungs = (10, 30, 60)

    def train(self, parameters: Any, seed: int) -> Training:
        value = float(parameters["x"])
        return Training(final=np.array([value / 4, value / 2, value]), current=np.array([0.0, 0.0, value]))


class Halving:
    """Ends every second training at its second rung, and continues it as its next one if it may."""

    def __init__(self, *, resumes: bool) -> None:
        self.resumes = resumes
        self.number = 0
        self.reports: list[tuple[int, int, float]] = []
        self.ends: dict[int, float | None] = {}
        self.paused: list[int] = []

    def ask(self) -> Job | None:
        if self.resumes and self.paused:
            number = self.paused.pop()
            return Job((number, True), {"x": number}, seed=number, trained_rungs=2)
        self.number += 1
        return Job((self.number, False), {"x": self.number}, seed=self.number)

    def report(self, job: Job, step: int, value: float) -> Any:
        number, is_retry = job.handle
        self.reports.append((number, step, value))
        return "end" if number % 2 and step == 30 and not is_retry else "go on"

    def end(self, job: Job, value: float | None) -> None:
        self.ends[job.handle[0]] = value
        if value is None:
            self.paused.append(job.handle[0])

    def best_set(self) -> Any:
        complete = [number for number, value in self.ends.items() if value is not None]
        return {"x": max(complete)} if complete else None


@pytest.mark.parametrize("workers", [1, 3])
def test_a_search_pays_for_the_steps_that_it_trains(workers: int) -> None:
    strategies: list[Halving] = []

    def make() -> Halving:
        strategies.append(Halving(resumes=False))
        return strategies[-1]

    trace = simulate(FakeWorld(), make, budget=600, workers=workers, seed=0)  # type: ignore[arg-type]
    ends = strategies[0].ends
    assert all(value == (None if number % 2 else number) for number, value in ends.items())
    num_steps = sum(30 if number % 2 else 60 for number in ends)
    assert 600 <= num_steps < 600 + 60 * workers
    assert trace.steps[-1] <= num_steps
    assert trace.ended_early == [bool(params["x"] % 2) for params in trace.parameter_sets]
    assert (1, 10, 0.25) in strategies[0].reports and (1, 30, 0.5) in strategies[0].reports


def test_what_was_trained_before_is_paid_for_once() -> None:
    tuner = Halving(resumes=True)
    trace = simulate(FakeWorld(), lambda: tuner, budget=600, workers=1, seed=0)  # type: ignore[arg-type]
    complete = [number for number, value in tuner.ends.items() if value is not None]
    # one at a time: each is trained to its end before the next one is begun
    assert complete == list(range(1, len(complete) + 1))
    assert trace.steps[-1] == 60 * len(complete)
