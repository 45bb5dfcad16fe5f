"""What an agent has workers train: a program for each search space of a study, and for each size."""

from __future__ import annotations

from tempopt.records.rows import TicketRow
from tempopt.spec.model_sizes import full_size, size_of
from tempopt.spec.study_spec import StudySpec
from tempopt.workers.messages import Program


class Programs:
    """Makes each program once.

    Args:
        spec: The study's spec.
        full: The program at full size in the search space of now; None: what the spec says.
    """

    def __init__(self, spec: StudySpec, full: Program | None = None) -> None:
        self._spec = spec
        self._known = {} if full is None else {(len(spec.amendments), full_size(spec)): full}

    def of(self, ticket: TicketRow) -> Program:
        """Return what is trained for a ticket: a run that was begun before an amendment goes on as it was."""
        key = ticket.space, size_of(ticket, self._spec)
        if key not in self._known:
            self._known[key] = self._spec.in_space(ticket.space).at_size(key[1]).program()
        return self._known[key]
