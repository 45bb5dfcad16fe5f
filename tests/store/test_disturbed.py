"""Whole studies on each database, disturbed by clocks and servers: they come to the same as in peace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from typing import Any

import pytest

from tempopt.store import Store
from tempopt.study.api import resume
from tests.toy_study import SMALL, Ended, begun, ended, same, searched, toy_spec, undisturbed_study

pytestmark = pytest.mark.usefixtures("toy_folder", "fake_workers")


def small(**study: Any) -> dict[str, Any]:
    return toy_spec(**{**SMALL, "trials": 4, "lease": 30, **study})


@pytest.fixture
def in_peace(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return undisturbed_study(tmp_path_factory.mktemp("peace"), small)


class Clock:
    """The clock of a machine, as Python tells it, which may be set wrong."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.hours = 0.0
        clock = self

        class Shifted(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
                return datetime.now(tz) + timedelta(hours=clock.hours)

        for name, module in list(sys.modules.items()):
            if name.startswith("tempopt") and getattr(module, "datetime", None) is datetime:
                patch.setattr(module, "datetime", Shifted)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    return Clock(monkeypatch)


@pytest.mark.parametrize(("creator", "agent"), [(-2.0, 2.0), (2.0, -2.0)])
def test_a_wrong_clock_neither_ends_nor_lengthens_a_search(
    url: str, clock: Clock, in_peace: Ended, creator: float, agent: float
) -> None:
    clock.hours = creator
    begun(small(limits={"hours": 1.0}), url, searched(1))
    with Store.open(url, create=False) as store:
        assert 0.0 <= store.load_study("toy").age < 3600.0
    clock.hours = agent
    assert same(ended(resume("toy", storage=url, workers=1), url), in_peace)
