"""Show a running study: a live screen on a terminal, a table in a notebook, else a line per stage."""

from __future__ import annotations

import importlib
import io
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tempopt.agent.observer import NullObserver, Observer, Snapshot, WorkerView
from tempopt.errors import one_line
from tempopt.report.formatting import duration, temperature_text
from tempopt.storage.rows import KINDS, SEARCH_KINDS, Kind, TicketRow
from tempopt.temperature import neutral_values, split_name

# Twice a second is smooth enough to the eye and costs well under one percent of a core.
_REFRESH_PER_SECOND = 2
# Seconds between redraws of the complete output of a notebook's cell, and its size in characters.
_CELL_SECONDS, _CELL_WIDTH, _CELL_HEIGHT = 1.0, 100, 40
_CELL = '<pre style="white-space:pre;line-height:normal;overflow-x:auto">{code}</pre>'
# Seconds between queries for the workers of other agents; long enough to be no load for the store.
_POLL_INTERVAL_SECONDS = 5.0
# Lines of title, ten stages, best value, its parameters, heading and end of the table, and one more.
_LINES_ABOVE, _MIN_ROWS = 16, 4
_BAR, _STAGE_BAR, _WIDE = 12, 30, 80

# Kinds that are evaluated on data that the search has not seen.
_ON_TEST: tuple[Kind, ...] = ("confirm", "ablation")
_TESTED = "confirm and ablation"


def format_number(value: float | None) -> str:
    """Return a number with four digits, a dash for None."""
    return "–" if value is None else f"{value:.4g}"


def run_display_name(ticket: TicketRow) -> str:
    """Return a ticket's kind and number, with the arm of its candidate if that differs."""
    arm = "" if ticket.arm == ticket.kind else f" ({ticket.arm})"
    return f"{ticket.kind} {ticket.number}{arm}"


def format_outcome(ticket: TicketRow) -> str:
    """Return a phrase on the end of a ticket."""
    if ticket.outcome == "complete":
        return format_number(ticket.value)
    if ticket.outcome == "pruned":
        total = f" of {ticket.total_steps}" if ticket.total_steps else ""
        return f"pruned at step {ticket.steps}{total}, {format_number(ticket.value)}"
    if ticket.outcome == "diverged":
        return f"diverged at step {ticket.diverged_at}"
    return f"failed: {one_line(ticket.error or 'no reason is known')}"


def _shows_failure(ticket: TicketRow, shown_outcomes: set[str]) -> bool:
    """Return whether a ticket has failed for a reason that was not shown before, and add it to those."""
    is_shown = ticket.state == "failed" and format_outcome(ticket) not in shown_outcomes
    shown_outcomes.add(format_outcome(ticket))
    return is_shown


