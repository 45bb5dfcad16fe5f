"""One worker at work on one ticket, as the agent sees it."""

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
# a validation is finished first
_STOP_SECONDS = 60.0


class Phase(Enum):
    """How far a worker is with its ticket."""

    IDLE = "no ticket"
    WAITING_FOR_GPU = "a ticket, whose run is not sent before the GPU is its own"
    PREPARING = "sent, and the model is being built"
    STARTED = "begun to train, but the first step, and perhaps a compilation, is still to come"
    TRAINING = "has made progress"
    ABANDONING = "no ticket, but a run to end that is another agent's by now"


class Process(Enum):
    """What a worker's process is good for."""

    FRESH = "known to have trained nothing"
    USED = "warm"
    WORN = "to be replaced before it trains again"
    SUSPENDED = "ended, so that another worker has the GPU to itself"


def initial_lease_seconds(lease: float) -> float:
    """Return the seconds that a run has for its first move, given those that it has for each of the others.

    Building a model, the first batches of data and the first compilation take longer than a step does.
    """
    return max(_START_LEASES * lease, _START_SECONDS)


@dataclass(slots=True, kw_only=True)
class WorkerSlot:
    """What a worker is doing.

    Args:
        worker: The process.
        ticket: The ticket, None while idle.
        folder: Local folder of the ticket.
        step: Optimizer steps done.
        total_steps: Steps of the whole run; None until the worker has begun.
        reports: Optimizer step to metric, all attempts.
        device: What the latest run of its was trained on, for people to read; None before the first.
        phase: How far it is with the ticket.
        process: What its process is good for.
        stopped: Why it was told to stop; what a pruned run still reports is not counted, and one that is
            left writes a checkpoint first.
        abandoned: Ticket and attempt of the run to end in ``ABANDONING``.
        started_at: When it was given the ticket.
        last_progress_at: When it last made progress, on the same clock.
        log_from: Where in the ticket's log this attempt begins.
        needs_exclusive_gpu: Whether it needs a GPU alone: its ticket does, or the last did and the next one
            may.
    """

    worker: WorkerProcess
    ticket: TicketRow | None = None
    folder: Path = Path()
    step: int = 0
    total_steps: int | None = None
    reports: dict[int, float] = field(default_factory=dict)
    device: str | None = None
    phase: Phase = Phase.IDLE
    process: Process = Process.USED
    stopped: Literal["pruned", "left"] | None = None
    abandoned: tuple[int, int] | None = None
    started_at: float = 0.0
    last_progress_at: float = 0.0
    log_from: int = 0
    needs_exclusive_gpu: bool = False

    def take(self, ticket: TicketRow, folder: Path, reports: dict[int, float]) -> None:
        """Assign a ticket to the worker; :meth:`send` begins its run."""
        self.ticket, self.folder, self.reports = ticket, folder, reports
        self.step, self.total_steps = 0, ticket.total_steps
        self.phase, self.stopped, self.needs_exclusive_gpu = Phase.WAITING_FOR_GPU, None, ticket.alone
        self.started_at = self.last_progress_at = time.monotonic()
        self.log_from = 0
        # none yet, or none that can be read now
        with contextlib.suppress(OSError):
            self.log_from = (folder / LOG).stat().st_size

    def send(self, request: AnyRequest) -> None:
        """Send the run of its ticket to the worker."""
        self.phase, self.process = Phase.PREPARING, Process.USED
        self.started_at = self.last_progress_at = time.monotonic()
        self.worker.send(request)

    def note_progress(self) -> None:
        """Note that its run has sent a message."""
        if self.phase is Phase.STARTED:
            self.phase = Phase.TRAINING
        self.last_progress_at = time.monotonic()

    @property
    def current_ticket(self) -> TicketRow:
        """The ticket of a worker that has one."""
        assert self.ticket is not None
        return self.ticket

    @property
    def pruned(self) -> bool:
        """Whether the pruner has ended its run."""
        return self.stopped == "pruned"

    @property
    def waiting(self) -> bool:
        """Whether its run is not sent yet."""
        return self.phase is Phase.WAITING_FOR_GPU

    @property
    def suspended(self) -> bool:
        """Whether it has no process, another having its GPU."""
        return self.process is Process.SUSPENDED

    @property
    def age(self) -> float:
        """Seconds since its run was begun, 0 before that."""
        return 0.0 if self.waiting else time.monotonic() - self.started_at

    @property
    def cards(self) -> float:
        """How many cards its run has, a share of one that others may use too counting as that share."""
        placement = self.worker.placement
        return float(len(placement.gpus or ())) if self.needs_exclusive_gpu else placement.cards

    @property
    def memory_share(self) -> float | None:
        """Share of its card's memory that its run may take, None for all of it."""
        share = self.worker.placement.share
        return None if self.needs_exclusive_gpu or share >= 1 else share

    def abandon(self) -> None:
        """Stop the run, which another agent has taken over."""
        is_sent, run = not self.waiting, (self.current_ticket.id, self.current_ticket.attempt)
        self.free()
        if is_sent:
            self.phase, self.abandoned = Phase.ABANDONING, run
            self.worker.send(Stop(ticket=run[0], attempt=run[1]))
        self.last_progress_at = time.monotonic()

    def end_abandoned_run(self) -> None:
        """Become idle: the run that another agent has taken over has ended here."""
        self.phase, self.abandoned = Phase.IDLE, None

    def free(self) -> None:
        """Drop the ticket."""
        if self.needs_exclusive_gpu and not self.waiting and self.worker.placement.share < 1:
            # a warm process keeps memory, and this one's was not capped
            self.process = Process.WORN
        self.ticket, self.phase = None, Phase.IDLE

    def replace_worker(self, worker: WorkerProcess) -> None:
        """Replace the worker process; the ticket, if there is one, stays."""
        self.worker, self.process, self.abandoned = worker, Process.FRESH, None
        if self.phase is Phase.ABANDONING:
            self.phase = Phase.IDLE

    @property
    def at_rest(self) -> bool:
        """Whether its process trains nothing."""
        return self.phase in (Phase.IDLE, Phase.WAITING_FOR_GPU)

    @property
    def idle(self) -> bool:
        """Whether it can be given a ticket."""
        warm = self.worker.ready and self.process in (Process.FRESH, Process.USED)
        return warm and self.phase is Phase.IDLE

    def lease_seconds(self, lease: float) -> float:
        """Return the seconds within which it has to make progress."""
        if self.phase is Phase.ABANDONING:
            return _STOP_SECONDS
        return lease if self.phase is Phase.TRAINING else initial_lease_seconds(lease)

    def is_stalled(self, lease: float) -> bool:
        """Return whether it has made no progress for longer than it may, and no message of it is waiting."""
        if self.at_rest:
            return False
        is_late = time.monotonic() - self.last_progress_at > self.lease_seconds(lease)
        # an agent that was paused itself has not yet read what came meanwhile
        return is_late and not self.worker.connection.poll()

    def output_tail(self) -> str:
        """Return the last lines that this attempt has printed."""
        try:
            with (self.folder / LOG).open("rb") as log:
                size = log.seek(0, 2)
                log.seek(max(self.log_from, size - _LOG_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def view(self) -> WorkerView:
        """Return what an observer may see."""
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
        """Return whether a message about this ticket and attempt is about what is being done."""
        return self.ticket is not None and (self.ticket.id, self.ticket.attempt) == (ticket, attempt)
