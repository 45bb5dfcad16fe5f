"""Rows of tickets as a store has them, for tests of what reads rows."""

from __future__ import annotations

import dataclasses
from typing import Any

from tempopt.storage.rows import TicketRow

_REQUIRED = [field.name for field in dataclasses.fields(TicketRow) if field.default is dataclasses.MISSING]

_NUMBERS = {"score": 0.9, "low": 0.8, "high": 1.0, "value": 0.9, "chance": 0.1}
_SHAPE = {"queries": 2, "keys": 2, "rows": 2, "columns": 2}
HEAD_MAP = {"layer": 0, "head": 0, **_SHAPE, "most": 0.5, "cells": "AP8A/w=="}
MEASURE = {"layer": 0, "head": 0, "measure": "previous_token", **_NUMBERS}
MAPS: dict[str, Any] = {
    "moments": {"end": {"step": 23, "heads": [HEAD_MAP], "measures": [MEASURE]}},
    "notes": ["ü"],
}
"""Attention maps of a run with one head."""


def ticket_row(**fields: Any) -> TicketRow:
    """Return the row of a ticket: what is not said is None, or that of a first attempt that is done."""
    return TicketRow(
        **{**dict.fromkeys(_REQUIRED), "study_id": 1, "state": "done", "attempt": 1, "seconds": 2.0, **fields}
    )
