"""What the baseline may try again once a winner is known, and who tries it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from tempopt.confirmation.pairs import winner_of
from tempopt.confirmation.references import first_winner, winner
from tempopt.confirmation.stages import next_tickets
from tempopt.records.rows import Measurement, TicketRow
from tempopt.sampling.arms import Arms
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import training_key
from tests.simulated import Simulated

LR = {"temperature_init": {"low": 0.25, "high": 4.0}, "lr": {"low": 1e-3, "high": 1e-1, "log": True}}
MORE = {"data.batch_size": [16, 32], "normaliser": ["softmax", "sparsemax"], "entropy_lambda": [0.0, 0.1]}


def hot(ticket: TicketRow) -> float:
    """Hotter is better, and a run's seed is worth a little."""
    assert ticket.parameters is not None
    return ticket.parameters["temperature_init"] + ticket.seed % 997 / 1e5


def rematched(spec: StudySpec, worth: Any = hot) -> tuple[Simulated, list[TicketRow]]:
    study = Simulated(spec, worth)
    study.search()
    return study, study.until("rematch")


def test_the_winner_is_chosen_first_then_comes_the_rematch_and_then_the_rest(make_spec: Any) -> None:
    study = Simulated(make_spec({"search": LR}, trials=6, ablation="none"), hot).run()
    assert study.kinds() == [
        *("baseline", "constant", "search"),
        *("choose", "rematch", "choose", "confirm"),
    ]
    before, after = (
        {t.arm for batch in batches for t in batch if t.kind == "choose"}
        for batches in (
            itertools.takewhile(lambda batch: batch[0].kind != "rematch", study.batches),
            itertools.dropwhile(lambda batch: batch[0].kind != "rematch", study.batches),
        )
    )
    # a constant winner has no other level to stand in for it
    assert (before, after) == ({"constant", "search"}, {"baseline", "exchange", "learned"})
    seeds = {
        arm: {t.pair: t.seed for t in study.of("choose", arm)} for arm in ("search", "baseline", "constant")
    }
    assert all(seeds["baseline"][pair] == seed for arm in seeds for pair, seed in seeds[arm].items())


@pytest.mark.parametrize(
    ("trials", "arms", "expected"),
    [
        (6, {}, 10),
        (40, {}, 20),
        (40, {"baseline": 3}, 37),
        (40, {"baseline": 39}, 10),
        (40, {"rematch": 11}, 11),
        (6, {"rematch": 40}, 40),
    ],
)
def test_the_baseline_gets_as_many_runs_as_the_search_and_ten_more_at_least(
    make_spec: Any, trials: int, arms: dict[str, int], expected: int
) -> None:
    study, tickets = rematched(make_spec({"search": LR}, trials=trials, arms=arms))
    assert [(t.kind, t.arm, t.number) for t in tickets] == [
        ("rematch", "baseline", n) for n in range(expected)
    ]
    if "rematch" not in arms and expected > 10:
        assert len(study.of("baseline")) + len(tickets) == trials
    searched = study.of("baseline") + study.of("constant") + study.of("search") + study.of("choose")
    assert len({t.seed for t in tickets}) == expected
    assert {t.seed for t in tickets}.isdisjoint(t.seed for t in searched)


def test_search_trials_that_were_never_begun_do_not_count(make_spec: Any) -> None:
    study = Simulated(make_spec({"search": LR}, trials=40, arms={"baseline": 3}), hot)
    study.search()
    given_up = [t.number >= 20 for t in study.rows if t.kind == "search"]
    assert sum(given_up) == 20
    study.rows = [
        dataclasses.replace(t, state="withdrawn", outcome=None, value=None, parameters=None)
        if t.kind == "search" and t.number >= 20
        else t
        for t in study.rows
    ]
    assert len(study.until("rematch")) == 20 - 3


