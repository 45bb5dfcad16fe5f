"""A search space that is changed after its study has begun: by whom, when, and what becomes of the study."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import math
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tempopt.cli.commands import COMMANDS
from tempopt.errors import SpecError, StudyChanged, UsageError
from tempopt.records.rows import SEARCHING, TicketRow
from tempopt.results.study_result import StudyResult
from tempopt.results.verdict_text import verdict_lines
from tempopt.spec.study_spec import StudySpec
from tempopt.store.store import Store
from tempopt.study.amend import Plan, with_changes
from tempopt.study.api import load_study, resume, search
from tempopt.study.enlarge import grown
from tests.servers import find_or_start
from tests.simulated import Simulated
from tests.toy_study import FAKED, URL, Watcher, ended, facts, same, searched, tickets, toy_spec, wait_until

WIDER = "search.temperature_init={low: 0.25, high: 16}"
LR = "search.lr={low: 0.001, high: 0.1, log: true}"
FIXED = {"init": {"lr": 0.01}}
"""Workers that train nothing look into no class: what runs trained with is said by the spec."""


def of(kind: str, rows: list[TicketRow]) -> list[TicketRow]:
    return [row for row in rows if row.kind == kind]


@pytest.mark.long
def test_a_study_goes_on_in_a_wider_space_and_loses_no_trial(toy_folder: None) -> None:
    """With trainings: a range is widened, and an argument is added that the class has a default for."""
    arms = {"baseline": 2, "constant": 3, "rematch": 10}
    spec = toy_spec(trials=20, arms=arms, trainer={"max_steps": 8})
    before = search(spec, storage=URL, workers=1)
    assert before.verdict is not None
    old, told = tickets(), before.to_json()["verdict"]
    spec["search"]["temperature_init"] = {"low": 0.25, "high": 16.0}
    spec["search"]["dropout"] = {"low": 0.0, "high": 0.5}
    after = search(spec, storage=URL, workers=1, amend=True)
    rows = {row.id: row for row in tickets()}
    assert all(rows[row.id] == dataclasses.replace(row, checkpoints=()) for row in old)
    new = [row for row in rows.values() if row.id not in {each.id for each in old}]
    assert len(of("search", new)) == 10 and {row.round for row in new} == {1}
    assert all(row.sampled and row.sampled.keys() == spec["search"].keys() for row in of("search", new))
    assert max(row.parameters["temperature_init"] for row in of("search", new) if row.parameters) > 4.0
    # the range of constants is half as long again, and so are they
    constants = [row.parameters["temperature_init"] for row in of("constant", new) if row.parameters]
    assert constants == [16.0, pytest.approx(8.0)]
    assert len(of("rematch", new)) == 10
    assert after.verdict is not None
    assert (after.verdict.round, after.verdict.looks, after.verdict.alpha) == (1, 2, pytest.approx(0.005))
    shown = after.to_json()
    assert shown["ledger"] == [
        {"verdict": 1, "round": 0, "alpha": 0.04},
        {"verdict": 2, "round": 1, "alpha": pytest.approx(0.005)},
    ]
    complete = sum(row.outcome == "complete" for row in of("search", old))
    assert shown["amendments"] == [
        {
            "round": 1,
            "during": False,
            "changes": ["temperature_init: high 4.0 -> 16.0", "dropout: added, 0.0 to 0.5"],
            "trials": complete,
            "kept": complete,
        }
    ]
    lines = "\n".join(verdict_lines(after))
    assert "amended before round 1: temperature_init: high 4.0 -> 16.0; dropout: added" in lines
    assert "verdict 1 (round 0) may spend 4 %, verdict 2 (round 1) may spend 0.5 %, the next one" in lines
    with Store.open(URL) as store:
        row = store.load_study("toy")
        # what runs of before trained with was looked up in the class
        assert row.amendments is not None and row.amendments[0]["missing"] == {"dropout": 0.2}
        again = dataclasses.replace(load_study(URL, "toy"), runs=())
    assert again.spec.in_space(0).search.keys() == {"temperature_init", "temperature_final", "schedule"}
    assert verdict_of_round(0) == told
    assert after.earlier_verdicts == (before.verdict,)


def verdict_of_round(of_round: int) -> Any:
    """Return the verdict of an earlier round as it is told with the spec of now."""
    from tempopt.confirmation import verdict
    from tempopt.results.verdict_json import verdict_json

    with Store.open(URL) as store:
        row = store.load_study("toy")
        found = verdict._conclude_round(
            of_round, store.tickets(row.id), store.measurements(row.id), StudySpec.stored(row)
        )
    assert found is not None
    return verdict_json(dataclasses.replace(load_study(URL, "toy"), verdict=found))


@pytest.mark.usefixtures("fake_workers")
def test_a_wrong_space_is_refused_before_anything_is_written() -> None:
    search(toy_spec(), storage=URL, workers=1)
    before = facts()
    for change, message in (
        ("search.temperature_init={low: 4, high: 1}", "low is"),
        ("search.temperature_final=[0.5, 0.5]", "more than once"),
        ("search.temperatur_init=null", 'Did you mean "temperature_init"'),
        ("search.layer_ratio={low: 0.5, high: 2}", "it changes nothing"),
        ("study.test=sign_flip", "Only the search space of a study can be amended"),
        ("search", "--amend was given"),
    ):
        with pytest.raises((SpecError, UsageError), match=message):
            resume("toy", storage=URL, amend=[change])
    # fake workers know no class
    with pytest.raises(UsageError, match=r"search\.lr was added, .* Set that as model\.init_args\.lr"):
        resume("toy", storage=URL, amend=[LR])
    with pytest.raises(UsageError, match="Give one of them"):
        resume("toy", storage=URL, amend=[WIDER], pairs=2)
    with Store.open(URL) as store:
        assert store.load_study("toy").amendments is None
    assert facts() == before


@pytest.mark.usefixtures("fake_workers")
def test_without_amend_the_message_names_the_command_and_that_does_it() -> None:
    spec = toy_spec(init={"lr": 0.01})
    search(spec, storage=URL, workers=1)
    spec["search"] = {
        "temperature_init": {"low": 0.25, "high": 16.0},
        "schedule": ["constant", "linear", "step"],
        "temperature_final": {"low": 0.25, "high": 4.0},
        "lr": {"low": 0.001, "high": 0.1, "log": True},
    }
    with pytest.raises(StudyChanged, match="can be amended: give this command --amend, or") as caught:
        search(spec, storage=URL, workers=1)
    line = next(line for line in str(caught.value).splitlines() if "tempopt resume toy --amend" in line)
    _, command, name, *words = shlex.split(line)
    assert (command, name) == ("resume", "toy") and words[::2] == ["--amend"] * 3
    assert any("--amend" in each.names for each in COMMANDS["resume"].arguments)
    result = resume("toy", storage=URL, workers=1, amend=words[1::2])
    assert result.spec.search == StudySpec.parse(spec, source="the test").search
    # the same again is no other space
    assert len(resume("toy", storage=URL, amend=words[1::2]).spec.amendments) == 1
    assert len(search(spec, storage=URL, amend=True).spec.amendments) == 1
    assert len(search(spec, storage=URL).spec.amendments) == 1


@pytest.mark.usefixtures("fake_workers")
def test_what_is_no_search_space_cannot_be_amended() -> None:
    search(toy_spec(), storage=URL, workers=1)
    for changed, line in (
        (toy_spec(seeds={"choose": 2, "confirm": 4}), "study.seeds.confirm: was 2, now 4"),
        (toy_spec(init={"lr": 0.1}), "model.init_args.lr: was not given, now 0.1"),
        (toy_spec(trainer={"max_steps": 48}), "trainer.max_steps: was 24, now 48"),
    ):
        changed["search"]["temperature_init"]["high"] = 16.0
        with pytest.raises(StudyChanged, match=r"study\.warm_start: \[toy\]") as caught:
            search(changed, storage=URL, amend=True)
        assert line in str(caught.value) and "temperature_init" not in str(caught.value)
        with pytest.raises(StudyChanged) as caught:
            search(changed, storage=URL)
        assert "--amend" not in str(caught.value)
    with pytest.raises(StudyChanged, match=r"--trials \+N"):
        changed = toy_spec(trials=10)
        changed["search"]["temperature_init"]["high"] = 16.0
        search(changed, storage=URL, amend=True)
    with pytest.raises(UsageError, match="Take --amend out"):
        search({**toy_spec(name="other")}, storage=URL, amend=True)


@pytest.mark.usefixtures("fake_workers")
def test_a_name_that_is_taken_out_has_what_the_spec_fixes() -> None:
    spec = toy_spec(space={**toy_spec()["search"], "lr": {"low": 0.001, "high": 0.1, "log": True}})
    search(spec, storage=URL, workers=1, enqueue=[{"lr": 0.02, "temperature_init": 3.0}])
    del spec["search"]["lr"]
    spec["model"]["init_args"]["lr"] = 0.02
    result = search(spec, storage=URL, workers=1, amend=True)
    first, *others = of("search", tickets())
    assert first.parameters is not None and first.parameters["lr"] == 0.02
    kept = [row for row in others if row.round == 0 and row.outcome == "complete"]
    assert result.to_json()["amendments"][0]["kept"] == (first.outcome == "complete")
    assert result.to_json()["amendments"][0]["trials"] == len(kept) + (first.outcome == "complete")
    assert all("lr" not in (row.parameters or {}) for row in others if row.round == 1)


@pytest.mark.usefixtures("fake_workers")
def test_a_search_that_goes_on_goes_on_in_the_new_space_and_spends_nothing() -> None:
    """The agent at work notices by itself."""

    def amend() -> None:
        with Store.open(URL) as store:
            grown(store, store.load_study("toy"), amend=[WIDER, LR])

    watcher = Watcher(searched(3), amend)
    result = search(toy_spec(**FIXED), storage=URL, workers=2, observer=watcher)
    assert result.state == "done" and result.verdict is not None
    assert any("temperature_init: high 4.0 -> 16.0; lr: added" in note for note in watcher.notes)
    rows = of("search", tickets())
    assert len(rows) == 8 and all(row.round == 0 and row.failures == 0 for row in rows)
    spaces = [row.space for row in rows]
    assert spaces == sorted(spaces) and set(spaces) == {0, 1}
    assert all(("lr" in (row.sampled or {})) is (row.space == 1) for row in rows)
    assert [each["alpha"] for each in result.to_json()["ledger"]] == [0.04]
    assert result.to_json()["amendments"][0]["during"]
    assert all(row.parameters is not None and "lr" in row.parameters for row in of("confirm", tickets()))


@pytest.mark.usefixtures("fake_workers")
def test_of_two_changes_at_the_same_time_both_hold() -> None:
    search(toy_spec(), storage=URL, workers=1)
    with Store.open(URL) as store:
        seen = store.load_study("toy")
        grown(store, store.load_study("toy"), amend=["search.temperature_init.high=16"])
        # by somebody who has not seen that yet
        grown(store, seen, amend=["search.temperature_init.low=0.125"])
        space = StudySpec.stored(store.load_study("toy")).to_json()["search"]
    assert (space["temperature_init"]["low"], space["temperature_init"]["high"]) == (0.125, 16.0)


PROGRAM = f"""
from tempopt.study.api import resume
resume('toy', storage={URL!r}, workers=2, amend=[{WIDER!r}, {LR!r}])
"""


@pytest.mark.long
@pytest.mark.usefixtures("fake_workers")
def test_killed_after_an_amendment_it_ends_with_the_same_tickets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "undisturbed", tmp_path / "killed"]
    for folder in folders:
        folder.mkdir()
        monkeypatch.chdir(folder)
        search(toy_spec(trials=20, **FIXED), storage=URL, workers=1)
    killed = 0
    for at in (22, 27):
        # the same command again has nothing to amend, and goes on
        process = subprocess.Popen([sys.executable, "-c", FAKED + PROGRAM], stderr=subprocess.DEVNULL)
        wait_until(lambda rows, at=at: sum(row.state == "done" for row in of("search", rows)) >= at)  # type: ignore[misc]
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert killed == 2
    disturbed = ended(resume("toy", storage=URL, workers=1))
    monkeypatch.chdir(folders[0])
    undisturbed = ended(resume("toy", storage=URL, workers=1, amend=[WIDER, LR]))
    assert same(disturbed, undisturbed)
    assert disturbed.result.to_json()["amendments"] == undisturbed.result.to_json()["amendments"]


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty database on a server."""
    server, why_not = find_or_start(request.param)
    if server is None:
        pytest.skip(why_not)
    name = f"tempopt_test_amend_{os.getpid()}"
    yield server.create_database(name)
    gc.collect()
    server.drop_database(name)


