"""How a running study looks: a live screen on a terminal, a picture in a notebook, else a line per stage.

Owns the drawing only; what is drawn is a Snapshot of the agent's.
"""

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
from tempopt.report.formatting import duration, temperature_text
from tempopt.storage.rows import KINDS, SEARCH_KINDS, Kind, TicketRow
from tempopt.temperature import neutral_values, split_name

# Twice a second is smooth enough to the eye and costs well under one percent of a core.
_REFRESH_PER_SECOND = 2
# A notebook redraws the whole output; a cell is so many characters wide in the usual ones.
_CELL_EVERY, _CELL_WIDTH, _CELL_HEIGHT = 1.0, 100, 40
_CELL = '<pre style="white-space:pre;line-height:normal;overflow-x:auto">{code}</pre>'
# What other agents do is asked of the store; seldom enough that the store does not feel it.
_POLL_INTERVAL_SECONDS = 5.0
# Title, ten stages, best, its parameters, heading and the last line of the table, one to spare.
_LINES_ABOVE, _FEWEST = 16, 4
_BAR, _STAGE_BAR, _WIDE = 12, 30, 80

# What is measured on the data that the search has not seen.
_ON_TEST: tuple[Kind, ...] = ("confirm", "ablation")
_TESTED = "confirm and ablation"


def format_number(value: float | None) -> str:
    """Return a measured number as people read it: four digits, a dash where there is none."""
    return "–" if value is None else f"{value:.4g}"


def run_display_name(ticket: TicketRow) -> str:
    """Return what a ticket is called: kind and number, and whose candidate it trains if that is another."""
    arm = "" if ticket.arm == ticket.kind else f" ({ticket.arm})"
    return f"{ticket.kind} {ticket.number}{arm}"


def format_outcome(ticket: TicketRow) -> str:
    """Return in words how a ticket ended."""
    if ticket.outcome == "complete":
        return format_number(ticket.value)
    if ticket.outcome == "pruned":
        return f"pruned at step {ticket.steps} of {ticket.total_steps}, {format_number(ticket.value)}"
    if ticket.outcome == "diverged":
        return f"diverged at step {ticket.diverged_at}"
    return f"failed: {ticket.error or 'no reason is known'}"


