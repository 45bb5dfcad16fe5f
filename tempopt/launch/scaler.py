"""Keeps as many agents of the pool started as there is work for; those that have none leave by themselves.

Keeps nothing on disk: how many agents there are is asked of the launcher and of the pool, so that a command
that was killed goes on where it was.
"""

from __future__ import annotations

import dataclasses
import re
import select
import time
from collections.abc import Callable, Sequence

from tempopt.agent.signals import Interrupt
from tempopt.errors import AccessDenied, StorageError, UsageError
from tempopt.launch.launcher import Job, Launcher, Task
from tempopt.launch.launching import reason
from tempopt.pool.scaling import Pool, Shortage
from tempopt.records.pool import PoolAgent

_LOOK_SECONDS = 1.0
_LOOK_AT_CLUSTER_SECONDS = 5.0
_SURPLUS_SECONDS = 10.0
_UNABLE_SECONDS = 600.0
_ALIVE = ("waiting", "running")


class Retries:
    """When agents are started again after one has failed: after pauses that double while they go on failing.

    Args:
        first: The first pause, in seconds.
        longest: The longest pause, in seconds.
    """

    def __init__(self, first: float = 5.0, longest: float = 600.0) -> None:
        self._first, self._longest = first, longest
        self.pause = 0.0
        """The pause after the failure that was last, in seconds; 0: none is remembered."""
        self._until = float("-inf")

    def failed(self, now: float) -> None:
        """Take note that agents have failed; those that fail while a pause lasts count as one."""
        if now >= self._until:
            self.pause = min(2 * self.pause, self._longest) if self.pause else self._first
            self._until = now + self.pause

    def allowed(self, now: float, coming: int) -> float:
        """Return how many agents may be started.

        Args:
            now: By the monotonic clock.
            coming: Agents that were started, and have not come yet.
        """
        if self.pause and now >= self._until + max(60.0, self.pause):
            self.pause = 0.0
        if not self.pause:
            return float("inf")
        # one at a time shows as well whether it works again
        return 0 if now < self._until or coming else 1


