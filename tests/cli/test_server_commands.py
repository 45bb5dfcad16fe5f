"""Commands against a server print and do what they print and do on a database."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import tempopt
from tempopt import cli
from tempopt.errors import AccessDenied, StudyNotFound, UsageError
from tempopt.launch import watch
from tempopt.spec.study_spec import StudySpec
from tempopt.storage import urls
from tempopt.storage.http import credentials
from tempopt.storage.opening import open_store
from tempopt.verdict.stages import initial_tickets
from tests.report.made_study import World, make, write
from tests.server.conftest import RunningServer
from tests.server.conftest import running_server as running_server
from tests.storage.scenes import HOUR, complete, make_end, take_next
from tests.toy_study import SMALL, Watcher, toy_spec

pytestmark = pytest.mark.server

AGENT = """
import sys
from tests import fake_worker
from tempopt.errors import StudyNotFound
from tempopt.service import studies
fake_worker.install()
while True:
    try:
        studies.run_agent("toy", storage=sys.argv[1], workers=2)
        break
    except StudyNotFound:
        pass
"""


@pytest.fixture
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")
    return folder


@pytest.fixture
def both_urls(running_server: RunningServer, work_folder: Path) -> tuple[str, str]:
    """URLs of a database and of a server, with the same finished study, and a begun one with logs."""
    database = f"sqlite:///{work_folder.parent / 'own.db'}"
    synthetic = make(World(trials=4, layers=2, heads=2, reports=3))
    for url in (database, running_server.storage):
        write(url, synthetic)
        with open_store(url) as store:
            spec = StudySpec.from_json(synthetic.row.spec).with_overrides(["study.name=begun"])
            study = store.create_study("begun", spec.to_json(), "1")
            store.set_checkpoints(study.id, (work_folder.parent / "kept").as_uri())
            store.add_tickets(study.id, initial_tickets(spec))
            ticket = take_next(store, study, "far:7")
            store.begin(ticket.id, 1, {"temperature_init": 1.0}, {}, None)
            store.write(
                study.id, [make_end(ticket, complete(), log="first\nlast")], agent="far:7", lease=HOUR
            )
            store.add_jobs("begun", "slurm", {}, ["17"])
    return database, running_server.url


def run_command(
    words: list[str], url: str, capsys: pytest.CaptureFixture[str], *, code: int | None = None
) -> tuple[int, str, str]:
    """Return exit code and output of a command, with nothing in it of the moment or of the store's URL."""
    exit_code = cli.main([*words, "--storage", url])
    out, err = capsys.readouterr()
    text = (out + err).replace(urls.masked_url(url), "STORE")
    text = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d[.\d]*)?(\+00:00| UTC)?", "MOMENT", text)
    if code is not None:
        assert exit_code == code, text
    return exit_code, text, out


@pytest.mark.parametrize(
    "words",
    [
        ["list", "--json"],
        ["show", "pairs", "--json"],
        ["show", "begun"],
        ["report", "pairs", "-o", "-", "--plotlyjs", "cdn"],
        ["export", "pairs"],
        ["export", "begun"],
        ["logs", "begun", "baseline-0"],
        ["logs", "begun", "nonsense"],
        ["gc", "--dry-run"],
        ["delete", "pairs"],
    ],
    ids=" ".join,
)
def test_what_is_printed_is_the_same(
    words: list[str], both_urls: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    database, server = (run_command(words, url, capsys)[:2] for url in both_urls)
    assert server == database


@pytest.mark.parametrize(
    "words",
    [
        ["pause", "begun"],
        ["pause", "pairs"],
        ["stop", "begun"],
        ["stop", "pairs"],
        ["delete", "begun", "--yes", "--force"],
        ["delete", "pairs", "--yes"],
        ["gc"],
    ],
    ids=" ".join,
)
def test_what_is_done_is_the_same(
    words: list[str],
    both_urls: tuple[str, str],
    running_server: RunningServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    database, server = (run_command(words, url, capsys)[:2] for url in both_urls)
    assert server == database
    states = [_states(url) for url in (both_urls[0], running_server.storage)]
    assert states[0] == states[1]


def _states(url: str) -> list[Any]:
    with open_store(url) as store:
        rows = store.list_studies()
        return [(study.study.name, study.study.state, study.tickets) for study in rows]


@contextmanager
def _agent(storage: str, folder: Path) -> Iterator[None]:
    """Have an agent, in a process of its own, work on the toy study as soon as it is begun."""
    path = os.pathsep.join([str(Path(__file__).parents[1] / "training"), *filter(None, sys.path)])
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, storage], cwd=folder, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        yield
        assert agent.wait(60) == 0
    finally:
        agent.kill()
        agent.wait()


def small(**study: Any) -> dict[str, Any]:
    """Return the spec of a study of few runs."""
    changes: dict[str, Any] = {**SMALL, **study}
    return toy_spec(**changes)


def _spec(folder: Path, **study: Any) -> str:
    path = folder / "toy.yaml"
    path.write_text(yaml.safe_dump(small(**study)))
    return str(path)


@pytest.fixture
def speed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.05)


