"""What is said of compared values, as words, as JSON and as a config to train with."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import yaml

from tempopt.confirmation.stages import first_tickets
from tempopt.confirmation.values import more_value_pairs
from tempopt.errors import StudyFailed
from tempopt.records.rows import TicketRow
from tempopt.results.export import to_python, to_yaml
from tempopt.results.study_result import StudyResult
from tempopt.results.verdict_text import verdict_lines
from tests.simulated import Simulated, row
from tests.specs import make

HEADS = [1, 2, 4]


def worth(ticket: TicketRow, gains: dict[int, float]) -> float:
    own = (ticket.parameters or {})["num_heads"]
    # differences of pairs spread by a little, so that t tests have something to divide by
    return 0.5 + gains.get(own, 0.0) + 0.01 * (ticket.seed % 7) + 0.001 * (ticket.seed % (own + 2))


@pytest.fixture(scope="module")
def make_result(result_of: Any) -> Any:
    """Return a maker of studies that are over, or that stopped after a kind of runs."""

    def made(gains: dict[int, float], *, until: str | None = None, **study: Any) -> StudyResult:
        settings = {"compare": "num_heads", "trials": 9, "seeds": {"choose": 2, "confirm": 6}, **study}
        spec = make(
            search={"num_heads": HEADS, "lr": {"low": 0.1, "high": 1.0}},
            **{f"study__{name}": value for name, value in settings.items()},
        )
        study_made = Simulated(spec, lambda ticket: worth(ticket, gains))
        if until == "begun":
            rows = [row(ticket, n) for n, ticket in enumerate(first_tickets(spec))]
            return result_of(spec, rows)  # type: ignore[no-any-return]
        if until is not None:
            study_made.search()
            study_made.until(until)
            last = study_made.rows[-1]
            study_made.rows[-1] = dataclasses.replace(last, state="waiting", outcome=None, value=None)
            return result_of(spec, study_made.rows)  # type: ignore[no-any-return]
        return result_of(spec, study_made.run().rows, state="done")  # type: ignore[no-any-return]

    return made


def test_the_recommended_value_is_said_first_with_what_may_be_lost_by_it(make_result: Any) -> None:
    result = make_result({1: -0.3})
    lines = verdict_lines(result, " --storage sqlite:///x.db")
    assert lines[0] == (
        "Difference shown: take num_heads=2, the smallest value of which no other is shown to be better in "
        "val_accuracy (6 fresh seeds, test data, paired t-test)."
    )
    bound = result.values_compared.at_most_lost
    assert f"num_heads=2 loses at most {bound:.3g} in val_accuracy (96 % confidence" in lines[1]
    assert lines[2].startswith("  with num_heads=1: mean 0.2") and "another is shown to be better" in lines[2]
    assert "another" not in lines[3] and "(trained with lr=" in lines[3]
    pairs = [line for line in lines if "gain of " in line]
    assert [line.strip().split(":")[0] for line in pairs] == [
        "gain of num_heads=2 over num_heads=1",
        "gain of num_heads=4 over num_heads=1",
        "gain of num_heads=4 over num_heads=2",
    ]
    assert [line.rpartition(": ")[2] for line in pairs] == ["better.", "better.", "no difference shown."]
    assert any("the 3 comparisons share the 4 % that this verdict may spend" in line for line in lines)
    assert any(line.endswith("--pairs +6 --storage sqlite:///x.db") for line in lines)
    assert lines[-1].startswith("  cost: ")


def test_values_that_are_alike_are_said_to_be_and_the_smallest_is_recommended(make_result: Any) -> None:
    lines = verdict_lines(make_result({}))
    assert lines[0].startswith("No difference shown: take num_heads=1, the smallest value of which no other")


def test_the_best_value_that_beats_all_others_loses_nothing(make_result: Any) -> None:
    lines = verdict_lines(make_result({4: 0.3}))
    assert "take num_heads=4, the only value of which no other is shown to be better" in lines[0]
    assert "nothing is lost by taking num_heads=4: it is shown to be the best of the values" in lines[1]
    assert not any("more pairs narrow" in line for line in lines)


def test_what_is_worth_having_is_part_of_the_reason(make_result: Any) -> None:
    lines = verdict_lines(make_result({1: -0.01}, min_gain=0.2))
    assert "take num_heads=1" in lines[0] and "shown to be better by more than 0.2 in" in lines[0]


def test_what_earlier_verdicts_have_shown_is_still_said(result_of: Any) -> None:
    spec = make(
        search={"num_heads": HEADS, "lr": {"low": 0.1, "high": 1.0}},
        study__compare="num_heads",
        study__trials=9,
        study__seeds={"choose": 2, "confirm": 6},
    )
    study = Simulated(spec, lambda ticket: worth(ticket, {1: -0.3})).run()
    study.do(more_value_pairs(study.rows, spec, 4))
    lines = verdict_lines(result_of(spec, study.rows, state="done"))
    told = "num_heads=2 is better than num_heads=1, num_heads=4 is better than num_heads=1"
    assert f"  verdict 1 (round 0) recommended num_heads=2, and has shown: {told}." in lines
    assert any(line.startswith("  verdict 2 of this study: of the 5 %") for line in lines)
    assert "10 fresh seeds" in lines[0]


def test_of_a_loss_the_sign_is_said(make_result: Any) -> None:
    lines = verdict_lines(make_result({1: 0.3}, direction="minimize"))
    assert "take num_heads=2" in lines[0]
    assert "  a gain with + is better: a lower val_accuracy." in lines


@pytest.mark.parametrize(
    ("until", "said"),
    [
        ("begun", "No verdict yet: each value of num_heads is searched, and none is confirmed."),
        (
            "confirm",
            "No verdict yet: the values of num_heads are being compared on fresh seeds (17 of 18 runs",
        ),
    ],
)
def test_before_the_verdict_it_is_said_how_far_it_is(make_result: Any, until: str, said: str) -> None:
    result = make_result({}, until=until)
    assert verdict_lines(result)[0].startswith(said)
    assert result.to_json()["values"] is None and result.winner is None
    with pytest.raises(StudyFailed, match="recommends no value of num_heads yet"):
        to_yaml(result)


def test_kinds_of_runs_that_there_will_never_be_are_not_expected(make_result: Any) -> None:
    counts = make_result({}, until="begun").tickets
    assert {kind for kind, count in counts.items() if count.requested is None} == {"choose", "confirm"}
    assert {kind for kind, count in counts.items() if count.requested} == {"search"}


def test_the_data_say_what_the_words_say(make_result: Any) -> None:
    result = make_result({1: -0.3})
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))["values"]
    assert data["parameter"] == "num_heads" and data["recommended"]["value"] == 2
    assert data["at_most_lost"] == result.values_compared.at_most_lost
    assert [(e["value"], e["beaten"], e["runs"], e["failed"]) for e in data["values"]] == [
        (1, True, 6, 0),
        (2, False, 6, 0),
        (4, False, 6, 0),
    ]
    assert [(e["reference"], e["name"], e["significant"], e["worse"]) for e in data["pairs"]] == [
        ("num_heads=1", "num_heads=2", True, False),
        ("num_heads=1", "num_heads=4", True, False),
        ("num_heads=2", "num_heads=4", False, False),
    ]
    assert (data["alpha"], data["comparisons"], data["looks"]) == (0.04, 3, 1)
    assert result.winner == data["recommended"]["params"]


def test_what_is_exported_trains_the_recommended_value(make_result: Any) -> None:
    result = make_result({1: -0.3})
    text = to_yaml(result)
    assert text.startswith("# num_heads=2, as tempopt's study 'mine' recommends it")
    found = result.values_compared.recommended
    config = yaml.safe_load(text)
    assert config["model"]["init_args"] == found.params
    assert "num_heads=2" in to_python(result)
