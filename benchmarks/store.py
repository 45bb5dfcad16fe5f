"""What a trial costs the database and the agent: plain Optuna with its RDBStorage against tempopt, same work.

A trial has 6 parameters and 20 reports, a pruning decision after each of them, TPE and the median pruner.
Plain Optuna asks, reports, decides and tells; tempopt's own agent does it with workers that only talk, on a
clock that is simulated, since what an agent writes together depends on how long a trial takes. Every case
has a database and a process of its own, and is void unless Optuna reads back every trial, value and report.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from talkers import REPORTS, Talker, TalkerWorld, parameters, step_of, value_of

SERVERS = {
    "postgresql": "postgresql+psycopg://postgres@127.0.0.1:5432/test",
    "mariadb": "mysql+pymysql://root@127.0.0.1:3306/test",
}
NAME = "benchmark"
SEARCH: dict[str, Any] = {
    "schedule": {"choices": ["constant", "linear", "cosine", "exponential"]},
    "temperature_init": {"low": 0.25, "high": 4.0, "log": True},
    "temperature_final": {"low": 0.25, "high": 4.0, "log": True},
    "layer_pattern": {"choices": ["uniform", "linear", "u", "exp"]},
    "layer_ratio": {"low": 0.5, "high": 2.0, "log": True},
    "lr": {"low": 1e-4, "high": 1e-1, "log": True},
}


@dataclass(frozen=True, kw_only=True)
class StoreCase:
    """One measurement.

    Args:
        side: ``optuna`` or ``tempopt``.
        backend: ``sqlite``, ``postgresql`` or ``mariadb``.
        before: Finished trials that the study has already.
        running: Trials in progress at a time.
        trials: Trials that are measured.
        seconds: Length of a trial; tempopt's agent puts together what happens within some seconds.
    """

    side: str
    backend: str
    before: int
    running: int
    trials: int
    seconds: float


# ---- what is counted


class Counts:
    """Transactions and statements of every engine in this process, and CPU seconds."""

    def __init__(self) -> None:
        from sqlalchemy import Engine, event

        self.transactions = self.statements = 0
        event.listen(Engine, "commit", self._end)
        event.listen(Engine, "rollback", self._end)
        event.listen(Engine, "before_cursor_execute", self._execute)
        self._cpu = 0.0

    def _end(self, connection: Any) -> None:
        self.transactions += 1

    def _execute(self, connection: Any, cursor: Any, statement: str, *args: Any) -> None:
        # SQLite's driver begins by itself, unseen, where it is not told to
        self.statements += not statement.startswith("BEGIN")

    def begin(self) -> None:
        """Count from here on."""
        self.transactions = self.statements = 0
        self._cpu = time.process_time()

    def end(self, trials: int) -> dict[str, float]:
        """Return what was counted, for each trial."""
        return {
            "transactions": self.transactions / trials,
            "statements": self.statements / trials,
            "cpu_ms": 1000 * (time.process_time() - self._cpu) / trials,
        }


# ---- databases and what is in them


@contextlib.contextmanager
def database(backend: str) -> Iterator[str]:
    """Yield the URL of an empty database, which is removed afterwards."""
    from sqlalchemy import create_engine, make_url, text

    with tempfile.TemporaryDirectory() as folder:
        if backend == "sqlite":
            yield f"sqlite:///{folder}/store.db"
            return
        server, name = SERVERS[backend], f"tempopt_benchmark_{os.getpid()}"
        engine = create_engine(server, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        try:
            yield make_url(server).set(database=name).render_as_string(hide_password=False)
        finally:
            force = " WITH (FORCE)" if backend == "postgresql" else ""
            with engine.connect() as connection:
                connection.execute(text(f"DROP DATABASE {name}{force}"))


def fill(url: str, num_before: int, space: dict[str, Any]) -> dict[int, int]:
    """Write finished trials into Optuna's tables, in bulk, and return their keys by number."""
    from datetime import datetime

    from optuna.distributions import distribution_to_json
    from optuna.storages._rdb import models
    from sqlalchemy import create_engine, insert, select

    engine = create_engine(url)
    trials = models.TrialModel.__table__
    moment = datetime(2026, 1, 1)
    with engine.begin() as connection:
        study_id = connection.scalar(select(models.StudyModel.study_id))
        rows = [
            {
                "number": number,
                "study_id": study_id,
                "state": "COMPLETE",
                "datetime_start": moment,
                "datetime_complete": moment,
            }
            for number in range(num_before)
        ]
        connection.execute(insert(trials), rows)
        ids = dict(connection.execute(select(trials.c.number, trials.c.trial_id)).all())
        params, values, reports = [], [], []
        for number, trial_id in ids.items():
            for name, value in parameters(number, space).items():
                params.append(
                    {
                        "trial_id": trial_id,
                        "param_name": name,
                        "param_value": space[name].to_internal_repr(value),
                        "distribution_json": distribution_to_json(space[name]),
                    }
                )
            last = value_of(number, REPORTS)
            values.append({"trial_id": trial_id, "objective": 0, "value": last, "value_type": "FINITE"})
            for report in range(1, REPORTS + 1):
                reports.append(
                    {
                        "trial_id": trial_id,
                        "step": step_of(report),
                        "intermediate_value": value_of(number, report),
                        "intermediate_value_type": "FINITE",
                    }
                )
        connection.execute(insert(models.TrialParamModel.__table__), params)
        connection.execute(insert(models.TrialValueModel.__table__), values)
        connection.execute(insert(models.TrialIntermediateValueModel.__table__), reports)
    engine.dispose()
    return ids


