"""``tempopt plan``: what a study will cost and what it can show, before it is begun."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from tempopt.cli import DONE
from tempopt.forecast.runs import TRAINED, Span
from tempopt.forecast.words import effect_text, gain_text, lasting, on, percent, runs_text
from tempopt.spec.load import load_spec
from tempopt.study import api
from tempopt.study.planning import StudyForecast
from tempopt.study.progress import LABELS
from tempopt.workers.messages import Times

_AFTER = {
    "baseline": "three baseline runs",
    "choose": "the choosing runs",
    "confirm": "the confirming runs",
}
_COLUMNS = ("at least", "expected", "at most")


def plan(arguments: argparse.Namespace) -> int:
    """Print the forecast of a study; nothing is written."""
    found = api.plan(
        load_spec(arguments.spec, arguments.set),
        storage=arguments.url,
        workers=arguments.workers,
        trials=arguments.trials,
        earlier=arguments.earlier,
        with_code=arguments.with_code,
    )
    if arguments.json:
        print(json.dumps(found.to_json(), indent=2))
        return DONE
    where = on(found.workers, found.gpus)
    print(f"{found.name}: {runs_text(found.runs)}: {lasting(found.seconds.expected)} on {where}\n")
    Console(file=sys.stdout, width=max(Console().width, 60)).print(_table(found, where))
    print("", *_lines(found), sep="\n")
    return DONE


def _table(found: StudyForecast, where: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("runs", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for kind, span in found.by_kind.items():
        table.add_row(LABELS[kind], *_cells(span))
    table.add_row("all", *_cells(found.runs), style="bold")
    if found.gpu_hours is not None:
        hours = found.gpu_hours
        table.add_row("GPU-hours", *(f"{each:.3g}" for each in (hours.least, hours.expected, hours.most)))
    else:
        table.add_row("training", *_times(found.train_seconds))
    table.add_row(f"time on {where}", *_times(found.seconds))
    return table


def _cells(span: Span) -> list[str]:
    return [f"{each:.0f}" for each in (span.least, span.expected, span.most)]


def _times(span: Span) -> list[str]:
    return [lasting(each) for each in (span.least, span.expected, span.most)]


def _lines(found: StudyForecast) -> Iterator[str]:
    runs, times = found.runs, found.times
    if runs.with_gain != runs.without_gain:
        yield (
            f"Expected: the mean of {runs.without_gain:.0f} runs, if no gain is shown, and "
            f"{runs.with_gain:.0f}, if one is."
        )
    if times.steps:
        yield from _run_lines(found, times)
    if any(kind in found.by_kind for kind in ("search", "constant")) and found.prunes:
        yield f"Runs that the pruner may end are expected to train {percent(TRAINED)} of their steps."
    for name in found.limited:
        yield f"study.limits.{name} may end the search sooner, which is not counted here."
    if found.detectable is not None:
        yield from _power_lines(found)


def _run_lines(found: StudyForecast, times: Times) -> Iterator[str]:
    """Yield what a run takes."""
    most = f": {lasting(max(found.run_seconds.values()))} at most" if found.run_seconds else ""
    yield (
        f"A run, measured on {found.device}{most}: "
        f"{times.start:.2g} s to start, {times.steps} steps of {1000 * times.step:.3g} ms, "
        f"{times.validations} validation{'s' * (times.validations != 1)} of {times.validate:.2g} s, and "
        "evaluations at the end."
    )


def _power_lines(found: StudyForecast) -> Iterator[str]:
    able = found.detectable
    assert able is not None
    yield ""
    if found.known is None:
        after = _AFTER[able.known_after]
        yield (
            f"Power: {able.pairs} pairs show {effect_text(able)} with {percent(able.power)} power. After "
            f"{after} the gain is known in units of {found.metric}."
        )
    else:
        yield f"Power: {gain_text(able, found.known, found.metric, found.baseline)} of {found.known_from}."
    if able.comparisons > 1:
        yield (
            "It has to be shown against the baseline and against the winner's twin: its other parameters at "
            "the baseline's temperature."
        )
