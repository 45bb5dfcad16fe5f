"""Output of tempopt show for a store with a study in mid-search and for an empty store."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tempopt import cli
from tempopt.errors import StoreUnreachable
from tempopt.report.study_lines import screen_lines
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.changes import RunStarted
from tempopt.storage.liveness import machine_id
from tempopt.storage.opening import open_store
from tempopt.storage.rows import KINDS, Kind, NewTicket, StudyRow, TicketRow
from tempopt.storage.store import Store
from tests.cli.conftest import LAUNCHER_OPTION
from tests.report.full_text import full_lines
from tests.report.made_study import World, make, write
from tests.storage.scenes import HOUR, complete, make_end, reported, take_next

URL = "sqlite:///tempopt.db"
FAR = "far:1:2:3"
SPEC = {
    "study": {"name": "pairs", "metric": "val_accuracy", "direction": "maximize", "trials": 3},
    "model": {"class_path": "package.module.Model", "init_args": {"d_model": 8}},
    "data": {"class_path": "package.module.Data"},
    "trainer": {"max_steps": 10},
    "search": {"temperature_init": {"low": 0.25, "high": 4.0, "log": True}},
}
DONE: list[tuple[Kind, dict[str, float], float]] = [
    ("baseline", {}, 0.60),
    ("baseline", {}, 0.62),
    ("search", {"temperature_init": 2.5}, 0.71239),
]


@pytest.fixture
def begun_studies() -> None:
    """Write a study with two runs of τ = 1 and one of three search tickets done."""
    spec = StudySpec.parse(SPEC, source="the test")
    with open_store(URL, create=True) as store:
        study = store.create_study("pairs", spec.to_json(), spec.identity())
        counts: dict[Kind, int] = {"baseline": 2, "search": 3}
        tickets = [NewTicket(kind=k, arm=k, number=i, seed=i) for k, n in counts.items() for i in range(n)]
        store.add_tickets(study.id, tickets)
        for kind, parameters, value in DONE:
            ticket = _take(store, study, kind)
            store.begin(ticket.id, ticket.attempt, parameters, parameters, None)
            store.write(study.id, [make_end(ticket, complete(value))], agent=FAR, lease=HOUR)


def _take(store: Store, study: StudyRow, kind: Kind, agent: str = FAR, lease: float = HOUR) -> TicketRow:
    return take_next(store, study, agent, max_number_by_kind={kind: None}, lease=lease)


def _begin(*agents: str, lease: float = HOUR) -> None:
    """Have agents take a search ticket each."""
    with open_store(URL) as store:
        for agent in agents:
            _take(store, store.load_study("pairs"), "search", agent, lease)


@pytest.mark.usefixtures("begun_studies")
def test_list_has_a_line_for_each_study(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["study", "state", "agents", "metric", "direction", "done", "begun", "(UTC)"]
    assert line.split()[:6] == ["pairs", "waiting", "0", "val_accuracy", "maximize", "3/5"]


@pytest.mark.usefixtures("begun_studies")
def test_a_study_runs_while_an_agent_holds_a_lease(capsys: pytest.CaptureFixture[str]) -> None:
    _begin(FAR, lease=-1.0)
    assert cli.main(["list"]) == cli.main(["show", "pairs"]) == 0
    out = capsys.readouterr().out
    assert "pairs: maximize val_accuracy; waiting for an agent\n" in out
    assert "running (" not in out
    _begin(FAR, "far:2:2:3")
    assert cli.main(["list"]) == cli.main(["show", "pairs"]) == 0
    out = capsys.readouterr().out
    assert "pairs: maximize val_accuracy; running (2 agents)\n" in out
    assert out.splitlines()[1].split()[:4] == ["pairs", "running", "2", "val_accuracy"]


ASKING = ("show", "export", "resume", "agent", "logs", "pause", "stop", "gc", "delete")


@pytest.mark.parametrize(
    "words",
    [["list"], ["gc"], ["storage", "upgrade"], *([command, "pairs"] for command in ASKING)],
    ids=" ".join,
)
def test_a_store_that_is_not_there_is_told_and_not_made(
    words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words, "--yes"] if words[0] == "delete" else words) == 2
    assert "tempopt.db" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_show_has_the_decision_and_in_full_all_findings_and_the_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    synthetic = make(World(trials=8, layers=0))
    write(URL, synthetic)
    outs = []
    for words in ([], ["--full"]):
        assert cli.main(["show", "pairs", *words]) == 0
        outs.append(capsys.readouterr().out)
    short, full = outs
    result = synthetic.result()
    assert short.endswith("\n\n" + "\n".join(screen_lines(result)) + "\n") and len(short.splitlines()) <= 9
    assert full.endswith("\n" + "\n".join(full_lines(result)) + "\n")
    assert "baseline during the search: " in full and "baseline during" not in short
    assert "tickets" in full and "tickets" not in short


DOCUMENTED = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")


def test_the_verdict_as_json_is_the_documented_one(capsys: pytest.CaptureFixture[str]) -> None:
    search = {"lr": {"low": 0.001, "high": 0.1, "log": True}}
    synthetic = make(World(trials=46, search=search, study={"failure": 0.6}, layers=0))
    write(URL, synthetic)
    assert cli.main(["show", "pairs", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["tickets"]) == set(KINDS)
    verdict, expected_verdict = report["verdict"], synthetic.result().verdict
    assert (
        expected_verdict is not None
        and expected_verdict.over_twin is not None
        and expected_verdict.simplest is not None
    )
    (table,) = re.findall(r"### The verdict as JSON\n(.*?)\n###? ", DOCUMENTED, flags=re.DOTALL)
    rows = re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
    assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == set(verdict)
    comparison = {"gain", "ci_low", "ci_high", "p_value", "significant"}
    for key, answer in {
        "over_baseline": expected_verdict.over_baseline,
        "over_twin": expected_verdict.over_twin,
        "against_constant": expected_verdict.against_constant,
    }.items():
        assert set(verdict[key]) == comparison
        assert answer is not None and verdict[key]["gain"] == answer.paired.gain
    assert verdict["gain"] == min(verdict["over_baseline"]["gain"], verdict["over_twin"]["gain"])
    assert (verdict["confidence"], verdict["alpha"], verdict["looks"]) == (0.95, 0.05, 1)
    inference = verdict["inference_only"]
    assert set(inference) == comparison | {"plan", "curve", "share", "twin", "winner", "difference"}
    assert set(inference["share"]) == {"ratio", "low", "high"}
    assert set(inference["winner"]) == comparison | {"plan", "curve"}
    assert "as trained" in inference["curve"]
    assert [part["name"] for part in verdict["parts"]] == [part.name for part in expected_verdict.parts]
    assert all(set(part) == comparison | {"name", "params"} for part in verdict["parts"])
    assert set(verdict["simplest"]) == {"parts", "params", "holds", "over_baseline", "lost", "kept"}
    assert set(verdict["failures"]) == {"arm", "reference", "p_value"}
    assert set(verdict["failures"]["arm"]) == {"failed", "runs", "low", "high"}


@pytest.mark.usefixtures("begun_studies")
@pytest.mark.parametrize("command", ASKING)
def test_a_name_that_is_not_in_the_store_is_told_the_nearest(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "pears", *["--yes"][: command == "delete"]]) == 2
    assert 'Unknown study "pears". Did you mean "pairs"?' in capsys.readouterr().err


@pytest.mark.usefixtures("begun_studies")
def test_export_writes_a_file_or_prints(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", "pairs"]) == 0
    output = capsys.readouterr().out
    assert "temperature_init: 2.5" in output
    assert cli.main(["export", "pairs", "-o", "best.yaml"]) == 0
    assert (folder / "best.yaml").read_text(encoding="utf-8") == output
    assert cli.main(["export", "pairs", "--format", "python", "--output", "best.py"]) == 0
    compile((folder / "best.py").read_text(encoding="utf-8"), "best.py", "exec")


@pytest.fixture
def submitted_jobs(launcher: str) -> None:
    """Write the jobs of a study, of a launcher that is there and of one that is not."""
    with open_store(URL, create=True) as store:
        store.add_jobs("pairs", launcher, {"where": "there"}, ["12_0", "12_1", "12_2"])
        store.add_jobs("pairs", "no_such_launcher:Mine", {}, ["3"])


JOBS = """\
jobs: launchers_of_mine:Mine 2 running, 1 waiting (12_0, 12_1, 12_2)
  Resources
