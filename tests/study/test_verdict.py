"""What is said of a study at its end, and what is never said."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from tempopt.store.rows import TicketRow
from tempopt.study.verdict import headline, parameters_text, verdict_lines


def shifted(tickets: list[TicketRow], arm: str, gains: list[float]) -> list[TicketRow]:
    """Return the tickets with the confirm runs of an arm ``gains`` away from 0.5."""
    return [
        dataclasses.replace(t, value=0.5 + gains[t.pair])
        if (t.kind, t.arm) == ("confirm", arm) and t.pair is not None
        else t
        for t in tickets
    ]


def test_a_gain_is_told_with_interval_p_and_what_it_is_made_of(
    make_spec: Any, whole_study: list[TicketRow], measure_unit: Any, result_of: Any
) -> None:
    lines = verdict_lines(result_of(make_spec(), whole_study, measure_unit(whole_study), state="done"))
    first, winner, constant, inference, init, cost = lines
    assert first.startswith("Gain shown: val_accuracy is higher by 0.1035 than with τ = 1")
    assert "95 % interval +0.1015 to +0.1055" in first and "p = 7.6e-13" in first
    assert "8 fresh seeds, test data, paired t-test" in first
    assert winner == "  winner: temperature_init=4"
    assert "best of 4 constants (temperature_init=3): +0.0517" in constant
    assert constant.endswith("the plan is worth that much more than one constant.")
    assert "winner's final temperature" in inference and inference.endswith("29 % of the gain.")
    assert init.endswith("20 % of the gain.")
    assert cost == "  cost: 1 min 46 s of training in 53 runs (search trials: 4 complete)."


def test_a_lower_loss_is_called_lower(make_spec: Any, whole_study: list[TicketRow], result_of: Any) -> None:
    tickets = shifted(whole_study, "search", [-0.1 - pair / 1000 for pair in range(8)])
    result = result_of(make_spec(direction="minimize", metric="val_loss"), tickets)
    assert headline(result).startswith("Gain shown: val_loss is lower by 0.1035 than with τ = 1")


def test_no_gain_is_told_as_such_with_the_numbers_and_without_shares(
    make_spec: Any, whole_study: list[TicketRow], measure_unit: Any, result_of: Any
) -> None:
    tickets = shifted(whole_study, "search", [0.1, -0.1, 0.2, -0.2, 0.1, -0.15, 0.1, -0.03])
    lines = verdict_lines(result_of(make_spec(), tickets, measure_unit(tickets)))
    assert lines[0].startswith(
        "No gain shown: the winner of the search gains +0.00 in val_accuracy over τ = 1"
    )
    assert lines[2].endswith("the plan is not shown to be worth more than one constant.")
    assert not any("of the gain" in line for line in lines)


def test_a_winner_that_is_worse_is_called_worse(
    make_spec: Any, whole_study: list[TicketRow], result_of: Any
) -> None:
    tickets = shifted(whole_study, "search", [-0.1 - pair / 1000 for pair in range(8)])
    lines = verdict_lines(result_of(make_spec(), tickets))
    assert lines[0].startswith(
        "No gain shown: in val_accuracy the winner of the search is worse than τ = 1 by 0.1035"
    )
    assert lines[2].endswith("the constant is better.")


def test_the_best_value_of_a_search_is_never_called_the_gain(
    make_spec: Any, whole_study: list[TicketRow], result_of: Any
) -> None:
    searched = [t for t in whole_study if t.kind in ("unit", "constant", "search")]
    lines = verdict_lines(result_of(make_spec(), searched))
    assert lines[0] == "No verdict yet: the confirmation on fresh seeds is not over."
    assert lines[1] == "  best trial: val_accuracy 0.53 with temperature_init=6; that is not the gain."
    assert verdict_lines(result_of(make_spec(), []))[0] == "No search trial of pairs is complete yet."


def test_a_study_without_a_pair_to_compare_says_so(
    make_spec: Any, whole_study: list[TicketRow], result_of: Any
) -> None:
    lost = [
        dataclasses.replace(t, state="failed", outcome="failed", value=None) if t.kind == "confirm" else t
        for t in whole_study
    ]
    lines = verdict_lines(result_of(make_spec(), lost, state="done"))
    assert lines[0] == "No verdict: no pair of runs could be compared in the confirmation."


def test_an_evaluation_of_a_trained_model_claims_no_gain(
    make_spec: Any, whole_study: list[TicketRow], result_of: Any
) -> None:
    searched = [t for t in whole_study if t.kind == "search"]
    lines = verdict_lines(result_of(make_spec(evaluate_only="m.ckpt"), searched, state="done"))
    assert lines[0] == "Evaluation of a trained model, best trial: val_accuracy 0.53 with temperature_init=6."
    assert "no gain to confirm" in lines[1]


def test_what_weakens_a_verdict_is_said(make_spec: Any, whole_study: list[TicketRow], result_of: Any) -> None:
    tickets = [
        dataclasses.replace(t, outcome="diverged", value=None)
        if (t.kind, t.arm, t.pair) == ("confirm", "search", 0)
        else dataclasses.replace(t, outcome="failed", state="failed", value=None)
        if (t.kind, t.arm, t.pair) == ("confirm", "unit", 1)
        else dataclasses.replace(t, value=9.0 + (t.pair or 0))
        if (t.kind, t.arm) == ("confirm", "search")
        else t
        for t in whole_study
    ]
    text = "\n".join(verdict_lines(result_of(make_spec(confirm_on="validate"), tickets)))
    assert "No gain shown" in text
    assert "confirmed on the validation data that the search has seen: only the seeds are fresh" in text
    assert "the winner diverged on 1 of 7 seeds, τ = 1 on 0" in text
    assert "so the gain does not count" in text
    assert "failed on every attempt: 1." in text


def test_a_later_verdict_says_that_it_was_looked_at_before(
    make_spec: Any, whole_study: list[TicketRow], measure_unit: Any, result_of: Any
) -> None:
    later = [
        dataclasses.replace(t, round=1, id=t.id + 500, number=t.number + 500)
        for t in whole_study
        if t.kind in ("search", "confirm", "init_only")
    ]
    tickets = [*whole_study, *later]
    lines = verdict_lines(result_of(make_spec(), tickets, measure_unit(tickets)))
    assert "97.5 % interval" in lines[0] and "p = 1.5e-12" in lines[0]
    assert lines[2] == (
        "  verdict 2 of this study: to be right as often as with one look, every p is multiplied by 2 and "
        "the intervals are 97.5 %."
    )
    searching = [t for t in later if t.kind == "search"]
    lines = verdict_lines(result_of(make_spec(), [*whole_study, *searching]))
    assert "95 % interval" in lines[0] and "p = 7.6e-13" in lines[0]
    assert lines[2] == ("  this is from before the newest search trials were added: those are not confirmed.")


def test_what_was_lost_is_counted_and_named(make_spec: Any, make_ticket: Any, result_of: Any) -> None:
    def failed(number: int, error: str | None) -> TicketRow:
        fields = {"state": "failed", "outcome": "failed", "failures": 3, "error": error}
        return cast(TicketRow, make_ticket("search", number, **fields))

    tickets = [
        make_ticket("search", 0, 0.5, failures=2, error="killed by signal 9 (SIGKILL)"),
        *(failed(1, "out of memory."), failed(2, None), failed(3, f"{'x' * 200}\ny"), failed(4, "lost")),
        make_ticket("constant", 0, state="withdrawn"),
        *(make_ticket("search", 5 + i, state="withdrawn") for i in range(2)),
    ]
    lines = verdict_lines(result_of(make_spec(), tickets))
    assert lines[2] == (
        "  failed on every attempt: 4 (search 1: out of memory; search 2: no reason is known; "
        f"search 3: {'x' * 100} ...; and 1 more)."
    )
    assert lines[3] == ("  attempts lost and made good: 2 (search 0: killed by signal 9 (SIGKILL)).")
    assert lines[4] == "  withdrawn, the study having been stopped before: 1 constant, 2 search tickets."


def test_a_study_that_ended_with_nothing_says_why(make_spec: Any, make_ticket: Any, result_of: Any) -> None:
    withdrawn = make_ticket("search", 0, state="withdrawn")
    lines = verdict_lines(result_of(make_spec(), [withdrawn], state="done"))
    assert lines[0] == "No verdict: pairs is over, and no search trial is complete."
    lines = verdict_lines(result_of(make_spec(), [make_ticket("search", 0, 0.5)], state="done"))
    assert lines[0].startswith("No verdict: no run with τ = 1 was begun")


def test_what_checkpoints_cost_is_told(make_spec: Any, make_ticket: Any, result_of: Any) -> None:
    ticket = make_ticket("search", 0, 0.5, seconds=100.0, checkpoint_seconds=12.0)
    cost = verdict_lines(result_of(make_spec(), [ticket]))[-1]
    assert "1 min 40 s of training in 1 runs, 12 s of it to write checkpoints" in cost


def test_what_runs_took_of_cards_is_told_where_they_took_any(
    make_spec: Any, make_ticket: Any, result_of: Any
) -> None:
    on_cpu = [make_ticket("search", 0, 0.5)]
    assert "GPU" not in verdict_lines(result_of(make_spec(), on_cpu))[-1]
    rows = [
        make_ticket("search", n, 0.5, gpu_seconds=45.0, peak_memory=8 * 10**9, alone=n > 0) for n in range(3)
    ]
    lines = verdict_lines(result_of(make_spec(), rows))
    assert lines[-1].endswith("; 2 min 15 s of GPUs, at most 8 GB of one in use.")
    assert "  ran out of a card's memory and needed a card of their own: search-1, search-2." in lines


def test_models_that_no_other_temperature_helps_are_said_to_be_best_at_one(
    make_spec: Any, whole_study: list[TicketRow], measure_unit: Any, result_of: Any
) -> None:
    measured = measure_unit(whole_study, {"test:winner": -0.1})
    lines = verdict_lines(result_of(make_spec(), whole_study, measured))
    assert "  inference only: models trained at τ = 1 are evaluated best at τ = 1." in lines
    measured = measure_unit(whole_study, {"validate:constant=0.5": 0.1, "test:constant=0.5": 0.2})
    (line,) = [
        line for line in verdict_lines(result_of(make_spec(), whole_study, measured)) if "0.5)" in line
    ]
    assert line.endswith(": all of the gain.")


def test_few_pairs_bound_no_interval_and_the_words_say_so(
    make_spec: Any, whole_study: list[TicketRow], result_of: Any
) -> None:
    few = [t for t in whole_study if t.kind not in ("confirm", "init_only") or t.pair == 0]
    text = "\n".join(verdict_lines(result_of(make_spec(), few)))
    assert "95 % interval −∞ to +∞, p = 1" in text
    assert "so few pairs bound no interval" in text


def test_parameters_are_rounded_for_people() -> None:
    assert parameters_text({"temperature_init": 1.23456, "schedule": "cosine", "num_steps": 4}) == (
        "temperature_init=1.235, schedule=cosine, num_steps=4"
    )
