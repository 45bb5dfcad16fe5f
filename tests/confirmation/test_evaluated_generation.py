"""What generation gains of a trained model, and what temperature adds to it: evaluated apart, said apart."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from tempopt.confirmation.stages import first_tickets, next_tickets, to_come
from tempopt.forecast.runs import Forecast
from tempopt.records.rows import Measurement, TicketRow
from tempopt.results.study_result import StudyResult
from tempopt.results.verdict_text import verdict_lines
from tempopt.sampling.arms import Arms
from tempopt.statistics.bootstrap import paired_bootstrap
from tempopt.workers.messages import units_name

ITEMS = 200
SEARCH = {
    "temperature_init": {"low": 0.25, "high": 4.0},
    "sampling_temperature": {"low": 0.1, "high": 0.8},
    "min_p": {"low": 0.0, "high": 0.5},
}


def scores(parameters: dict[str, Any], on: str, *, level: float, drawn: float) -> np.ndarray:
    """Return a score of each item: best at τ = 1/2 by ``level``, at a sampling of 0.4 by ``drawn``."""
    draw = np.random.default_rng(int(on == "test"))
    own = draw.normal(0.0, 0.3, ITEMS)
    tau, sampling = parameters.get("temperature_init", 1.0), parameters.get("sampling_temperature", 1.0)
    off = abs(math.log2(tau / 0.5)), abs(math.log2(sampling / 0.4)) / math.log2(2.5)
    noise = draw.normal(0.0, 0.05, ITEMS) * (math.log2(tau) + math.log2(sampling))
    return own + level * (1 - off[0]) + drawn * (1 - off[1]) + noise


@pytest.fixture
def make_result(make_spec: Any, run_ticket: Any, result_of: Any) -> Any:
    def make(level: float, drawn: float, **study: Any) -> StudyResult:
        study = {"evaluate_only": "m.ckpt", "metric": "val_score", "direction": "maximize", **study}
        spec = make_spec(sections={"search": SEARCH}, trials=12, **study)
        measured: list[Measurement] = []
        rows: list[TicketRow] = []
        while new := next_tickets(rows, spec) if rows else first_tickets(spec):
            arms = Arms(spec, rows, [])
            for ticket in new:
                parameters = ticket.parameters
                row = run_ticket(dataclasses.replace(ticket, parameters=parameters), 0.0)
                if parameters is None:
                    sampled = arms.ask(dataclasses.replace(row, parameters=None, sampled=None))
                    parameters = spec.parameters(ticket.kind, sampled)
                    row = dataclasses.replace(row, parameters=parameters, sampled=sampled)
                    arms.asked(row)
                    arms.told(row, {}, {})
                values: dict[str, float] = {}
                for on in ("validate", "test") if ticket.kind == "confirm" else ("validate",):
                    found = scores(parameters, on, level=level, drawn=drawn)
                    values[on] = float(found.mean())
                    measured.append(Measurement(ticket_id=row.id, step=1, name=on, value=values[on]))
                    measured += [
                        Measurement(ticket_id=row.id, step=n, name=units_name(on, "items"), value=float(each))
                        for n, each in enumerate(found)
                    ]
                rows.append(dataclasses.replace(row, value=list(values.values())[-1]))
        result: StudyResult = result_of(spec, rows, measured, state="done")
        return result

    return make


def test_generation_is_tuned_at_tau_1_as_well_and_each_gain_is_estimated_on_the_test_data(
    make_result: Any,
) -> None:
    given = {"level": 0.1, "drawn": 0.4}
    result = make_result(**given)
    found = result.evaluated
    drawn, tempered = found.apart.generation, found.apart.temperature
    at_one = [run for run in result.runs if run.kind == "baseline"]
    # that at τ = 1 with neutral generation, though no such sampling is searched, and as many as constants
    assert at_one[0].parameters == {"temperature_init": 1.0, "sampling_temperature": 1.0, "min_p": 0.0}
    assert len(at_one) == 1 + 6
    assert drawn.params["temperature_init"] == 1.0 and drawn.params["sampling_temperature"] != 1.0
    assert tempered.params == found.params and found.params["temperature_init"] < 1.0
    neutral, tuned, best = (
        scores(params, "test", **given) for params in (at_one[0].parameters, drawn.params, found.params)
    )
    for point, one, other in ((drawn, tuned, neutral), (tempered, best, tuned)):
        assert point.gain == pytest.approx((one - other).mean())
        (expected,) = paired_bootstrap([one - other], [1.0] * ITEMS, seed=1)
        width = expected.high - expected.low
        assert (point.interval.low, point.interval.high) == pytest.approx(
            (expected.low, expected.high), abs=0.05 * width
        )
    assert drawn.gain + tempered.gain == pytest.approx(found.gain)
    assert found.on == "test" and found.shown


def test_the_verdict_says_what_is_whose(make_result: Any) -> None:
    result = make_result(level=0.1, drawn=0.4)
    lines = verdict_lines(result)
    assert lines[0].startswith("Gain shown: for this checkpoint val_score is higher by 0.")
    assert " than at τ = 1 with neutral generation (95 % interval 0." in lines[0]
    alone, on_top = lines[2:4]
    assert alone.startswith("  generation alone, the best at τ = 1 (τ = 1, ") and ": +0." in alone
    assert on_top.startswith("  temperature on top of that: +0.") and on_top.endswith(").")
    told = result.to_json()["evaluated"]["apart"]
    assert list(told) == ["generation", "temperature"]
    assert [set(each) for each in told.values()] == [{"params", "value", "gain", "ci_low", "ci_high"}] * 2


def test_a_gain_of_generation_alone_is_no_gain_of_temperature(make_result: Any) -> None:
    result = make_result(level=0.0, drawn=0.4)
    found, text = result.evaluated, "\n".join(verdict_lines(result))
    assert found.shown and found.apart.generation.interval.low > 0
    assert found.apart.temperature.interval.low <= 0
    assert ", which shows no gain of temperature." in text or "so that nothing is gained by it." in text


def test_without_test_data_both_are_estimated_where_they_were_chosen(make_result: Any) -> None:
    found = make_result(level=0.1, drawn=0.4, confirm_on="validate").evaluated
    assert found.on == "validate" and not found.shown
    assert found.apart.generation.gain + found.apart.temperature.gain == pytest.approx(found.gain)


@pytest.mark.parametrize(
    ("search", "at_one", "tested"),
    [
        (SEARCH, 7, 3),
        ({"temperature_init": SEARCH["temperature_init"]}, 1, 2),
        ({"sampling_temperature": SEARCH["sampling_temperature"]}, 1, 2),
    ],
)
def test_where_one_of_the_two_is_searched_nothing_is_taken_apart(
    make_spec: Any, search: dict[str, Any], at_one: int, tested: int
) -> None:
    spec = make_spec(sections={"search": search}, trials=12, evaluate_only="m.ckpt")
    kinds = [ticket.kind for ticket in first_tickets(spec)]
    assert (kinds.count("baseline"), kinds.count("search")) == (at_one, 12)
    assert to_come([], spec) == tested
    most = Forecast(spec).runs().most
    assert at_one + 12 < most <= at_one + 12 + tested
