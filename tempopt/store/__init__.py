"""Studies, tickets and measurements in a SQL database; the only room that speaks SQL.

Importing it loads nothing; its names load when they are used. It knows neither Optuna nor training.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tempopt.store.schema import upgrade
    from tempopt.store.store import Store

__all__ = ["Store", "upgrade"]

_HOMES = {"Store": "tempopt.store.store", "upgrade": "tempopt.store.schema"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
