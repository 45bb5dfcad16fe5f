"""What evaluating a trained model tells: the evaluations, the estimate, its interval, words and plot."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tempopt.confirmation.stages import first_tickets, next_tickets
from tempopt.records.rows import Measurement, TicketRow
from tempopt.report.headline import answer
from tempopt.report.page.html import render_report
from tempopt.report.page.sections import sections, tiles
from tempopt.report.plots import PLOTS, EvaluationShown
from tempopt.results.study_result import StudyResult
from tempopt.results.verdict_text import verdict_lines
from tempopt.statistics.bootstrap import paired_bootstrap
from tempopt.workers.messages import sizes_name, units_name

TAUS = [0.25, 0.5, 1.0, 2.0]
ITEMS = 60
AT_ONE = {"temperature_init": 1.0}


def items(tau: float, on: str, gain: float) -> np.ndarray:
    """Return a loss of each item that is least at τ = 0.5, where it is lower by ``gain``."""
    draw = np.random.default_rng(int(on == "test"))
    common, own = draw.normal(1.0, 0.5, ITEMS), draw.normal(0.0, 0.05, ITEMS)
    worse = gain * abs(np.log2(tau / 0.5)) ** 2
    return common + worse + own * np.log2(tau)


@pytest.fixture
def make_result(make_spec: Any, run_ticket: Any, result_of: Any) -> Any:
    def make(
        gain: float = 0.1,
        *,
        kind: str | None = "items",
        units: int = ITEMS,
        tested: bool = True,
        taus: list[float] = TAUS,
        state: str = "done",
        accuracy: bool = False,
        **study: Any,
    ) -> StudyResult:
        given = {"evaluate_only": "m.ckpt", "metric": "val_loss", "direction": "minimize", **study}
        spec = make_spec(trials=len(taus), **given)
        measured: list[Measurement] = []

        def run(new: Any) -> TicketRow:
            parameters = new.parameters or {"temperature_init": 1.0}
            if new.kind == "search":
                parameters = {"temperature_init": taus[new.number]}
            row = run_ticket(dataclasses.replace(new, parameters=parameters), 0.0)
            value = 0.0
            for on in ("validate", "test") if new.kind == "confirm" and tested else ("validate",):
                found = items(parameters["temperature_init"], on, gain)[:units]
                if accuracy:
                    found = np.array([1.0] * ITEMS)
                    found[: 3 * (parameters["temperature_init"] == 0.5)] = 0.0
                value = float(found.mean())
                measured.append(Measurement(ticket_id=row.id, step=1, name=on, value=value))
                for place, each in enumerate(found if kind else ()):
                    name = units_name(on, kind)  # type: ignore[arg-type]
                    measured.append(Measurement(ticket_id=row.id, step=place, name=name, value=float(each)))
                    if kind == "batches":
                        measured.append(
                            Measurement(ticket_id=row.id, step=place, name=sizes_name(on), value=8.0)
                        )
            return dataclasses.replace(row, value=value)

        rows = [run(new) for new in first_tickets(spec)]
        if state == "done":
            rows += [run(new) for new in next_tickets(rows, spec)]
        found: StudyResult = result_of(spec, rows, measured, state=state)
        return found

    return make


def test_the_temperature_is_chosen_on_validation_data_and_estimated_on_test_data(make_result: Any) -> None:
    result = make_result()
    found = result.evaluated
    assert found.params == {"temperature_init": 0.5} and not found.at_one
    assert (found.on, found.tried, found.unit, found.units, found.items) == ("test", 5, "items", ITEMS, ITEMS)
    best, one = (items(tau, "test", 0.1) for tau in (0.5, 1.0))
    assert (found.value, found.value_at_one) == pytest.approx((best.mean(), one.mean()))
    assert (found.chosen, found.chosen_at_one) == pytest.approx(
        (items(0.5, "validate", 0.1).mean(), items(1.0, "validate", 0.1).mean())
    )
    # more is better, whatever the direction
    assert found.gain == pytest.approx((one - best).mean())
    (expected,) = paired_bootstrap([one - best], [1.0] * ITEMS, seed=1)
    assert (found.interval.low, found.interval.high) == pytest.approx(
        (expected.low, expected.high), abs=0.05 * (expected.high - expected.low)
    )
    assert found.shown
    assert make_result().evaluated == found
    assert result.verdict is None and result.winner is None


def test_the_curve_has_every_evaluation_with_the_interval_of_its_difference(make_result: Any) -> None:
    curve = make_result().evaluated.curve
    assert [each.params["temperature_init"] for each in curve] == [1.0, *TAUS]
    for each in curve:
        tau = each.params["temperature_init"]
        difference = items(1.0, "validate", 0.1) - items(tau, "validate", 0.1)
        assert each.gain == pytest.approx(difference.mean(), abs=1e-12)
        assert each.interval.low <= each.gain <= each.interval.high
    assert curve[0].interval.low == curve[0].interval.high == 0.0


def test_the_verdict_says_both_values_the_interval_and_of_what_it_is(make_result: Any) -> None:
    lines = verdict_lines(make_result())
    text = "\n".join(lines)
    assert lines[0].startswith("Gain shown: for this checkpoint val_loss is lower by 0.")
    assert "on the test data at τ = 0.5 than at τ = 1 (95 % interval 0." in lines[0]
    assert "of 5 evaluations, val_loss is on the validation data " in text
    assert "paired bootstrap over 60 items of the test data; of this checkpoint, not over seeds" in text
    assert "chosen on the validation data, estimated on the test data, which chose nothing." in text
    assert " of 7 evaluations (search trials: 4 complete)." in text
    assert "train" not in text.replace("another training of the model", "")


def test_without_test_data_the_estimate_is_said_to_be_optimistic(make_result: Any) -> None:
    for result, why in (
        (make_result(tested=False), "since it could not be evaluated on test data: write a test_dataloader"),
        (make_result(confirm_on="validate"), "as study.confirm_on says"),
    ):
        found, lines = result.evaluated, verdict_lines(result)
        assert found.on == "validate" and found.interval.low > 0 and not found.shown
        assert lines[0].startswith(
            "No gain shown: for this checkpoint the gain in val_loss at τ = 0.5 over τ = 1 is +0."
        )
        assert ", but on the validation data, which chose it (95 % interval +0." in lines[0]
        assert "optimistic" in lines[0]
        assert f"  chosen and estimated on the validation data, {why}. Its gain there is optimistic." in lines
        assert result.to_json()["evaluated"]["optimistic"] is True
    waiting = verdict_lines(make_result(state="running"))
    assert "  not estimated on the test data yet: the evaluations are not over." in waiting


def test_a_small_difference_is_no_gain(make_result: Any) -> None:
    result = make_result(gain=0.0005)
    assert result.evaluated.interval.low < 0 and not result.evaluated.shown
    assert verdict_lines(result)[0].startswith("No gain shown: for this checkpoint the gain in val_loss ")


def test_where_no_temperature_is_better_tau_1_is_the_choice(make_result: Any) -> None:
    result = make_result(taus=[0.125, 4.0])
    found = result.evaluated
    assert found.at_one and found.params == {"temperature_init": 1.0} and found.gain == 0.0
    confirm = [run.arm for run in result.runs if run.kind == "confirm"]
    # one evaluation on test data is of both
    assert confirm == ["search+baseline"]
    assert verdict_lines(result)[0] == (
        "No gain shown: of 3 evaluations on the validation data none has a better val_loss than τ = 1."
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": None}, "the metric is not the mean of what is logged for each batch"),
        ({"kind": "batches", "units": 3}, "no interval: 3 batches are too few to resample; it takes 10."),
        ({"kind": "batches", "units": 1}, "no interval: 1 batch is too few to resample; it takes 10."),
    ],
)
def test_without_an_interval_the_reason_and_the_way_to_one_are_said(
    make_result: Any, given: dict[str, Any], message: str
) -> None:
    result = make_result(**given)
    found, text = result.evaluated, "\n".join(verdict_lines(result))
    assert found.interval is None and found.gain > 0 and not found.shown
    assert message in text and "Have validation_step return a mapping" in text
    assert verdict_lines(result)[0].endswith("without an interval.")
    told = result.to_json()["evaluated"]
    assert told["ci_low"] is told["ci_high"] is None


def test_a_metric_that_changes_on_few_items_has_no_interval_but_at_tau_1(make_result: Any) -> None:
    result = make_result(kind="items", accuracy=True)
    found = result.evaluated
    assert (found.interval, found.changed, found.units) == (None, 3, ITEMS)
    assert "no interval: the metric of 3 of 60 items changes, and it takes 10 that do." in "\n".join(
        verdict_lines(result)
    )
    assert [each.interval is None for each in found.curve] == [each.params != AT_ONE for each in found.curve]


def test_many_batches_are_resampled_with_their_sizes(make_result: Any) -> None:
    found = make_result(kind="batches").evaluated
    assert (found.unit, found.units, found.items) == ("batches", ITEMS, 8 * ITEMS)
    assert found.interval == make_result().evaluated.interval


def test_the_data_of_show_have_the_curve(make_result: Any) -> None:
    result = make_result()
    assert result.to_json()["ledger"] == []
    told = result.to_json()["evaluated"]
    assert list(told) == [
        *("params", "at_one", "chosen_on", "estimated_on", "gain", "ci_low", "ci_high", "confidence"),
        *("optimistic", "gain_shown", "apart", "resampled", "curve"),
    ]
    assert told["chosen_on"]["data"] == "validate" and told["estimated_on"]["data"] == "test"
    assert told["resampled"] == {"unit": "items", "units": ITEMS, "items": ITEMS}
    assert [set(each) for each in told["curve"]] == [{"params", "value", "gain", "ci_low", "ci_high"}] * 5


# ---- what is drawn


def test_the_plot_has_the_line_its_band_and_the_star(make_result: Any) -> None:
    result = make_result()
    data = PLOTS["inference"].data(result)
    assert isinstance(data, EvaluationShown)
    # τ = 1 was evaluated twice, and is one point
    assert [each.temperature for each in data.points] == TAUS
    for point in data.points:
        difference = items(point.temperature, "validate", 0.1) - items(1.0, "validate", 0.1)
        assert point.low <= point.value + 1e-12 and point.value <= point.high + 1e-12
        assert point.value - data.at_one == pytest.approx(difference.mean())
    traces = {
        trace["name"]: trace
        for trace in PLOTS["inference"](result).to_plotly_json()["data"]
        if "name" in trace
    }
    assert list(traces["chosen"]["x"]) == [0.5]
    assert list(traces["test data"]["x"]) == [1.0, 0.5]
    assert list(traces["validation data"]["x"]) == TAUS
    assert "95 % interval of the difference" in data.caption()
    assert {len(row) for row in data.table().rows} == {len(data.table().columns)}


def test_without_intervals_there_is_no_band(make_result: Any) -> None:
    data = PLOTS["inference"].data(make_result(kind=None))
    assert not data.has_intervals and "band" not in data.caption()
    figure = PLOTS["inference"](make_result(kind=None)).to_plotly_json()
    assert not any(trace.get("fill") for trace in figure["data"])


def test_the_report_speaks_of_evaluations(make_result: Any) -> None:
    result = make_result()
    assert answer(result) == "Gain shown"
    keys = [section.key for section in sections(result, "")]
    assert keys[0] == "inference" and "confirmation" not in keys
    names = [name for name, *_ in tiles(result)]
    assert names == ["gain in val_loss", "chosen", "τ = 1", "evaluations", "time"]
    page = render_report(result, plotlyjs="cdn")
    assert "The metric over temperature" in page and "fresh seeds" not in page
