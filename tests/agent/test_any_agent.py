"""An agent of every study: which is served next, what is skipped for how long, when it ends."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tempopt.agent import any_agent
from tempopt.agent.agent_loop import StudyTurn
from tempopt.agent.any_agent import AnyAgent, DatabaseStudies, Pauses, ServerStudies, Studies
from tempopt.agent.observer import Observer
from tempopt.errors import AccessDenied, SpecError, StoreUnreachable, StudyNotFound
from tempopt.storage import Store
from tempopt.storage.http.connection import ServerConnection
from tempopt.storage.opening import open_store
from tempopt.storage.rows import OpenStudy
from tests.server.conftest import RunningServer
from tests.server.conftest import running_server as running_server
from tests.storage.scenes import HOUR, new_ticket, take_next
from tests.toy_study import begin


def study(number: int, *, priority: int = 0, needs_agent: bool = True) -> OpenStudy:
    return OpenStudy(id=number, name=f"study-{number}", priority=priority, needs_agent=needs_agent)


class FakeStudies:
    """Studies whose service is a function; one that returns is done, one that raises stays."""

    def __init__(self, *studies: OpenStudy) -> None:
        self.studies = sorted(studies, key=lambda study: (-study.priority, study.id))
        self.served: list[str] = []
        self.errors: dict[str, BaseException] = {}
        self.outages = 0
        self.serving: Callable[[str, StudyTurn], None] = lambda name, turn: None

    def list_open(self) -> list[OpenStudy]:
        if self.outages:
            self.outages -= 1
            raise StoreUnreachable("The database is away.")
        return list(self.studies)

    def serve(self, name: str, turn: StudyTurn, observer: Observer) -> None:
        self.served.append(name)
        if name in self.errors:
            raise self.errors[name]
        turn.has_trained = True
        self.serving(name, turn)
        self.studies = [study for study in self.studies if study.name != name]


@pytest.fixture(autouse=True)
def shorten_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(any_agent, "LOOK_SECONDS", 0.02)


def run(studies: Studies, *, idle_seconds: float = 0.3) -> tuple[list[str], list[str]]:
    """Run an agent until it is idle, and return the studies that failed and the lines that it wrote."""
    lines: list[str] = []
    failures = AnyAgent(studies, idle_seconds=idle_seconds, note=lines.append).run()
    return failures, lines


def test_the_highest_priority_is_served_first_then_the_oldest() -> None:
    studies = FakeStudies(study(1), study(2, priority=5), study(3, priority=-1), study(4, priority=5))
    assert run(studies)[0] == []
    assert studies.served == ["study-2", "study-4", "study-1", "study-3"]


@pytest.mark.parametrize("error", [SpecError("Unknown module."), RuntimeError("what was not foreseen")])
def test_a_study_that_fails_here_is_skipped_with_a_message_and_blocks_no_other(error: Exception) -> None:
    studies = FakeStudies(study(1), study(2, priority=5), study(3))
    studies.errors["study-2"] = error
    failures, lines = run(studies)
    assert failures == ["study-2"]
    assert studies.served == ["study-2", "study-1", "study-3"]
    (line,) = [line for line in lines if line.startswith("Skips study-2 for 15 s: ")]
    assert str(error) in line


def test_the_pauses_of_a_study_double_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    pauses = Pauses(15.0, 100.0)
    assert [pauses.extend(1) for _ in range(5)] == [15.0, 30.0, 60.0, 100.0, 100.0]
    assert pauses.is_paused(1) and not pauses.is_paused(2)
    clock[0] = 100.0
    assert not pauses.is_paused(1)
    pauses.reset(1)
    assert pauses.extend(1) == 15.0


def test_a_study_that_is_served_at_last_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pauses, "extend", lambda self, study_id: 0.0)
    studies = FakeStudies(study(1))
    studies.errors["study-1"] = SpecError("not yet")
    original_serve = studies.serve

    def serve(name: str, turn: StudyTurn, observer: Observer) -> None:
        if len(studies.served) == 2:
            studies.errors.clear()
        original_serve(name, turn, observer)

    monkeypatch.setattr(studies, "serve", serve)
    assert run(studies)[0] == []
    assert studies.served == ["study-1"] * 3


def test_a_study_that_was_deleted_is_no_failure_and_a_token_that_is_not_accepted_ends_it() -> None:
    studies = FakeStudies(study(1))

    def raise_deleted(name: str, turn: StudyTurn) -> None:
        studies.studies = []
        raise StudyNotFound(name)

    studies.serving = raise_deleted
    assert run(studies)[0] == []
    refused_studies = FakeStudies(study(1))
    refused_studies.errors["study-1"] = AccessDenied("no")
    with pytest.raises(AccessDenied):
        run(refused_studies)


def test_a_store_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    studies = FakeStudies(study(1))
    studies.outages = 3
    failures, lines = run(studies)
    assert failures == [] and studies.served == ["study-1"]
    assert lines[0] == "The database is away. Trying again for 30 minutes."
    assert sum("away" in line for line in lines) == 1
    monkeypatch.setattr(any_agent, "_OUTAGE_SECONDS", 0.0)
    studies.outages = 1
    with pytest.raises(StoreUnreachable):
        run(studies)


def test_until_idle_it_leaves_when_no_run_can_be_begun_and_at_once_when_all_is_done() -> None:
    blocked_studies = FakeStudies(study(1, needs_agent=False))
    assert run(blocked_studies, idle_seconds=0.1)[1] == ["No run can begin now. Waiting."]
    assert blocked_studies.served == []
    assert run(FakeStudies(), idle_seconds=3600.0) == ([], [])


def test_without_it_new_studies_are_waited_for() -> None:
    studies = FakeStudies()
    lines: list[str] = []

    def note(text: str) -> None:
        lines.append(text)
        if text.startswith("No run"):
            studies.studies = [study(1)]
        if text.startswith("Leaves"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        AnyAgent(studies, idle_seconds=None, note=note).run()
    assert studies.served == ["study-1"]


@pytest.mark.parametrize("has_trained", [True, False])
def test_a_study_of_higher_priority_ends_the_turn_of_another_which_is_served_again_at_once(
    has_trained: bool,
) -> None:
    studies = FakeStudies(study(1))

    def serve_study(name: str, turn: StudyTurn) -> None:
        if name == "study-1":
            assert not turn.decide_to_leave(idle_seconds=math.inf, has_looked=False)
            studies.studies += [study(2, priority=1)]
            while turn.higher_priority_study is None:
                time.sleep(0.01)
            assert turn.higher_priority_study == "study-2"
            assert turn.decide_to_leave(idle_seconds=0.0, has_looked=False)
            turn.has_trained = has_trained
            # the runs in progress have ended, and the study is not done
            studies.studies = [study(2, priority=1), replace(study(1), name="the same again")]

    studies.serving = serve_study
    failures, lines = run(studies, idle_seconds=0.1)
    assert failures == [] and studies.served == ["study-1", "study-2", "the same again"]
    assert "Leaves study-1: study-2 has a higher priority." in lines


def test_a_study_without_a_run_to_begin_is_left_when_another_has_one() -> None:
    studies = FakeStudies(study(1), study(2, needs_agent=False))

    def serve_study(name: str, turn: StudyTurn) -> None:
        if name == "study-1":
            assert turn.idle_seconds == 3600.0
            studies.studies = [study(1), study(2)]
            while turn.idle_seconds == 3600.0:
                time.sleep(0.01)
            assert not turn.decide_to_leave(idle_seconds=60.0, has_looked=False)
            assert turn.decide_to_leave(idle_seconds=2.0, has_looked=True)

    studies.serving = serve_study
    _, lines = run(studies, idle_seconds=3600.0)
    assert studies.served == ["study-1", "study-2"]
    assert "Leaves study-1: none of its runs can begin now." in lines


# ---- in a store


@pytest.fixture
def store(toy_folder: None) -> Iterator[Store]:
    with open_store("sqlite:///tempopt.db") as store:
        yield store


def test_what_needs_an_agent_is_told_by_the_numbers_of_runs(store: Store) -> None:
    names = ("idle", "full", "blocked", "free", "lost", "paused")
    rows = {name: store.create_study(name, {}, name, priority=len(name), parallel=2) for name in names}

    for name, count in (("full", 3), ("blocked", 1), ("free", 2), ("lost", 1), ("paused", 1)):
        store.add_tickets(rows[name].id, [new_ticket(number) for number in range(count)])
    for name, lease in (("full", HOUR), ("full", HOUR), ("blocked", HOUR), ("free", HOUR), ("lost", 0.0)):
        take_next(store, rows[name], lease=lease)
    store.set_state(rows["paused"].id, "paused")
    assert [(row.name, row.needs_agent) for row in store.open_studies()] == [
        ("blocked", False),  # its last run is in progress
        ("idle", True),  # no run is left: the next stage is to be opened
        ("full", False),  # as many runs as study.parallel allows
        ("free", True),
        ("lost", True),
    ]
    store.set_priority(rows["lost"].id, 1000)
    assert store.open_studies()[0].name == "lost"


def _numbers(store: Store, name: str) -> list[tuple[object, ...]]:
    """Return what a study has measured, which does not depend on who trained it and when."""
    rows = store.tickets(store.load_study(name).id)
    return [(row.kind, row.number, row.arm, row.seed, row.outcome, row.parameters, row.value) for row in rows]


def _serve_three(store: Store, studies: Studies) -> list[str]:
    """Serve two studies that can be trained and one that does not fit here, and return the order."""
    begin(store, "low", trials=2)
    absent = begin(store, "absent", trials=2, priority=9)
    store.set_spec(absent.id, {**absent.spec, "resources": {"memory": 10**17}}, "absent")
    begin(store, "high", trials=2, priority=5)
    failures, lines = run(studies, idle_seconds=2.0)
    assert failures == ["absent"], lines
    assert any(line.startswith("Skips absent for 15 s: ") and "memory: 1e+08 GB" in line for line in lines)
    assert {name: store.load_study(name).state for name in ("low", "high", "absent")} == {
        "low": "done",
        "high": "done",
        "absent": "running",
    }
    assert not [row for row in store.tickets(absent.id) if row.state != "waiting"]
    assert _numbers(store, "low") == _numbers(store, "high")
    return [line.split()[1] for line in lines if line.startswith("Serves")]


def _check_order(order: list[str]) -> None:
    # the first comes back while the others are served: tried again, it interrupts one of a lower priority
    served_names = dict.fromkeys(name for name in order if name != "absent")
    assert order[0] == "absent" and list(served_names) == ["high", "low"]


@pytest.mark.usefixtures("fake_workers")
def test_studies_of_a_database_are_served_by_priority_and_to_the_same_numbers(store: Store) -> None:
    _check_order(_serve_three(store, DatabaseStudies(store=store, workers=1)))


@pytest.mark.server
@pytest.mark.usefixtures("toy_folder")
def test_studies_behind_a_server_are_served_alike(
    running_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = running_server.new_token("agent")
    monkeypatch.setenv("TEMPOPT_TOKEN", token)
    with contextlib.closing(ServerConnection(running_server.url, token)) as connection:
        _check_order(_serve_three(running_server.store, ServerStudies(connection=connection, workers=1)))


@pytest.mark.server
def test_a_token_for_some_studies_lists_no_others(running_server: RunningServer) -> None:
    for name in ("mine-a", "theirs"):
        running_server.store.create_study(name, {}, name)
    token = running_server.new_token("agent", studies="mine-")
    with contextlib.closing(ServerConnection(running_server.url, token)) as connection:
        assert [row.name for row in ServerStudies(connection=connection).list_open()] == ["mine-a"]
