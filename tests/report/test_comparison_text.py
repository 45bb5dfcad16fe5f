"""What is said of a comparison, as words, as JSON and as a config to train with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tempopt.errors import StudyFailed
from tempopt.report.export import to_python, to_yaml
from tempopt.seeds import derive
from tests.report.full_text import full_lines


def gaining_worth(**gains: float) -> Any:
    return lambda arm, pair: 0.5 + pair / 10 + gains.get(arm, 0.0) * (1 + pair / 10)


@pytest.mark.parametrize(
    ("direction", "gain", "words"),
    [
        ("maximize", -0.1, "No gain shown: B is worse: val_accuracy is lower by 0.115 with B than with A ("),
        ("minimize", 0.1, "No gain shown: B is worse: val_accuracy is higher by 0.115 with B than with A ("),
        ("minimize", -0.1, "Gain shown: val_accuracy is lower by 0.115 with B than with A ("),
    ],
)
def test_words_say_which_way_it_goes_so_no_number_has_a_sign(
    direction: str, gain: float, words: str, make_comparison: Any
) -> None:
    first, *_ = full_lines(make_comparison(gaining_worth(B=gain), study__direction=direction))
    assert first.startswith(words) and "+" not in first and "−" not in first


def test_no_difference_is_told_with_its_sign_and_the_gain_that_is_excluded(make_comparison: Any) -> None:
    first, *lines = full_lines(make_comparison(lambda arm, pair: 0.5 + (arm == "B") * (-1.0) ** pair))
    assert first.startswith("No gain shown: the gain of B over A in val_accuracy is +0.0 (95 % interval −")
    (end,) = re.findall(r" to \+([\d.]+), p", first)
    assert f"  a gain above {end} is excluded (95 %)." in lines


def test_what_is_not_over_or_came_to_nothing_claims_nothing(make_comparison: Any) -> None:
    lines = full_lines(make_comparison(gaining_worth(B=1.0), waiting=True))
    assert lines[0] == "No verdict yet: the comparison on fresh seeds is not over (7 of 8 runs are over)."
    lines = full_lines(make_comparison(lambda arm, pair: "lost" if arm == "B" else None))
    assert lines[0] == (
        "No verdict: no run of any set has a finite value of val_accuracy: B failed or diverged on 4 of 4 "
        "seeds, A on 4. Fix the sets, and start again."
    )


NUMBERS = re.compile(r"interval|p = |is excluded|gain [+−]")


@pytest.mark.parametrize("end", [None, "lost"])
def test_a_set_without_any_value_is_given_no_number(end: Any, make_comparison: Any) -> None:
    result = make_comparison(lambda arm, pair: end if arm == "B" else 0.5 + pair / 10)
    lines = full_lines(result)
    assert lines[0] == "No gain shown: B failed or diverged on 4 of 4 seeds, A on 0, so B is worse."
    assert not NUMBERS.search("\n".join(lines))
    assert result.comparison.outcome == "worse" and result.comparison.has_verdict
    dead_reference = make_comparison(lambda arm, pair: end if arm == "A" else 0.5 + pair / 10)
    lines = full_lines(dead_reference)
    assert lines[0] == (
        "No verdict: no run of A, the reference, has a finite value of val_accuracy: B failed or diverged on "
        "0 of 4 seeds, A on 4. Fix A, and start again."
    )
    assert not NUMBERS.search("\n".join(lines))
    data = dead_reference.to_json()
    assert data["decision"] is None and data["comparison"]["outcome"] == "not_shown"
    assert not dead_reference.comparison.has_verdict
    with pytest.raises(StudyFailed):
        to_yaml(dead_reference)


def test_where_failures_decide_no_number_says_the_contrary(make_comparison: Any) -> None:
    def worth(arm: str, pair: int) -> Any:
        failed = arm == "B" and pair < 7
        return None if failed else {"A": 0.3, "B": 0.9}[arm] + derive(arm, pair) % 7 / 100

    result = make_comparison(worth, study__seeds={"confirm": 16})
    lines = full_lines(result)
    assert lines[0] == "No gain shown: B failed or diverged on 7 of 16 seeds, A on 0, so B is worse."
    assert not NUMBERS.search("\n".join(lines))
    data = result.to_json()
    decision, means = data["decision"], data["comparison"]["means"]
    assert (decision["before"], decision["after"], decision["change"]) == (means["A"], means["B"], None)
    (variant,) = data["comparison"]["variants"]
    assert (variant["gain"], variant["p_value"], variant["failed"]) == (None, None, 7)


def test_of_each_two_sets_one_without_any_value_is_beaten(make_comparison: Any) -> None:
    def worth(arm: str, pair: int) -> Any:
        return None if arm == "A" else 0.5 + derive(arm, pair) % 7 / 100

    comparison = make_comparison(worth, {"lr": 1}, {"lr": 2}, {"lr": 3}, all_pairs=True).comparison
    assert comparison.unbeaten == ["B", "C"] and comparison.recommended_set == "B"
    assert [pair.winner for pair in comparison.pairs] == ["B", "C", None]
    assert comparison.max_loss == comparison.pairs[2].answer.paired.ci_high


def test_the_json_says_what_the_exit_code_says_and_is_plain_data(make_comparison: Any) -> None:
    result = make_comparison(gaining_worth(B=0.1))
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    comparison = data["comparison"]
    assert data["verdict"] is None and data["best"] is None
    decision, finding = data["decision"], data["findings"][0]
    assert (decision["outcome"], decision["use"], decision["baseline"]) == ("gain", "B", "A")
    assert decision["about"] == "B" and decision["change"] == comparison["variants"][0]["gain"]
    assert (finding["state"], finding["gain"]) == ("shown", decision["change"])
    outcomes = tuple(comparison[name] for name in ("outcome", "best", "better", "worse"))
    assert outcomes == ("better", "B", ["B"], [])
    assert comparison["reference"] == {"name": "A", "params": {}}
    (variant,) = comparison["variants"]
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
    table = page.partition("### The comparison as JSON\n")[2].partition("\n## ")[0]
    documented_keys = set(re.findall(r"`(\w+)`", table))
    assert {*comparison, *variant} <= documented_keys
    assert variant["params"] == {"lr": 0.1} and variant["significant"] and not variant["worse"]
    assert variant["gain"] == pytest.approx(0.115) and variant["ci_low"] > 0 and variant["n_pairs"] == 4
    assert (variant["dropped"], variant["diverged"], variant["reference_diverged"]) == (0, 0, 0)
    comparison_lost = make_comparison(lambda arm, pair: "lost").to_json()["comparison"]
    assert comparison_lost["outcome"] == "not_shown" and comparison_lost["variants"][0]["gain"] is None
    # a kind of which there will be no run is not unknown
    requested = {kind: counts["requested"] for kind, counts in data["tickets"].items()}
    assert requested == {**dict.fromkeys(requested, 0), "confirm": 8}


def test_the_better_set_is_exported_and_nothing_else_is(make_comparison: Any) -> None:
    sets = [{}, {"lr": 0.1, "temperature_init": 2, "data.batch_size": 8, "trainer.max_steps": 7}]
    result = make_comparison(gaining_worth(B=0.1), *sets)
    text = to_yaml(result)
    config = yaml.safe_load(text)
    assert config["model"]["init_args"] == {"temperature_init": 2.0, "lr": 0.1}
    assert config["data"]["init_args"]["batch_size"] == 8 and config["trainer"]["max_steps"] == 7
    assert text.startswith(
        "# B of tempopt's comparison 'gate', as written by tempopt export.\n# Gain shown: "
    )
    assert "UNCONFIRMED" not in text
    assert "MyModule(lr=0.1, temperature_init=2.0)" in to_python(result)
    refusal = "no parameter set to be better than A.*Keep A: the spec as it stands"
    for result_without, match in (
        (make_comparison(gaining_worth(B=-0.1)), refusal),
        (make_comparison(gaining_worth(B=0.1), waiting=True), "is not over, so there is nothing to export"),
    ):
        for export in (to_yaml, to_python):
            with pytest.raises(StudyFailed, match=match):
                export(result_without)


def test_each_two_sets_are_told_with_the_one_to_take_and_its_bound(make_comparison: Any) -> None:
    sets = [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}]
    result = make_comparison(gaining_worth(B=1.0, C=1.01), *sets, all_pairs=True)
    headline, bound, *lines = full_lines(result)
    assert headline == (
        "Difference shown: take C, the only set that none is shown to beat in val_accuracy (4 fresh seeds, "
        "test data, paired t-test)."
    )
    assert bound == (
        "  nothing is lost by taking C: it is shown to be the best of the sets (95 % confidence, upper end "
        "of the simultaneous intervals)."
    )
    text = "\n".join(lines)
    assert "A (lr=0.1): mean 0.65; another set is shown to beat it." in text
    assert "gain of B over A: +1.15 (" in text
    assert "the 3 comparisons share the level 5 %: each interval covers 98.33 %, " in text
    all_pairs = result.to_json()["comparison"]["all_pairs"]
    names = [pair["reference"] + pair["name"] for pair in all_pairs["pairs"]]
    assert names == ["AB", "AC", "BC"]
    assert all_pairs["take"] in all_pairs["unbeaten"]
    assert yaml.safe_load(to_yaml(result))["model"]["init_args"]["lr"] in (0.2, 0.3)
