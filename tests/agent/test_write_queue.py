"""The write queue delivers each change once, complete and in order, through any number of store outages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.agent import write_queue
from tempopt.agent.store_connection import StoreRetryPolicy, StoreTimeoutError, StoreUnavailableError
from tempopt.agent.write_queue import WriteQueue, iter_orphaned_queues, outbox_path
from tempopt.errors import StorageError, StoreUnreachable, StudyFailed, StudyNotFound
from tempopt.storage.changes import (
    AttemptLost,
    AttemptReleased,
    Change,
    CheckpointRecorded,
    MetricReported,
    RunEnded,
    RunOutcome,
    RunStarted,
    WriteResult,
)
from tempopt.storage.liveness import agent_name
from tempopt.storage.rows import Checkpoint, Measurement


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that is set by hand."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(write_queue.time, "monotonic", lambda: clock.now)
    return clock


class Records:
    """A store that notes down what it is told, or is away."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.renewed: list[tuple[dict[int, int], float]] = []
        self.steps: list[dict[int, int]] = []
        self.away: StorageError | None = None

    def write(self, study_id: int, changes: Sequence[Change], **options: Any) -> WriteResult:
        assert (options["agent"], options["take"], options["version"]) == ("me", None, None)
        if self.away is not None:
            raise self.away
        self.changes += changes
        self.renewed.append((options["renew"], options["lease"]))
        self.steps.append(options["steps"])
        return WriteResult(refused={}, state="running", version=0)


@pytest.fixture
def records() -> Records:
    return Records()


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def box(records: Records, clock: SimpleNamespace, notes: list[str], tmp_path: Path) -> WriteQueue:
    line = StoreRetryPolicy(timeout=60.0, note=notes.append)
    return WriteQueue(store=records, agent="me", connection=line, study_id=1, lease=300.0, folder=tmp_path)


def reported(step: int) -> MetricReported:
    return MetricReported(ticket_id=7, attempt=1, step=step, value=step / 10)


END = RunEnded(
    ticket_id=7,
    attempt=1,
    outcomes=RunOutcome(
        outcome="complete",
        value=0.1 + 0.2,
        steps=9,
        seconds=1.5,
        measurements=[Measurement(ticket_id=7, step=9, name="validate", value=0.1 + 0.2)],
    ),
    log="a line\nand ünother\n",
)
CHECKPOINT = Checkpoint(step=3, url="file:///a b", digest="d", size=4)
EVERYTHING: list[Change] = [
    RunStarted(ticket_id=7, attempt=1, total_steps=9, code="abc"),
    reported(3),
    CheckpointRecorded(ticket_id=7, attempt=1, checkpoint=CHECKPOINT),
    END,
    AttemptLost(ticket_id=8, attempt=2, error="killed", max_attempts=3, seconds=1.0, log="x"),
    AttemptReleased(ticket_id=9, attempt=1, seconds=0.5),
]


def test_reports_wait_for_each_other_and_an_end_does_not_wait(
    box: WriteQueue, clock: SimpleNamespace
) -> None:
    box.add(reported(1))
    assert not box.is_due()
    clock.now += WriteQueue.min_delay_seconds
    assert box.is_due()
    box.flush()
    assert not box.is_due()
    box.add(reported(2))
    box.add(END)
    assert box.is_due()


def test_leases_are_renewed_for_progress_only_and_for_the_longest_that_was_earned(
    box: WriteQueue, records: Records
) -> None:
    box.renew(7, 1, 300.0, step=4)
    box.renew(7, 1, 300.0, step=9)
    box.renew(8, 2, 900.0)
    box.renew(9, 1, 300.0, step=1)
    box.forget_lease(9)
    box.flush()
    box.flush()
    assert records.renewed == [({7: 1, 8: 2}, 900.0), ({}, 300.0)]
    assert records.steps == [{7: 9}, {}]


def spilled(folder: Path) -> list[Change | None]:
    """Return what the queue has written to disk."""
    return [write_queue._decode(line) for line in outbox_path(folder, "me").read_text().splitlines()]


def add_in_vain(box: WriteQueue, changes: Sequence[Change]) -> None:
    """Have changes told to a store that is away."""
    for change in changes:
        box.add(change)
        with pytest.raises(StoreUnavailableError):
            box.flush()


def test_what_could_not_be_delivered_is_on_disk_and_delivered_in_order_once(
    box: WriteQueue, records: Records, clock: SimpleNamespace, notes: list[str], tmp_path: Path
) -> None:
    records.away = StoreUnreachable("The database failed: refused.")
    add_in_vain(box, EVERYTHING)
    assert spilled(tmp_path) == EVERYTHING
    records.away = None
    clock.now += 30.0
    box.flush()
    assert records.changes == EVERYTHING
    assert not outbox_path(tmp_path, "me").exists() and not len(box)
    assert len(notes) == 2 and "Training continues" in notes[0] and "back after 30 s" in notes[1]


