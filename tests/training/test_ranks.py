"""Several ranks train one run as one: the same weights and temperature at every step, one end, one voice."""

from __future__ import annotations

import dataclasses
import itertools
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
from tempopt.training.messages import (
    CheckpointSaved,
    Evaluation,
    Failed,
    Finished,
    Message,
    Ready,
    Report,
    RunRequest,
    Started,
    Stop,
    encode,
)

pytestmark = pytest.mark.long

TRAINING_TESTS = Path(__file__).parent
REPOSITORY = TRAINING_TESTS.parents[1]
HOT = {"temperature_init": 4.0, "temperature_final": 1.0, "schedule": "exponential", "entropy_lambda": 0.01}
# A request to stop a run of a warm trainer stops that run alone.
TICKETS = itertools.count(1)
# What an agent has in its environment that was started by Slurm, or by torchrun, as one of several.
ELSEWHERE = {
    "SLURM_NTASKS": "4",
    "SLURM_JOB_NAME": "search",
    "SLURM_JOB_ID": "12",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "3",
    "SLURM_NODEID": "1",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "KUBERNETES_PORT": "tcp://127.0.0.1:443",
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "LOCAL_RANK": "3",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "nowhere.invalid",
    "MASTER_PORT": "1",
}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], WorkerProcess]]:
    """Return a maker of workers of so many ranks, which are gone at the end."""
    workers: list[WorkerProcess] = []

    def trainer(ranks: int) -> WorkerProcess:
        workers.append(WorkerProcess(slot=len(workers), placement=Placement(ranks=ranks)))
        return workers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{TRAINING_TESTS}{os.pathsep}{REPOSITORY}")
        patch.chdir(tmp_path_factory.mktemp("trainers"))
        # a checkpoint from which Lightning would resume under Slurm
        Path("hpc_ckpt_1.ckpt").write_text("no checkpoint")
        for name, value in ELSEWHERE.items():
            patch.setenv(name, value)
        yield trainer
        for worker in workers:
            worker.kill()


@pytest.fixture(scope="module")
def pair(make: Callable[[int], WorkerProcess]) -> WorkerProcess:
    """Two ranks that stay warm; for tests that leave them alive."""
    return make(2)


@pytest.fixture(scope="module")
def alone(make: Callable[[int], WorkerProcess]) -> WorkerProcess:
    """A trainer of one process, to compare with."""
    return make(1)


@pytest.fixture
def doomed_worker(make: Callable[[int], WorkerProcess]) -> WorkerProcess:
    """Two ranks that a test may end."""
    return make(2)


@pytest.fixture
def two(request_for: Any, tmp_path: Path) -> Callable[..., RunRequest]:
    """Return a maker of requests for two ranks that write down what they have."""

    def make(
        *module: str, ranks: int = 2, trainer: dict[str, Any] | None = None, **options: Any
    ) -> RunRequest:
        recorder = {"class_path": "toy_modules.Recorder", "init_args": {"folder": str(tmp_path)}}
        options = {
            "ticket": next(TICKETS),
            "data": {"batch_size": 3},
            "folder": str(tmp_path / "logs"),
            **options,
        }
        request = request_for(
            *module, trainer={"devices": ranks, "callbacks": [recorder], **(trainer or {})}, **options
        )
        assert isinstance(request, RunRequest)
        return request

    return make


def until(trainer: WorkerProcess, *kinds: type[Any]) -> list[Message]:
    messages: list[Message] = []
    while not messages or not isinstance(messages[-1], kinds):
        message = trainer.receive()
        assert message is not None, trainer.exit_description()
        messages.append(message)
    return messages


def carry_out(trainer: WorkerProcess, request: RunRequest) -> list[Message]:
    trainer.send(request)
    return until(trainer, Finished, Failed)


def finished_message(messages: list[Message]) -> Finished:
    assert isinstance(messages[-1], Finished), messages[-1]
    return messages[-1]


def results(messages: list[Message]) -> tuple[Any, ...]:
    end = finished_message(messages)
    return end.state, end.reports, end.measurements, end.metrics


def recorded_lines(folder: Path, ranks: int = 2) -> list[list[dict[str, Any]]]:
    """Return what each rank has written down so far, and forget it."""
    lines = []
    for rank in range(ranks):
        path = folder / f"{rank}.jsonl"
        lines.append([json.loads(line) for line in path.read_text().splitlines()])
        path.unlink()
    return lines


def steps(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if "weights" in line]


