"""Which finalists are named for full size itself, after the first runs there (``study.proxy``).

What is best at full size need not be among what the proxy has chosen. So the last place is left open: when
the other finalists and τ = 1 have had their first seeds, the surrogate over all sizes names who gets it, on
the same seeds (benchmarks/over_sizes.py). Numbers of candidates tell which places are open.

Pure: rows in, parameter sets out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tempopt.confirmation.selection import Recommend
from tempopt.records.rows import Parameters, TicketRow
from tempopt.spec.model_sizes import full_size, to_full
from tempopt.spec.size_race import FIRST_LARGER, moved_copies, to_be_tried, unnamed
from tempopt.temperature import is_neutral, training_key

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

NAMED = 1
"""So many finalists are named; the winner of the proxy never is."""


def left_open(sets: Sequence[Parameters], spec: StudySpec, size: int, recommend: Recommend) -> range:
    """Return the places of finalists that are left open at first; none where nobody would name them.

    Args:
        sets: What is to be compared at a size: the winner of the proxy and what it is moved to first, the
            baseline last.
        spec: The study's spec.
        size: That size.
        recommend: Names what is expected to be best at full size, asked for ``transfer``.
    """
    last = len(sets) - 1
    shifts = to_be_tried(spec) if size == FIRST_LARGER and sets else []
    most = min(NAMED, last - 1 - len(moved_copies(spec, sets[0], shifts) if shifts else []))
    if size < full_size(spec) or most < 1 or len(recommend("transfer", most)) < most:
        return range(0)
    return range(last - most, last)


def named(
    tried: Sequence[TicketRow], sets: Sequence[Parameters], spec: StudySpec, recommend: Recommend
) -> dict[int, Parameters]:
    """Return the finalists of the open places, as parameters at full size.

    Where fewer are named than places are open, the proxy's own finalists take the rest.

    Args:
        tried: The ``transfer`` tickets at full size, which are all over.
        sets: All finalists of the proxy, as parameters of the smallest; the baseline is the last.
        spec: The study's spec.
        recommend: As for :func:`left_open`.
    """
    places = unnamed(tried)
    own = [to_full(spec, each) for each in recommend("transfer", len(places)) if not is_neutral(each)]
    own += [to_full(spec, sets[place]) for place in places]
    taken = {training_key(ticket.parameters) for ticket in tried if ticket.parameters is not None}
    fresh = [each for key, each in {training_key(each): each for each in own}.items() if key not in taken]
    return dict(zip(places, fresh, strict=False))
