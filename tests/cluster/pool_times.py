"""How long a study with a higher priority waits for its first optimizer step in a pool that is at work."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster.crew import wait_until
from tests.cluster.pool_crew import PoolCrew

# Generous: on a machine that is busy with other things, processes take long to start.
FIRST_STEP_SECONDS = 300.0


@dataclass
class Times:
    """How a study with a higher priority came to its first step; all in seconds.

    Args:
        told: From its submission to the last step of the run that was pushed out.
        left: From there until that was saved and given back, and the agent has said that it left.
        taken: From there until the agent has said that it serves the study.
        begun: From there to the first optimizer step: joined, forked, built.
        every: The whole.
    """

    told: float
    left: float
    taken: float
    begun: float
    every: float


class _Ears:
    """Hears when the agents say something, in a thread; the file that they write into has only seconds."""

    def __init__(self, crew: PoolCrew) -> None:
        self._crew = crew
        self._counts: collections.Counter[int] = collections.Counter()
        self._over = threading.Event()
        self.heard: list[tuple[float, int, str]] = []
        self._listen()
        self.heard.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Ears:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.02):
            self._listen()

    def _listen(self) -> None:
        now = time.time()
        for agent in list(self._crew.agents):
            new = agent.lines()[self._counts[agent.number] :]
            self._counts[agent.number] += len(new)
            self.heard += [(now, agent.number, line) for line in new]


def first_step(crew: PoolCrew, name: str, submit: Callable[[], float]) -> Times:
    """Submit a study that pushes others out, and return how it came to its first step, once it has."""
    with _Ears(crew) as ears:
        begun = submit()

        def is_there() -> bool:
            crew.tend()
            return bool(crew.steps(name))

        wait_until(is_there, f"the first step of {name}", patience=FIRST_STEP_SECONDS)
        time.sleep(0.1)
    first = crew.steps(name)[0].moment
    before = [each for each in ears.heard if each[0] <= first + 0.05]
    serves, number = [(when, who) for when, who, line in before if line == f"Serves {name}."][-1]
    gone = [when for when, who, line in before if who == number and line.startswith("Left ")]
    left = max((when for when in gone if when <= serves), default=begun)
    others = [each.moment for each in crew.steps() if each.study != name and begun < each.moment <= left]
    last = max(others, default=begun)
    return Times(
        told=last - begun, left=left - last, taken=serves - left, begun=first - serves, every=first - begun
    )