def test_the_winners_own_other_parameters_are_tried_first(make_spec: Any) -> None:
    study, tickets = rematched(make_spec({"search": {**LR, **MORE}}, trials=8))
    found = winner(study.rows, study.spec)
    assert found is not None
    first = tickets[0].parameters
    assert first is not None
    # of the model's own: what all arms tune as the winner has it, and what has a neutral value at that
    assert {n: first[n] for n in ("lr", "data.batch_size")} == {
        n: found[n] for n in ("lr", "data.batch_size")
    }
    assert (first["temperature_init"], first["normaliser"], first["entropy_lambda"]) == (1.0, "softmax", 0.0)
    assert len({str(t.parameters) for t in tickets}) == len(tickets)
    assert all(t.parameters and t.parameters["temperature_init"] == 1.0 for t in tickets)


def test_a_winner_at_one_has_no_rematch(make_spec: Any) -> None:
    choices = {"temperature_init": [1.0, 2.0], "lr": [0.1, 0.2]}
    study = Simulated(make_spec({"search": choices}, trials=8), lambda t: -hot(t)).run()
    found = winner_of(study.rows, study.spec)
    assert found is not None and found["temperature_init"] == 1.0
    assert study.kinds() == ["baseline", "constant", "search", "choose", "confirm"]
    assert {t.arm for t in study.of("confirm")} == {"search+baseline+twin"}
    assert len(study.of("confirm")) == 8


def test_later_rounds_have_a_rematch_of_their_own_in_which_all_runs_at_one_compete(make_spec: Any) -> None:
    # of all runs at one the fourth of the first rematch is the best
    def worth(t: TicketRow) -> float:
        best = study.of("rematch")[3].parameters if len(study.of("rematch")) > 3 else None
        return hot(t) + 0.5 * ((t.kind, t.number) == ("rematch", 3) or t.parameters == best)

    study = Simulated(make_spec({"search": LR}, trials=6, candidates=2, ablation="none"), worth)
    study.run().more(3)
    first, second = study.of("rematch", of_round=0), study.of("rematch", of_round=1)
    assert (len(first), len(second)) == (10, 10)
    assert [t.number for t in second] == list(range(10, 20))
    assert {t.seed for t in first}.isdisjoint(t.seed for t in second)
    found = winner(study.rows, study.spec)
    assert found is not None and second[0].parameters is not None
    assert second[0].parameters["lr"] == found["lr"]
    assert {str(t.parameters) for t in study.of("confirm", "baseline", 1)} == {str(first[3].parameters)}


def test_a_schedule_is_chosen_its_own_constants_on_the_seeds_of_choosing(make_spec: Any) -> None:
    search = {
        **LR,
        "temperature_final": {"low": 0.1, "high": 0.2},
        "schedule": ["cosine"],
        "length_scaling": ["log_n"],
    }
    study = Simulated(make_spec({"search": search}, trials=6, ablation="none"), hot).run()
    found = winner_of(study.rows, study.spec)
    twins = [t for t in study.of("choose", "constant_twin") if t.pair == 0]
    assert found is not None and len(twins) == 5
    for t in twins:
        assert t.parameters is not None
        assert t.parameters["schedule"] == "constant"
        assert t.parameters["length_scaling"] == "log_n" and t.parameters["lr"] == found["lr"]
        assert found["temperature_final"] <= t.parameters["temperature_init"] <= found["temperature_init"]
    # hotter is better, and the schedule begins at its hottest
    [chosen] = {str(t.parameters) for t in study.of("confirm", "constant_twin")}
    assert f"'temperature_init': {found['temperature_init']}" in chosen


def test_a_schedule_with_a_length_scaling_has_constants_of_its_own_where_only_temperature_is_searched(
    make_spec: Any,
) -> None:
    search = {
        "temperature_init": {"low": 2.0, "high": 4.0},
        "temperature_final": {"low": 0.1, "high": 0.2},
        "schedule": ["cosine"],
    }
    plain = Simulated(make_spec({"search": search}, trials=6, ablation="none"), hot).run()
    assert plain.of("choose", "constant_twin") == []
    scaled = {**search, "length_scaling": ["log_n"]}
    found = Simulated(make_spec({"search": scaled}, trials=6, ablation="none"), hot).run()
    assert len({str(t.parameters) for t in found.of("choose", "constant_twin")}) == 5
    assert found.of("rematch") == []
    assert {t.parameters["length_scaling"] for t in found.of("confirm", "constant_twin") if t.parameters} == {
        "log_n"
    }


