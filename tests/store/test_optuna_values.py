"""Optuna reads what was written into its table, and lives beside our tables."""

from __future__ import annotations

import math
from collections.abc import Iterator

import optuna
import pytest
from sqlalchemy import text

from tempopt.errors import StaleAttempt, StorageError
from tempopt.store import NewTicket, Store
from tempopt.store.optuna_values import SCHEMA

VALUES = {
    0: 0.1 + 0.2,
    1: math.nan,
    2: math.inf,
    3: -math.inf,
    4: 5e-324,
    5: -1.7976931348623157e308,
    2**31 - 1: 0.0,
}


@pytest.fixture(autouse=True)
def _quiet_optuna() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(before)


@pytest.fixture
def storage(store: Store) -> Iterator[optuna.storages.RDBStorage]:
    opened = optuna.storages.RDBStorage(store.url)
    yield opened
    opened.engine.dispose()


@pytest.fixture
def trial(storage: optuna.storages.RDBStorage) -> optuna.Trial:
    optuna.create_study(study_name="another", storage=storage).ask()
    study = optuna.create_study(study_name="example", storage=storage)
    study.ask()
    return study.ask()


def not_called(step: int, value: float) -> None:
    raise AssertionError("the tables are known")


def read(storage: optuna.storages.RDBStorage, number: int = 1) -> dict[int, float]:
    trials = optuna.load_study(study_name="example", storage=storage).get_trials(deepcopy=False)
    return trials[number].intermediate_values


def test_optuna_reads_the_values_back_exactly(
    store: Store, storage: optuna.storages.RDBStorage, trial: optuna.Trial
) -> None:
    store.set_intermediate_values("example", trial.number, VALUES, otherwise=not_called)
    store.set_intermediate_values("example", trial.number, {}, otherwise=not_called)
    assert {s: float(v).hex() for s, v in read(storage).items()} == {s: v.hex() for s, v in VALUES.items()}
    assert read(storage, 0) == {}
    trial.study.tell(trial, 1.0)
    assert read(storage).keys() == VALUES.keys()


def test_the_rows_are_those_that_optuna_itself_writes(
    store: Store, storage: optuna.storages.RDBStorage, trial: optuna.Trial
) -> None:
    store.set_intermediate_values("example", 1, VALUES, otherwise=not_called)
    other = trial.study.get_trials(deepcopy=False)[0]
    for step, value in VALUES.items():
        storage.set_trial_intermediate_value(other._trial_id, step, value)
    query = text(
        "SELECT trial_id, step, intermediate_value, intermediate_value_type FROM trial_intermediate_values"
    )
    rows: dict[int, set[tuple[object, ...]]] = {}
    for trial_id, *row in store._database.read(lambda c: c.execute(query).all()):
        rows.setdefault(trial_id, set()).add(tuple(row))
    ours, theirs = rows.values()
    assert ours == theirs


def test_a_value_written_again_is_replaced_by_either_side(
    store: Store, storage: optuna.storages.RDBStorage, trial: optuna.Trial
) -> None:
    storage.set_trial_intermediate_value(trial._trial_id, 1, math.nan)
    store.set_intermediate_values("example", 1, {1: 0.5, 2: 0.6}, otherwise=not_called)
    assert read(storage) == {1: 0.5, 2: 0.6}
    storage.set_trial_intermediate_value(trial._trial_id, 2, 0.7)
    store.set_intermediate_values("example", 1, {1: 0.25}, otherwise=not_called)
    assert read(storage) == {1: 0.25, 2: 0.7}


def test_values_of_a_finished_trial_are_refused(store: Store, trial: optuna.Trial) -> None:
    trial.study.tell(trial, state=optuna.trial.TrialState.FAIL)
    with pytest.raises(StaleAttempt, match="Trial 1 of example is FAIL already"):
        store.set_intermediate_values("example", 1, {1: 0.5}, otherwise=not_called)


def test_values_of_a_trial_that_is_not_there_are_refused(store: Store, trial: optuna.Trial) -> None:
    with pytest.raises(StorageError, match='"example" has no trial 7'):
        store.set_intermediate_values("example", 7, {1: 0.5}, otherwise=not_called)


def test_an_unknown_version_of_optunas_tables_is_left_to_optuna(
    store: Store, storage: optuna.storages.RDBStorage, trial: optuna.Trial
) -> None:
    store._database.write(lambda c: c.execute(text("UPDATE alembic_version SET version_num = 'v9'")))
    store.set_intermediate_values(
        "example",
        1,
        {1: 0.5, 2: math.inf},
        otherwise=lambda step, value: storage.set_trial_intermediate_value(trial._trial_id, step, value),
    )
    assert read(storage) == {1: 0.5, 2: math.inf}


def test_without_optunas_tables_everything_is_left_to_the_caller(store: Store) -> None:
    called = []
    store.set_intermediate_values("example", 0, {3: 0.5}, otherwise=lambda *told: called.append(told))
    assert called == [(3, 0.5)]


def test_the_version_that_is_known_is_that_of_the_optuna_installed(
    storage: optuna.storages.RDBStorage,
) -> None:
    assert storage.get_head_version() == SCHEMA


def test_optuna_and_the_store_live_in_one_database(url: str) -> None:
    with Store.open(url) as store:
        ours = store.create_study("example", {}, "")
        store.add_tickets(ours.id, [NewTicket(kind="search", arm="search", number=0, seed=0)])
        storage = optuna.storages.RDBStorage(store.url)
        optuna.create_study(study_name="example", storage=storage).optimize(
            lambda t: t.suggest_float("x", 0, 1), 2
        )
        assert len(store.tickets(ours.id)) == 1
        store.delete_study("example")
        assert len(optuna.load_study(study_name="example", storage=storage).trials) == 2
        storage.engine.dispose()


def test_the_store_is_made_in_a_database_that_optuna_had_first(url: str) -> None:
    from tempopt.store.urls import parse

    full = parse(url).url.render_as_string(hide_password=False)
    storage = optuna.storages.RDBStorage(full)
    study = optuna.create_study(study_name="example", storage=storage)
    study.ask()
    with Store.open(url) as store:
        store.set_intermediate_values("example", 0, {1: 0.5}, otherwise=not_called)
    optuna.storages.RDBStorage(full).engine.dispose()
    assert study.get_trials()[0].intermediate_values == {1: 0.5}
    optuna.delete_study(study_name="example", storage=storage)
    storage.engine.dispose()
    Store.open(url, create=False).close()
