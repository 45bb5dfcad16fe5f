"""A real Ray of two nodes that ask for a token: who has it trains, and who has not is told what to do."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from tempopt.errors import UsageError
from tempopt.launch.launcher import Launcher, Task
from tempopt.launch.registry import make_launcher
from tempopt.launch.study_launch import PROGRAM
from tests.cluster import ray_cluster, studies
from tests.cluster.crew import wait_until
from tests.cluster.ray_cluster import CPUS, RayCluster
from tests.servers import descendants, find_or_start

_MISSING = ray_cluster.why_not()
pytestmark = [pytest.mark.service, pytest.mark.skipif(bool(_MISSING), reason=_MISSING), ray_cluster.PATIENTLY]

TOKEN = secrets.token_hex(32)
_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS")


def _write_token(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """Two nodes that ask for the token, as a file that an editor has ended with a new line gives it."""
    token = _write_token(tmp_path_factory.mktemp("nodes") / "token", f"{TOKEN}\n")
    with ray_cluster.run_cluster(token_file=token, with_clients=True) as running_cluster:
        yield running_cluster


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of a user who has no token yet and whose shell says nothing of Ray."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def url() -> Iterator[str]:
    server, why_not = find_or_start("postgresql")
    if server is None:
        pytest.skip(why_not)
    name = f"ray_{uuid.uuid4().hex}"
    yield server.create_database(name)
    server.drop_database(name)


@pytest.fixture
def task(tmp_path: Path, url: str) -> Task:
    environment = {name: studies.environment()[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS")}
    return Task(
        program=PROGRAM,
        study=studies.NAME,
        storage=url,
        spec=studies.stored_spec(studies.spec(2, steps=8)),
        options=("--checkpoints", str(tmp_path / "runs")),
        cpus=CPUS,
        folder=str(tmp_path),
        environment=environment,
    )


def _address(cluster: RayCluster, address_kind: str) -> str:
    return {"auto": "auto", "host": cluster.address, "client": cluster.client_address}[address_kind]


def _states(launcher: Launcher, ids: list[str]) -> list[str]:
    return [job.state for job in launcher.jobs(ids)]


def _everything_in(url: str) -> str:
    engine = sqlalchemy.create_engine(url)
    tables = sqlalchemy.MetaData()
    tables.reflect(engine)
    with engine.connect() as connection:
        row_lists = [list(connection.execute(table.select())) for table in tables.tables.values()]
    engine.dispose()
    assert any(row_lists)
    return repr(row_lists)


def _command_lines() -> bytes:
    command_files = [Path(f"/proc/{pid}/cmdline") for pid in descendants(os.getpid())]
    return b"".join(path.read_bytes() for path in command_files if path.exists())


@pytest.mark.long
@pytest.mark.parametrize("address_kind", ["host", pytest.param("client", marks=pytest.mark.nightly)])
def test_a_search_ends_with_its_verdict_and_the_token_is_written_down_nowhere(
    cluster: RayCluster, url: str, tmp_path: Path, address_kind: str
) -> None:
    token = _write_token(tmp_path / "token", f"{TOKEN}\n")
    ray = [
        "--launcher",
        "ray",
        "--address",
        _address(cluster, address_kind),
        "--launch",
        f"token_file={token}",
    ]
    store = ["--storage", url]

    def run_tempopt(*words: str) -> str:
        process = subprocess.run(
            studies.tempopt(*words, *store),
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=studies.environment(),
        )
        assert process.returncode == 0, process.stderr
        return process.stdout + process.stderr

    spec = studies.write_spec(tmp_path, studies.spec(8))
    output = run_tempopt(
        "search", spec, *ray, "--workers", "4", "--checkpoints", str(tmp_path / "runs"), "--detach"
    )
    wait_until(lambda: any(row.state == "running" for row in studies.read_tickets(url)), "an agent at work")
    lines = _command_lines()
    assert b"raylet" in lines and studies.NAME.encode() in _everything_in(url).encode()
    show_output = run_tempopt("show", studies.NAME, *ray)
    assert "running" in show_output
    wait_until(lambda: studies.state(url) == "done", "the verdict")
    output += show_output + run_tempopt("show", studies.NAME, "--json")
    assert TOKEN not in output and TOKEN.encode() not in lines
    rows_text = _everything_in(url)
    assert TOKEN not in rows_text and str(token) not in rows_text
    files = [path for path in Path(os.environ["RAY_TMPDIR"], "ray").rglob("*") if path.is_file()]
    files += [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert any("logs" in path.parts for path in files)
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]


@pytest.mark.parametrize("address_kind", ["auto", "host", "client"])
@pytest.mark.parametrize("source", ["token_file", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "home"])
def test_a_token_is_enough_to_start_and_stop_agents_without_an_auth_mode(
    cluster: RayCluster,
    task: Task,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    address_kind: str,
    source: str,
) -> None:
    import ray

    options = {"address": _address(cluster, address_kind)}
    token_path = _write_token(
        home / ".ray" / "auth_token" if source == "home" else tmp_path / "token", f"{TOKEN}\n"
    )
    if source == "token_file":
        options[source] = str(token_path)
        # what else is there is not what was asked for
        monkeypatch.setenv("RAY_AUTH_TOKEN", "another")
    elif source != "home":
        monkeypatch.setenv(source, TOKEN if source == "RAY_AUTH_TOKEN" else str(token_path))
    values_before = {name: os.environ.get(name) for name in _VARIABLES}
    launcher: Any = make_launcher("ray", options)
    try:
        ids = launcher.start([task])
        wait_until(lambda: _states(launcher, ids) == ["running"], "an agent at work")
        launcher.cancel(ids)
        assert _states(launcher, ids) == ["done"]
        assert TOKEN not in json.dumps(launcher.options) and "token_file" not in launcher.options
        assert TOKEN not in ray.get_runtime_context().get_runtime_env_string()
    finally:
        launcher.close()
    assert {name: os.environ.get(name) for name in _VARIABLES} == values_before


@pytest.mark.parametrize("address_kind", ["auto", "host", "client"])
def test_without_a_token_one_is_told_what_to_do(cluster: RayCluster, address_kind: str) -> None:
    address = _address(cluster, address_kind)
    with pytest.raises(UsageError) as error:
        make_launcher("ray", {"address": address})
    message = str(error.value)
    assert f"--launch address={address}: this Ray cluster asks for a token, and there is none here" in message
    for word in ("token_file=FILE", "RAY_AUTH_TOKEN_PATH=FILE", "ray get-auth-token --generate"):
        assert word in message


@pytest.mark.parametrize("address_kind", ["auto", "host", "client"])
def test_a_wrong_token_is_refused_and_not_repeated(
    cluster: RayCluster, tmp_path: Path, address_kind: str
) -> None:
    wrong_token = secrets.token_hex(32)
    file = _write_token(tmp_path / "wrong", wrong_token)
    with pytest.raises(UsageError, match="refuses the one of --launch token_file=") as error:
        make_launcher("ray", {"address": _address(cluster, address_kind), "token_file": str(file)})
    assert str(file) in str(error.value) and wrong_token not in str(error.value)


def test_a_mode_that_shows_no_token_is_named(
    cluster: RayCluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_token(home / ".ray" / "auth_token", TOKEN)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(UsageError, match="asks for a token, and RAY_AUTH_MODE=disabled is set"):
        make_launcher("ray", {"address": cluster.address})


def test_jobs_that_cannot_be_asked_after_without_a_token_say_so(cluster: RayCluster) -> None:
    from datetime import UTC, datetime

    from tempopt.launch.job_status import LauncherSelection, query_job_status
    from tempopt.storage.rows import JobRow

    row = JobRow(
        id="chaos-1:0", launcher="ray", options={"address": cluster.address}, created=datetime.now(UTC)
    )
    (job,) = query_job_status([row], LauncherSelection(launcher="ray", options={"address": cluster.address}))
    assert job.state == "unknown"
    assert re.search("asks for a token, and there is none here: .*token_file", job.message)
