"""An agent that a launcher has started: what it does before it has a store to work with."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.cli import agent_entrypoint
from tempopt.errors import StoreUnreachable

TASK = {"study": "toy"}


def _fail_database(monkeypatch: pytest.MonkeyPatch, times: int) -> list[dict[str, Any]]:
    """Have the database be away for the first few times that the agent begins."""
    tasks: list[dict[str, Any]] = []

    def work(task: dict[str, Any]) -> int:
        tasks.append(task)
        if len(tasks) <= times:
            raise StoreUnreachable("The database failed: refused.")
        return 0

    monkeypatch.setattr(agent_entrypoint, "_work", work)
    monkeypatch.setattr(agent_entrypoint, "_PAUSE_SECONDS", 0.0)
    return tasks


def test_a_database_that_is_away_at_the_start_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = _fail_database(monkeypatch, times=2)
    assert agent_entrypoint._retry_while_unreachable(TASK) == 0
    assert tasks == [TASK] * 3
    assert capsys.readouterr().err.count("refused. Trying again.") == 2


def test_a_database_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    _fail_database(monkeypatch, times=10)
    monkeypatch.setattr(agent_entrypoint, "_MAX_OUTAGE_SECONDS", 0.0)
    with pytest.raises(StoreUnreachable):
        agent_entrypoint._retry_while_unreachable(TASK)
