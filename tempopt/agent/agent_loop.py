"""Main loop of an agent: claim tickets, send them to workers, report results and ends to the store.

Results do not depend on timing: parameters and pruning of a ticket follow
from the study's seed and the results that the ticket may know (frozen_history.py). Time only decides when
the agent asks and waits, and when it takes a worker for dead. Any number of agents may be at work on one
study; they meet in the store and nowhere else.
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
from tempopt.agent.worker_slot import Phase, ProcessState, WorkerSlot, initial_lease_seconds
from tempopt.errors import SpecError, StudyFailed, StudyNotFound, mask_secrets, one_line
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.changes import RunStarted
from tempopt.storage.liveness import host
from tempopt.storage.rows import SEARCH_KINDS, Checkpoint, Measurement, Outcome, TicketRow
from tempopt.storage.run_code import RunCode
from tempopt.storage.ticket_queries import are_over
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

_DEFAULT_DEVICE = {("cpu", "32-true"), ("cpu", "")}
_METRIC_REMEDY = (
    "\nCorrect the metric (--metric; of a spec program.metric, with another study.name) and start again."
)
_MAX_WAIT_SECONDS = 1.0
_MIN_POLL_SECONDS = 0.05
_POLL_BACKOFF = 1.5


@dataclass(slots=True, kw_only=True)
class StudyTurn:
    """When an agent of several studies leaves one of them for another.

    Args:
        idle_seconds: Seconds without a run to begin after which the agent leaves.
        higher_priority_study: Name of a study with a higher priority: no more runs are begun, and the agent
            leaves when those in progress have ended; None: no study has a higher priority.
        has_trained: Whether the agent has begun a run.
        found_no_run: Whether it left because there was no run to begin.
        reason: Why it left, to be appended to a log line (begins with ": "); empty: nothing is left to do, or
            the study was paused.
    """

    idle_seconds: float
    higher_priority_study: str | None = None
    has_trained: bool = False
    found_no_run: bool = False
    reason: str = ""

    def decide_to_leave(self, *, idle_seconds: float, has_looked: bool) -> bool:
        """Decide whether an agent without a run in progress leaves now, and record why.

        Sets ``reason`` and, where there was no run to begin, ``found_no_run``.

        Args:
            idle_seconds: Seconds since the last run ended.
            has_looked: Whether the agent has asked for a run since then, and got none.
        """
        if self.higher_priority_study is not None:
            self.reason = f": {self.higher_priority_study} has a higher priority"
            return True
        if has_looked and idle_seconds >= self.idle_seconds:
            self.found_no_run = True
            self.reason = ": none of its runs can begin now"
            return True
        return False


class Agent:
    """Works on one study with the given workers.

    Args:
        spec: The study's spec.
        client: The study, in a store or behind a server.
        workers: Warm workers, one run each at a time.
        folders: Where runs are written, for messages.
        observer: Receives notes and snapshots.
        turn: When the agent leaves the study to serve another; None: it stays until nothing is left to do.
    """

    def __init__(
        self,
        *,
        spec: StudySpec,
        client: StudyClient,
        workers: Sequence[WorkerProcess],
        folders: RunFolders,
        observer: Observer,
        turn: StudyTurn | None = None,
    ) -> None:
        self._spec = spec
        self._turn = turn
        self._pool = WorkerPool(workers)
        self._folder = folders.logs
        self._observer = observer
        self._client = client
        client.listeners = AgentCallbacks(abandon=self._abandon, prune=self._prune)
        self._disk_errors = DiskErrorTracker(spec, folders, note=observer.note)
        self._started_at = self._last_busy_at = time.monotonic()
        self._idle_until = 0.0
        self._poll_seconds = 0.0
        self._num_lost_in_a_row = 0
        self._noted_reasons: set[str] = set()
        self._announced_devices = set(_DEFAULT_DEVICE)

    @property
    def workers(self) -> list[WorkerProcess]:
        """The workers that are alive now."""
        return self._pool.workers

    def run(self) -> None:
        """Work until every ticket of every stage is over, the study is paused, or the agent's turn ends.

        Raises:
            StudyFailed: Nothing can be trained, workers die before they begin, the store cannot be reached
                for too long, or the study was deleted.
            KeyboardInterrupt: Re-raised, after the runs in progress were checkpointed and released.
        """
        with capture_signals() as interrupt:
            try:
                self._work_on(interrupt)
            except StudyNotFound as error:
                raise StudyFailed(f"The study was deleted while this agent worked on it: {error}") from error
            except BaseException:
                self._leave()
                raise
        self._update_observer()

    def _work_on(self, interrupt: Interrupt) -> None:
        while True:
            try:
                # an unreported end is sent with the next claim, so flush only if no claim follows
                if not (self._client.has_unreported_end and self._pool.idle_workers()):
                    self._client.flush()
                if self._client.state == "paused":
                    self._leave()
                    return
                if self._client.is_finished():
                    return
                if self._update_turn():
                    self._leave()
                    return
                self._assign_tickets()
            except StoreUnavailableError:
                self._idle_until = time.monotonic() + _MAX_WAIT_SECONDS
            self._begin_waiting_runs()
            self._update_observer()
            self._wait_for_messages(interrupt)
            self._end_stalled_workers()

    def _update_turn(self) -> bool:
        """Update the turn, and return whether the agent leaves for another study."""
        if self._turn is None:
            return False
        now, is_busy = time.monotonic(), bool(self._pool.held_ticket_ids())
        if is_busy or not self._pool.idle_workers():
            self._last_busy_at = now
        self._turn.has_trained |= is_busy
        return not is_busy and self._turn.decide_to_leave(
            idle_seconds=now - self._last_busy_at,
            has_looked=self._client.last_empty_poll_at > self._last_busy_at,
        )

    def _abandon(self, refused_ids: Collection[int]) -> None:
        for slot in self._pool.slots:
            ticket = slot.ticket
            if ticket is not None and ticket.id in refused_ids:
                self._observer.note(
                    f"{ticket.kind} {ticket.number} has been given to another agent; what was trained of it "
                    "here is discarded."
                )
                self._client.stop_renewing(ticket)
                slot.abandon()

    def _prune(self, ticket: int, attempt: int) -> None:
        """End a run as pruned, by a decision of the server, which has all reports."""
        for slot in self._pool.slots:
            if slot.matches(ticket, attempt) and slot.stop_reason is None and not slot.waits_for_gpu:
                slot.stop_reason = "pruned"
                slot.worker.send(Stop(ticket=ticket, attempt=attempt))

    def _assign_tickets(self) -> None:
        self._idle_until = max(self._idle_until, self._disk_errors.paused_until)
        takes_runs = self._turn is None or self._turn.higher_priority_study is None
        while takes_runs and (free := self._pool.idle_workers()) and time.monotonic() >= self._idle_until:
            ticket = self._client.next_ticket(self._pool.held_ticket_ids())
            if ticket is not None:
                self._poll_seconds = 0.0
                self._begin_run(free[0], ticket)
                continue
            # poll soon after a run ends: runs of equal length end together, and the first end lets others
            # begin
            self._poll_seconds = min(
                max(_MIN_POLL_SECONDS, _POLL_BACKOFF * self._poll_seconds), THOROUGH_SECONDS
            )
            self._idle_until = time.monotonic() + self._poll_seconds
            self._pool.share_gpus()

    def _begin_waiting_runs(self) -> None:
        for slot in self._pool.restart_and_pop_waiting():
            ticket = slot.current_ticket
            slot.send(self._client.build_request(ticket, slot.memory_share))
            # loading may take long: the first lease is longer
            self._client.heartbeat(ticket, slot.lease_seconds(self._spec.study.lease))

    # ---- with the workers

    def _begin_run(self, slot: WorkerSlot, ticket: TicketRow) -> None:
        slot.take(ticket, self._client.folder(ticket), self._client.reports(ticket))
        if self._client.was_pruned_earlier(ticket, slot.reports):
            slot.stop_reason = "pruned"
            end_without_training = Finished(
                ticket=ticket.id,
                attempt=ticket.attempt,
                state="stopped",
                step=max(slot.reports),
                measurements={},
                metrics={},
                seconds=0.0,
                reports=[],
            )
            self._end_run(slot, "pruned", end_without_training)
        # a run that needs a GPU alone is sent once no other worker trains on that GPU
        elif not ticket.alone:
            slot.send(self._client.build_request(ticket, slot.memory_share))

    def _wait_for_messages(self, interrupt: Interrupt) -> None:
        by_connection = self._pool.connections()
        timeout = _MAX_WAIT_SECONDS
        if self._pool.idle_workers():
            timeout = min(timeout, max(0.0, self._idle_until - time.monotonic()))
        channels = [interrupt.wake, *self._client.wakeup_sockets(), *by_connection]
        for channel in wait(channels, timeout=timeout):
            if channel is interrupt.wake:
                raise KeyboardInterrupt
            if channel in by_connection:
                self._receive(by_connection[channel])
            else:
                self._idle_until = 0.0

    def _receive(self, slot: WorkerSlot) -> None:
        message = slot.worker.receive()
        if message is None:
            self._on_worker_death(slot)
            return
        self._pool.note_worker_ready()
        if not isinstance(message, Ready):
            self._handle(slot, message)

    def _end_stalled_workers(self) -> None:
        lease = self._spec.study.lease
        for slot in self._pool.slots:
            if not slot.is_stalled(lease):
                continue
            if slot.ticket is not None:
                self._observer.note(
                    f"The worker of {slot.ticket.kind} {slot.ticket.number} has made no progress for "
                    f"{time.monotonic() - slot.last_progress_at:.0f} s (study.lease is {lease:g} s); "
                    "it is ended."
                )
            slot.worker.end()

    def _handle(self, slot: WorkerSlot, message: Message) -> None:
        assert isinstance(
            message, Started | Progress | Report | CheckpointSaved | CheckpointFailed | Finished | Failed
        )
        if slot.abandoned_run == (message.ticket, message.attempt) and isinstance(message, Finished | Failed):
            slot.end_abandoned_run()
        if isinstance(message, Failed):
            # a worker of several ranks exits after a failure, and after "out of memory" a process may still
            # hold GPU memory: restart both
            if slot.worker.placement.ranks > 1 or message.kind == "gpu_memory":
                slot.process = ProcessState.WORN
        if not slot.matches(message.ticket, message.attempt):
            return
        slot.note_progress()
        if isinstance(message, Started | Progress | Report):
            slot.step = message.step
        elif isinstance(message, Finished | Failed):
            self._disk_errors.record_log(message.log_lost)
        lease_seconds = slot.lease_seconds(self._spec.study.lease)
        self._client.heartbeat(slot.current_ticket, lease_seconds, step=slot.step)
        for neighbour in self._pool.iter_waiting_for(slot):
            self._client.heartbeat(neighbour.current_ticket, initial_lease_seconds(self._spec.study.lease))
        match message:
            case Started():
                self._on_started(slot, message)
            case Report():
                self._on_metric_reported(slot, message.step, message.value)
            case CheckpointSaved():
                self._on_checkpoint_saved(slot, message)
            case CheckpointFailed():
                self._disk_errors.record_checkpoint(message.why)
            case Finished():
                self._on_finished(slot, message)
            case Failed():
                self._on_failed(slot, message)

    def _on_started(self, slot: WorkerSlot, message: Started) -> None:
        slot.phase, slot.total_steps, slot.device = Phase.STARTED, message.total_steps, message.device
        codes, ticket = self._client.codes, slot.current_ticket
        # a run that resumes before its last report will report those steps once more
        reported_before, slot.reports = slot.reports, {}
        checkpoint_reports = {int(step): value for step, value in message.reports}
        change = RunStarted(
            ticket_id=message.ticket,
            attempt=message.attempt,
            total_steps=message.total_steps,
            code=message.code,
            machine=host(),
            device=message.device,
        )
        self._client.report_run_started(
            change, {step: v for step, v in checkpoint_reports.items() if step in reported_before}
        )
        identities = {RunCode.parse(code).identity for code in codes}
        if identities and RunCode.parse(message.code).identity not in identities:
            self._observer.note(
                "The code, or a package that it uses, has changed since this study began: the study has runs "
                "of both versions."
            )
        codes.add(message.code)
        if (message.device, message.precision) not in self._announced_devices:
            self._announced_devices.add((message.device, message.precision))
            precision = f" at {message.precision} precision" if message.precision else ""
            self._observer.note(f"Trains on {message.device}{precision}.")
        for text in message.notes:
            self._observer.note(f"{ticket.kind} {ticket.number}: {text}")
        for step, value in checkpoint_reports.items():
            if step in reported_before:
                slot.reports[step] = value
            else:
                self._on_metric_reported(slot, step, value)

    def _on_metric_reported(self, slot: WorkerSlot, step: int, value: float) -> None:
        ticket = slot.current_ticket
        if slot.is_pruned:
            return
        slot.reports[step] = value
        if self._client.report_metric(
            ticket, step, slot.reports, total_steps=slot.total_steps, trained_seconds=slot.age
        ):
            slot.stop_reason = "pruned"
            slot.worker.send(Stop(ticket=ticket.id, attempt=ticket.attempt))

    def _on_checkpoint_saved(self, slot: WorkerSlot, message: CheckpointSaved) -> None:
        self._disk_errors.record_checkpoint("")
        checkpoint = Checkpoint(**dataclasses.asdict(message.saved))
        slot.ticket = self._client.record_checkpoint(
            slot.current_ticket, checkpoint, trained_seconds=slot.age
        )

    # ---- how runs end

    def _on_finished(self, slot: WorkerSlot, message: Finished) -> None:
        ticket = slot.current_ticket
        for text in message.notes:
            self._observer.note(f"{ticket.kind} {ticket.number}: {text}")
        if slot.is_pruned:
            self._end_run(slot, "pruned", message)
        elif message.state == "stopped":
            assert slot.stop_reason == "left", "a worker stopped a run without a request"
            self._release_ticket(slot, message.peak_memory)
        elif message.state == "diverged":
            self._end_run(slot, "diverged", message)
        else:
            points = [(message.step, name, value) for name, value in message.measurements.items()]
            points += [
                (int(step), name, value) for name, curve in message.curves.items() for step, value in curve
            ]
            measurements = [
                Measurement(ticket_id=ticket.id, step=step, name=name, value=value)
                for step, name, value in points
            ]
            self._end_run(slot, "complete", message, measurements)

    def _end_run(
        self, slot: WorkerSlot, outcome: Outcome, message: Finished, measurements: Sequence[Measurement] = ()
    ) -> None:
        ticket = slot.current_ticket
        self._num_lost_in_a_row = 0
        self._disk_errors.record_success(ticket)
        value = next(reversed(slot.reports.values()), None) if outcome == "pruned" else None
        if outcome == "complete":
            value = value_of(ticket.kind, self._spec, message.measurements)
        change, row = build_run_ended(slot, outcome, message, value=value, measured=measurements)
        self._client.report_run_ended(change, ticket, row, slot.reports)
        self._free_slot(slot)
        self._observer.on_ticket_end(row)

    def _free_slot(self, slot: WorkerSlot) -> None:
        self._client.stop_renewing(slot.current_ticket)
        slot.free()
        self._idle_until = self._poll_seconds = 0.0

    def _release_ticket(self, slot: WorkerSlot, peak_memory: int | None = None) -> None:
        self._client.report_attempt_released(build_attempt_released(slot, peak_memory))
        self._free_slot(slot)

    def _on_failed(self, slot: WorkerSlot, message: Failed) -> None:
        ticket = slot.current_ticket
        if message.kind == "gpu_memory":
            self._on_out_of_memory(slot, message.message)
            return
        if message.kind == "disk":
            self._release_ticket(slot)
            self._disk_errors.record_write_failure(ticket, message.message, self._client.tickets())
            return
        has_finished_run = self._client.has_finished_run()
        if message.kind == "usage" or (message.kind == "no_value" and not has_finished_run):
            self._release_ticket(slot)
            remedy = _METRIC_REMEDY if message.kind == "no_value" else ""
            raise SpecError(f"{message.message}{remedy}")
        max_attempts, name = self._spec.study.max_attempts, self._spec.study.name
        # that of a program's configuration, or of a compared set, and no fault of this machine
        is_of_code = message.kind in ("error", "no_value")
        is_result = is_of_code and self._spec.counts_failures and ticket.kind not in SEARCH_KINDS
        log = f"The output is in {self._client.folder(ticket) / LOG}, and in: tempopt logs {name}"
        if message.is_by_program and self._spec.compare is not None:
            max_attempts = 1
        has_only_failed = (
            message.kind == "error" and not has_finished_run and ticket.failures + 1 >= max_attempts
        )
        if has_only_failed and not is_result:
            # the code fails, not this ticket: it stays waiting, so that it runs once the code is fixed
            self._release_ticket(slot)
            raise StudyFailed(f"The training raises in every attempt: {message.message}\n{log}")
        self._record_lost_attempt(
            slot, message.message, max_attempts=max_attempts, is_unexpected=not is_result
        )
        if has_only_failed and are_over(t for t in self._client.tickets().values() if t.seed == ticket.seed):
            raise StudyFailed(
                f"All sets fail on the same seed, and no run has a value yet: {message.message}\n{log}\n"
                f"Fix the cause and repeat these runs: tempopt resume {name} --retry-failed\n"
                f"Or continue with other seeds: tempopt resume {name}"
            )

    def _on_out_of_memory(self, slot: WorkerSlot, why: str) -> None:
        """Repeat a run with a GPU to itself; a run that already had one fails permanently."""
        ticket = slot.current_ticket
        if ticket.alone:
            self._record_lost_attempt(slot, f"{why} (with a GPU to itself)", max_attempts=1)
        else:
            # allow one attempt beyond those lost, this one included
            self._record_lost_attempt(slot, why, max_attempts=ticket.failures + 2, alone=True)
            self._observer.note(f"{ticket.kind} {ticket.number} is repeated once, with a GPU to itself.")

    def _record_lost_attempt(
        self,
        slot: WorkerSlot,
        why: str,
        *,
        max_attempts: int,
        alone: bool = False,
        is_unexpected: bool = True,
    ) -> None:
        """Report that an attempt was lost, and free the slot; raise if too many were lost in a row.

        Args:
            max_attempts: Failures after which the ticket is not repeated.
            alone: Whether it needs a GPU to itself from then on.
            is_unexpected: Whether it may be a fault of this machine, and counts in the row.

        Raises:
            StudyFailed: Too many attempts in a row were lost.
        """
        ticket = slot.current_ticket
        self._num_lost_in_a_row += is_unexpected
        change, row = build_attempt_lost(slot, why, max_attempts=max_attempts, alone=alone)
        self._client.report_attempt_lost(change, ticket, row, slot.reports)
        self._free_slot(slot)
        reason = one_line(mask_secrets(why))
        if row.state != "waiting":
            self._observer.on_ticket_end(row)
        elif reason not in self._noted_reasons:
            self._noted_reasons.add(reason)
            self._observer.note(f"{ticket.kind} {ticket.number}, attempt {ticket.attempt}: {reason}")
        max_losses = max(max_attempts, self._spec.study.max_attempts) * len(self._pool.slots)
        if max_attempts > 1 and self._num_lost_in_a_row > max_losses:
            raise StudyFailed(
                f"{self._num_lost_in_a_row} attempts in a row were lost, the last one because "
                f"{why.rstrip('.')}. Fix the cause, then continue: tempopt resume {self._spec.study.name} "
                "--retry-failed (without this option runs that failed on every attempt are left out)"
            )

    def _on_worker_death(self, slot: WorkerSlot) -> None:
        why = self._pool.remove_dead_worker(slot)
        if slot.ticket is not None and not slot.waits_for_gpu:
            self._record_lost_attempt(slot, why, max_attempts=self._spec.study.max_attempts)
        if self._pool.has_repeated_early_deaths:
            raise StudyFailed(
                f"Workers exit before they report that they are ready: {why}. Logs are in {self._folder}."
            )

    # ---- leaving

    def _leave(self) -> None:
        """Stop runs at a checkpoint within ``resources.grace``, and release their tickets."""
        deadline = time.monotonic() + self._spec.resources_here.grace
        # the tickets are released even after a second Ctrl-C or the death of a worker
        with contextlib.suppress(KeyboardInterrupt, Exception):
            for slot in self._pool.slots:
                if slot.waits_for_gpu:
                    self._release_ticket(slot)
                elif slot.ticket is not None:
                    slot.stop_reason = slot.stop_reason or "left"
                    id, attempt = slot.ticket.id, slot.ticket.attempt
                    slot.worker.send(Stop(ticket=id, attempt=attempt, keep=not slot.is_pruned))
            while (busy := self._pool.busy_connections()) and (
                seconds_left := deadline - time.monotonic()
            ) > 0:
                for connection in wait(busy, timeout=seconds_left):
                    self._receive(busy[connection])  # type: ignore[index]
        for slot in self._pool.slots:
            if slot.ticket is not None:
                self._release_ticket(slot)
        self._client.close()

    def _update_observer(self) -> None:
        elapsed = time.monotonic() - self._started_at
        now = self._client.snapshot([slot.view() for slot in self._pool.slots], elapsed)
        self._observer.update(now)
