"""What an agent has workers train: a program for each search space of a study."""

from __future__ import annotations

from tempopt.records.rows import TicketRow
from tempopt.spec.study_spec import StudySpec
from tempopt.workers.messages import Program


class Programs:
    """Makes each program once.

    Args:
        spec: The study's spec.
        current: The program in the search space of now; None: what the spec says.
    """

    def __init__(self, spec: StudySpec, current: Program | None = None) -> None:
        self._spec = spec
        self._known = {} if current is None else {len(spec.amendments): current}

    def of(self, ticket: TicketRow) -> Program:
        """Return what is trained for a ticket: a run that was begun before an amendment goes on as it was."""
        if ticket.space not in self._known:
            self._known[ticket.space] = self._spec.in_space(ticket.space).program()
        return self._known[ticket.space]
