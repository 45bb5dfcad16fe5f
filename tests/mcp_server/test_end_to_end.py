"""A coding agent's whole way behind a server: real processes of server, agent and tools, over stdio."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tempopt.results import study_result
from tempopt.results.decision import screen_lines
from tempopt.server.tokens import made
from tempopt.store import Store
from tests.cluster.http_servers import HttpServers
from tests.cluster.studies import environment, tempopt
from tests.mcp_server.asker import Asker, run, session
from tests.results.full_text import full_lines
from tests.toy_study import REPOSITORY, SMALL, TOYS, toy_spec

pytestmark = pytest.mark.long

PREFIX = "coder-"
# What a study trains: importable wherever it runs.
CODE = {
    "toy_modules.py": (TOYS / "toy_modules.py").read_text(),
    "paced_modules.py": (REPOSITORY / "tests" / "cluster" / "paced_modules.py").read_text(),
}


def installed(folder: Path) -> dict[str, str]:
    """Return the environment in which what the studies train is found, written into a folder."""
    folder.mkdir(exist_ok=True)
    for name, text in CODE.items():
        (folder / name).write_text(text)
    return {"PYTHONPATH": f"{REPOSITORY}:{folder}"}


@dataclass(frozen=True)
class Team:
    """A server on a database, with an agent of every study.

    Args:
        folder: Where the server's files lie.
        desk: An empty folder, where a coding agent works.
        modules: Environment in which what its studies train is found.
        url: Of the server.
        storage: URL of its database.
        agent: Folder in which the agent works.
    """

    folder: Path
    desk: Path
    modules: dict[str, str]
    url: str
    storage: str
    agent: Path

    @property
    def pace(self) -> Path:
        """File with the seconds that each step of paced trainings takes more."""
        return self.agent.parent / "pace"

    def token(self, *scopes: str) -> dict[str, str]:
        """Return the environment in which a coding agent's token is found: a file, as people give it."""
        with Store.open(self.storage) as store:
            text, _ = made(
                store, name=f"coder-{'-'.join(scopes)}", user="coder", scopes=scopes, studies=PREFIX
            )
        file = self.folder / f"{'-'.join(scopes)}.token"
        file.touch(mode=0o600)
        file.write_text(text)
        return {"TEMPOPT_TOKEN_FILE": str(file)}

    def begun_runs(self) -> int:
        """Return how many runs were begun so far, of all studies."""
        with Store.open(self.storage) as store:
            rows = [row for each in store.list_studies() for row in store.tickets(each.study.id)]
        return sum(each.attempt > 0 for each in rows)


