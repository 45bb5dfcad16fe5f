"""How long the light doors take, as multiples of ``python -c pass`` (goal for ``--help``: at most 10)."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "tempopt --help": ["-c", "import sys; from tempopt.cli import main; sys.exit(main(['--help']))"],
    "tempopt list": ["-c", "import sys; from tempopt.cli import main; sys.exit(main(['list']))"],
}
ROUNDS = 15


def main() -> None:
    """Print the median of each command, run in turns."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for name, arguments in COMMANDS.items():
                clock = time.perf_counter()
                subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, check=False)
                times[name].append(time.perf_counter() - clock)
    bare = statistics.median(times["python -c pass"])
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(f"{name:16} {1000 * median:6.1f} ms  x {median / bare:.1f}")


if __name__ == "__main__":
    main()