def same(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what has to be the same on all ranks."""
    return [{name: line[name] for name in line if name != "items"} for line in lines]


def children(pid: int) -> list[int]:
    """Return the processes that a process has, and theirs."""
    pids = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            pids += [child, *children(child)]
    return pids


def meeting(trainer: WorkerProcess) -> Path:
    """Return the file at which the ranks have met."""
    assert trainer._folder is not None
    return trainer._folder / "store"


def ranks_of(trainer: WorkerProcess) -> list[int]:
    """Return the ranks' process ids, the first rank's first."""
    return [rank.pid for rank in trainer._ranks]


def alive(pids: list[int]) -> list[int]:
    """Return those that still run; a process that was not waited for yet does not."""
    alive_pids = []
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                alive_pids.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            pass
    return alive_pids


def assert_gone(pids: list[int]) -> None:
    for _ in range(200):
        if not alive(pids):
            return
        time.sleep(0.05)
    raise AssertionError(f"still there: {alive(pids)}")


def test_two_ranks_have_the_same_weights_and_temperature_at_every_step(
    pair: WorkerProcess, two: Any, tmp_path: Path
) -> None:
    (*messages, end) = carry_out(pair, two(parameters=HOT))
    first, second = recorded_lines(tmp_path)
    assert same(first) == same(second)
    assert [line["step"] for line in steps(first)] == list(range(1, 25))
    expected = [4.0 * 0.25 ** (step / 23) for step in range(24)]
    assert [line["temperature"] for line in steps(first)] == pytest.approx(expected, rel=1e-12)
    assert len({line["weights"] for line in steps(first)}) == 24
    # one voice, as a single device's
    assert [m.step for m in messages if isinstance(m, Report)] == [4, 8, 12, 16, 20, 24]
    assert [m.step for m in messages if isinstance(m, Started)] == [0]
    assert isinstance(end, Finished)
    assert end.state == "complete"


def test_a_warm_group_trains_what_a_cold_one_does_and_four_ranks_agree(
    make: Any, two: Any, tmp_path: Path
) -> None:
    four = make(4)
    request = two(ranks=4, parameters=HOT, data={"batch_size": 2}, trainer={"max_steps": 12})
    cold = results(carry_out(four, request))
    lines = recorded_lines(tmp_path, 4)
    assert all(same(rank_lines) == same(lines[0]) for rank_lines in lines)
    carry_out(four, dataclasses.replace(request, seed=6))
    recorded_lines(tmp_path, 4)
    assert results(carry_out(four, request)) == cold
    assert recorded_lines(tmp_path, 4) == lines
    pids = ranks_of(four)
    assert len(pids) == 4
    four.kill()
    assert_gone(pids)


def test_a_stock_transformer_is_attached_to_exactly_on_every_rank(
    pair: WorkerProcess, two: Any, tmp_path: Path
) -> None:
    parameters = {name: value for name, value in HOT.items() if name != "entropy_lambda"}
    request = two("Stock", attach={"layers": "auto"}, parameters=parameters)
    assert finished_message(carry_out(pair, dataclasses.replace(request, task="dry_run"))).state == "complete"
    recorded_lines(tmp_path)
    assert finished_message(carry_out(pair, request)).state == "complete"
    first, second = recorded_lines(tmp_path)
    assert same(first) == same(second)
    assert all(line["exact"] for line in steps(first) + steps(second))
    expected = [4.0 * 0.25 ** (step / 23) for step in range(24)]
    assert [line["temperature"] for line in steps(first)] == pytest.approx(expected, rel=1e-12)


def test_a_stop_ends_all_ranks_at_the_same_step(pair: WorkerProcess, two: Any, tmp_path: Path) -> None:
    request = two(trainer={"max_steps": 100_000})
    pair.send(request)
    until(pair, Report)
    pair.send(Stop(ticket=request.ticket, attempt=1))
    end = finished_message(until(pair, Finished))
    first, second = recorded_lines(tmp_path)
    assert end.state == "stopped"
    assert first[-1]["step"] == second[-1]["step"] == end.step
    assert same(first) == same(second)


def test_evaluations_at_the_end_are_broken_off_on_all_ranks(pair: WorkerProcess, two: Any) -> None:
    evaluations = [
        Evaluation(name=str(n), on="test", temperature={"temperature_init": 1.0 + n}) for n in range(400)
    ]
    request = two(trainer={"max_steps": 4}, evaluations=evaluations)
    pair.send(request)
    until(pair, Report)
    pair.send(Stop(ticket=request.ticket, attempt=1))
    assert finished_message(until(pair, Finished)).state == "stopped"
    assert finished_message(carry_out(pair, two(trainer={"max_steps": 4}))).state == "complete"


def test_a_number_that_is_not_finite_on_one_rank_ends_all_as_diverged(
    pair: WorkerProcess, two: Any, tmp_path: Path
) -> None:
    end = finished_message(carry_out(pair, two("RankDependentToy", init={"diverge_at": 9})))
    first, second = recorded_lines(tmp_path)
    assert (end.state, end.step) == ("diverged", 10)
    assert first[-1]["step"] == second[-1]["step"] == 10


@pytest.mark.parametrize(
    ("module", "data", "trainer"),
    [
        ("Toy", "ToyData", {}),
        ("Toy", "ToyData", {"accumulate_grad_batches": 3, "max_steps": 8}),
        ("AccumulatingToy", "ToyData", {"max_steps": 7}),
        ("ScheduledToy", "StreamData", {}),
        ("CarryingToy", "ToyData", {}),
    ],
    ids=["plain", "accumulating", "accumulating by itself", "a stream", "carrying a state"],
)
def test_ranks_that_left_in_the_middle_of_an_epoch_go_on_exactly(
    pair: WorkerProcess, two: Any, tmp_path: Path, module: str, data: str, trainer: dict[str, Any]
) -> None:
    options = {"parameters": HOT, "data": {}, "data_class": data, "trainer": trainer}
    base_request = two(module, **options, checkpoint_every=0.001)
    reference_messages = carry_out(pair, base_request)
    undisturbed = recorded_lines(tmp_path)
    assert same(undisturbed[0]) == same(undisturbed[1])
    request = dataclasses.replace(base_request, ticket=next(TICKETS), checkpoints=str(tmp_path / "kept"))
    messages = carry_out(pair, request)
    assert results(messages) == results(reference_messages)
    recorded_lines(tmp_path)
    saved = [message.saved for message in messages if isinstance(message, CheckpointSaved)]
    assert len(saved) >= 4
    for checkpoint in saved[:4]:
        resumed_messages = carry_out(pair, dataclasses.replace(request, attempt=2, resume=[checkpoint]))
        assert results(resumed_messages) == results(reference_messages)
        assert [m.step for m in resumed_messages if isinstance(m, Started)] == [checkpoint.step]
        for lines, expected in zip(recorded_lines(tmp_path), undisturbed, strict=True):
            assert steps(lines)[-1] == steps(expected)[-1]
    # the author of a stream divides it among its ranks
    notes = [note for m in messages if isinstance(m, Started) for note in m.notes]
    assert [note for note in notes if "not divided" in note] == notes[: data == "StreamData"]


def test_ranks_that_are_told_to_leave_keep_one_checkpoint_and_go_on_exactly(
    pair: WorkerProcess, two: Any, tmp_path: Path
) -> None:
    request = two(parameters=HOT, trainer={"max_steps": 60}, checkpoint_every=3600.0)
    reference_messages = carry_out(pair, request)
    recorded_lines(tmp_path)
    request = dataclasses.replace(request, ticket=next(TICKETS), checkpoints=str(tmp_path / "kept"))
    pair.send(request)
    until(pair, Report)
    pair.send(Stop(ticket=request.ticket, attempt=1, keep=True))
    messages = until(pair, Finished)
    (kept_message,) = (message for message in messages if isinstance(message, CheckpointSaved))
    first, second = recorded_lines(tmp_path)
    assert finished_message(messages).state == "stopped"
    assert (
        first[-1]["step"] == second[-1]["step"] == finished_message(messages).step == kept_message.saved.step
    )
    resumed_messages = carry_out(pair, dataclasses.replace(request, attempt=2, resume=[kept_message.saved]))
    assert results(resumed_messages) == results(reference_messages)


def test_ranks_validate_with_the_same_running_means(pair: WorkerProcess, two: Any, tmp_path: Path) -> None:
    accumulating = {"accumulate_grad_batches": 3, "val_check_interval": 5, "max_steps": 8}
    carry_out(pair, two("RankDependentToy", init={"normed": True}, trainer=accumulating))
    first, second = recorded_lines(tmp_path)
    assert [line["value"] for line in first if "value" in line]
    assert same(first) == same(second)


def test_what_ranks_measure_does_not_depend_on_how_many_validate(
    pair: WorkerProcess, alone: WorkerProcess, two: Any
) -> None:
    # at step 1 of a learning rate of nothing, the weights are those of the beginning
    options = {"init": {"lr": 0.0}, "trainer": {"max_steps": 1, "val_check_interval": 1}}
    evaluations = [Evaluation(name="test", on="test")]
    on_two = results(carry_out(pair, two(**options, evaluations=evaluations)))
    options["trainer"] = {**options["trainer"], "devices": 1}
    assert results(carry_out(alone, two(**options, ranks=1, evaluations=evaluations))) == on_two


def test_a_wrong_spec_is_said_once(make: Any, doomed_worker: WorkerProcess, two: Any) -> None:
    (*_, failed) = carry_out(doomed_worker, two("Toi"))
    assert isinstance(failed, Failed)
    assert failed.kind == "usage"
    assert doomed_worker.ready is False
    assert doomed_worker.receive() is None
    assert doomed_worker.exit_description() == "the worker was ended because one of its ranks had failed"


def test_ranks_with_buffers_of_their_own_decide_together_what_is_evaluated(
    doomed_worker: WorkerProcess, two: Any
) -> None:
    averaging = {"class_path": "EMAWeightAveraging", "init_args": {"decay": 0.5}}
    request = two("RankDependentToy", init={"normed": True}, trainer={"callbacks": [averaging]})
    assert finished_message(carry_out(doomed_worker, request)).state == "complete"


def test_a_metric_of_which_each_device_has_another_value_is_refused(
    doomed_worker: WorkerProcess, two: Any
) -> None:
    request = two(parameters=HOT, data_class="toy_modules.DividedData", task="dry_run")
    (*_, failed) = carry_out(doomed_worker, request)
    assert isinstance(failed, Failed)
    assert failed.kind == "usage"
    assert "sync_dist=True" in failed.message


def test_a_failure_of_one_rank_ends_the_others_that_wait_for_it(
    doomed_worker: WorkerProcess, two: Any, tmp_path: Path
) -> None:
    until(doomed_worker, Ready)
    assert doomed_worker.ready
    pids = ranks_of(doomed_worker)
    assert len(pids) == 2
    store = meeting(doomed_worker)
    assert store.exists()
    (*_, failed) = carry_out(doomed_worker, two("RankDependentToy", init={"raise_at": 5}))
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.message) == ("error", "RuntimeError: the toy breaks (in rank 1 of 2)")
    assert "the toy breaks" in failed.traceback
    assert "the toy breaks" in (tmp_path / "logs" / "log.txt").read_text()
    assert not doomed_worker.ready
    assert doomed_worker.receive() is None
    doomed_worker.exit_description()
    assert_gone(pids)
    assert not store.parent.exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_takes_the_others_and_their_workers_with_it(
    doomed_worker: WorkerProcess, two: Any, tmp_path: Path, rank: int
) -> None:
    request = two(data={"batch_size": 3, "workers": 1}, trainer={"max_steps": 100_000})
    doomed_worker.send(request)
    until(doomed_worker, Report)
    pids = ranks_of(doomed_worker)
    everybody = [pid for rank_pid in pids for pid in (rank_pid, *children(rank_pid))]
    assert len(everybody) >= 4
    store = meeting(doomed_worker)
    os.kill(pids[rank], signal.SIGKILL)
    while (message := doomed_worker.receive()) is not None:
        assert not isinstance(message, Finished | Failed)
    assert doomed_worker.exit_description() == f"rank {rank} of the worker's 2 was killed by SIGKILL"
    assert_gone(everybody)
    assert not store.parent.exists()


def test_ranks_end_when_their_agent_is_killed(two: Any, make: Any, tmp_path: Path) -> None:
    (tmp_path / "request.json").write_bytes(
        encode(two(data={"batch_size": 3, "workers": 1}, trainer={"max_steps": 100_000}))
    )
    program = (
        "import pathlib, time\n"
        "from tempopt.training.messages import Report, decode\n"
        "from tempopt.agent.placement import Placement\n"
        "from tempopt.agent.process import WorkerProcess\n"
        "trainer = WorkerProcess(slot=0, placement=Placement(ranks=2))\n"
        f"trainer.send(decode(pathlib.Path({str(tmp_path / 'request.json')!r}).read_bytes()))\n"
        "while not isinstance(trainer.receive(), Report): pass\n"
        "print('trains', flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    ) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "trains\n"
        pids = children(agent.pid)
        assert len(pids) >= 4
        (store,) = tmp_path.glob("tempopt-ranks-*/store")
        agent.kill()
    assert_gone(pids)
    assert not store.parent.exists()
