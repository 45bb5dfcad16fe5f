"""Does the best temperature of a small training transfer to one of 4 x the width, length or steps?

Eight plans are trained at each size of three bundled tasks, with paired seeds that no other size has. What
has been recorded (recorded/transfer.parquet, and lines beside it that are not packed yet) is not trained
again. What the tables say is computed in benchmarks/transfer_shares.py.

    python -m benchmarks.transfer --seeds 8            # train what is missing, for an hour
    python -m benchmarks.transfer --pack               # put what there is into the table
    python -m benchmarks.transfer --table              # what it says
    python -m benchmarks.transfer --simulate 400       # how often that is wrong, where the truth is known
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.transfer_shares import (
    FEWEST,
    Interval,
    Runs,
    Transfer,
    optimum_shift,
    simulated,
    until_decided,
)
from tempopt.seeds import derive
from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature.scaling import head_dim_shift, length_shift
from tempopt.workers.messages import Evaluation, Failed, Finished, RunRequest
from tempopt.workers.placement import Placement
from tempopt.workers.process import WorkerProcess

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "benchmarks/recorded/transfer.parquet"
LINES = TABLE.with_suffix(".jsonl")
FULL = "full"
MOST_SEEDS = 24
_BLOCK = 8
_AT_END = [Evaluation(name="test", on="test")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    """A training that is smaller in one way.

    Args:
        set: Settings over the study's spec, as in ``--set``.
        width: Dimension of a head (of an embedding, where a loss is tempered) here and at full size.
        length: Number of keys (of pairs in a batch) here and at full size.
    """

    set: tuple[str, ...]
    width: tuple[int, int] | None = None
    length: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A bundled study, the plans that are trained of it, and its small sizes.

    Args:
        name: Name of the study.
        plain: The temperature that stands for τ = 1: the module's own.
        constants: The other constant temperatures.
        schedules: Pairs of first and last temperature of cosine schedules.
        small: The small sizes by name.
        set: Settings over the study's spec at all sizes, which make a training cheaper.
        prefix: Name of the temperature with a dot; attention's has none.
    """

    name: str
    plain: float
    constants: tuple[float, ...]
    schedules: tuple[tuple[float, float], ...]
    small: dict[str, Small]
    set: tuple[str, ...] = ()
    prefix: str = ""
    _specs: dict[str, StudySpec] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of all sizes, full size first."""
        return (FULL, *self.small)

    @property
    def plans(self) -> dict[str, dict[str, Any]]:
        """The eight plans by name, the plain one first: parameters of a run."""
        flat = {f"{tau:g}": {"temperature_init": tau} for tau in (self.plain, *self.constants)}
        moving = {
            f"{first:g} to {last:g}": {
                "schedule": "cosine",
                "temperature_init": first,
                "temperature_final": last,
            }
            for first, last in self.schedules
        }
        return {
            name: {f"{self.prefix}{key}": value for key, value in {"schedule": "constant", **each}.items()}
            for name, each in {**flat, **moving}.items()
        }

    def spec(self, size: str) -> StudySpec:
        """Return the study's spec at a size, validated at its end only."""
        if size not in self._specs:
            own = [*self.set, *(self.small[size].set if size != FULL else ())]
            steps = load_spec(ROOT / f"studies/{self.name}.yaml", own).trainer["max_steps"]
            at_end = f"trainer.val_check_interval={steps}"
            self._specs[size] = load_spec(ROOT / f"studies/{self.name}.yaml", [*own, at_end])
        return self._specs[size]


_ATTENTION = {"plain": 1.0, "constants": (0.125, 0.25, 0.5, 2.0, 4.0), "schedules": ((2.0, 0.5), (1.0, 0.25))}
TASKS = {
    task.name: task
    for task in (
        Task(
            name="clip_digits",
            plain=0.5,
            constants=(0.03125, 0.0625, 0.125, 0.25, 1.0),
            schedules=((0.5, 0.125), (0.25, 0.0625)),
            prefix="contrast.",
            small={
                "width": Small(set=("model.d_hidden=32", "model.d_embed=8"), width=(8, 32)),
                "batch": Small(set=("data.batch_size=50",), length=(50, 200)),
                "steps": Small(set=("trainer.max_steps=75",)),
            },
        ),
        Task(
            name="max_retrieval",
            **_ATTENTION,
            set=(
                "model.d_model=32",
                "data.sizes=[64, 256]",
                "data.num_sets=[512, 192]",
                "trainer.max_steps=160",
            ),
            small={
                "width": Small(set=("model.d_model=8",), width=(8, 32)),
                "length": Small(
                    set=("data.min_items=1", "data.max_items=4", "data.sizes=[16, 64]"),
                    length=(4, 16),
                ),
                "steps": Small(set=("trainer.max_steps=40",)),
            },
        ),
        Task(
            name="qk_norm_lm",
            **_ATTENTION,
            set=(
                "data.length=64",
                "data.lengths=[64]",
                "data.batch_size=8",
                "data.num_bytes=16384",
                "trainer.max_steps=160",
            ),
            small={
                "width": Small(set=("model.d_model=16",), width=(8, 32)),
                "length": Small(set=("data.length=16", "data.lengths=[16]"), length=(16, 64)),
                "steps": Small(set=("trainer.max_steps=40",)),
            },
        ),
    )
}


