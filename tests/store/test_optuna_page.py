"""Attributes of Optuna's study, changed together in one transaction, on every database."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import optuna

from tempopt.records import StudyRow
from tempopt.store import Store

PREFIXES = ("ours:", "Note_")


def attributes(study: optuna.Study) -> dict[str, Any]:
    return dict(study._storage.get_study_system_attrs(study._study_id))


def test_attributes_are_written_replaced_and_deleted_as_optuna_reads_them(
    store: Store, optuna_study: optuna.Study
) -> None:
    optuna_study._storage.set_study_system_attr(optuna_study._study_id, "ours:old", 1)
    optuna_study._storage.set_study_system_attr(optuna_study._study_id, "theirs", 1)
    text = "τ'\"\\" + "x" * 2040

    def decide(there: Mapping[str, Any]) -> dict[str, Any]:
        assert there == {"ours:old": 1}
        return {"ours:old": None, "ours:new": text, "Note_1": ["a"]}

    assert store.change_page("example", PREFIXES, decide) == 3
    assert attributes(optuna_study) == {"theirs": 1, "ours:new": text, "Note_1": ["a"]}
    assert store.page("example", PREFIXES) == {"ours:new": text, "Note_1": ["a"]}
    assert store.change_page("example", PREFIXES, lambda there: {"ours:new": 2, "Note_1": ["a"]}) == 1
    assert attributes(optuna_study)["ours:new"] == 2


def test_letters_and_signs_of_a_prefix_are_taken_as_they_are(
    store: Store, optuna_study: optuna.Study
) -> None:
    for key in ("note_1", "NoteX1", "OURS:1"):
        optuna_study._storage.set_study_system_attr(optuna_study._study_id, key, 1)
    assert store.page("example", PREFIXES) == {}


def test_a_study_that_optuna_does_not_have_has_no_page(
    store: Store, study: StudyRow, storage: optuna.storages.RDBStorage
) -> None:
    assert store.page("example", PREFIXES) is None
    assert store.change_page("example", PREFIXES, lambda there: {"ours:1": 1}) == 0


def test_two_that_write_at_once_write_one_after_the_other(store: Store, optuna_study: optuna.Study) -> None:
    def more(there: Mapping[str, Any]) -> dict[str, Any]:
        return {"ours:count": there.get("ours:count", 0) + 1}

    threads = [threading.Thread(target=store.change_page, args=("example", PREFIXES, more)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert attributes(optuna_study)["ours:count"] == 8
