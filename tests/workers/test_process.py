"""A worker process: warm, apart from the agent, and gone when either ends."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tempopt.workers.messages import (
    Failed,
    Finished,
    Kept,
    Message,
    Progress,
    Ready,
    Report,
    RunRequest,
    Started,
    Stop,
)
from tempopt.workers.placement import Placement
from tempopt.workers.process import WorkerProcess
from tempopt.workers.rank_process import COLD

REPOSITORY = Path(__file__).parents[2]
HERE = REPOSITORY / "tests" / "training"


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Return a function that starts a worker, forked or cold, with a number of threads."""
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{REPOSITORY}")
    monkeypatch.chdir(tmp_path)
    started: list[WorkerProcess] = []

    def start(how: str = "forked", threads: int = 1) -> WorkerProcess:
        with monkeypatch.context() as patch:
            if how == "cold":
                patch.setenv(COLD, "1")
            started.append(WorkerProcess(slot=len(started), place=Placement(threads=threads)))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def worker(start: Callable[..., WorkerProcess], request: pytest.FixtureRequest) -> WorkerProcess:
    return start(getattr(request, "param", "forked"))


either = pytest.mark.parametrize(
    "worker", ["forked", pytest.param("cold", marks=pytest.mark.long)], indirect=True
)


def carry_out(worker: WorkerProcess, request: RunRequest) -> list[Message]:
    worker.send(request)
    heard: list[Message] = []
    while not heard or not isinstance(heard[-1], Finished | Failed):
        message = worker.receive()
        assert message is not None, worker.obituary()
        heard.append(message)
    return heard


def results(heard: list[Message]) -> tuple[Any, ...]:
    (finished,) = (message for message in heard if isinstance(message, Finished))
    return finished.reports, finished.measurements, finished.metrics


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.long)])
def test_forked_and_cold_workers_train_the_same_in_their_first_run_and_in_their_second(
    start: Callable[..., WorkerProcess], request_for: Any, tmp_path: Path, threads: int
) -> None:
    (tmp_path / "wide.py").write_text(
        "from pathlib import Path\nimport torch\nfrom toy_modules import Toy\n\n"
        "class Wide(Toy):\n"
        "    def training_step(self, batch, index):\n"
        "        Path('threads').write_text(str(torch.get_num_threads()))\n"
        # large enough that PyTorch divides it among its threads
        "        noise = torch.randn(300, 300) @ torch.randn(300, 300)\n"
        "        weights = sum(each.sum() for each in self.parameters())\n"
        "        return super().training_step(batch, index) + noise.mean() * weights\n"
    )
    request = request_for(parameters={"temperature_init": 2.0, "entropy_lambda": 0.1})
    wide = dataclasses.replace(request.program, model={"class_path": "wide.Wide", "init_args": {}})
    request = dataclasses.replace(request, program=wide)
    other = request_for("Stock", attach={"layers": "auto"}, seed=9, parameters={"temperature_init": 3.0})
    forked = start("forked", threads)
    first = results(carry_out(forked, request))
    carry_out(forked, other)
    again = results(carry_out(forked, request))
    cold = results(carry_out(start("cold", threads), request))
    assert first == again == cold
    assert (tmp_path / "threads").read_text() == str(threads)


def test_what_a_run_prints_and_the_traceback_of_its_end_are_in_its_log(
    worker: WorkerProcess, request_for: Any, tmp_path: Path
) -> None:
    (*_, failed) = carry_out(worker, request_for(init={"raise_at": 3}, folder=str(tmp_path / "run")))
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.message) == ("error", "RuntimeError: the toy breaks")
    assert "the toy breaks" in failed.traceback
    assert "the toy breaks" in (tmp_path / "run" / "log.txt").read_text()
    results(carry_out(worker, request_for()))


def test_a_wrong_spec_fails_as_usage_and_the_worker_lives_on(worker: WorkerProcess, request_for: Any) -> None:
    (*_, failed) = carry_out(worker, request_for("Toi"))
    assert isinstance(failed, Failed)
    assert failed.kind == "usage"
    assert "Toi" in failed.message
    results(carry_out(worker, request_for()))


def test_a_stop_message_ends_the_run_it_names(worker: WorkerProcess, request_for: Any) -> None:
    worker.send(request_for(trainer={"max_steps": 100_000}))
    while not isinstance(worker.receive(), Report):
        pass
    worker.send(Stop(ticket=1, attempt=2))
    worker.send(Stop(ticket=1, attempt=1))
    while not isinstance(message := worker.receive(), Finished):
        assert isinstance(message, Progress | Report)
    assert message.state == "stopped"


