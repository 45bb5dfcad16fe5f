"""A run that ends at the end of an interval: at which step, and what others find there."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tempopt.training.identity import run_identity
from tempopt.training.run import Run
from tempopt.workers.messages import Report, Started
from tests.training.test_checkpoint_callback import EPOCHS, everything, same
from tests.training.test_forks import fork

FIRST = {"schedule": "piecewise", "temperature_knots": [[0.0, 2.0], [0.4, 0.5]]}
SECOND = {"schedule": "piecewise", "temperature_knots": [[0.0, 2.0], [0.4, 0.5], [1.0, 3.0]]}
# of 24 steps progress is step / 23, and 9 / 23 the last one that is not beyond 0.4
STEPS = 10
SHORT_EPOCHS = {**EPOCHS, "max_epochs": 12, "limit_train_batches": 2, "val_check_interval": 1.0}
LONG_APART = {"checkpoint_every": 3600.0, "validate_at": "current"}


@pytest.mark.parametrize(
    ("trainer", "saved_at", "reported_at"),
    [
        ({"limit_train_batches": 7}, STEPS, [4, 8, STEPS]),
        # a validation is due there
        ({"val_check_interval": 5}, STEPS, [5, STEPS]),
        # it is the end of an epoch, from which Lightning does not go on
        ({}, STEPS - 1, [4, 8, STEPS]),
        (SHORT_EPOCHS, STEPS, [2, 4, 6, 8, STEPS]),
        ({**SHORT_EPOCHS, "check_val_every_n_epoch": 4}, STEPS - 1, [8, STEPS]),
        (
            {"accumulate_grad_batches": 2, "limit_train_batches": 7, "val_check_interval": 6},
            STEPS,
            [3, 6, STEPS],
        ),
    ],
)
@pytest.mark.parametrize("module", ["Toy", "Stock"])
def test_a_run_ends_at_a_step_from_which_another_goes_on_exactly(
    request_for: Any,
    listener: Any,
    tmp_path: Path,
    module: str,
    trainer: dict[str, Any],
    saved_at: int,
    reported_at: list[int],
) -> None:
    how = {**LONG_APART, "trainer": trainer, "attach": None if module == "Toy" else {"layers": "auto"}}
    place = str(tmp_path / "1")
    parent = request_for(module, ticket=1, parameters=FIRST, until=0.4, checkpoints=place, **how)
    heard = listener()
    finished = Run(parent, heard).execute()
    assert (finished.state, finished.step, finished.measurements) == ("reached", STEPS, {})
    assert [each.step for each in heard.of(Report)] == reported_at
    assert [int(step) for step, _ in finished.reports] == reported_at
    assert heard.saved[0].step == saved_at
    child = request_for(module, ticket=2, parameters=SECOND, **how)
    whole = Run(child, listener())
    expected = everything(whole, whole.execute())
    channel = listener()
    begun = dataclasses.replace(
        child, checkpoints=str(tmp_path / "2"), forks=[fork(parent, heard.saved[0], child)]
    )
    forked = Run(begun, channel)
    found = everything(forked, forked.execute())
    [started] = channel.of(Started)
    assert (started.step, started.forked, started.notes) == (saved_at, 1, [])
    # the callback that keeps checkpoints is no state of the training's
    assert [name for name in expected if not same(found[name], expected[name])] == []


def test_what_it_reports_there_is_what_a_validation_there_would_have_said(
    request_for: Any, listener: Any
) -> None:
    validated = {**LONG_APART, "trainer": {"val_check_interval": 5}, "parameters": FIRST}
    due = Run(request_for(until=0.4, **validated), listener()).execute()
    whole = Run(request_for(**validated), listener()).execute()
    apart = Run(request_for(until=0.4, **{**validated, "trainer": {}}), listener()).execute()
    assert due.reports == whole.reports[:2]
    assert apart.reports[-1] == due.reports[-1]


def test_an_attempt_that_was_lost_after_its_last_checkpoint_trains_nothing_more_and_reports_the_same(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    how = {**LONG_APART, "trainer": {"limit_train_batches": 7}}
    request = request_for(parameters=FIRST, until=0.4, checkpoints=str(tmp_path), **how)
    heard = listener()
    first = Run(request, heard).execute()
    again = listener()
    second = Run(dataclasses.replace(request, attempt=2, resume=heard.saved), again).execute()
    [started] = again.of(Started)
    assert started.step == STEPS
    assert (second.state, second.step) == ("reached", STEPS)
    assert second.reports == first.reports
    assert [each.step for each in again.of(Report)] == [STEPS]


def test_where_it_ends_is_no_part_of_what_is_trained(request_for: Any) -> None:
    assert run_identity(request_for(until=0.4)) == run_identity(request_for())
