"""Output of ``tempopt plan``: the forecast of a study as a table, and the gain that it can show."""

from __future__ import annotations

from rich.table import Table

from tempopt.cli.output import print_table
from tempopt.service.forecast import StudyForecast
from tempopt.verdict.detectable_gain import LARGE_GAIN
from tempopt.verdict.forecast_text import format_duration, format_worker_count, runs_text
from tempopt.verdict.planned_runs import Span

_HOUR = 3600.0  # seconds


def print_forecast(forecast: StudyForecast) -> None:
    """Print the forecast of a study."""
    where = format_worker_count(forecast.run.workers, forecast.run.gpus or 0.0)
    print(f"{forecast.name}: {runs_text(forecast.runs)}\n")
    print_table(_build_table(forecast, where))
    print("", forecast.run.text, *_format_lines(forecast), sep="\n")


def _build_table(forecast: StudyForecast, where: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("runs", no_wrap=True)
    for title in (f"gain of\n{LARGE_GAIN:g} sd: min", "no gain:\nmin"):
        for name in (title, "\ntypical", "\nmax"):
            table.add_column(name, justify="right", no_wrap=True)
    for kind, span in forecast.runs.gain.items():
        no_gain = forecast.runs.no_gain.get(kind, Span(min=0, typical=0, max=0))
        table.add_row(kind, *_format_cells(span), *_format_cells(no_gain))
    totals = [forecast.runs.total(gain=gain) for gain in (True, False)]
    table.add_row("all", *(cell for span in totals for cell in _format_cells(span)), style="bold")
    hours = [total_hours for total in totals if (total_hours := forecast.hours(total))]
    if hours:
        cells = (
            format_duration(value * _HOUR) for span in hours for value in (span.min, span.typical, span.max)
        )
        table.add_row(f"time on {where}", *cells)
    cards = [total_hours for total in totals if (total_hours := forecast.gpu_hours(total))]
    if cards and forecast.run.gpus:
        cells = (f"{value:.3g}" for span in cards for value in (span.min, span.typical, span.max))
        table.add_row("GPU-hours", *cells)
    return table


def _format_cells(span: Span) -> list[str]:
    return [f"{value:.0f}" for value in (span.min, span.typical, span.max)]


def _format_lines(forecast: StudyForecast) -> list[str]:
    lines = [
        f"study.limits.{name} may end the search earlier, which is not counted here."
        for name in forecast.limited
    ]
    lines += ["", f"Power: {forecast.power_text}"]
    if forecast.detectable.comparisons > 1:
        lines.append(
            "It has to be shown against the baseline and against the winner's twin: its other parameters at "
            f"{forecast.baseline}."
        )
    return lines
