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

from tempopt.agent.placement import Placement
from tempopt.agent.process import WorkerProcess
from tempopt.agent.rank_process import COLD
from tempopt.training.messages import (
    CheckpointSaved,
    Failed,
    Finished,
    Message,
    Progress,
    Ready,
    Report,
    RunRequest,
    Started,
    Stop,
)

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Return a function that starts a worker, forked or cold, where a placement says."""
    monkeypatch.chdir(tmp_path)
    workers: list[WorkerProcess] = []

    def start(start_method: str = "forked", **placement: Any) -> WorkerProcess:
        with monkeypatch.context() as patch:
            if start_method == "cold":
                patch.setenv(COLD, "1")
            workers.append(WorkerProcess(slot=len(workers), placement=Placement(**placement)))
        return workers[-1]

    yield start
    for process in workers:
        process.kill()


@pytest.fixture
def worker(start: Callable[..., WorkerProcess], request: pytest.FixtureRequest) -> WorkerProcess:
    return start(getattr(request, "param", "forked"))


either = pytest.mark.parametrize(
    "worker", ["forked", pytest.param("cold", marks=pytest.mark.long)], indirect=True
)


def carry_out(worker: WorkerProcess, request: RunRequest) -> list[Message]:
    worker.send(request)
    messages: list[Message] = []
    while not messages or not isinstance(messages[-1], Finished | Failed):
        message = worker.receive()
        assert message is not None, worker.exit_description()
        messages.append(message)
    return messages


def send_and_await(worker: WorkerProcess, request: RunRequest, kind: type[Message]) -> None:
    """Have a worker begin a run, and wait for a message of a kind."""
    worker.send(request)
    while not isinstance(worker.receive(), kind):
        pass


def with_model(request: RunRequest, class_path: str) -> RunRequest:
    program = dataclasses.replace(request.program, model={"class_path": class_path, "init_args": {}})
    return dataclasses.replace(request, program=program)


def results(messages: list[Message]) -> tuple[Any, ...]:
    (finish_message,) = (message for message in messages if isinstance(message, Finished))
    return finish_message.reports, finish_message.measurements, finish_message.metrics


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
        "        weights = sum(param.sum() for param in self.parameters())\n"
        "        return super().training_step(batch, index) + noise.mean() * weights\n"
    )
    request = with_model(
        request_for(parameters={"temperature_init": 2.0, "entropy_lambda": 0.1}), "wide.Wide"
    )
    other_request = request_for(
        "Stock", attach={"layers": "auto"}, seed=9, parameters={"temperature_init": 3.0}
    )
    worker = start("forked", threads=threads)
    first = results(carry_out(worker, request))
    carry_out(worker, other_request)
    second_results = results(carry_out(worker, request))
    cold = results(carry_out(start("cold", threads=threads), request))
    assert first == second_results == cold
    assert (tmp_path / "threads").read_text() == str(threads)


def test_a_failure_is_told_and_in_the_log_of_the_run_and_the_worker_lives_on(
    worker: WorkerProcess, request_for: Any, tmp_path: Path
) -> None:
    for request, kind, message in (
        (request_for(init={"raise_at": 3}, folder=str(tmp_path / "run")), "error", "the toy breaks"),
        (request_for("Toi"), "usage", "Toi"),
    ):
        failure = carry_out(worker, request)[-1]
        assert isinstance(failure, Failed)
        assert failure.kind == kind and message in failure.message
    log_text = (tmp_path / "run" / "log.txt").read_text()
    assert "Traceback" in log_text and "the toy breaks" in log_text
    results(carry_out(worker, request_for()))


def test_a_stop_message_ends_the_run_it_names(worker: WorkerProcess, request_for: Any) -> None:
    send_and_await(worker, request_for(trainer={"max_steps": 100_000}), Report)
    worker.send(Stop(ticket=1, attempt=2))
    worker.send(Stop(ticket=1, attempt=1))
    while not isinstance(message := worker.receive(), Finished):
        assert isinstance(message, Progress | Report)
    assert message.state == "stopped"


@pytest.mark.parametrize("start_method", ["forked", pytest.param("cold", marks=pytest.mark.long)])
def test_a_worker_sees_its_own_card_and_not_where_the_studies_are_and_who_the_agent_is(
    start: Callable[..., WorkerProcess],
    request_for: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    start_method: str,
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
        "state = dict(os.environ), sys.path[0], os.getpgrp() == os.getpid()\n"
        "Path('seen.json').write_text(json.dumps(state))\n"
        "class Curious(Toy): ...\n"
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    worker = start(start_method, gpus=("GPU-first",), threads=1)
    request = with_model(request_for(trainer={"accelerator": "cpu"}), "curious.Curious")
    results(carry_out(worker, request))
    env_vars, first_path, leads_group = json.loads((tmp_path / "seen.json").read_text())
    assert (env_vars["CUDA_VISIBLE_DEVICES"], env_vars["OMP_NUM_THREADS"]) == ("GPU-first", "1")
    assert (env_vars["TEMPOPT_TRACEBACK"], env_vars["ANYTHING_ELSE"]) == ("1", "said")
    assert not [name for name in env_vars if name.startswith("TEMPOPT_STORAGE")]
    assert not set(env_vars) & {"SLURM_PROCID", "RANK", "LOCAL_RANK", "WORLD_SIZE"}
    assert not [value for value in env_vars.values() if "secret" in value]
    assert b"secret" not in Path(f"/proc/{worker.pid}/environ").read_bytes()
    assert (first_path, leads_group) == (str(tmp_path), True)


@pytest.mark.parametrize("start_method", ["forked", pytest.param("cold", marks=pytest.mark.long)])
def test_a_file_in_the_folder_hides_no_module_that_torch_needs(
    start: Callable[..., WorkerProcess], request_for: Any, tmp_path: Path, start_method: str
) -> None:
    for name in ("random.py", "glob.py", "json.py"):
        (tmp_path / name).write_text("raise SystemExit('this is not the standard library')\n")
    (tmp_path / "own.py").write_text("from random import shuffle\nfrom toy_modules import Toy as Own\n")
    results(carry_out(start(start_method), with_model(request_for(), "own.Own")))


@either
def test_a_killed_worker_is_reported_dead_with_the_signal(worker: WorkerProcess, request_for: Any) -> None:
    send_and_await(worker, request_for(trainer={"max_steps": 100_000}), Started)
    os.kill(worker.pid, signal.SIGKILL)
    while worker.receive() is not None:
        pass
    assert worker.exit_description() == "the worker was killed by SIGKILL"


@either
def test_a_worker_ends_when_its_agent_is_gone(worker: WorkerProcess, request_for: Any) -> None:
    send_and_await(worker, request_for(trainer={"max_steps": 100_000}), Started)
    worker.connection.close()
    assert worker.exit_description() == "the worker was killed by SIGKILL"


def parent_of(worker: WorkerProcess) -> int:
    return int(Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[1])


def children(pid: int) -> list[int]:
    child_pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in child_pids]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.long
def test_a_signal_to_all_processes_is_left_to_the_agent(
    worker: WorkerProcess, request_for: Any, number: signal.Signals
) -> None:
    send_and_await(worker, request_for(data={"workers": 1}, trainer={"max_steps": 400}), Report)
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
    send_and_await(worker, request, Report)
    worker.send(Stop(ticket=1, attempt=1, keep=True))
    checkpoints = []
    while not isinstance(message := worker.receive(), Finished):
        if isinstance(message, CheckpointSaved):
            checkpoints.insert(0, message.saved)
    assert message.state == "stopped"
    assert checkpoints[0].step == message.step
    messages = carry_out(start(), dataclasses.replace(request, attempt=2, resume=checkpoints))
    assert [message.step for message in messages if isinstance(message, Started)] == [checkpoints[0].step]
    undisturbed = dataclasses.replace(request, ticket=2, checkpoints=None)
    assert results(messages) == results(carry_out(worker, undisturbed))


def test_a_worker_is_forked_from_a_process_that_has_everything_loaded(
    start: Callable[..., WorkerProcess],
) -> None:
    first, second = start(), start()
    assert isinstance(first.receive(), Ready)
    parents = {parent_of(child) for child in (first, second)}
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
    assert worker.exit_description() == "the worker was killed by SIGKILL"
    results(carry_out(start(), request_for()))


@pytest.mark.long
def test_a_worker_that_hangs_is_killed_when_its_agent_is_gone(
    request_for: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    code = (
        "import os, signal, sys\n"
        "from tempopt.agent.placement import Placement\n"
        "from tempopt.agent.process import WorkerProcess\n"
        "worker = WorkerProcess(slot=0, placement=Placement())\n"
        "worker.receive()\n"
        "os.kill(worker.pid, signal.SIGSTOP)\n"
        "print(worker.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    stdout = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False).stdout
    pid = int(stdout)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
