"""A whole search, with real workers on toy modules: exact, repeatable, and not lost to any death."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from tempopt.agent.agent_loop import Agent
from tempopt.api.calls import resume, search
from tempopt.errors import SpecError, StudyFailed, UsageError
from tempopt.service.studies import load_study
from tempopt.storage.opening import open_store
from tempopt.storage.ticket_queries import arms_of
from tests.fake_worker import AgentDied, fail_calls
from tests.servers import worker_pids
from tests.toy_study import (
    SMALL,
    URL,
    EndedStudy,
    Watcher,
    read_study,
    start,
    tickets,
    toy_spec,
    training,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("toy_folder")

TAU = {"temperature_init": {"low": 0.25, "high": 4.0}}


@pytest.fixture
def ended_study(undisturbed_run: EndedStudy, monkeypatch: pytest.MonkeyPatch) -> EndedStudy:
    """A study that was not disturbed, in whose folder the test works."""
    monkeypatch.chdir(undisturbed_run.folder)
    return undisturbed_run


def test_a_study_is_the_same_with_however_many_workers_it_is_run(undisturbed_run: EndedStudy) -> None:
    second_run = read_study(search(toy_spec(), storage=URL, workers=2))
    assert (second_run.facts, second_run.reports) == (undisturbed_run.facts, undisturbed_run.reports)
    assert second_run.result.winner == undisturbed_run.result.winner
    assert second_run.result.verdict == undisturbed_run.result.verdict is not None


def test_a_study_has_the_tickets_that_were_asked_and_optuna_one_trial_for_each_search_ticket(
    ended_study: EndedStudy,
) -> None:
    result = ended_study.result
    counts = {kind: count.done for kind, count in result.tickets.items()}
    # two candidates on two seeds, and two pairs of the winner and τ = 1, which show no gain
    proved = {"choose": 4, "confirm": 4, "ablation": 0}
    assert counts == {"baseline": 2, "constant": 3, "search": 8, **proved}
    study = optuna.load_study(study_name="toy", storage=URL)
    rows = [t for t in tickets() if t.kind == "search"]
    assert [t.number for t in study.trials] == [t.trial_number for t in rows] == list(range(8))
    for trial, row in zip(study.trials, rows, strict=True):
        expected = TrialState.COMPLETE if row.outcome == "complete" else TrialState.PRUNED
        assert trial.state == expected
        assert trial.params["schedule"] in ("constant", "linear", "cosine")
        if row.outcome == "complete":
            assert trial.value == row.value
            assert sorted(trial.intermediate_values) == [4, 8, 12, 16, 20, 24]
    assert any(row.outcome == "pruned" for row in rows)
    assert result.state == "done"


def test_the_attention_of_the_winner_and_of_temperature_one_is_kept_over_their_training(
    ended_study: EndedStudy,
) -> None:
    with open_store(URL, create=False) as store:
        measurements = store.measurements(store.load_study("toy").id, names=["entropy/0/0"])
    by_ticket: dict[int, list[tuple[int, float]]] = {}
    for measurement in measurements:
        by_ticket.setdefault(measurement.ticket_id, []).append((measurement.step, measurement.value))
    observed_ids = {t.id for t in tickets() if t.kind == "confirm" and {"baseline", "search"} & {*arms_of(t)}}
    assert by_ticket.keys() == observed_ids
    for points in by_ticket.values():
        assert [step for step, _ in points] == list(range(24))
        assert all(0.0 < value <= 1.0 for _, value in points)


@pytest.mark.usefixtures("fake_workers")
def test_a_study_that_was_terminated_goes_on_to_the_end_it_would_have_had(
    undisturbed_fake: EndedStudy, tmp_path: Path
) -> None:
    process = start(toy_spec(), tmp_path, fake=True)
    wait_until(lambda rows: sum(t.kind == "search" and t.state == "done" for t in rows) >= 2)
    process.terminate()
    process.wait(timeout=240)
    interrupted_rows = tickets()
    assert any(t.state == "waiting" for t in interrupted_rows)
    assert not any(t.state == "running" for t in interrupted_rows)
    assert load_study(URL, "toy").state == "waiting"
    resumed_run = read_study(resume("toy", storage=URL, workers=1))
    assert (resumed_run.facts, resumed_run.reports) == (undisturbed_fake.facts, undisturbed_fake.reports)
    assert resumed_run.result.verdict == undisturbed_fake.result.verdict


@pytest.mark.parametrize(
    ("method", "fatal", "is_after"),
    [
        ("create_study", 1, True),
        ("add_tickets", 1, True),
        ("add_tickets", 2, False),
        ("take_ticket", 2, True),
        ("begin", 9, True),
        ("write", 15, True),
    ],
)
@pytest.mark.usefixtures("fake_workers")
def test_an_agent_may_die_between_any_two_writes(
    undisturbed_fake: EndedStudy, monkeypatch: pytest.MonkeyPatch, method: str, fatal: int, is_after: bool
) -> None:
    with monkeypatch.context() as patch:
        fail_calls(patch, method, (fatal,), error=AgentDied(), is_after=is_after)
        # a process that dies gives nothing back
        dead_agents: set[str] = set()
        patch.setattr(Agent, "_leave", lambda self: dead_agents.add(self._client.outbox.agent))
        with pytest.raises(AgentDied):
            search(toy_spec(), storage=URL, workers=1)
    monkeypatch.setattr("tempopt.agent.study_cache.is_dead", lambda agent: agent in dead_agents)
    resumed_run = read_study(resume("toy", storage=URL, workers=1))
    assert (resumed_run.facts, resumed_run.reports) == (undisturbed_fake.facts, undisturbed_fake.reports)
    assert resumed_run.result.verdict == undisturbed_fake.result.verdict
    study = optuna.load_study(study_name="toy", storage=URL)
    assert [trial.state.is_finished() for trial in study.trials] == [True] * 8


def test_a_killed_worker_takes_no_agent_and_no_ticket_with_it() -> None:
    killer = Watcher(training, lambda: os.kill(worker_pids(os.getpid())[0], signal.SIGKILL))
    spec = toy_spec(**{**SMALL, "trials": 3}, trainer={"max_steps": 40})
    result = search(spec, storage=URL, workers=2, observer=killer)
    assert result.tickets["search"].done == 3
    assert any("SIGKILL" in note for note in killer.notes)
    assert result.verdict is not None


def test_a_diverging_run_is_final_counted_apart_and_never_a_value() -> None:
    space = {"temperature_init": {"low": 0.25, "high": 4.0}, "diverge_at": [-1, 9]}
    # a sampler that names the sets with the best values, and so none that has only diverged
    spec = toy_spec(space=space, **{**SMALL, "trials": 6}, sampler="random")
    result = search(spec, storage=URL, workers=1)
    diverged_tickets = [t for t in tickets() if t.kind == "search" and t.outcome == "diverged"]
    assert diverged_tickets and result.trials["diverged"] == len(diverged_tickets)
    assert all((t.value, t.diverged_at, t.attempt) == (None, 10, 1) for t in diverged_tickets)
    study = optuna.load_study(study_name="toy", storage=URL)
    for ticket in diverged_tickets:
        trial = study.trials[ticket.trial_number or 0]
        assert trial.state == TrialState.PRUNED
        assert trial.user_attrs["diverged_at"] == 10
    assert result.winner is not None and result.winner["diverge_at"] == -1


def test_a_module_that_raises_in_training_ends_the_study_with_its_message() -> None:
    with pytest.raises(StudyFailed, match=r"the toy breaks(.|\n)*log\.txt"):
        search(toy_spec(init={"raise_at": 5}, max_attempts=2), storage=URL, workers=1)
    rows = tickets()
    # the tickets are there for when the module has been put right
    assert all(t.state == "waiting" for t in rows)
    assert any(t.failures == 1 and "the toy breaks" in (t.error or "") for t in rows)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"metric": "val_accuracy"}, 'Unknown metric "val_accuracy".*val_loss'),
        ({"init": {"attends": False}}, "never called"),
        ({"init": {"raise_at": 0}}, "the toy breaks"),
        (
            {"space": {**TAU, "temperatur": {"low": 1.0, "high": 2.0}}},
            '"temperatur".*Did you mean "temperature_',
        ),
        ({"sampler": {"name": "tpe", "startup": 3}}, 'option of tpe "startup"'),
        ({"pruner": {"name": "median", "n_startup_trials": -1}}, "median does not take"),
    ],
)
def test_what_cannot_work_is_refused_before_a_ticket_is_written(
    change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(SpecError, match=complaint):
        search(toy_spec(**change), storage=URL, workers=1)
    with open_store(URL) as store:
        assert store.list_studies() == []


@pytest.mark.usefixtures("fake_workers")
def test_going_on_with_a_finished_study_gives_its_result_and_trains_nothing() -> None:
    first = search(toy_spec(**SMALL), storage=URL, workers=1)
    tickets_before = tickets()
    second_result = search(toy_spec(**SMALL), storage=URL, workers=1)
    assert second_result == first == load_study(URL, "toy")
    assert tickets() == tickets_before


def test_a_foreign_optuna_study_is_refused() -> None:
    optuna.create_study(study_name="toy", storage=URL).optimize(lambda trial: 0.0, n_trials=1)
    with pytest.raises(UsageError, match="tempopt did not create"):
        search(toy_spec(), storage=URL)


def test_more_workers_than_may_be_in_flight_are_refused() -> None:
    with pytest.raises(UsageError, match=r"study\.parallel"):
        search(toy_spec(), storage=URL, workers=5)
