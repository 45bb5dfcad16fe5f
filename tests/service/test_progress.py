"""What a person sees of a running study, on a terminal and in a log."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from tempopt.agent.observer import Snapshot
from tempopt.service.progress import (
    LineProgress,
    LiveProgress,
    progress_for_stream,
)
from tempopt.storage.rows import TicketRow

MakeTicket = Callable[..., TicketRow]
MakeSnapshot = Callable[..., Snapshot]


class FlushedStream(io.StringIO):
    """A stream that knows whether everything written was flushed."""

    pending = False

    def write(self, text: str) -> int:
        self.pending = True
        return super().write(text)

    def flush(self) -> None:
        self.pending = False


WAVE = {"temperature_init": 2.5, "temperature_final": 0.5, "schedule": "cosine"}


def test_a_log_gets_one_flushed_line_for_each_stage_that_is_over(
    make_ticket: MakeTicket, make_snapshot: MakeSnapshot
) -> None:
    stream = FlushedStream()
    lines = LineProgress(stream)
    # what is over when it begins to look is not told
    lines.update(make_snapshot(best_params=WAVE))
    lines.on_ticket_end(make_ticket("search", 7, 0.71239))
    assert stream.getvalue() == ""
    done_counts = {"baseline": 3, "constant": 20, "search": 40}
    for _ in range(2):
        lines.update(make_snapshot(best_params=WAVE, done=done_counts))
    assert not stream.pending
    fields = {"requested": {**done_counts, "choose": 4}, "best_params": WAVE}
    lines.update(make_snapshot(done={**done_counts, "choose": 3}, **fields))
    lines.update(make_snapshot(done={**done_counts, "choose": 4}, **fields))
    assert stream.getvalue().splitlines() == [
        "[1 min 1 s] search: 40 trainings over; best val_accuracy so far 0.69 with τ from 2.5 to 0.5 "
        "(cosine)",
        "[1 min 1 s] choose: 4 trainings over",
    ]


def test_a_log_that_is_to_be_verbose_gets_a_line_for_each_run_too(
    make_ticket: MakeTicket, make_snapshot: MakeSnapshot
) -> None:
    stream = FlushedStream()
    lines = LineProgress(stream, verbose=True)
    lines.update(make_snapshot())
    lines.on_ticket_end(make_ticket("search", 7, 0.71239, parameters=WAVE))
    assert not stream.pending
    assert stream.getvalue() == "[1 min 1 s, 40/63] search 7: 0.7124  τ from 2.5 to 0.5 (cosine)\n"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), BrokenPipeError()])
def test_a_full_disk_under_the_output_ends_no_search_and_a_reader_that_has_left_does(error: OSError) -> None:
    class FullStream(io.StringIO):
        def flush(self) -> None:
            raise error

    stream = FullStream()
    if isinstance(error, BrokenPipeError):
        with pytest.raises(BrokenPipeError):
            LineProgress(stream).note("one")
        return
    LineProgress(stream).note("one")
    LineProgress(stream).note("two")
    assert stream.getvalue() == "one\ntwo\n"


def _picture(snapshot: Snapshot | None, width: int = 100) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None)
    screen = LiveProgress(console)
    if snapshot is not None:
        screen.update(snapshot)
    console.print(screen.render())
    return stream.getvalue()


def test_the_screen_shows_stages_best_workers_and_time_left(make_snapshot: MakeSnapshot) -> None:
    screen_text = _picture(make_snapshot(best_params=WAVE))
    assert "pairs  maximize val_accuracy" in screen_text
    assert "1 min 1 s, about 2 min 5 s left" in screen_text
    assert "16/40" in screen_text
    assert "choose" not in screen_text  # nothing of it has been asked for yet
    assert "best so far 0.69 (+0.08 against the baseline's 0.61, not yet confirmed)" in screen_text
    assert "τ from 2.5 to 0.5 (cosine)" in screen_text
    line = next(line for line in screen_text.splitlines() if "search 17" in line)
    assert line.split() == ["here,", "0", "cpu", "search", "17", "██░░░░░░░░░░", "100/500", "0.55"]
    assert "idle" in screen_text


def test_a_name_that_looks_like_markup_is_shown_as_it_is(make_snapshot: MakeSnapshot) -> None:
    assert "[bold]x[/nothing]" in _picture(make_snapshot(metric="[bold]x[/nothing]"))


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_the_screen_unless_it_cannot_be_drawn_on(
    monkeypatch: pytest.MonkeyPatch, make_ticket: MakeTicket, make_snapshot: MakeSnapshot
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with progress_for_stream(Terminal()) as observer:
        assert isinstance(observer, LineProgress)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with progress_for_stream(stream) as observer:
        observer.update(make_snapshot())
        observer.on_ticket_end(make_ticket("search", 7, 0.71239))
        for number in (7, 8):
            failure = {"state": "failed", "outcome": "failed", "error": "Traceback:\n  line 1\nout of memory"}
            observer.on_ticket_end(make_ticket("search", number, **failure))
        observer.note("a note [with brackets]")
    assert isinstance(observer, LiveProgress)
    assert stream.getvalue().count("failed: Traceback: ... out of memory") == 1
    assert "a note [with brackets]" in stream.getvalue()
    assert "16/40" in stream.getvalue()
