"""What checkpoints cost: CPU and wall time of a run that writes one at every validation beside one without.

Both train the same with one thread in one process, taking turns, each once before the clock runs. They have
to end with the same reports and measurements, bit for bit, or the benchmark is void.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

# What stands in the study's spec, and what a larger model has instead.
TASKS: dict[str, dict[str, Any]] = {
    "max_retrieval": {"study": "max_retrieval"},
    "25 M parameters": {
        "study": "source_lm",
        "model": {"d_model": 512, "num_layers": 8, "num_heads": 8, "lr": 1e-4},
        "data": {"batch_size": 8, "lengths": [64], "num_bytes": 2048},
        "trainer": {"max_steps": 40, "val_check_interval": 10},
    },
}


class Bytes:
    """A channel to nobody that counts what was kept."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def send(self, message: Any) -> None:
        """Note a checkpoint's size."""
        if hasattr(message, "saved"):
            self.sizes.append(message.saved.size)

    def stop(self, request: Any) -> None:
        """Return None: the run ends by itself."""


def request(task: str, checkpoints: str | None) -> Any:
    """Return the request of one run at temperature 1."""
    import yaml

    from tempopt.workers.messages import Program, RunRequest

    change = TASKS[task]
    text = (Path(__file__).parents[1] / "studies" / f"{change['study']}.yaml").read_text()
    spec: dict[str, Any] = yaml.safe_load(text)
    for section in ("model", "data"):
        spec[section].setdefault("init_args", {}).update(change.get(section, {}))
    program = Program(
        model=spec["model"],
        data=spec["data"],
        trainer={**spec["trainer"], **change.get("trainer", {}), "accelerator": "cpu"},
        attach=None,
        metric=spec["study"]["metric"],
        validate_at="final",
        data_seed=0,
    )
    return RunRequest(ticket=1, attempt=1, program=program, parameters={}, seed=1, checkpoints=checkpoints)


def once(task: str, checkpoints: str | None) -> dict[str, Any]:
    """Return what one run took, wrote and found."""
    from tempopt.training.checkpoints import RunCheckpoints
    from tempopt.training.run import Run

    channel = Bytes()
    save = RunCheckpoints.save
    writing = 0.0

    def timed(*given: Any) -> Any:
        nonlocal writing
        began = time.process_time()
        try:
            return save(*given)
        finally:
            writing += time.process_time() - began

    RunCheckpoints.save = timed  # type: ignore[method-assign]
    try:
        cpu, wall = time.process_time(), time.monotonic()
        finished = Run(request(task, checkpoints), channel).execute()
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    finally:
        RunCheckpoints.save = save  # type: ignore[method-assign]
    return {
        "cpu": cpu,
        "wall": wall,
        "writing cpu": writing,
        "writing wall": finished.checkpoint_seconds,
        "sizes": channel.sizes,
        "found": (finished.state, finished.reports, finished.metrics),
    }


def compare(task: str, repeat: int, base: str) -> dict[str, float]:
    """Return the cost of checkpoints on one task: the least of several turns of each kind."""
    turns: dict[str, list[dict[str, Any]]] = {"none": [], "kept": []}
    for turn in range(repeat + 1):
        # each kind goes first in every other turn
        for kind in list(turns)[:: 1 if turn % 2 else -1]:
            turns[kind].append(once(task, f"{base}/{turn}" if kind == "kept" else None))
    found = turns["none"][0]["found"]
    assert found[0] == "complete"
    for each in (*turns["none"], *turns["kept"]):
        assert each["found"] == found, f"void: {each['found']} instead of {found}"
    sizes = turns["kept"][0]["sizes"]
    assert sizes, "void: no checkpoint was written"
    best = {
        f"{kind} {what}": min(each[what] for each in done[1:])
        for kind, done in turns.items()
        for what in ("cpu", "wall", "writing cpu", "writing wall")
    }
    return {
        "run CPU s": best["none cpu"],
        "CPU ratio": best["kept cpu"] / best["none cpu"],
        "wall ratio": best["kept wall"] / best["none wall"],
        "writing % of CPU": 100 * best["kept writing cpu"] / best["none cpu"],
        "checkpoints": len(sizes),
        "MB each": sum(sizes) / len(sizes) / 1e6,
        "CPU ms each": 1000 * best["kept writing cpu"] / len(sizes),
        "wall ms each": 1000 * best["kept writing wall"] / len(sizes),
    }


def main() -> None:
    """Print the table."""
    import logging
    import warnings

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=list(TASKS), action="append")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--checkpoints", help="where to write instead of a temporary folder: a folder or a URL"
    )
    arguments = parser.parse_args()
    import lightning  # noqa: F401  # sets the level of its own log as it is loaded

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for task in arguments.task or list(TASKS):
        with tempfile.TemporaryDirectory() as folder:
            row = compare(task, arguments.repeat, arguments.checkpoints or folder)
        print(f"{task:15}", "  ".join(f"{name} {value:.3f}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
