"""The agent's state of one worker and its ticket."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal

from tempopt.agent.observer import WorkerView
from tempopt.agent.process import WorkerProcess
from tempopt.storage.liveness import host
from tempopt.storage.rows import TicketRow
from tempopt.training.messages import LOG, AnyRequest, Stop

_LOG_BYTES = 32 * 1024
_START_SECONDS = 10.0
_START_LEASES = 3.0
# time to finish a validation
_STOP_SECONDS = 60.0


class Phase(Enum):
    """Progress of a worker with its ticket."""

    IDLE = "no ticket"
    WAITING_FOR_GPU = "has a ticket, whose run is sent once it has the GPU to itself"
    PREPARING = "run sent; the model is being built"
    STARTED = "training begun; the first step, perhaps with a compilation, is not done"
    TRAINING = "has made progress"
    ABANDONING = "no ticket; ends a run that another agent has taken over"


class ProcessState(Enum):
    """State of a worker's process."""

    FRESH = "has trained nothing"
    USED = "warm"
    WORN = "must be replaced before it trains again"
    SUSPENDED = "ended, so that another worker has the GPU to itself"


def initial_lease_seconds(lease: float) -> float:
    """Return the seconds that a run has for its first progress.

    Building a model, the first batches of data and the first compilation take longer than a step.

    Args:
        lease: Seconds for each later progress.
    """
    return max(_START_LEASES * lease, _START_SECONDS)


