"""An agent's dealings with the store: the tickets it takes, the changes it tells, the stages it opens.

Speaks to no trainer. Whatever asks the store raises Away while it cannot be reached, and can be asked again.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from tempopt.errors import StorageError, StudyFailed
from tempopt.store import checkpoints
from tempopt.store.rows import Change, Checkpoint, Kept, StudyRow, TicketRow, Written
from tempopt.store.store import Store
from tempopt.study.arms import SEARCHING, by_step
from tempopt.study.assignment import first_lease
from tempopt.study.board import Board
from tempopt.study.limits import ended_by
from tempopt.study.outbox import Away, Line, Outbox, left_behind, outbox_path
from tempopt.study.presence import agent_name
from tempopt.study.progress import Observer
from tempopt.study.spec import StudySpec
from tempopt.study.stages import next_tickets

_CHECKPOINTS_KEPT = 2


class Desk:
    """The store as one agent sees it.

    Args:
        spec: The study's spec.
        study: The study's row.
        store: Where tickets and measurements are.
        folder: Local folder for what cannot be delivered.
        trainers: Number of the agent's trainers.
        observer: Who is told what a person should read.
    """

    def __init__(
        self,
        *,
        spec: StudySpec,
        study: StudyRow,
        store: Store,
        folder: Path,
        trainers: int,
        observer: Observer,
    ) -> None:
        self._spec = spec
        self._study = study
        self._store = store
        self._folder = folder
        self._trainers = trainers
        self._observer = observer
        self._name = agent_name()
        self._line = Line(timeout=spec.study.store_timeout, note=observer.note)
        self._outbox = Outbox(
            store=store,
            line=self._line,
            study_id=study.id,
            lease=spec.study.lease,
            path=outbox_path(folder, self._name),
        )
        self._useless: list[str] = []
        self._deliver_for_the_dead()
        self.board = Board(spec, study, store)

    def _deliver_for_the_dead(self) -> None:
        for path, changes in left_behind(self._folder):
            self._store.write(self._study.id, changes, lease=self._spec.study.lease)
            self._observer.note(
                "What an agent on this machine could not tell the store before it died was told."
            )
            path.unlink(missing_ok=True)

    # ---- what is told

    def tell(self, change: Change, *, age: float = 0.0) -> None:
        """Have a change delivered, now or with others; ``age``: seconds that its run has trained."""
        self._outbox.add(change, age=age)

    def progressed(self, ticket: TicketRow) -> None:
        """Have a lease renewed with the next delivery: its run has made progress."""
        self._outbox.renew(ticket.id, ticket.attempt)

    def let_go(self, ticket: TicketRow) -> None:
        """Renew a lease no more."""
        self._outbox.drop(ticket.id)

    def keep(self, ticket: TicketRow, checkpoint: Checkpoint, *, age: float) -> TicketRow:
        """Have a checkpoint recorded, and those before the last deleted; return the ticket with it."""
        self.tell(Kept(ticket_id=ticket.id, attempt=ticket.attempt, checkpoint=checkpoint), age=age)
        newest = (checkpoint, *ticket.checkpoints)
        self._useless += [each.url for each in newest[_CHECKPOINTS_KEPT:]]
        self.board.note(ticket.id, checkpoints=newest[:_CHECKPOINTS_KEPT])
        return dataclasses.replace(ticket, checkpoints=newest[:_CHECKPOINTS_KEPT])

    def discard(self, ticket: TicketRow) -> None:
        """Have the checkpoints of a run that is over deleted."""
        self._useless += [each.url for each in ticket.checkpoints]

    def speak(self) -> list[int]:
        """Deliver what there is to tell, if it is time; return the ids of tickets that are others' by now."""
        return list(self._deliver().refused) if self._outbox.due() else []

    def _deliver(self) -> Written:
        written = self._outbox.deliver()
        # only what the store names no more: an agent that takes over goes by what it finds there
        useless, self._useless = self._useless, []
        # what cannot be deleted now is left to `tempopt gc`
        with contextlib.suppress(OSError):
            checkpoints.remove(useless)
        self.board.state = written.state
        if written.refused or written.version != self.board.version:
            self._read()
        return written

    def close(self) -> None:
        """Deliver what can be delivered; the rest is on disk for the next agent on this machine."""
        with contextlib.suppress(Away, StudyFailed, StorageError):
            self._deliver()

    # ---- what is done

    def next_ticket(self, held: list[int]) -> TicketRow | None:
        """Return a ticket to do, with its parameters, None if there is none just now.

        Args:
            held: Ids of the tickets that are in work here.
        """
        self._end_search()
        ticket = self._take(held) if self.board.startable() else None
        if ticket is None:
            # what others have done may let more begin, and what they have lost is to be done again
            if len(self._outbox):
                self._deliver()
            self._line.attempt(self.board.refresh)
            ticket = None if self.board.over() else self._take(held)
        if ticket is not None and ticket.parameters is None:
            ticket = self._parametrised(ticket)
        if ticket is not None:
            self.board.take_in(ticket, {})
        return ticket

    def _take(self, held: list[int]) -> TicketRow | None:
        return self._line.attempt(
            lambda: self._store.take_ticket(
                self._study.id,
                self._name,
                self.board.limits(),
                lease=first_lease(self._spec.study.lease),
                max_attempts=self._spec.study.max_attempts,
                dead=self.board.dead(),
                held=held,
            )
        )

    def _parametrised(self, ticket: TicketRow) -> TicketRow:
        arms = self.board.arms
        sampled = arms.ask(ticket)
        parameters = self._spec.parameters(ticket.kind, sampled)  # type: ignore[arg-type]
        trial = arms.trial(sampled) if ticket.kind == "search" else None
        number = self._line.attempt(
            lambda: self._store.begin(ticket.id, ticket.attempt, parameters, sampled, trial)
        )
        return dataclasses.replace(ticket, parameters=parameters, sampled=sampled, trial_number=number)

    def reports(self, ticket: TicketRow) -> dict[int, float]:
        """Return what earlier attempts at a ticket have reported, step to value."""
        if ticket.attempt == 1:
            return {}
        found = self._line.attempt(
            lambda: self._store.measurements(self._study.id, [ticket.id], names=["report"])
        )
        return by_step(found).get(ticket.id, {})

    def _end_search(self) -> None:
        reason = ended_by(self._spec, self._study, self.board, trainers=self._trainers)
        if reason is not None:
            self._line.attempt(lambda: self._store.withdraw(self._study.id, SEARCHING))
            self._observer.note(reason)
            self._read()

    def over(self) -> bool:
        """Return whether nothing is left to do, now and later; the next stage is opened if there is one."""
        if not self.board.over() or len(self._outbox):
            return False
        # what is over for all agents is over for good, but somebody may have asked for more
        self._read()
        if not self.board.over():
            return False
        id, version = self._study.id, self.board.version
        new = next_tickets(list(self.board.tickets.values()), self._spec)
        if not new and self._line.attempt(lambda: self._store.set_state(id, "done", version=version)):
            return True
        if new:
            self._line.attempt(lambda: self._store.add_tickets(id, new, version=version))
        self._read()
        return False

    def _read(self) -> None:
        """Read all tickets anew, with what is still to be told told first."""
        if len(self._outbox):
            self._outbox.deliver()
        self._line.attempt(self.board.read)
