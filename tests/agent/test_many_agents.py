"""Agents that meet in the store only: they come, rest, freeze and hang, and nothing is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tempopt.api.calls import search
from tempopt.service.studies import load_study, run_agent
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.opening import open_store
from tempopt.verdict.stages import more_tickets
from tests.servers import worker_pids
from tests.toy_study import (
    URL,
    EndedStudy,
    Watcher,
    facts,
    has_searched,
    is_same_study,
    read_study,
    start,
    tickets,
    toy_spec,
    training,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("toy_folder")


@pytest.mark.usefixtures("fake_workers")
def test_a_search_ends_at_its_limit_and_is_confirmed() -> None:
    watcher = Watcher()
    spec = toy_spec(trials=50, limits={"gpu_hours": 1e-5})
    result = search(spec, storage=URL, workers=1, observer=watcher)
    assert result.state == "done" and result.tickets["search"].withdrawn > 0
    assert any("study.limits.gpu_hours allows 1e-05" in note for note in watcher.notes)


@pytest.mark.usefixtures("fake_workers")
@pytest.mark.long
def test_a_search_ends_where_nothing_left_of_it_could_be_noticed(tmp_path: Path) -> None:
    spec = toy_spec(trials=40, limits={"standard_errors": 1e9}, lease=30)
    watcher = Watcher()
    single_result = search(spec, storage=URL, workers=1, observer=watcher)
    kinds = single_result.tickets["search"]
    assert 6 <= kinds.done < 20 and kinds.done + kinds.withdrawn == 40
    assert single_result.state == "done" and single_result.verdict is not None
    assert [note for note in watcher.notes if "study.limits.standard_errors is 1e+09" in note]
    single_run = read_study(single_result)
    with open_store(URL) as store:
        store.delete_study("toy")
    # the ticket that is the last depends on what may be known, and not on who asks
    process = start(spec, tmp_path, fake=True)
    wait_until(lambda rows: any(t.state == "running" for t in rows))
    run_agent("toy", storage=URL, workers=2)
    assert process.wait(timeout=240) == 0
    assert is_same_study(read_study(load_study(URL, "toy")), single_run)


@pytest.mark.usefixtures("fake_workers")
@pytest.mark.long
def test_a_study_that_grows_while_it_runs_is_the_one_that_was_asked_at_once() -> None:
    def grow() -> None:
        with open_store(URL) as store:
            study = store.load_study("toy")
            spec = StudySpec.from_json(study.spec)
            store.add_tickets(study.id, more_tickets(store.tickets(study.id), spec, 4))

    spec = toy_spec(arms={"baseline": 2, "constant": 3}, lease=3)
    search(spec, storage=URL, workers=1, observer=Watcher(has_searched(3), grow))
    grown_facts = [fact for fact in facts() if fact[0] == "search"]
    whole_spec = toy_spec(arms={"baseline": 2, "constant": 3}, trials=12)
    search(whole_spec, storage="sqlite:///whole.db", workers=1)
    with open_store("sqlite:///whole.db") as store:
        rows = store.tickets(store.load_study("toy").id, kinds=["search"])
    assert [(f[2], f[4], f[6]) for f in grown_facts] == [(t.number, t.parameters, t.value) for t in rows]


@pytest.mark.long
def test_a_worker_that_makes_no_step_is_ended_and_its_run_done_again(undisturbed_run: EndedStudy) -> None:
    watcher = Watcher(training, lambda: os.kill(worker_pids(os.getpid())[0], signal.SIGSTOP))
    search(toy_spec(lease=2), storage=URL, workers=1, observer=watcher)
    assert any("made no progress for" in note for note in watcher.notes)
    assert sum(t.failures for t in tickets()) == 1
    assert is_same_study(read_study(load_study(URL, "toy")), undisturbed_run)
