"""Studies, tickets and measurements: plain rows, the SQL database that stores them, and access over HTTP.

No other package uses SQL. Importing this package loads nothing; its names are loaded at their first use.
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