def check(url: str, case: StoreCase, key: Callable[[Any], int]) -> None:
    """See that Optuna reads back every trial that was measured; the benchmark is void otherwise.

    Args:
        url: The database.
        case: What was measured.
        key: What the values of a trial follow from.
    """
    import optuna

    trials = optuna.load_study(study_name=NAME, storage=url).get_trials(deepcopy=False)
    assert len(trials) == case.before + case.trials, f"void: {len(trials)} trials"
    for trial in trials[case.before :]:
        assert trial.state == optuna.trial.TrialState.COMPLETE, f"void: trial {trial.number} is {trial.state}"
        expected = {step_of(report): value_of(key(trial), report) for report in range(1, REPORTS + 1)}
        assert trial.value == expected[step_of(REPORTS)], f"void: the value of trial {trial.number}"
        assert trial.intermediate_values == expected, f"void: the reports of trial {trial.number}"
        assert trial.params.keys() == SEARCH.keys(), f"void: the parameters of trial {trial.number}"


# ---- plain Optuna


def plain(url: str, case: StoreCase, counts: Counts) -> dict[str, float]:
    """Carry the trials out as a program does that uses Optuna alone."""
    import optuna

    from tempopt.spec.search_space import distributions, parse_search

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = distributions(parse_search(SEARCH, model_args={}))
    optuna.create_study(study_name=NAME, storage=url, direction="minimize")
    fill(url, case.before, space)
    counts.begin()
    study = optuna.load_study(
        study_name=NAME,
        storage=url,
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(),
    )
    # the first look at a study reads all of it
    study.get_trials(deepcopy=False)
    start = counts.end(1)["cpu_ms"]
    counts.begin()
    num_waiting, running_trials = case.trials, []
    while num_waiting or running_trials:
        while num_waiting and len(running_trials) < case.running:
            trial = study.ask(fixed_distributions=space)
            # those that run at a time are not at the same place
            running_trials.append([trial, 0])
            num_waiting -= 1
        for running_trial in list(running_trials):
            trial, running_trial[1] = running_trial[0], running_trial[1] + 1
            trial.report(value_of(trial.number, running_trial[1]), step_of(running_trial[1]))
            assert not trial.should_prune(), "void: a trial was pruned"
            if running_trial[1] == REPORTS:
                study.tell(trial, value_of(trial.number, REPORTS))
                running_trials.remove(running_trial)
    counts_at_end = counts.end(case.trials)
    check(url, case, lambda trial: trial.number)
    return {**counts_at_end, "start_ms": start}


# ---- tempopt


def spec_of(case: StoreCase, *, sampler: str = "tpe", pruner: str = "median") -> Any:
    """Return the spec of a study of so many search trials; without proof, which is not compared here."""
    from tempopt.spec.study_spec import StudySpec

    study = {"name": NAME, "metric": "val_loss", "direction": "minimize"}
    study |= {"sampler": sampler, "pruner": pruner, "seeds": {"search": None}}
    study |= {"trials": case.before + case.trials, "parallel": case.running}
    data = {"study": study, "model": {"class_path": "package.Model"}, "search": SEARCH}
    return StudySpec.parse(data, source="the benchmark")


def begin_case(store: Any, case: StoreCase, spec: Any) -> Any:
    """Return the row of a study that has its first trials behind it."""
    from tempopt.storage.optuna_calls import make_study
    from tempopt.verdict.stages import initial_tickets

    make_study(store.url, name=NAME, direction="minimize", metric="val_loss")
    study = store.create_study(NAME, spec.to_json(), spec.identity())
    store.add_tickets(study.id, initial_tickets(spec))
    fill_tickets(store.url, fill(store.url, case.before, spec.space()), spec)
    return study


