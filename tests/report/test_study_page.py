"""The page of a study: what is written, when, in how many transactions, and what is left alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import plotly.graph_objects as go
import pytest
from optuna_dashboard import get_note, save_note
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tempopt.report.dashboard import study_page
from tempopt.report.dashboard.note import belongs_to_tempopt
from tempopt.report.dashboard.refresh import Refresher
from tempopt.report.dashboard.study_page import LARGEST, PREFIXES, publish
from tempopt.report.plots import PLOTS
from tempopt.store.store import Store
from tempopt.study.admin import delete
from tests.report.dashboard_rows import write_whole
from tests.report.made_study import World, make


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a finished study that has no page yet."""
    path = tmp_path_factory.mktemp("page") / "studies.db"
    write_whole(f"sqlite:///{path}", World(trials=10))
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path


@pytest.fixture(autouse=True)
def few_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw some of the plots: the others are written in the same way."""
    monkeypatch.setattr(study_page, "PLOTS", {key: PLOTS[key] for key in ("history", "schedule")})


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    """A copy of it, of the test's own."""
    own = tmp_path / "studies.db"
    own.write_bytes(template.read_bytes())
    return own


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{path}", create=False) as opened:
        yield opened


@pytest.fixture
def storage(path: Path) -> Iterator[optuna.storages.RDBStorage]:
    """Optuna's own view of the database."""
    opened = optuna.storages.RDBStorage(f"sqlite:///{path}")
    yield opened
    opened.remove_session()
    opened.engine.dispose()


@pytest.fixture
def study(storage: optuna.storages.RDBStorage) -> optuna.Study:
    return optuna.load_study(study_name="pairs", storage=storage)


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """The statements of every engine that were begun with BEGIN IMMEDIATE, or write."""
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *more: Any) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield seen
    event.remove(Engine, "before_cursor_execute", note)


def writes(statements: list[str]) -> int:
    """Return how many transactions wrote, or could have."""
    return sum(each.startswith("BEGIN IMMEDIATE") for each in statements)


def change_study(store: Store) -> None:
    """Make something new to show of the study."""
    study = store.load_study("pairs")
    store.set_state(study.id, "paused" if study.state != "paused" else "running")


def test_a_page_is_one_transaction_and_is_written_once(store: Store, statements: list[str]) -> None:
    assert publish(store, "pairs") > 5
    assert writes(statements) == 1
    assert publish(store, "pairs") == 0
    assert writes(statements) == 1


def test_optunas_own_functions_read_what_was_written(store: Store, study: optuna.Study) -> None:
    publish(store, "pairs")
    body = get_note(study)
    assert belongs_to_tempopt(body)
    assert "| search | 10 of 10 | 0 | 0 |" in body
    keys = [key for key in storage_keys(study) if key.startswith("dashboard:plot_data:")]
    assert keys and all(key.count(":") == 3 for key in keys)


def storage_keys(study: optuna.Study) -> list[str]:
    return list(study._storage.get_study_system_attrs(study._study_id))


def test_only_what_is_new_is_written_again(store: Store) -> None:
    first = publish(store, "pairs")
    change_study(store)
    again = publish(store, "pairs")
    assert 0 < again < first / 2


def test_another_dashboard_finds_it_done(path: Path, store: Store, statements: list[str]) -> None:
    publish(store, "pairs")
    before = writes(statements)
    with Store.open(f"sqlite:///{path}") as other:
        assert publish(other, "pairs") == 0
    assert writes(statements) == before


def test_a_persons_note_is_left_alone(store: Store, study: optuna.Study) -> None:
    save_note(study, "mine")
    publish(store, "pairs")
    assert get_note(study) == "mine"


def test_a_note_that_a_person_has_changed_is_theirs(store: Store, study: optuna.Study) -> None:
    publish(store, "pairs")
    theirs = get_note(study) + "\n\nand what I think of it"
    save_note(study, theirs)
    change_study(store)
    assert publish(store, "pairs") > 0
    assert get_note(study) == theirs


