"""What one trial takes of a machine, how many fit, and how a machine is dealt out to workers.

Loads neither torch nor Lightning: whether a card works is for the worker to find out. What the machine has
is machine.py's, which of its cards others hold is gpu_locks.py's.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tempopt.agent.machine import Machine
from tempopt.errors import UsageError
from tempopt.spec.resources import Need


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where one worker trains.

    Args:
        gpus: Its cards, as CUDA_VISIBLE_DEVICES names them; empty: it sees none; None: whatever the
            environment shows.
        share: Share of a card's memory that it may take, in (0, 1]; 1: no cap.
        threads: CPU threads of each of its processes, >= 1.
        ranks: Its processes, >= 1.
        loads_torch: Whether it trains LightningModules, and not programs of their own.
    """

    gpus: tuple[str, ...] | None = None
    share: float = 1.0
    threads: int = 1
    ranks: int = 1
    loads_torch: bool = True

    @property
    def cards(self) -> float:
        """How many cards that is; a share of one counts as that share."""
        return self.share * len(self.gpus or ())


def capacity(need: Need, machine: Machine) -> int:
    """Return how many trials of that need fit on a machine at a time, by cores, cards and memory."""
    return min(machine.cores // need.cpus, _rigid_room(need, machine))


def _rigid_room(need: Need, machine: Machine) -> int:
    """Return the room by what cannot be shared by more than fit: cores can, if a user wants it."""
    rooms = [sys.maxsize]
    if need.gpus:
        cards_per_trial = max(1, round(need.gpus))
        rooms.append(len(machine.cards) // cards_per_trial * need.trials_per_gpu)
    if need.memory is not None and machine.memory is not None:
        rooms.append(machine.memory // need.memory)
    return min(rooms)


def count_workers(need: Need, machine: Machine, *, num_requested: int | None, max_workers: int) -> int:
    """Return how many workers a machine is to have.

    Args:
        num_requested: What was asked for by number, which may be more than there are cores; None: as
            many as fit.
        max_workers: No more than that if nothing was asked, >= 1.

    Raises:
        UsageError: Not even one trial fits, or fewer than were asked.
    """
    if need.gpus > 1 and any(card.startswith("MIG-") for card in machine.cards):
        raise UsageError(
            f"A trial takes {need.gpus:g} GPUs, but those here are MIG instances, of which a program "
            "can use one at a time. Give resources.gpus: 1, or GPUs that are not divided."
        )
    fit = capacity(need, machine) if num_requested is None else _rigid_room(need, machine)
    if fit >= (num_requested or 1):
        return num_requested or min(fit, max_workers)
    raise UsageError(_lack(need, machine, fit, num_requested))


def _lack(need: Need, machine: Machine, fit: int, num_requested: int | None) -> str:
    """Return in words what is missing, and what can be done about it."""
    if need.gpus and not machine.has_gpus:
        return (
            f"resources.gpus asks for {need.gpus:g} of a GPU for each trial, and there are none here"
            f"{f' ({machine.why})' if machine.why else ''}. To train on the CPU: resources.gpus: 0"
        )
    rows = [(f"CPU cores: {need.cpus}", f"CPU cores: {machine.cores}")]
    if need.gpus:
        rows.append((f"GPUs: {need.gpus:g}", f"free GPUs: {len(machine.cards)}"))
    if need.memory is not None and machine.memory is not None:
        rows.append((f"memory: {need.memory / 1e9:.3g} GB", f"memory: {machine.memory / 1e9:.3g} GB"))
    needs, supplies = (", ".join(column) for column in zip(*rows, strict=True))
    busy_cards = [f"{card} by {f'process {pid}' if pid else 'another agent'}" for card, pid in machine.busy]
    busy_text = f" Taken: {'; '.join(busy_cards)}." if busy_cards else ""
    remedy = "Ask for less"
    if fit:
        remedy = f"Give at most {fit} workers, or ask for less"
    elif num_requested is None and _rigid_room(need, machine):
        remedy = "To have trials share the cores all the same, give a number of workers, as in --workers 1"
    elif busy_cards:
        remedy = "Wait until they have ended, or say by CUDA_VISIBLE_DEVICES which GPUs are to be shared"
    subject = f"{num_requested} workers were asked for, of which each" if num_requested else "A trial"
    return f"{subject} takes {needs} (resources: in the spec), and there is {supplies}.{busy_text} {remedy}."


def assign_placements(
    need: Need, count: int, machine: Machine, *, threads: int | None = None
) -> list[Placement]:
    """Return where each of so many workers trains; their cards have to be there.

    Shares are packed card by card, so that as few cards as can be are taken. No cores are pinned: two agents
    on one machine know nothing of each other's, and would pin the same ones.

    Args:
        threads: CPU threads of each process; None: the cores of a trial shared out among its processes.
    """
    cards_per_trial = max(1, round(need.gpus))
    if not need.gpus:
        # what does not train on cards is not to see any: CUDA takes memory of each that it sees
        cards: list[tuple[str, ...] | None] = [() if machine.has_gpus else None] * count
    else:
        ends = range(cards_per_trial, len(machine.cards) + 1, cards_per_trial)
        cards = [
            machine.cards[end - cards_per_trial : end] for end in ends for _ in range(need.trials_per_gpu)
        ]
    assert len(cards) >= count, "more workers than there is room for"
    return [
        Placement(
            gpus=gpus,
            share=need.gpus if 0 < need.gpus < 1 else 1.0,
            threads=threads or max(1, need.cpus // need.ranks),
            ranks=need.ranks,
            loads_torch=need.loads_torch,
        )
        for gpus in cards[:count]
    ]
