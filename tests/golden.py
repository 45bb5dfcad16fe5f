"""Record the results of bundled studies and compare two records, to check that a change keeps them.

Six bundled studies, shortened, with their own seeds, one worker and SQLite. A record has one JSON file for
each study: its tickets, its measurements, `tempopt show --json` and both formats of `tempopt export`. It has
no times, no hosts and no identities of code. The same code on the same machine makes the same record.

    python -m tests.golden record DIR
    python -m tests.golden compare DIR1 DIR2
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tempopt.storage.opening import open_store

_SHORT = {"arms": {"baseline": 2, "constant": 3}, "candidates": 2}
_STUDIES: dict[str, tuple[dict[str, int], int]] = {
    "clip_digits": ({"max_steps": 60, "val_check_interval": 20}, 6),
    "distillation": ({"max_steps": 120, "val_check_interval": 40}, 6),
    "gumbel_digits": ({"max_steps": 60, "val_check_interval": 20}, 6),
    "associative_recall": ({"max_steps": 30, "val_check_interval": 10}, 6),
    "entropy_control_digits": ({"max_steps": 24, "val_check_interval": 8}, 6),
    "digits_stock": ({"max_steps": 24, "val_check_interval": 8}, 6),
}
"""Trainer arguments and confirming seeds by study."""
_TRIALS = 12
_TICKET = (
    *("kind", "arm", "number", "round", "candidate", "pair", "seed", "state", "outcome", "attempt"),
    *("parameters", "sampled", "value", "steps", "total_steps", "diverged_at"),
)
_VOLATILE = ("seconds", "code", "agents", "storage", "created", "started", "finished", "version", "memory")
"""Parts of names of keys whose values differ from one run to the next."""


def _run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    program = [sys.executable, "-m", "tempopt", *command]
    process = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True)
    if process.returncode:
        raise SystemExit(
            f"{' '.join(command)} ended with {process.returncode}:\n{process.stdout}{process.stderr}"
        )
    return process.stdout


def _normalise(value: Any) -> Any:
    """Return JSON data without what differs from one run to the next; not finite numbers as text."""
    if isinstance(value, dict):
        return {
            name: _normalise(child)
            for name, child in value.items()
            if not any(part in name for part in _VOLATILE)
        }
    if isinstance(value, list | tuple):
        return [_normalise(child) for child in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _rows(folder: Path, name: str) -> tuple[list[Any], list[Any]]:
    """Return the tickets and the measurements of a study, in the order of kinds and numbers."""
    with open_store(f"sqlite:///{folder / 'tempopt.db'}", create=False) as store:
        study = store.load_study(name)
        tickets = sorted(store.tickets(study.id), key=lambda ticket: (ticket.kind, ticket.number))
        measurements = store.measurements(study.id)
    names = {ticket.id: f"{ticket.kind}-{ticket.number}" for ticket in tickets}
    rows = [{column: getattr(ticket, column) for column in _TICKET} for ticket in tickets]
    for row in rows:
        if row["outcome"] == "pruned":
            # a worker makes some steps more before it hears that its run is pruned
            row["steps"] = None
    measurement_rows = sorted((names[row.ticket_id], row.name, row.step, row.value) for row in measurements)
    untimed = [row for row in measurement_rows if "time" not in row[1]]
    return _normalise(rows), _normalise(untimed)


def _study(name: str, folder: Path) -> dict[str, Any]:
    """Run a study in an empty folder, and return its record."""
    trainer, confirm = _STUDIES[name]
    settings = {f"trainer.{key}": value for key, value in trainer.items()}
    settings |= {f"study.{key}": value for key, value in _SHORT.items()}
    settings |= {"study.seeds.choose": 2, "study.seeds.confirm": confirm}
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    run = ["--storage", "sqlite:///tempopt.db"]
    _run(["search", name, *run, "--trials", str(_TRIALS), "--workers", "1", "--no-report", *options], folder)
    tickets, measurements = _rows(folder, name)
    return {
        "tickets": tickets,
        "measurements": measurements,
        "show": _normalise(json.loads(_run(["show", name, *run, "--json"], folder))),
        "yaml": _run(["export", name, *run], folder).splitlines(),
        "python": _run(["export", name, *run, "--format", "python"], folder).splitlines(),
    }


def record(folder: Path) -> None:
    """Write the record of each study into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _STUDIES:
        with tempfile.TemporaryDirectory() as workdir:
            text = json.dumps(_study(name, Path(workdir)), indent=1, sort_keys=True)
        (folder / f"{name}.json").write_text(f"{text}\n")
        print(name, flush=True)


def _differences(first: Any, second: Any, path: str = "") -> Iterator[str]:
    """Return a line for each key at which two pieces of JSON data differ."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in sorted(first.keys() | second.keys()):
            if key not in first or key not in second:
                yield f"{path}.{key}: only in the {'first' if key in first else 'second'}"
            else:
                yield from _differences(first[key], second[key], f"{path}.{key}")
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, pair in enumerate(zip(first, second, strict=True)):
            yield from _differences(*pair, f"{path}[{index}]")
    elif isinstance(first, list) and isinstance(second, list):
        yield f"{path}: {len(first)} and {len(second)} items"
    elif first != second:
        yield f"{path}: {first!r} and {second!r}"


def compare(first: Path, second: Path) -> bool:
    """Print how two records differ; return whether they are equal."""
    is_equal = True
    for name in _STUDIES:
        records = [json.loads((folder / f"{name}.json").read_text()) for folder in (first, second)]
        for line in _differences(*records, name):
            print(line)
            is_equal = False
    return is_equal


def main() -> None:
    """Record, or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("record").add_argument("folder", type=Path)
    comparing = actions.add_parser("compare")
    comparing.add_argument("first", type=Path)
    comparing.add_argument("second", type=Path)
    arguments = parser.parse_args()
    if arguments.action == "record":
        record(arguments.folder)
    elif not compare(arguments.first, arguments.second):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