def run_tempopt(url: str, case: StoreCase, counts: Counts) -> dict[str, float]:
    """Carry the trials out with tempopt's agent."""
    from tempopt.agent import agent_loop, local_client, worker_slot, write_queue
    from tempopt.agent.study_cache import StudyCache
    from tempopt.agent.study_client import RunFolders
    from tempopt.storage.opening import open_store

    spec = spec_of(case)
    world = TalkerWorld(case.seconds)
    for module in (agent_loop, worker_slot, write_queue):
        module.time = world  # type: ignore[attr-defined]
    agent_loop.wait = lambda ready, timeout: wait(ready, timeout=0)  # type: ignore[attr-defined]
    with open_store(url) as store, tempfile.TemporaryDirectory() as folder:
        study = begin_case(store, case, spec)
        counts.begin()
        folders = RunFolders(logs=Path(folder), checkpoints=f"file://{folder}")
        client = local_client.LocalStudyClient(
            cache=StudyCache(spec, study, store), folders=folders, workers=case.running, observer=world
        )
        worker = agent_loop.Agent(
            spec=spec,
            client=client,
            workers=[Talker(slot, world) for slot in range(case.running)],  # type: ignore[misc]
            folders=folders,
            observer=world,
        )
        start = counts.end(1)["cpu_ms"]
        counts.begin()
        counts_at_end: dict[str, float] = {}
        original_over = client.is_finished

        def is_over_counted() -> bool:
            # before it ends a study, an agent reads all of it once more: no cost of a trial
            if not counts_at_end and client.cache.is_finished() and not len(client.outbox):
                counts_at_end.update(counts.end(case.trials))
            return original_over()

        client.is_finished = is_over_counted  # type: ignore[method-assign]
        worker.run()
        assert store.load_study(NAME).state == "done", "void: the study is not done"
    check(url, case, lambda trial: int(trial.user_attrs["tempopt:ticket"]))
    return {**counts_at_end, "start_ms": start}


def fill_tickets(url: str, trials: dict[int, int], spec: Any) -> None:
    """End the tickets of the trials that are there before, with all that they have reported."""
    from sqlalchemy import bindparam, create_engine, insert, select, update

    from tempopt.storage.models import MEASUREMENT, TICKET

    engine = create_engine(url)
    space = spec.space()
    with engine.begin() as connection:
        numbers = select(TICKET.c.number, TICKET.c.id).where(TICKET.c.number < len(trials))
        ids = dict(connection.execute(numbers).all())
        ticket_updates = []
        for number, ticket_id in ids.items():
            sampled_params = parameters(number, space)
            ticket_updates.append(
                {
                    "ticket": ticket_id,
                    "parameters": spec.parameters("search", sampled_params),
                    "sampled": sampled_params,
                    "trial_id": trials[number],
                    "trial_number": number,
                    "value": value_of(number, REPORTS),
                }
            )
        if not ticket_updates:
            return
        common_values = {"state": "done", "outcome": "complete", "attempt": 1, "seconds": 60.0}
        common_values |= {"steps": step_of(REPORTS), "total_steps": step_of(REPORTS), "code": "code"}
        bound_values = {name: bindparam(name) for name in ticket_updates[0] if name != "ticket"}
        statement = (
            update(TICKET).where(TICKET.c.id == bindparam("ticket")).values(**common_values, **bound_values)
        )
        connection.execute(statement, ticket_updates)
        reports = [
            {"ticket_id": id, "name": "report", "step": step_of(report), "value": value_of(number, report)}
            for number, id in ids.items()
            for report in range(1, REPORTS + 1)
        ]
        connection.execute(insert(MEASUREMENT), reports)
    engine.dispose()


# ---- a large study


