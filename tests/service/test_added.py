"""What is said of a study that grows, or that is joined from another folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tempopt
from tempopt.errors import SpecError
from tempopt.service import studies
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.opening import open_store
from tempopt.storage.rows import SEARCH_KINDS
from tempopt.verdict.planned_runs import planned_runs
from tests.toy_study import URL, Watcher, toy_spec, work_in


@pytest.mark.usefixtures("fake_workers")
@pytest.mark.long
def test_trials_that_are_added_are_told_with_the_runs_of_the_verdict_that_follows() -> None:
    tempopt.search(toy_spec(), progress=False, storage=URL, workers=1)
    watcher = Watcher()
    num_before = sum(count.done for count in studies.load_study(URL, "toy").tickets.values())
    result = tempopt.resume("toy", storage=URL, workers=1, add_trials=2, observer=watcher, progress=False)
    note = next(note for note in watcher.notes if "2 trials are added" in note)
    max_extra = int(note.partition("at most ")[2].split()[0])
    runs = planned_runs(StudySpec.parse(toy_spec(), source="the test"))
    assert max_extra == runs.max_total(without=SEARCH_KINDS)
    num_added = sum(count.done for count in result.tickets.values()) - num_before
    assert 2 < num_added <= 2 + max_extra
    # a study that does not grow is not told of as if it did
    quiet = Watcher()
    tempopt.resume("toy", storage=URL, workers=1, observer=quiet, progress=False)
    assert not [note for note in quiet.notes if "are added" in note]


@pytest.mark.long
def test_a_module_that_is_not_here_is_named_once_with_the_folder_that_was_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_folder, other_folder = tmp_path / "begun here", tmp_path / "elsewhere"
    for folder in (begun_folder, other_folder):
        folder.mkdir()
    work_in(other_folder, monkeypatch)
    spec: dict[str, Any] = json.loads(json.dumps(toy_spec()).replace("toy_modules.", "not_here."))
    with open_store(URL) as store:
        study = store.create_study("toy", StudySpec.parse(spec, source="the test").to_json(), "0")
        store.set_checkpoints(study.id, str(begun_folder / "tempopt-runs"))
    with pytest.raises(SpecError) as error:
        studies.run_agent("toy", storage=URL, workers=1)
    message = str(error.value)
    assert message.count('no module "not_here"') == message.count("Looked in") == 1
    assert str(other_folder) in message
