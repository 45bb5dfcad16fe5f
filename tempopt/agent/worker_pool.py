"""An agent's workers: who may be given a ticket, who waits for a card to itself, who is started anew.

Knows neither the store nor what is trained. An agent owns whole cards, so that a run can have one to itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from tempopt.agent.process import WorkerProcess
from tempopt.agent.worker_slot import Process, WorkerSlot

_STILLBORN = 3


class WorkerPool:
    """The workers of one agent, and what each is doing.

    Args:
        workers: Warm workers, one run each at a time.
    """

    def __init__(self, workers: Sequence[WorkerProcess]) -> None:
        self.all = [WorkerSlot(worker=worker) for worker in workers]
        self._deaths = 0

    @property
    def workers(self) -> list[WorkerProcess]:
        """The workers that are alive now."""
        return [slot.worker for slot in self.all if not slot.suspended]

    def idle_workers(self) -> list[WorkerSlot]:
        """Return the workers that may take a ticket."""
        return [slot for slot in self.all if slot.idle and not self._is_gpu_reserved(slot)]

    def held_ticket_ids(self) -> list[int]:
        """Return the ids of the tickets in progress."""
        return [slot.ticket.id for slot in self.all if slot.ticket is not None]

    def listening(self) -> dict[Connection, WorkerSlot]:
        """Return the workers that can send messages, by connection."""
        return {slot.worker.connection: slot for slot in self.all if not slot.suspended}

    def busy(self) -> dict[Connection, WorkerSlot]:
        """Return the workers with a ticket in progress, by connection."""
        return {slot.worker.connection: slot for slot in self.all if slot.ticket is not None}

    def waiting_for(self, slot: WorkerSlot) -> Iterator[WorkerSlot]:
        """Yield the workers that wait until this one leaves their GPU to them."""
        return (neighbour for neighbour in self._neighbours(slot) if neighbour.waiting)

    def restart_and_pop_waiting(self) -> list[WorkerSlot]:
        """Restart the workers that need it, and return those that waited for their GPU and may begin now."""
        for slot in self.all:
            if slot.suspended and not self._is_gpu_reserved(slot):
                self._renew(slot)
            elif slot.at_rest and not slot.suspended and self._is_spent(slot):
                self._renew(slot)
        return [slot for slot in self.all if slot.waiting and self._clear_gpu(slot)]

    def _clear_gpu(self, slot: WorkerSlot) -> bool:
        """Stop the neighbours on a worker's GPU if all are idle; return whether the worker may begin."""
        neighbours = self._neighbours(slot)
        if not all(neighbour.at_rest for neighbour in neighbours):
            return False
        for neighbour in neighbours:
            if not neighbour.suspended:
                neighbour.worker.kill()
                neighbour.process = Process.SUSPENDED
        return slot.worker.ready

    def note_worker_ready(self) -> None:
        """Note that a worker has sent a message: workers do start here."""
        self._deaths = 0

    def remove_dead_worker(self, slot: WorkerSlot) -> str:
        """Start another worker in place of one that has died, and return why it died."""
        self._deaths += 1
        why = slot.worker.exit_description()
        self._renew(slot)
        return why

    @property
    def died_before_ready(self) -> bool:
        """Whether workers die, one after another, before any has sent a message."""
        return self._deaths > _STILLBORN * len(self.all)

    def share(self) -> None:
        """Share the GPUs again that idle workers no longer need for themselves."""
        for slot in self.all:
            if slot.at_rest and not slot.waiting:
                slot.needs_exclusive_gpu = False

    def _renew(self, slot: WorkerSlot) -> None:
        if not slot.suspended:
            slot.worker.kill()
        slot.replace_worker(WorkerProcess(slot=slot.worker.slot, placement=slot.worker.placement))

    @staticmethod
    def _is_spent(slot: WorkerSlot) -> bool:
        """Return whether a process may not train what comes next: a run alone on a GPU gets a fresh one."""
        return slot.process is Process.WORN or (slot.waiting and slot.process is not Process.FRESH)

    def _neighbours(self, slot: WorkerSlot) -> list[WorkerSlot]:
        cards = set(slot.worker.placement.gpus or ())
        return [o for o in self.all if o is not slot and not cards.isdisjoint(o.worker.placement.gpus or ())]

    def _is_gpu_reserved(self, slot: WorkerSlot) -> bool:
        """Return whether another worker has the GPU to itself, or is about to."""
        return any(neighbour.needs_exclusive_gpu for neighbour in self._neighbours(slot))
