"""Guards in whole studies with real training: a winner that breaks them is found out, and not recommended."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.results.verdict_text import verdict_lines
from tempopt.store.store import Store
from tempopt.study.api import search
from tests.toy_study import URL, toy_spec

SPACE = {"temperature_init": {"low": 0.25, "high": 4.0}}


def traded(guards: dict[str, str], **init: Any) -> dict[str, Any]:
    """Return a study in which a low temperature raises the score, the loss, and what a step costs."""
    spec = toy_spec(
        space=SPACE,
        init=init,
        metric="score",
        direction="maximize",
        trials=3,
        # what three trials find is not asked
        enqueue=[{"temperature_init": 0.5}],
        arms={"baseline": 2, "constant": 1},
        seeds={"choose": 1, "confirm": 6},
        init_only=False,
        ablation="none",
        guards=guards,
    )
    spec["model"]["class_path"] = "toy_modules.Traded"
    return spec


@pytest.mark.usefixtures("toy_folder")
@pytest.mark.long
def test_a_winner_that_breaks_guards_on_a_metric_and_on_step_time_is_not_recommended() -> None:
    guards = {"val_loss": "no worse than 1%", "step_time": "<= +2%", "peak_memory": "<= +5%"}
    spec = traded(guards, work=200_000)
    result = search(spec, storage=URL, workers=2)
    verdict = result.verdict
    assert verdict is not None and verdict.total.significant
    assert [guard.state for guard in verdict.guards] == ["broken", "broken", "not_measured"]
    assert not verdict.guards_kept
    found = verdict.recommendation
    assert found is not None and (found.action, found.parameters) == (
        "change_nothing",
        verdict.baseline_params,
    )
    (line,) = [line for line in verdict_lines(result) if "the winner is not recommended: " in line]
    change = r"\+[\d.]+ %"
    broken = rf"val_loss \({change}, limit \+1 %\) and step_time \({change}, limit \+2 %\)"
    assert re.fullmatch(rf"  the winner is not recommended: it breaks the guard on {broken}\.", line)
    with Store.open(URL, create=False) as store:
        timing = [t for t in store.tickets(store.load_study("toy").id) if t.kind == "timing"]
    assert len(timing) == 8 and all(t.value is not None and t.value > 1.02 for t in timing)
    times = sorted((t.started, t.finished) for t in timing if t.started and t.finished)
    # one after the other, though there are two workers
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(times))


@pytest.mark.usefixtures("toy_folder")
def test_a_guard_on_what_is_not_logged_ends_a_study_before_it_begins() -> None:
    with pytest.raises(SpecError, match='study.guards: Unknown metric "val_f1".*Known: score, val_loss'):
        search(traded({"val_f1": "no worse than 1%"}), storage=URL, workers=1)
