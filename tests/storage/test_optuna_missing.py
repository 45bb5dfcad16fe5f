"""Without Optuna's tables, or with those of a version that is not known, a study is searched all the same."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tempopt.storage import Store
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
    warnings = [record.getMessage() for record in caplog.records if record.name == "tempopt"]
    assert len(warnings) == (obstacle == "another version") and all("version v9" in text for text in warnings)
    store.delete_study("example")
    assert store.list_studies() == []
