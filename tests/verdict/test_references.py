"""What a winner is compared with: the baseline and its twin, its exchange, and constants after a gain."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest

from tempopt.sampling.arms import SearchArms
from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import arms_of
from tempopt.temperature import is_neutral, to_neutral, training_key
from tempopt.verdict.pairs import (
    constants_to_train,
    exchange,
    find_winner,
    first_winner,
    winner,
)
from tempopt.verdict.stages import next_tickets
from tempopt.verdict.verdict import compute_verdict
from tests.simulated import SimulatedStudy, row
from tests.verdict.verdicts import SCHEDULED_SPACE

TAU = {"temperature_init": {"low": 0.25, "high": 4.0}}
LR = {**TAU, "lr": {"low": 1e-3, "high": 1e-1, "log": True}}


def shift_of(ticket: TicketRow) -> float:
    """Return what a run's seed is worth, which is little."""
    return ticket.seed % 997 / 1e6


def hot(ticket: TicketRow) -> float:
    """Hotter is better, and a run's seed is worth a little."""
    assert ticket.parameters is not None
    return ticket.parameters["temperature_init"] + shift_of(ticket)


def noise_of(ticket: TicketRow) -> float:
    """Return what a run has of its own, by its parameters and seed."""
    return random.Random(f"{ticket.parameters} {ticket.seed}").gauss(0.0, 0.01)


def clear_worth(ticket: TicketRow) -> float:
    """Anything but τ = 1 is better by much more than the noise."""
    return 1.0 * (not is_neutral(ticket.parameters or {})) + noise_of(ticket)


def confirmed_arms(study: SimulatedStudy) -> set[str]:
    return {arm for t in study.tickets_of("confirm") for arm in arms_of(t)}


# ---- the baseline


def test_the_baseline_is_tuned_again_once_the_search_is_over(make_spec: Any) -> None:
    two_params = {**LR, "weight_decay": {"low": 0.0, "high": 0.1}}
    for search, num_tuned in ((LR, 4 + 2), (two_params, 4 + 2 * 2)):
        study = SimulatedStudy(make_spec({"search": search}, trials=6), hot)
        first_rows = study.search()
        assert sum(t.kind == "baseline" for t in first_rows) == 4
        tuning = study.step()
        assert [(t.kind, t.number) for t in tuning] == [("baseline", 4 + n) for n in range(num_tuned)]
        assert all(is_neutral(t.parameters or {}) for t in tuning)
        seeds = [t.seed for t in tuning]
        assert set(seeds) == {t.seed for t in first_rows}, "they share the seeds of the search"
        assert seeds.count(seeds[0]) == num_tuned / 2
        assert {t.kind for t in study.step()} == {"choose"}


def test_each_round_tunes_and_has_its_own_baseline_after_its_search(make_spec: Any) -> None:
    study = SimulatedStudy(make_spec({"search": LR}, trials=6), hot).run().add_trials(3)
    rounds = [[t.number for t in study.tickets_of("baseline", of_round=of_round)] for of_round in (0, 1)]
    assert rounds == [list(range(4 + 6)), list(range(10, 16))]
    # and confirms the best of all runs at one
    for of_round in (0, 1):
        rows = [t for t in study.tickets_of("baseline") if t.round <= of_round]
        best = max(rows, key=lambda t: t.value or 0.0)
        assert study.tickets_of("confirm", "baseline", of_round)[0].parameters == best.parameters


@pytest.mark.parametrize("best", [0.002, 0.05])
def test_the_search_s_model_says_what_tunes_the_baseline(make_spec: Any, best: float) -> None:
    spec = make_spec({"search": LR}, trials=12)

    def worth(ticket: TicketRow) -> float:
        assert ticket.parameters is not None
        return noise_of(ticket) - math.log10(ticket.parameters["lr"] / best) ** 2

    study = SimulatedStudy(spec, worth)
    study.search()
    new_rows = [row(ticket, 100 + index) for index, ticket in enumerate(next_tickets(study.rows, spec))]
    agents = [SearchArms(spec, [*study.rows, *new_rows], []) for _ in range(2)]
    rates = [agents[0].ask(ticket)["lr"] for ticket in new_rows[:3]]
    assert all(abs(math.log10(rate / best)) < 0.7 for rate in rates)
    # an agent that gets one of them alone asks the same
    assert agents[1].ask(new_rows[2])["lr"] == rates[2]


def test_the_winner_is_chosen_before_the_baseline_on_the_same_seeds(make_spec: Any) -> None:
    study = SimulatedStudy(make_spec({"search": LR}, trials=6), hot).run()
    assert study.kinds() == ["baseline", "constant", "search", "baseline", "choose", "confirm"]
    batches = [{t.arm for t in batch} for batch in study.batches if batch[0].kind == "choose"]
    assert batches == [{"search"}, {"exchange"}]
    seeds = [{t.pair: t.seed for t in study.tickets_of("choose", arm)} for arm in ("search", "exchange")]
    assert set(seeds[1].items()) <= set(seeds[0].items())


