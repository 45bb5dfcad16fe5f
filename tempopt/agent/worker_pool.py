"""An agent's workers: which may get a ticket, which wait for a GPU to themselves, which are restarted.

Independent of the store and of the training. An agent holds whole GPUs, so that a run can have one to itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from tempopt.agent.process import WorkerProcess
from tempopt.agent.worker_slot import ProcessState, WorkerSlot

_MAX_DEATHS_PER_WORKER = 3


class WorkerPool:
    """The workers of one agent, with their states.

    Args:
        workers: Warm workers, one run each at a time.
    """

    def __init__(self, workers: Sequence[WorkerProcess]) -> None:
        self.slots = [WorkerSlot(worker=worker) for worker in workers]
        self._deaths = 0

    @property
    def workers(self) -> list[WorkerProcess]:
        """The workers that are alive now."""
        return [slot.worker for slot in self.slots if not slot.is_suspended]

    def idle_workers(self) -> list[WorkerSlot]:
        """Return the workers that may get a ticket."""
        return [slot for slot in self.slots if slot.is_idle and not self._is_gpu_reserved(slot)]

    def held_ticket_ids(self) -> list[int]:
        """Return the ids of the tickets in progress."""
        return [slot.ticket.id for slot in self.slots if slot.ticket is not None]

    def connections(self) -> dict[Connection, WorkerSlot]:
        """Return the workers that can send messages, by connection."""
        return {slot.worker.connection: slot for slot in self.slots if not slot.is_suspended}

    def busy_connections(self) -> dict[Connection, WorkerSlot]:
        """Return the workers with a ticket in progress, by connection."""
        return {slot.worker.connection: slot for slot in self.slots if slot.ticket is not None}

    def iter_waiting_for(self, slot: WorkerSlot) -> Iterator[WorkerSlot]:
        """Yield the workers that wait for this one to leave their GPU."""
        return (neighbour for neighbour in self._neighbours(slot) if neighbour.waits_for_gpu)

    def restart_and_pop_waiting(self) -> list[WorkerSlot]:
        """Restart the workers that need it, and return those that waited for a GPU and may begin now."""
        for slot in self.slots:
            if slot.is_suspended and not self._is_gpu_reserved(slot):
                self._restart(slot)
            elif slot.is_at_rest and not slot.is_suspended and self._needs_restart(slot):
                self._restart(slot)
        return [slot for slot in self.slots if slot.waits_for_gpu and self._clear_gpu(slot)]

    def _clear_gpu(self, slot: WorkerSlot) -> bool:
        """Stop the neighbours on a worker's GPU if all are idle; return whether the worker may begin."""
        neighbours = self._neighbours(slot)
        if not all(neighbour.is_at_rest for neighbour in neighbours):
            return False
        for neighbour in neighbours:
            if not neighbour.is_suspended:
                neighbour.worker.kill()
                neighbour.process = ProcessState.SUSPENDED
        return slot.worker.ready

    def note_worker_ready(self) -> None:
        """Record that a worker has sent a message, which shows that workers can start."""
        self._deaths = 0

    def remove_dead_worker(self, slot: WorkerSlot) -> str:
        """Replace a worker that has died, and return why it died."""
        self._deaths += 1
        why = slot.worker.exit_description()
        self._restart(slot)
        return why

    @property
    def has_repeated_early_deaths(self) -> bool:
        """Whether several workers in a row have died before any sent a message."""
        return self._deaths > _MAX_DEATHS_PER_WORKER * len(self.slots)

    def share_gpus(self) -> None:
        """Share the GPUs of idle workers again, which no longer need one to themselves."""
        for slot in self.slots:
            if slot.is_at_rest and not slot.waits_for_gpu:
                slot.needs_exclusive_gpu = False

    def _restart(self, slot: WorkerSlot) -> None:
        if not slot.is_suspended:
            slot.worker.kill()
        slot.replace_worker(WorkerProcess(slot=slot.worker.slot, placement=slot.worker.placement))

    @staticmethod
    def _needs_restart(slot: WorkerSlot) -> bool:
        """Return whether a process must be replaced before its next run."""
        # a run alone on a GPU needs a new process, which holds no memory yet
        return slot.process is ProcessState.WORN or (
            slot.waits_for_gpu and slot.process is not ProcessState.FRESH
        )

    def _neighbours(self, slot: WorkerSlot) -> list[WorkerSlot]:
        cards = set(slot.worker.placement.gpus or ())
        return [
            o for o in self.slots if o is not slot and not cards.isdisjoint(o.worker.placement.gpus or ())
        ]

    def _is_gpu_reserved(self, slot: WorkerSlot) -> bool:
        """Return whether another worker has the GPU to itself, or waits for that."""
        return any(neighbour.needs_exclusive_gpu for neighbour in self._neighbours(slot))
