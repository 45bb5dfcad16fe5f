"""``tempopt plan``: what a study will cost and what it can show, before it is begun."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from tempopt.cli import DONE
from tempopt.forecast.power import Known
from tempopt.forecast.runs import TRAINED, Span
from tempopt.forecast.split import Splits
from tempopt.forecast.split_text import split_lines
from tempopt.forecast.words import effect_text, gain_text, lasting, on, percent, runs_text
from tempopt.spec.load import load_spec
from tempopt.study import api
from tempopt.study.planning import StudyForecast
from tempopt.study.progress import LABELS
from tempopt.workers.messages import Times

_AFTER = {
    "baseline": "three baseline runs",
    "choose": "the choosing runs",
    "transfer": "the runs that compare finalists at full size",
    "confirm": "the confirming runs",
}
_HOUR = 3600.0
_FAR = 1.5
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
    print(
        f"{found.name}: {runs_text(found.runs, found.called)}: {lasting(found.seconds.expected)} on {where}\n"
    )
    Console(file=sys.stdout, width=max(Console().width, 60)).print(_table(found, where))
    print("", *_lines(found), sep="\n")
    if found.split is not None:
        lines = [*split_lines(found.split, found.known, found.metric), *_stated_otherwise(found, found.split)]
        print("", *lines, "", sep="\n")
        Console(file=sys.stdout, width=max(Console().width, 60)).print(_split_table(found, found.split))
    return DONE


def _table(found: StudyForecast, where: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(f"{found.called}s", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for kind, span in found.by_kind.items():
        table.add_row(LABELS[kind], *_cells(span))
    table.add_row("all", *_cells(found.runs), style="bold")
    if found.gpu_hours is not None:
        hours = found.gpu_hours
        table.add_row("GPU-hours", *(f"{each:.3g}" for each in (hours.least, hours.expected, hours.most)))
    else:
        table.add_row("training" if found.trains else "evaluating", *_times(found.train_seconds))
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
    if not found.trains:
        yield (
            f"Nothing is trained. An evaluation, measured on {found.device}, takes {times.start:.2g} s: it "
            "loads the weights and evaluates the model once."
        )
    elif times.steps:
        yield from _run_lines(found, times)
    if any(kind in found.by_kind for kind in ("search", "constant")) and found.prunes:
        yield f"Runs that the pruner may end are expected to train {percent(TRAINED)} of their steps."
    for name in found.limited:
        if name == "gpu_hours" and found.split is not None:
            continue
        yield f"study.limits.{name} may end the search sooner, which is not counted here."
    if found.detectable is not None:
        yield from _power_lines(found)


def _run_lines(found: StudyForecast, times: Times) -> Iterator[str]:
    """Yield what a run takes; where the search trains a proxy, what one of each size takes."""
    proxies = found.proxy_times
    several = len(proxies) > 1
    names = [f"proxy {size + 1}" if several else "the proxy" for size in range(len(proxies))]
    told = [*(f"A run of {name}" for name in names), "A run at full size" if proxies else "A run"]
    for size, (what, each) in enumerate(zip(told, [*proxies, times], strict=True)):
        seconds = [cost for (_, at), cost in found.run_seconds.items() if at == size]
        most = f": {lasting(max(seconds))} at most" if seconds else ""
        yield (
            f"{what}, measured on {found.device}{most}: "
            f"{each.start:.2g} s to start, {each.steps} steps of {1000 * each.step:.3g} ms, "
            f"{each.validations} validation{'s' * (each.validations != 1)} of {each.validate:.2g} s, and "
            "evaluations at the end."
        )
    if found.proxy is not None:
        yield found.proxy
        sizes = zip((*names, "full size"), found.by_size, strict=True)
        own = [f"{span.expected:.0f} of {name}" for name, span in sizes]
        yield f"Expected runs by size: {', '.join(own)}."


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


def _stated_otherwise(found: StudyForecast, splits: Splits) -> Iterator[str]:
    """Yield what a run costs here, where the spec states another price."""
    seconds = [each for (_, size), each in found.run_seconds.items() if size == len(found.proxy_times)]
    here = max(seconds) * (found.gpus or 1.0) / _HOUR
    if not 1 / _FAR < here / splits.costs.full < _FAR:
        yield (
            f"A run is priced as study.limits states it. Measured here it takes {here:.2g} GPU-hours, and "
            "all times above are those of this machine."
        )


def _split_table(found: StudyForecast, splits: Splits) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("budget", no_wrap=True)
    proxy = bool(found.proxy_times)
    names = ("GPU-hours", "trials", "candidates x seeds", *["finalists"] * proxy, "pairs", "shown with 80 %")
    for name in (*names, "expected gain"):
        table.add_column(name, justify="right")
    for name, each in (("half", splits.half), ("as given", splits.chosen), ("twice", splits.twice)):
        if each is None:
            table.add_row(name, *("–",) * (len(names) + 1))
            continue
        pairs, seeds = each.numbers["seeds.confirm"].max, each.numbers["seeds.choose"]
        candidates = f"{each.numbers['candidates']} x {seeds}"
        table.add_row(
            name,
            f"{each.gpu_hours:.3g}",
            str(each.numbers["trials"]),
            candidates,
            *[str(each.numbers["proxy.finalists"])] * proxy,
            str(pairs),
            _in_metric(each.effect, found.known),
            _in_metric(each.gain, found.known),
        )
    return table


def _in_metric(effect: float, known: Known | None) -> str:
    if known is None:
        return f"{effect:.2g} sd"
    low, high = known.difference
    return f"{effect * low:.2g} to {effect * high:.2g}"
