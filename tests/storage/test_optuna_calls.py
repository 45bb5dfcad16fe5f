"""Trials in tables of a version that is not known, which Optuna itself writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from sqlalchemy import text

from tempopt.storage import Store, optuna_tables
from tempopt.storage.changes import RunOutcome
from tempopt.storage.rows import StudyRow
from tests.storage.scenes import (
    HOUR,
    PARAMETERS,
    SAMPLED,
    TRIAL,
    make_end,
    new_ticket,
    only_ticket,
    reported,
    take_next,
)


def outcome(name: Any, value: float | None = None, **fields: Any) -> RunOutcome:
    return RunOutcome(outcome=name, value=value, steps=9, seconds=1.0, **fields)


def test_tables_of_a_version_that_optuna_knows_and_tempopt_does_not_are_written_by_optuna(
    store: Store,
    study: StudyRow,
    storage: RDBStorage,
    optuna_study: optuna.Study,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optuna_tables, "SCHEMA", "one of another day")
    store.add_tickets(study.id, [new_ticket(number) for number in range(4)])
    running_tickets = [take_next(store, study) for _ in range(4)]
    for number, ticket in enumerate(running_tickets):
        assert store.begin(ticket.id, 1, PARAMETERS, SAMPLED, TRIAL) == number
        # an agent that has lost the answer asks again
        assert store.begin(ticket.id, 1, PARAMETERS, SAMPLED, TRIAL) == number
    store.write(study.id, [reported(running_tickets[0], 3, 0.25)], agent="agent", lease=HOUR)
    (running_trial, *_) = optuna_study.get_trials(deepcopy=False)
    assert (running_trial.state, running_trial.intermediate_values) == (TrialState.RUNNING, {3: 0.25})
    assert running_trial.user_attrs["tempopt:ticket"] == running_tickets[0].id
    ends = [
        outcome("complete", 0.75),
        outcome("pruned", 0.5),
        outcome("diverged", None, diverged_at=7),
        outcome("failed", None, error="no such layer"),
    ]
    end_changes = [make_end(ticket, end) for ticket, end in zip(running_tickets, ends, strict=True)]
    store.write(study.id, end_changes, agent="agent", lease=HOUR)
    trials = optuna_study.get_trials()
    states = [TrialState.COMPLETE, TrialState.PRUNED, TrialState.PRUNED, TrialState.FAIL]
    assert [trial.state for trial in trials] == states
    rows = store.tickets(study.id)
    assert [row.trial_number for row in rows] == [0, 1, 2, 3]
    assert trials[0].value == rows[0].value
    assert trials[0].params == dict(running_trial.params)
    assert "error" in trials[3].user_attrs
    store.delete_study("example")
    assert optuna.get_all_study_summaries(storage) == []


def test_what_is_rolled_back_or_refused_is_not_written_by_optuna_either(
    store: Store, study: StudyRow, optuna_study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optuna_tables, "SCHEMA", "one of another day")
    store.add_tickets(study.id, [new_ticket(0)])
    ticket = take_next(store, study)
    store.begin(ticket.id, 1, PARAMETERS, SAMPLED, TRIAL)
    late = replace(ticket, attempt=7)
    assert store.write(study.id, [reported(late, 3, 0.5)], agent="agent", lease=HOUR).refused
    with monkeypatch.context() as patch:
        patch.setattr(
            "tempopt.storage.apply_changes._write_beside", mock.Mock(side_effect=RuntimeError("lost"))
        )
        with pytest.raises(RuntimeError, match="lost"):
            store.write(study.id, [reported(ticket, 3, 0.5)], agent="agent", lease=HOUR)
    assert [trial.intermediate_values for trial in optuna_study.get_trials()] == [{}]


@pytest.mark.parametrize("obstacle", ["another version", "no tables"])
def test_without_optuna_a_study_is_searched_all_the_same(
    store: Store,
    study: StudyRow,
    obstacle: str,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if obstacle == "another version":
        request.getfixturevalue("optuna_study")
        store._database.write(lambda c: c.execute(text("UPDATE alembic_version SET version_num = 'v9'")))
    store.add_tickets(study.id, [new_ticket(0)])
    ticket = take_next(store, study)
    assert store.begin(ticket.id, 1, PARAMETERS, SAMPLED, TRIAL) is None
    store.write(study.id, [reported(ticket, 3, 0.25), make_end(ticket)], agent="agent", lease=HOUR)
    assert only_ticket(store, study.id).state == "done"
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "tempopt"]
    assert warning.startswith("Optuna's view of this database is not kept up to date: ")
    store.delete_study("example")
    assert store.list_studies() == []
