"""Workers that only talk, on a clock that is simulated: what an agent deals with when nothing is trained."""

from __future__ import annotations

import heapq
import math
import random
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

REPORTS = 20


def value_of(trial: int, report: int) -> float:
    """Return what a trial reports: each is a little better than all before it, so that none is pruned."""
    return 1.0 / (1 + trial) + (REPORTS - report) * 1e-9


def step_of(report: int) -> int:
    """Return the optimizer step of a report, from 1 to ``REPORTS``."""
    return 100 * report


def parameters(trial: int, space: dict[str, Any]) -> dict[str, Any]:
    """Return random parameters of a trial that is there before."""
    chance = random.Random(trial)
    params: dict[str, Any] = {}
    for name, distribution in space.items():
        if hasattr(distribution, "choices"):
            params[name] = chance.choice(distribution.choices)
        else:
            params[name] = math.exp(chance.uniform(math.log(distribution.low), math.log(distribution.high)))
    return params


class TalkerWorld:
    """Workers that only talk, and the time that passes for them; the agent's observer moves it on.

    Args:
        seconds: Length of a trial.
    """

    def __init__(self, seconds: float) -> None:
        self.now = 0.0
        self.count = 0
        self._interval = seconds / REPORTS
        self._coming: list[tuple[float, int, Connection, Any]] = []

    def monotonic(self) -> float:
        """Return the simulated time."""
        return self.now

    def say(self, delay: float, connection: Connection, message: Any) -> None:
        """Have something said to the agent after so many seconds."""
        self.count += 1
        heapq.heappush(self._coming, (self.now + delay, self.count, connection, message))

    def update(self, snapshot: Any) -> None:
        """Let time pass until the next thing is said, but no longer than the agent would wait for it."""
        from tempopt.training.messages import encode

        deadline = self.now + 1.0
        if self._coming and self._coming[0][0] <= deadline:
            deadline, _, connection, message = heapq.heappop(self._coming)
            connection.send_bytes(encode(message))
        self.now = max(self.now, deadline)

    def on_ticket_end(self, ticket: Any) -> None:
        """Take no note."""

    def note(self, text: str) -> None:
        """Take no note: nothing should need one."""
        raise AssertionError(f"void: {text}")

    def train(self, request: Any, connection: Connection) -> None:
        """Plan all that a worker will say about a run."""
        from tempopt.training.messages import Finished, Report, Started

        run: dict[str, Any] = {"ticket": request.ticket, "attempt": request.attempt}
        self.say(
            0.0,
            connection,
            Started(
                **run,
                step=0,
                total_steps=step_of(REPORTS),
                device="cpu",
                precision="32-true",
                layers=["layer"],
                code="code",
                reports=[],
            ),
        )
        for report in range(1, REPORTS + 1):
            value = value_of(request.ticket, report)
            report_message = Report(**run, step=step_of(report), value=value, metrics={"val_loss": value})
            self.say(report * self._interval, connection, report_message)
        last = value_of(request.ticket, REPORTS)
        self.say(
            REPORTS * self._interval,
            connection,
            Finished(
                **run,
                state="complete",
                step=step_of(REPORTS),
                measurements={"validate": last, "validate_current": last},
                metrics={},
                seconds=REPORTS * self._interval,
                reports=[],
            ),
        )


class Talker:
    """What an agent takes for a worker process."""

    def __init__(self, slot: int, world: TalkerWorld) -> None:
        from tempopt.agent.placement import Placement

        self.slot = slot
        self.placement = Placement()
        self.ready = True
        self._world = world
        self.connection, self._theirs = Pipe()

    def send(self, message: Any) -> None:
        """Take a request; nothing else is sent where nothing is pruned."""
        self._world.train(message, self._theirs)

    def receive(self) -> Any:
        """Return the next message."""
        from tempopt.training.messages import decode

        return decode(self.connection.recv_bytes())
