"""A real training that is small: max retrieval in a plain loop, at any temperature in each of its steps.

The loop is tempopt's to the bit: the same seed and parameters come to what a worker of tempopt reports, which
:func:`check` asserts. What a run needs to be continued is kept in memory at each validation, by its seed and
all its temperatures so far, so that schedules with a common beginning train it once, as tempopt does from
checkpoints. Shapes: K optimizer steps.
"""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_modules import MaxRetrieval, MaxRetrievalData
from lightning_modules.optimisation import warmup_cosine
from tempopt.seeds import derive
from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import TemperatureParameters, progress, steps_until
from tempopt.training.callbacks import seed_generators

Array = NDArray[np.float64]

TOTAL, EVERY = 100, 20
"""Optimizer steps of a training, and between two validations."""
_LR, _DECAY, _CLIP = 0.01, 0.05, 1.0
WIDTH, SMALL_WIDTH = 32, 8
"""Width of the model at full size and of its proxy."""
_SETTINGS = (
    "data.sizes=[64, 128]",
    "data.num_sets=[256, 128]",
    f"model.d_model={WIDTH}",
    f"trainer.max_steps={TOTAL}",
    f"trainer.val_check_interval={EVERY}",
)
_STUDY = Path(__file__).parents[1] / "studies/max_retrieval.yaml"


@functools.cache
def spec() -> StudySpec:
    """Return the bundled study with the small training."""
    return load_spec(_STUDY, list(_SETTINGS))


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


def course_of(parameters: Mapping[str, Any]) -> Course:
    """Return the course of temperature parameters."""
    plan = TemperatureParameters.from_mapping(parameters).plan(1)
    taus = [plan.temperatures(progress(step, TOTAL))[0] for step in range(TOTAL)]
    return Course(np.array(taus), float(plan.temperatures(1.0)[0]))


def steps_course(segments: Sequence[tuple[int, float]]) -> Course:
    """Return the course that holds a temperature from a step on until that of the next.

    Args:
        segments: First step and temperature, by ascending step; the first begins at 0.
    """
    assert segments and segments[0][0] == 0
    taus = np.empty(TOTAL)
    for first, tau in segments:
        taus[first:] = tau
    return Course(taus, float(taus[-1]))


class Run:
    """One training that goes as far as it is asked to.

    Args:
        seed: Its seed.
        width: Width of the model.
    """

    def __init__(self, seed: int, width: int = WIDTH) -> None:
        self.seed, self.width, self.step = seed, width, 0
        seed_generators(seed, "model")
        self._module = MaxRetrieval(d_model=width, lr=_LR, weight_decay=_DECAY)
        self._parameters = list(self._module.parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=_LR, betas=(0.9, 0.98), weight_decay=_DECAY, fused=True
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: warmup_cosine(step, total_steps=TOTAL, warmup_fraction=0.1)
        )

    def advance(self, course: Course, to: int) -> None:
        """Train up to a step."""
        data = _data()
        for step in range(self.step, to):
            seed_generators(self.seed, "items", 0, step)
            batch = data.draw(data.batch_size)
            self._module.set_temperatures((float(course.taus_K[step]),))
            loss = self._module.training_step(batch, step)
            self._optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._parameters, _CLIP)
            self._optimizer.step()
            self._schedule.step()
        self.step = max(self.step, to)

    def validated(self, tau: float) -> float:
        """Return the accuracy on the validation sets, the same for all seeds."""
        return self._accuracy(_data().val_dataloader(), tau)

    def tested(self, tau: float) -> float:
        """Return the accuracy on test sets of the seed's own."""
        return self._accuracy(_data()._evaluation(derive(self.seed, "test")), tau)

    def _accuracy(self, loaders: Any, tau: float) -> float:
        module = self._module
        module.eval()
        module.set_temperatures((tau,))
        with torch.no_grad():
            for number, loader in enumerate(loaders):
                for index, batch in enumerate(loader):
                    module.validation_step(batch, index, number)
        accuracy = module.accuracy.compute()
        module.train()
        return float(torch.stack([each for size, each in accuracy.items() if size != "id"]).mean())

    def state(self) -> dict[str, Any]:
        """Return all that continuing needs, apart from what this run does next."""
        parts = {name: getattr(self, f"_{name}").state_dict() for name in ("module", "optimizer", "schedule")}
        return copy.deepcopy({"seed": self.seed, "step": self.step, **parts})

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, of any run of this width, with that run's seed."""
        self.seed, self.step = state["seed"], state["step"]
        for name in ("module", "optimizer", "schedule"):
            getattr(self, f"_{name}").load_state_dict(copy.deepcopy(state[name]))


