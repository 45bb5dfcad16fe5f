"""A step is timed by turns with another's, and what it does not say of a ticket is left out."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.training import step_timing
from tempopt.training.step_timing import time_steps
from tempopt.workers.messages import (
    BASELINE_TIME,
    TIME_RATIO,
    WINNER_TIME,
    Progress,
    Report,
    Started,
)

COLD, ONE = {"temperature_init": 0.5}, {"temperature_init": 1.0}
TIMED: dict[str, Any] = {"task": "compare_steps", "against": ONE}
# the toy computes in each step, below τ = 1 alone, for some ten times as long as the step itself takes
WORK = {"work": 200_000}


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_timing, "WARM", 1)
    monkeypatch.setattr(step_timing, "TIMED", 3)
    monkeypatch.setattr(step_timing, "_BLOCK", step_timing._BLOCK | {"max_steps": 4})


@pytest.mark.parametrize("seed", [4, 5])
def test_a_costly_step_takes_longer_whoever_begins(request_for: Any, listener: Any, seed: int) -> None:
    def timed(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
        request = request_for(
            "Traded",
            metric="score",
            init=WORK,
            parameters=one,
            seed=seed,
            task="compare_steps",
            against=other,
        )
        return time_steps(request, listener()).measurements

    slower, faster = timed(COLD, ONE), timed(ONE, COLD)
    assert slower[WINNER_TIME] > slower[BASELINE_TIME] > 0
    assert slower[TIME_RATIO] == slower[WINNER_TIME] / slower[BASELINE_TIME] > 1.5
    assert faster[TIME_RATIO] < 1 / 1.5


def test_the_agent_hears_that_it_began_once_and_no_reports(request_for: Any, listener: Any) -> None:
    channel = listener()
    request = request_for("Traded", metric="score", parameters=COLD, **TIMED)
    finished = time_steps(request, channel)
    (started,) = channel.of(Started)
    # blocks of a warm and three timed steps, four cycles of four blocks
    assert (finished.state, finished.step, started.total_steps) == ("complete", 64, 64)
    assert channel.of(Report) == [] and channel.of(Progress)


@pytest.mark.parametrize(("module", "init"), [("Adversarial", {}), ("Manual", {}), ("Manual", {"steps": 8})])
def test_a_batch_may_take_any_number_of_steps(
    request_for: Any, listener: Any, module: str, init: dict[str, Any]
) -> None:
    finished = time_steps(request_for(module, init=init, parameters=COLD, **TIMED), listener())
    assert (finished.state, finished.step) == ("complete", 64)
    assert min(finished.measurements.values()) > 0


def test_a_run_that_is_to_leave_is_stopped_in_good_order(request_for: Any, listener: Any) -> None:
    request = request_for("Traded", metric="score", parameters=COLD, **TIMED)
    finished = time_steps(request, listener(stop_at=2))
    assert (finished.state, finished.measurements) == ("stopped", {})


def test_a_training_that_diverges_is_told_as_such(request_for: Any, listener: Any) -> None:
    request = request_for("Traded", metric="score", init={"diverge_at": 2}, parameters=COLD, **TIMED)
    finished = time_steps(request, listener())
    assert (finished.state, finished.measurements) == ("diverged", {})


def test_the_fastest_of_each_step_counts() -> None:
    assert step_timing._seconds_a_step([[1.0, 5.0, 3.0], [2.0, 4.0, 9.0]]) == pytest.approx((1 + 4 + 3) / 3)
