"""What a prior says of parameter sets, what a search begins with by it, and how it loses its say."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.records.rows import TicketRow
from tempopt.results.prior_text import prior_lines, prior_text
from tempopt.sampling.advice import agreement
from tempopt.spec.priors import Applied, LogNormal, applied_prior
from tempopt.temperature import effective
from tests.simulated import Simulated, arms_at

SPACE = {
    "temperature_init": {"low": 0.1, "high": 10.0},
    "temperature_final": {"low": 0.1, "high": 10.0},
    "schedule": ["constant", "linear", "exponential"],
    "length_scaling": ["none", "log_n"],
    "lr": {"low": 0.1, "high": 1.0},
}
PRIOR = Applied(
    name="mine",
    temperature="",
    numbers={
        "temperature_init": LogNormal(median=2.0, factor=2.0),
        "temperature_final": LogNormal(median=0.5, factor=2.0),
    },
    choices={"length_scaling": "log_n"},
    trial={},
    sources=("a paper",),
)


def test_a_set_agrees_by_where_its_schedule_begins_and_ends_and_by_its_choices() -> None:
    best = {
        "schedule": "linear",
        "temperature_init": 2.0,
        "temperature_final": 0.5,
        "length_scaling": "log_n",
    }
    assert agreement(best, PRIOR) == 1.0
    assert agreement({**best, "length_scaling": "none"}, PRIOR) == pytest.approx(2 / 3)
    # a constant of 2 begins right and ends two factors of 2 too high
    constant = {"temperature_init": 2.0, "schedule": "constant"}
    assert agreement(constant, PRIOR) == pytest.approx((1 + math.exp(-0.5 * 2**2)) / 3)


@given(
    st.floats(0.1, 10),
    st.floats(0.1, 10),
    st.sampled_from(["constant", "linear"]),
    st.sampled_from(["none", "log_n"]),
)
def test_what_a_prior_says_is_bounded(first: float, last: float, schedule: str, scaling: str) -> None:
    found = effective(
        {
            "temperature_init": first,
            "temperature_final": last,
            "schedule": schedule,
            "length_scaling": scaling,
        }
    )
    assert 0 <= agreement(found, PRIOR) <= 1


@pytest.mark.parametrize("sampler", ["knowledge_gradient", "tpe", "random"])
def test_a_search_begins_at_neutral_and_then_as_advised(make_spec: Any, sampler: str) -> None:
    spec = make_spec({"search": SPACE}, trials=6, prior="long_context", sampler=sampler)
    arms = arms_at(spec, [])
    ticket = Simulated(spec, lambda t: 0.5).search()
    search = sorted((t for t in ticket if t.kind == "search"), key=lambda t: t.number)
    asked = [arms.ask(t) for t in (_waiting(each) for each in search[:4])]
    if sampler == "knowledge_gradient":
        assert asked[0]["temperature_init"] == 1.0 and asked[0]["length_scaling"] == "none"
    advised = {"temperature_init": 0.5, "schedule": "constant", "length_scaling": "log_n"}
    assert advised.items() <= asked[1].items()
    assert asked == [arms_at(spec, []).ask(_waiting(each)) for each in search[:4]]
    without = arms_at(make_spec({"search": SPACE}, trials=6, sampler=sampler), [])
    assert without.ask(_waiting(search[1])) != asked[1]


def _waiting(ticket: TicketRow) -> TicketRow:
    return dataclasses.replace(
        ticket, state="waiting", sampled=None, parameters=None, outcome=None, value=None, steps=None
    )


def hot(t: TicketRow) -> float:
    """Return what a run is worth where τ = 5 is best throughout, beside some noise."""
    assert t.parameters is not None
    first = t.parameters.get("temperature_init", 1.0)
    last = (
        first if t.parameters.get("schedule") == "constant" else t.parameters.get("temperature_final", first)
    )
    apart = math.log(first / 5) ** 2 + math.log(last / 5) ** 2
    return -apart - 2.0 * (t.parameters.get("length_scaling") == "log_n") + 0.01 * (t.seed % 7)


def test_a_wrong_prior_does_not_change_what_is_found(make_spec: Any) -> None:
    """It says 0.5 and log_n, and trials say 5 and none."""
    for seed in range(3):
        spec = make_spec({"search": SPACE}, trials=40, prior="long_context", seed=seed)
        study = Simulated(spec, hot)
        study.search()
        (named,) = arms_at(spec, study.rows).recommend("search", 1)
        assert 3 < named["temperature_init"] < 9 and named["length_scaling"] == "none"


def test_people_read_what_it_said_and_what_was_found(make_spec: Any, result_of: Any) -> None:
    spec = make_spec({"search": SPACE}, trials=6, prior="long_context")
    said = (
        "prior long_context: temperature_init about 0.5 (0.25 to 1), temperature_final about 0.5 (0.25 to 1)"
    )
    assert prior_text(spec) == f"{said}, length_scaling log_n"
    study = Simulated(spec, hot).run()
    result = result_of(spec, study.rows, state="done")
    assert result.winner is not None
    first, second = prior_lines(result)
    assert first.startswith(f"{said}, length_scaling log_n; the winner has temperature_init ")
    scaling = {"none": "none (not that)", "log_n": "log_n (as said)"}[result.winner["length_scaling"]]
    assert "(outside of that)" in first and first.endswith(f"length_scaling {scaling}.")
    assert second.startswith("  from: Chiang & Cholak 2022")
    found = applied_prior(spec)
    data = json.loads(json.dumps(result.to_json()["prior"]))
    assert found is not None and data["name"] == "long_context" and data["sources"] == list(found.sources)
    assert data["numbers"]["temperature_init"]["median"] == 0.5
    assert data["numbers"]["temperature_init"]["found"] == pytest.approx(result.winner["temperature_init"])
    assert data["choices"] == {
        "length_scaling": {"choice": "log_n", "found": result.winner["length_scaling"]}
    }
    assert prior_lines(result_of(make_spec({"search": SPACE}), [])) == []
