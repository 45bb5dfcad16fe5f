"""Confirmations of programs, which may fail by themselves and ignore their seeds."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import TicketRow
from tempopt.verdict.stages import failed_runs_to_requeue
from tempopt.verdict.verdict import Verdict, compute_verdict
from tests.simulated import SimulatedStudy


class FailingStudy(SimulatedStudy):
    """One study whose runs without a value have failed on every attempt."""

    def _train_ticket(self, ticket: TicketRow) -> TicketRow:
        row = super()._train_ticket(ticket)
        return row if row.value is not None else dataclasses.replace(row, state="failed", outcome="failed")


def run_study(worth: Any, number: int = 0, **study: Any) -> FailingStudy:
    """Return a study that is over: a run is worth a function of its gain, its noise and its ticket."""
    data = {
        "study": {
            "name": "gate",
            "metric": "loss",
            "direction": "maximize",
            "trials": 4,
            "seed": number,
            "seeds": {"confirm": {"min": 4, "max": 16}},
            **study,
        },
        "program": {"command": "python train.py {seed} {gain}", "metric": "loss"},
        "search": {"gain": {"low": 2.0, "high": 4.0, "baseline": 1.0}},
    }

    def worth_of(ticket: TicketRow) -> float | None:
        gain = (ticket.parameters or {})["gain"]
        value: float | None = worth(gain, random.Random(f"{ticket.seed} {gain}").gauss(0, 1), ticket)
        return value

    return FailingStudy(StudySpec.parse(data, source="gate"), worth_of).run()


def verdict_of(study: FailingStudy) -> Verdict:
    verdict = compute_verdict(study.rows, [], study.spec)
    assert verdict is not None
    return verdict


def test_a_winner_that_crashes_on_its_bad_seeds_shows_no_gain() -> None:
    verdicts = [
        verdict_of(run_study(lambda gain, noise, _: None if gain > 1 and noise < -0.5244 else noise, number))
        for number in range(40)
    ]
    # more than 4 of 40 would be at odds with a rate of 2.5 %
    assert sum(verdict.primary.significant for verdict in verdicts) <= 4
    assert any(verdict.failures and verdict.failures.arm.failed for verdict in verdicts)


@pytest.mark.parametrize("arms", [["winner"], ["baseline"], ["winner", "baseline"]])
def test_a_program_that_ignores_its_seed_shows_nothing(arms: list[str]) -> None:
    def worth(gain: float, noise: float, ticket: TicketRow) -> float:
        return (60 if gain > 1 else 0) + (0 if ("winner" if gain > 1 else "baseline") in arms else noise)

    study = run_study(worth, min_gain=0.1)
    verdict = verdict_of(study)
    assert verdict.unvaried == arms and verdict.primary.paired.p_value == 1
    assert verdict.recommendation is not None and verdict.recommendation.action == "change_nothing"
    assert len(study.tickets_of("confirm")) == 2 * (4 if len(arms) == 2 else 16)


def test_seeds_on_which_both_fail_leave_a_gain_and_are_not_repeated() -> None:
    def worth(gain: float, noise: float, ticket: TicketRow) -> float | None:
        return None if ticket.kind == "confirm" and ticket.pair in (0, 1) else noise + (5 if gain > 1 else 0)

    study = run_study(worth)
    verdict = verdict_of(study)
    assert verdict.primary.significant and verdict.primary.dropped == 0
    assert (verdict.primary.diverged, verdict.primary.reference_diverged) == (2, 2)
    assert failed_runs_to_requeue(study.rows, study.spec) == ([], [])


def test_a_confirmation_without_any_value_ends_after_the_first_look_and_is_repeated_if_asked() -> None:
    study = run_study(lambda _, noise, ticket: None if ticket.kind == "confirm" else noise)
    confirm = study.tickets_of("confirm")
    assert len(confirm) == 2 * 4 and compute_verdict(study.rows, [], study.spec) is None
    assert failed_runs_to_requeue(study.rows, study.spec) == (confirm, [])
