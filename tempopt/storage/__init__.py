"""Studies, tickets and measurements: plain rows, the SQL database that keeps them, and the same over HTTP.

No other package uses SQL. Importing this one loads nothing; its names load when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tempopt.storage.opening import open_store
    from tempopt.storage.schema import upgrade
    from tempopt.storage.store import Store

__all__ = ["Store", "open_store", "upgrade"]

_HOMES = {
    "Store": "tempopt.storage.store",
    "open_store": "tempopt.storage.opening",
    "upgrade": "tempopt.storage.schema",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
