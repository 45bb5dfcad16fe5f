"""Real trainings that are small: bundled tasks in a plain loop, at any temperature in each of their steps.

The loop is tempopt's to the bit: the same seed and parameters come to what a worker of tempopt reports, which
:func:`check` asserts of each task. What a run needs to be continued is kept in memory at each validation, by
its seed and all its temperatures so far, so that schedules with a common beginning train it once, as tempopt
does from checkpoints. Shapes: K optimizer steps.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.small_tasks import TASKS, Task
from lightning_modules.optimisation import warmup_cosine
from tempopt.seeds import derive
from tempopt.temperature import TemperatureParameters, progress, steps_until
from tempopt.training.callbacks import seed_generators

Array = NDArray[np.float64]

_DECAY, _CLIP = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class Course:
    """Temperatures of a training.

    Args:
        taus_K: In each step, shape (steps,).
        last: That of the trained model.
    """

    taus_K: Array
    last: float

    def until(self, step: int) -> bytes:
        """Return what is equal for courses that are the same up to a step."""
        return self.taus_K[:step].tobytes()


def course_of(task: Task, parameters: Mapping[str, Any]) -> Course:
    """Return the course of temperature parameters; of none: that of the baseline."""
    plain = {"schedule": "constant", "temperature_init": task.plain}
    own = {name.removeprefix(task.space.prefix): value for name, value in parameters.items()} or plain
    plan = TemperatureParameters.from_mapping(own).plan(1)
    taus = [plan.temperatures(progress(step, task.total))[0] for step in range(task.total)]
    return Course(np.array(taus), float(plan.temperatures(1.0)[0]))


def steps_course(task: Task, segments: Sequence[tuple[int, float]]) -> Course:
    """Return the course that holds a temperature from a step on until that of the next.

    Args:
        task: The task.
        segments: First step and temperature, by ascending step; the first begins at 0.
    """
    assert segments and segments[0][0] == 0
    taus = np.empty(task.total)
    for first, tau in segments:
        taus[first:] = tau
    return Course(taus, float(taus[-1]))


class Run:
    """One training that goes as far as it is asked to.

    Args:
        task: What is trained.
        seed: Its seed.
        small: Whether it is one of the proxy.
    """

    def __init__(self, task: Task, seed: int, *, small: bool = False) -> None:
        self.task, self.seed, self.small, self.step = task, seed, small, 0
        seed_generators(seed, "model")
        self._module = task.module(small)
        self._parameters = list(self._module.parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=task.lr, betas=(0.9, 0.98), weight_decay=_DECAY, fused=True
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: warmup_cosine(step, total_steps=task.total, warmup_fraction=0.1)
        )

    def advance(self, course: Course, to: int) -> None:
        """Train up to a step."""
        for step in range(self.step, to):
            batch = self.task.batch(self.seed, step, self.small)
            self.task.temper(self._module, float(course.taus_K[step]))
            loss = self._module.training_step(batch, step)
            self._optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._parameters, _CLIP)
            self._optimizer.step()
            self._schedule.step()
        self.step = max(self.step, to)

    def validated(self, tau: float) -> float:
        """Return the metric on the validation data, the same for all seeds."""
        return self._measured(self.task.validation(self.small), tau)

    def tested(self, tau: float) -> float:
        """Return the metric on the test data."""
        return self._measured(self.task.test(self.seed, self.small), tau)

    def _measured(self, loaders: Any, tau: float) -> float:
        module: Any = self._module
        module.eval()
        self.task.temper(module, tau)
        # outside of a Trainer there is nobody to log to
        module.log = lambda *_, **__: None
        with torch.no_grad():
            for number, loader in enumerate(loaders):
                for index, batch in enumerate(loader):
                    module.validation_step(batch, index, *((number,) if len(loaders) > 1 else ()))
        found = self.task.computed(module)
        module.train()
        return found

    def state(self) -> dict[str, Any]:
        """Return all that continuing needs, apart from what this run does next."""
        parts = {name: getattr(self, f"_{name}").state_dict() for name in ("module", "optimizer", "schedule")}
        return copy.deepcopy({"seed": self.seed, "step": self.step, **parts})

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, of any run of this size, with that run's seed."""
        self.seed, self.step = state["seed"], state["step"]
        for name in ("module", "optimizer", "schedule"):
            getattr(self, f"_{name}").load_state_dict(copy.deepcopy(state[name]))


