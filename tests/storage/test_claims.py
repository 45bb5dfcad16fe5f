"""Tickets are given out once each, with one trial each, however many processes ask at the same time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import optuna

from tempopt.storage import Store
from tempopt.storage.rows import StudyRow
from tests.storage.scenes import new_ticket

CLAIMER = Path(__file__).with_name("claimer.py")
NUM_PROCESSES = 6
NUM_TICKETS = 100


def claims(store: Store, study: StudyRow, url: str, environment: dict[str, str]) -> tuple[list[str], bool]:
    """Let many processes take tickets; return each ticket:trial given out, and whether all ended well."""
    store.add_tickets(study.id, [new_ticket(n) for n in range(NUM_TICKETS)])
    command = [sys.executable, str(CLAIMER), url, str(study.id), str(NUM_PROCESSES)]
    process = subprocess.run(command, stdout=subprocess.PIPE, env=environment, text=True, timeout=240)
    return process.stdout.split(), process.returncode == 0


def test_no_ticket_is_given_out_twice_none_is_lost_and_each_has_one_trial(
    store: Store, study: StudyRow, optuna_study: optuna.Study, url: str, environment: dict[str, str]
) -> None:
    ticket_claims, all_ended_well = claims(store, study, url, environment)
    assert all_ended_well
    tickets = store.tickets(study.id)
    assert sorted(ticket_claims) == sorted(f"{t.id}:{t.trial_number}" for t in tickets)
    assert {(t.state, t.attempt) for t in tickets} == {("running", 1)}
    trials = optuna_study.get_trials()
    assert [trial.number for trial in trials] == list(range(NUM_TICKETS))
    assert {t.trial_number: t.id for t in tickets} == {
        trial.number: trial.user_attrs["tempopt:ticket"] for trial in trials
    }