jobs: no_such_launcher:Mine 1 whose state is not known here (3)
"""


@pytest.mark.usefixtures("begun_studies", "submitted_jobs")
def test_show_tells_how_the_jobs_of_a_study_stand(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "pairs", *LAUNCHER_OPTION]) == 0
    assert JOBS in capsys.readouterr().out
    assert cli.main(["show", "pairs", "--json", *LAUNCHER_OPTION]) == 0
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert jobs[2] == {
        "launcher": "launchers_of_mine:Mine",
        "id": "12_2",
        "state": "waiting",
        "message": "Resources",
    }
    assert (jobs[3]["state"], "only if you name it" in jobs[3]["message"]) == ("unknown", True)


@pytest.mark.usefixtures("submitted_jobs")
def test_a_study_whose_jobs_wait_is_shown_before_anybody_has_begun_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["show", "pairs", *LAUNCHER_OPTION]) == 0
    assert capsys.readouterr().out.startswith(f"pairs: not begun yet\n{JOBS}")
    assert cli.main(["show", "pairs", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["study"], report["state"], len(report["jobs"])) == ("pairs", None, 4)


@pytest.mark.usefixtures("begun_studies")
def test_json_names_the_runs_in_work_with_where_and_how_far_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _begin(FAR, f"near:{os.getpid()}:{machine_id()}:no such start")
    with open_store(URL) as store:
        study = store.load_study("pairs").id
        ticket = next(t for t in store.tickets(study) if t.state == "running" and t.agent == FAR)
        changes = [
            RunStarted(
                ticket_id=ticket.id, attempt=1, total_steps=10, code="c", machine="far", device="cuda:0"
            ),
            reported(ticket, 4, 0.5),
        ]
        progress = {"renew": {ticket.id: 1}, "steps": {ticket.id: 6}}
        store.write(study, changes, agent=FAR, lease=60.0, **progress)  # type: ignore[arg-type]
    assert cli.main(["show", "pairs", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["agents"] == 1
    assert report["agents_at_work"] == [
        {
            "agent": "far:1",
            "machine": "far",
            "device": "cuda:0",
            "run": ticket.name,
            "step": 6,
            "total_steps": 10,
            "value": 0.5,
        }
    ]


@pytest.mark.usefixtures("begun_studies")
def test_watching_tells_what_finishes_and_ends_with_the_study_as_show_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def finish(seconds: float) -> None:
        looks.append(seconds)
        with open_store(URL) as store:
            study = store.load_study("pairs")
            for value in (0.25, 0.5):
                ticket = _take(store, study, "search")
                store.begin(ticket.id, ticket.attempt, {"temperature_init": 0.5}, {}, None)
                store.write(study.id, [make_end(ticket, complete(value))], agent=FAR, lease=HOUR)
            store.set_state(study.id, "done")

    monkeypatch.setattr("tempopt.cli.watch.time.sleep", finish)
    assert cli.main(["show", "pairs", "--watch", "3"]) == 0
    assert looks == [3.0]
    line, *lines = capsys.readouterr().out.splitlines()
    last_message = "search: 3 trainings over; best val_accuracy so far 0.7124 with τ = 2.5"
    assert line.partition("] ")[2] == last_message
    assert cli.main(["show", "pairs"]) == 0
    assert lines == ["", *capsys.readouterr().out.splitlines()]


@pytest.mark.usefixtures("begun_studies")
def test_watching_ends_with_ctrl_c_and_says_when_a_study_rests_or_the_store_is_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter(["pause", "away", "away", "back", "interrupt"])
    news = Store.news

    def sleep(seconds: float) -> None:
        step = next(steps)
        if step == "interrupt":
            raise KeyboardInterrupt
        if step == "pause":
            with open_store(URL) as store:
                store.set_state(store.load_study("pairs").id, "paused")
        monkeypatch.setattr(Store, "news", _raise_unreachable if step == "away" else news)

    monkeypatch.setattr("tempopt.cli.watch.time.sleep", sleep)
    assert cli.main(["show", "pairs", "--watch"]) == 130
    captured_output = capsys.readouterr()
    assert captured_output.err == ""
    assert captured_output.out.splitlines() == [
        "pairs was paused. To continue: tempopt resume pairs",
        "The database failed: refused. Trying again until it answers.",
    ]


def _raise_unreachable(*arguments: object) -> None:
    raise StoreUnreachable("The database failed: refused.")


@pytest.mark.usefixtures("begun_studies")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--watch", "--json"], "--json prints once, and --watch continues. Leave one of them out."),
        (["--watch", "0"], '"0" is not a number of seconds from 0.1 to 86400'),
        (["--watch", "nan"], '"nan" is not a number of seconds from 0.1 to 86400'),
        (["--watch", "pairs"], "the name goes first, as in NAME --watch 5"),
    ],
)
def test_what_cannot_be_watched_is_said(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["show", "pairs", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("begun_studies")
def test_the_keys_are_the_same_before_a_study_is_begun(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "pairs", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["jobs"] == []
    with open_store(URL) as store:
        store.add_jobs("later", "no_such_launcher:Mine", {}, ["3"])
    assert cli.main(["show", "later", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == report.keys()


@pytest.mark.parametrize("metric", ["loss[/val]", "acc[top1]", "loss\x1b[31m"])
def test_the_name_of_a_metric_is_shown_as_text(metric: str, capsys: pytest.CaptureFixture[str]) -> None:
    spec = StudySpec.parse({**SPEC, "study": {**SPEC["study"], "metric": metric}}, source="the test")
    with open_store(URL, create=True) as store:
        store.create_study("pairs", spec.to_json(), spec.identity())
    assert cli.main(["list"]) == cli.main(["show", "pairs"]) == 0
    assert capsys.readouterr().out.count(metric.replace("\x1b", r"\x1b")) == 2
