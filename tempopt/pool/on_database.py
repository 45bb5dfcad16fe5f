"""The pool of a database, for agents that reach it themselves."""

from __future__ import annotations

import time
from pathlib import Path

from tempopt.agent.gate import Gate
from tempopt.agent.observer import Observer
from tempopt.agent.runner import StudyRunner
from tempopt.pool.dispatcher import Dispatcher, Told
from tempopt.pool.scaling import Shortage, shortage
from tempopt.records.pool import PoolAgent
from tempopt.spec.own_schedules import import_schedules
from tempopt.spec.study_spec import StudySpec
from tempopt.store.store import Store

_LOOK_SECONDS = 1.0


def workers_for(spec: StudySpec, gpus: int) -> int:
    """Return how many runs of a study an agent of the pool trains at a time, >= 1.

    Args:
        spec: The study's spec.
        gpus: GPUs of the agent.
    """
    need = spec.need(gpus=gpus > 0)
    if not need.gpus:
        return 1
    fit = gpus // max(1, round(need.gpus)) * need.trials_per_card
    return max(1, min(fit, spec.study.parallel))


class DatabaseSource:
    """Studies of a database: a :class:`~tempopt.pool.agent.Source`, and what the pool lacks.

    Args:
        store: The database.
        checkpoints: As for :func:`tempopt.search`; None: each study's own place.
    """

    def __init__(self, store: Store, checkpoints: str | Path | None) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._dispatcher = Dispatcher(store)

    def hear(self, agent: PoolAgent, *, known: Told | None, wait: float) -> Told:
        """Say how the agent stands, and return what it is to do, as soon as that is something else."""
        until = time.monotonic() + wait
        told = self._dispatcher.hear(agent)
        while told.same_as(known) and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
            told = self._dispatcher.look(agent)
        return told

    def serve(self, name: str, *, gpus: int, gate: Gate, observer: Observer) -> None:
        """Work on a study until the gate says to leave, or nothing is left to do."""
        study = self._store.load_study(name)
        if study.state != "running":
            return
        spec = StudySpec.stored(study)
        import_schedules(spec)
        runner = StudyRunner(
            self._store,
            spec,
            study,
            workers_for(spec, gpus),
            self._checkpoints,
            observer,
            wake=False,
            gate=gate,
        )
        runner.work()

    def shortage(self, agent: PoolAgent, *, most: int) -> Shortage:
        """Return what the pool lacks of agents like this one; see :class:`tempopt.pool.scaling.Pool`."""
        return shortage(self._dispatcher.picture(), agent, most=most)

    def leave(self, agent: PoolAgent) -> None:
        """Have the agent forgotten."""
        self._dispatcher.forget(agent.name)