# the connections of the storage that Optuna makes its study with are closed when they are collected
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("fake_workers")
def test_on_a_server_a_study_is_amended_as_on_sqlite(database: str) -> None:
    found = []
    for url in (URL, database):
        search(toy_spec(trials=20, sampler="random", **FIXED), storage=url, workers=1)
        result = resume("toy", storage=url, workers=1, amend=[WIDER, LR])
        rows = [(row.name, row.round, row.space, row.sampled, row.value) for row in result.runs]
        found.append((rows, result.to_json()["amendments"], result.to_json()["ledger"]))
    assert found[0] == found[1]
    assert found[0][1][0]["kept"] == found[0][1][0]["trials"] > 0


@pytest.mark.usefixtures("fake_workers")
@pytest.mark.parametrize("sampler", ["tpe", "random", "gp"])
def test_samplers_of_optuna_go_on_with_other_choices(sampler: str) -> None:
    """Optuna refuses other choices within one study; each decision here sees one space."""
    spec = toy_spec(trials=10, sampler=sampler)
    search(spec, storage=URL, workers=1)
    spec["search"]["schedule"] = ["constant", "cosine", "step"]
    result = search(spec, storage=URL, workers=1, amend=True, more=6)
    assert result.state == "done"
    new = [row for row in of("search", tickets()) if row.round == 1]
    assert len(new) == 6
    assert {row.sampled["schedule"] for row in new if row.sampled} <= {"constant", "cosine", "step"}
    assert optuna_reads_it(result)