def test_the_best_known_baseline_is_the_one_that_the_sampler_recommends(make_spec: Any) -> None:
    study = SimulatedStudy(make_spec({"search": LR}, trials=6), hot)
    study.search()
    assert {t.kind for t in study.step()} == {"baseline"}
    at_one = {"temperature_init": 1.0, "lr": 0.0123}
    tuned_params = {"temperature_init": 3.0, "lr": 0.02}
    # one set of the search is not chosen among; it is tried with the baseline's rate
    sets_by_arm: dict[Any, Any] = {"search": [tuned_params], "baseline": [at_one], "constant": []}
    new_tickets = next_tickets(study.rows, study.spec, lambda arm, count: sets_by_arm[arm])
    assert {(t.arm, t.candidate, str(t.parameters)) for t in new_tickets} == {
        ("exchange", 0, str(tuned_params)),
        ("exchange", 1, str({**tuned_params, "lr": 0.0123})),
    }


def test_a_twin_that_trains_the_same_as_the_baseline_has_a_run_with_it(make_spec: Any) -> None:
    study = SimulatedStudy(make_spec({"search": LR}, trials=6), clear_worth)
    study.search()
    assert {t.kind for t in study.step()} == {"baseline"}
    tuned_params = {"temperature_init": 3.0, "lr": 0.02}
    twin = to_neutral(tuned_params)
    sets_by_arm: dict[Any, Any] = {"search": [tuned_params], "baseline": [twin], "constant": []}
    new_tickets = next_tickets(study.rows, study.spec, lambda arm, count: sets_by_arm[arm])
    assert {(t.kind, t.arm) for t in new_tickets} == {("confirm", "search"), ("confirm", "baseline+twin")}


@pytest.mark.parametrize("search", [TAU, {**TAU, "normaliser": ["softmax", "sparsemax"]}])
def test_where_no_ordinary_parameter_is_searched_the_baseline_is_not_chosen(
    make_spec: Any, search: dict[str, Any]
) -> None:
    study = SimulatedStudy(make_spec({"search": search}, trials=6), hot).run()
    assert study.kinds() == ["baseline", "constant", "search", "choose", "confirm"]
    assert {t.arm for t in study.tickets_of("choose")} == {"search"}
    assert study.tickets_of("confirm", "baseline")


def test_a_winner_at_one_is_compared_with_nothing(make_spec: Any) -> None:
    choices = {"temperature_init": [1.0, 2.0], "lr": [0.1, 0.2]}
    study = SimulatedStudy(make_spec({"search": choices}, trials=8), lambda t: -hot(t)).run()
    final_set = find_winner(study.rows, study.spec)
    assert final_set is not None and final_set["temperature_init"] == 1.0
    assert {t.arm for t in study.tickets_of("choose")} <= {"search"}
    assert {t.arm for t in study.tickets_of("confirm")} == {"search+baseline+twin"}
    # it is not ahead of itself: the first look ends it
    assert len(study.tickets_of("confirm")) == study.spec.study.seeds.confirm.min


# ---- the exchange


def rates_matter(sign: float) -> Any:
    """Return a world in which a high rate is good at τ = 1, and elsewhere while choosing by the sign."""

    def worth(ticket: TicketRow) -> float:
        assert ticket.parameters is not None
        tau, rate = ticket.parameters["temperature_init"], ticket.parameters["lr"]
        if ticket.kind == "search":
            return float(tau) + shift_of(ticket)
        return float(tau + rate * (1.0 if tau == 1.0 else sign) + shift_of(ticket))

    return worth


@pytest.mark.parametrize("is_better", [True, False])
def test_the_winner_takes_the_baselines_other_parameters_where_it_is_better_with_them(
    make_spec: Any, is_better: bool
) -> None:
    worth = rates_matter(1.0 if is_better else -1.0)
    study = SimulatedStudy(make_spec({"search": LR}, trials=6), worth).run()
    first = first_winner(study.rows, study.spec)
    final, baseline = (study.tickets_of("confirm", arm)[0].parameters for arm in ("search", "baseline"))
    assert first is not None and final is not None and baseline is not None
    assert baseline["lr"] > first["lr"]
    assert final == ({**first, "lr": baseline["lr"]} if is_better else first)
    assert find_winner(study.rows, study.spec) == winner(study.rows, study.spec) == final
    # both have a run on each of the choosing seeds, none of them twice
    runs = [(training_key(t.parameters or {}), t.pair) for t in study.tickets_of("choose")]
    assert len(set(runs)) == len(runs)
    for parameters in (first, {**first, "lr": baseline["lr"]}):
        num_runs = sum(key == training_key(parameters) for key, _ in runs)
        assert num_runs == study.spec.study.seeds.choose
    # with the baseline's other parameters the winner's twin is the baseline
    assert {t.arm for t in study.tickets_of("confirm", "baseline")} == {
        "baseline+twin" if is_better else "baseline"
    }


