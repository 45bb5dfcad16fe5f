"""The simulated clock counts every step once, and the surrogate is a Gaussian process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from benchmarks.recorded.world import Training
from benchmarks.simulated.clock import Job, simulate
from benchmarks.simulated.forecast import Forecast
from benchmarks.simulated.surrogate import Runs, Surrogate


class Made:
    """A world of three rungs in which a training's value is its parameter, whatever the seed."""

    rungs = (10, 30, 60)

    def train(self, parameters: Any, seed: int) -> Training:
        value = float(parameters["x"])
        return Training(final=np.array([value / 4, value / 2, value]), current=np.array([0.0, 0.0, value]))


class Halving:
    """Ends every second training at its second rung, and goes on with it as its next one if it may."""

    def __init__(self, *, resumes: bool) -> None:
        self.resumes = resumes
        self.number = 0
        self.heard: list[tuple[int, int, float]] = []
        self.ends: dict[int, float | None] = {}
        self.paused: list[int] = []

    def ask(self) -> Job | None:
        if self.resumes and self.paused:
            number = self.paused.pop()
            return Job((number, True), {"x": number}, seed=number, begun=2)
        self.number += 1
        return Job((self.number, False), {"x": self.number}, seed=self.number)

    def report(self, job: Job, step: int, value: float) -> Any:
        number, again = job.handle
        self.heard.append((number, step, value))
        return "end" if number % 2 and step == 30 and not again else "go on"

    def end(self, job: Job, value: float | None) -> None:
        self.ends[job.handle[0]] = value
        if value is None:
            self.paused.append(job.handle[0])

    def selected(self) -> Any:
        complete = [number for number, value in self.ends.items() if value is not None]
        return {"x": max(complete)} if complete else None


@pytest.mark.parametrize("workers", [1, 3])
def test_a_search_pays_for_the_steps_that_it_trains(workers: int) -> None:
    made: list[Halving] = []

    def make() -> Halving:
        made.append(Halving(resumes=False))
        return made[-1]

    trace = simulate(Made(), make, budget=600, workers=workers, seed=0)  # type: ignore[arg-type]
    ended = made[0].ends
    assert all(value == (None if number % 2 else number) for number, value in ended.items())
    spent = sum(30 if number % 2 else 60 for number in ended)
    assert 600 <= spent < 600 + 60 * workers
    assert trace.steps[-1] <= spent
    assert trace.ended_early == [bool(each["x"] % 2) for each in trace.asked]
    assert (1, 10, 0.25) in made[0].heard and (1, 30, 0.5) in made[0].heard


def test_what_was_trained_before_is_paid_for_once() -> None:
    tuner = Halving(resumes=True)
    trace = simulate(Made(), lambda: tuner, budget=600, workers=1, seed=0)  # type: ignore[arg-type]
    complete = [number for number, value in tuner.ends.items() if value is not None]
    # one at a time: each is trained to its end before the next one is begun
    assert complete == list(range(1, len(complete) + 1))
    assert trace.steps[-1] == 60 * len(complete)


def test_predictions_are_those_of_another_gaussian_process() -> None:
    rng = np.random.default_rng(0)
    features, values = rng.random((25, 3)), rng.standard_normal(25)
    excess = rng.random(25)
    runs = Runs(features_ND=features, seeds_N=np.arange(25), values_N=values, excess_N=excess)
    surrogate = Surrogate(runs)
    *lengths, signal, noise, shared = np.exp(surrogate.found)
    weights = 1 / (1 + excess / np.var(values))
    centre, scale = np.average(values, weights=weights), np.std(values)
    kernel = ConstantKernel(signal**2) * Matern(lengths, nu=2.5)
    # a seed of its own for each run: what is shared with nobody is noise
    alpha = noise**2 + shared**2 + excess / scale**2 + 1e-8
    other = GaussianProcessRegressor(kernel, alpha=alpha, optimizer=None).fit(
        features, (values - centre) / scale
    )
    asked = rng.random((40, 3))
    mean, deviation = other.predict(asked, return_std=True)
    found = surrogate.predict(asked)
    np.testing.assert_allclose(found[0], centre + scale * mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found[1], scale * deviation, rtol=1e-5)


def test_the_gradient_of_the_evidence_is_its_gradient() -> None:
    rng = np.random.default_rng(1)
    seeds = rng.integers(0, 3, 20)
    runs = Runs(
        features_ND=rng.random((20, 2)),
        seeds_N=seeds,
        values_N=rng.standard_normal(20) + seeds,
        excess_N=rng.random(20),
    )
    surrogate = Surrogate(runs)
    for at in (surrogate.found, surrogate.found + 0.3):
        numeric = approx_fprime(at, lambda point: surrogate._loss(point)[0], 1e-6)
        np.testing.assert_allclose(surrogate._loss(at)[1], numeric, atol=1e-4)


def test_a_forecast_is_as_sure_as_complete_runs_allow() -> None:
    rng = np.random.default_rng(2)
    ends = rng.standard_normal(200)
    told = Forecast([({10: end + 0.1 * rng.standard_normal()}, float(end)) for end in ends])
    value, variance = told({10: 1.5}) or (0.0, 0.0)
    assert value == pytest.approx(1.5, abs=0.15) and variance < 0.05
    untold = Forecast([({10: float(rng.standard_normal())}, float(end)) for end in ends])
    said = untold({10: 1.5})
    assert said is None or said[1] > 10
    assert told({}) is None and Forecast([])({10: 1.0}) is None
