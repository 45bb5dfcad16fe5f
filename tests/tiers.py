"""Which cases of a parametrized test are for the long tier."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest


def long_but(name: str, short_names: Collection[str], *values: Any) -> Any:
    """Return a case of a parametrized test, for the long tier unless it is one of few."""
    return pytest.param(*values, id=name, marks=() if name in short_names else pytest.mark.long)