@pytest.mark.parametrize("taken", [True, False])
def test_the_winner_takes_the_baselines_other_parameters_where_it_is_better_with_them(
    make_spec: Any, taken: bool
) -> None:
    # hotter is better; at one a high rate is, and for the winner it is or is not
    def worth(t: TicketRow) -> float:
        assert t.parameters is not None
        tau, rate = t.parameters["temperature_init"], t.parameters["lr"]
        return tau + rate * (1.0 if tau == 1.0 or taken else -1.0) * (t.kind != "search") + t.seed % 997 / 1e6

    study = Simulated(make_spec({"search": LR}, trials=6, candidates=2, ablation="none"), worth).run()
    found = first_winner(study.rows, study.spec)
    final, baseline = (study.of("confirm", arm)[0].parameters for arm in ("search", "baseline"))
    assert found is not None and final is not None and baseline is not None
    assert baseline["lr"] > found["lr"]
    assert final == ({**found, "lr": baseline["lr"]} if taken else found)
    assert winner_of(study.rows, study.spec) == final
    # both have a run on each of the choosing seeds, none of them twice
    tried = [(training_key(t.parameters or {}), t.pair) for t in study.of("choose")]
    assert len(set(tried)) == len(tried)
    for each in (found, {**found, "lr": baseline["lr"]}):
        assert sum(key == training_key(each) for key, _ in tried) == study.spec.study.seeds.choose
    # with the baseline's other parameters the winner's twin is the baseline
    assert {t.arm for t in study.of("confirm", "baseline")} == {"baseline+twin" if taken else "baseline"}


def test_where_only_temperature_is_searched_nothing_is_exchanged(make_spec: Any) -> None:
    search = {"temperature_init": {"low": 0.25, "high": 4.0}, "normaliser": ["softmax", "sparsemax"]}
    assert Simulated(make_spec({"search": search}, trials=6), hot).run().of("choose", "exchange") == []


# ---- who asks


def reports_of(rows: list[TicketRow]) -> list[Measurement]:
    """Return what the runs of the arms reported on the way: half and all of what they came to."""
    return [
        Measurement(ticket_id=t.id, step=step, name="report", value=t.value * step / 10)
        for t in rows
        if t.value is not None and t.kind in ("baseline", "constant", "search", "rematch")
        for step in (5, 10)
    ]


@pytest.fixture(scope="module", params=["knowledge_gradient", "tpe"])
def begun(request: Any, make_spec: Any) -> tuple[StudySpec, list[TicketRow]]:
    """A study whose rematch is due, by an agent that samples as the spec says; its parallel is 3."""
    spec = make_spec(
        {"search": LR},
        trials=8,
        arms={"baseline": 7},
        parallel=3,
        sampler=request.param,
        pruner={"name": "median", "n_startup_trials": 2} if request.param == "tpe" else request.param,
        candidates=2,
    )
    study, _ = rematched(spec)
    due = [
        dataclasses.replace(t, state="waiting", outcome=None, value=None, parameters=None, attempt=0)
        if t.kind == "rematch"
        else t
        for t in study.rows
    ]
    due = [
        dataclasses.replace(t, sampled=t.sampled if t.number == 0 else None) if t.kind == "rematch" else t
        for t in due
    ]
    return spec, due