class Scaler:
    """Starts agents of the pool as there is need of them.

    Args:
        launcher: What starts them.
        pool: Says what it lacks.
        task: One agent of the pool.
        most: Agents at a time, >= 1.
        told: Called with a line for people.
    """

    def __init__(
        self,
        launcher: Launcher,
        pool: Pool,
        task: Task,
        *,
        most: int,
        told: Callable[[str], None],
    ) -> None:
        work = task.pool
        assert work is not None, "a task of the pool"
        self._launcher, self._pool, self._task = launcher, pool, task
        self._most, self._told = most, told
        self.agent = PoolAgent(
            name="",
            launch=work.key,
            queues=frozenset(work.queues),
            labels=frozenset(work.labels),
            gpus=task.gpus,
        )
        """What the agents are like, as the pool sees them."""
        self._ids: list[str] = []
        self._retries = Retries()
        self._looked = False
        self._unable: dict[int, float] = {}
        self._surplus_since: float | None = None
        self._said: set[str] = set()

    def run(self, interrupt: Interrupt) -> None:
        """Look every few seconds until that is interrupted.

        Raises:
            UsageError: No agent can be started as was asked. That, and the following, counts for the first
                look alone: later, what fails is tried again.
            StorageError: The pool cannot be reached.
            AccessDenied: The server does not let this ask.
        """
        self._find()
        if self._ids:
            self._told(f"Found {_agents(len(self._ids))} of an earlier command: {_listed(self._ids)}.")
        wait = _LOOK_AT_CLUSTER_SECONDS if self._launcher.outlives else _LOOK_SECONDS
        while not interrupt.asked:
            self.look()
            select.select([interrupt.wake], [], [], wait)

    def look(self) -> None:
        """Start what is lacking now, and take back what waits for room in vain."""
        first, self._looked = not self._looked, True
        try:
            # in this order: who has ended has told the pool before
            alive = self._jobs()
            found = self._shortage()
        except (AccessDenied, StorageError, UsageError) as error:
            if first:
                raise
            self._say(f"{error} Looking again until it answers.")
            return
        # an agent that has left may be remembered by the pool for a while
        coming = max(0, len(alive) - found.reported)
        missing = min(found.lacking - coming, self._most - len(alive))
        if missing > 0:
            self._start(missing, coming, first=first)
        self._take_back(alive, coming - found.lacking)

    def leave(self) -> None:
        """Have all agents leave in good order, and return once they have."""
        self._find()
        if self._ids:
            self._told(f"Leaving: {_agents(len(self._ids))} will save the runs and leave.")
            self._launcher.cancel(self._ids)

    @property
    def started(self) -> int:
        """How many agents are started, as far as this has seen."""
        return len(self._ids)

    def _find(self) -> None:
        """Find jobs that this does not know: of an earlier program, or of a start that was interrupted."""
        known = dict.fromkeys([*self._ids, *self._launcher.of_pool(self.agent.launch)])
        self._ids = [job.id for job in self._launcher.jobs(list(known)) if job.state in _ALIVE]

    def _jobs(self) -> list[Job]:
        """Return the jobs that have not ended, and tell of those that have."""
        jobs = self._launcher.jobs(self._ids)
        alive = [job for job in jobs if job.state in _ALIVE]
        self._ids = [job.id for job in alive]
        failed = [job for job in jobs if job.state in ("failed", "gone")]
        left = sum(job.state == "done" for job in jobs)
        if left:
            self._told(f"{_agents(left)} left; {len(alive)} of at most {self._most} started.")
        if failed:
            self._fail(failed)
        for job in alive:
            if job.state == "waiting" and job.message:
                self._say(f"Agent {job.id} waits: {job.message}", about=job.message)
        return alive

    def _fail(self, jobs: Sequence[Job]) -> None:
        self._retries.failed(time.monotonic())
        for job in jobs:
            why = "it was cancelled, or forgotten" if job.state == "gone" else reason(job)
            # what follows differs in folders and numbers alone
            self._say(f"Agent {job.id} has failed: {why}", about=re.sub(r"\d+", "", why)[:40])
        self._say_pause()

    def _say_pause(self) -> None:
        self._say(
            f"After a failure agents are started one at a time, the next in {self._retries.pause:g} s; while "
            "they go on failing, the pause doubles.",
            about="pause",
        )

    def _shortage(self) -> Shortage:
        now = time.monotonic()
        self._unable = {id: until for id, until in self._unable.items() if until > now}
        agent = dataclasses.replace(self.agent, unable=dict.fromkeys(self._unable, ""))
        found = self._pool.shortage(agent, most=self._most)
        # an agent that left takes along what it knew, and the next would be started in vain
        self._unable |= dict.fromkeys(found.unable, now + _UNABLE_SECONDS)
        for why in found.unable.values():
            self._say(f"Agents cannot serve a study: {why}")
        return found

    def _start(self, missing: int, coming: int, *, first: bool) -> None:
        count = int(min(missing, self._retries.allowed(time.monotonic(), coming)))
        if not count:
            return
        try:
            ids = self._launcher.start([self._task] * count)
        except UsageError as error:
            if first:
                raise
            self._retries.failed(time.monotonic())
            self._say(f"No agent could be started: {error}", about=re.sub(r"\d+", "", str(error))[:40])
            self._say_pause()
            return
        if not self._retries.pause:
            # whatever comes up from now on is news
            self._said.clear()
        self._ids += ids
        self._told(
            f"Started {_agents(count)}: {_listed(ids)}; {len(self._ids)} of at most {self._most} started."
        )

    def _take_back(self, alive: Sequence[Job], surplus: int) -> None:
        """Cancel jobs that have waited for room until nothing was left for them to do."""
        waiting = [job.id for job in alive if job.state == "waiting"][: max(0, surplus)]
        if not waiting:
            self._surplus_since = None
            return
        now = time.monotonic()
        # between two stages of a study there is nothing to do for a moment
        self._surplus_since = now if self._surplus_since is None else self._surplus_since
        if now - self._surplus_since < _SURPLUS_SECONDS:
            return
        self._told(f"Nothing is left to do for {_agents(len(waiting))} that waited for room: taken back.")
        self._launcher.cancel(waiting)
        self._ids = [id for id in self._ids if id not in waiting]
        self._surplus_since = None

    def _say(self, text: str, about: str | None = None) -> None:
        """Tell people something once, until an agent is started with no failure in mind."""
        key = about or text
        if key not in self._said:
            self._said.add(key)
            self._told(text)


def _agents(count: int) -> str:
    return f"{count} agent{'s' * (count != 1)}"


def _listed(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:8])
    return shown if len(ids) <= 8 else f"{shown} and {len(ids) - 8} more"
