"""What agents cost that work for a server, beside agents on the database: requests, bytes, CPU, throughput.

Agents are tempopt's own, each in a process of its own (agents.py); a training is sleep, and takes no CPU.
Every case is a study of its own; void unless it ends with exactly the trials asked, each begun once.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scaling import CaseResult, ScalingCase, carried_out
from spent import process_of
from store import SERVERS, database

AGENTS = (1, 4, 16, 64)
SECONDS = 2.0
_LONG = 16
FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A server that runs.

    Args:
        url: Of the server.
        token: That agents show.
        process: Its process.
    """

    url: str
    token: str
    process: subprocess.Popen[str]

    @property
    def seconds(self) -> float:
        """CPU seconds of the server so far."""
        server_process = process_of(self.process.pid)
        assert server_process is not None, "void: the server has ended"
        return server_process.seconds


@contextmanager
def run_server(storage: str) -> Iterator[Serving]:
    """Yield a server on a database, in a process of its own."""
    from tempopt.server.tokens import create_token
    from tempopt.storage.opening import open_store

    with open_store(storage) as store:
        token, _ = create_token(store, name="benchmark", scopes=["agent"])
    with tempfile.TemporaryDirectory() as folder:
        words = ["serve", "--storage", storage, "--checkpoints", folder, "--port", "0"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(FOLDER.parent)}
        process = subprocess.Popen(
            [sys.executable, "-m", "tempopt", *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert "serves" in line, f"void: {line}"
            yield Serving(url=line.split()[-1], token=token, process=process)
        finally:
            process.kill()
            process.communicate()


@dataclass(frozen=True, kw_only=True)
class ServingCost:
    """The outcome of a case, in one of the two ways.

    Args:
        case_result: Result of the case, with the reports of the agents.
        server: CPU seconds of the tempopt server; None without one.
    """

    case_result: CaseResult
    server: float | None


def cost(backend: str, case: ScalingCase, *, has_server: bool) -> ServingCost:
    """Carry a case out, behind a server or on the database."""
    with database(backend) as url:
        if not has_server:
            return ServingCost(case_result=carried_out(url, case), server=None)
        with run_server(url) as server:
            cpu_before = server.seconds
            run_result = carried_out(url, case, server=server.url, token=server.token)
            return ServingCost(case_result=run_result, server=server.seconds - cpu_before)


def row(*cells: object) -> None:
    """Print a line of a table."""
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def long_trials(backend: str, seconds: float, trials: int) -> None:
    """Print what a trial of a minute says to a server."""
    print(f"\nTrials of {seconds:g} s with 20 reports, {trials} on each of {_LONG} agents:\n")
    row(
        "way",
        "requests a trial",
        "KB sent",
        "KB received",
        "transactions a trial",
        "agents' CPU ms",
        "server's",
    )
    row(*["---"] * 7)
    for has_server in (False, True):
        case = ScalingCase(agents=_LONG, trials=_LONG * trials, parallel=2 * _LONG, sleep=seconds, reports=20)
        run_cost = cost(backend, case, has_server=has_server)
        agent_reports, count = run_cost.case_result.agent_reports, case.trials
        row(
            "server" if has_server else "database",
            f"{sum(agent_report.requests for agent_report in agent_reports) / count:.1f}",
            f"{sum(agent_report.sent for agent_report in agent_reports) / count / 1e3:.1f}",
            f"{sum(agent_report.received for agent_report in agent_reports) / count / 1e3:.1f}",
            f"{sum(agent_report.transactions for agent_report in agent_reports) / count:.1f}",
            f"{1e3 * sum(agent_report.cpu for agent_report in agent_reports) / count:.0f}",
            "" if run_cost.server is None else f"{1e3 * run_cost.server / count:.0f}",
        )


def many_agents(backend: str, max_agents: int, trials: int) -> None:
    """Print the throughput of many agents with short trials."""
    print(f"\nTrials of {SECONDS:g} s with 4 reports, {trials} an agent, parallel twice the agents:\n")
    row(
        "agents",
        "way",
        "trials a second",
        "of ideal",
        "idle ms",
        "requests a trial",
        "agents' CPU ms",
        "server's",
    )
    row(*["---"] * 8)
    for agents in (count for count in AGENTS if count <= max_agents):
        for has_server in (False, True):
            case = ScalingCase(agents=agents, trials=trials * agents, parallel=2 * agents)
            run_cost = cost(backend, case, has_server=has_server)
            agent_reports, count = run_cost.case_result.agent_reports, case.trials
            rate = count / run_cost.case_result.seconds
            idle = [idle_seconds for agent_report in agent_reports for idle_seconds in agent_report.idle]
            row(
                agents,
                "server" if has_server else "database",
                f"{rate:.2f}",
                f"{100 * rate * SECONDS / agents:.1f} %",
                f"{1e3 * statistics.median(idle):.0f}" if idle else "",
                f"{sum(agent_report.requests for agent_report in agent_reports) / count:.1f}",
                f"{1e3 * sum(agent_report.cpu for agent_report in agent_reports) / count:.0f}",
                "" if run_cost.server is None else f"{1e3 * run_cost.server / count:.0f}",
            )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", help="a PostgreSQL, with a user who may make databases")
    parser.add_argument("--backend", choices=["sqlite", *SERVERS], default="postgresql")
    parser.add_argument("--table", choices=["long", "many"], action="append")
    parser.add_argument("--most", type=int, default=AGENTS[-1], help="no more agents than that")
    parser.add_argument("--trials", type=int, default=8, help="trials an agent")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of a long trial")
    arguments = parser.parse_args()
    if arguments.storage is not None:
        SERVERS["postgresql"] = arguments.storage
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, ", end="")
    print("load {:.2f} {:.2f} {:.2f}".format(*os.getloadavg()), flush=True)
    tables = arguments.table or ["long", "many"]
    if "long" in tables:
        long_trials(arguments.backend, arguments.seconds, 1)
    if "many" in tables:
        many_agents(arguments.backend, arguments.most, arguments.trials)
    print("\nload {:.2f} {:.2f} {:.2f}".format(*os.getloadavg()))


if __name__ == "__main__":
    main()