def asked_in_turn(
    spec: StudySpec, rows: list[TicketRow], agents: list[int]
) -> tuple[list[TicketRow], list[Any]]:
    """Have a rematch carried out by some agents, each of which knows what the store does when it begins.

    ``agents``: which of them does each ticket; one that comes back reads what the others have done.
    """
    rows, decisions = list(rows), []
    arms = {agent: Arms(spec, rows, reports_of(rows)) for agent in set(agents)}
    order = [place for place, t in enumerate(rows) if t.kind == "rematch"]
    for agent, place in zip(agents, order, strict=True):
        mine = arms[agent]
        ticket = rows[place]
        sampled = mine.ask(ticket)
        parameters = spec.parameters("baseline", sampled)
        ticket = dataclasses.replace(
            ticket, state="running", attempt=1, sampled=sampled, parameters=parameters
        )
        for each in arms.values():
            each.asked(ticket)
        value = hot(ticket) + parameters["lr"]
        prune = [mine.prune(ticket, {5: worth}) for worth in (0.0, value / 2, 9.0)]
        decisions.append((ticket.number, sampled, prune))
        ticket = dataclasses.replace(ticket, state="done", outcome="complete", value=value)
        rows[place] = ticket
        for each in arms.values():
            each.told(ticket, {5: value / 2, 10: value})
    return rows, decisions


@pytest.mark.parametrize("begin_again", [1, 3, 6])
def test_the_rematch_is_the_same_whoever_asks_and_whenever_they_came(
    begun: tuple[StudySpec, list[TicketRow]], begin_again: int
) -> None:
    spec, due = begun
    count = sum(t.kind == "rematch" for t in due)
    assert count == 10
    alone, expected = asked_in_turn(spec, due, [0] * count)
    assert asked_in_turn(spec, due, [n % 3 for n in range(count)])[1] == expected
    # one who comes to it late knows from the store alone what has been done
    rows = [
        done if t.kind != "rematch" or t.number < begin_again else t
        for t, done in zip(due, alone, strict=True)
    ]
    late = Arms(spec, rows, reports_of(rows))
    ticket = next(t for t in rows if t.kind == "rematch" and t.number == begin_again)
    assert late.ask(ticket) == expected[begin_again][1]


def test_the_rematch_goes_on_where_the_arm_at_one_has_stopped(
    begun: tuple[StudySpec, list[TicketRow]],
) -> None:
    spec, due = begun
    _, expected = asked_in_turn(spec, due, [0] * 10)
    # the same runs, all of the arm itself, with the sampler of a rematch: it asks what the rematch does
    whole = spec.with_overrides(["study.arms.baseline=17", "study.sampler=knowledge_gradient"])
    moved = [
        dataclasses.replace(t, kind="baseline", number=7 + t.number, id=2000 + t.number)
        if t.kind == "rematch"
        else t
        for t in due
    ]
    arms = Arms(whole, moved, reports_of(moved))
    for number, sampled, _ in expected:
        ticket = next(t for t in moved if (t.kind, t.number) == ("baseline", 7 + number))
        assert arms.ask(ticket) == sampled
        done = dataclasses.replace(
            ticket, sampled=sampled, parameters=whole.parameters("baseline", sampled), state="done"
        )
        value = hot(done) + sampled["lr"]
        done = dataclasses.replace(done, outcome="complete", value=value)
        arms.asked(done)
        arms.told(done, {5: value / 2, 10: value})


def test_what_the_rematch_has_shown_is_part_of_what_the_arm_names(
    begun: tuple[StudySpec, list[TicketRow]],
) -> None:
    spec, due = begun
    rows, _ = asked_in_turn(spec, due, [0] * 10)
    best = max((t for t in rows if t.kind == "rematch"), key=lambda t: t.value or 0.0)
    raised = [dataclasses.replace(t, value=9.0) if t.id == best.id else t for t in rows]
    arms = Arms(spec, raised, reports_of(raised))
    new = next_tickets(raised, spec, arms.recommend)
    assert {t.arm for t in new} == {"baseline"}
    assert best.parameters is not None
    tried = {training_key(t.parameters) for t in new if t.parameters is not None}
    assert tried == {training_key(each) for each in arms.recommend("baseline", 2)}
