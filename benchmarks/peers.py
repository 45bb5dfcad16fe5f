"""What a trial costs over its bare training: tempopt, Optuna with Lightning and Ray Tune, same work, one run.

All train the same 32 parameter sets (same model, data, steps and initial weights; none pruned), two at a time
with one thread each. The yardstick is the same Lightning trainings in two warm processes, a loop in each. All
tools keep the five validations of every training: tempopt and Optuna in SQLite, Ray in its files. Void unless
each of them ends with the loop's metric for each set, bit for bit: the operations and their order are the
same. They are compared keeping no checkpoints, and ``saving`` one at each validation, which is tempopt's
default and Lightning's, and what Ray's callback does.

Optuna is two programs that share a study, with the objective and the pruning callback of its documents. Ray
is a Tuner over a function, with workers that are used again. Lightning's logger, progress bar and summary are
off in all. tempopt is its own search, ended when the searching is done: its baseline and constant arms train
the first two of the sets, so that nothing is trained that others do not train.

CPU seconds are those of all processes, and what others took of the cores meanwhile is printed. A tool is
compared with the bare loop of the same round: a shared machine is not equally fast in all of them. Where a
training is next to nothing, what a trial costs beside it stands out from the noise.

Needs, besides the development extras, ray[tune] and optuna-integration[pytorch_lightning].
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import spent
from peers_tools import EPOCHS, TOOLS, PeerJob
from spent import Usage

FOLDER = Path(__file__).parent
SETS = 32
SHORT, LONG = PeerJob(SETS, 2), PeerJob(SETS, 40)
YARDSTICK = "bare"
WITHOUT = ", without its daemons"
_DAEMONS = (
    *("raylet/raylet", "gcs/gcs_server", "_private/log_monitor.py"),
    *("dashboard/agent.py", "runtime_env/agent/main.py", "_private/monitor.py"),
)


Costs = dict[tuple[str, PeerJob], list[Usage]]


def is_daemon(command: str) -> bool:
    """Return whether a command line is that of one of Ray's daemons."""
    # a worker names daemons among its arguments
    return any(name in command for name in _DAEMONS) and "default_worker.py" not in command


def carried_out(tool: str, job: PeerJob) -> tuple[Usage, dict[int, float]]:
    """Have a tool do a job in an empty folder; return what that cost, and the metric of each set."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(FOLDER.parent), str(FOLDER)]),
        # Ray would write a token into the home folder, and tell its makers that it is used
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    sides = range(2 if tool == YARDSTICK or tool.startswith("optuna") else 1)
    commands = [[sys.executable, str(FOLDER / "peers_tools.py"), tool, str(side)] for side in sides]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(asdict(job)))
        cost = spent.run(commands, folder=folder, environment=environment, is_daemon=is_daemon)
        values: dict[int, float] = {}
        for side in sides:
            side_values = json.loads((folder / f"found-{side}.json").read_text())
            values |= {int(number): value for number, value in side_values.items()}
    return cost, values


def measure_tools(tools: list[str], rounds: int) -> Costs:
    """Return what each tool's jobs cost, round by round, the tools taking turns."""
    costs: Costs = defaultdict(list)
    for _ in range(rounds):
        for job in (SHORT, LONG):
            expected: dict[int, float] = {}
            for tool in tools:
                cost, tool_values = carried_out(tool, job)
                expected = expected or tool_values
                assert sorted(tool_values) == list(range(job.num_sets)), (
                    f"void: {tool} has trained {sorted(tool_values)}"
                )
                differ = [number for number in tool_values if tool_values[number] != expected[number]]
                assert not differ, f"void: {tool} ends with other metrics than the bare loop, in {differ}"
                costs[tool, job].append(cost)
                print(
                    f"  {tool}: {job.num_sets} trainings of {EPOCHS * job.num_batches} steps, wall "
                    f"{cost.wall:.1f} s, CPU {cost.cpu:.1f} s; others took {cost.others:.2f} cores",
                    flush=True,
                )
    return costs


def table(tools: list[str], costs: Costs) -> None:
    """Print what a trial costs, by tool: the mean of all rounds, and its least and its most over bare."""

    def extra_over_bare(row: str, job: PeerJob) -> list[float]:
        tool, suffix, _ = row.partition(WITHOUT)
        spent_by = [cost.cpu - (cost.daemons if suffix else 0.0) for cost in costs[tool, job]]
        # of one round, since the machine is not equally fast in all of them
        pairs = zip(spent_by, costs[YARDSTICK, job], strict=True)
        return [1000 * (cpu - bare.cpu) / job.num_sets for cpu, bare in pairs]

    jobs = (SHORT, LONG)
    steps = [EPOCHS * job.num_batches for job in jobs]
    print("\n{} trials, two at a time, of {} steps and of {}, start-up included:\n".format(SETS, *steps))
    heads = [
        f"{quantity}, {n} steps"
        for n in steps
        for quantity in ("wall s", "CPU s", "over bare, CPU ms a trial")
    ]
    print("| " + " | ".join(["", *heads]) + " |\n|" + "---|" * (1 + len(heads)))
    for row in [*tools, *(f"{tool}{WITHOUT}" for tool in tools if tool.startswith("ray"))]:
        cells = []
        for job in jobs:
            of_it = costs[row.partition(WITHOUT)[0], job]
            cells += [f"{fmean(cost.wall for cost in of_it):.1f}", f"{fmean(cost.cpu for cost in of_it):.1f}"]
            extra_seconds = extra_over_bare(row, job)
            cells.append(f"{fmean(extra_seconds):.0f} ({min(extra_seconds):.0f} to {max(extra_seconds):.0f})")
        print(f"| {row} | {' | '.join(cells)} |")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1, help="how often each is measured")
    arguments = parser.parse_args()
    tools = list(TOOLS)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, ", end="")
    print("load {:.2f} {:.2f} {:.2f}".format(*os.getloadavg()), flush=True)
    costs = measure_tools(tools, arguments.rounds)
    table(tools, costs)
    print("\nload {:.2f} {:.2f} {:.2f}".format(*os.getloadavg()))


if __name__ == "__main__":
    main()
