"""The SQL that Optuna does not keep: studies, tickets and measurements; the only room that speaks SQL.

Importing it loads nothing; its names load when they are used. It knows neither Optuna nor training.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tempopt.store.rows import (
        KINDS,
        OVER,
        Began,
        Change,
        Checkpoint,
        Ended,
        JobRow,
        Kept,
        Kind,
        LogRow,
        Lost,
        Measurement,
        News,
        NewTicket,
        Outcome,
        Outcomes,
        Reported,
        Returned,
        RunRow,
        StudyRow,
        StudyState,
        StudySummary,
        TicketRow,
        TicketState,
        TrialParam,
        Wanted,
        Written,
    )
    from tempopt.store.schema import upgrade
    from tempopt.store.store import Store

__all__ = [
    "KINDS",
    "OVER",
    "Began",
    "Change",
    "Checkpoint",
    "Ended",
    "JobRow",
    "Kept",
    "Kind",
    "LogRow",
    "Lost",
    "Measurement",
    "NewTicket",
    "News",
    "Outcome",
    "Outcomes",
    "Reported",
    "Returned",
    "RunRow",
    "Store",
    "StudyRow",
    "StudyState",
    "StudySummary",
    "TicketRow",
    "TicketState",
    "TrialParam",
    "Wanted",
    "Written",
    "upgrade",
]

_HOMES = {"Store": "tempopt.store.store", "upgrade": "tempopt.store.schema"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "tempopt.store.rows")), name)