@pytest.mark.usefixtures("fake_workers", "speed_up")
def test_ctrl_c_leaves_the_study_running_and_says_how_to_look_again(
    running_server: RunningServer,
    work_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=interrupt, monotonic=time.monotonic))
    spec = _spec(work_folder)
    _, text, _ = run_command(["search", spec], running_server.url, capsys, code=130)
    assert "The study continues without this command." in text
    assert "tempopt show toy --storage STORE" in text
    assert "No agent works on toy yet" in text
    study = running_server.store.load_study("toy")
    assert study.state == "running"
    assert len(running_server.store.tickets(study.id)) == 4
    # what is added and enqueued reaches the server's study
    run_command(["search", spec, "--trials", "+2"], running_server.url, capsys, code=130)
    (work_folder / "sets.yaml").write_text("[{temperature_init: 2.0}]")
    run_command(["search", spec, "--enqueue", "sets.yaml"], running_server.url, capsys, code=130)
    assert len(running_server.store.tickets(study.id, ["search"])) == 5
    run_command(["resume", "toy", "--trials", "+1"], running_server.url, capsys, code=130)
    assert len(running_server.store.tickets(study.id, ["search"])) == 6
    data = small()
    data["search"]["temperature_init"] = {"low": 0.25, "high": 8.0}
    (work_folder / "wider.yaml").write_text(yaml.safe_dump(data))
    code, text, _ = run_command(["search", "wider.yaml"], running_server.url, capsys)
    assert code == 2
    assert "study.warm_start: [toy]" in text
    run_command(["pause", "toy"], running_server.url, capsys, code=0)
    run_command(["show", "toy"], running_server.url, capsys, code=0)


