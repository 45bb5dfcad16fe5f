"""A store that goes away, answers that are lost, agents that die with half of it written."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import OperationalError

from tempopt.agent.agent_loop import Agent
from tempopt.api.calls import resume, search
from tempopt.errors import StaleAttempt, StoreUnreachable, StudyFailed
from tempopt.storage import changes as changes_of
from tempopt.storage.opening import open_store
from tempopt.storage.store import Store
from tests.fake_worker import AgentDied, fail_calls
from tests.toy_study import (
    SMALL,
    URL,
    EndedStudy,
    Watcher,
    begin_study,
    has_searched,
    is_same_study,
    read_study,
    tickets,
    toy_spec,
)

pytestmark = pytest.mark.usefixtures("toy_folder")


@pytest.mark.usefixtures("fake_workers")
def test_the_store_may_go_away_for_a_while(
    undisturbed_fake: EndedStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {"write": (4, 5, 6), "take_ticket": (2, 3), "begin": (6,), "news": (2,)}
    for method, fatal_calls in faults.items():
        fail_calls(monkeypatch, method, fatal_calls)
    watcher = Watcher()
    result = search(toy_spec(), storage=URL, workers=2, observer=watcher)
    assert is_same_study(read_study(result), undisturbed_fake)
    assert any("Training continues" in note for note in watcher.notes)
    assert any("The store is back" in note for note in watcher.notes)
    assert not list(Path("tempopt-runs").rglob("undelivered-*"))


@pytest.mark.usefixtures("fake_workers")
def test_an_answer_that_was_lost_is_no_second_ticket(
    undisturbed_fake: EndedStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {"write": (5, 9), "take_ticket": (2,), "begin": (5,), "add_tickets": (2,)}
    for method, fatal_calls in faults.items():
        fail_calls(monkeypatch, method, fatal_calls, is_after=True)
    assert is_same_study(read_study(search(toy_spec(), storage=URL, workers=2)), undisturbed_fake)
    assert sum(t.failures for t in tickets()) == 0


@pytest.mark.usefixtures("fake_workers")
def test_a_study_that_is_deleted_under_an_agent_ends_it_with_the_reason() -> None:
    def delete() -> None:
        with open_store(URL) as store:
            store.delete_study("toy")

    with pytest.raises(StudyFailed, match="deleted"):
        search(toy_spec(lease=3), storage=URL, workers=1, observer=Watcher(has_searched(1), delete))
    with open_store(URL) as store:
        assert store.list_studies() == []
    assert optuna.get_all_study_names(URL) == []


@pytest.mark.usefixtures("fake_workers")
def test_a_run_that_was_pruned_and_never_said_so_is_pruned_once_more_and_no_more(
    undisturbed_fake: EndedStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_agents: set[str] = set()
    work = Store.write

    def dying(self: Store, study_id: int, changes: Any, **options: Any) -> Any:
        pruned_changes = [
            c for c in changes if isinstance(c, changes_of.RunEnded) and c.outcomes.outcome == "pruned"
        ]
        if not pruned_changes:
            return work(self, study_id, changes, **options)
        work(self, study_id, [c for c in changes if c not in pruned_changes], **options | {"take": None})
        raise AgentDied

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", dying)
        patch.setattr(Agent, "_leave", lambda self: dead_agents.add(self._client.outbox.agent))
        with pytest.raises(AgentDied):
            search(toy_spec(), storage=URL, workers=1)
    monkeypatch.setattr("tempopt.agent.study_cache.is_dead", lambda agent: agent in dead_agents)
    assert is_same_study(read_study(resume("toy", storage=URL, workers=2)), undisturbed_fake)
    assert max(t.attempt for t in tickets()) == 2


@pytest.mark.usefixtures("fake_workers")
def test_a_study_that_optuna_has_lost_ends_the_agent_and_can_be_resumed() -> None:
    with pytest.raises(StudyFailed, match=r"Optuna"):
        search(
            toy_spec(**{**SMALL, "trials": 6}),
            storage=URL,
            workers=1,
            observer=Watcher(has_searched(1), lambda: optuna.delete_study(study_name="toy", storage=URL)),
        )
    result = resume("toy", storage=URL, workers=1)
    assert result.state == "done" and result.tickets["search"].done == 6
    assert len(optuna.load_study(study_name="toy", storage=URL).trials) >= 4


@pytest.mark.usefixtures("fake_workers")
def test_an_agent_frozen_between_taking_and_beginning_takes_another_ticket(
    undisturbed_fake: EndedStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = StaleAttempt("Ticket 7 is running at attempt 2; attempt 1 is discarded.")
    fail_calls(monkeypatch, "begin", (2, 6), error=stale)
    assert is_same_study(read_study(search(toy_spec(), storage=URL, workers=1)), undisturbed_fake)


@pytest.mark.usefixtures("fake_workers")
def test_an_agent_that_begins_while_the_database_goes_away_says_so_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin_study(toy_spec(**SMALL))

    def raise_refused(*args: Any, **kwargs: Any) -> None:
        # what Optuna's storage raises is not ours
        cause = OperationalError("BEGIN", {}, sqlite3.OperationalError("database is locked"))
        raise StorageInternalError("An exception is raised during the commit.") from cause

    monkeypatch.setattr("tempopt.storage.optuna_calls._MAX_ATTEMPTS", 1)
    monkeypatch.setattr("tempopt.storage.optuna_calls._open_storage", raise_refused)
    with pytest.raises(StoreUnreachable, match="Another program holds the database"):
        resume("toy", storage=URL, workers=1)
