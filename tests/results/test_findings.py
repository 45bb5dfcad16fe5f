"""What is said of a study at its end, and what is never said."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, cast

import numpy as np

from tempopt.records.rows import TicketRow
from tempopt.records.tickets import arms_of
from tempopt.results.findings import headline, verdict_lines
from tempopt.results.wording import parameters_text
from tempopt.temperature import active_groups
from tests.simulated import SPACE, Simulated, Worth


def shifted(tickets: list[TicketRow], arm: str, gains: list[float]) -> list[TicketRow]:
    """Return the tickets with the confirm runs of an arm ``gains`` away from 0.5."""
    return [
        dataclasses.replace(t, value=0.5 + gains[t.pair])
        if t.kind == "confirm" and arm in arms_of(t) and t.pair is not None
        else t
        for t in tickets
    ]


def test_where_tau_one_diverged_on_every_seed_no_number_is_given_and_it_is_not_recommended(
    make_spec: Any, whole_study: list[TicketRow], result_of: Any
) -> None:
    two = shifted(whole_study, "search", [0.1, 0.12, *[0.0] * 6])
    tickets = [
        dataclasses.replace(t, outcome="diverged", value=None) if "baseline" in arms_of(t) else t
        for t in two
        if t.kind != "confirm" or t.pair in (0, 1)
    ]
    result = result_of(make_spec(seeds={"confirm": 2}), tickets, state="done")
    first, todo, *others = verdict_lines(result)
    assert first == (
        "No gain shown: τ = 1 diverged on every seed, so what the winner of the search gains over it in "
        "val_accuracy cannot be told (2 fresh seeds, measured on the test data, paired t-test)."
    )
    assert todo.startswith("  What to do: change nothing yet: τ = 1 diverged on every seed")
    assert any(line.startswith("  the winner diverged on 0 of 2 seeds, τ = 1 on 2 ") for line in others)


def test_a_gain_is_told_with_interval_p_and_what_it_is_made_of(
    make_spec: Any, whole_study: list[TicketRow], measure_baseline: Any, result_of: Any
) -> None:
    lines = verdict_lines(result_of(make_spec(), whole_study, measure_baseline(whole_study), state="done"))
    first, todo, winner, constant, inference, choice, difference, learned, against, cost = lines
    assert first.startswith(
        "Gain shown: val_accuracy is higher by 0.1035 with the winner of the search than with τ = 1"
    )
    assert "96 % interval 0.1013 to 0.1057" in first and "p = 9.5e-13" in first
    assert "8 fresh seeds, measured on the test data, paired t-test" in first
    assert todo.startswith("  What to do: widen the range of temperature_init, now 0.25 to 4, up to ")
    assert todo.endswith(
        "Until then: train at a constant temperature: τ = 4. Evaluate at the same temperature. That "
        "is the winner of the search. Nothing simpler is shown to do as well. As code: `tempopt export "
        "pairs`."
    )
    # what is to be widened is said above
    assert winner == "  winner of the search: temperature_init=4"
    assert (
        "against the best constant temperature, chosen after 4 runs (temperature_init=3): +0.0517" in constant
    )
    assert constant.endswith(": the winner is a constant.")
    assert "winner's final temperature" in inference and inference.endswith(
        "29 % of the winner's gain (96 % interval 28 to 30 %)."
    )
    assert choice == (
        "    the winner's final temperature has the best mean of 18 on the validation data of these models: "
        "a log-spaced grid of constants from 0.0625 to 16, the winner's final temperature, and the "
        "temperature of the training."
    )
    assert difference.startswith(
        "  the winner against models trained at τ = 1, evaluated at the winner's final temperature: +0.0735 "
        "(96 % interval +0.0713 to +0.0757, "
    )
    assert difference.endswith(
        "training at another temperature is worth that much more than inference alone."
    )
    assert learned.startswith("  learned temperatures (from τ = 1, with ") and "30 % of the winner" in learned
    assert against.startswith("    the winner against them: +0.0724 (96 % interval ")
    assert cost == "  cost: 1 min 54 s of training in 57 runs (search trials: 4 complete)."


def test_a_lower_loss_is_called_lower(make_spec: Any, whole_study: list[TicketRow], result_of: Any) -> None:
    tickets = shifted(whole_study, "search", [-0.1 - pair / 1000 for pair in range(8)])
    result = result_of(make_spec(direction="minimize", metric="val_loss"), tickets)
    assert headline(result).startswith(
        "Gain shown: val_loss is lower by 0.1035 with the winner of the search than with τ = 1"
    )


def test_no_gain_is_told_as_such_with_the_numbers_and_without_shares(
    make_spec: Any, whole_study: list[TicketRow], measure_baseline: Any, result_of: Any
) -> None:
    tickets = shifted(whole_study, "search", [0.1, -0.1, 0.2, -0.2, 0.1, -0.15, 0.1, -0.03])
    measured = measure_baseline(tickets, {"test:winner": 0.03})
    lines = verdict_lines(result_of(make_spec(), tickets, measured))
    assert lines[0].startswith(
        "No gain shown: the gain of the winner of the search over τ = 1 in val_accuracy is +0.00 ("
    )
    total = result_of(make_spec(), tickets).verdict.total.paired
    assert lines[1] == (
        "  What to do: change nothing: train and evaluate at τ = 1. A gain of the winner above "
        f"{total.ci_high:.2f} is excluded (96 %). If a smaller gain is worth more pairs to you (a pair "
        "is one fresh seed, trained with the winner and with what it is compared with), set study.min_gain "
        "to see how many."
    )
    assert lines[2].endswith(
        "; at the end of the searched range: temperature_init (not to be widened, since no gain is shown "
        "there)"
    )
    assert lines[3].endswith(": the winner is a constant.")
    assert not any("of the gain" in line for line in lines)
    assert any("not shown to be worth more than inference alone" in line for line in lines)


def test_a_winner_that_is_worse_is_called_worse(
    make_spec: Any, whole_study: list[TicketRow], result_of: Any
) -> None:
    tickets = shifted(whole_study, "search", [-0.1 - pair / 1000 for pair in range(8)])
    lines = verdict_lines(result_of(make_spec(), tickets))
    assert lines[0].startswith(
        "No gain shown: in val_accuracy the winner of the search is worse than τ = 1, by 0.1035 (96 % "
        "interval 0.1013 to 0.1057, p = "
    )
    # no bound is given that the interval does not support, and no more pairs are advised
    assert "or more" not in lines[0]
    assert lines[1].endswith("The winner of the search is shown to be worse.")


def test_the_best_value_of_a_search_is_never_called_the_gain(
    make_spec: Any, whole_study: list[TicketRow], result_of: Any
) -> None:
    searched = [t for t in whole_study if t.kind in ("baseline", "constant", "search")]
    lines = verdict_lines(result_of(make_spec(), searched))
    assert lines[0] == "No verdict yet: the confirmation on fresh seeds is not over."
    assert lines[1] == "  best trial: val_accuracy 0.53 with temperature_init=6; that is not the gain."
    assert verdict_lines(result_of(make_spec(), []))[0] == "No search trial of pairs is complete yet."


def test_what_weakens_a_verdict_is_said(make_spec: Any, whole_study: list[TicketRow], result_of: Any) -> None:
    tickets = [
        dataclasses.replace(t, outcome="diverged", value=None)
        if (t.kind, t.arm, t.pair) == ("confirm", "search", 0)
        else dataclasses.replace(t, outcome="failed", state="failed", value=None)
        if (t.kind, t.arm, t.pair) == ("confirm", "baseline+twin", 1)
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


def test_a_later_verdict_says_what_part_of_the_level_it_may_spend(
    make_spec: Any, whole_study: list[TicketRow], measure_baseline: Any, result_of: Any
) -> None:
    later = [
        dataclasses.replace(t, round=1, id=t.id + 500, number=t.number + 500)
        for t in whole_study
        if t.kind in ("search", "confirm")
    ]
    tickets = [*whole_study, *later]
    lines = verdict_lines(result_of(make_spec(), tickets, measure_baseline(tickets)))
    assert "99.5 % interval" in lines[0] and "p = 7.6e-12" in lines[0]
    assert lines[3] == (
        "  verdict 2 of this study: of the 5 % that all its verdicts share, this one may spend 0.5 %, so p "
        "is multiplied by 10."
    )
    searching = [t for t in later if t.kind == "search"]
    lines = verdict_lines(result_of(make_spec(), [*whole_study, *searching]))
    assert "96 % interval" in lines[0] and "p = 9.5e-13" in lines[0]
    assert lines[3] == ("  this is from before the newest search trials were added: those are not confirmed.")


def told(make_spec: Any, result_of: Any, worth: Worth, **study: Any) -> list[str]:
    """Return what is said of a study whose runs are worth so much."""
    found = Simulated(make_spec({"search": SPACE}, trials=6, **study), worth).run()
    return verdict_lines(result_of(found.spec, found.rows, state="done"))


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

    lines = told(make_spec, result_of, worth, ablation="none")
    assert lines[0].startswith("Gain shown")
    assert lines[3].startswith("  against the best at τ = 1, tuned again after choosing: +0.9")
    assert re.match(r"  against its own other parameters at τ = 1 \(.*lr=0\.\d+\): \+1\.0", lines[4])
    assert lines[4].endswith("the more cautious of the two counts, at each end.")
    assert re.match(r"  against the best constant temperature, chosen after 3 runs \(.*\): \+1\.0", lines[5])
    assert re.match(
        r"  against the winner with constant τ = \d\S* in place of its schedule \(the best on the "
        r"choosing seeds of constants that span it\), all else as in the winner: \+0",
        lines[6],
    )
    assert lines[6].endswith(": the schedule is worth more than one constant.")
    assert not any("interact" in line or "without one of its parts" in line for line in lines)


def test_a_winner_at_one_is_called_that_and_nothing_more_is_said_of_gains(
    make_spec: Any, result_of: Any
) -> None:
    study = Simulated(
        make_spec({"search": {"temperature_init": [1.0], "lr": [0.1, 0.2, 0.3]}}, trials=6),
        lambda t: t.seed % 997 / 997,
    ).run()
    lines = verdict_lines(result_of(study.spec, study.rows, state="done"))
    assert lines[0] == (
        "No gain shown: the best that the search has found in val_accuracy is τ = 1 itself (8 fresh seeds, "
        "measured on the test data, paired t-test)."
    )
    todo = "change nothing: train and evaluate at τ = 1, with lr=0."
    assert lines[1].startswith(f"  What to do: {todo}") and "found nothing better" in lines[1]
    assert len(lines) == 4 and lines[3].startswith("  cost: ")


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
    assert lines[3] == (
        "  to have what counts of them, once the cause is gone: tempopt resume pairs --retry-failed"
    )
    assert lines[4] == "  retried after failures: 2 (search 0: killed by signal 9 (SIGKILL))."
    assert lines[5] == "  withdrawn, the study having been stopped before: 1 constant, 2 search tickets."


def test_a_study_that_ended_with_nothing_says_why(make_spec: Any, make_ticket: Any, result_of: Any) -> None:
    withdrawn = make_ticket("search", 0, state="withdrawn")
    lines = verdict_lines(result_of(make_spec(), [withdrawn], state="done"))
    assert lines[0] == "No verdict: pairs is over, and no search trial is complete."
    lines = verdict_lines(result_of(make_spec(), [make_ticket("search", 0, 0.5)], state="done"))
    assert lines[0].startswith("No verdict: no run with τ = 1 was begun")


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
    assert "  ran out of GPU memory and needed a GPU of their own: search-1, search-2." in lines


def test_few_pairs_bound_no_interval_and_the_words_say_so(
    make_spec: Any, whole_study: list[TicketRow], result_of: Any
) -> None:
    few = [
        dataclasses.replace(t, state="failed", outcome="failed", value=None)
        if t.kind == "confirm" and t.pair
        else t
        for t in whole_study
    ]
    text = "\n".join(verdict_lines(result_of(make_spec(), few)))
    assert "96 % interval −∞ to +∞, p = 1" in text
    assert "excluded" not in text
    assert "no finite interval" in text


def test_parameters_are_rounded_for_people() -> None:
    assert parameters_text({"temperature_init": 1.23456, "schedule": "cosine", "num_steps": 4}) == (
        "temperature_init=1.235, schedule=cosine, num_steps=4"
    )
