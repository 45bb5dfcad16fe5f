"""How the throughput of trials grows with agents whose trainings are sleep, on a PostgreSQL.

Agents are tempopt's own, each in a process of its own, and are warm when they are let go. A training of
sleep takes two seconds and no CPU, so what is missing from one trial every two seconds and agent is what
asking, reporting and telling take, on however few cores all agents and the database share. Every case is
a study of its own; void unless it ends with exactly the trials that were asked, each begun once.

Where ``study.parallel`` is the number of agents, the decisions of each run rest on all those before it but
so many, and agents have to wait for each other: both are measured, as many and twice as many.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agents import AgentReport, Post
from spent import process_of
from store import SEARCH, SERVERS, database
from talkers import REPORTS, step_of

SECONDS = 2.0
AGENTS = (1, 2, 4, 8, 16)
FOLDER = Path(__file__).parent
NAME = "scaling"


@dataclass(frozen=True, kw_only=True)
class ScalingCase:
    """Agents at work on one study.

    Args:
        agents: How many there are.
        workers: Workers of each.
        trials: Trials of the study.
        parallel: The study's ``parallel``.
        sleep: Seconds that a training takes.
        reports: Reports of a training.
    """

    agents: int
    workers: int = 1
    trials: int
    parallel: int
    sleep: float = SECONDS
    reports: int = 4


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """The outcome of a case.

    Args:
        seconds: From the moment when the agents were let go to the end of the last trial.
        agent_reports: Reports of the agents.
        server: CPU seconds of the database's processes for these agents; None if they cannot be seen.
    """

    seconds: float
    agent_reports: list[AgentReport]
    server: float | None


def spec_of(case: ScalingCase) -> Any:
    """Return the spec of a case's study."""
    from tempopt.spec.study_spec import StudySpec

    study: dict[str, Any] = {"metric": "val_loss", "direction": "minimize", "pruner": "median"}
    # what agents cost each other is asked here, not what a sampler costs
    study |= {"sampler": "tpe", "seeds": {"search": None}}
    study |= {"name": NAME, "trials": case.trials, "parallel": case.parallel}
    data = {"study": study, "model": {"class_path": "package.Model"}, "search": SEARCH}
    data["trainer"] = {"max_steps": step_of(REPORTS)}
    return StudySpec.parse(data, source="the benchmark")


def begin(url: str, case: ScalingCase) -> None:
    """Write a study of search tickets alone."""
    from tempopt.storage.opening import open_store
    from tempopt.storage.optuna_calls import make_study
    from tempopt.verdict.stages import initial_tickets

    spec = spec_of(case)
    with open_store(url) as store:
        make_study(url, name=NAME, direction=spec.study.direction, metric=spec.study.metric)
        study = store.create_study(NAME, spec.to_json(), spec.identity())
        store.add_tickets(study.id, [ticket for ticket in initial_tickets(spec) if ticket.kind == "search"])


