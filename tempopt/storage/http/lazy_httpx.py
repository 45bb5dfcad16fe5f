"""httpx, loaded at its first use: only the extra ``server`` installs it."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tempopt.errors import missing_extra

if TYPE_CHECKING:
    import httpx as httpx
else:

    class _Loader(ModuleType):
        """Proxy of httpx that imports it at the first access."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            try:
                return getattr(importlib.import_module("httpx"), name)
            except ModuleNotFoundError as error:
                raise missing_extra(
                    error, "server", {"httpx"}, "Requests to a tempopt server use httpx"
                ) from error

    httpx = _Loader("httpx")