@dataclass(slots=True, kw_only=True)
class WorkerSlot:
    """State of one worker.

    Args:
        worker: The process.
        ticket: The ticket, None while idle.
        folder: Local folder of the ticket.
        step: Optimizer steps done.
        total_steps: Steps of the whole run; None until the worker has begun.
        reports: Metric by optimizer step, of all attempts.
        device: Device of its latest run, as text for people; None before the first.
        phase: Progress with the ticket.
        process: State of its process.
        stop_reason: Why a stop was requested: later reports of a pruned run do not count, and a run that the
            agent leaves writes a checkpoint first.
        abandoned_run: Ticket and attempt of the run that ends in ``ABANDONING``.
        started_at: Time of the assignment of the ticket, on the monotonic clock.
        last_progress_at: Time of the last progress, on the same clock.
        log_from: Byte of the ticket's log at which this attempt begins.
        needs_exclusive_gpu: Whether it needs a GPU to itself, for its ticket or still from the last one.
    """

    worker: WorkerProcess
    ticket: TicketRow | None = None
    folder: Path = Path()
    step: int = 0
    total_steps: int | None = None
    reports: dict[int, float] = field(default_factory=dict)
    device: str | None = None
    phase: Phase = Phase.IDLE
    process: ProcessState = ProcessState.USED
    stop_reason: Literal["pruned", "left"] | None = None
    abandoned_run: tuple[int, int] | None = None
    started_at: float = 0.0
    last_progress_at: float = 0.0
    log_from: int = 0
    needs_exclusive_gpu: bool = False

    def take(self, ticket: TicketRow, folder: Path, reports: dict[int, float]) -> None:
        """Assign a ticket to the worker; :meth:`send` begins its run."""
        self.ticket, self.folder, self.reports = ticket, folder, reports
        self.step, self.total_steps = 0, ticket.total_steps
        self.phase, self.stop_reason, self.needs_exclusive_gpu = Phase.WAITING_FOR_GPU, None, ticket.alone
        self.started_at = self.last_progress_at = time.monotonic()
        self.log_from = 0
        # the log may not exist yet, or not be readable
        with contextlib.suppress(OSError):
            self.log_from = (folder / LOG).stat().st_size

    def send(self, request: AnyRequest) -> None:
        """Send the run of its ticket to the worker."""
        self.phase, self.process = Phase.PREPARING, ProcessState.USED
        self.started_at = self.last_progress_at = time.monotonic()
        self.worker.send(request)

    def note_progress(self) -> None:
        """Record that its run has sent a message."""
        if self.phase is Phase.STARTED:
            self.phase = Phase.TRAINING
        self.last_progress_at = time.monotonic()

    @property
    def current_ticket(self) -> TicketRow:
        """The ticket of a worker that has one."""
        assert self.ticket is not None
        return self.ticket

    @property
    def is_pruned(self) -> bool:
        """Whether the pruner has ended its run."""
        return self.stop_reason == "pruned"

    @property
    def waits_for_gpu(self) -> bool:
        """Whether its run is not sent yet, until it has the GPU to itself."""
        return self.phase is Phase.WAITING_FOR_GPU

    @property
    def is_suspended(self) -> bool:
        """Whether it has no process, since another worker has its GPU to itself."""
        return self.process is ProcessState.SUSPENDED

    @property
    def age(self) -> float:
        """Seconds since its run was sent, 0 before that."""
        return 0.0 if self.waits_for_gpu else time.monotonic() - self.started_at

    @property
    def cards(self) -> float:
        """Number of GPUs of its run; a share of a GPU counts as that share."""
        placement = self.worker.placement
        return float(len(placement.gpus or ())) if self.needs_exclusive_gpu else placement.cards

    @property
    def memory_share(self) -> float | None:
        """Share of its GPU's memory that its run may take, None for all of it."""
        share = self.worker.placement.share
        return None if self.needs_exclusive_gpu or share >= 1 else share

    def abandon(self) -> None:
        """Stop the run, which another agent has taken over."""
        is_sent, run = not self.waits_for_gpu, (self.current_ticket.id, self.current_ticket.attempt)
        self.free()
        if is_sent:
            self.phase, self.abandoned_run = Phase.ABANDONING, run
            self.worker.send(Stop(ticket=run[0], attempt=run[1]))
        self.last_progress_at = time.monotonic()

    def end_abandoned_run(self) -> None:
        """Become idle, after the end of a run that another agent has taken over."""
        self.phase, self.abandoned_run = Phase.IDLE, None

    def free(self) -> None:
        """Drop the ticket."""
        if self.needs_exclusive_gpu and not self.waits_for_gpu and self.worker.placement.share < 1:
            # the process keeps its memory, which was not limited
            self.process = ProcessState.WORN
        self.ticket, self.phase = None, Phase.IDLE

    def replace_worker(self, worker: WorkerProcess) -> None:
        """Replace the worker process; the ticket, if there is one, stays."""
        self.worker, self.process, self.abandoned_run = worker, ProcessState.FRESH, None
        if self.phase is Phase.ABANDONING:
            self.phase = Phase.IDLE

    @property
    def is_at_rest(self) -> bool:
        """Whether its process trains nothing."""
        return self.phase in (Phase.IDLE, Phase.WAITING_FOR_GPU)

    @property
    def is_idle(self) -> bool:
        """Whether it can get a ticket."""
        warm = self.worker.ready and self.process in (ProcessState.FRESH, ProcessState.USED)
        return warm and self.phase is Phase.IDLE

    def lease_seconds(self, lease: float) -> float:
        """Return the seconds within which it has to make progress."""
        if self.phase is Phase.ABANDONING:
            return _STOP_SECONDS
        return lease if self.phase is Phase.TRAINING else initial_lease_seconds(lease)

    def is_stalled(self, lease: float) -> bool:
        """Return whether its last progress is older than the lease, and no message of it is unread."""
        if self.is_at_rest:
            return False
        is_late = time.monotonic() - self.last_progress_at > self.lease_seconds(lease)
        # messages may have arrived while the agent itself was suspended
        return is_late and not self.worker.connection.poll()

    def output_tail(self) -> str:
        """Return the last output of this attempt, at most 32 KiB."""
        try:
            with (self.folder / LOG).open("rb") as log:
                size = log.seek(0, 2)
                log.seek(max(self.log_from, size - _LOG_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def view(self) -> WorkerView:
        """Return a view of its state for observers."""
        if self.ticket is None:
            return WorkerView(slot=self.worker.slot, machine=host(), device=self.device)
        return WorkerView(
            slot=self.worker.slot,
            kind=self.ticket.kind,
            number=self.ticket.number,
            step=self.step,
            total_steps=self.total_steps,
            value=next(reversed(self.reports.values()), None),
            machine=host(),
            device=self.device,
        )

    def matches(self, ticket: int, attempt: int) -> bool:
        """Return whether a message about this ticket and attempt is about the run in progress."""
        return self.ticket is not None and (self.ticket.id, self.ticket.attempt) == (ticket, attempt)
