"""httpx, loaded at the first request: only the extra ``server`` installs it."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tempopt.errors import missing_extra

if TYPE_CHECKING:
    import httpx as httpx
else:

    class _Loader(ModuleType):
        """Stands for httpx until something of it is used."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            try:
                return getattr(importlib.import_module("httpx"), name)
            except ModuleNotFoundError as error:
                raise missing_extra(
                    error, "server", {"httpx"}, "A tempopt server is asked by httpx"
                ) from error

    httpx = _Loader("httpx")
