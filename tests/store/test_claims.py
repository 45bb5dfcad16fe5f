"""Tickets are given out once each, however many processes ask at the same time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from tempopt.store import NewTicket, Store, StudyRow

CLAIMER = Path(__file__).with_name("claimer.py")
NUM_PROCESSES = 6
NUM_TICKETS = 200


def claims(store: Store, study: StudyRow, url: str, form: str, environment: dict[str, str]) -> list[int]:
    """Return every id that was given out, of tickets that many processes take at the same time."""
    tickets = [NewTicket(kind="search", arm="search", number=n, seed=n) for n in range(NUM_TICKETS)]
    store.add_tickets(study.id, tickets)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(CLAIMER), url, str(study.id), f"agent-{n}", form],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environment,
                    text=True,
                )
            )
            for n in range(NUM_PROCESSES)
        ]
        stack.callback(_kill, processes)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [process.communicate(timeout=120)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * NUM_PROCESSES
    return [int(word) for answer in answers for word in answer.split()]


def _kill(processes: Iterable[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()


def test_no_ticket_is_given_out_twice_and_none_is_lost(
    store: Store, study: StudyRow, url: str, environment: dict[str, str]
) -> None:
    given = claims(store, study, url, "ours", environment)
    assert len(given) == NUM_TICKETS
    assert sorted(given) == [ticket.id for ticket in store.tickets(study.id)]
    assert {(t.state, t.attempt) for t in store.tickets(study.id)} == {("running", 1)}


def test_the_plain_form_of_a_transaction_gives_tickets_out_twice(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """What shows that the test above can fail, and why SQLite has a write engine of its own."""
    url = f"sqlite:///{tmp_path / 'plain.db'}"
    with Store.open(url) as store:
        given = claims(store, store.create_study("example", {}, ""), url, "plain", environment)
    assert len(given) > NUM_TICKETS
