"""A coding agent's whole way behind a server: real processes of server, agent and tools, over stdio."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tempopt.report import study_result
from tempopt.report.study_lines import screen_lines
from tempopt.server.tokens import create_token
from tempopt.storage.opening import open_store
from tests.cluster.http_servers import HttpServers
from tests.cluster.studies import environment, tempopt
from tests.report.full_text import full_lines
from tests.server.mcp.asker import Asker, run, session
from tests.toy_study import REPOSITORY, SMALL, TOYS, toy_spec

pytestmark = pytest.mark.long

PREFIX = "coder-"


MODULES = {"PYTHONPATH": f"{REPOSITORY}:{TOYS}"}
"""Environment in which what the studies train is found."""


@dataclass(frozen=True)
class Team:
    """A server on a database, with an agent of every study.

    Args:
        folder: Where the server's files lie.
        desk: An empty folder, where a coding agent works.
        url: Of the server.
        storage: URL of its database.
    """

    folder: Path
    desk: Path
    url: str
    storage: str

    def token(self, *scopes: str) -> dict[str, str]:
        """Return the environment in which a coding agent's token is found: a file, as people give it."""
        with open_store(self.storage) as store:
            text, _ = create_token(
                store, name=f"coder-{'-'.join(scopes)}", user="coder", scopes=scopes, studies=PREFIX
            )
        file = self.folder / f"{'-'.join(scopes)}.token"
        file.touch(mode=0o600)
        file.write_text(text)
        return {"TEMPOPT_TOKEN_FILE": str(file)}

    def begun_runs(self) -> int:
        """Return how many runs were begun so far, of all studies."""
        with open_store(self.storage) as store:
            rows = [row for entry in store.list_studies() for row in store.tickets(entry.study.id)]
        return sum(row.attempt > 0 for row in rows)


@contextmanager
def _agent_of_every_study(folder: Path, servers: HttpServers) -> Iterator[None]:
    folder.mkdir()
    log_path = folder.with_suffix(".txt")
    server_args = ("--server", servers.url, "--token-file", str(servers.token_file))
    with log_path.open("wb") as output:
        process = subprocess.Popen(
            tempopt("agent", "--any", *server_args),
            cwd=folder,
            env=environment(**MODULES),
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
    with open_store(storage):
        pass
    servers = HttpServers(folder, storage, 1)
    try:
        with _agent_of_every_study(agent, servers):
            yield Team(folder, desk, servers.url, storage)
    finally:
        servers.close()


def _spec(name: str) -> dict[str, Any]:
    return toy_spec(name=name, **SMALL)


async def _search_to_its_verdict(coder: Asker, team: Team) -> None:
    spec = _spec("coder-toy")
    plan_reply = await coder.ask("plan", spec=spec)
    assert plan_reply["fits"] and plan_reply["gpu_hours_at_most"] > 0
    assert plan_reply["budget"]["user"] == "coder"
    search_reply = await coder.ask("search", spec=spec)
    assert search_reply["state"] == "running"
    study_data = await coder.until_done("coder-toy")
    assert study_data["runs_done"] > 0
    verdict_reply = await coder.ask("verdict", study="coder-toy")
    with open_store(team.storage) as store:
        result = study_result.load(store, "coder-toy")
        assert store.load_study("coder-toy").owner == "coder"
    assert verdict_reply["done"] and verdict_reply["words"] == full_lines(result)
    assert study_data["words"] == screen_lines(result)
    assert result.verdict is not None
    assert verdict_reply["answer"] == ("gain_shown" if result.verdict.primary.significant else "not_shown")
    text = (await coder.ask("export", study="coder-toy"))["text"]
    assert text == result.export()


async def _compare(coder: Asker, team: Team) -> None:
    sets = ["{}", "{temperature_init: 2}"]
    await coder.ask("compare", spec=_spec("coder-toy"), sets=sets, pairs=2, name="coder-sets")
    await coder.until_done("coder-sets")
    verdict_reply = await coder.ask("verdict", study="coder-sets")
    assert verdict_reply["details"]["comparison"]["reference"]["name"] == "A"
    assert verdict_reply["answer"] in ("gain_shown", "not_shown")


async def _nothing_is_left(coder: Asker, team: Team) -> None:
    """See that another study is refused within a budget that is spent, and none of its runs begun."""
    runs_before = team.begun_runs()
    for tool, arguments in (("search", {}), ("compare", {"sets": ["{}", "{temperature_init: 3}"]})):
        message = await coder.refusal(tool, spec=_spec("coder-more"), **arguments)
        assert "would exceed the budget of coder" in message
        assert "GPU-hours are left in this budget" in message
    list_reply = await coder.ask("list")
    assert [entry["study"] for entry in list_reply["studies"]] == ["coder-toy", "coder-sets"]
    assert [limit["remaining"] for limit in list_reply["budget"]["limits"]] == [0]
    assert team.begun_runs() == runs_before


def test_a_coding_agent_comes_to_verdicts_behind_a_server_until_its_budget_is_spent(team: Team) -> None:
    session_args = {"folder": team.desk, **MODULES}

    async def codes() -> None:
        async with session("--storage", team.url, **session_args, **team.token("submit", "view")) as coder:
            assert (await coder.ask("list"))["studies"] == []
            await _search_to_its_verdict(coder, team)
            await _compare(coder, team)

    async def asks_for_more() -> None:
        budget_args = ("--gpu-hours", "1e-6", "--storage", team.url)
        async with session(*budget_args, **session_args, **team.token("submit", "view")) as coder:
            await _nothing_is_left(coder, team)

    async def looks() -> None:
        async with session("--storage", team.url, **session_args, **team.token("view")) as viewer:
            assert (await viewer.ask("verdict", study="coder-toy"))["done"]
            message = await viewer.refusal("search", spec=_spec("coder-new"))
            assert (
                "has the scopes view" in message
                and "takes the scope submit" in message
                and "\n" not in message
            )

    run(codes)
    run(asks_for_more)
    run(looks)