class Trained:
    """A world whose trainings are real, and begin where one with the same beginning has got to.

    Args:
        task: What is trained.
        small: Whether they are those of the proxy.
        at: The temperature of validations, ``final`` or ``current``, as ``study.validate_at``.
    """

    def __init__(self, task: Task, *, small: bool = False, at: str = "current") -> None:
        self.task, self.small, self._at = task, small, at
        self.rungs, self.total_steps = task.rungs, task.total
        self._states: dict[tuple[int, int, bytes], dict[str, Any]] = {}
        self.steps = 0
        """Optimizer steps that were really trained."""

    def train(self, parameters: Mapping[str, Any], seed: int) -> _Training:
        """Return a training that is trained as far as it is looked at."""
        return _Training(self, course_of(self.task, parameters), seed)

    def reached(self, parameters: Mapping[str, Any], seed: int, until: float) -> float:
        """Return what a validation shows at a progress, at the temperature of the moment."""
        course = course_of(self.task, parameters)
        step = steps_until(until, self.total_steps)
        return self.to(course, seed, step).validated(self.tau(course, step))

    def tau(self, course: Course, step: int) -> float:
        """Return the temperature of a validation after a step."""
        last = self._at == "final" or step == self.total_steps
        return course.last if last else float(course.taus_K[step - 1])

    def to(self, course: Course, seed: int, step: int) -> Run:
        """Return a run at a step."""
        run = Run(self.task, seed, small=self.small)
        begun = (
            at for who, at, taus in self._states if who == seed and at <= step and taus == course.until(at)
        )
        if (first := max(begun, default=0)) > 0:
            run.load(self._states[seed, first, course.until(first)])
        run.advance(course, step)
        self.steps += step - first
        self._states[seed, step, course.until(step)] = run.state()
        return run


class _Training:
    """What a whole study asks of a training: values at the rungs, then one on test data."""

    def __init__(self, world: Trained, course: Course, seed: int) -> None:
        self._world, self._course, self._seed = world, course, seed

    @property
    def final(self) -> _Rungs:
        """What each validation shows, trained as far as it is asked for."""
        return _Rungs(self._at, len(self._world.rungs))

    def _at(self, place: int) -> float:
        step = self._world.rungs[place]
        return self._world.to(self._course, self._seed, step).validated(self._world.tau(self._course, step))

    @property
    def test(self) -> float:
        """The metric of the trained model on test data."""
        return self._world.to(self._course, self._seed, self._world.total_steps).tested(self._course.last)


class _Rungs(Sequence[float]):
    """Values that are made when they are asked for."""

    def __init__(self, made: Callable[[int], float], count: int) -> None:
        self._made, self._count = made, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        if not -self._count <= place < self._count:
            raise IndexError(place)
        return self._made(place % self._count)


FRESH = 8
"""Fresh seeds on which what searches name is judged."""


def fresh(task: Task, parameters: Mapping[str, Any]) -> list[float]:
    """Return the test metric of temperature parameters on each fresh seed, {} being the baseline."""
    return judged(task, course_of(task, parameters))


def judged(task: Task, course: Course, seeds: int = FRESH) -> list[float]:
    """Return the test metric of a course on each of some fresh seeds, trained from step 0."""
    found = []
    for number in range(seeds):
        run = Run(task, derive("fresh", number))
        run.advance(course, task.total)
        found.append(run.tested(course.last))
    return found


def share(task: Task) -> float:
    """Return what a step of the proxy takes, in CPU time of one at full size, validation left out."""
    course = course_of(task, {})
    took = {False: math.inf, True: math.inf}
    # what is fastest of several turns is least disturbed by others on the machine
    for _ in range(5):
        for small in took:
            run, began = Run(task, 0, small=small), time.process_time()
            run.advance(course, task.every)
            took[small] = min(took[small], time.process_time() - began)
    return took[True] / took[False]


def check(task: Task) -> None:
    """Assert that the loop is tempopt's to the bit, at both sizes, also where it goes on from a state.

    Raises:
        AssertionError: It is not.
    """
    knots = [[0.0, task.plain], [0.4, task.plain], [1.0, 0.3 * task.plain]]
    parameters = task.space.named({"schedule": "piecewise", "temperature_knots": knots})
    seed = derive("check")
    for small in (False, True):
        world = Trained(task, small=small)
        world.reached({}, seed, 0.4)
        before = world.steps
        training = world.train(parameters, seed)
        ours = [*training.final, training.test]
        assert world.steps - before < task.total, "nothing was shared"
        theirs = _by_a_worker(task, parameters, seed, small=small)
        assert (ours[-2], ours[-1]) == theirs, (ours, theirs)
        size = "its proxy" if small else "full size"
        print(
            f"{task.name}, {size}: to the bit {theirs}, {world.steps - before} of {task.total} steps trained"
        )


def _by_a_worker(task: Task, parameters: Mapping[str, Any], seed: int, *, small: bool) -> tuple[float, float]:
    """Return the last validation and the test of the same training by a worker of tempopt."""
    from tempopt.workers.messages import Evaluation, Failed, Finished, RunRequest
    from tempopt.workers.placement import Placement
    from tempopt.workers.process import WorkerProcess

    program = task.spec_with(task.proxy if small else {}).program()
    worker = WorkerProcess(slot=0, place=Placement())
    try:
        on_test = [Evaluation(name="test", on="test")]
        request = RunRequest(
            ticket=0, attempt=1, program=program, parameters=parameters, seed=seed, evaluations=on_test
        )
        worker.send(request)
        while not isinstance(message := worker.receive(), Finished):
            assert message is not None and not isinstance(message, Failed), message
    finally:
        worker.kill()
    return message.reports[-1][1], message.measurements["test"]


if __name__ == "__main__":
    for each in TASKS.values():
        check(each)
