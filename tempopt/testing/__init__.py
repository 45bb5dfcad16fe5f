"""Tests for custom launchers and schedules. Needs ``tempopt[testing]``.

:class:`LauncherTests` is for launchers, :func:`check_schedule` for schedules. Names are imported at their
first use, since workers import a toy module from here, where pytest may be missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tempopt.testing.launchers import LauncherTests as LauncherTests
    from tempopt.testing.schedules import check_schedule as check_schedule

__all__ = ["LauncherTests", "check_schedule"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(
            f'module "tempopt.testing" has no attribute "{name}"; it has {" and ".join(__all__)}'
        )
    if name == "check_schedule":
        from tempopt.testing.schedules import check_schedule

        return check_schedule
    import pytest

    # before the first import, so that failing assertions show the compared values
    pytest.register_assert_rewrite("tempopt.testing.launchers")
    from tempopt.testing.launchers import LauncherTests

    return LauncherTests
