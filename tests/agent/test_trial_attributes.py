"""The numbers by which trials are sorted in Optuna: each from what the house knows elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tempopt.agent.ticket_transitions import build_trial_user_attrs
from tempopt.storage.rows import Measurement, TicketRow
from tempopt.temperature import TemperatureParameters

MakeTicket = Callable[..., TicketRow]


@pytest.fixture
def begun_ticket(make_ticket: MakeTicket) -> MakeTicket:
    def make(**parameters: Any) -> TicketRow:
        return make_ticket("search", 3, None, parameters=parameters, trial_number=3, seconds=2.5)

    return make


def test_a_named_temperature_has_numbers_of_its_own_and_attention_none(begun_ticket: MakeTicket) -> None:
    params = {"contrast.as_found": 0.5, "contrast.schedule": "linear", "contrast.temperature_final": 0.1}
    attributes = build_trial_user_attrs(begun_ticket(**params), 1.5, None, [])
    assert attributes["contrast_init"] == 0.5 and attributes["contrast_final"] == pytest.approx(0.1)
    assert not any(name.startswith("tau") for name in attributes)


def test_a_temperature_that_follows_the_entropy_is_where_it_was_measured_last(
    begun_ticket: MakeTicket,
) -> None:
    ticket = begun_ticket(
        temperature_init=2.0, entropy_control="contrast", control_level=0.4, control_spread=4.0
    )
    measurements = [
        Measurement(ticket_id=ticket.id, name=f"controlled/{layer}", step=step, value=tau)
        for layer, path in enumerate((((0, 2.0), (10, 0.5)), ((0, 2.0), (10, 8.0))))
        for step, tau in path
    ]
    attributes = build_trial_user_attrs(ticket, 1.0, None, measurements)
    assert attributes["tau_init"] == 2.0 and attributes["tau_final"] == pytest.approx(2.0)
    assert "tau_final" not in build_trial_user_attrs(ticket, 1.0, None, [])


def test_a_trial_has_its_temperatures_its_gain_its_seconds_and_its_seed_and_nothing_unknown(
    begun_ticket: MakeTicket, make_ticket: MakeTicket
) -> None:
    ticket = begun_ticket(schedule="cosine", temperature_init=2.0, temperature_final=0.5, lr=0.1)
    attributes = build_trial_user_attrs(ticket, 1.5, 0.25, [])
    assert attributes == pytest.approx(
        {"tau_init": 2.0, "tau_final": 0.5, "gain": 0.25, "seconds": 4.0, "seed": ticket.seed}
    )
    assert all(isinstance(number, int | float) for number in attributes.values())
    for gain in (None, math.nan):
        assert set(build_trial_user_attrs(ticket, 1.5, gain, [])) == set(attributes) - {"gain"}
    run_without_trial = make_ticket("baseline", 0, 0.5, trial_number=None)
    assert build_trial_user_attrs(run_without_trial, 1.0, 0.5, []) == {}


def test_the_temperature_is_that_of_the_plan_in_the_geometric_mean_over_the_layers(
    begun_ticket: MakeTicket,
) -> None:
    parameters = {
        "schedule": "warmup_anneal",
        "warmup_start": 0.75,
        "temperature_init": 3.0,
        "temperature_final": 0.5,
        "layer_pattern": "exp",
        "layer_ratio": 4.0,
    }
    plan = TemperatureParameters.from_mapping(parameters).plan(5)
    attributes = build_trial_user_attrs(begun_ticket(**parameters), 1.0, None, [])
    for name, progress in (("tau_init", 0.0), ("tau_final", 1.0)):
        assert attributes[name] == pytest.approx(math.prod(plan.temperatures(progress)) ** (1 / 5))


def test_the_entropy_is_that_of_the_end_in_the_mean_over_the_heads(begun_ticket: MakeTicket) -> None:
    values = {"entropy/0/0": (0.9, 0.5), "entropy/0/1": (0.8, 0.3), "entropy/1/0": (0.1, 0.1)}
    measurements = [
        Measurement(ticket_id=1, step=step, name=name, value=value)
        for name, pair in values.items()
        for step, value in zip((0, 100), pair, strict=True)
    ]
    measurements.append(Measurement(ticket_id=1, step=200, name="entropy/1/0", value=math.nan))
    measurements.append(Measurement(ticket_id=1, step=100, name="validate", value=77.0))
    attributes = build_trial_user_attrs(begun_ticket(), 1.0, None, measurements)
    assert attributes["entropy_final"] == pytest.approx((0.5 + 0.3 + 0.1) / 3)
