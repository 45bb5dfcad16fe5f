"""Several asynchronous workers on a simulated clock, whose unit is one training step.

Workers are not of quite the same speed, so that their validations fall apart as they do in life. What is
spent is counted in training steps over all workers, those of runs that were broken off included.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from benchmarks.recorded.world import RecordedWorld, Training

Parameters = Mapping[str, Any]
Wish = Literal["go on", "end"]


@dataclass(slots=True)
class Job:
    """A training that a tuner asks for.

    Args:
        handle: Identifier of the job for the tuner.
        parameters: The whole parameter set.
        seed: Seed of the training.
        trained_rungs: Number of rungs that an earlier training of the run has reached.
    """

    handle: Any
    parameters: Parameters
    seed: int
    trained_rungs: int = 0


class Tuner(Protocol):
    """A search strategy."""

    def ask(self) -> Job | None:
        """Return the next training; None if there is none now, until another one has ended."""

    def report(self, job: Job, step: int, value: float) -> Wish:
        """Take in a validation; return whether the training goes on. Not called for the last one."""

    def end(self, job: Job, value: float | None) -> None:
        """Take in the end of a training; None: it was ended early, as the tuner wished."""

    def best_set(self) -> Parameters | None:
        """Return the parameter set that the tuner would name as the best now."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of a simulated search.

    Args:
        steps: Training steps spent when the selection changed.
        selected: What was selected from then on.
        parameter_sets: Every configuration that was started or continued, in order.
        ended_early: Whether each of them was ended, or interrupted, before its last step.
    """

    steps: list[int]
    selected: list[Parameters]
    parameter_sets: list[Parameters]
    ended_early: list[bool]


def simulate(
    world: RecordedWorld,
    make: Callable[[], Tuner],
    *,
    budget: int,
    workers: int,
    seed: int,
    see: Literal["final", "current"] = "final",
) -> Trace:
    """Run a search until its trainings have taken a number of steps.

    Args:
        world: The values of trainings.
        make: Makes the tuner.
        budget: Training steps; no training is begun after they are spent.
        workers: Trainings side by side.
        seed: What is random about workers.
        see: The temperature under which the tuner sees validations.
    """
    tuner = make()
    speeds = np.random.default_rng([seed, 7]).uniform(0.9, 1.1, workers)
    trace = Trace([], [], [], [])
    num_steps = 0
    queue: list[tuple[float, int, Job | None, int]] = [(0.0, worker, None, 0) for worker in range(workers)]
    heapq.heapify(queue)
    idle: list[int] = []
    places: dict[int, int] = {}
    trainings: dict[int, Training] = {}
    rungs = world.rungs

    def end_job(job: Job, value: float | None) -> None:
        tuner.end(job, value)
        trace.ended_early[places[id(job)]] = value is None
        params = tuner.best_set()
        if params is not None:
            trace.steps.append(num_steps)
            trace.selected.append(dict(params))

    while queue:
        time, worker, job, rung = heapq.heappop(queue)
        if job is not None:
            training = trainings[places[id(job)]]
            curve = training.final if see == "final" else training.current
            if rung >= job.trained_rungs:
                num_steps += rungs[rung] - (rungs[rung - 1] if rung else 0)
            if rung == len(rungs) - 1:
                end_job(job, float(training.final[-1]))
            elif tuner.report(job, rungs[rung], float(curve[rung])) == "end":
                end_job(job, None)
            else:
                length = rungs[rung + 1] - rungs[rung] if rung + 1 >= job.trained_rungs else 0
                heapq.heappush(queue, (time + length / speeds[worker], worker, job, rung + 1))
                continue
            for idle_worker in idle:
                heapq.heappush(queue, (time, idle_worker, None, 0))
            idle = []
        if num_steps >= budget:
            continue
        next_job = tuner.ask()
        if next_job is None:
            idle.append(worker)
            continue
        places[id(next_job)] = len(trace.parameter_sets)
        trace.parameter_sets.append(next_job.parameters)
        trace.ended_early.append(False)
        trainings[places[id(next_job)]] = world.train(next_job.parameters, next_job.seed)
        first = 0 if next_job.trained_rungs else rungs[0]
        heapq.heappush(queue, (time + first / speeds[worker], worker, next_job, 0))
    return trace
