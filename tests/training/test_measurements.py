"""What is guarded is measured at the end of a run; what is never logged is found before a study begins."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.training.dry_run import dry_run
from tempopt.training.messages import Evaluation, decode, encode
from tempopt.training.run import Run

GUARDED = [
    Evaluation(name="validate", on="validate", guards=["val_loss"]),
    Evaluation(name="test", on="test", guards=["val_loss"]),
    Evaluation(name="test_current", on="test", at="current"),
]


def test_a_guarded_metric_is_measured_with_the_evaluations_that_ask_for_it(
    request_for: Any, listener: Any
) -> None:
    request = decode(encode(request_for("TradeoffToy", metric="score", evaluations=GUARDED)))
    finished = Run(request, listener()).execute()  # type: ignore[arg-type]
    assert finished.measurements.keys() == {
        *("validate", "test", "test_current"),
        *("validate/guard:val_loss", "test/guard:val_loss"),
    }
    for name in ("validate", "test"):
        assert finished.measurements[f"{name}/guard:val_loss"] == finished.metrics[name]["val_loss"]
    assert finished.measurements["test/guard:val_loss"] != finished.measurements["validate/guard:val_loss"]


def test_a_guard_on_what_is_never_logged_is_found_by_a_dry_run(request_for: Any, listener: Any) -> None:
    evaluations = [Evaluation(name="test", on="test", guards=["val_los"])]
    request = request_for("TradeoffToy", metric="score", evaluations=evaluations, task="dry_run")
    message = (
        r'study.guards: Unknown metric "val_los". Did you mean "val_loss"\? Known: score, val_loss. Log it'
    )
    with pytest.raises(SpecError, match=message):
        dry_run(request, listener())
