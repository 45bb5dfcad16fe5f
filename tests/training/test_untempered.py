"""Modules without a temperature: parameter sets of theirs are compared, and nothing of theirs is searched."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import AttachError, SpecError
from tempopt.training.dry_run import check, dry_run
from tempopt.training.messages import Evaluation, Started
from tempopt.training.run import LightningRun

TEST = [Evaluation(name="test", on="test"), Evaluation(name="test_current", on="test", at="current")]


def test_a_module_without_attention_is_trained_as_it_is(request_for: Any, listener: Any) -> None:
    channel = listener()
    request = request_for("PooledStock", compared=True, parameters={"widths": [4, 6]}, evaluations=TEST)
    finished = LightningRun(request, channel).execute()
    assert finished.state == "complete" and finished.step == 24
    assert channel.messages_of(Started)[0].layers == []
    # with no plan that moves, its end and the moment are the same
    assert finished.measurements["test"] == finished.measurements["test_current"]
    assert dry_run(request_for("PooledStock", compared=True, task="dry_run", evaluations=TEST), listener())


def test_a_module_with_attention_is_left_as_it_is_unless_it_is_attached_to(
    request_for: Any, listener: Any
) -> None:
    values = []
    for attach in (None, {"layers": "auto"}):
        channel = listener()
        finished = LightningRun(
            request_for("Stock", compared=True, attach=attach, evaluations=TEST), channel
        ).execute()
        values.append(finished.measurements["test"])
        assert len(channel.messages_of(Started)[0].layers) == (0 if attach is None else 2)
    # at temperature 1 attaching changes nothing
    assert values[0] == values[1]
    with pytest.raises(SpecError, match="temperature_init is a temperature parameter.*Add attach:"):
        LightningRun(request_for("Stock", compared=True, parameters={"temperature_init": 2.0}), listener())


def test_a_search_needs_a_temperature_as_ever(request_for: Any, listener: Any) -> None:
    with pytest.raises(AttachError):
        LightningRun(request_for("PooledStock"), listener())
    space = {"lr": [0.1, 0.2]}
    with pytest.raises(SpecError, match="nothing would set its temperature"):
        check(request_for("PooledStock", task="check", space=space))
    assert check(request_for("PooledStock", compared=True, task="check", space=space)).state == "complete"


def test_every_value_that_does_not_fit_has_a_line(request_for: Any) -> None:
    space = {"lr": [0.1, "fast", "slow"], "widths": [[4], "wide"], "nonsense": [1]}
    with pytest.raises(SpecError) as excinfo:
        check(request_for("PooledStock", compared=True, task="check", space=space))
    lines = str(excinfo.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        *("compare.lr", "compare.lr", "compare.widths", "compare.nonsense"),
    ]
