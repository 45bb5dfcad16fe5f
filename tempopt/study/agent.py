"""The agent: takes tickets, has them trained, reports what comes back and says how they ended.

It trains nothing itself and decides nothing by the clock: what a ticket gets and whether it is pruned
follow from the study's seed and the results that the ticket may know (history.py). Any number of agents
may be at work on one study; they meet in the store and nowhere else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Collection, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tempopt.errors import SpecError, StudyFailed, StudyNotFound
from tempopt.store.checkpoints import LOG, join, run_name
from tempopt.store.rows import (
    Began,
    Checkpoint,
    Ended,
    Lost,
    Measurement,
    Outcome,
    Outcomes,
    Reported,
    Returned,
    StudyRow,
    TicketRow,
)
from tempopt.store.store import Store
from tempopt.study.assignment import Assignment
from tempopt.study.confirm import counted, evaluations
from tempopt.study.desk import Desk
from tempopt.study.interrupt import Interrupt, interruptible
from tempopt.study.outbox import Away
from tempopt.study.outlook import snapshot
from tempopt.study.progress import Observer
from tempopt.study.spec import StudySpec
from tempopt.temperature import TEMPERATURE_PARAMETERS
from tempopt.training.messages import (
    Failed,
    Finished,
    Kept,
    Message,
    Program,
    Progress,
    Ready,
    Report,
    RunRequest,
    Saved,
    Started,
    Stop,
)
from tempopt.training.process import TrainerProcess

_STILLBORN = 3
_IDLE_SECONDS = 2.0


class Agent:
    """Carries a study on with the trainers it is given.

    Args:
        spec: The study's spec.
        program: What trainers train.
        study: The study's row.
        store: Where tickets and measurements are.
        trainers: Warm trainers, one run each at a time.
        folder: Local folder for logs, one subfolder per ticket.
        checkpoints: URL of the folder for checkpoints, one subfolder per ticket.
        threads: CPU threads of a trainer that has to be started again.
        observer: Who looks on.
    """

    def __init__(
        self,
        *,
        spec: StudySpec,
        program: Program,
        study: StudyRow,
        store: Store,
        trainers: Sequence[TrainerProcess],
        folder: Path,
        checkpoints: str,
        threads: int,
        observer: Observer,
    ) -> None:
        self._spec = spec
        self._program = program
        self._work = [Assignment(trainer=trainer) for trainer in trainers]
        self._folder = folder
        self._checkpoints = checkpoints
        self._threads = threads
        self._observer = observer
        self._desk = Desk(
            spec=spec,
            study=study,
            store=store,
            folder=folder,
            trainers=len(self._work),
            abandon=self._abandon,
            observer=observer,
        )
        self._board = self._desk.board
        self._clock = time.monotonic()
        self._idle_until = 0.0
        self._deaths = 0
        self._losses = 0

    @property
    def trainers(self) -> list[TrainerProcess]:
        """The trainers that are alive now."""
        return [work.trainer for work in self._work]

    def run(self) -> None:
        """Work until every ticket of every stage is over, or somebody wants the study to rest.

        Raises:
            StudyFailed: Nothing can be trained, trainers die before they begin, the store stays away, or
                the study was deleted.
            KeyboardInterrupt: Passed on, after the runs in work were checkpointed and given back.
        """
        with interruptible() as interrupt:
            try:
                self._work_on(interrupt)
            except StudyNotFound as error:
                raise StudyFailed(f"The study was deleted while this agent was at work: {error}") from error
            except BaseException:
                self._leave()
                raise
        self._look()

    def _work_on(self, interrupt: Interrupt) -> None:
        while True:
            with contextlib.suppress(Away):
                self._desk.speak()
                if self._board.state == "paused":
                    self._leave()
                    return
                if self._desk.over():
                    return
                self._assign()
            self._look()
            self._listen(interrupt)
            self._watch()

    def _abandon(self, refused: Collection[int]) -> None:
        for work in self._work:
            ticket = work.ticket
            if ticket is not None and ticket.id in refused:
                self._observer.note(
                    f"{ticket.kind} {ticket.number} was given to another agent meanwhile; what was trained "
                    "of it here is thrown away."
                )
                work.trainer.send(Stop(ticket=ticket.id, attempt=ticket.attempt))
                self._desk.let_go(ticket)
                work.abandon()

    def _assign(self) -> None:
        for work in self._work:
            if not work.idle or time.monotonic() < self._idle_until:
                continue
            held = [each.ticket.id for each in self._work if each.ticket is not None]
            ticket = self._desk.next_ticket(held)
            if ticket is None:
                self._idle_until = time.monotonic() + _IDLE_SECONDS
            else:
                self._begin(work, ticket)

    # ---- with the trainers

    def _begin(self, work: Assignment, ticket: TicketRow) -> None:
        work.take(ticket, self._folder_of(ticket), self._desk.reports(ticket))
        if self._pruned_before(work, ticket):
            work.pruned = True
            self._end(work, "pruned", max(work.reports), 0.0)
            return
        work.trainer.send(self._request(ticket))

    def _pruned_before(self, work: Assignment, ticket: TicketRow) -> bool:
        # an agent that died between a pruning decision and its record decided the same way
        steps = sorted(step for step in work.reports if step != ticket.total_steps)
        return any(
            self._board.arms.prune(ticket, {s: work.reports[s] for s in steps[: end + 1]})
            for end in range(len(steps))
        )

    def _request(self, ticket: TicketRow) -> RunRequest:
        winner = self._board.winner(ticket.round) if ticket.kind in ("confirm", "init_only") else {}
        bake = {n: v for n, v in winner.items() if n in TEMPERATURE_PARAMETERS}
        assert ticket.parameters is not None
        return RunRequest(
            ticket=ticket.id,
            attempt=ticket.attempt,
            program=self._program,
            parameters=ticket.parameters,
            seed=ticket.seed,
            evaluations=evaluations(ticket.kind, ticket.arm, self._spec, winner),
            bake=bake if ticket.kind == "init_only" else None,
            folder=str(self._folder_of(ticket)),
            checkpoints=join(self._checkpoints, self._folder_of(ticket).name),
            checkpoint_every=self._spec.study.checkpoint_every,
            resume=[Saved(**dataclasses.asdict(each)) for each in ticket.checkpoints],
        )

    def _folder_of(self, ticket: TicketRow) -> Path:
        return self._folder / run_name(ticket.kind, ticket.number)

    def _listen(self, interrupt: Interrupt) -> None:
        by_connection = {work.trainer.connection: work for work in self._work}
        for ready in wait([interrupt.wake, *by_connection], timeout=1.0):
            if ready is interrupt.wake:
                raise KeyboardInterrupt
            self._hear(by_connection[ready])  # type: ignore[index]

    def _hear(self, work: Assignment) -> None:
        message = work.trainer.receive()
        if message is None:
            self._died(work)
            return
        self._deaths = 0
        if not isinstance(message, Ready):
            self._handle(work, message)

    def _watch(self) -> None:
        lease = self._spec.study.lease
        for work in self._work:
            if not work.stuck(lease):
                continue
            if work.ticket is not None:
                self._observer.note(
                    f"The trainer of {work.ticket.kind} {work.ticket.number} has made no step for "
                    f"{time.monotonic() - work.moved:.0f} s (study.lease is {lease:g} s); it is ended."
                )
            work.trainer.end()

    def _handle(self, work: Assignment, message: Message) -> None:
        assert isinstance(message, Started | Progress | Report | Kept | Finished | Failed)
        if work.abandoned == (message.ticket, message.attempt) and isinstance(message, Finished | Failed):
            work.abandoned = None
        if not work.concerns(message.ticket, message.attempt):
            return
        assert work.ticket is not None
        # when a model has been built, its first step, and perhaps a compilation, is still to come
        work.moving = work.training
        work.moved = time.monotonic()
        self._desk.progressed(work.ticket, work.patience(self._spec.study.lease))
        match message:
            case Started():
                self._started(work, message)
            case Progress():
                work.step = message.step
            case Report():
                self._reported(work, message.step, message.value)
            case Kept():
                self._kept(work, message)
            case Finished():
                self._finished(work, message)
            case Failed():
                self._failed(work, message)

    def _started(self, work: Assignment, message: Started) -> None:
        work.training, work.step, work.total_steps = True, message.step, message.total_steps
        board, id = self._board, message.ticket
        self._desk.tell(
            Began(ticket_id=id, attempt=message.attempt, total_steps=message.total_steps, code=message.code)
        )
        board.note(id, total_steps=message.total_steps)
        if board.codes and message.code not in board.codes:
            self._observer.note(
                "The code, or a package it uses, has changed since this study began: it has runs of both."
            )
        board.codes.add(message.code)
        for text in message.notes:
            self._observer.note(f"{board.tickets[id].kind} {board.tickets[id].number}: {text}")
        # a run that starts again before its last report will report those steps once more
        known, work.reports = work.reports, {}
        for step, value in message.reports:
            if int(step) in known:
                work.reports[int(step)] = value
            else:
                self._reported(work, int(step), value)

    def _reported(self, work: Assignment, step: int, value: float) -> None:
        ticket = work.ticket
        assert ticket is not None
        if work.pruned:
            return
        work.step = step
        work.reports[step] = value
        self._desk.tell(
            Reported(ticket_id=ticket.id, attempt=ticket.attempt, step=step, value=value), age=work.age
        )
        if step != work.total_steps and self._board.arms.prune(ticket, work.reports):
            work.pruned = True
            work.trainer.send(Stop(ticket=ticket.id, attempt=ticket.attempt))

    def _kept(self, work: Assignment, message: Kept) -> None:
        assert work.ticket is not None
        kept = Checkpoint(**dataclasses.asdict(message.saved))
        work.ticket = self._desk.keep(work.ticket, kept, age=work.age)

    # ---- how runs end

    def _finished(self, work: Assignment, message: Finished) -> None:
        ticket = work.ticket
        assert ticket is not None
        if work.pruned:
            self._end(work, "pruned", message.step, message.seconds, message.checkpoint_seconds)
        elif message.state == "stopped":
            assert work.leaving, "a trainer stopped a run that nobody stopped"
            self._return(work)
        elif message.state == "diverged":
            self._end(work, "diverged", message.step, message.seconds, message.checkpoint_seconds)
        else:
            measured = [
                Measurement(ticket_id=ticket.id, step=message.step, name=name, value=value)
                for name, value in message.measurements.items()
            ]
            self._end(work, "complete", message.step, message.seconds, message.checkpoint_seconds, measured)

    def _end(
        self,
        work: Assignment,
        outcome: Outcome,
        step: int,
        seconds: float,
        saving: float = 0.0,
        measured: Sequence[Measurement] = (),
    ) -> None:
        ticket = work.ticket
        assert ticket is not None
        self._losses = 0
        value = next(reversed(work.reports.values()), None) if outcome == "pruned" else None
        if outcome == "complete":
            value = next(m.value for m in measured if m.name == counted(ticket.kind, self._spec))
        outcomes = Outcomes(
            outcome=outcome,
            value=value,
            steps=step,
            seconds=seconds,
            diverged_at=step if outcome == "diverged" else None,
            measurements=list(measured),
            checkpoint_seconds=saving,
        )
        self._desk.tell(
            Ended(ticket_id=ticket.id, attempt=ticket.attempt, outcomes=outcomes, log=work.printed())
        )
        row = dataclasses.replace(
            ticket,
            state="done",
            outcome=outcome,
            value=value,
            steps=step,
            total_steps=work.total_steps,
            seconds=ticket.seconds + seconds,
            diverged_at=outcomes.diverged_at,
            checkpoints=(),
        )
        self._over(work, row)

    def _over(self, work: Assignment, row: TicketRow) -> None:
        assert work.ticket is not None
        self._desk.discard(work.ticket)
        self._board.take_in(row, work.reports)
        self._free(work)
        self._observer.finished(row)

    def _free(self, work: Assignment) -> None:
        assert work.ticket is not None
        self._desk.let_go(work.ticket)
        work.ticket = None
        self._idle_until = 0.0

    def _return(self, work: Assignment) -> None:
        ticket = work.ticket
        assert ticket is not None
        self._desk.tell(
            Returned(ticket_id=ticket.id, attempt=ticket.attempt, seconds=work.age, log=work.printed())
        )
        self._board.note(ticket.id, state="waiting", agent=None)
        self._free(work)

    def _failed(self, work: Assignment, message: Failed) -> None:
        ticket = work.ticket
        assert ticket is not None
        # init-only needs query weights to bake into; a study without them has a verdict all the same
        final = message.kind == "usage"
        if final and ticket.kind != "init_only":
            self._return(work)
            raise SpecError(message.message)
        attempts = 1 if final else self._spec.study.max_attempts
        nothing_works = not any(t.state == "done" for t in self._board.tickets.values())
        if message.kind == "error" and nothing_works and ticket.failures + 1 >= attempts:
            # it is the code that fails, and not this ticket: when that is put right, it is to be done
            self._return(work)
            raise StudyFailed(
                f"The training raises in every attempt: {message.message}\nThe traceback is in "
                f"{self._folder_of(ticket) / LOG}, and in: tempopt logs {self._spec.study.name}"
            )
        self._lost(work, message.message, attempts=attempts)

    def _lost(self, work: Assignment, why: str, *, attempts: int) -> None:
        ticket = work.ticket
        assert ticket is not None
        self._losses += 1
        self._desk.tell(
            Lost(
                ticket_id=ticket.id,
                attempt=ticket.attempt,
                error=why,
                max_attempts=attempts,
                seconds=work.age,
                log=work.printed(),
            )
        )
        self._observer.note(f"{ticket.kind} {ticket.number}, attempt {ticket.attempt}: {why}")
        row = dataclasses.replace(
            ticket, error=why, failures=ticket.failures + 1, seconds=ticket.seconds + work.age
        )
        if row.failures < attempts:
            self._board.take_in(dataclasses.replace(row, state="waiting", agent=None), {})
            self._free(work)
        else:
            self._over(work, dataclasses.replace(row, state="failed", outcome="failed"))
        if attempts > 1 and self._losses > attempts * len(self._work):
            raise StudyFailed(
                f"{self._losses} runs in a row were lost, the last one because {why}. Put that right, and go "
                f"on with what is left: tempopt resume {self._spec.study.name}"
            )

    def _died(self, work: Assignment) -> None:
        self._deaths += 1
        why = work.trainer.obituary()
        work.trainer.connection.close()
        work.trainer = TrainerProcess(slot=work.trainer.slot, threads=self._threads)
        work.abandoned = None
        if work.ticket is not None:
            self._lost(work, why, attempts=self._spec.study.max_attempts)
        if self._deaths > _STILLBORN * len(self._work):
            raise StudyFailed(
                f"Trainers die before they have said a word: {why}. Logs are in {self._folder}."
            )

    # ---- leaving

    def _leave(self) -> None:
        """Have runs write a checkpoint and stop, and give their tickets back, within the grace time."""
        until = time.monotonic() + self._spec.resources.grace
        # whatever happens now, a second Ctrl-C or a trainer that dies, the tickets are to be given back
        with contextlib.suppress(KeyboardInterrupt, Exception):
            for work in self._work:
                if work.ticket is not None:
                    work.leaving = True
                    id, attempt = work.ticket.id, work.ticket.attempt
                    work.trainer.send(Stop(ticket=id, attempt=attempt, keep=not work.pruned))
            while (busy := self._busy()) and (left := until - time.monotonic()) > 0:
                for ready in wait(busy, timeout=left):
                    self._hear(busy[ready])  # type: ignore[index]
        for work in self._work:
            if work.ticket is not None:
                self._return(work)
        self._desk.close()

    def _busy(self) -> dict[Connection, Assignment]:
        return {work.trainer.connection: work for work in self._work if work.ticket is not None}

    def _look(self) -> None:
        elapsed = time.monotonic() - self._clock
        self._observer.update(snapshot(self._board, self._spec, self._work, elapsed))
