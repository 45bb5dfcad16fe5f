"""Each sampler leaves out what does not count under the other values, and learns from what is left."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.sampling.arms import SearchArms
from tempopt.sampling.features import Features
from tempopt.verdict.pairs import exchange

SEARCH: dict[str, Any] = {
    "temperature_init": {"low": 0.25, "high": 4.0},
    "optimizer": ["sgd", "adam"],
    "momentum": {"low": 0.0, "high": 0.99, "when": {"optimizer": "sgd"}},
}


def value_of(parameters: dict[str, Any]) -> float:
    return -abs(parameters["temperature_init"] - 2.0) - 2.0 * abs(parameters.get("momentum", 0.3) - 0.9)


@pytest.mark.parametrize("sampler", ["knowledge_gradient", "tpe", "random", "gp"])
def test_trials_hold_what_counts_alone(make_spec: Any, make_ticket: Any, sampler: str) -> None:
    spec = make_spec({"search": SEARCH}, sampler=sampler, parallel=2)
    arms = SearchArms(spec, [], [])
    ended_tickets = []
    for number in range(16):
        ticket = make_ticket("search", number, parameters=None, state="open")
        sampled_params = arms.ask(ticket)
        momentum = {"momentum"} if sampled_params["optimizer"] == "sgd" else set()
        assert set(sampled_params) == {"temperature_init", "optimizer"} | momentum
        assert {param.name for param in arms.trial(sampled_params)} == set(sampled_params)
        parameters = spec.parameters("search", sampled_params)
        fields = {"parameters": parameters, "sampled": sampled_params}
        ended_ticket = make_ticket("search", number, value_of(parameters), **fields)
        arms.register_asked(ended_ticket)
        arms.tell(ended_ticket, {})
        ended_tickets.append(ended_ticket)
    assert {ticket.parameters["optimizer"] for ticket in ended_tickets} == {"sgd", "adam"}
    # another agent, which has read what was stored, asks the same
    next_ticket = make_ticket("search", 16, parameters=None, state="open")
    assert SearchArms(spec, ended_tickets, []).ask(next_ticket) == arms.ask(next_ticket)
    for parameters in arms.recommend("search", 3):
        assert ("momentum" in parameters) == (parameters["optimizer"] == "sgd")


def test_what_does_not_count_is_nothing_to_the_surrogate(make_spec: Any) -> None:
    spec = make_spec({"search": SEARCH})
    features = Features(spec)
    params = {"temperature_init": 1.0, "optimizer": "adam"}
    low, high = (features(spec.parameters("search", {**params, "momentum": m})) for m in (0.1, 0.9))
    assert (low == high).all()


def test_the_winner_with_the_baselines_other_parameters_has_none_that_does_not_count(make_spec: Any) -> None:
    spec = make_spec({"search": SEARCH})
    winner = {"temperature_init": 2.0, "optimizer": "sgd", "momentum": 0.9}
    assert exchange(spec, winner, {"optimizer": "adam"}) == {"temperature_init": 2.0, "optimizer": "adam"}
    assert exchange(spec, {"temperature_init": 2.0, "optimizer": "adam"}, winner) == winner