@pytest.mark.parametrize("how", ["forked", pytest.param("cold", marks=pytest.mark.long)])
def test_a_worker_is_not_told_where_the_studies_are_and_who_the_agent_is(
    start: Callable[..., WorkerProcess],
    request_for: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    how: str,
) -> None:
    for name in ("TEMPOPT_STORAGE", "TEMPOPT_STORAGE_FILE"):
        monkeypatch.setenv(name, "postgresql://me:secret@host/studies")
    monkeypatch.setenv("TEMPOPT_TRACEBACK", "1")
    monkeypatch.setenv("ANYTHING_ELSE", "said")
    # the agent's own place among processes, if Slurm or torchrun started it
    for name in ("SLURM_PROCID", "RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "3")
    (tmp_path / "curious.py").write_text(
        "import json, os, sys\nfrom pathlib import Path\nfrom toy_modules import Toy\n\n"
        "seen = dict(os.environ), sys.path[0], os.getpgrp() == os.getpid()\n"
        "Path('seen.json').write_text(json.dumps(seen))\n"
        "class Curious(Toy): ...\n"
    )
    worker = start(how)
    request = request_for()
    program = dataclasses.replace(request.program, model={"class_path": "curious.Curious", "init_args": {}})
    results(carry_out(worker, dataclasses.replace(request, program=program)))
    told, first_path, leads_group = json.loads((tmp_path / "seen.json").read_text())
    assert {"OMP_NUM_THREADS", "TEMPOPT_TRACEBACK"} <= set(told)
    assert told["ANYTHING_ELSE"] == "said"
    assert not [name for name in told if name.startswith("TEMPOPT_STORAGE")]
    assert not set(told) & {"SLURM_PROCID", "RANK", "LOCAL_RANK", "WORLD_SIZE"}
    assert not [value for value in told.values() if "secret" in value]
    assert b"secret" not in Path(f"/proc/{worker.pid}/environ").read_bytes()
    assert (first_path, leads_group) == (str(tmp_path), True)


@pytest.mark.parametrize("how", ["forked", pytest.param("cold", marks=pytest.mark.long)])
def test_a_file_in_the_folder_hides_no_module_that_torch_needs(
    start: Callable[..., WorkerProcess], request_for: Any, tmp_path: Path, how: str
) -> None:
    for name in ("random.py", "glob.py", "json.py"):
        (tmp_path / name).write_text("raise SystemExit('this is not the standard library')\n")
    (tmp_path / "own.py").write_text("from random import shuffle\nfrom toy_modules import Toy as Own\n")
    request = request_for()
    program = dataclasses.replace(request.program, model={"class_path": "own.Own", "init_args": {}})
    results(carry_out(start(how), dataclasses.replace(request, program=program)))


@either
def test_a_killed_worker_is_reported_dead_with_the_signal(worker: WorkerProcess, request_for: Any) -> None:
    worker.send(request_for(trainer={"max_steps": 100_000}))
    while not isinstance(worker.receive(), Started):
        pass
    os.kill(worker.pid, signal.SIGKILL)
    while worker.receive() is not None:
        pass
    assert worker.obituary() == "the worker was killed by SIGKILL"


@either
def test_a_worker_ends_when_its_agent_is_gone(worker: WorkerProcess, request_for: Any) -> None:
    worker.send(request_for(trainer={"max_steps": 100_000}))
    while not isinstance(worker.receive(), Started):
        pass
    worker.connection.close()
    assert worker.obituary() == "the worker was killed by SIGKILL"


def parent_of(worker: WorkerProcess) -> int:
    return int(Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[1])


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.long
def test_a_signal_to_all_processes_is_left_to_the_agent(
    worker: WorkerProcess, request_for: Any, number: signal.Signals
) -> None:
    worker.send(request_for(data={"workers": 1}, trainer={"max_steps": 400}))
    while not isinstance(worker.receive(), Report):
        pass
    workers = children(worker.pid)
    assert workers
    for pid in (worker.pid, *workers):
        os.kill(pid, number)
    while not isinstance(message := worker.receive(), Finished | Failed):
        assert message is not None
    assert isinstance(message, Finished), message
    assert (message.state, message.step) == ("complete", 400)


def test_a_run_that_is_told_to_leave_keeps_a_checkpoint_and_goes_on_in_another_worker(
    worker: WorkerProcess, start: Callable[..., WorkerProcess], request_for: Any, tmp_path: Path
) -> None:
    request = request_for(trainer={"max_steps": 60}, checkpoints=str(tmp_path / "ticket"))
    worker.send(request)
    while not isinstance(worker.receive(), Report):
        pass
    worker.send(Stop(ticket=1, attempt=1, keep=True))
    saved = []
    while not isinstance(message := worker.receive(), Finished):
        if isinstance(message, Kept):
            saved.insert(0, message.saved)
    assert message.state == "stopped"
    assert saved[0].step == message.step
    heard = carry_out(start(), dataclasses.replace(request, attempt=2, resume=saved))
    assert [each.step for each in heard if isinstance(each, Started)] == [saved[0].step]
    undisturbed = dataclasses.replace(request, ticket=2, checkpoints=None)
    assert results(heard) == results(carry_out(worker, undisturbed))


def test_a_worker_is_forked_from_a_process_that_has_everything_loaded(
    start: Callable[..., WorkerProcess],
) -> None:
    first, second = start(), start()
    assert isinstance(first.receive(), Ready)
    parents = {parent_of(each) for each in (first, second)}
    assert len(parents) == 1
    assert parents != {os.getpid()}
    first.kill()
    assert start().pid not in {first.pid, second.pid}


@pytest.mark.long
def test_workers_die_with_their_parent_and_new_ones_are_forked_from_a_new_one(
    start: Callable[..., WorkerProcess], request_for: Any
) -> None:
    worker = start()
    parent = parent_of(worker)
    os.kill(parent, signal.SIGKILL)
    while worker.receive() is not None:
        pass
    assert worker.obituary() == "the worker was killed by SIGKILL"
    results(carry_out(start(), request_for()))


@pytest.mark.long
def test_a_worker_that_hangs_is_killed_when_its_agent_is_gone(
    request_for: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    code = (
        "import os, signal, sys\n"
        "from tempopt.workers.placement import Placement\n"
        "from tempopt.workers.process import WorkerProcess\n"
        "worker = WorkerProcess(slot=0, place=Placement())\n"
        "worker.receive()\n"
        "os.kill(worker.pid, signal.SIGSTOP)\n"
        "print(worker.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False).stdout
    pid = int(said)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
