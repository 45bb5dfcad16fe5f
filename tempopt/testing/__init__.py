"""Tests that a launcher of your own can be run against; see :class:`LauncherTests`. Needs pytest.

Nothing is imported before it is asked for: workers find a toy in here, where there may be no pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tempopt.testing.launchers import LauncherTests as LauncherTests

__all__ = ["LauncherTests"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f'module "tempopt.testing" has no attribute "{name}"; it has LauncherTests')
    import pytest

    # before the first import: so that an assertion that fails shows what it compared
    pytest.register_assert_rewrite("tempopt.testing.launchers")
    from tempopt.testing.launchers import LauncherTests

    return LauncherTests
