"""What a report costs (goals: 5 s of CPU for 1,000 trials, 20 s for 10,000; 6 MB, or 2 MB without plotly.js).

Each study is made as rows, and made a page of by ``tempopt report`` in a process of its own. Void unless the
page has every plot with its marks and no torch was loaded.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.report.made_study import World, make, write

_PROGRAM = """
import sys
from tempopt.cli import main
code = main(sys.argv[1:])
assert not {"torch", "lightning"} & set(sys.modules), "a heavy room was entered"
sys.exit(code)
"""
_KEYS = ("differences", "schedule", "depth", "history", "schedules", "landscape", "importance")
_KEYS += ("entropy", "heads", "pruned", "pruning_check", "cost")
_ROUNDS = 2


def _values(array: Any) -> list[Any]:
    """Return the numbers of an array as plotly has it: a list, or typed bytes."""
    if isinstance(array, dict) and "bdata" in array:
        return np.frombuffer(base64.b64decode(array["bdata"]), dtype=array["dtype"]).tolist()
    return list(array) if isinstance(array, list | tuple) else []


def _check(page: str, trials: int) -> None:
    """Raise AssertionError unless the page shows the study."""
    match = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    figures = json.loads(match[1])
    assert set(figures) == set(_KEYS), set(_KEYS) ^ set(figures)
    marks = sum(
        len(_values(trace.get("x"))) for trace in figures["history"]["data"] if trace["mode"] == "markers"
    )
    assert marks == trials if trials <= 2000 else 2000 <= marks <= 2100, marks
    assert f"{trials:,}".replace(",", " ") in page
    for key in figures:
        assert f'id="plot-{key}"' in page


def measure(folder: Path, trials: int, reports: int) -> None:
    """Print a line for a study of so many trials, with and without plotly.js in the page."""
    database = folder / f"{trials}.db"
    write(f"sqlite:///{database}", make(World(trials=trials, reports=reports, layers=6, heads=8)))
    for js in ("inline", "cdn"):
        cpu_times = []
        for _ in range(_ROUNDS):
            usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
            words = ["report", "pairs", "--storage", f"sqlite:///{database}", "-o", "a.html"]
            command = [sys.executable, "-c", _PROGRAM, *words, "--plotlyjs", js]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
            usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_times.append(
                usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime
            )
        page = (folder / "a.html").read_text(encoding="utf-8")
        _check(page, trials)
        size = len(page.encode()) / 1e6
        print(f"{trials:6} trials, {js:6}  {min(cpu_times):5.2f} s of CPU  {size:5.2f} MB")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, nargs="*", default=[40, 1000, 10_000])
    parser.add_argument("--reports", type=int, default=20, help="validations of a trial (default: 20)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for trials in arguments.trials:
            measure(Path(folder), trials, arguments.reports)


if __name__ == "__main__":
    main()
