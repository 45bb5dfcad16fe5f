"""What is said of a study that grows, or that is joined from another folder."""

from __future__ import annotations

import pytest

import tempopt
from tempopt.service import studies
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import SEARCH_KINDS
from tempopt.verdict.planned_runs import planned_runs
from tests.toy_study import URL, Watcher, toy_spec


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
