"""Which runs time a step: some of winner and baseline, after a gain is shown, once in a round."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.confirmation.pairs import confirmed_arms, more_pairs
from tempopt.confirmation.timing import timed_against
from tempopt.records.rows import TicketRow
from tests.simulated import SPACE, Simulated

GUARDS = {"step_time": "<= +2%"}


def hot(ticket: TicketRow) -> float:
    """Return what a run is worth where the higher temperature is the better one."""
    parameters = ticket.parameters or {}
    return 0.1 * parameters.get("temperature_init", 1.0) + 0.001 * ((ticket.seed + len(ticket.arm)) % 7)


def flat(ticket: TicketRow) -> float:
    """Return what a run is worth where nothing helps."""
    return 0.01 * ((ticket.seed * 7919 + len(ticket.arm)) % 11)


def spec_of(make_spec: Any, **study: Any) -> Any:
    return make_spec({"search": SPACE}, trials=4, guards=GUARDS, **study)


def test_a_step_is_timed_eight_times_once_a_gain_is_shown_and_before_the_winner_is_taken_apart(
    make_spec: Any,
) -> None:
    study = Simulated(spec_of(make_spec), hot).run()
    kinds = study.kinds()
    assert kinds.index("confirm") < kinds.index("timing") < kinds.index("ablation")
    timing = study.of("timing")
    arms = confirmed_arms(study.of("confirm"))
    assert [(t.number, t.pair) for t in timing] == [(n, n) for n in range(8)]
    assert all(t.parameters == arms["search"] for t in timing)
    assert len({t.seed for t in timing}) == 8
    assert timed_against(study.rows, 0) == arms["baseline"]


def test_nothing_is_timed_without_a_gain_or_without_the_guard(make_spec: Any) -> None:
    assert "timing" not in Simulated(spec_of(make_spec), flat).run().kinds()
    unguarded = make_spec({"search": SPACE}, trials=4, guards={"val_loss": "<= +2%"})
    assert "timing" not in Simulated(unguarded, hot).run().kinds()


@pytest.mark.parametrize("test", ["sign_flip", "wilcoxon"])
def test_there_are_enough_times_for_the_test(make_spec: Any, test: str) -> None:
    study = Simulated(spec_of(make_spec, test=test), hot).run()
    assert len(study.of("timing")) == 8


def test_pairs_that_are_added_have_times_of_their_own(make_spec: Any) -> None:
    study = Simulated(spec_of(make_spec), hot).run()
    study.do(more_pairs(study.rows, study.spec, 4))
    study.run()
    first, second = study.of("timing", of_round=0), study.of("timing", of_round=1)
    assert [t.number for t in second] == list(range(8, 16))
    assert {t.seed for t in first}.isdisjoint(t.seed for t in second)