@contextmanager
def _agent_of_every_study(folder: Path, servers: HttpServers, modules: dict[str, str]) -> Iterator[None]:
    folder.mkdir()
    said = folder.with_suffix(".txt")
    where = ("--server", servers.url, "--token-file", str(servers.token_file))
    with said.open("wb") as output:
        process = subprocess.Popen(
            tempopt("agent", "--any", *where),
            cwd=folder,
            env=environment(**modules, PACE=str(folder.parent / "pace")),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(120)


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    folder, desk, agent = tmp_path / "server", tmp_path / "desk", tmp_path / "agent"
    folder.mkdir()
    desk.mkdir()
    storage = f"sqlite:///{folder / 'studies.db'}"
    with Store.open(storage):
        pass
    servers = HttpServers(folder, storage, 1)
    try:
        modules = installed(tmp_path / "code")
        with _agent_of_every_study(agent, servers, modules):
            yield Team(folder, desk, modules, servers.url, storage, agent)
    finally:
        servers.close()


def _spec(name: str) -> dict[str, Any]:
    return toy_spec(name=name, **SMALL)


def _paced(name: str) -> dict[str, Any]:
    spec = _spec(name)
    return {**spec, "model": {**spec["model"], "class_path": "paced_modules.Paced"}}


async def _search_to_its_verdict(coder: Asker, team: Team) -> None:
    spec = _spec("coder-toy")
    planned = await coder.ask("plan", spec=spec)
    assert planned["fits"] and planned["gpu_hours_at_most"] > 0
    assert planned["budget"]["user"] == "coder"
    begun = await coder.ask("search", spec=spec)
    assert begun["state"] == "running"
    shown = await coder.until_done("coder-toy")
    assert shown["runs_done"] > 0
    found = await coder.ask("verdict", study="coder-toy")
    with Store.open(team.storage) as store:
        result = study_result.load(store, "coder-toy")
        assert store.load_study("coder-toy").owner == "coder"
    assert found["done"] and found["words"] == full_lines(result)
    assert shown["words"] == screen_lines(result)
    assert result.verdict is not None
    assert found["answer"] == ("gain_shown" if result.verdict.total.significant else "not_shown")
    text = (await coder.ask("export", study="coder-toy"))["text"]
    assert text == result.export()


async def _compare(coder: Asker, team: Team) -> None:
    sets = ["{}", "{temperature_init: 2}"]
    await coder.ask("compare", spec=_spec("coder-toy"), sets=sets, pairs=2, name="coder-sets")
    await coder.until_done("coder-sets")
    found = await coder.ask("verdict", study="coder-sets")
    assert found["details"]["comparison"]["reference"]["name"] == "A"
    assert found["answer"] in ("gain_shown", "not_shown")


async def _nothing_is_left(coder: Asker, team: Team) -> None:
    """See that another study is refused within a budget that is spent, and none of its runs begun."""
    before = team.begun_runs()
    for tool, more in (("search", {}), ("compare", {"sets": ["{}", "{temperature_init: 3}"]})):
        told = await coder.refused(tool, spec=_spec("coder-more"), **more)
        assert "would exceed the budget of coder" in told
        assert "GPU-hours are left in this budget" in told
    listed = await coder.ask("list")
    assert [each["study"] for each in listed["studies"]] == ["coder-toy", "coder-sets"]
    assert [each["left"] for each in listed["budget"]["limits"]] == [0]
    assert team.begun_runs() == before


def test_a_coding_agent_comes_to_verdicts_behind_a_server_until_its_budget_is_spent(team: Team) -> None:
    where = {"folder": team.desk, **team.modules}

    async def codes() -> None:
        async with session("--storage", team.url, **where, **team.token("submit", "view")) as coder:
            assert (await coder.ask("list"))["studies"] == []
            await _search_to_its_verdict(coder, team)
            await _compare(coder, team)

    async def asks_for_more() -> None:
        spent = ("--gpu-hours", "1e-6", "--storage", team.url)
        async with session(*spent, **where, **team.token("submit", "view")) as coder:
            await _nothing_is_left(coder, team)

    async def looks() -> None:
        async with session("--storage", team.url, **where, **team.token("view")) as viewer:
            assert (await viewer.ask("verdict", study="coder-toy"))["done"]
            told = await viewer.refused("search", spec=_spec("coder-new"))
            assert "may view" in told and "takes the scope submit" in told and "\n" not in told

    run(codes)
    run(asks_for_more)
    run(looks)


def test_a_budget_that_is_spent_pauses_a_study_until_there_is_more(team: Team) -> None:
    team.pace.write_text("0.3")
    where = {"folder": team.desk, **team.modules, **team.token("submit", "view")}
    given: dict[str, Any] = {"spec": _paced("coder-paced")}

    async def begins() -> None:
        async with session("--gpu-hours", "5", "--storage", team.url, **where) as coder:
            await coder.ask("search", **given)

    async def is_paused() -> None:
        # what was begun is trained without the session that has begun it
        async with session("--gpu-hours", "1e-4", "--storage", team.url, **where) as coder:
            paused = await coder.until("coder-paced", "paused")
            assert any("GPU-hours are left in this budget" in each for each in paused["troubles"])
            before = team.begun_runs()
            told = await coder.refused("search", **given)
            assert '"coder-paced" cannot go on within the budget of coder' in told
            await asyncio.sleep(5)
            assert team.begun_runs() == before and paused["runs_running"] == 0

    async def goes_on() -> None:
        async with session("--gpu-hours", "5", "--storage", team.url, **where) as coder:
            team.pace.write_text("0")
            await coder.ask("search", **given)
            await coder.until_done("coder-paced")
            assert (await coder.ask("verdict", study="coder-paced"))["answer"] in ("gain_shown", "not_shown")

    run(begins)
    run(is_paused)
    run(goes_on)


@pytest.mark.nightly
def test_on_a_database_this_machine_trains(tmp_path: Path) -> None:
    desk = tmp_path / "desk"
    desk.mkdir()
    given: dict[str, Any] = {"spec": _spec("toy")}

    async def codes() -> None:
        async with session("--workers", "1", folder=desk, **installed(tmp_path / "code")) as coder:
            await coder.ask("search", **given)
            await coder.until_done("toy")
            assert (await coder.ask("search", **given))["state"] == "done"

    run(codes)
