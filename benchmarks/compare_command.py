"""How often does ``tempopt compare --command`` show a gain of two equal variants, and of one that is better?

The value of a run is drawn from the normal distribution with standard deviation 1, anew for each seed and
variant; lower is better. With the second variant it is lower by 2, or the run has no value where it would be
among the worst 30 %. By default only the runs are simulated: which there are and what is shown is decided by
tempopt. With ``--real`` the command itself runs, with its agent, workers and database, and a cheap program.

    python -m benchmarks.compare_command
    python -m benchmarks.compare_command --real --comparisons 200
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import json
import random
import shlex
import sys
import tempfile
from collections import Counter
from pathlib import Path

from scipy.stats import binomtest

from benchmarks.simulated.whole import row
from tempopt import cli
from tempopt.spec.comparison_spec import command_study, comparison_spec
from tempopt.storage.rows import TicketRow
from tempopt.verdict.set_comparison import evaluate_comparison
from tempopt.verdict.stages import initial_tickets, next_tickets

_WORLDS = ("equal", "better by 2 sd", "without its worst 30 %")
_CODES = {"better": 0, "not_shown": 3, "worse": 4}


def draw_loss(seed: str, variant: str, world: str) -> float | None:
    """Return the loss of a run; None if it crashes."""
    noise = random.Random(f"{seed} {variant}").gauss(0, 1)
    if variant == "old" or world == "equal":
        return noise
    if world == "better by 2 sd":
        return noise - 2
    return None if noise > 0.5244 else noise


_PROGRAM = f"""\
import random, sys
{inspect.getsource(draw_loss).replace(" -> float | None", "").replace(": str", "")}
loss = draw_loss(*sys.argv[1:])
sys.exit(1) if loss is None else print("loss:", loss)
"""


def main() -> None:
    """Run the comparisons and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--comparisons", type=int, default=2000, help="of each kind")
    parser.add_argument("--real", action="store_true", help="run the command")
    args = parser.parse_args()
    print("| new variant | comparisons | better | no difference | worse | better, 95 % interval | runs |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for world in _WORLDS:
        outcomes: Counter[str] = Counter()
        num_runs = 0
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            Path("program.py").write_text(_PROGRAM, encoding="utf-8")
            for _ in range(args.comparisons):
                outcome, count = (_compare if args.real else _simulate)(world)
                outcomes[outcome] += 1
                num_runs += count
        low, high = binomtest(outcomes["better"], args.comparisons).proportion_ci()
        counts = " | ".join(str(outcomes[outcome]) for outcome in _CODES)
        print(
            f"| {world} | {args.comparisons} | {counts} | {low:.1%} to {high:.1%} | "
            f"{num_runs / args.comparisons:.1f} |",
            flush=True,
        )


def _simulate(world: str) -> tuple[str, int]:
    """Return the outcome of one comparison without processes, and its number of runs."""
    data = command_study("program.py {seed} {variant}", metric="loss", direction="minimize")
    spec = comparison_spec(data, vary={"variant": ["old", "new"]})
    rows: list[TicketRow] = []
    tickets = initial_tickets(spec)
    while tickets:
        for ticket in tickets:
            assert ticket.parameters is not None
            loss = draw_loss(str(ticket.seed), ticket.parameters["variant"], world)
            state, outcome = ("done", "complete") if loss is not None else ("failed", "failed")
            rows.append(row(ticket, len(rows), state=state, outcome=outcome, value=loss))
        tickets = next_tickets(rows, spec)
    comparison = evaluate_comparison(rows, spec)
    assert comparison is not None
    return comparison.outcome, len(rows)


def _compare(world: str) -> tuple[str, int]:
    """Return the outcome of one comparison, and its number of runs."""
    command = f"{shlex.quote(sys.executable)} -S -E program.py {{seed}} {{variant}} {shlex.quote(world)}"
    words = ["--command", command, "--vary", "variant=old,new", "--metric", "loss", "--direction", "minimize"]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
        code = cli.main(["compare", *words, "--workers", "2", "--no-report", "--json"])
    result = json.loads(output.getvalue())
    outcome: str = result["comparison"]["outcome"]
    assert code == _CODES[outcome], f"exit code {code} for {outcome}"
    return outcome, sum(count["done"] + count["failed"] for count in result["tickets"].values())


if __name__ == "__main__":
    main()
