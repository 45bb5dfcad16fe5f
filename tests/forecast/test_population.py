"""What is said beforehand of a search by a population: its members' steps are counted once."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.forecast.runs import Forecast, run_seconds
from tempopt.workers.messages import Times

SAMPLER = {"name": "population", "members": 4, "intervals": 3}
TIMES = Times(start=0.0, step=2.0, steps=100)


@pytest.mark.parametrize(("quota", "whole_runs"), [("1GB", 4.0), (None, 4 * (0.211 + 0.526 + 1.0))])
def test_the_members_take_as_many_steps_as_whole_runs_if_checkpoints_are_kept(
    make_spec: Any, quota: str | None, whole_runs: float
) -> None:
    spec = make_spec(sampler=SAMPLER, checkpoint_quota=quota)
    forecast = Forecast(spec)
    rows = forecast._likely[0][1].rows
    searched = [run_seconds(row, spec, rows, TIMES) for row in rows if row.kind == "search"]
    assert len(searched) == 12
    assert sum(searched) == pytest.approx(200.0 * whole_runs)
    assert forecast.by_kind["search"].least == forecast.by_kind["search"].most == 12
    assert not forecast.prunes(TIMES)
