"""What other runs than the trials of the search tell of each size: other arms, choosing and comparing.

Runs that confirm are not among them: their values are of the test data where a study has any, and a search
that learnt from those would choose by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tempopt.records.rows import TicketRow
from tempopt.records.tickets import oriented, usable
from tempopt.sampling.surrogate import Runs
from tempopt.spec.model_sizes import full_size, size_of, to_proxy

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

Array = NDArray[np.float64]
Describe = Callable[[Mapping[str, Any]], Array]

_KINDS = ("baseline", "constant", "rematch", "choose", "transfer")
_ARMS = ("search", "exchange", "baseline", "constant")
_SEEDS = 1_000_000
"""Numbers of seeds begin here: those of the search trials are below."""


def tells(ticket: TicketRow) -> bool:
    """Return whether the surrogate over sizes learns from a ticket; trials of the search it knows anyway."""
    return ticket.kind in _KINDS and ticket.arm in _ARMS and ticket.parameters is not None


def compared_at_full(tickets: Sequence[TicketRow], spec: StudySpec) -> list[TicketRow]:
    """Return the runs of these that compared finalists at full size."""
    return [each for each in tickets if each.kind == "transfer" and size_of(each, spec) == full_size(spec)]


def described(tickets: Sequence[TicketRow], spec: StudySpec, describe: Describe) -> Array:
    """Return the features of what tickets train, as parameters of the smallest proxy."""
    found = [describe(to_proxy(spec, t.parameters or {}, size_of(t, spec))) for t in tickets]
    return np.array(found).reshape(len(tickets), len(describe({})))


def judged_runs(tickets: Sequence[TicketRow], spec: StudySpec, describe: Describe) -> list[Runs]:
    """Return what tickets tell of each size, the smallest first.

    A run that diverged is as bad as the worst of its size that has a value.

    Args:
        tickets: Tickets that tell something and are over.
        spec: The study's spec.
        describe: Turns whole parameter sets into features.
    """
    ordered = sorted(tickets, key=lambda each: each.id)
    seeds = {seed: _SEEDS + place for place, seed in enumerate(dict.fromkeys(t.seed for t in ordered))}
    found = []
    for size in range(full_size(spec) + 1):
        own = [each for each in ordered if size_of(each, spec) == size]
        values = [_value(each, spec) for each in own if usable(each)]
        told = [each for each in own if values and (usable(each) or each.outcome == "diverged")]
        values_N = [_value(each, spec) if usable(each) else min(values) for each in told]
        found.append(
            Runs(
                features_ND=described(told, spec, describe),
                seeds_N=np.array([seeds[each.seed] for each in told], dtype=np.int64),
                values_N=np.array(values_N, dtype=float),
                excess_N=np.zeros(len(told)),
            )
        )
    return found


def _value(ticket: TicketRow, spec: StudySpec) -> float:
    assert ticket.value is not None
    return oriented(ticket.value, spec.study.direction)
