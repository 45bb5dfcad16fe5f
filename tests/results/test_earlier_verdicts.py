"""The verdicts of a study before its latest: shown as they were, and not undone by one that shows nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import yaml

from tempopt.confirmation.pairs import more_pairs
from tempopt.confirmation.recommendation import Recommendation
from tempopt.confirmation.verdict import Verdict, standing
from tempopt.records.rows import TicketRow
from tempopt.report import headline as report
from tempopt.results.decision import decide
from tempopt.results.export import to_yaml
from tempopt.results.findings import headline
from tempopt.results.study_result import StudyResult
from tests.results.full_text import full_lines
from tests.simulated import Simulated, Worth

GAIN = 0.1


def gaining(*rounds: int) -> Worth:
    """Return what a run is worth if any other temperature than 1 gains in these rounds, and in no other."""

    def worth(t: TicketRow) -> float:
        assert t.parameters is not None
        noise = np.random.default_rng([t.seed % 2**32, len(str(t.parameters)), 1]).normal(0, 0.01)
        return float(noise + GAIN * (t.parameters["temperature_init"] != 1.0) * (t.round in rounds))

    return worth


@pytest.fixture
def two_rounds(make_spec: Any, result_of: Any) -> Any:
    """Return a maker of a study before and after a second round."""

    def make(*rounds: int, **given: Any) -> tuple[StudyResult, StudyResult]:
        study = Simulated(make_spec(trials=6, **given), gaining(*rounds)).run()
        before = result_of(study.spec, list(study.rows), state="done")
        study.more(4)
        return before, result_of(study.spec, study.rows, state="done")

    return make


def recommended(verdict: Verdict | None) -> Recommendation:
    assert verdict is not None and verdict.recommendation is not None
    return verdict.recommendation


def test_a_gain_that_an_earlier_verdict_showed_still_holds_and_is_what_to_do(two_rounds: Any) -> None:
    before, after = two_rounds(0)
    assert before.verdict.total.significant and not after.verdict.total.significant
    # to the bit what it was, whatever was trained since
    assert after.earlier_verdicts == (before.verdict,) and after.standing == before.verdict
    first, todo, *others = full_lines(after)
    assert first.startswith("No gain shown by verdict 2: the gain of the winner of the search over ")
    assert " Verdict 1 showed a gain: +0." in first and first.endswith(" It still holds.")
    tau = recommended(before.verdict).parameters["temperature_init"]
    assert todo.startswith(
        "  What to do: what verdict 1 recommends, which stays valid: train at a constant temperature: "
        f"τ = {tau:.4g}. As code: `tempopt export pairs`. Verdict 2 has the smaller share of the error rate"
    )
    assert "change nothing" not in todo
    (line,) = [each for each in others if each.startswith("  verdict 1 (round 0): gain shown, +0.")]
    assert "95 % interval" in line and "p = " in line
    assert line.endswith(f"train at a constant temperature: τ = {tau:.4g}.")
    # what the latest verdict excludes is told all the same
    assert any("a gain of the winner above" in each and "97.5 %" in each for each in others)


def test_export_and_report_take_the_recommendation_that_stays_valid(two_rounds: Any) -> None:
    before, after = two_rounds(0)
    assert yaml.safe_load(to_yaml(after)) == yaml.safe_load(to_yaml(before))
    assert "# What to do: what verdict 1 recommends" in to_yaml(after)
    assert report.answer(after) == "No gain shown by verdict 2"
    assert report.what_to_do(after).startswith("What verdict 1 recommends, which stays valid: ")
    # the decision is that of the verdict that stays valid
    assert report.decision_lines(after)[:3] == report.decision_lines(before)[:3]
    assert any(text.startswith("Verdict 1 (round 0): gain shown") for text, _ in report.statements(after))


def test_earlier_verdicts_are_data_for_programs(two_rounds: Any) -> None:
    before, after = two_rounds(0)
    told, (earlier,) = before.to_json()["verdict"], after.to_json()["earlier_verdicts"]
    assert before.to_json()["earlier_verdicts"] == [] and told["recommendation"]["stays_valid"] is None
    same = ("gain", "ci_low", "ci_high", "p_value", "significant", "confidence", "n_pairs", "params", "alpha")
    assert {name: earlier[name] for name in same} == {name: told[name] for name in same}
    assert (earlier["verdict"], earlier["round"], earlier["stands"]) == (1, 0, True)
    for name in ("action", "now", "params", "at_inference", "gain"):
        assert earlier["recommendation"][name] == told["recommendation"][name]
    latest = after.to_json()["verdict"]["recommendation"]
    assert (latest["now"], latest["stays_valid"]) == ("change_nothing", 1)


def test_pairs_that_are_added_leave_the_verdict_that_they_are_added_to_as_it_was(
    make_spec: Any, result_of: Any
) -> None:
    study = Simulated(make_spec(trials=6), gaining(0, 1)).run()
    before = result_of(study.spec, list(study.rows), state="done")
    study.do(more_pairs(study.rows, study.spec, 8))
    after = result_of(study.spec, study.rows, state="done")
    assert after.verdict.looks == 2 and after.earlier_verdicts == (before.verdict,)
    assert after.verdict.total.paired.n_pairs == before.verdict.total.paired.n_pairs + 8
    assert after.verdict.params == before.verdict.params
    # not all of its seeds are fresh, and the interval is that of the combined test
    num_seeds, num_earlier = after.verdict.total.paired.n_pairs, before.verdict.total.paired.n_pairs
    seeds = f"{num_seeds} seeds ({num_earlier} of the verdict before)"
    assert f"; {seeds}, measured on the test data, paired t-test, rounds combined)" in headline(after)
    decision = decide(after)
    assert decision is not None and f", {seeds}, " in decision.headline
    assert (decision.seeds, decision.earlier_seeds) == (num_seeds, num_earlier)
    assert any("combine 2 rounds of pairs with squared weights 1:2" in line for line in full_lines(after))
    assert f"{num_earlier} fresh seeds" in headline(before)


def test_what_is_shown_of_the_same_parameters_takes_a_recommendation_back(two_rounds: Any) -> None:
    before, after = two_rounds(0)
    earlier, latest = before.verdict, after.verdict
    test = dataclasses.replace(latest.total.paired, gain=-GAIN, p_value=0.001)
    worse = dataclasses.replace(latest.total, paired=test, each=())
    other, same = (
        dataclasses.replace(latest, total=worse, params=params)
        for params in ({"temperature_init": 1.7}, earlier.params)
    )
    assert standing(other, [earlier]) == earlier and standing(same, [earlier]) is None
    told = headline(dataclasses.replace(after, verdict=same))
    assert "Verdict 1 showed a gain" in told and "still holds" not in told
    small = dataclasses.replace(
        earlier, recommendation=dataclasses.replace(recommended(latest), min_gain=1.0)
    )
    assert standing(small, [earlier]) is None
    # the winner says nothing of inference alone
    alone = dataclasses.replace(recommended(earlier), now="inference_only", plan="constant=0.5")
    of_inference = dataclasses.replace(earlier, recommendation=alone)
    assert standing(same, [of_inference]) == of_inference
