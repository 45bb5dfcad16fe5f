"""``tempopt plan``: how many runs a study takes, for how long, and what it can show, before it is begun."""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console
from rich.table import Table

from tempopt.cli import DONE
from tempopt.forecast.power import LARGE_GAIN
from tempopt.forecast.runs import Span
from tempopt.forecast.words import lasting, on, runs_text
from tempopt.spec.load import load_spec
from tempopt.study import api
from tempopt.study.planning import StudyForecast
from tempopt.study.progress import LABELS

_HOUR = 3600.0


def plan(arguments: argparse.Namespace) -> int:
    """Print the forecast of a study; nothing is written."""
    found = api.plan(
        load_spec(arguments.spec, arguments.set),
        storage=arguments.url,
        workers=arguments.workers,
        trials=arguments.trials,
        earlier=arguments.earlier,
        run_hours=arguments.run_hours,
    )
    if arguments.json:
        print(json.dumps(found.to_json(), indent=2))
        return DONE
    where = on(found.run.workers, found.run.gpus or 0.0)
    print(f"{found.name}: {runs_text(found.runs)}\n")
    Console(file=sys.stdout, width=max(Console().width, 76)).print(_table(found, where))
    print("", found.run.text, *_lines(found), sep="\n")
    return DONE


def _table(found: StudyForecast, where: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("runs", no_wrap=True)
    for name in (f"gain of {LARGE_GAIN:g} sd: min", "typical", "max", "no gain: min", "typical", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    for kind, span in found.runs.gain.items():
        no_gain = found.runs.no_gain.get(kind, Span(min=0, typical=0, max=0))
        table.add_row(LABELS[kind], *_cells(span), *_cells(no_gain))
    totals = [found.runs.total(gain=gain) for gain in (True, False)]
    table.add_row("all", *(cell for span in totals for cell in _cells(span)), style="bold")
    hours = [known for total in totals if (known := found.hours(total))]
    if hours:
        cells = (lasting(each * _HOUR) for span in hours for each in (span.min, span.typical, span.max))
        table.add_row(f"time on {where}", *cells)
    cards = [known for total in totals if (known := found.gpu_hours(total))]
    if cards and found.run.gpus:
        cells = (f"{each:.3g}" for span in cards for each in (span.min, span.typical, span.max))
        table.add_row("GPU-hours", *cells)
    return table


def _cells(span: Span) -> list[str]:
    return [f"{each:.0f}" for each in (span.min, span.typical, span.max)]


def _lines(found: StudyForecast) -> list[str]:
    lines = [
        f"study.limits.{name} may end the search sooner, which is not counted here." for name in found.limited
    ]
    lines += ["", f"Power: {found.power_text}"]
    if found.detectable.comparisons > 1:
        lines.append(
            "It has to be shown against the baseline and against the winner's twin: its other parameters at "
            "the baseline's temperature."
        )
    return lines