def _select_effective_params(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters without temperature parameters that have no effect, except temperature_init."""
    values = neutral_values(parameters)
    return {
        name: value
        for name, value in parameters.items()
        if split_name(name)[1] == "temperature_init" or name not in values or value != values[name]
    }


def best_line(snapshot: Snapshot) -> str:
    """Return a line on the best value of the search so far, with the baseline if that is known."""
    if snapshot.best is None:
        return "best so far –"
    against = ""
    if snapshot.baseline_mean is not None:
        difference = snapshot.best - snapshot.baseline_mean
        baseline = format_number(snapshot.baseline_mean)
        against = f" ({difference:+.4g} against the baseline's {baseline}, not yet confirmed)"
    return f"best so far {format_number(snapshot.best)}{against}"


class LineProgress:
    """Observer that prints a line for each stage that is over, for logs, pipes and simple terminals.

    Args:
        stream: The output, which is flushed after each line.
        verbose: Whether to print a line for each run that is over, too.
    """

    poll_interval_seconds: float | None = None

    def __init__(self, stream: TextIO, *, verbose: bool = False) -> None:
        self._stream = stream
        self._verbose = verbose
        self._snapshot: Snapshot | None = None
        self._num_since_snapshot = 0
        self._reported: dict[Kind, int] = {}
        self._has_tested = False
        self._shown_outcomes: set[str] = set()

    def update(self, snapshot: Snapshot) -> None:
        if self._snapshot is None:
            # stages that were over before are not printed again
            self._reported = {kind: done for kind, done in snapshot.done.items() if done}
        self._snapshot = snapshot
        self._num_since_snapshot = 0
        for kind in KINDS:
            total, done = snapshot.requested.get(kind, 0), snapshot.done.get(kind, 0)
            if total and done == total and self._reported.get(kind, 0) < done:
                self._reported[kind] = done
                self._print(self._stage_line(kind, snapshot))

    def _stage_line(self, kind: Kind, snapshot: Snapshot) -> str:
        done = snapshot.done[kind]
        line = f"[{duration(snapshot.elapsed)}] {kind}: {done} training{'s' * (done != 1)} over"
        if kind in SEARCH_KINDS and snapshot.best is not None:
            best = temperature_text(_select_effective_params(snapshot.best_params))
            line += f"; best {snapshot.metric} so far {format_number(snapshot.best)} with {best}"
        return line

    def on_ticket_end(self, ticket: TicketRow) -> None:
        self._num_since_snapshot += 1
        if not self._verbose and not _shows_failure(ticket, self._shown_outcomes):
            return
        if ticket.kind in _ON_TEST and not self._has_tested and self._snapshot is not None:
            self._has_tested = True
            if self._snapshot.confirms_on == "test":
                self._print(f"Values of {_TESTED} are of the test data, others of the validation data.")
        line = f"{run_display_name(ticket)}: {format_outcome(ticket)}"
        if ticket.parameters:
            line += f"  {temperature_text(_select_effective_params(ticket.parameters))}"
        if self._snapshot is not None:
            # The end of a ticket arrives before the snapshot that counts it.
            done = sum(self._snapshot.done.values()) + self._num_since_snapshot
            total = sum(self._snapshot.requested.values())
            line = f"[{duration(self._snapshot.elapsed)}, {done}/{total}] {line}"
        self._print(line)

    def note(self, text: str) -> None:
        self._print(text)

    def _print(self, line: str) -> None:
        try:
            print(line, file=self._stream, flush=True)
        except BrokenPipeError:
            raise
        except OSError:
            # the disk of the output file is full: buffered lines are written when there is room
            pass


class LiveProgress:
    """Observer with a live table of the study; notes are printed above it."""

    poll_interval_seconds: float | None = _POLL_INTERVAL_SECONDS

    def __init__(self, console: Console) -> None:
        self._console = console
        self._snapshot: Snapshot | None = None
        self._received_at = 0.0
        self._shown_outcomes: set[str] = set()
        self.live = Live(
            console=console,
            get_renderable=self.render,
            refresh_per_second=_REFRESH_PER_SECOND,
            transient=False,
        )

    def update(self, snapshot: Snapshot) -> None:
        self._received_at = time.monotonic()
        self._snapshot = snapshot

    def on_ticket_end(self, ticket: TicketRow) -> None:
        if _shows_failure(ticket, self._shown_outcomes):
            self.note(f"{run_display_name(ticket)}: {format_outcome(ticket)}")

    def note(self, text: str) -> None:
        self._console.print(Text(text))

    def render(self) -> Group:
        """Return the current screen."""
        snapshot = self._snapshot
        if snapshot is None:
            return Group(Text("starting the workers ..."))
        elapsed = time.monotonic() - self._received_at
        best = temperature_text(snapshot.best_params)
        return Group(
            _build_title(snapshot, elapsed),
            _build_stage_table(snapshot),
            Text(best_line(snapshot), no_wrap=True, overflow="ellipsis"),
            *([Text(f"  {best}", style="dim")] if snapshot.best_params else []),
            *self._build_worker_rows(snapshot),
        )

    def _build_worker_rows(self, snapshot: Snapshot) -> list[Table | Text]:
        runs = snapshot.workers
        if not runs:
            return [Text("  no agent works on it now", style="dim")]
        max_rows = max(self._console.height - _LINES_ABOVE, _MIN_ROWS)
        renderables: list[Table | Text] = [_build_run_table(runs[:max_rows], self._console.width)]
        if len(runs) > max_rows:
            renderables.append(Text(f"  and {len(runs) - max_rows} more", style="dim"))
        return renderables


def _build_title(snapshot: Snapshot, elapsed: float) -> Table:
    clock = duration(snapshot.elapsed + elapsed)
    if snapshot.remaining is not None:
        clock += f", about {duration(max(snapshot.remaining - elapsed, 0.0))} left"
    title = Table.grid(expand=True)
    title.add_column(no_wrap=True)
    title.add_column(justify="right", no_wrap=True)
    title.add_row(
        Text.assemble((snapshot.study, "bold"), f"  {snapshot.direction} {snapshot.metric}"), Text(clock)
    )
    return title


def _build_stage_table(snapshot: Snapshot) -> Table:
    stages = Table.grid(padding=(0, 2))
    for kind in KINDS:
        total, done = snapshot.requested.get(kind, 0), snapshot.done.get(kind, 0)
        if total:
            style = "bold" if kind == snapshot.stage else ""
            bar = _draw_bar(done, total, _STAGE_BAR)
            stages.add_row(Text(f"  {kind}", style=style), bar, Text(f"{done}/{total}"))
    return stages


def _build_run_table(views: list[WorkerView], width: int) -> Table:
    """Return a table with a line for each worker: agent, device, run, progress and value.

    On a narrow screen, the device and the bar are left out.
    """
    is_wide = width >= _WIDE
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name, is_shown in (("  agent", True), ("device", is_wide), ("run", True), ("", is_wide)):
        if is_shown:
            table.add_column(name, no_wrap=True)
    for name in ("steps", "value"):
        table.add_column(name, no_wrap=True, justify="right")
    for view in views:
        run, steps, value = _format_run(view)
        style = "yellow" if view.silent else ""
        bar = _draw_bar(view.step or 0, view.total_steps, _BAR) if view.kind and view.total_steps else Text()
        table.add_row(
            Text(f"  {_format_agent(view)}"),
            *([Text(view.device or "", style="dim")] if is_wide else []),
            Text(run, style="" if view.kind else "dim"),
            *([bar] if is_wide else []),
            Text(steps, style=style),
            Text(value, style=style),
        )
    return table


def _draw_bar(done: int, total: int, width: int) -> Text:
    """Return a progress bar that is readable without colours, too."""
    num_full = min(width, width * done // total)
    return Text.assemble(("█" * num_full, "green"), ("░" * (width - num_full), "dim"))


def _format_agent(view: WorkerView) -> str:
    if view.agent is None:
        return f"here, {view.slot}"
    host, _, process = view.agent.partition(":")
    # the host without its domain, unless it is an address
    short_host = host if host.replace(".", "").isdecimal() else host.partition(".")[0]
    return f"{short_host}:{process}"


def _format_run(view: WorkerView) -> tuple[str, str, str]:
    """Return the run of a worker, its steps and its value."""
    if view.kind is None:
        return ("idle", "", "")
    # how many steps a program takes is not known
    steps = f"{view.step}" if view.step else "starting"
    if view.total_steps:
        steps = f"{view.step or 0}/{view.total_steps}"
    return (f"{view.kind} {view.number}", steps, "silent" if view.silent else format_number(view.value))


@contextmanager
def progress_for_stream(stream: TextIO, *, verbose: bool = False) -> Iterator[Observer]:
    """Yield the observer for a stream: a live screen on a terminal, else lines.

    Args:
        stream: The output.
        verbose: Whether to print a line for each run, on a terminal, too.
    """
    if verbose or not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield LineProgress(stream, verbose=verbose)
        return
    screen = LiveProgress(Console(file=stream))
    with screen.live:
        yield screen


class NotebookProgress(LiveProgress):
    """Observer that redraws a table of the study in one output of a notebook's cell.

    Drawn by the calling thread; needs only IPython.
    """

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO(), width=_CELL_WIDTH, height=_CELL_HEIGHT))
        self._display = importlib.import_module("IPython.display").display
        self._output: Any = None
        self._last_drawn_at = 0.0

    def update(self, snapshot: Snapshot) -> None:
        super().update(snapshot)
        if time.monotonic() - self._last_drawn_at >= _CELL_SECONDS:
            self.draw()

    def note(self, text: str) -> None:
        print(text)

    def draw(self) -> None:
        """Draw the current state."""
        self._last_drawn_at = time.monotonic()
        console = Console(file=io.StringIO(), width=_CELL_WIDTH, record=True, force_jupyter=False)
        console.print(self.render())
        mime_bundle = {
            "text/plain": console.export_text(clear=False),
            "text/html": console.export_html(inline_styles=True, code_format=_CELL),
        }
        if self._output is None:
            self._output = self._display(mime_bundle, raw=True, display_id=True)
        else:
            self._output.update(mime_bundle, raw=True)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


@contextmanager
def progress_for_python(progress: bool, observer: Observer | None = None) -> Iterator[Observer]:
    """Yield the observer of a search in Python.

    Args:
        progress: Whether to show progress: in a notebook in its cell, else on standard error as in
            :func:`progress_for_stream`.
        observer: Yielded instead, if it is given.
    """
    if observer is not None or not progress:
        yield observer or NullObserver()
    elif in_notebook():
        cell = NotebookProgress()
        cell.draw()
        try:
            yield cell
        finally:
            cell.draw()
    else:
        with progress_for_stream(sys.stderr) as stream_observer:
            yield stream_observer
