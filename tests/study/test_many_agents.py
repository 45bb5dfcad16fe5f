"""Agents that meet in the store only: they come, rest, freeze and hang, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

from tempopt.errors import SpecError, StaleAttempt, StoreUnreachable, StudyFailed, UsageError
from tempopt.store import rows as changes_of
from tempopt.store.rows import TicketRow
from tempopt.store.store import Store
from tempopt.study.agent import Agent
from tempopt.study.api import join, load_study, resume, search
from tempopt.study.progress import Unobserved
from tempopt.study.spec import StudySpec
from tempopt.study.stages import more_tickets
from tests.study.toy_study import (
    SMALL,
    URL,
    Ended,
    ended,
    facts,
    start,
    tickets,
    toy_spec,
    wait_until,
)

LONG = {"trainer": {"max_steps": 4000, "val_check_interval": 100}}


pytestmark = pytest.mark.usefixtures("toy_folder")


class Watcher(Unobserved):
    """Does something once, when the study has come so far, and keeps the notes."""

    def __init__(self, when: Callable[[Any], bool] = lambda snapshot: False, then: Any = None) -> None:
        self._when = when
        self._then = then
        self.notes: list[str] = []

    def update(self, snapshot: Any) -> None:
        if self._then is not None and self._when(snapshot):
            then, self._then = self._then, None
            then()

    def note(self, text: str) -> None:
        self.notes.append(text)


def searched(count: int) -> Callable[[Any], bool]:
    return lambda snapshot: snapshot.done["search"] >= count


def training(snapshot: Any) -> bool:
    return any(view.kind == "search" and view.step for view in snapshot.trainers)


def _trainer() -> int:
    pattern = ["pgrep", "-P", str(os.getpid()), "-f", "tempopt.training.serve"]
    return int(subprocess.run(pattern, capture_output=True, text=True).stdout.split()[0])


def same(one: Ended, other: Ended) -> bool:
    return (one.facts, one.reports) == (other.facts, other.reports)


def test_agents_that_join_change_nothing_but_the_time(undisturbed: Ended, tmp_path: Path) -> None:
    process = start(toy_spec(), tmp_path)
    wait_until(lambda rows: any(t.state == "running" for t in rows))
    join("toy", storage=URL, workers=1)
    assert process.wait(timeout=120) == 0
    assert same(ended(load_study(URL, "toy")), undisturbed)
    assert {t.agent for t in tickets() if t.agent} != {None}


def test_a_paused_study_rests_and_goes_on_where_it_was(undisturbed: Ended) -> None:
    def pause() -> None:
        with Store.open(URL) as store:
            store.set_state(store.load_study("toy").id, "paused")

    spec = toy_spec(lease=3)
    result = search(spec, storage=URL, workers=2, observer=Watcher(searched(2), pause))
    assert result.state == "paused"
    rows = tickets()
    assert not any(t.state == "running" for t in rows) and any(t.state == "waiting" for t in rows)
    assert all(t.failures == 0 for t in rows)
    with pytest.raises(UsageError, match="tempopt resume toy"):
        join("toy", storage=URL)
    assert same(ended(resume("toy", storage=URL, workers=1)), undisturbed)
    assert join("toy", storage=URL) == load_study(URL, "toy")


def test_a_stopped_study_confirms_what_it_has_found() -> None:
    def stop() -> None:
        with Store.open(URL) as store:
            store.withdraw(store.load_study("toy").id, ["unit", "constant", "search"])

    result = search(toy_spec(trials=30, lease=3), storage=URL, workers=1, observer=Watcher(searched(3), stop))
    count = result.tickets["search"]
    assert result.state == "done" and result.verdict is not None
    assert count.done >= 3 and count.withdrawn > 0 and count.done + count.withdrawn == 30
    study = optuna.load_study(study_name="toy", storage=URL)
    assert len(study.trials) == count.done


def test_a_search_ends_at_its_limit_and_is_confirmed() -> None:
    watcher = Watcher()
    spec = toy_spec(trials=50, limits={"gpu_hours": 1e-5})
    result = search(spec, storage=URL, workers=1, observer=watcher)
    assert result.state == "done" and result.tickets["search"].withdrawn > 0
    assert any("study.limits.gpu_hours allows 1e-05" in note for note in watcher.notes)


def test_a_search_ends_where_nothing_left_of_it_could_be_noticed(tmp_path: Path) -> None:
    spec = toy_spec(trials=40, limits={"standard_errors": 1e9}, lease=30)
    watcher = Watcher()
    alone = search(spec, storage=URL, workers=1, observer=watcher)
    kinds = alone.tickets["search"]
    assert 6 <= kinds.done < 20 and kinds.done + kinds.withdrawn == 40
    assert alone.state == "done" and alone.verdict is not None
    assert [note for note in watcher.notes if "study.limits.standard_errors is 1e+09" in note]
    one = ended(alone)
    with Store.open(URL) as store:
        store.delete_study("toy")
    # the ticket that is the last depends on what may be known, and not on who asks
    process = start(spec, tmp_path)
    wait_until(lambda rows: any(t.state == "running" for t in rows))
    join("toy", storage=URL, workers=2)
    assert process.wait(timeout=120) == 0
    assert same(ended(load_study(URL, "toy")), one)


def test_more_trials_open_another_round_with_seeds_of_its_own(undisturbed: Ended) -> None:
    search(toy_spec(), storage=URL, workers=2)
    first = facts()
    result = resume("toy", storage=URL, workers=2, more=4)
    rows = tickets()
    old, new = [t for t in rows if t.round == 0], [t for t in rows if t.round == 1]
    assert len([t for t in rows if t.kind == "search"]) == 12
    assert [fact for fact in facts() if fact[:3] in {f[:3] for f in first}] == first == undisturbed.facts
    assert {t.kind for t in new} == {"search", "choose", "confirm", "init_only"}
    # the search goes on with the seeds that it shares
    assert not {t.seed for t in old} & {t.seed for t in new if t.kind != "search"}
    assert result.state == "done" and result.verdict is not None and result.verdict.round == 1
    assert len(optuna.load_study(study_name="toy", storage=URL).trials) == 12


def test_a_study_that_grows_while_it_runs_is_the_one_that_was_asked_at_once() -> None:
    def grow() -> None:
        command = (
            "from tempopt.store.store import Store\n"
            "from tempopt.study.spec import StudySpec\n"
            "from tempopt.study.stages import more_tickets\n"
            f"store = Store.open({URL!r}); study = store.load_study('toy')\n"
            "spec = StudySpec.from_json(study.spec)\n"
            "store.add_tickets(study.id, more_tickets(store.tickets(study.id), spec, 4))\n"
        )
        subprocess.run([sys.executable, "-c", command], check=True)

    spec = toy_spec(arms={"unit": 2, "constant": 3}, lease=3)
    search(spec, storage=URL, workers=1, observer=Watcher(searched(3), grow))
    grown = [fact for fact in facts() if fact[0] == "search"]
    whole = toy_spec(arms={"unit": 2, "constant": 3}, trials=12)
    search(whole, storage="sqlite:///whole.db", workers=1)
    with Store.open("sqlite:///whole.db") as store:
        rows = store.tickets(store.load_study("toy").id, kinds=["search"])
    assert [(f[2], f[4], f[6]) for f in grown] == [(t.number, t.parameters, t.value) for t in rows]


def test_parameters_that_a_person_wants_tried_are_tried_first() -> None:
    wanted = [{"temperature_init": 2.0, "schedule": "linear"}, {"schedule": "cosine"}]
    search(toy_spec(**{**SMALL, "trials": 3}, enqueue=wanted[:1]), storage=URL, workers=1, enqueue=wanted[1:])
    rows = [t.parameters or {} for t in tickets() if t.kind == "search"]
    assert (rows[0]["temperature_init"], rows[0]["schedule"]) == (2.0, "linear")
    assert rows[1]["schedule"] == "cosine"
    study = optuna.load_study(study_name="toy", storage=URL)
    assert study.trials[0].params["temperature_init"] == 2.0 and len(study.trials) == 3


def test_parameters_wanted_of_a_study_that_is_there_are_tickets_more() -> None:
    search(toy_spec(**SMALL), storage=URL, workers=1)
    search(toy_spec(**SMALL), storage=URL, workers=1, enqueue=[{"temperature_init": 3.0}])
    rows = [t for t in tickets() if t.kind == "search"]
    assert len(rows) == 3 and (rows[2].parameters or {})["temperature_init"] == 3.0
    search(toy_spec(**SMALL), storage=URL, workers=1, enqueue=[{"temperature_init": 3.0}])
    assert len([t for t in tickets() if t.kind == "search"]) == 3


def _joiner(tmp_path: Path) -> subprocess.Popen[str]:
    program = (
        "import sys\n"
        "from tempopt.study.api import join\n"
        "from tempopt.study.progress import Unobserved\n"
        "class Notes(Unobserved):\n"
        "    def note(self, text): print(text, file=sys.stderr, flush=True)\n"
        f"join('toy', storage={URL!r}, workers=1, observer=Notes())\n"
    )
    return subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stderr=subprocess.PIPE, text=True)


def _begun(spec: dict[str, Any]) -> None:
    """Leave the study as somebody leaves it who goes away at once."""

    def leave() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(spec, storage=URL, workers=1, observer=Watcher(lambda snapshot: True, leave))


def test_an_agent_that_was_frozen_past_its_lease_throws_its_run_away_and_goes_on(
    undisturbed: Ended, tmp_path: Path
) -> None:
    _begun(toy_spec(lease=2))
    process = _joiner(tmp_path)
    wait_until(lambda rows: any(t.state == "running" and t.total_steps for t in rows))
    process.send_signal(signal.SIGSTOP)
    resume("toy", storage=URL, workers=1)
    process.send_signal(signal.SIGCONT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert "was given to another agent" in told
    assert same(ended(load_study(URL, "toy")), undisturbed)
    states = {trial.state.is_finished() for trial in optuna.load_study(study_name="toy", storage=URL).trials}
    assert states == {True}


def test_a_trainer_that_makes_no_step_is_ended_and_its_run_done_again(undisturbed: Ended) -> None:
    watcher = Watcher(training, lambda: os.kill(_trainer(), signal.SIGSTOP))
    search(toy_spec(lease=2), storage=URL, workers=1, observer=watcher)
    assert any("made no step for" in note for note in watcher.notes)
    assert sum(t.failures for t in tickets()) == 1
    assert same(ended(load_study(URL, "toy")), undisturbed)


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGTERM])
def test_whoever_is_told_to_go_leaves_a_checkpoint_and_the_ticket(
    tmp_path: Path, blow: signal.Signals
) -> None:
    spec = toy_spec(**SMALL, **LONG)
    process = start(spec, tmp_path)
    wait_until(lambda rows: any(t.state == "running" and t.total_steps for t in rows))
    time.sleep(0.5)
    process.send_signal(blow)
    assert process.wait(timeout=30) != 0
    rows = [t for t in tickets() if t.attempt]
    assert rows and all(
        (t.state, t.failures, t.agent) == ("waiting", 0, None) for t in rows if t.state != "done"
    )
    kept = [t for t in rows if t.state == "waiting"]
    assert kept and all(t.checkpoints and t.checkpoints[0].step > 0 for t in kept)
    assert all(Path(t.checkpoints[0].url.removeprefix("file://")).is_file() for t in kept)


def test_the_store_may_go_away_for_a_while(undisturbed: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"write": 0, "take_ticket": 0, "begin": 0, "news": 0}

    def failing(method: str, fatal: range) -> None:
        work = getattr(Store, method)

        def fail(*args: Any, **kwargs: Any) -> Any:
            calls[method] += 1
            if calls[method] in fatal:
                raise StoreUnreachable("The database failed: the server is restarting.")
            return work(*args, **kwargs)

        monkeypatch.setattr(Store, method, fail)

    failing("write", range(4, 7))
    failing("take_ticket", range(2, 4))
    failing("begin", range(6, 7))
    failing("news", range(2, 3))
    watcher = Watcher()
    result = search(toy_spec(), storage=URL, workers=2, observer=watcher)
    assert same(ended(result), undisturbed)
    assert any("Training goes on" in note for note in watcher.notes)
    assert any("The store is back" in note for note in watcher.notes)
    assert not list(Path("tempopt-runs").rglob("undelivered-*"))


def test_an_answer_that_was_lost_is_no_second_ticket(
    undisturbed: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: dict[str, int] = {}

    def deaf(method: str, fatal: int) -> None:
        work = getattr(Store, method)

        def answer(*args: Any, **kwargs: Any) -> Any:
            result = work(*args, **kwargs)
            calls[method] = calls.get(method, 0) + 1
            if calls[method] == fatal:
                raise StoreUnreachable("The database failed: server closed the connection.")
            return result

        monkeypatch.setattr(Store, method, answer)

    deaf("write", 5)
    deaf("write", 9)
    deaf("take_ticket", 2)
    deaf("begin", 5)
    deaf("add_tickets", 2)
    assert same(ended(search(toy_spec(), storage=URL, workers=2)), undisturbed)
    assert sum(t.failures for t in tickets()) == 0


def test_an_agent_without_its_store_ends_in_good_order_and_the_next_delivers_for_it(
    undisturbed: Ended, tmp_path: Path
) -> None:
    program = (
        "import json, pathlib\n"
        "from tempopt.errors import StoreUnreachable\n"
        "from tempopt.store.store import Store\n"
        "from tempopt.study.api import search\n"
        "calls = []\n"
        "work = Store.write\n"
        "def fail(*args, **kwargs):\n"
        "    calls.append(1)\n"
        "    if len(calls) > 6:\n"
        "        raise StoreUnreachable('The database failed: refused.')\n"
        "    return work(*args, **kwargs)\n"
        "Store.write = fail\n"
        "spec = json.loads(pathlib.Path('spec.json').read_text())\n"
        f"search(spec, storage={URL!r}, workers=1)\n"
    )
    Path("spec.json").write_text(json.dumps(toy_spec(store_timeout=1, lease=3)))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "StoreLost" in ran.stderr and "study.store_timeout allows 1 s" in ran.stderr
    assert list(Path("tempopt-runs").rglob("undelivered-*"))
    watcher = Watcher()
    again = ended(resume("toy", storage=URL, workers=1, observer=watcher))
    assert any("could not tell the store" in note for note in watcher.notes)
    assert same(again, undisturbed)
    assert not list(Path("tempopt-runs").rglob("undelivered-*"))


def test_a_study_that_is_deleted_under_an_agent_ends_it_with_the_reason() -> None:
    def delete() -> None:
        with Store.open(URL) as store:
            store.delete_study("toy")

    with pytest.raises(StudyFailed, match="deleted"):
        search(toy_spec(lease=3), storage=URL, workers=1, observer=Watcher(searched(1), delete))
    with Store.open(URL) as store:
        assert store.list_studies() == []
    assert optuna.get_all_study_names(URL) == []


def test_a_class_that_is_not_here_is_missed_before_a_ticket_is_taken(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begun(toy_spec(**SMALL))
    storage = f"sqlite:///{Path.cwd()}/tempopt.db"
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    monkeypatch.setenv("PYTHONPATH", "")
    before = _attempts(storage)
    with pytest.raises(SpecError, match=r'"toy_modules".*install it, or go to its folder'):
        resume("toy", storage=storage, workers=1)
    assert _attempts(storage) == before


def _attempts(storage: str) -> list[int]:
    with Store.open(storage, create=False) as store:
        rows: list[TicketRow] = store.tickets(store.load_study("toy").id)
    return [t.attempt for t in rows]


def test_a_damaged_checkpoint_is_told_of_and_the_one_before_it_used(
    undisturbed: Ended, tmp_path: Path
) -> None:
    # four steps a validation, so that two checkpoints are there when the study is cut off
    def cut(snapshot: Any) -> bool:
        return any(view.kind == "search" and (view.step or 0) >= 12 for view in snapshot.trainers)

    def leave() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(toy_spec(), storage=URL, workers=1, observer=Watcher(cut, leave))
    (row,) = [t for t in tickets() if t.state == "waiting" and t.checkpoints]
    newest = Path(row.checkpoints[0].url.removeprefix("file://"))
    newest.write_bytes(newest.read_bytes()[:-100])
    watcher = Watcher()
    again = ended(resume("toy", storage=URL, workers=1, observer=watcher))
    assert any("damaged" in note for note in watcher.notes)
    assert same(again, undisturbed)


def test_a_run_that_was_pruned_and_never_said_so_is_pruned_once_more_and_no_more(
    undisturbed: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        pass

    died: set[str] = set()
    work = Store.write

    def dying(self: Store, study_id: int, changes: Any, **options: Any) -> Any:
        pruned = [c for c in changes if isinstance(c, changes_of.Ended) and c.outcomes.outcome == "pruned"]
        if not pruned:
            return work(self, study_id, changes, **options)
        work(self, study_id, [c for c in changes if c not in pruned], **options | {"take": None})
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", dying)
        patch.setattr(Agent, "_leave", lambda self: died.add(self._desk._name))
        with pytest.raises(Died):
            search(toy_spec(), storage=URL, workers=1)
    monkeypatch.setattr("tempopt.study.board.is_dead", lambda agent: agent in died)
    assert same(ended(resume("toy", storage=URL, workers=2)), undisturbed)
    assert max(t.attempt for t in tickets()) == 2


def test_tickets_that_come_under_the_hands_of_an_agent_are_done_as_they_were_wanted() -> None:
    def add() -> None:
        with Store.open(URL) as store:
            study = store.load_study("toy")
            spec = StudySpec.from_json(study.spec)
            wanted = spec.enqueued([{"temperature_init": 1.25, "schedule": "cosine"}] * 3)
            store.add_tickets(study.id, more_tickets(store.tickets(study.id), spec, 3, wanted))

    spec = toy_spec(**{**SMALL, "trials": 5})
    search(spec, storage=URL, workers=1, observer=Watcher(searched(3), add))
    rows = [t.parameters or {} for t in tickets() if t.kind == "search"]
    assert len(rows) == 8
    assert [(r["temperature_init"], r["schedule"]) for r in rows[5:]] == [(1.25, "cosine")] * 3


def test_a_study_that_optuna_has_lost_ends_the_agent_and_can_be_resumed() -> None:
    with pytest.raises(StudyFailed, match=r"Optuna"):
        search(
            toy_spec(**{**SMALL, "trials": 6}),
            storage=URL,
            workers=1,
            observer=Watcher(searched(1), lambda: optuna.delete_study(study_name="toy", storage=URL)),
        )
    result = resume("toy", storage=URL, workers=1)
    assert result.state == "done" and result.tickets["search"].done == 6
    assert len(optuna.load_study(study_name="toy", storage=URL).trials) >= 4


def test_an_agent_frozen_between_taking_and_beginning_takes_another_ticket(
    undisturbed: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    work = Store.begin

    def stale(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in (2, 6):
            raise StaleAttempt("Ticket 7 is running at attempt 2; attempt 1 is thrown away.")
        return work(*args, **kwargs)

    monkeypatch.setattr(Store, "begin", stale)
    assert same(ended(search(toy_spec(), storage=URL, workers=1)), undisturbed)


def test_an_agent_that_begins_while_the_database_goes_away_says_so_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _begun(toy_spec(**SMALL))

    def refused(*args: Any, **kwargs: Any) -> None:
        # what Optuna's storage raises is not ours
        raise RuntimeError("connection refused")

    def away(*args: Any) -> None:
        raise StoreUnreachable("The database failed: refused. See that the server is running.")

    monkeypatch.setattr("tempopt.study.errand.make_study", refused)
    monkeypatch.setattr("tempopt.study.errand.find", away)
    with pytest.raises(StoreUnreachable, match="See that the server is running"):
        resume("toy", storage=URL, workers=1)