def test_what_needs_the_database_is_refused_in_one_sentence(
    running_server: RunningServer, work_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = _spec(work_folder)
    for words in (
        ["dashboard", "--port", "0"],
        ["storage", "upgrade"],
        ["search", spec, "--launcher", "local"],
        ["search", spec, "--checkpoints", "runs"],
    ):
        _, text, _ = run_command(words, running_server.url, capsys, code=2)
        assert "is a tempopt server" in text
        assert len(text.splitlines()) == 1
    assert running_server.store.list_studies() == []


# ---- tokens and logins


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for what this user has logged in to, and no token from elsewhere."""
    monkeypatch.delenv("TEMPOPT_TOKEN", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "tempopt" / "servers.json"


def test_a_login_makes_a_server_the_default_until_logout(
    running_server: RunningServer, work_folder: Path, settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = work_folder / "token"
    token.write_text(running_server.token + "\n")
    token.chmod(0o600)
    assert cli.main(["login", running_server.url + "/", "--token-file", str(token)]) == 0
    out, err = capsys.readouterr()
    assert "admin" in out
    assert running_server.token not in out + err
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600
    assert urls.storage_url(None) == running_server.url
    assert cli.main(["list"]) == 0
    assert capsys.readouterr().out == f"No study in {running_server.url} yet.\n"
    # what is given comes first
    assert cli.main(["list", "--storage", running_server.storage]) == 0
    assert "server.db" in capsys.readouterr().out
    assert cli.main(["logout"]) == 0
    assert urls.storage_url(None) == urls.DEFAULT_STORAGE
    assert running_server.token not in settings.read_text()
    assert cli.main(["list", "--storage", running_server.url]) == 2
    assert "tempopt login" in capsys.readouterr().err


def test_files_that_others_can_read_are_told_of(
    work_folder: Path, settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = work_folder / "token"
    token.write_text("a-token")
    token.chmod(0o644)
    assert credentials.read_token_file(token) == "a-token"
    assert "chmod 600" in capsys.readouterr().err
    credentials.remember("https://one.example", "one")
    settings.chmod(0o644)
    assert credentials.token_for("https://one.example") == "one"
    assert "chmod 600" in capsys.readouterr().err


def test_a_file_that_is_given_comes_before_the_environment_and_that_before_logins(
    work_folder: Path, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, env_file, explicit_file = "https://one.example", work_folder / "named", work_folder / "given"
    assert credentials.token_for(url) is None
    credentials.remember(url, "kept")
    credentials.remember("https://two.example", "other")
    for path in (env_file, explicit_file):
        path.write_text(path.name)
        path.chmod(0o600)
    assert credentials.token_for(url + "/") == "kept"
    assert credentials.token_for(url, explicit_file) == "given"
    monkeypatch.setenv("TEMPOPT_TOKEN_FILE", str(env_file))
    assert credentials.token_for(url) == "named"
    monkeypatch.setenv("TEMPOPT_TOKEN", "first")
    assert credentials.token_for(url) == "first"
    assert credentials.token_for(url, explicit_file) == "given"
    assert "kept" not in repr(credentials.servers())
    assert credentials.forget("https://two.example") == "https://two.example"
    assert credentials.forget("https://two.example") is None


@pytest.mark.parametrize("text", ["", "two words", "a\nb", "ü" * 3])
def test_what_is_no_token_is_refused(text: str, work_folder: Path) -> None:
    (work_folder / "token").write_text(text)
    (work_folder / "token").chmod(0o600)
    with pytest.raises(UsageError, match="holds no token"):
        credentials.read_token_file(work_folder / "token")


# ---- Python


@pytest.mark.usefixtures("fake_workers", "speed_up")
def test_python_reaches_the_studies_of_a_server(
    running_server: RunningServer, work_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEMPOPT_TOKEN")
    spec = small()
    with tempopt.connect(running_server.url, running_server.token) as server:
        assert server.studies() == []
        study = server.search(spec, progress=False, wait=False)
        assert study.name == "toy"
        assert [entry["study"] for entry in server.studies()] == ["toy"]
        server.pause("toy")
        assert server.resume("toy", add_trials=1, progress=False, wait=False).tickets["search"].requested == 3
        with _agent(running_server.storage, work_folder.parent):
            result = server.search(spec, progress=False)
        assert result.state == "done"
        assert server.load("toy").verdict == result.verdict
        server.stop("toy")
        server.delete("toy")
        with pytest.raises(StudyNotFound):
            server.load("toy")
        assert running_server.token not in repr(server)
    with tempopt.connect(running_server.url) as server, pytest.raises(AccessDenied):
        server.studies()
    with pytest.raises(UsageError, match="tempopt.connect"):
        tempopt.search(spec, storage=running_server.url, wait=False)


@pytest.mark.usefixtures("toy_folder")
@pytest.mark.long
def test_a_program_that_was_given_a_token_trains_as_an_agent_and_keeps_its_checkpoints(
    running_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEMPOPT_TOKEN")
    watcher = Watcher()
    with tempopt.connect(running_server.url, running_server.new_token("submit", "agent")) as server:
        result = server.search(small(), workers=1, observer=watcher)
    assert result.state == "done"
    assert result.cost.checkpoint_seconds > 0
    assert not [note for note in watcher.notes if "checkpoint" in note.lower()]
    assert "TEMPOPT_TOKEN" not in os.environ


@pytest.mark.usefixtures("fake_workers")
def test_who_may_not_work_is_told_so_before_anything_is_asked(
    running_server: RunningServer,
    work_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TEMPOPT_TOKEN", running_server.new_token("submit"))
    _, text, _ = run_command(
        ["search", _spec(work_folder), "--workers", "1"], running_server.url, capsys, code=2
    )
    assert "scope agent" in text
    assert running_server.store.list_studies() == []


@pytest.mark.parametrize("text", ["{", "[]", '{"servers": {"a": 1}}'])
def test_a_file_of_servers_that_is_none_is_said_to_be(text: str, settings: Path) -> None:
    settings.parent.mkdir(parents=True)
    settings.write_text(text)
    with pytest.raises(UsageError, match="log in again"):
        credentials.servers()