def recorded() -> pd.DataFrame:
    """Return all recorded trainings: task, size, seed, plan, validate, test, seconds, steps, outcome."""
    rows = pq.read_table(TABLE).to_pylist() if TABLE.exists() else []
    if LINES.exists():
        rows += [json.loads(line) for line in LINES.read_text().splitlines()]
    columns = ["task", "size", "seed", "plan", "outcome", "validate", "test", "seconds", "steps"]
    return pd.DataFrame(rows, columns=columns)


def missing(tasks: list[Task], seeds: int) -> Iterator[tuple[Task, str, int, str]]:
    """Yield task, size, seed and name of the plan of what is not recorded yet, a few seeds in turn."""
    known = recorded()
    done = set(zip(known.task, known["size"], known.seed, known.plan, strict=True))
    for first in range(0, seeds, _BLOCK):
        for task, seed in itertools.product(tasks, range(first, min(first + _BLOCK, seeds))):
            for size, plan in itertools.product(task.sizes, task.plans):
                if (task.name, size, seed, plan) not in done:
                    yield task, size, seed, plan


def train(tasks: list[Task], seeds: int, minutes: float) -> None:
    """Train what is missing with one worker, and write down each run as it ends.

    Args:
        tasks: What is trained.
        seeds: Seeds of each plan at each size.
        minutes: Begin no training after so long.
    """
    end = time.monotonic() + 60 * minutes
    worker = WorkerProcess(slot=0, place=Placement())
    try:
        for ticket, (task, size, seed, plan) in enumerate(list(missing(tasks, seeds))):
            if time.monotonic() > end:
                break
            request = RunRequest(
                ticket=ticket,
                attempt=1,
                program=task.spec(size).program(),
                parameters=task.plans[plan],
                seed=derive("transfer", task.name, size, seed),
                evaluations=_AT_END,
            )
            finished = _trained(worker, request)
            row = {
                "task": task.name,
                "size": size,
                "seed": seed,
                "plan": plan,
                "outcome": finished.state,
                "validate": finished.reports[-1][1] if finished.reports else math.nan,
                "test": finished.measurements.get("test", math.nan),
                "seconds": finished.seconds,
                "steps": finished.step,
            }
            with LINES.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(
                f"{task.name} {size} {seed} {plan}: {row['test']:.4f} in {row['seconds']:.1f} s", flush=True
            )
    finally:
        worker.kill()


def _trained(worker: WorkerProcess, request: RunRequest) -> Finished:
    worker.send(request)
    while True:
        message = worker.receive()
        if message is None:
            raise RuntimeError(f"{worker.obituary()}: start again, nothing recorded is lost")
        if isinstance(message, Failed):
            raise RuntimeError(f"{request.parameters}: {message.message}\n{message.traceback}")
        if isinstance(message, Finished):
            return message


def pack() -> None:
    """Put all that was recorded into the table, with what made it."""
    frame = recorded().sort_values(["task", "size", "seed", "plan"], ignore_index=True)
    made = {
        "command": "python -m benchmarks.transfer",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "machine": platform.machine(),
        **{name: version(name) for name in ("tempopt", "torch", "lightning", "numpy", "scipy")},
    }
    programs = {
        f"{task.name}, {size}": {"model": program.model, "data": program.data, "trainer": program.trainer}
        for task in TASKS.values()
        for size in task.sizes
        for program in (task.spec(size).program(),)
    }
    made["programs"] = json.dumps(programs, sort_keys=True)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    metadata = {**(table.schema.metadata or {}), b"tempopt": json.dumps(made).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), TABLE, compression="zstd")
    LINES.unlink(missing_ok=True)
    print(f"{TABLE.name}: {len(frame)} trainings, {TABLE.stat().st_size} bytes")