def optuna_reads_it(result: StudyResult) -> bool:
    import optuna

    study = optuna.load_study(study_name="toy", storage=URL)
    frame = study.trials_dataframe()
    trials = [row for row in result.runs if row.kind == "search"]
    choices = {trial.distributions["schedule"] for trial in study.trials}
    best = min(row.value for row in trials if row.outcome == "complete" and row.value is not None)
    return len(frame) == len(trials) and len(choices) == 2 and study.best_trial.value == best


# ---- which tickets follow


SPACE = {"temperature_init": {"low": 0.25, "high": 4.0}, "lr": {"low": 0.001, "high": 0.1}}


def study_of(make_spec: Any, space: dict[str, Any] = SPACE, **study: Any) -> Simulated:
    spec = make_spec({"search": space}, **{"trials": 8, "arms": {"constant": 8}, **study})
    return Simulated(spec, lambda t: t.seed % 997 / 997)


def plan(study: Simulated, rows: list[TicketRow], *texts: str, more: int = 0) -> Plan:
    return Plan(rows, study.spec, with_changes(study.spec, texts), more)


def test_how_many_trials_are_added_follows_from_whether_the_search_goes_on(make_spec: Any) -> None:
    study = study_of(make_spec)
    study.search()
    waiting = [
        dataclasses.replace(row, state="waiting", parameters=None, sampled=None)
        if row.kind == "search" and row.number >= 5
        else row
        for row in study.rows
    ]
    goes_on = plan(study, waiting, "search.lr={low: 0.001, high: 1.0}")
    assert (goes_on.tickets, goes_on.round, goes_on.withdrawn) == ([], 0, [])
    assert len(plan(study, waiting, "search.lr={low: 0.001, high: 1.0}", more=3).tickets) == 3
    # all of them are begun: none would see the new space
    over = plan(study, study.rows, "search.lr={low: 0.001, high: 1.0}")
    assert [(t.kind, t.number, t.round) for t in over.tickets] == [("search", n, 0) for n in range(8, 12)]


