"""A study that brings its code: agents in empty folders train it to the bits of one that is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tempopt.store import Store
from tests.bundle.conftest import Clone
from tests.server.conftest import Served
from tests.server.conftest import served as served
from tests.servers import empty_database
from tests.toy_study import REPOSITORY, SMALL, TOYS, Ended, facts, reports, toy_spec, undisturbed_study

pytestmark = pytest.mark.long

# A part of the module lies in a module of its own, and some of its data in a file beside it.
CODE = {
    "toy_modules.py": (TOYS / "toy_modules.py").read_text(),
    "notes/read me.txt": "what comes with the code",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The study as an agent carries it out that has the module installed."""
    return undisturbed_study(tmp_path_factory.mktemp("installed"), **SMALL)


@pytest.fixture(
    params=[
        pytest.param("sqlite", marks=pytest.mark.nightly),
        "postgresql",
        pytest.param("mariadb", marks=pytest.mark.nightly),
    ]
)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    with empty_database(request.param, tmp_path, "bundle") as url:
        yield url


def environment(**more: str) -> dict[str, str]:
    """Return one in which tempopt is found, and the module of the study nowhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TEMPOPT_")}
    return {**kept, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **more}


def tempopt(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, which is made, to its end."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tempopt", *words]
    return subprocess.run(
        command, cwd=folder, env=environment(**more), capture_output=True, text=True, timeout=900, check=False
    )


@contextmanager
def agent(folder: Path, *words: str, **more: str) -> Iterator[Path]:
    """Have an agent of the pool work in an empty folder meanwhile; yield the file with what it says."""
    folder.mkdir()
    said = folder.with_suffix(".txt")
    with said.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tempopt", "agent", "--pool", *words],
            cwd=folder,
            env=environment(**more),
            stdout=file,
            stderr=file,
        )
        try:
            yield said
        finally:
            process.terminate()
            process.wait(60)


def spec_in(folder: Path, **study: Any) -> str:
    # in the order in which it is searched
    text = yaml.safe_dump(json.loads(json.dumps(toy_spec(**SMALL, **study))), sort_keys=False)
    (folder / "toy.yaml").write_text(text)
    return "toy.yaml"


def check(url: str, installed: Ended) -> None:
    """Compare a study with the one whose code is installed, bit for bit."""
    assert facts(url) == installed.facts and reports(url) == installed.reports
    with Store.open(url, create=False) as store:
        found = store.tickets(store.load_study("toy").id)
    with Store.open(f"sqlite:///{installed.folder / 'tempopt.db'}", create=False) as store:
        known = store.tickets(store.load_study("toy").id)
    # the same source, wherever it lies
    assert {each.code for each in found} == {each.code for each in known}


def test_one_command_trains_from_what_it_would_send(clone: Clone, tmp_path: Path, installed: Ended) -> None:
    folder, url = clone(CODE), f"sqlite:///{tmp_path / 'studies.db'}"
    (tmp_path / "elsewhere").mkdir()
    spec = spec_in(tmp_path / "elsewhere")
    words = ("search", spec, "--with-code", str(folder), "--storage", url, "--workers", "1")
    done = tempopt(tmp_path / "elsewhere", *words)
    assert done.returncode == 0, done.stderr
    assert "Sends the code: 2 files" in done.stdout
    check(url, installed)
    report = (tmp_path / "elsewhere" / "toy.html").read_text()
    with Store.open(url, create=False) as store:
        code = store.load_study("toy").spec["study"]["code"]
    assert (
        code in report and code in tempopt(tmp_path / "elsewhere", "export", "toy", "--storage", url).stdout
    )
    # and it is continued by that command, whatever the study has written
    assert tempopt(tmp_path / "elsewhere", *words).returncode == 0


def test_agents_of_a_database_train_it_in_an_empty_folder(
    clone: Clone, tmp_path: Path, database: str, installed: Ended
) -> None:
    folder = clone(CODE)
    spec = spec_in(folder)
    with Store.open(database):
        pass
    kept = str(tmp_path / "kept")
    with (
        agent(tmp_path / "refusing", "--storage", database) as refusing,
        agent(tmp_path / "accepting", "--storage", database, "--accept-code"),
    ):
        words = ("--with-code", ".", "--pool", "--storage", database, "--checkpoints", kept)
        done = tempopt(folder, "search", spec, *words)
        assert done.returncode == 0, done.stdout + done.stderr
    check(database, installed)
    assert refusing.read_text().count("brings its own code") == 1
    assert list((tmp_path / "accepting" / "tempopt-code").glob("*/toy_modules.py"))
    assert not (tmp_path / "refusing" / "tempopt-code").exists()


def test_agents_of_a_server_train_it_in_an_empty_folder(
    clone: Clone, tmp_path: Path, served: Served, installed: Ended
) -> None:
    folder = clone(CODE)
    token = {"TEMPOPT_TOKEN": served.new_token("agent")}
    with (
        agent(tmp_path / "refusing", "--server", served.url, **token) as refusing,
        agent(tmp_path / "accepting", "--server", served.url, "--accept-code", "code", **token),
    ):
        words = ("search", spec_in(folder), "--with-code", ".", "--storage", served.url)
        done = tempopt(folder, *words, TEMPOPT_TOKEN=served.new_token("submit"))
        assert done.returncode == 0, done.stdout + done.stderr
    check(served.storage, installed)
    assert refusing.read_text().count("brings its own code") == 1
    assert list((tmp_path / "accepting" / "code").glob("*/toy_modules.py"))


@pytest.mark.nightly
def test_agents_of_a_launcher_and_new_interpreters_train_it(
    clone: Clone, tmp_path: Path, installed: Ended
) -> None:
    folder, url = clone(CODE), f"sqlite:///{tmp_path / 'studies.db'}"
    words = ("--with-code", ".", "--storage", url, "--launcher", "local", "--workers", "2")
    done = tempopt(folder, "search", spec_in(folder), *words, TEMPOPT_COLD_WORKERS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    check(url, installed)


def test_more_trials_are_trained_with_the_same_code_elsewhere(clone: Clone, tmp_path: Path) -> None:
    folder, url = clone(CODE), f"sqlite:///{tmp_path / 'studies.db'}"
    words = ("search", spec_in(folder), "--with-code", ".", "--storage", url)
    assert tempopt(folder, *words).returncode == 0
    more = ("resume", "toy", "--storage", url, "--trials", "+1")
    refused = tempopt(tmp_path / "elsewhere", *more)
    assert refused.returncode == 2 and "--accept-code" in refused.stderr
    place = ("--checkpoints", "moved")
    done = tempopt(tmp_path / "elsewhere", *more, "--accept-code", *place)
    assert done.returncode == 0, done.stdout + done.stderr
    # the code moves with the checkpoints
    assert list((tmp_path / "elsewhere" / "moved" / "toy" / "code").glob("*.tar"))
    with Store.open(url, create=False) as store:
        found = store.tickets(store.load_study("toy").id)
    assert len({each.code for each in found}) == 1


@pytest.mark.nightly
def test_a_comparison_and_a_plan_take_it_too(clone: Clone, tmp_path: Path) -> None:
    folder = clone(CODE)
    spec, url = spec_in(folder), f"sqlite:///{tmp_path / 'studies.db'}"
    planned = tempopt(tmp_path / "elsewhere", "plan", f"{folder}/{spec}", "--with-code", str(folder))
    assert planned.returncode == 0, planned.stderr
    sets = ("{}", "{temperature_init: 2}")
    words = ("--with-code", ".", "--storage", url, "--pairs", "2", "--json", "--workers", "1")
    done = tempopt(folder, "compare", spec, *sets, *words)
    assert done.returncode in (0, 3, 4), done.stderr
    assert len(json.loads(done.stdout)["code"]) == 64
