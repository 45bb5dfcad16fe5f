"""The agent: takes tickets, has them trained, reports what comes back and says how they ended.

It trains nothing itself and decides nothing by the clock: what a ticket gets and whether it is pruned
follow from the study's seed and the results that the ticket may know (frozen_history.py). Any number of
agents may be at work on one study; they meet in the store and nowhere else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait

from tempopt.agent.disk_errors import DiskErrorTracker
from tempopt.agent.observer import Observer
from tempopt.agent.process import WorkerProcess
from tempopt.agent.signals import Interrupt, capture_signals
from tempopt.agent.store_connection import StoreUnavailableError
from tempopt.agent.study_client import THOROUGH_SECONDS, AgentCallbacks, RunFolders, StudyClient
from tempopt.agent.ticket_transitions import build_attempt_lost, build_attempt_released, build_run_ended
from tempopt.agent.worker_pool import WorkerPool
from tempopt.agent.worker_slot import Phase, Process, WorkerSlot, initial_lease_seconds
from tempopt.errors import SpecError, StudyFailed, StudyNotFound, mask_secrets
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.changes import RunStarted
from tempopt.storage.liveness import host
from tempopt.storage.rows import Checkpoint, Measurement, Outcome, TicketRow
from tempopt.storage.run_code import RunCode
from tempopt.training.messages import (
    LOG,
    CheckpointFailed,
    CheckpointSaved,
    Failed,
    Finished,
    Message,
    Progress,
    Ready,
    Report,
    Started,
    Stop,
)
from tempopt.verdict.run_evaluations import value_of

_PLAIN = ("cpu", "32-true")
_LISTEN_SECONDS = 1.0
_SOONEST_SECONDS = 0.05
_LONGER = 1.5


@dataclass(slots=True, kw_only=True)
class Turn:
    """When an agent leaves its study for another one.

    Args:
        idle_seconds: It leaves after so long without a run to begin.
        better: Name of a study of higher priority: no more runs are begun, and the agent leaves when those
            in progress have ended; None: there is none.
        has_trained: Whether the agent has begun a run.
        found_no_run: Whether it left because there was no run to begin.
        reason: Why it left, as the end of a sentence; empty: nothing is left to do, or it was paused.
    """

    idle_seconds: float
    better: str | None = None
    has_trained: bool = False
    found_no_run: bool = False
    reason: str = ""

    def ends(self, *, idle_seconds: float, has_looked: bool) -> bool:
        """Return whether an agent without a run in progress leaves now.

        Args:
            idle_seconds: Seconds since it had one.
            has_looked: Whether it has looked for a run since then, and there was none.
        """
        if self.better is not None:
            self.reason = f": {self.better} has a higher priority"
            return True
        if has_looked and idle_seconds >= self.idle_seconds:
            self.found_no_run = True
            self.reason = ": no run of it can be begun now"
            return True
        return False


class Agent:
    """Carries a study on with the workers it is given.

    Args:
        spec: The study's spec.
        client: The study, in a store or behind a server.
        workers: Warm workers, one run each at a time.
        folders: Where runs are written, for messages.
        observer: Is told what happens.
        turn: Says when it leaves the study to serve another; None: it stays until nothing is left to do.
    """

    def __init__(
        self,
        *,
        spec: StudySpec,
        client: StudyClient,
        workers: Sequence[WorkerProcess],
        folders: RunFolders,
        observer: Observer,
        turn: Turn | None = None,
    ) -> None:
        self._spec = spec
        self._turn = turn
        self._pool = WorkerPool(workers)
        self._folder = folders.logs
        self._observer = observer
        self._client = client
        client.listeners = AgentCallbacks(abandon=self._abandon, prune=self._prune)
        self._disk = DiskErrorTracker(spec, folders, note=observer.note)
        self._clock = self._worked = time.monotonic()
        self._idle_until = 0.0
        self._pause = 0.0
        self._losses = 0
        self._announced_devices = {_PLAIN}

    @property
    def workers(self) -> list[WorkerProcess]:
        """The workers that are alive now."""
        return self._pool.workers

    def run(self) -> None:
        """Work until every ticket of every stage is over, or the study is paused.

        Raises:
            StudyFailed: Nothing can be trained, workers die before they begin, the store stays away, or
                the study was deleted.
            KeyboardInterrupt: Passed on, after the runs in progress were checkpointed and returned.
        """
        with capture_signals() as interrupt:
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
            try:
                if not (self._client.urgent and self._pool.idle_workers()):
                    self._client.flush()
                if self._client.state == "paused":
                    self._leave()
                    return
                if self._client.is_finished():
                    return
                if self._should_leave():
                    self._leave()
                    return
                self._assign()
            except StoreUnavailableError:
                self._idle_until = time.monotonic() + _LISTEN_SECONDS
            self._tend()
            self._look()
            self._listen(interrupt)
            self._watch()

    def _should_leave(self) -> bool:
        """Return whether the agent is to leave for another study."""
        if self._turn is None:
            return False
        now, is_busy = time.monotonic(), bool(self._pool.held_ticket_ids())
        if is_busy or not self._pool.idle_workers():
            self._worked = now
        self._turn.has_trained |= is_busy
        return not is_busy and self._turn.ends(
            idle_seconds=now - self._worked, has_looked=self._client.last_empty_poll_at > self._worked
        )

    def _abandon(self, refused_ids: Collection[int]) -> None:
        for work in self._pool.all:
            ticket = work.ticket
            if ticket is not None and ticket.id in refused_ids:
                self._observer.note(
                    f"{ticket.kind} {ticket.number} was given to another agent meanwhile; what was trained "
                    "of it here is discarded."
                )
                self._client.stop_renewing(ticket)
                work.abandon()

    def _prune(self, ticket: int, attempt: int) -> None:
        """End a run as pruned, which was decided elsewhere."""
        for work in self._pool.all:
            if work.matches(ticket, attempt) and work.stopped is None and not work.waiting:
                work.stopped = "pruned"
                work.worker.send(Stop(ticket=ticket, attempt=attempt))

    def _assign(self) -> None:
        self._idle_until = max(self._idle_until, self._disk.until)
        takes_runs = self._turn is None or self._turn.better is None
        while takes_runs and (free := self._pool.idle_workers()) and time.monotonic() >= self._idle_until:
            ticket = self._client.next_ticket(self._pool.held_ticket_ids())
            if ticket is not None:
                self._pause = 0.0
                self._begin(free[0], ticket)
                continue
            # runs of equal length end close together, and the first of them lets the others go on
            self._pause = min(max(_SOONEST_SECONDS, _LONGER * self._pause), THOROUGH_SECONDS)
            self._idle_until = time.monotonic() + self._pause
            self._pool.share()

    def _tend(self) -> None:
        for work in self._pool.restart_and_pop_waiting():
            ticket = work.current_ticket
            work.send(self._client.request(ticket, work.memory_share))
            self._client.heartbeat(ticket, work.lease_seconds(self._spec.study.lease))

    # ---- with the workers

    def _begin(self, work: WorkerSlot, ticket: TicketRow) -> None:
        work.take(ticket, self._client.folder(ticket), self._client.reports(ticket))
        if self._client.was_pruned_earlier(ticket, work.reports):
            work.stopped = "pruned"
            nothing = Finished(
                ticket=ticket.id,
                attempt=ticket.attempt,
                state="stopped",
                step=max(work.reports),
                measurements={},
                metrics={},
                seconds=0.0,
                reports=[],
            )
            self._end(work, "pruned", nothing)
        elif not ticket.alone:
            work.send(self._client.request(ticket, work.memory_share))

    def _listen(self, interrupt: Interrupt) -> None:
        by_connection = self._pool.listening()
        patience = _LISTEN_SECONDS
        if self._pool.idle_workers():
            patience = min(patience, max(0.0, self._idle_until - time.monotonic()))
        channels = [interrupt.wake, *self._client.wakeup_sockets(), *by_connection]
        for ready in wait(channels, timeout=patience):
            if ready is interrupt.wake:
                raise KeyboardInterrupt
            if ready in by_connection:
                self._hear(by_connection[ready])
            else:
                self._idle_until = 0.0

    def _hear(self, work: WorkerSlot) -> None:
        message = work.worker.receive()
        if message is None:
            self._on_worker_death(work)
            return
        self._pool.note_worker_ready()
        if not isinstance(message, Ready):
            self._handle(work, message)

    def _watch(self) -> None:
        lease = self._spec.study.lease
        for work in self._pool.all:
            if not work.is_stalled(lease):
                continue
            if work.ticket is not None:
                self._observer.note(
                    f"The worker of {work.ticket.kind} {work.ticket.number} has made no step for "
                    f"{time.monotonic() - work.last_progress_at:.0f} s (study.lease is {lease:g} s); "
                    "it is ended."
                )
            work.worker.end()

    def _handle(self, work: WorkerSlot, message: Message) -> None:
        assert isinstance(
            message, Started | Progress | Report | CheckpointSaved | CheckpointFailed | Finished | Failed
        )
        if work.abandoned == (message.ticket, message.attempt) and isinstance(message, Finished | Failed):
            work.end_abandoned_run()
        if isinstance(message, Failed):
            # a group of processes ends with it, and one that ran out of a card's memory may have kept some
            if work.worker.placement.ranks > 1 or message.kind == "gpu_memory":
                work.process = Process.WORN
        if not work.matches(message.ticket, message.attempt):
            return
        work.note_progress()
        if isinstance(message, Started | Progress | Report):
            work.step = message.step
        elif isinstance(message, Finished | Failed):
            self._disk.log(message.log_lost)
        lease_seconds = work.lease_seconds(self._spec.study.lease)
        self._client.heartbeat(work.current_ticket, lease_seconds, step=work.step)
        for neighbour in self._pool.waiting_for(work):
            self._client.heartbeat(neighbour.current_ticket, initial_lease_seconds(self._spec.study.lease))
        match message:
            case Started():
                self._on_started(work, message)
            case Report():
                self._on_metric_reported(work, message.step, message.value)
            case CheckpointSaved():
                self._on_checkpoint_saved(work, message)
            case CheckpointFailed():
                self._disk.checkpoint(message.why)
            case Finished():
                self._on_finished(work, message)
            case Failed():
                self._on_failed(work, message)

    def _on_started(self, work: WorkerSlot, message: Started) -> None:
        work.phase, work.total_steps, work.device = Phase.STARTED, message.total_steps, message.device
        codes, ticket = self._client.codes, work.current_ticket
        # a run that starts again before its last report will report those steps once more
        earlier_reports, work.reports = work.reports, {}
        history = {int(step): value for step, value in message.reports}
        began = RunStarted(
            ticket_id=message.ticket,
            attempt=message.attempt,
            total_steps=message.total_steps,
            code=message.code,
            machine=host(),
            device=message.device,
        )
        self._client.report_run_started(
            began, {step: v for step, v in history.items() if step in earlier_reports}
        )
        identities = {RunCode.parse(code).identity for code in codes}
        if identities and RunCode.parse(message.code).identity not in identities:
            self._observer.note(
                "The code, or a package it uses, has changed since this study began: it has runs of both."
            )
        codes.add(message.code)
        if (message.device, message.precision) not in self._announced_devices:
            self._announced_devices.add((message.device, message.precision))
            self._observer.note(f"Trains on {message.device} at {message.precision} precision.")
        for text in message.notes:
            self._observer.note(f"{ticket.kind} {ticket.number}: {text}")
        for step, value in history.items():
            if step in earlier_reports:
                work.reports[step] = value
            else:
                self._on_metric_reported(work, step, value)

    def _on_metric_reported(self, work: WorkerSlot, step: int, value: float) -> None:
        ticket = work.current_ticket
        if work.pruned:
            return
        work.reports[step] = value
        if self._client.report_metric(
            ticket, step, work.reports, total_steps=work.total_steps, trained_seconds=work.age
        ):
            work.stopped = "pruned"
            work.worker.send(Stop(ticket=ticket.id, attempt=ticket.attempt))

    def _on_checkpoint_saved(self, work: WorkerSlot, message: CheckpointSaved) -> None:
        self._disk.checkpoint("")
        checkpoint = Checkpoint(**dataclasses.asdict(message.saved))
        work.ticket = self._client.keep(work.current_ticket, checkpoint, trained_seconds=work.age)

    # ---- how runs end

    def _on_finished(self, work: WorkerSlot, message: Finished) -> None:
        ticket = work.current_ticket
        for text in message.notes:
            self._observer.note(f"{ticket.kind} {ticket.number}: {text}")
        if work.pruned:
            self._end(work, "pruned", message)
        elif message.state == "stopped":
            assert work.stopped == "left", "a worker stopped a run without a request"
            self._return(work, message.peak_memory)
        elif message.state == "diverged":
            self._end(work, "diverged", message)
        else:
            points = [(message.step, name, value) for name, value in message.measurements.items()]
            points += [
                (int(step), name, value) for name, curve in message.curves.items() for step, value in curve
            ]
            measurements = [
                Measurement(ticket_id=ticket.id, step=step, name=name, value=value)
                for step, name, value in points
            ]
            self._end(work, "complete", message, measurements)

    def _end(
        self, work: WorkerSlot, outcome: Outcome, message: Finished, measurements: Sequence[Measurement] = ()
    ) -> None:
        ticket = work.current_ticket
        self._losses = 0
        self._disk.record_success(ticket)
        value = next(reversed(work.reports.values()), None) if outcome == "pruned" else None
        if outcome == "complete":
            value = value_of(ticket.kind, self._spec, message.measurements)
        change, row = build_run_ended(work, outcome, message, value=value, measured=measurements)
        self._client.report_run_ended(change, ticket, row, work.reports)
        self._free(work)
        self._observer.on_ticket_end(row)

    def _free(self, work: WorkerSlot) -> None:
        self._client.stop_renewing(work.current_ticket)
        work.free()
        self._idle_until = self._pause = 0.0

    def _return(self, work: WorkerSlot, peak_memory: int | None = None) -> None:
        self._client.report_attempt_released(build_attempt_released(work, peak_memory))
        self._free(work)

    def _on_failed(self, work: WorkerSlot, message: Failed) -> None:
        ticket = work.current_ticket
        if message.kind == "gpu_memory":
            self._on_out_of_memory(work, message.message)
            return
        if message.kind == "disk":
            self._return(work)
            self._disk.record_write_failure(ticket, message.message, self._client.tickets())
            return
        if message.kind == "usage":
            self._return(work)
            raise SpecError(message.message)
        attempts = self._spec.study.max_attempts
        if (
            message.kind == "error"
            and not self._client.has_finished_run()
            and ticket.failures + 1 >= attempts
        ):
            # it is the code that fails, and not this ticket: when that is put right, it is to be done
            self._return(work)
            raise StudyFailed(
                f"The training raises in every attempt: {message.message}\nThe traceback is in "
                f"{self._client.folder(ticket) / LOG}, and in: tempopt logs {self._spec.study.name}"
            )
        self._record_loss(work, message.message, attempts=attempts)

    def _on_out_of_memory(self, work: WorkerSlot, why: str) -> None:
        """Repeat a run with a GPU to itself; one that had it has failed for good."""
        ticket = work.current_ticket
        if ticket.alone:
            self._record_loss(work, f"{why} (with a GPU to itself)", attempts=1)
        else:
            self._record_loss(work, why, attempts=ticket.failures + 2, alone=True)
            self._observer.note(f"{ticket.kind} {ticket.number} is tried once more, with a GPU to itself.")

    def _record_loss(self, work: WorkerSlot, why: str, *, attempts: int, alone: bool = False) -> None:
        ticket = work.current_ticket
        self._losses += 1
        change, row = build_attempt_lost(work, why, attempts=attempts, alone=alone)
        self._client.report_attempt_lost(change, ticket, row, work.reports)
        self._observer.note(f"{ticket.kind} {ticket.number}, attempt {ticket.attempt}: {mask_secrets(why)}")
        self._free(work)
        if row.state != "waiting":
            self._observer.on_ticket_end(row)
        max_losses = max(attempts, self._spec.study.max_attempts) * len(self._pool.all)
        if attempts > 1 and self._losses > max_losses:
            raise StudyFailed(
                f"{self._losses} runs in a row were lost, the last one because {why.rstrip('.')}. Put that "
                "right, and have them trained again with all that is left: tempopt resume "
                f"{self._spec.study.name} --retry-failed"
            )

    def _on_worker_death(self, work: WorkerSlot) -> None:
        why = self._pool.remove_dead_worker(work)
        if work.ticket is not None and not work.waiting:
            self._record_loss(work, why, attempts=self._spec.study.max_attempts)
        if self._pool.died_before_ready:
            raise StudyFailed(f"Workers die before they have said a word: {why}. Logs are in {self._folder}.")

    # ---- leaving

    def _leave(self) -> None:
        """Stop runs at a checkpoint within the grace time, and release their tickets."""
        deadline = time.monotonic() + self._spec.resources_here.grace
        # whatever happens now, a second Ctrl-C or a worker that dies, the tickets are to be returned
        with contextlib.suppress(KeyboardInterrupt, Exception):
            for work in self._pool.all:
                if work.waiting:
                    self._return(work)
                elif work.ticket is not None:
                    work.stopped = work.stopped or "left"
                    id, attempt = work.ticket.id, work.ticket.attempt
                    work.worker.send(Stop(ticket=id, attempt=attempt, keep=not work.pruned))
            while (busy := self._pool.busy()) and (seconds_left := deadline - time.monotonic()) > 0:
                for ready in wait(busy, timeout=seconds_left):
                    self._hear(busy[ready])  # type: ignore[index]
        for work in self._pool.all:
            if work.ticket is not None:
                self._return(work)
        self._client.close()

    def _look(self) -> None:
        elapsed = time.monotonic() - self._clock
        now = self._client.snapshot([work.view() for work in self._pool.all], elapsed)
        self._observer.update(now)