def test_a_round_that_is_proved_comes_to_its_verdict_once_that_has_begun(make_spec: Any) -> None:
    study = study_of(make_spec)
    study.search()
    choosing = [dataclasses.replace(row, state="waiting", attempt=0) for row in study.step()]
    assert {row.kind for row in choosing} == {"choose"}
    left = plan(study, [*study.rows[: -len(choosing)], *choosing], "search.lr={low: 0.001, high: 1.0}")
    assert left.withdrawn == [row.id for row in choosing] and left.round == 1
    confirming = study.until("confirm")
    waiting = [dataclasses.replace(row, state="waiting", attempt=0) for row in confirming]
    unseen = plan(study, [*study.rows[: -len(waiting)], *waiting], "search.lr={low: 0.001, high: 1.0}")
    assert unseen.withdrawn == [row.id for row in waiting]
    waiting[0] = dataclasses.replace(waiting[0], attempt=1)
    seen = plan(study, [*study.rows[: -len(waiting)], *waiting], "search.lr={low: 0.001, high: 1.0}")
    assert (seen.withdrawn, seen.round) == ([], 1)


@pytest.mark.parametrize(
    ("low", "high", "more"),
    # 8 constants over a factor of 16: 2 for each factor of 2
    [(0.25, 16.0, 4), (0.0625, 4.0, 4), (0.125, 8.0, 4), (0.5, 2.0, 0), (1.0, 8.0, 2), (16.0, 64.0, 4)],
)
def test_constants_are_as_close_in_the_new_part_as_in_the_old(
    make_spec: Any, low: float, high: float, more: int
) -> None:
    study = study_of(make_spec)
    study.search()
    change = f"search.temperature_init={{low: {low}, high: {high}}}"
    new = [t for t in plan(study, study.rows, change).tickets if t.kind == "constant"]
    assert [t.number for t in new] == list(range(8, 8 + more))
    assert all(t.sampled is not None and low <= t.sampled["temperature_init"] <= high for t in new)
    # twice there and back adds none twice
    assert len({t.seed for t in [*new, *study.of("constant")]}) == 8 + more