def _telling(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters without those of the temperature that change nothing; the first stays."""
    values = neutral_values(parameters)
    return {
        name: value
        for name, value in parameters.items()
        if split_name(name)[1] == "temperature_init" or name not in values or value != values[name]
    }


def best_line(snapshot: Snapshot) -> str:
    """Return the best value of the search so far beside the baseline, if there is any."""
    if snapshot.best is None:
        return "best so far –"
    against = ""
    if snapshot.baseline_mean is not None:
        difference = snapshot.best - snapshot.baseline_mean
        baseline = format_number(snapshot.baseline_mean)
        against = f" ({difference:+.4g} against the baseline's {baseline}, not yet confirmed)"
    return f"best so far {format_number(snapshot.best)}{against}"


class LineProgress:
    """Flushed lines for logs, pipes and terminals that cannot be drawn on: one for each stage that is over.

    Args:
        stream: What they are written to.
        verbose: Whether there is one for each run that is over, too.
    """

    poll_interval_seconds: float | None = None

    def __init__(self, stream: TextIO, *, verbose: bool = False) -> None:
        self._stream = stream
        self._verbose = verbose
        self._snapshot: Snapshot | None = None
        self._since = 0
        self._reported: dict[Kind, int] = {}
        self._has_tested = False

    def update(self, snapshot: Snapshot) -> None:
        if self._snapshot is None:
            # what was over before is not told again
            self._reported = {kind: done for kind, done in snapshot.done.items() if done}
        self._snapshot = snapshot
        self._since = 0
        for kind in KINDS:
            total, done = snapshot.requested.get(kind, 0), snapshot.done.get(kind, 0)
            if total and done == total and self._reported.get(kind, 0) < done:
                self._reported[kind] = done
                self._print(self._stage_line(kind, snapshot))

    def _stage_line(self, kind: Kind, snapshot: Snapshot) -> str:
        done = snapshot.done[kind]
        line = f"[{duration(snapshot.elapsed)}] {kind}: {done} training{'s' * (done != 1)} over"
        if kind in SEARCH_KINDS and snapshot.best is not None:
            best = temperature_text(_telling(snapshot.best_params))
            line += f"; best {snapshot.metric} so far {format_number(snapshot.best)} with {best}"
        return line

    def on_ticket_end(self, ticket: TicketRow) -> None:
        self._since += 1
        if not self._verbose and ticket.state != "failed":
            return
        if ticket.kind in _ON_TEST and not self._has_tested and self._snapshot is not None:
            self._has_tested = True
            if self._snapshot.confirms_on == "test":
                self._print(f"Values of {_TESTED} are of the test data, others of the validation data.")
        line = f"{run_display_name(ticket)}: {format_outcome(ticket)}"
        if ticket.parameters:
            line += f"  {temperature_text(_telling(ticket.parameters))}"
        if self._snapshot is not None:
            # A ticket is told of before the snapshot that counts it.
            done = sum(self._snapshot.done.values()) + self._since
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
            # a full disk under a file that the output goes to: what is buffered is written when there is room
            pass


class LiveProgress:
    """A live picture of the study; notes scroll by above it."""

    poll_interval_seconds: float | None = _POLL_INTERVAL_SECONDS

    def __init__(self, console: Console) -> None:
        self._console = console
        self._snapshot: Snapshot | None = None
        self._received = 0.0
        self.live = Live(
            console=console,
            get_renderable=self.render,
            refresh_per_second=_REFRESH_PER_SECOND,
            transient=False,
        )

    def update(self, snapshot: Snapshot) -> None:
        self._received = time.monotonic()
        self._snapshot = snapshot

    def on_ticket_end(self, ticket: TicketRow) -> None:
        if ticket.state == "failed":
            self.note(f"{run_display_name(ticket)}: {format_outcome(ticket)}")

    def note(self, text: str) -> None:
        self._console.print(Text(text))

    def render(self) -> Group:
        """Return what is to be seen now."""
        snapshot = self._snapshot
        if snapshot is None:
            return Group(Text("starting the workers ..."))
        elapsed = time.monotonic() - self._received
        best = temperature_text(snapshot.best_params)
        return Group(
            _title(snapshot, elapsed),
            _stages(snapshot),
            Text(best_line(snapshot), no_wrap=True, overflow="ellipsis"),
            *([Text(f"  {best}", style="dim")] if snapshot.best_params else []),
            *self._running_table(snapshot),
        )

    def _running_table(self, snapshot: Snapshot) -> list[Table | Text]:
        runs = snapshot.workers
        if not runs:
            return [Text("  no agent works on it now", style="dim")]
        max_rows = max(self._console.height - _LINES_ABOVE, _FEWEST)
        renderables: list[Table | Text] = [_runs(runs[:max_rows], self._console.width)]
        if len(runs) > max_rows:
            renderables.append(Text(f"  and {len(runs) - max_rows} more", style="dim"))
        return renderables


def _title(snapshot: Snapshot, elapsed: float) -> Table:
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


def _stages(snapshot: Snapshot) -> Table:
    stages = Table.grid(padding=(0, 2))
    for kind in KINDS:
        total, done = snapshot.requested.get(kind, 0), snapshot.done.get(kind, 0)
        if total:
            style = "bold" if kind == snapshot.stage else ""
            bar = _draw_bar(done, total, _STAGE_BAR)
            stages.add_row(Text(f"  {kind}", style=style), bar, Text(f"{done}/{total}"))
    return stages


def _runs(views: list[WorkerView], width: int) -> Table:
    """Return a line for each worker: where it is, what it trains, how far, and its value.

    Where there is little room, the device and the bar are left out.
    """
    is_wide = width >= _WIDE
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name, is_shown in (("  agent", True), ("device", is_wide), ("run", True), ("", is_wide)):
        if is_shown:
            table.add_column(name, no_wrap=True)
    for name in ("steps", "value"):
        table.add_column(name, no_wrap=True, justify="right")
    for view in views:
        run, steps, value = _run(view)
        style = "yellow" if view.silent else ""
        bar = _draw_bar(view.step or 0, view.total_steps, _BAR) if view.kind and view.total_steps else Text()
        table.add_row(
            Text(f"  {_agent(view)}"),
            *([Text(view.device or "", style="dim")] if is_wide else []),
            Text(run, style="" if view.kind else "dim"),
            *([bar] if is_wide else []),
            Text(steps, style=style),
            Text(value, style=style),
        )
    return table


def _draw_bar(done: int, total: int, width: int) -> Text:
    """Return a bar whose empty part looks empty without colours, too."""
    full = min(width, width * done // total)
    return Text.assemble(("█" * full, "green"), ("░" * (width - full), "dim"))


def _agent(view: WorkerView) -> str:
    if view.agent is None:
        return f"here, {view.slot}"
    host, _, process = view.agent.partition(":")
    # without its domain, unless it is an address
    short = host if host.replace(".", "").isdecimal() else host.partition(".")[0]
    return f"{short}:{process}"


def _run(view: WorkerView) -> tuple[str, str, str]:
    """Return what a worker trains, how far it is, and its value."""
    if view.kind is None:
        return ("idle", "", "")
    steps = f"{view.step or 0}/{view.total_steps}" if view.total_steps else "starting"
    return (f"{view.kind} {view.number}", steps, "silent" if view.silent else format_number(view.value))


@contextmanager
def progress_for_stream(stream: TextIO, *, verbose: bool = False) -> Iterator[Observer]:
    """Yield the observer that suits the stream: a live screen on a terminal, else lines.

    Args:
        stream: What is shown on.
        verbose: Whether there is a line for each run, on a terminal as well.
    """
    if verbose or not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield LineProgress(stream, verbose=verbose)
        return
    screen = LiveProgress(Console(file=stream))
    with screen.live:
        yield screen


class NotebookProgress(LiveProgress):
    """A picture of the study in one output of a notebook's cell, drawn anew in its place.

    It is drawn by the thread that tells of the study, and needs IPython alone.
    """

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO(), width=_CELL_WIDTH, height=_CELL_HEIGHT))
        self._display = importlib.import_module("IPython.display").display
        self._output: Any = None
        self._last_drawn_at = 0.0

    def update(self, snapshot: Snapshot) -> None:
        super().update(snapshot)
        if time.monotonic() - self._last_drawn_at >= _CELL_EVERY:
            self.draw()

    def note(self, text: str) -> None:
        print(text)

    def draw(self) -> None:
        """Show how things stand now."""
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
    """Return whether this is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


@contextmanager
def progress_for_python(progress: bool, observer: Observer | None = None) -> Iterator[Observer]:
    """Yield the observer of a search in Python, which shows what suits where it runs.

    Args:
        progress: Whether to show anything. In a notebook that is a picture in the cell; else it is on
            standard error, as :func:`progress_for_stream` has it.
        observer: Yielded in place of one that shows anything.
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
