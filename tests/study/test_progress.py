"""What a person sees of a running study, on a terminal and in a log."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from tempopt.agent.observer import Snapshot, WorkerView
from tempopt.records.rows import KINDS, TicketRow
from tempopt.study.progress import LABELS, Lines, Screen, amount, called, duration, observing, outcome

MakeTicket = Callable[..., TicketRow]
MakeSnapshot = Callable[..., Snapshot]


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1.0, "0 s"), (41.6, "42 s"), (60, "1:00"), (187, "3:07"), (7387, "2:03:07")]
)
def test_durations_read_like_a_clock(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (12_300_000, "12.3 MB"), (2 * 10**15, "2000.0 TB")],
)
def test_amounts_have_the_unit_that_fits(size: int, text: str) -> None:
    assert amount(size) == text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "0.7124"),
        ({"outcome": "pruned", "steps": 200, "value": 0.5}, "pruned at step 200 of 500, 0.5"),
        ({"outcome": "diverged", "diverged_at": 12, "value": None}, "diverged at step 12"),
        ({"outcome": "failed", "state": "failed", "error": "out of memory"}, "failed: out of memory"),
    ],
)
def test_every_outcome_is_said_in_words(
    fields: dict[str, object], text: str, make_ticket: MakeTicket
) -> None:
    assert outcome(make_ticket(**fields)) == text


def test_it_is_said_once_from_where_on_values_are_of_the_test_data(
    make_ticket: MakeTicket, make_snapshot: MakeSnapshot
) -> None:
    for confirms_on, times in (("test", 1), ("validate", 0)):
        stream = io.StringIO()
        lines = Lines(stream)
        lines.update(make_snapshot(confirms_on=confirms_on))
        lines.finished(make_ticket())
        assert "test data" not in stream.getvalue()
        for number in range(2):
            lines.finished(make_ticket(kind="confirm", number=number))
        said = stream.getvalue().splitlines()
        told = [i for i, line in enumerate(said) if "are of the test data, those before of the valid" in line]
        assert len(told) == times
        assert not told or "confirm 0" in said[told[0] + 1]


def test_of_a_comparison_all_values_are_of_the_test_data(
    make_ticket: MakeTicket, make_snapshot: MakeSnapshot
) -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines.update(make_snapshot(confirms_on="test"))
    lines.finished(make_ticket(kind="confirm", number=0))
    assert "Values are of the test data.\n" in stream.getvalue()
    assert "validation" not in stream.getvalue()


def test_a_ticket_that_trains_the_candidate_of_an_arm_names_it(make_ticket: MakeTicket) -> None:
    assert called(make_ticket()) == "search 7"
    assert called(make_ticket(kind="confirm", arm="constant", number=3)) == "confirm 3 (constant)"
    assert (
        called(make_ticket(kind="confirm", arm="search+baseline", number=3)) == "confirm 3 (search+baseline)"
    )
    assert called(make_ticket(kind="rematch", arm="baseline", number=0)) == "rematch 0 (baseline)"
    alone = make_ticket(kind="ablation", arm="without_schedule", number=2)
    assert called(alone) == "ablation 2 (without_schedule)"


class Flushed(io.StringIO):
    """A stream that knows whether everything written was flushed."""

    pending = False

    def write(self, text: str) -> int:
        self.pending = True
        return super().write(text)

    def flush(self) -> None:
        self.pending = False


def test_a_log_gets_one_flushed_line_per_finished_ticket(
    make_ticket: MakeTicket, make_snapshot: MakeSnapshot
) -> None:
    stream = Flushed()
    lines = Lines(stream)
    lines.update(make_snapshot())
    lines.update(make_snapshot())
    lines.finished(make_ticket())
    assert not stream.pending
    head, line = stream.getvalue().splitlines()
    assert head == "pairs: maximize val_accuracy; trainings: 3 baseline, 20 constant, 40 search"
    assert line == "[1:01, 40/63] search 7: 0.7124  temperature_init=2.5, schedule=cosine"


def test_a_log_counts_tickets_that_finish_between_two_snapshots(
    make_ticket: MakeTicket, make_snapshot: MakeSnapshot
) -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines.update(make_snapshot())
    lines.finished(make_ticket(number=7))
    lines.finished(make_ticket(number=8))
    assert "40/63] search 7" in stream.getvalue()
    assert "41/63] search 8" in stream.getvalue()


def test_notes_go_to_the_log_as_they_are() -> None:
    stream = io.StringIO()
    Lines(stream).note("worker 1 was started again")
    assert stream.getvalue() == "worker 1 was started again\n"


@pytest.mark.parametrize("wrong", [OSError(28, "No space left on device"), BrokenPipeError()])
def test_a_full_disk_under_the_output_ends_no_search_and_a_reader_that_has_left_does(wrong: OSError) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise wrong

    stream = Full()
    if isinstance(wrong, BrokenPipeError):
        with pytest.raises(BrokenPipeError):
            Lines(stream).note("one")
        return
    Lines(stream).note("one")
    Lines(stream).note("two")
    assert stream.getvalue() == "one\ntwo\n"


def _picture(snapshot: Snapshot | None, width: int = 100) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None)
    screen = Screen(console)
    if snapshot is not None:
        screen.update(snapshot)
    console.print(screen.picture())
    return stream.getvalue()


def test_the_screen_shows_stages_best_workers_and_time_left(make_snapshot: MakeSnapshot) -> None:
    seen = _picture(make_snapshot())
    assert "pairs  maximize val_accuracy" in seen
    assert "1:01, about 2:05 left" in seen
    assert "16/40" in seen
    assert "choose" not in seen  # nothing of it has been asked for yet
    assert "best so far 0.69 (+0.08 against the baseline's 0.61, not yet confirmed)" in seen
    assert "schedule=cosine, temperature_init=2.5" in seen
    line = next(line for line in seen.splitlines() if "search 17" in line)
    assert line.split() == ["here,", "0", "cpu", "search", "17", "━━", "100/500", "0.55", "≥", "0.6"]
    assert "idle" in seen


def test_the_screen_has_a_bar_for_every_kind_that_was_asked_for(make_snapshot: MakeSnapshot) -> None:
    asked = {kind: 10 + place for place, kind in enumerate(KINDS)}
    seen = _picture(make_snapshot(asked=asked, done=dict.fromkeys(KINDS, 7), stage="rematch")).splitlines()
    bars = [line for line in seen if "7/" in line]
    assert [line.strip().split("  ")[0] for line in bars] == [LABELS[kind] for kind in KINDS]
    assert [int(line.rpartition("/")[2]) for line in bars] == list(asked.values())


def _elsewhere(number: int, **fields: Any) -> WorkerView:
    host = f"node{number}.cluster"
    place = {"agent": f"{host}:{4000 + number}", "machine": host, "device": "NVIDIA H200 (cuda:0)"}
    return WorkerView(slot=number, kind="search", number=number, **{**place, **fields})


def _lines_of_runs(seen: str) -> list[list[str]]:
    lines = seen.splitlines()
    begin = next(n for n, line in enumerate(lines) if line.split()[:1] == ["agent"])
    return [line.split() for line in lines[begin:]]


def test_the_screen_has_a_line_for_each_run_of_other_agents(make_snapshot: MakeSnapshot) -> None:
    workers = [
        _elsewhere(1, step=50, total_steps=100, value=0.25, bound=0.125),
        _elsewhere(2),
        _elsewhere(3, step=1, total_steps=100, silent=True),
        _elsewhere(4, agent="10.0.0.7:12", device=None),
    ]
    seen = _picture(make_snapshot(workers=workers, direction="minimize"), width=120)
    device = ["NVIDIA", "H200", "(cuda:0)"]
    assert _lines_of_runs(seen) == [
        ["agent", "device", "run", "steps", "value", "bound"],
        ["node1:4001", *device, "search", "1", "━━━━━━", "50/100", "0.25", "≤", "0.125"],
        ["node2:4002", *device, "search", "2", "starting", "–", "–"],
        ["node3:4003", *device, "search", "3", "1/100", "silent", "–"],
        ["10.0.0.7:12", "search", "4", "starting", "–", "–"],
    ]


def test_the_bound_is_shown_only_where_there_is_one(make_snapshot: MakeSnapshot) -> None:
    runs = [_elsewhere(1, step=50, total_steps=100, value=0.25), _elsewhere(2)]
    assert _lines_of_runs(_picture(make_snapshot(workers=runs), width=120))[0][-2:] == ["steps", "value"]


def test_a_line_leaves_out_the_temperature_parameters_that_change_nothing(
    make_ticket: MakeTicket, make_snapshot: MakeSnapshot
) -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines.update(make_snapshot())
    parameters = {"temperature_init": 1.0, "schedule": "constant", "length_scaling": "none", "lr": 0.1}
    lines.finished(make_ticket(parameters=parameters))
    lines.finished(make_ticket(parameters={**parameters, "schedule": "cosine"}))
    first, second = stream.getvalue().splitlines()[1:]
    assert first.endswith("  temperature_init=1, lr=0.1")
    assert second.endswith("  temperature_init=1, schedule=cosine, lr=0.1")


def test_numbers_are_whole_however_narrow_and_what_there_is_no_room_for_is_left_out(
    make_snapshot: MakeSnapshot,
) -> None:
    workers = [_elsewhere(1, step=5000, total_steps=5000, value=0.12345, bound=-0.12345)]
    for width, has in ((120, ("NVIDIA", "━")), (70, ("━",)), (54, ())):
        (_, line) = _lines_of_runs(_picture(make_snapshot(workers=workers), width=width))
        assert line[0] == "node1:4001"
        assert line[-4:] == ["5000/5000", "0.1235", "≥", "-0.1235"]
        assert tuple(sign for sign in ("NVIDIA", "━") if sign in " ".join(line)) == has


def test_of_many_runs_the_first_are_shown_and_the_others_counted(make_snapshot: MakeSnapshot) -> None:
    seen = _picture(make_snapshot(workers=[_elsewhere(n) for n in range(400)]))
    lines = _lines_of_runs(seen)
    assert lines[1][0] == "node0:4000"
    assert lines[-1] == ["and", str(400 - len(lines) + 2), "more"]
    assert len(seen.splitlines()) <= 25


def test_the_screen_says_that_nobody_is_at_work(make_snapshot: MakeSnapshot) -> None:
    assert "no agent works on it now" in _picture(make_snapshot(workers=[]))


def test_the_screen_has_something_to_say_before_the_first_run(make_snapshot: MakeSnapshot) -> None:
    assert "starting the workers" in _picture(None)
    fresh = make_snapshot(
        done={}, best=None, best_params={}, baseline_mean=None, workers=[], elapsed=0.0, remaining=None
    )
    seen = _picture(fresh)
    assert "best so far –" in seen
    assert "left" not in seen
    assert "0/40" in seen


def test_the_screen_fits_a_narrow_terminal(make_snapshot: MakeSnapshot) -> None:
    assert max(len(line) for line in _picture(make_snapshot(), width=40).splitlines()) <= 40


def test_a_name_that_looks_like_markup_is_shown_as_it_is(make_snapshot: MakeSnapshot) -> None:
    assert "[bold]x[/nothing]" in _picture(make_snapshot(metric="[bold]x[/nothing]"))


def test_what_is_no_terminal_gets_lines() -> None:
    with observing(io.StringIO()) as observer:
        assert isinstance(observer, Lines)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_the_screen_unless_it_cannot_be_drawn_on(
    monkeypatch: pytest.MonkeyPatch, make_ticket: MakeTicket, make_snapshot: MakeSnapshot
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with observing(Terminal()) as observer:
        assert isinstance(observer, Lines)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with observing(stream) as observer:
        observer.update(make_snapshot())
        observer.finished(make_ticket())
        observer.finished(make_ticket(state="failed", outcome="failed", error="out of memory"))
        observer.note("a note [with brackets]")
    assert isinstance(observer, Screen)
    assert "search 7: failed: out of memory" in stream.getvalue()
    assert "a note [with brackets]" in stream.getvalue()
    assert "16/40" in stream.getvalue()
