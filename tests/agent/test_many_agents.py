"""Agents that meet in the store only: they come, rest, freeze and hang, and nothing is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import optuna
import pytest

from tempopt.api.calls import resume, search
from tempopt.errors import UsageError
from tempopt.service.studies import load_study, run_agent
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.opening import open_store
from tempopt.verdict.stages import more_tickets
from tests.servers import worker_pids
from tests.toy_study import (
    SMALL,
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
def test_a_paused_study_rests_and_goes_on_where_it_was(undisturbed_fake: EndedStudy) -> None:
    def pause() -> None:
        with open_store(URL) as store:
            store.set_state(store.load_study("toy").id, "paused")

    spec = toy_spec(lease=3)
    result = search(spec, storage=URL, workers=2, observer=Watcher(has_searched(2), pause))
    assert result.state == "paused"
    rows = tickets()
    assert not any(t.state == "running" for t in rows) and any(t.state == "waiting" for t in rows)
    assert all(t.failures == 0 for t in rows)
    with pytest.raises(UsageError, match="tempopt resume toy"):
        run_agent("toy", storage=URL)
    assert is_same_study(read_study(resume("toy", storage=URL, workers=1)), undisturbed_fake)
    assert run_agent("toy", storage=URL) == load_study(URL, "toy")


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
def test_more_trials_open_another_round_with_seeds_of_its_own(undisturbed_fake: EndedStudy) -> None:
    search(toy_spec(), storage=URL, workers=2)
    first = facts()
    result = resume("toy", storage=URL, workers=2, add_trials=4)
    rows = tickets()
    old_tickets, new_tickets = [t for t in rows if t.round == 0], [t for t in rows if t.round == 1]
    assert len([t for t in rows if t.kind == "search"]) == 12
    assert [fact for fact in facts() if fact[:3] in {f[:3] for f in first}] == first == undisturbed_fake.facts
    assert {t.kind for t in new_tickets} == {"search", "choose", "confirm"}
    # the search continues the seeds that it shares
    assert not {t.seed for t in old_tickets} & {t.seed for t in new_tickets if t.kind != "search"}
    assert result.state == "done" and result.verdict is not None and result.verdict.round == 1
    assert len(optuna.load_study(study_name="toy", storage=URL).trials) == 12


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


@pytest.mark.usefixtures("fake_workers")
def test_parameters_that_a_person_wants_tried_are_tried_first_and_of_a_study_that_is_there_once() -> None:
    enqueued_sets = [{"temperature_init": 2.0, "schedule": "linear"}, {"schedule": "cosine"}]
    spec = toy_spec(**{**SMALL, "trials": 3}, enqueue=enqueued_sets[:1])
    search(spec, storage=URL, workers=1, enqueue=enqueued_sets[1:])
    rows = [t.parameters or {} for t in tickets() if t.kind == "search"]
    assert (rows[0]["temperature_init"], rows[0]["schedule"]) == (2.0, "linear")
    assert rows[1]["schedule"] == "cosine"
    study = optuna.load_study(study_name="toy", storage=URL)
    assert study.trials[0].params["temperature_init"] == 2.0 and len(study.trials) == 3
    for _ in range(2):
        search(spec, storage=URL, workers=1, enqueue=[{"temperature_init": 3.0}])
        rows = [t.parameters or {} for t in tickets() if t.kind == "search"]
        assert len(rows) == 4 and rows[3]["temperature_init"] == 3.0


@pytest.mark.long
def test_a_worker_that_makes_no_step_is_ended_and_its_run_done_again(undisturbed_run: EndedStudy) -> None:
    watcher = Watcher(training, lambda: os.kill(worker_pids(os.getpid())[0], signal.SIGSTOP))
    search(toy_spec(lease=2), storage=URL, workers=1, observer=watcher)
    assert any("made no progress for" in note for note in watcher.notes)
    assert sum(t.failures for t in tickets()) == 1
    assert is_same_study(read_study(load_study(URL, "toy")), undisturbed_run)


def test_a_damaged_checkpoint_is_told_of_and_the_one_before_it_used(
    undisturbed_run: EndedStudy, tmp_path: Path
) -> None:
    # four steps a validation, so that two checkpoints are there when the study is cut off
    def truncate_checkpoint(snapshot: Any) -> bool:
        return any(view.kind == "search" and (view.step or 0) >= 12 for view in snapshot.workers)

    def leave() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(toy_spec(), storage=URL, workers=1, observer=Watcher(truncate_checkpoint, leave))
    (row,) = [t for t in tickets() if t.state == "waiting" and t.checkpoints]
    newest = Path(row.checkpoints[0].url.removeprefix("file://"))
    newest.write_bytes(newest.read_bytes()[:-100])
    watcher = Watcher()
    resumed_run = read_study(resume("toy", storage=URL, workers=1, observer=watcher))
    assert any("damaged" in note for note in watcher.notes)
    assert is_same_study(resumed_run, undisturbed_run)