def carried_out(url: str, case: ScalingCase, *, server: str | None = None, token: str = "") -> CaseResult:
    """Have a case's agents do its trials.

    Args:
        server: URL of the server that they work for; None: they reach the database.
        token: That they show.
    """
    begin(url, case)
    post = Post(
        url=url,
        study=NAME,
        workers=case.workers,
        sleep=case.sleep,
        reports=case.reports,
        server=server,
        token=token,
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(FOLDER.parent)}
    command = [sys.executable, str(FOLDER / "agents.py"), json.dumps(asdict(post))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    agents = [
        subprocess.Popen(command, env=environment, text=True, **pipes)  # type: ignore[call-overload]
        for _ in range(case.agents)
    ]
    try:
        assert all(agent.stdout.readline() == "warm\n" for agent in agents), "void: an agent does not start"
        server, start_time = server_seconds(url), time.monotonic()
        let_go(agents)
        agent_reports = [AgentReport(**json.loads(agent.stdout.readline())) for agent in agents]
        cpu_after = server_seconds(url)
        let_go(agents)
        assert not any(agent.wait() for agent in agents), "void: an agent failed"
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()
    check(url, case, agent_reports)
    last = max(moment for agent_report in agent_reports for moment in agent_report.finished)
    server_cpu = None if server is None or cpu_after is None else cpu_after - server
    return CaseResult(seconds=last - start_time, agent_reports=agent_reports, server=server_cpu)


def let_go(agents: list[Any]) -> None:
    """Have agents that wait for a line go on."""
    for agent in agents:
        agent.stdin.write("\n")
        agent.stdin.flush()


def server_seconds(url: str) -> float | None:
    """Return the CPU seconds of the server's processes that serve this database; None: they are elsewhere."""
    from sqlalchemy import create_engine, text

    if not url.startswith("postgresql"):
        return None
    engine = create_engine(url)
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with engine.connect() as connection:
        serving = [process_of(pid) for pid in connection.scalars(text(query))]
    engine.dispose()
    return None if None in serving else sum(process.seconds for process in serving if process is not None)


def check(url: str, case: ScalingCase, agent_reports: list[AgentReport]) -> None:
    """See that there are exactly the trials that were asked, each begun once and told by one agent."""
    import optuna

    from tempopt.storage.opening import open_store

    trials = optuna.load_study(study_name=NAME, storage=url).get_trials(deepcopy=False)
    assert len(trials) == case.trials, f"void: {len(trials)} trials, and {case.trials} were asked"
    assert all(trial.state == optuna.trial.TrialState.COMPLETE for trial in trials), "void: not all complete"
    with open_store(url, create=False) as store:
        tickets = store.tickets(store.load_study(NAME).id, ["search"])
    assert {ticket.attempt for ticket in tickets} == {1}, "void: a trial was begun twice"
    num_ended = sum(len(agent_report.finished) for agent_report in agent_reports)
    assert num_ended == case.trials, f"void: the agents have told the end of {num_ended} trials"


def print_sleeping(backend: str, max_agents: int, trials: int) -> None:
    """Print the throughput of agents whose trainings are sleep."""
    print(f"\nTrainings of {SECONDS:g} s of sleep, {trials} an agent:\n")
    heads = ["agents", "parallel", "trials a second", "of ideal", "agents' CPU ms a trial", "server's"]
    print("| " + " | ".join([*heads, "transactions a trial"]) + " |\n|" + "---|" * 7)
    for times in (2, 1):
        for agents in (count for count in AGENTS if count <= max_agents):
            case = ScalingCase(agents=agents, trials=trials * agents, parallel=times * agents)
            with database(backend) as url:
                run_result = carried_out(url, case)
            rate = case.trials / run_result.seconds
            cpu_times = [
                sum(agent_report.cpu for agent_report in run_result.agent_reports),
                run_result.server,
            ]
            cpu = [
                "" if cpu_time is None else f"{1000 * cpu_time / case.trials:.0f}" for cpu_time in cpu_times
            ]
            transactions = (
                sum(agent_report.transactions for agent_report in run_result.agent_reports) / case.trials
            )
            cells = [f"{agents}", f"{case.parallel}", f"{rate:.2f}", f"{100 * rate * SECONDS / agents:.1f} %"]
            print("| " + " | ".join([*cells, *cpu, f"{transactions:.1f}"]) + " |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", help="a PostgreSQL, with a user who may make databases")
    parser.add_argument("--backend", choices=["sqlite", *SERVERS], default="postgresql")
    parser.add_argument("--most", type=int, default=AGENTS[-1], help="no more agents than that")
    parser.add_argument("--trials", type=int, default=20, help="trials for each agent")
    arguments = parser.parse_args()
    if arguments.storage is not None:
        SERVERS["postgresql"] = arguments.storage
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, ", end="")
    print("load {:.2f} {:.2f} {:.2f}".format(*os.getloadavg()), flush=True)
    print_sleeping(arguments.backend, arguments.most, arguments.trials)
    print("\nload {:.2f} {:.2f} {:.2f}".format(*os.getloadavg()))


if __name__ == "__main__":
    main()
