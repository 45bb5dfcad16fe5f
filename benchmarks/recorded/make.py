"""Record trainings: every configuration of a fixed design, three seeds each, with its whole validation curve.

What has been recorded is not trained again, whichever of the two forms it is in: the tables beside this file
(Parquet, in the repository) and the lines beside them that a run not yet packed has left. The configurations
are trained in their order, of each task as many, so that whatever there is makes a design.

    python -m benchmarks.recorded.make --until 192 --workers 2     # go on, for hours
    python -m benchmarks.recorded.make --pack                      # put what there is into the tables
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Iterator
from importlib.metadata import version
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.recorded.tasks import SEEDS, TASKS, Task
from tempopt.agent.placement import Placement
from tempopt.agent.process import WorkerProcess
from tempopt.seeds import derive
from tempopt.spec.program import Program
from tempopt.training.messages import Evaluation, Failed, Finished, Message, RunRequest

FOLDER = Path(__file__).parent
_BLOCK = 8
_AT_END = [
    Evaluation(name="validate", on="validate"),
    Evaluation(name="test", on="test"),
]


def table_path(task: str) -> Path:
    """Return where a task's table lies."""
    return FOLDER / f"{task}.parquet"


def lines_path(task: str) -> Path:
    """Return where what is not in the table yet is written down."""
    return FOLDER / f"{task}.jsonl"


def recorded_rows(task: str) -> list[dict[str, Any]]:
    """Return all that was recorded of a task, a mapping for each training."""
    rows = pq.read_table(table_path(task)).to_pylist() if table_path(task).exists() else []
    if lines_path(task).exists():
        rows += [json.loads(line) for line in lines_path(task).read_text().splitlines()]
    return rows


def planned_trainings(
    tasks: list[Task], num_configurations: int
) -> Iterator[tuple[Task, int, int, dict[str, Any]]]:
    """Yield what is to be trained: task, configuration, seed and parameters."""
    recorded_keys = {
        task.name: {(row["configuration"], row["seed"]) for row in recorded_rows(task.name)} for task in tasks
    }
    lists = {task.name: task.configurations(num_configurations) for task in tasks}
    for first in range(0, num_configurations, _BLOCK):
        for task in tasks:
            for number in range(first, min(first + _BLOCK, num_configurations)):
                for seed in range(SEEDS):
                    if (number, seed) not in recorded_keys[task.name]:
                        yield task, number, seed, lists[task.name][number]


def row(
    number: int, seed: int, parameters: dict[str, Any], result: Finished, interval: int
) -> dict[str, Any]:
    """Return what is kept of a training."""
    reports = [(int(step), value) for step, value in result.reports]
    last = reports[-1][0] if reports else 0
    end = result.state == "complete"
    flat = parameters.get("schedule") == "constant"

    def under_last(step: int) -> bool:
        return (last - step) // interval % 2 == 0

    return {
        "configuration": number,
        "seed": seed,
        "parameters": json.dumps(parameters, sort_keys=True),
        "outcome": result.state,
        "final_steps": [step for step, _ in reports if end and (flat or under_last(step))],
        "final_values": [value for step, value in reports if end and (flat or under_last(step))],
        "current_steps": [
            step for step, _ in reports if end and (flat or step == last or not under_last(step))
        ],
        "current_values": [
            v for step, v in reports if end and (flat or step == last or not under_last(step))
        ],
        "test": result.measurements.get("test", math.nan),
        "seconds": result.seconds,
        "steps": result.step,
    }


class Recorder:
    """Trains with warm workers of tempopt's own, and writes down each run as it ends.

    Args:
        tasks: What is recorded.
        num_configurations: How many configurations of each.
        workers: How many workers, each a process with one thread.
        minutes: Begin no training after so long.
    """

    def __init__(self, tasks: list[Task], *, num_configurations: int, workers: int, minutes: float) -> None:
        self._programs: dict[str, Program] = {task.name: task.spec.lightning_program() for task in tasks}
        self._queue = list(enumerate(planned_trainings(tasks, num_configurations)))[::-1]
        self._all = len(self._queue)
        self._requests: dict[int, tuple[Task, int, int, dict[str, Any]]] = {}
        self._end = time.monotonic() + 60 * minutes
        self._workers = workers

    def run(self) -> None:
        """Record everything that is wanted, or until the time is over."""
        print(f"{self._all} trainings to record", flush=True)
        workers = [WorkerProcess(slot=slot, placement=Placement()) for slot in range(self._workers)]
        try:
            for worker in workers:
                self._give(worker)
            while self._requests:
                connections = {worker.connection: worker for worker in workers}
                for ready in wait(list(connections)):
                    worker = connections[ready]  # type: ignore[index]
                    message = worker.receive()
                    if message is None:
                        raise RuntimeError(
                            f"{worker.exit_description()}: start again, nothing recorded is lost"
                        )
                    self._hear(worker, message)
        finally:
            for worker in workers:
                worker.kill()

    def _give(self, worker: WorkerProcess) -> None:
        if not self._queue or time.monotonic() > self._end:
            return
        ticket, self._requests[ticket] = (entry := self._queue.pop())[0], entry[1]
        task, _, seed, parameters = entry[1]
        worker.send(
            RunRequest(
                ticket=ticket,
                attempt=1,
                program=self._programs[task.name],
                parameters=parameters,
                seed=derive("recorded", task.name, seed),
                evaluations=_AT_END,
            )
        )

    def _hear(self, worker: WorkerProcess, message: Message) -> None:
        if isinstance(message, Failed):
            raise RuntimeError(f"{self._requests[message.ticket]}: {message.message}\n{message.traceback}")
        if isinstance(message, Finished):
            task, number, seed, parameters = self._requests.pop(message.ticket)
            new_row = row(number, seed, parameters, message, task.every)
            with lines_path(task.name).open("a") as file:
                file.write(json.dumps(new_row) + "\n")
            print(
                f"{task.name} {number}.{seed}: {new_row['test']:.4f} in {new_row['seconds']:.1f} s",
                flush=True,
            )
            self._give(worker)


def pack(task: Task) -> None:
    """Put all that was recorded of a task into its table, with what made it."""
    rows = recorded_rows(task.name)
    if not rows:
        return
    frame = pd.DataFrame(rows).sort_values(["configuration", "seed"], ignore_index=True)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    provenance = {
        "command": "python -m benchmarks.recorded.make",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "machine": platform.machine(),
        **{name: version(name) for name in ("tempopt", "torch", "lightning", "numpy", "scipy")},
        "program": json.dumps(
            {"model": task.spec.model, "data": task.spec.data, "trainer": task.spec.trainer}, sort_keys=True
        ),
    }
    metadata = {**(table.schema.metadata or {}), b"tempopt": json.dumps(provenance).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), table_path(task.name), compression="zstd")
    lines_path(task.name).unlink(missing_ok=True)
    print(
        f"{table_path(task.name).name}: {len(rows)} trainings, {table_path(task.name).stat().st_size} bytes"
    )


def main() -> None:
    """Record, or pack what was recorded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tasks", nargs="*", default=list(TASKS), help=f"of {', '.join(TASKS)}; all by default"
    )
    parser.add_argument("--until", type=int, default=192, help="configurations of each")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no training after so long")
    parser.add_argument("--pack", action="store_true")
    args = parser.parse_args()
    tasks = [TASKS[name] for name in args.tasks]
    if args.pack:
        for task in tasks:
            pack(task)
        return
    Recorder(tasks, num_configurations=args.until, workers=args.workers, minutes=args.minutes).run()


if __name__ == "__main__":
    main()