def test_constants_that_wait_are_given_temperatures_of_the_new_range(make_spec: Any) -> None:
    study = study_of(make_spec)
    study.search()
    waiting = [
        dataclasses.replace(row, state="waiting", parameters=None, sampled=None)
        if row.kind in SEARCHING and row.number >= 4
        else row
        for row in study.rows
    ]
    found = plan(study, waiting, "search.temperature_init={low: 0.25, high: 64.0}")
    unbegun = [row for row in waiting if row.kind == "constant" and row.parameters is None]
    given = [found.sampled[row.id] for row in unbegun]
    new = [t.sampled for t in found.tickets if t.kind == "constant"]
    tried = [
        row.parameters["temperature_init"] for row in waiting if row.kind == "constant" and row.parameters
    ]
    places = sorted(math.log2(each["temperature_init"]) for each in [*given, *new] if each)
    every = sorted([*places, *map(math.log2, tried)])
    gaps = [other - one for one, other in itertools.pairwise(every)]
    # 16 constants over 8 octaves
    assert len(every) == 16 and max(gaps) <= 1.0 and (every[0], every[-1]) == (-2.0, 6.0)


def test_a_value_that_somebody_wants_tried_is_dropped_where_it_is_outside(make_spec: Any) -> None:
    study = study_of(make_spec)
    study.search()
    wants = {"temperature_init": 0.5, "lr": 0.002}
    waiting = [
        dataclasses.replace(row, state="waiting", parameters=None, sampled=wants)
        if row.kind == "search" and row.number == 7
        else row
        for row in study.rows
    ]
    found = plan(study, waiting, "search.lr={low: 0.01, high: 0.1}")
    assert list(found.sampled.values()) == [{"temperature_init": 0.5}]
