"""Which run a search ticket begins from, and which checkpoints are kept for that: pure, rows in, rows out.

A run may begin from another's checkpoint if its own training up to there would have been the same to the bit.
Whether it does, changes nothing but how many steps are trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tempopt.errors import SpecError
from tempopt.records.rows import Checkpoint, TicketRow, to_fork_from
from tempopt.records.tickets import oriented
from tempopt.spec.sections import KNOWLEDGE_GRADIENT
from tempopt.temperature import end_alike, same_training, steps_alike, steps_held
from tempopt.workers.messages import Fork, Saved

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

_OFFERED = 3
"""A worker is offered so many, should the best have been deleted meanwhile."""
_ENDS = ("complete", "pruned")


def saved(checkpoint: Checkpoint) -> Saved:
    """Return what a worker needs to load a checkpoint."""
    return Saved(step=checkpoint.step, url=checkpoint.url, digest=checkpoint.digest, size=checkpoint.size)


def shares(ticket: TicketRow, spec: StudySpec) -> bool:
    """Return whether other runs may begin from this one's checkpoints, and this one from others'."""
    return ticket.kind == "search" and spec.shares_steps and spec.study.checkpoint_quota is not None


def held(ticket: TicketRow, total_steps: int, spec: StudySpec) -> int:
    """Return up to which optimizer step a checkpoint is worth keeping for runs on other schedules.

    That is how long this run stays at its first temperature; 0 where nothing is shared.
    """
    if not shares(ticket, spec):
        return 0
    try:
        return steps_held(ticket.parameters or {}, total_steps)
    except SpecError:
        # a value that only the worker can judge
        return 0


def best_forks(ticket: TicketRow, tickets: Iterable[TicketRow], spec: StudySpec) -> list[Fork]:
    """Return checkpoints that a run may begin from, those first that save most steps; none if there are none.

    Args:
        ticket: The run, with its parameters.
        tickets: Tickets of its study with what is known of their checkpoints.
        spec: The study's spec.
    """
    if not shares(ticket, spec):
        return []
    found = [
        (each.saved.step, -other.number, each)
        for other in tickets
        if _may_be_parent(other, ticket)
        for each in _of_parent(other, ticket, spec)
    ]
    found.sort(key=lambda each: each[:2], reverse=True)
    return [each for _, _, each in found[:_OFFERED]]


def _may_be_parent(other: TicketRow, ticket: TicketRow) -> bool:
    return (
        other.kind == ticket.kind
        and other.id != ticket.id
        and other.seed == ticket.seed
        and other.space == ticket.space
        and other.outcome in _ENDS
        and bool(other.checkpoints)
        and other.parameters is not None
        and other.total_steps is not None
    )


def _of_parent(other: TicketRow, ticket: TicketRow, spec: StudySpec) -> Iterator[Fork]:
    theirs, ours = other.parameters or {}, ticket.parameters or {}
    last = max(each.step for each in other.checkpoints)
    assert other.total_steps is not None
    try:
        thaws = same_training(theirs, ours)
        validated = thaws or _validated_alike(theirs, ours, spec)
        if not (validated or _unseen(spec)):
            return
        alike = steps_alike(theirs, ours, at_most=last, total_steps=other.total_steps)
    except SpecError:
        # a value that only the worker can judge
        return
    for each in other.checkpoints:
        if 0 < each.step <= alike:
            yield Fork(saved=saved(each), ticket=other.id, parameters=dict(theirs), validated=validated)


def _validated_alike(one: Mapping[str, Any], other: Mapping[str, Any], spec: StudySpec) -> bool:
    return spec.study.validate_at == "current" or end_alike(one, other)


def _unseen(spec: StudySpec) -> bool:
    """Return whether nothing is decided by the reports of a run that is not over.

    A run that begins from one that was validated otherwise lacks the reports before; where the pruner or the
    sampler would have seen them, what they decide would depend on which checkpoints are at hand.
    """
    return spec.study.pruner.name == "none" and spec.study.sampler.name != KNOWLEDGE_GRADIENT


def kept_at_end(ticket: TicketRow, spec: StudySpec, outcome: str) -> tuple[Checkpoint, ...]:
    """Return the checkpoints that a run that is over leaves to others, the quota apart."""
    if outcome not in _ENDS or not shares(ticket, spec):
        return ()
    return to_fork_from(ticket.checkpoints)


def for_others(tickets: Iterable[TicketRow]) -> list[TicketRow]:
    """Return the tickets that are over and whose checkpoints are kept for others to begin from."""
    return [ticket for ticket in tickets if ticket.outcome in _ENDS and ticket.checkpoints]


def beyond_quota(tickets: Iterable[TicketRow], spec: StudySpec) -> list[TicketRow]:
    """Return the tickets whose checkpoints have to go, so that the rest is within ``study.checkpoint_quota``.

    The runs with the worst values go first, of equal ones the oldest.

    Args:
        tickets: Those whose checkpoints are kept for others.
        spec: The study's spec.
    """
    quota = spec.study.checkpoint_quota or 0

    def worth(ticket: TicketRow) -> tuple[bool, float, int]:
        value = ticket.value
        return (
            value is not None,
            oriented(value, spec.study.direction) if value is not None else 0.0,
            ticket.number,
        )

    by_worth = sorted(tickets, key=worth)
    total = sum(_size(ticket) for ticket in by_worth)
    gone = []
    for ticket in by_worth:
        if total <= quota:
            break
        total -= _size(ticket)
        gone.append(ticket)
    return gone


def _size(ticket: TicketRow) -> int:
    return sum(each.size for each in ticket.checkpoints)
