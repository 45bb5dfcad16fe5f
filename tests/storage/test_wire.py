"""What agents and servers say to each other, written and read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.errors import UsageError
from tempopt.storage.changes import RunEnded, RunOutcome
from tempopt.storage.http.wire import change_from_plain, change_to_plain

SEEDS = st.integers(0, 2**63 - 1)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | SEEDS


@given(st.dictionaries(st.text(min_size=1, max_size=20), NUMBERS, max_size=4), SEEDS)
def test_an_end_is_read_as_it_was_written_whatever_its_seed(
    attributes: dict[str, int | float], seed: int
) -> None:
    outcomes = RunOutcome(
        outcome="complete", value=0.5, steps=9, seconds=1.0, attributes={**attributes, "seed": seed}
    )
    change = RunEnded(ticket_id=1, attempt=1, outcomes=outcomes)
    assert change_from_plain(json.loads(json.dumps(change_to_plain(change)))) == change


@pytest.mark.parametrize("seed", [2**63, 10**400])
def test_a_seed_beyond_what_databases_hold_is_refused(seed: int) -> None:
    outcomes = RunOutcome(outcome="complete", value=0.5, steps=9, seconds=1.0, attributes={"seed": seed})
    with pytest.raises(UsageError, match="beyond"):
        change_from_plain(change_to_plain(RunEnded(ticket_id=1, attempt=1, outcomes=outcomes)))