def large(url: str, case: StoreCase, counts: Counts) -> dict[str, float]:
    """Return CPU milliseconds of what people and agents wait for when a study has become large."""
    from tempopt.agent.study_cache import StudyCache
    from tempopt.storage.opening import open_store

    cpu_times = {}
    with open_store(url) as store:
        study = begin_case(store, case, spec_of(case))
        for command in (["list"], ["show", NAME]):
            words = [sys.executable, "-m", "tempopt", *command, "--storage", url]
            usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_time = (
                usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime
            )
            cpu_times[f"tempopt {command[0]}"] = 1000 * cpu_time
        for sampler, pruner in [("tpe", "hyperband"), ("tpe", "median"), ("knowledge_gradient",) * 2]:
            spec = spec_of(case, sampler=sampler, pruner=pruner)
            counts.begin()
            cache = StudyCache(spec, study, store)
            ticket = cache.of_kind("search")[case.before]
            # the first decision fills what decisions rest on
            cache.arms.tell(dataclasses.replace(ticket, state="failed", outcome="failed"), {})
            later_ticket = cache.of_kind("search")[case.before + 1]
            cache.arms.register_asked(
                dataclasses.replace(later_ticket, parameters=parameters(0, spec.space()))
            )
            cache.arms.prune(later_ticket, {100: 0.5})
            cpu_times[f"start of an agent, {pruner}"] = counts.end(1)["cpu_ms"]
            counts.begin()
            for step in range(2, 22):
                cache.arms.prune(later_ticket, {100 * report: 0.5 for report in range(1, step)})
            cpu_times[f"a pruning decision, {pruner}"] = counts.end(20)["cpu_ms"]
            if pruner != "hyperband":
                cpu_times[f"a suggestion, {sampler}"] = suggestion_cost(cache.arms, later_ticket, counts)
    return cpu_times


def suggestion_cost(arms: Any, ticket: Any, counts: Counts) -> float:
    """Return CPU milliseconds of a suggestion, each one after another trial has ended."""
    counts.begin()
    for number in range(ticket.number, ticket.number + 10):
        arms.tell(dataclasses.replace(ticket, number=number, state="failed", outcome="failed"), {})
        arms.ask(dataclasses.replace(ticket, number=number + 1, parameters=None, sampled=None))
    return counts.end(10)["cpu_ms"]


# ---- the tables


def measure(case: StoreCase) -> dict[str, float]:
    """Measure one case in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.run(
        [sys.executable, __file__, "--case", json.dumps(asdict(case))],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
    )
    numbers: dict[str, float] = json.loads(process.stdout)
    return numbers


def table(title: str, cases: list[tuple[str, list[StoreCase]]]) -> None:
    """Print a table: a line for each label, Optuna beside tempopt where both are measured."""
    print(f"\n{title}\n")
    print("| | transactions | statements | CPU ms | start CPU ms |\n|---|---|---|---|---|")
    columns = (("transactions", ".1f"), ("statements", ".0f"), ("cpu_ms", ".0f"), ("start_ms", ".0f"))
    for label, sides in cases:
        side_numbers = [measure(case) for case in sides]
        cells = [" / ".join(format(side[name], digits) for side in side_numbers) for name, digits in columns]
        print(f"| {label} | {' | '.join(cells)} |", flush=True)


def both_cases(backend: str, num_before: int, num_running: int, trials: int) -> list[StoreCase]:
    """Return the case for both sides, a trial a minute long."""
    return [
        StoreCase(
            side=side, backend=backend, before=num_before, running=num_running, trials=trials, seconds=60.0
        )
        for side in ("optuna", "tempopt")
    ]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--backend", choices=["sqlite", *SERVERS], action="append")
    parser.add_argument("--table", choices=["running", "growth", "large"], action="append")
    parser.add_argument("--quick", action="store_true", help="few trials, up to 1,000: a minute a backend")
    arguments = parser.parse_args()
    if arguments.case is not None:
        case = StoreCase(**json.loads(arguments.case))
        counts = Counts()
        measure_case = {"optuna": plain, "tempopt": run_tempopt, "large": large}[case.side]
        with database(case.backend) as url:
            numbers = measure_case(url, case, counts)
        print(json.dumps(numbers))
        return
    backends = arguments.backend or ["sqlite", *SERVERS]
    tables = arguments.table or ["running", "growth", "large"]
    turns = 1 if arguments.quick else 2
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    if "running" in tables:
        rows = [
            (
                f"{backend}, {num_running} running",
                both_cases(backend, 100, num_running, max(6, turns * num_running)),
            )
            for backend in backends
            for num_running in (1, 8, 32)
        ]
        table("For each trial, Optuna / tempopt, after 100 trials:", rows)
    if "growth" in tables:
        rows = [
            (f"{backend}, {num_before} trials before", both_cases(backend, num_before, 8, 8 * turns))
            for backend in backends
            for num_before in ((100, 1000) if arguments.quick else (100, 1000, 10000))
        ]
        table("For each trial, Optuna / tempopt, with 8 running:", rows)
    if "large" in tables:
        num_before = 1000 if arguments.quick else 10000
        print(f"\nCPU ms at {num_before} finished trials (SQLite):\n\n| what | CPU ms |\n|---|---|")
        case = StoreCase(side="large", backend="sqlite", before=num_before, running=8, trials=8, seconds=0.0)
        for action, cpu_time in measure(case).items():
            print(f"| {action} | {cpu_time:.3g} |", flush=True)


if __name__ == "__main__":
    main()