def runs_of(task: Task, size: str, known: pd.DataFrame) -> Runs:
    """Return the trainings of one size with more being better, of the seeds that all plans have.

    Raises:
        ValueError: A training diverged, so that it has no metric.
    """
    own = known[(known.task == task.name) & (known["size"] == size)]
    sign = 1.0 if task.spec(FULL).study.direction == "maximize" else -1.0
    tables = [
        own.pivot(index="seed", columns="plan", values=which).reindex(columns=list(task.plans))
        for which in ("validate", "test")
    ]
    whole = own.groupby("seed").plan.nunique() == len(task.plans)
    validate_SP, test_SP = (sign * each[whole].to_numpy(dtype=float) for each in tables)
    if not np.isfinite([validate_SP, test_SP]).all():
        raise ValueError(f"{task.name}, {size}: a training has no metric. See the column outcome of {TABLE}.")
    return Runs(validate_SP, test_SP)


def tables(tasks: list[Task]) -> str:
    """Return what is lost, where the best constants are and the means of all plans, as Markdown."""
    known = recorded()
    lost = [
        "| task, 4 × | seeds | chosen | best | place | its gain | possible gain | share lost | | order |",
        f"|{'---|' * 10}",
    ]
    places = [
        "| task, 4 × | seeds | best ln τ, small | best ln τ, full size | moved by | 0 | ½ ln d | −ln ln n |",
        f"|{'---|' * 8}",
    ]
    means = []
    for task in tasks:
        sizes = {size: runs_of(task, size, known) for size in task.sizes}
        sizes = {size: runs for size, runs in sizes.items() if len(runs.test_SP) >= FEWEST}
        if FULL not in sizes:
            continue
        means += [f"| {task.name} | {' | '.join(task.plans)} |", "|---|" + "---|" * len(task.plans)]
        means += [_means("full size" if size == FULL else f"¼ {size}", runs) for size, runs in sizes.items()]
        means.append("")
        for size, small in task.small.items():
            if size in sizes:
                lost.append(_lost(task, size, until_decided(sizes[size], sizes[FULL])))
                places.append(_places(task, size, small, sizes))
    return "\n".join([*lost, "", *places, "", *means])


def _lost(task: Task, size: str, found: Transfer) -> str:
    plans = list(task.plans)
    return (
        f"| {task.name}, {size} | {found.seeds} | {plans[found.chosen]} | {plans[found.best]} "
        f"| {found.place} | {_interval(found.gain)} | {_interval(found.possible)} "
        f"| {_interval(found.lost, share=True)} | {found.verdict} | {found.order} |"
    )


def _places(task: Task, size: str, small: Small, runs: dict[str, Runs]) -> str:
    """Return where the best constants are, and which rules are within the interval of what they moved by."""
    shift = optimum_shift(runs[size], runs[FULL], np.log([task.plain, *task.constants]))
    rules = (
        0.0,
        head_dim_shift(*small.width) if small.width else None,
        length_shift(*small.length) if small.length else None,
    )
    told = (
        "" if rule is None else f"{_number(rule)} {'in' if shift.moved.holds(rule) else 'outside'}"
        for rule in rules
    )
    seeds = min(len(runs[size].test_SP), len(runs[FULL].test_SP))
    places = (_interval(each) for each in (shift.small, shift.full, shift.moved))
    return f"| {task.name}, {size} | {seeds} | {' | '.join([*places, *told])} |"


def _means(name: str, runs: Runs) -> str:
    means = " | ".join(f"{abs(mean):.4f}" for mean in runs.test_SP.mean(0))
    return f"| {name}, {len(runs.test_SP)} seeds | {means} |"


def _interval(given: Interval, *, share: bool = False) -> str:
    number = _share if share else _number
    value = number(given.value) if math.isfinite(given.value) else "not known" if share else "beyond the grid"
    return f"{value} ({number(given.low)} to {number(given.high)})"


def _share(given: float) -> str:
    return f"{100 * given:.0f} %".replace("-", "−") if math.isfinite(given) else _number(given)


def _number(given: float) -> str:
    if math.isinf(given):
        return "−∞" if given < 0 else "∞"
    return f"{given:+.3f}".replace("-", "−")


def main() -> None:
    """Train, pack or print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tasks", nargs="*", default=list(TASKS), help=f"of {', '.join(TASKS)}; all by default"
    )
    parser.add_argument("--seeds", type=int, default=8, help=f"of each plan, at most {MOST_SEEDS}")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no training after so long")
    parser.add_argument("--pack", action="store_true", help="put what there is into the Parquet table")
    parser.add_argument("--table", action="store_true", help="print what there is")
    parser.add_argument("--simulate", type=int, default=0, help="so many planted worlds of each kind")
    given = parser.parse_args()
    if given.table:
        print(tables([TASKS[name] for name in given.tasks]))
        return
    if given.simulate:
        print(simulated(given.simulate))
        return
    if given.pack:
        pack()
        return
    train([TASKS[name] for name in given.tasks], min(given.seeds, MOST_SEEDS), given.minutes)


if __name__ == "__main__":
    main()
