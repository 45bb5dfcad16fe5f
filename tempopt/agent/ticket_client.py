"""An agent's dealings with the store: the tickets it takes, the changes it tells, the stages it opens.

Speaks to no worker. Every request raises StoreAway while the store cannot be reached, and can be repeated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from tempopt.agent.checkpoint_reuse import beyond_quota, for_others, kept_at_end
from tempopt.agent.observer import Observer, WorkerView
from tempopt.agent.running import in_work
from tempopt.agent.stopping import beyond_notice, ended_by
from tempopt.agent.store_connection import StoreAway, StoreConnection
from tempopt.agent.study_cache import SpaceChanged, StudyCache
from tempopt.agent.worker_slot import first_lease
from tempopt.agent.write_queue import Outbox, left_behind, outbox_path
from tempopt.confirmation.stages import next_tickets
from tempopt.errors import StaleAttempt, StorageError, StudyFailed, StudyNotFound
from tempopt.records.changes import Change, Kept, Wanted
from tempopt.records.liveness import agent_name, leave
from tempopt.records.rows import SEARCHING, Checkpoint, Outcome, StudyRow, TicketRow, to_go_on_from
from tempopt.records.tickets import over
from tempopt.sampling.arms import by_step
from tempopt.spec.study_spec import StudySpec
from tempopt.store import checkpoints
from tempopt.store.store import Store

THOROUGH_SECONDS = 2.0
"""So often at most, while nothing is known to wait, the store is asked for what others have lost."""


class TicketClient:
    """The store as one agent sees it.

    Args:
        spec: The study's spec.
        study: The study's row.
        store: Where tickets and measurements are.
        folder: Local folder for what cannot be delivered.
        workers: Number of the agent's workers.
        abandon: Called with the ids of tickets that are others' by now, before anything else is done.
        observer: Who is told what a person should read.
    """

    def __init__(
        self,
        *,
        spec: StudySpec,
        study: StudyRow,
        store: Store,
        folder: Path,
        workers: int,
        abandon: Callable[[Collection[int]], None],
        observer: Observer,
    ) -> None:
        self._spec = spec
        self._study = study
        self._store = store
        self._folder = folder
        self._workers = workers
        self._abandon = abandon
        self._observer = observer
        self._name = agent_name()
        self._connection = StoreConnection(timeout=spec.study.store_timeout, note=observer.note)
        self._outbox = Outbox(
            store=store,
            agent=self._name,
            connection=self._connection,
            study_id=study.id,
            lease=spec.study.lease,
            path=outbox_path(folder, self._name),
        )
        self._useless: list[tuple[TicketRow, str]] = []
        self._shared: dict[str, TicketRow] = {}
        self._evicted: dict[int, TicketRow] = {}
        self._asked = -math.inf
        self._looked = -math.inf
        self._others: list[WorkerView] = []
        self._deliver_for_the_dead()
        self.cache = StudyCache(spec, study, store)

    def _deliver_for_the_dead(self) -> None:
        for path, agent, changes in left_behind(self._folder):
            self._store.write(self._study.id, changes, agent=agent, lease=self._spec.study.lease, adopt=False)
            self._observer.note(
                "What an agent on this machine could not tell the store before it died was told."
            )
            # what stays is told once more, which changes nothing
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    # ---- what is told

    def tell(self, change: Change, *, age: float = 0.0) -> None:
        """Have a change delivered, now or with others; ``age``: seconds that its run has trained."""
        self._outbox.add(change, age=age)

    def progressed(self, ticket: TicketRow, seconds: float, *, step: int | None = None) -> None:
        """Have a lease renewed with the next delivery: its run has moved, and has so long for the next.

        Args:
            step: Optimizer steps that it has done; None: not known yet.
        """
        self._outbox.renew(ticket.id, ticket.attempt, seconds, step=step)

    def let_go(self, ticket: TicketRow) -> None:
        """Renew a lease no more."""
        self._outbox.drop(ticket.id)

    def keep(self, ticket: TicketRow, checkpoint: Checkpoint, *, age: float) -> TicketRow:
        """Have a checkpoint recorded, and those that it makes needless deleted; return the ticket with it."""
        self.tell(Kept(ticket_id=ticket.id, attempt=ticket.attempt, checkpoint=checkpoint), age=age)
        newest = (checkpoint, *ticket.checkpoints)
        needed = to_go_on_from(newest)
        self._useless += [(ticket, each.url) for each in newest if each not in needed]
        self.cache.note(ticket.id, checkpoints=needed)
        return dataclasses.replace(ticket, checkpoints=needed)

    def discard(self, ticket: TicketRow, *, kept: Collection[Checkpoint] = ()) -> None:
        """Have the checkpoints of a run that is over deleted, but for those kept for other runs."""
        self._useless += [(ticket, each.url) for each in ticket.checkpoints if each not in kept]
        self._shared |= {each.url: ticket for each in kept}

    def shared(self, ticket: TicketRow, outcome: Outcome, value: float | None) -> tuple[Checkpoint, ...]:
        """Return which checkpoints of a run that ends so are kept for other runs.

        Those of others that have to go for it are deleted when the store names them no more.
        """
        kept = kept_at_end(ticket, self._spec, outcome)
        if not kept:
            return ()
        row = dataclasses.replace(ticket, outcome=outcome, value=value, checkpoints=kept)
        gone = beyond_quota([*for_others(self.cache.tickets.values()), row], self._spec)
        self._evict([each for each in gone if each.id != ticket.id])
        return () if row in gone else kept

    def _evict(self, tickets: Collection[TicketRow]) -> None:
        self._evicted |= {ticket.id: ticket for ticket in tickets}
        self.cache.forget_checkpoints([ticket.id for ticket in tickets])

    @property
    def urgent(self) -> bool:
        """Whether the end of a run is to be told, which taking the next ticket does in passing."""
        return self._outbox.urgent

    def speak(self) -> None:
        """Deliver what there is to tell, if it is time."""
        if self._outbox.due():
            self._deliver()

    def _deliver(self, take: Wanted | None = None) -> TicketRow | None:
        """Deliver everything, and return the ticket that was taken with it."""
        written = self._outbox.deliver(take, version=self.cache.version)
        self._delete_useless(written.refused)
        with contextlib.suppress(StoreAway):
            self._delete_evicted(written.refused)
        self.cache.state = written.state
        self.cache.grow_to(written.age)
        if written.refused:
            self._abandon(written.refused.keys())
        if written.refused or written.version != self.cache.version:
            self._read()
        return written.taken

    def _delete_useless(self, refused: Collection[int]) -> None:
        """Delete checkpoints that the store does not name any more; no agent uses them."""
        useless, self._useless = self._useless, []
        self._remove((ticket, url) for ticket, url in useless if ticket.id not in refused)
        self._shared = {url: ticket for url, ticket in self._shared.items() if ticket.id not in refused}

    def _delete_evicted(self, refused: Collection[int] = ()) -> None:
        """Delete checkpoints that were kept for other runs, as soon as the store names them no more."""
        # a run that is another's by now has other checkpoints, or these to go on from
        evicted = {id: ticket for id, ticket in self._evicted.items() if id not in refused}
        self._evicted = evicted
        if not evicted:
            return
        over = self._connection.attempt(
            lambda: self._store.forget_checkpoints(self._study.id, evicted.keys())
        )
        self._evicted = {}
        self._remove((evicted[id], each.url) for id in over for each in evicted[id].checkpoints)

    def _remove(self, files: Iterable[tuple[TicketRow, str]]) -> None:
        study = self._study.name
        checkpoints.remove(
            url
            for ticket, url in files
            # a row of the store is no reason to delete a file that tempopt has not written
            if checkpoints.is_ours(url, study=study, run=checkpoints.run_name(ticket.kind, ticket.number))
        )

    def close(self) -> None:
        """Deliver what can be delivered; the rest is on disk for the next agent on this machine."""
        with contextlib.suppress(StoreAway, StudyFailed, StorageError):
            with contextlib.suppress(SpaceChanged):
                self._deliver()
            # what was taken a moment ago, and given to no worker
            self._store.release(self._study.id, [self._name])
        leave(self._name)

    # ---- what others do

    def others(self) -> list[WorkerView]:
        """Return what other agents do, as it was when the store was asked last.

        It is asked as often as the observer wants to know, and not at all while nobody does.
        """
        every = self._observer.others_every
        late = every is not None and time.monotonic() - self._looked >= every
        # runs that have ended here are in progress for the store until it has heard of it
        if late and not self._outbox.urgent:
            self._looked = time.monotonic()
            # somebody looks on: no reason for the agent to give up, who will hear of it anyway
            with contextlib.suppress(StoreAway, StudyFailed, StudyNotFound):
                self._others = self._connection.attempt(self._look_around, reads=True)
        return self._others

    def _look_around(self) -> list[WorkerView]:
        self.cache.refresh()
        return in_work(self.cache, self._store, but=self._name)

    # ---- what is done

    def next_ticket(self, held: list[int]) -> TicketRow | None:
        """Return a ticket to do, with its parameters, None if there is none just now.

        Args:
            held: Ids of the tickets that are in progress here.
        """
        ticket, goes_on = None, False
        if self._outbox.urgent:
            # a ticket whose end the store has not heard of would be handed out again
            goes_on = self.cache.startable() and self._why_to_end() is None
            ticket = self._deliver(self._wanted(held) if goes_on else None)
            if self.cache.state == "paused":
                return None
        if ticket is None:
            if reason := self._why_to_end():
                self._end_search(reason)
            ticket = self._take(held) if self.cache.startable() and not goes_on else None
        if ticket is None:
            # what others have done may let more begin, and what they have lost is to be done again
            self._connection.attempt(self.cache.refresh, reads=True)
            late = time.monotonic() - self._asked >= THOROUGH_SECONDS
            if not self.cache.over() and (late or self.cache.startable()):
                ticket = self._take(held)
        if ticket is None:
            return None
        if ticket.id not in self.cache.tickets:
            # somebody has added tickets since they were last read
            self._read()
        if ticket.parameters is None:
            try:
                ticket = self._parametrised(ticket)
            except StaleAttempt:
                # this process was frozen for longer than the lease
                self._read()
                return None
        if ticket is not None:
            self.cache.take_in(ticket, {})
        return ticket

    def _wanted(self, held: list[int]) -> Wanted:
        self._asked = time.monotonic()
        return Wanted(
            limits=self.cache.limits(),
            lease=first_lease(self._spec.study.lease),
            max_attempts=self._spec.study.max_attempts,
            dead=self.cache.dead(),
            held=held,
            expired=self._connection.settled,
        )

    def _take(self, held: list[int]) -> TicketRow | None:
        wanted = self._wanted(held)
        return self._connection.attempt(lambda: self._store.take_ticket(self._study.id, self._name, wanted))

    def _parametrised(self, ticket: TicketRow) -> TicketRow | None:
        """Return a ticket with what it is to train; None: the search ends before it."""
        if self.cache.arms.unknown_before(ticket):
            # with many agents: to read what the others were given takes less than to draw all of it again
            self._connection.attempt(self.cache.refresh, reads=True)
        while reason := self._beyond_notice(ticket):
            if self._end_search(reason, before=ticket):
                return None
            # somebody has asked for more in the meantime
            self._read()
        arms = self.cache.arms
        sampled = arms.ask(ticket)
        parameters = self._spec.parameters(ticket.arm, sampled)  # type: ignore[arg-type]
        trial = arms.trial(sampled) if ticket.kind == "search" else None
        space = len(self._spec.amendments)
        number = self._connection.attempt(
            lambda: self._store.begin(ticket.id, ticket.attempt, parameters, sampled, trial, space=space)
        )
        return dataclasses.replace(
            ticket, parameters=parameters, sampled=sampled, trial_number=number, space=space
        )

    def _beyond_notice(self, ticket: TicketRow) -> str | None:
        """Return why neither this ticket nor those after it are worth training, None if they may be."""
        if self._spec.study.limits.standard_errors is None or ticket.kind != "search" or ticket.round:
            # trials that a person has asked for after a verdict are trained
            return None
        search = self.cache.of_kind("search")
        unbegun = [each for each in search if each.parameters is None and each.round == ticket.round]
        if any(t.sampled is not None and t.number >= ticket.number and not over(t) for t in unbegun):
            # and so is what somebody wants tried
            return None
        # another agent may end the search at one before this, or have done so: then it ends for all
        first = ticket.number - self._spec.study.parallel
        said = (
            beyond_notice(self._spec, each, self.cache.arms, left=len(search) - each.number)
            for each in unbegun
            if first < each.number <= ticket.number and each.sampled is None
        )
        return next(filter(None, said), None)

    def reports(self, ticket: TicketRow) -> dict[int, float]:
        """Return what earlier attempts at a ticket have reported, step to value."""
        if ticket.attempt == 1:
            return {}
        found = self._connection.attempt(
            lambda: self._store.measurements(self._study.id, [ticket.id], names=["report"])
        )
        return by_step(found).get(ticket.id, {})

    def _end_search(self, reason: str, *, before: TicketRow | None = None) -> bool:
        """Withdraw what waits, and return whether it was; not if tickets have come or gone meanwhile.

        Args:
            before: The first ticket that is not to be begun, which this agent has taken; None: all of them.
        """
        id, version = self._study.id, self.cache.version
        if before is None:
            self._connection.attempt(lambda: self._store.withdraw(id, SEARCHING))
        elif self._connection.attempt(lambda: self._store.end_before(before, version=version)) is None:
            return False
        self._observer.note(reason)
        self._read()
        return True

    def _why_to_end(self) -> str | None:
        return ended_by(self._spec, self.cache, workers=self._workers)

    def over(self) -> bool:
        """Return whether nothing is left to do, now and later; the next stage is opened if there is one."""
        if not self.cache.over() or len(self._outbox):
            return False
        # what is over for all agents is over for good, but somebody may have asked for more
        self._read()
        if not self.cache.over():
            return False
        # what the search kept for itself; after this round nothing begins from it
        self._evict(for_others(self.cache.tickets.values()))
        self._delete_evicted()
        id, version = self._study.id, self.cache.version
        new = next_tickets(list(self.cache.tickets.values()), self._spec, self.cache.arms.recommend)
        if not new and self._connection.attempt(lambda: self._store.set_state(id, "done", version=version)):
            return True
        if new:
            self._connection.attempt(lambda: self._store.add_tickets(id, new, version=version))
        self._read()
        return False

    def _read(self) -> None:
        """Read all tickets anew, with what is still to be told told first."""
        if len(self._outbox):
            self._deliver()
        self._connection.attempt(self.cache.read, reads=True)
        self._delete_forgotten()

    def _delete_forgotten(self) -> None:
        """Delete what this agent kept for other runs, and others, perhaps out of reach of it, gave up."""
        named = {each.url for ticket in self.cache.tickets.values() for each in ticket.checkpoints}
        gone = {url: ticket for url, ticket in self._shared.items() if url not in named}
        self._shared = {url: ticket for url, ticket in self._shared.items() if url in named}
        self._remove((ticket, url) for url, ticket in gone.items())