def test_a_note_that_a_person_has_emptied_comes_back(store: Store, study: optuna.Study) -> None:
    publish(store, "pairs")
    save_note(study, "")
    change_study(store)
    publish(store, "pairs")
    assert belongs_to_tempopt(get_note(study))


def test_a_note_of_ours_is_brought_up_to_date_with_its_version(store: Store, study: optuna.Study) -> None:
    publish(store, "pairs")
    old = get_note(study)
    save_note(study, old)
    with_more = store.load_study("pairs")
    store.set_spec(with_more.id, with_more.spec, "another")
    assert publish(store, "pairs") > 0
    assert get_note(study) == old
    version = study._storage.get_study_system_attrs(study._study_id)["dashboard:note_ver"]
    assert version == 2


def test_a_plot_that_there_is_nothing_left_for_goes(store: Store, study: optuna.Study) -> None:
    key = "dashboard:plot_data:tempopt-gone:0"
    study._storage.set_study_system_attr(study._study_id, key, "{}")
    foreign = "dashboard:plot_data:mine:0"
    study._storage.set_study_system_attr(study._study_id, foreign, "{}")
    publish(store, "pairs")
    assert key not in storage_keys(study) and foreign in storage_keys(study)


def test_a_study_that_optuna_lost_has_no_page(store: Store, storage: optuna.storages.RDBStorage) -> None:
    storage.delete_study(storage.get_study_id_from_name("pairs"))
    assert store.page("pairs", PREFIXES) is None
    assert publish(store, "pairs") == 0


def test_a_page_goes_with_its_study(path: Path, store: Store) -> None:
    publish(store, "pairs")
    delete(f"sqlite:///{path}", "pairs")
    with sqlite3.connect(path) as connection:
        for table in ("study_system_attributes", "trial_system_attributes", "trial_user_attributes"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    connection.close()


def test_a_plot_that_fails_or_is_too_large_takes_nothing_with_it(
    store: Store, study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(result: object) -> None:
        raise AssertionError("a bug")

    broken = replace(PLOTS["cost"], data=fail)
    large = replace(PLOTS["schedule"], figure=lambda _: go.Figure(layout={"meta": "m" * LARGEST}))
    plots = {"history": PLOTS["history"], "cost": broken, "schedule": large}
    monkeypatch.setattr(study_page, "PLOTS", plots)
    publish(store, "pairs")
    plotted = {key.split(":")[2] for key in storage_keys(study) if key.startswith("dashboard:plot_data:")}
    assert plotted == {"tempopt-history"}
    note = get_note(study).replace("\\", "")
    assert "Cost by machine (it could not be drawn: AssertionError)" in note
    assert "Temperature over training (too large for this page" in note


@pytest.mark.parametrize("pruner", ["median", "hyperband", "knowledge_gradient"])
def test_the_pruning_check_of_many_seeds_has_room_and_knows_every_trial(pruner: str) -> None:
    study = {"pruner": pruner, "seeds": {"confirm": 150}}
    result = make(World(trials=40, reports=50, layers=0, study=study)).result()
    figure = study_page._small(result, "pruning_check", PLOTS["pruning_check"])
    assert isinstance(figure, go.Figure)
    assert figure.layout.title.text == PLOTS["pruning_check"].title


def test_a_turn_of_the_refresher_writes_one_page_at_the_most(
    path: Path, store: Store, statements: list[str]
) -> None:
    refresher = Refresher(f"sqlite:///{path}", first=None, note=print)
    assert refresher.turn() > 5
    assert writes(statements) == 1
    statements.clear()
    assert refresher.turn() == 0
    # a look at a study with nothing new is a few statements, and none of them writes
    assert writes(statements) == 0 and len(statements) < 10
    change_study(store)
    statements.clear()
    assert refresher.turn() > 0
    assert writes(statements) == 1
    refresher.close()


def test_why_a_page_cannot_be_written_is_told_once(path: Path) -> None:
    told: list[str] = []
    refresher = Refresher(f"sqlite:///{path}", first=None, note=told.append)
    for _ in range(3):
        refresher._tell("The plots cannot be drawn")
    refresher.close()
    assert told == ["The plots cannot be drawn"]
