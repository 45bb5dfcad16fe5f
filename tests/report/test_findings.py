"""What is said of a study at its end, and what is never said."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pytest

from tempopt.report.decision import decide
from tempopt.report.finding import Finding
from tempopt.report.findings import find
from tempopt.report.study_result import StudyResult
from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import arms_of
from tempopt.temperature import LEARNED, active_groups
from tests.report.full_text import full_lines
from tests.simulated import SPACE, SimulatedStudy, Worth

WORSE = [-0.1 - pair / 1000 for pair in range(4)]
AT_ONE = ("over_baseline", "over_twin")


def shifted(tickets: list[TicketRow], arm: str, gains: list[float]) -> list[TicketRow]:
    """Return the tickets with the confirm runs of an arm ``gains`` away from 0.5."""
    return [
        dataclasses.replace(t, value=0.5 + gains[t.pair])
        if t.kind == "confirm" and arm in arms_of(t) and t.pair is not None
        else t
        for t in tickets
    ]


def by_kind(result: StudyResult) -> dict[str, Finding]:
    """Return the findings of a study by kind, of several of a kind the first."""
    findings: dict[str, Finding] = {}
    for finding in find(result):
        findings.setdefault(finding.kind, finding)
    return findings


def gain_of(finding: Finding) -> float:
    assert finding.answer is not None
    return finding.answer.paired.gain


def test_where_tau_one_diverged_on_every_seed_no_number_is_given_and_it_is_not_recommended(
    make_spec: Any, whole_study: list[TicketRow], result_of: Any
) -> None:
    shifted_rows = shifted(whole_study, "search", [0.1, 0.12, *[0.0] * 6])
    tickets = [
        dataclasses.replace(t, outcome="diverged", value=None) if "baseline" in arms_of(t) else t
        for t in shifted_rows
        if t.kind != "confirm" or t.pair in (0, 1)
    ]
    result = result_of(make_spec(seeds={"confirm": 2}), tickets, state="done")
    first, todo, *other_lines = full_lines(result)
    assert first == "No verdict: τ = 1 has no finite value on any seed."
    assert todo.startswith("  What to do: use τ = 1, as now. ") and "Let τ = 1 train to its end" in todo
    assert any(line.startswith("  the winner diverged on 0 of 2 seeds, τ = 1 on 2 ") for line in other_lines)
    decision = decide(result)
    assert decision is not None and (decision.outcome, decision.before) == ("untrained", None)


def test_a_gain_is_told_with_interval_p_and_what_it_is_made_of(
    make_spec: Any, whole_study: list[TicketRow], measure_baseline: Any, result_of: Any
) -> None:
    result = result_of(make_spec(), whole_study, measure_baseline(whole_study), state="done")
    findings = find(result)
    assert [finding.kind for finding in findings] == [
        *("decision", "recommendation", "winner", "basis", "inference", "over_inference", "cost")
    ]
    decision, todo, winner, basis, inference, difference, cost = findings
    assert (decision.state, inference.state, difference.state) == ("shown", "shown", "shown")
    assert decision.answer == result.verdict.primary and inference.answer is not None
    assert inference.answer.paired.gain == pytest.approx(0.03 * 1.015)
    assert decision.params == winner.params == todo.params == {"temperature_init": 5.0}
    assert decision.text.startswith(
        "Gain shown: val_accuracy 0.5000 -> 0.6015, +0.1015 (95 % interval +0.0970 to +0.1060), 4 fresh seeds"
    )
    assert basis.text == "compared with τ = 1 on the test data, paired t-test."
    assert todo.text.startswith("What to do: use τ = 5. ")
    assert (
        "at the end of the range of temperature_init (0.25 to 4); to search a wider one: `tempopt"
        in todo.text
    )
    # what is to be widened is said above
    assert winner.text == "winner of the search: τ = 5"
    assert inference.details == (
        "the winner's final temperature has the best mean of 18 on the validation data of these models: "
        "a log-spaced grid of constants from 0.0625 to 16, the winner's final temperature, and the "
        "temperature of the training.",
    )
    assert cost.text == "cost: 42 s of training in 21 runs (search trials: 4 complete)."


def test_no_gain_is_told_as_such_with_the_numbers_and_without_shares(
    make_spec: Any, whole_study: list[TicketRow], measure_baseline: Any, result_of: Any
) -> None:
    tickets = shifted(whole_study, "search", [0.1, -0.1, 0.2, -0.2])
    measurements = measure_baseline(tickets, {"test:winner": 0.03})
    result = result_of(make_spec(seeds={"confirm": 4}, min_gain=0), tickets, measurements)
    findings, total = by_kind(result), result.verdict.primary.paired
    assert findings["decision"].state == findings["over_inference"].state == "not_shown"
    # the number is that of the interval
    assert findings["excluded"].text == f"a gain of the winner above {total.ci_high:.2f} is excluded (95 %)."
    assert findings["recommendation"].text == (
        "What to do: use τ = 1, as now. The winner was τ = 5, the best of the search. "
        f"A gain above {total.ci_high:.2f} is excluded (95 %). As code: `tempopt export pairs`."
    )
    assert findings["winner"].text.endswith("; at the end of the searched range: temperature_init")
    assert not any("of the gain" in line for line in full_lines(result))


def test_a_winner_that_is_worse_is_called_worse(
    make_spec: Any, whole_study: list[TicketRow], result_of: Any
) -> None:
    result = result_of(make_spec(), shifted(whole_study, "search", WORSE))
    findings = by_kind(result)
    assert findings["decision"].state == "worse" and "excluded" not in findings
    assert findings["decision"].text.startswith(
        "No gain shown: val_accuracy 0.5000 -> 0.3985, −0.1015 (95 % interval −0.1060 to −0.0970)"
    )
    # no bound is given that the interval does not support, and no more pairs are advised
    assert "It is shown to be worse. As code:" in findings["recommendation"].text
    decision = decide(result)
    assert decision is not None and decision.outcome == "worse" and decision.high < 0
    # a gain above 0 is excluded, which the interval says
    assert not any("excluded" in text for text in decision.also)


def test_the_best_value_of_a_search_is_never_called_the_gain(
    make_spec: Any, whole_study: list[TicketRow], result_of: Any
) -> None:
    search_rows = [t for t in whole_study if t.kind in ("baseline", "constant", "search")]
    lines = full_lines(result_of(make_spec(), search_rows))
    assert lines[0] == "No verdict yet: the confirmation on fresh seeds is not over."
    assert lines[1] == "  best trial: val_accuracy 0.53 with τ = 6; that is not the gain."
    assert full_lines(result_of(make_spec(), []))[0] == "No search trial of pairs is complete yet."


def test_what_weakens_a_verdict_is_said(make_spec: Any, whole_study: list[TicketRow], result_of: Any) -> None:
    second_pairs = [
        dataclasses.replace(t, id=t.id + 500, number=t.number + 500, pair=t.pair + 4)
        for t in whole_study
        if t.kind == "confirm" and t.pair is not None
    ]
    tickets = [
        dataclasses.replace(t, outcome="diverged", value=None)
        if (t.kind, t.arm, t.pair) == ("confirm", "search", 0)
        else dataclasses.replace(t, outcome="failed", state="failed", value=None)
        if (t.kind, t.arm, t.pair) == ("confirm", "baseline+twin", 1)
        else dataclasses.replace(t, value=9.0 + (t.pair or 0))
        if (t.kind, t.arm) == ("confirm", "search")
        else t
        for t in [*whole_study, *second_pairs]
    ]
    text = "\n".join(full_lines(result_of(make_spec(confirm_on="validate", seeds={"confirm": 8}), tickets)))
    assert "No gain shown" in text
    assert "confirmed on the validation data that the search has seen: only the seeds are fresh" in text
    assert "the winner diverged on 1 of 7 seeds, τ = 1 on 0" in text
    assert "so its gain does not count" in text
    assert "failed on every attempt: 1." in text


def simulate_study(make_spec: Any, result_of: Any, worth: Worth, **study: Any) -> StudyResult:
    """Return a study whose runs are worth so much."""
    simulation = SimulatedStudy(make_spec({"search": SPACE}, trials=6, **study), worth).run()
    return cast(StudyResult, result_of(simulation.spec, simulation.rows, state="done"))


def by_part(t: TicketRow) -> float:
    assert t.parameters is not None
    parts = {"length_scaling": 1.0, "schedule": 0.05, "level": 0.05}
    noise = np.random.default_rng([t.seed % 2**32, len(str(t.parameters))]).normal(0, 0.01)
    return float(sum(parts[part] for part in active_groups(t.parameters)) + noise)


def test_a_gain_beside_other_parameters_is_told_against_baseline_and_twin(
    make_spec: Any, result_of: Any
) -> None:
    def worth(t: TicketRow) -> float:
        # at one a rate of its own is better than whatever the winner has
        assert t.parameters is not None
        return by_part(t) + 0.2 * t.parameters["lr"] * (t.parameters["temperature_init"] == 1.0)

    findings = by_kind(simulate_study(make_spec, result_of, worth))
    assert findings["decision"].state == "shown"
    assert findings["over_baseline"].state == findings["over_twin"].state == "shown"
    gains = [gain_of(finding) for kind, finding in findings.items() if kind in AT_ONE]
    # the gain is the smaller of the two
    assert gain_of(findings["decision"]) == min(gains) and min(gains) == pytest.approx(1, abs=0.2)
    assert findings["over_baseline"].text.startswith("against the best that is known at τ = 1: +")
    assert findings["over_twin"].text.startswith("against its own other parameters at τ = 1 (")
    assert findings["over_twin"].text.endswith("the more cautious of the two counts, at each end.")


def test_a_gain_of_a_schedule_is_told_against_constants_and_parts_on_request_alone(
    make_spec: Any, result_of: Any
) -> None:
    findings = by_kind(simulate_study(make_spec, result_of, by_part))
    assert findings["over_constant"].state == "shown" and findings["over_constant_twin"].state == "not_shown"
    assert findings["schedule"].state == "not_shown"
    assert gain_of(findings["over_constant"]) == pytest.approx(1.05, abs=0.05)
    assert not {"part", "simplest", "learned"} & findings.keys()
    explained_result = simulate_study(make_spec, result_of, by_part, explain=True)
    parts = [finding for finding in find(explained_result) if finding.kind == "part"]
    assert [finding.state for finding in parts] == ["not_shown", "not_shown", "shown"]
    assert parts[-1].text.startswith("the winner against itself without the length scaling: +1.0")
    assert {"simplest", "learned", "over_learned"} <= by_kind(explained_result).keys()


def test_a_study_that_ended_with_nothing_says_why(make_spec: Any, make_ticket: Any, result_of: Any) -> None:
    withdrawn_ticket = make_ticket("search", 0, state="withdrawn")
    lines = full_lines(result_of(make_spec(), [withdrawn_ticket], state="done"))
    assert lines[0] == "No verdict: pairs is over, and no search trial is complete."
    lines = full_lines(result_of(make_spec(), [make_ticket("search", 0, 0.5)], state="done"))
    assert lines[0].startswith("No verdict: no run with τ = 1 was begun")


@pytest.mark.parametrize(("worth_of_learned", "state"), [(0.3, "worse"), (0.0, "shown"), (0.1, "not_shown")])
def test_the_winner_is_compared_with_learned_temperatures_on_request(
    worth_of_learned: float, state: str, make_spec: Any, result_of: Any
) -> None:
    def worth(t: TicketRow) -> float:
        assert t.parameters is not None
        noise = np.random.default_rng([t.seed % 2**32, len(str(t.parameters))]).normal(0, 0.01)
        gain = 0.1 * (t.parameters["temperature_init"] != 1.0)
        return float(noise + (worth_of_learned if LEARNED in t.parameters else gain))

    study = SimulatedStudy(make_spec(trials=6, explain=True), worth).run()
    result = result_of(study.spec, study.rows, state="done")
    by_kind = {finding.kind: finding for finding in find(result)}
    assert any("learned" in arms_of(run) for run in result.runs if run.kind == "ablation")
    assert by_kind["over_learned"].state == state
    assert by_kind["learned"].state == ("not_shown" if worth_of_learned == 0.0 else "shown")