@functools.cache
def _data() -> MaxRetrievalData:
    data = MaxRetrievalData(**(spec().program().data or {})["init_args"])
    data.setup("fit")
    return data


class Trained:
    """A world whose trainings are real, and begin where one with the same beginning has got to.

    Args:
        width: Width of the model.
        at: The temperature of validations, ``final`` or ``current``, as ``study.validate_at``.
    """

    rungs = tuple(range(EVERY, TOTAL + 1, EVERY))
    total_steps = TOTAL

    def __init__(self, width: int = WIDTH, at: str = "current") -> None:
        self.width, self._at = width, at
        self._states: dict[tuple[int, int, bytes], dict[str, Any]] = {}
        self.steps = 0
        """Optimizer steps that were really trained."""

    def train(self, parameters: Mapping[str, Any], seed: int) -> _Training:
        """Return a training that is trained as far as it is looked at."""
        return _Training(self, course_of(parameters), seed)

    def reached(self, parameters: Mapping[str, Any], seed: int, until: float) -> float:
        """Return what a validation shows at a progress, at the temperature of the moment."""
        course = course_of(parameters)
        step = steps_until(until, TOTAL)
        return self.to(course, seed, step).validated(self.tau(course, step))

    def tau(self, course: Course, step: int) -> float:
        """Return the temperature of a validation after a step."""
        return course.last if self._at == "final" or step == TOTAL else float(course.taus_K[step - 1])

    def to(self, course: Course, seed: int, step: int) -> Run:
        """Return a run at a step."""
        run = Run(seed, self.width)
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
        """The accuracy of the trained model on test data."""
        return self._world.to(self._course, self._seed, TOTAL).tested(self._course.last)


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


def fresh(parameters: Mapping[str, Any]) -> list[float]:
    """Return the test accuracy of temperature parameters on each fresh seed, {} being τ = 1."""
    return judged(course_of(parameters or {"schedule": "constant", "temperature_init": 1.0}))


def judged(course: Course, seeds: int = FRESH) -> list[float]:
    """Return the test accuracy of a course on each of some fresh seeds, trained from step 0."""
    found = []
    for number in range(seeds):
        run = Run(derive("fresh", number))
        run.advance(course, TOTAL)
        found.append(run.tested(course.last))
    return found


@functools.cache
def share(width: int) -> float:
    """Return what a step of a narrower model takes, in CPU time of one at full size, validation left out."""
    course = course_of({"schedule": "constant", "temperature_init": 1.0})
    took = {WIDTH: math.inf, width: math.inf}
    # what is fastest of several turns is least disturbed by others on the machine
    for _ in range(5):
        for each in took:
            run, began = Run(0, each), time.process_time()
            run.advance(course, EVERY)
            took[each] = min(took[each], time.process_time() - began)
    return took[width] / took[WIDTH]


def check() -> None:
    """Assert that the loop is tempopt's to the bit, also where it goes on from a state.

    Raises:
        AssertionError: It is not.
    """
    from tempopt.workers.messages import Evaluation, Failed, Finished, RunRequest
    from tempopt.workers.placement import Placement
    from tempopt.workers.process import WorkerProcess

    knots = [[0.0, 1.0], [0.4, 1.0], [1.0, 0.3]]
    parameters = {"schedule": "piecewise", "temperature_knots": knots}
    seed, world = derive("check"), Trained()
    world.reached({"schedule": "constant", "temperature_init": 1.0}, seed, 0.4)
    before = world.steps
    training = world.train(parameters, seed)
    ours = [*training.final, training.test]
    assert world.steps - before < TOTAL, "nothing was shared"
    program = spec().program()
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
    theirs = message.reports[-1][1], message.measurements["test"]
    assert (ours[-2], ours[-1]) == theirs, (ours, theirs)
    print(f"the loop is tempopt's to the bit: {theirs}, {world.steps - before} of {TOTAL} steps trained")


if __name__ == "__main__":
    check()