def test_a_full_disk_under_what_could_not_be_delivered_loses_nothing_and_is_told_once(
    box: WriteQueue,
    records: Records,
    clock: SimpleNamespace,
    notes: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records.away = StoreUnreachable("The database failed: refused.")

    def half_of_it(descriptor: int) -> None:
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - 5)
        raise OSError(28, "No space left on device")

    add_in_vain(box, EVERYTHING[:2])
    with monkeypatch.context() as patch:
        patch.setattr(write_queue.os, "fsync", half_of_it)
        add_in_vain(box, EVERYTHING[2:5])
        assert spilled(tmp_path)[:2] == EVERYTHING[:2]
    add_in_vain(box, EVERYTHING[5:])
    assert spilled(tmp_path) == EVERYTHING
    assert [("No space left on device" in note) for note in notes] == [False, True]
    records.away = None
    clock.now += 30.0
    box.flush()
    assert records.changes == EVERYTHING
    assert not outbox_path(tmp_path, "me").exists()


def test_a_file_of_what_was_delivered_that_cannot_be_deleted_is_written_anew(
    box: WriteQueue, records: Records, clock: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*names: Any, **options: Any) -> None:
        raise OSError(30, "Read-only file system")

    for change in EVERYTHING[:2]:
        records.away = StoreUnreachable("The database failed: refused.")
        add_in_vain(box, [change])
        assert spilled(tmp_path) == [change]
        records.away = None
        clock.now += 30.0
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", read_only)
            box.flush()
    assert records.changes == EVERYTHING[:2]


def raise_away() -> None:
    raise StoreUnreachable("The database failed: refused.")


def test_an_agent_gives_up_when_the_store_was_away_for_too_long(clock: SimpleNamespace) -> None:
    line = StoreRetryPolicy(timeout=60.0, note=lambda text: None)
    for seconds in (59.0, 30.0):
        with pytest.raises(StoreUnavailableError):
            line.call(raise_away)
        clock.now += seconds
    with pytest.raises(StoreTimeoutError, match=r"study.store_timeout allows 60 s"):
        line.call(raise_away)


@pytest.mark.parametrize(
    ("error", "raised"),
    [(StorageError("permission denied."), StudyFailed), (StudyNotFound("gone"), StudyNotFound)],
)
def test_what_the_store_refuses_for_good_is_not_tried_for_ever(
    clock: SimpleNamespace, notes: list[str], error: Exception, raised: type[Exception]
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(raised, match=str(error)):
        StoreRetryPolicy(timeout=60.0, note=notes.append).call(fail)
    assert notes == []


def test_after_an_outage_others_are_given_time_to_come_back(clock: SimpleNamespace) -> None:
    line = StoreRetryPolicy(timeout=60.0, note=lambda text: None)
    assert line.is_recovered
    with pytest.raises(StoreUnavailableError):
        line.call(raise_away)
    clock.now += 20.0
    line.call(lambda: None)
    assert not line.is_recovered
    clock.now += 31.0
    assert line.is_recovered


def test_only_the_boxes_of_the_dead_with_the_same_way_to_the_study_are_opened(tmp_path: Path) -> None:
    script = "from tempopt.storage.liveness import agent_name; print(agent_name())"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    dead_agent = process.stdout.strip()
    for agent in (dead_agent, agent_name(), "elsewhere:12:abcdef01:99"):
        text = "".join(write_queue._encode(change) for change in EVERYTHING)
        outbox_path(tmp_path, agent).write_text(text + '{"type": "Repor')
        outbox_path(tmp_path, agent, "undelivered-server-").write_text(text)
    assert list(iter_orphaned_queues(tmp_path)) == [
        (outbox_path(tmp_path, dead_agent), dead_agent, EVERYTHING)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "[]",
        "\0",
        '{"type": []}',
        '{"type": "RunEnded", "ticket',
        '{"type": "Unheard", "ticket_id": 1}',
    ],
)
def test_a_line_that_is_no_change_is_passed_over(text: str) -> None:
    assert write_queue._decode(text) is None


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 2**53 - 1))
def test_numbers_come_back_from_disk_bit_for_bit(value: float, step: int) -> None:
    change = MetricReported(ticket_id=1, attempt=1, step=step, value=value)
    assert write_queue._decode(write_queue._encode(change)) == change
