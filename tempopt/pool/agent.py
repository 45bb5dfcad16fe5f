"""An agent of the pool: serves one study after another, each as an agent of that study alone would."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from tempopt.agent.gate import Gate
from tempopt.agent.observer import Observer, Unobserved
from tempopt.agent.store_connection import StoreLost
from tempopt.errors import (
    AccessDenied,
    SpecError,
    StorageError,
    StoreUnreachable,
    StudyFailed,
    StudyNotFound,
    TempoptError,
    UsageError,
    masked,
)
from tempopt.pool.dispatcher import Told
from tempopt.records.liveness import agent_name, host
from tempopt.records.pool import PoolAgent
from tempopt.workers.gpu_locks import claimed
from tempopt.workers.machine import Machine, this_machine
from tempopt.workers.placement import Need, Placement, deal, room

WAIT_SECONDS = 20.0
"""An agent that has nothing to do, or does what it was told, says so that often."""
_AGAIN_SECONDS = 2.0
_PATIENCE_SECONDS = 1800.0
_UNABLE_SECONDS = 300.0
# Against what nobody has foreseen: so long a study is left to others at most while its mark is the same.
_IDLE_SECONDS = 300.0
_MOST_IDLE = 200
_MASK = "CUDA_VISIBLE_DEVICES"


class Source(Protocol):
    """Where an agent of the pool gets its studies: a database, or a server."""

    def hear(self, agent: PoolAgent, *, known: Told | None, wait: float) -> Told:
        """Say how the agent stands, and return what it is to do.

        Args:
            agent: How it stands.
            known: What it was told last; None: nothing yet.
            wait: Seconds that the answer may be held back while it is the same.

        Raises:
            StoreUnreachable: The database, or the server, is away.
        """

    def serve(self, name: str, *, gpus: int, gate: Gate, observer: Observer) -> None:
        """Work on a study until the gate says to leave, or nothing is left to do.

        Args:
            name: Name of the study.
            gpus: GPUs that this process may use.
            gate: Says when to leave.
            observer: Who looks on.
        """

    def leave(self, agent: PoolAgent) -> None:
        """Have the agent forgotten."""


@contextlib.contextmanager
def own_gpus(count: int | None) -> Iterator[int]:
    """Have GPUs for this process alone until the end of the context, and return how many.

    Args:
        count: Number of GPUs; None: one where there are any, else none.

    Raises:
        UsageError: There are not so many that are free.
    """
    machine = this_machine()
    wanted = count if count is not None else int(machine.has_gpus)
    before = os.environ.get(_MASK)

    def dealt(free: Machine) -> list[Placement]:
        need = Need(gpus=float(wanted))
        if wanted and not room(need, dataclasses.replace(free, memory=None)):
            raise UsageError(
                f"An agent of the pool was to have {wanted} GPUs (--gpus-per-agent), and {len(free.cards)} "
                "are free here. Ask for fewer, or wait until others have ended."
            )
        return deal(need, 1, free)

    with claimed(machine, dealt) as places:
        if machine.has_gpus:
            os.environ[_MASK] = ",".join(places[0].gpus or ())
        try:
            yield wanted
        finally:
            if before is None:
                os.environ.pop(_MASK, None)
            else:
                os.environ[_MASK] = before


class PoolWorker:
    """Serves studies of the pool, one at a time, until it is interrupted or idle for too long.

    Args:
        source: Where studies come from.
        agent: What it says of itself; the name is given here.
        idle: Seconds without a study after which it leaves; None: it waits for ever.
        told: Called with a line for people whenever it begins or ends something.
    """

    def __init__(
        self, source: Source, agent: PoolAgent, *, idle: float | None, told: Callable[[str], None]
    ) -> None:
        self._source = source
        name = f"{agent_name()}-{secrets.token_hex(3)}"
        self._me = dataclasses.replace(agent, name=name, machine=host())
        self._idle = idle
        self._told = told
        self._unable_until: dict[int, float] = {}
        self._idle_until: dict[int, float] = {}
        self._reached = time.monotonic()
        self._known, self._wrong = False, ""

    def run(self) -> None:
        """Serve studies until nothing was to be done for ``idle`` seconds.

        Raises:
            KeyboardInterrupt: Passed on; the runs in progress were checkpointed and given back.
            AccessDenied: The token was never accepted.
            StoreUnreachable: The database or the server was away for half an hour.
        """
        known: Told | None = None
        since = time.monotonic()
        try:
            while self._idle is None or time.monotonic() - since < self._idle:
                known = self._ask(known, since)
                if known is None or known.name is None:
                    continue
                self._serve(known)
                known, since = None, time.monotonic()
        finally:
            with contextlib.suppress(TempoptError):
                self._source.leave(self._me)

    def _ask(self, known: Told | None, since: float) -> Told | None:
        """Return what there is to do, None if nobody could be asked."""
        now = time.monotonic()
        left = WAIT_SECONDS if self._idle is None else max(0.0, since + self._idle - now)
        unable = {id: why for id, why in self._me.unable.items() if self._unable_until.get(id, now) > now}
        idle_at = {id: mark for id, mark in self._me.idle_at.items() if self._idle_until.get(id, now) > now}
        self._me = dataclasses.replace(self._me, study_id=None, leaving=False, unable=unable, idle_at=idle_at)
        try:
            told = self._source.hear(self._me, known=known, wait=min(WAIT_SECONDS, left))
        except AccessDenied as error:
            # a token that was never accepted is the wrong one; one that was may be replaced in its file
            if not self._known:
                raise
            self._wait(error)
            return None
        except StoreUnreachable as error:
            self._wait(error)
            return None
        self._reached, self._known, self._wrong = time.monotonic(), True, ""
        return told

    def _wait(self, error: TempoptError) -> None:
        """Wait until the store can be reached again: no person is there to start this anew."""
        if time.monotonic() - self._reached >= _PATIENCE_SECONDS:
            raise error
        if str(error) != self._wrong:
            self._wrong = str(error)
            self._told(f"{error} Trying again for {_PATIENCE_SECONDS / 60:.0f} minutes.")
        time.sleep(_AGAIN_SECONDS)

    def _serve(self, told: Told) -> None:
        assert told.name is not None and told.assignment.study_id is not None
        id, name = told.assignment.study_id, told.name
        self._me = dataclasses.replace(self._me, study_id=id)
        self._told(f"Serves {name}.")
        watch = _Watch(self._source, self._me)
        gate, why = watch.gate, ""
        try:
            self._source.serve(name, gpus=self._me.gpus, gate=gate, observer=_Lines(name, self._told))
        except StudyNotFound:
            why = "it was deleted"
        except (StoreUnreachable, StoreLost, AccessDenied) as error:
            self._wait(error)
            why = "the store was away"
        except (SpecError, UsageError, StudyFailed, StorageError) as error:
            if self._is_there():
                self._cannot(id, str(error), until=time.monotonic() + _UNABLE_SECONDS)
                why = f"it cannot be served here: {error}"
        finally:
            watch.stop()
            gate.close()
        self._reached = time.monotonic()
        if gate.found_nothing and not why:
            self._found_nothing(id, gate.mark)
            why = "no run can be begun just now"
        orders = {"preempt": "another study has a higher priority", "finish": "another study is to be served"}
        self._told(f"Left {name}: {masked(why) or orders.get(gate.order, 'it is over or was paused')}.")

    def _is_there(self) -> bool:
        """Return whether the study that is served is one that is to be served, as far as can be told."""
        try:
            return bool(self._source.hear(self._me, known=None, wait=0.0).mark)
        except TempoptError:
            return True

    def _cannot(self, id: int, why: str, *, until: float) -> None:
        self._unable_until[id] = until
        self._me = dataclasses.replace(self._me, unable={**self._me.unable, id: why})

    def _found_nothing(self, id: int, mark: str) -> None:
        self._idle_until[id] = time.monotonic() + _IDLE_SECONDS
        idle_at = {**self._me.idle_at}
        # the last one that was found is the last one to be forgotten
        idle_at.pop(id, None)
        kept = list(idle_at.items())[1 - _MOST_IDLE :]
        self._me = dataclasses.replace(self._me, idle_at={**dict(kept), id: mark})


class _Watch:
    """Says, while an agent serves a study, that it does, and passes on what it is told."""

    def __init__(self, source: Source, agent: PoolAgent) -> None:
        self._source = source
        self._agent = agent
        self._known: Told | None = None
        self.gate = Gate(self._ask)
        self._over = threading.Event()
        threading.Thread(target=self._run, name="tempopt-pool", daemon=True).start()

    def stop(self) -> None:
        """Say nothing any more; an answer that is on its way is not heard."""
        self._over.set()

    def _ask(self) -> None:
        threading.Thread(target=self._look, name="tempopt-mark", daemon=True).start()

    def _look(self) -> None:
        """Get the mark of the study; what is to be done is told to the other thread too."""
        with contextlib.suppress(TempoptError):
            self.gate.marked(self._source.hear(self._agent, known=None, wait=0.0).mark)

    def _run(self) -> None:
        while not self._over.is_set():
            leaving = self.gate.order == "preempt"
            agent = dataclasses.replace(self._agent, leaving=leaving)
            try:
                told = self._source.hear(agent, known=self._known, wait=WAIT_SECONDS)
            except TempoptError:
                # the study's own client tells people of it
                self._over.wait(_AGAIN_SECONDS)
                continue
            if self._over.is_set():
                return
            self._known = told
            if not leaving:
                # who has begun to leave leaves
                self.gate.say(told.assignment.order)


class _Lines(Unobserved):
    """Passes on what a person should read of a study."""

    def __init__(self, study: str, told: Callable[[str], None]) -> None:
        self._study = study
        self._told = told

    def note(self, text: str) -> None:
        """Write a line."""
        self._told(f"{self._study}: {text}")