def test_an_exchange_that_diverges_on_a_choosing_seed_is_not_taken(make_spec: Any) -> None:
    worth = rates_matter(1.0)
    study = SimulatedStudy(
        make_spec({"search": LR}, trials=6),
        lambda t: None if t.arm == "exchange" and t.pair == 0 else worth(t),
    ).run()
    assert study.tickets_of("choose", "exchange")
    assert winner(study.rows, study.spec) == first_winner(study.rows, study.spec)


def test_an_exchange_changes_the_ordinary_parameters_alone(make_spec: Any) -> None:
    spec = make_spec({"search": SCHEDULED_SPACE})
    parameters = {"temperature_init": 3.0, "temperature_final": 0.3, "schedule": "linear", "lr": 0.2}
    assert exchange(spec, parameters, {"temperature_init": 1.0, "lr": 0.9}) == {**parameters, "lr": 0.9}


# ---- constants, once a gain is shown


def test_constants_are_trained_after_a_gain_on_the_pairs_of_the_winner(make_spec: Any) -> None:
    study = SimulatedStudy(make_spec({"search": SCHEDULED_SPACE}, trials=6), clear_worth).run()
    batches = [batch for batch in study.batches if batch[0].kind == "confirm"]
    assert [{arm for t in batch for arm in arms_of(t)} for batch in batches] == [
        {"search", "baseline", "twin"},
        {"constant", "constant_twin"},
    ]
    deciding_seeds, constants = ({t.pair: t.seed for t in batch} for batch in batches)
    assert deciding_seeds == constants
    final_set = find_winner(study.rows, study.spec)
    assert final_set is not None
    twin = study.tickets_of("confirm", "constant_twin")[0].parameters
    # a line from a to b has the geometric mean of its values, by many points
    first, last = final_set["temperature_init"], final_set["temperature_final"]
    values = [first + (last - first) * (n + 0.5) / 10_000 for n in range(10_000)]
    mean = list(itertools.accumulate(values, lambda a, b: a * b ** (1 / 10_000), initial=1.0))[-1]
    assert twin == {
        "temperature_init": pytest.approx(mean, rel=5e-3),
        "schedule": "constant",
        "lr": final_set["lr"],
    }
    best = max(study.tickets_of("constant"), key=lambda t: t.value or 0.0).parameters
    assert study.tickets_of("confirm", "constant")[0].parameters == best


def test_the_best_constant_is_the_one_that_the_sampler_recommends(make_spec: Any) -> None:
    spec = make_spec({"search": SCHEDULED_SPACE}, trials=6)
    study = SimulatedStudy(spec, clear_worth).run()
    final_set = find_winner(study.rows, study.spec)
    assert final_set is not None
    named_params = {"temperature_init": 1.7, "schedule": "constant", "lr": 0.5}
    arms = constants_to_train(
        study.rows, spec, final_set, lambda arm, count: [named_params] if arm == "constant" else []
    )
    assert arms["constant"] == named_params and list(arms) == ["constant_twin", "constant"]


def test_the_best_of_fewer_than_four_constants_is_no_match_for_a_schedule(make_spec: Any) -> None:
    spec = make_spec({"search": SCHEDULED_SPACE}, trials=6, arms={"constant": 3})
    study = SimulatedStudy(spec, clear_worth).run()
    verdict = compute_verdict(study.rows, [], spec)
    assert verdict is not None and verdict.primary.significant
    assert confirmed_arms(study) == {"search", "baseline", "twin", "constant_twin"}
    assert not verdict.schedule_shown


@pytest.mark.parametrize(
    ("search", "worth"),
    [
        # no gain is shown
        (SCHEDULED_SPACE, noise_of),
        (SCHEDULED_SPACE, lambda t: -clear_worth(t)),
        # the winner is a constant itself
        (LR, clear_worth),
        (TAU, clear_worth),
    ],
)
def test_no_constant_is_trained_without_a_gain_of_something_else(
    make_spec: Any, search: dict[str, Any], worth: Any
) -> None:
    study = SimulatedStudy(make_spec({"search": search}, trials=6), worth).run()
    assert confirmed_arms(study) == {"search", "baseline", "twin"}


def test_a_length_scaling_without_a_schedule_is_compared_with_constants_too(make_spec: Any) -> None:
    search = {"temperature_init": {"low": 2.0, "high": 4.0}, "length_scaling": ["log_n"]}
    study = SimulatedStudy(make_spec({"search": search}, trials=6), clear_worth).run()
    final_set = find_winner(study.rows, study.spec)
    assert final_set is not None and final_set["length_scaling"] == "log_n"
    # its level does not move, so that it is its own twin and has one run with it
    assert confirmed_arms(study) == {"search", "baseline", "twin", "constant"}
    constant = study.tickets_of("confirm", "constant")[0].parameters
    assert constant is not None and constant["length_scaling"] == "none"


# ---- who asks
