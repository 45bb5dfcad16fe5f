"""Guards in whole studies with real training: a winner that breaks them is found out, and not recommended."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tempopt.api.calls import search
from tempopt.errors import SpecError
from tests.report.full_text import full_lines
from tests.toy_study import URL, toy_spec

SPACE = {"temperature_init": {"low": 0.25, "high": 4.0}}


def tradeoff_spec(guards: dict[str, str]) -> dict[str, Any]:
    """Return a study in which a low temperature raises the score and the loss."""
    spec = toy_spec(
        space=SPACE,
        metric="score",
        direction="maximize",
        trials=3,
        # what three trials find is not asked
        enqueue=[{"temperature_init": 0.5}],
        arms={"baseline": 2, "constant": 1},
        seeds={"choose": 1, "confirm": 6},
        guards=guards,
    )
    spec["model"]["class_path"] = "toy_modules.TradeoffToy"
    return spec


@pytest.mark.usefixtures("toy_folder")
@pytest.mark.long
def test_a_winner_that_breaks_a_guard_is_not_recommended() -> None:
    result = search(tradeoff_spec({"val_loss": "no worse than 1%"}), storage=URL, workers=2)
    verdict = result.verdict
    assert verdict is not None and verdict.primary.significant
    assert [guard.state for guard in verdict.guards] == ["broken"]
    assert not verdict.guards_kept
    recommendation = verdict.recommendation
    assert recommendation is not None and (recommendation.action, recommendation.params) == (
        "change_nothing",
        verdict.baseline_params,
    )
    (line,) = [line for line in full_lines(result) if "the winner is not recommended: " in line]
    change = r"\+[\d.]+ %"
    guard_text = rf"val_loss \({change}, limit \+1 %\)"
    assert re.fullmatch(rf"  the winner is not recommended: it breaks the guard on {guard_text}\.", line)


@pytest.mark.usefixtures("toy_folder")
def test_a_guard_on_what_is_not_logged_ends_a_study_before_it_begins() -> None:
    with pytest.raises(SpecError, match='study.guards: Unknown metric "val_f1".*Known: score, val_loss'):
        search(tradeoff_spec({"val_f1": "no worse than 1%"}), storage=URL, workers=1)
