"""Rows of tickets as a store has them, for tests of what reads rows."""

from __future__ import annotations

import dataclasses
from typing import Any

from tempopt.storage.rows import TicketRow

_REQUIRED = [field.name for field in dataclasses.fields(TicketRow) if field.default is dataclasses.MISSING]


def ticket_row(**fields: Any) -> TicketRow:
    """Return the row of a ticket: what is not said is None, or that of a first attempt that is done."""
    return TicketRow(
        **{**dict.fromkeys(_REQUIRED), "study_id": 1, "state": "done", "attempt": 1, "seconds": 2.0, **fields}
    )
