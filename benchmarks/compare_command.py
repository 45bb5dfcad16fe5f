"""How often does ``tempopt compare --command`` show a gain of two equal variants, and of one that is better?

The command is the real one with its agent, workers and database; only the program that it runs is cheap. The
value of a run is drawn from the normal distribution with standard deviation 1, anew for each seed and
variant, and is lower by the gain with the second variant.

    python -m benchmarks.compare_command --comparisons 200
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shlex
import sys
import tempfile
from collections import Counter
from pathlib import Path

from scipy.stats import binomtest

from tempopt import cli

_GAINS = (0.0, 2.0)
_PROGRAM = """\
import random, sys
seed, variant, gain = sys.argv[1:]
print("loss:", random.Random(f"{seed} {variant}").gauss(0, 1) - float(gain) * (variant == "new"))
"""
_CODES = {"better": 0, "not_shown": 3, "worse": 4}


def main() -> None:
    """Run the comparisons and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--comparisons", type=int, default=200, help="of each gain")
    parser.add_argument("--pairs", default="4..16", help="as of tempopt compare")
    args = parser.parse_args()
    print("| gain, sd | comparisons | better | no difference | worse | better, 95 % interval | runs |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for gain in _GAINS:
        outcomes: Counter[str] = Counter()
        num_runs = 0
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            Path("program.py").write_text(_PROGRAM, encoding="utf-8")
            for _ in range(args.comparisons):
                outcome, count = _compare(gain, args.pairs)
                outcomes[outcome] += 1
                num_runs += count
        low, high = binomtest(outcomes["better"], args.comparisons).proportion_ci()
        counts = " | ".join(str(outcomes[outcome]) for outcome in ("better", "not_shown", "worse"))
        print(
            f"| {gain:g} | {args.comparisons} | {counts} | {low:.1%} to {high:.1%} | "
            f"{num_runs / args.comparisons:.1f} |",
            flush=True,
        )


def _compare(gain: float, pairs: str) -> tuple[str, int]:
    """Return the outcome of one comparison, and its number of runs."""
    command = f"{shlex.quote(sys.executable)} -S -E program.py {{seed}} {{variant}} {gain}"
    words = ["--command", command, "--vary", "variant=old,new", "--metric", "loss", "--direction", "minimize"]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
        code = cli.main(["compare", *words, "--pairs", pairs, "--workers", "2", "--no-report", "--json"])
    result = json.loads(output.getvalue())
    outcome: str = result["comparison"]["outcome"]
    assert code == _CODES[outcome], f"exit code {code} for {outcome}"
    return outcome, sum(count["done"] for count in result["tickets"].values())


if __name__ == "__main__":
    main()
