"""What a run of a command costs beside the bare script: CPU seconds of agent and worker, and processes.

    python benchmarks/program_cost.py [--runs 40]

Compares a script that is run by itself with the same as a comparison of two parameter sets, of two sizes: the
difference between the sizes is the cost of runs alone, without what a study costs once. Asserts that the
values are those of the script.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import tempopt

SCRIPT = """
import sys
print("loss", (float(sys.argv[2]) - 2) ** 2 + int(sys.argv[1]) % 7 / 100)
"""
MOST_CPU_SECONDS = 0.05


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all that have ended below it."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def bare_cost(runs: int) -> float:
    """Return the CPU seconds of a run of the script by itself."""
    start = cpu_seconds()
    for seed in range(runs):
        output = subprocess.check_output([sys.executable, "script.py", str(seed), "1.0"], text=True)
        assert float(output.split()[1]) == 1 + seed % 7 / 100
    return (cpu_seconds() - start) / runs


def study_cost(pairs: int) -> float:
    """Return the CPU seconds of a comparison of two sets on so many seeds."""
    spec = {
        "study": {"name": f"cost{pairs}", "metric": "loss", "direction": "minimize"},
        "program": {"command": "python script.py {seed} {gain}", "metric": "loss"},
    }
    start = cpu_seconds()
    with contextlib.redirect_stderr(io.StringIO()):
        result = tempopt.compare(
            spec,
            {"A": {"gain": 1.0}, "B": {"gain": 3.0}},
            pairs=pairs,
            storage="sqlite:///cost.db",
            workers=1,
            progress=False,
        )
    seconds = cpu_seconds() - start
    assert len(result.runs) == 2 * pairs
    assert all(run.value == 1 + run.seed % 7 / 100 and run.attempt == 1 for run in result.runs)
    return seconds


def main() -> None:
    """Print the cost of a run with and without an agent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    runs: int = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("script.py").write_text(SCRIPT)
        bare_seconds = bare_cost(runs)
        # imports, and the tables of the database
        study_cost(2)
        small_seconds, large_seconds = study_cost(runs // 4), study_cost(runs // 4 + runs // 2)
        os.chdir("/")
    per_run = (large_seconds - small_seconds) / (2 * (runs // 2))
    print(f"the script alone: {1000 * bare_seconds:.1f} ms of CPU a run")
    print(f"by an agent:      {1000 * per_run:.1f} ms of CPU a run")
    extra_seconds = per_run - bare_seconds
    print(f"difference:       {1000 * extra_seconds:.1f} ms; at most {1000 * MOST_CPU_SECONDS:.0f} ms")
    assert extra_seconds < MOST_CPU_SECONDS


if __name__ == "__main__":
    main()
