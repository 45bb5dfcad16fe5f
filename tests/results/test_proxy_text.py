"""What is said of a study's proxy: in the first lines, in the recommendation, as data, and beforehand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tempopt.records.rows import AT_PROXY
from tempopt.results.not_shown import not_shown
from tempopt.results.proxy_text import proxy_sizes
from tempopt.results.verdict_text import verdict_lines
from tests.confirmation import test_measured_shift as shifts
from tests.confirmation import test_sizes as sizes
from tests.confirmation.test_transfer import REVERSED, TRANSFERS, noise, spec_of, tau
from tests.simulated import Simulated
from tests.specs import make


@pytest.fixture(scope="module")
def held(result_of: Any) -> Any:
    study = Simulated(spec_of(), TRANSFERS).run()
    return result_of(study.spec, study.rows, state="done")


@pytest.fixture(scope="module")
def misled(result_of: Any) -> Any:
    study = Simulated(spec_of(), REVERSED).run()
    return result_of(study.spec, study.rows, state="done")


def test_a_proxy_that_misled_is_in_the_first_lines_and_in_the_recommendation(misled: Any) -> None:
    first, second, todo, *_ = verdict_lines(misled)
    assert "the best that the search has found in val_accuracy is τ = 1 itself" in first
    assert second.startswith("  The proxy misled: the order of the proxy at full size: reversed.")
    assert "on the proxy +" in second and "at full size −" in second
    assert todo.startswith("  What to do: change nothing: train and evaluate at τ = 1.")
    assert todo.endswith(
        "What gains on the proxy loses at full size: search at full size, or on a larger proxy."
    )
    assert any("order of the proxy at full size: reversed" in each for each in not_shown(misled))


def test_an_order_that_held_is_told_with_mapping_and_cost(held: Any) -> None:
    lines = verdict_lines(held)
    assert not any("misled" in line for line in lines)
    (mapping,) = [line for line in lines if "from the proxy to full size" in line]
    assert "ln τ moves by +0.5 (as given), which multiplies temperatures by 1.65" in mapping
    assert "moved: temperature_init" in mapping
    (order,) = [line for line in lines if "the order of the proxy at full size: held" in line]
    assert "8 confirming pairs" in order
    assert any("compared at full size, in the order of the proxy" in line for line in lines)
    assert any("of all steps" in line and "times as much" in line for line in lines)
    assert not any("order of the proxy" in each for each in not_shown(held))


def test_as_data_it_is_whole_and_plain(held: Any, misled: Any) -> None:
    for result, order in ((held, "held"), (misled, "reversed")):
        data = json.loads(json.dumps(result.to_json(), allow_nan=False))["proxy"]
        assert (data["order"], data["rule"], data["shifts_of_ln_tau"]) == (order, 0.5, [0.5])
        assert data["finalists"][-1]["at_one"] is True and data["moved"] == ["temperature_init"]
        assert 0 < data["cost"]["steps"][1] < 1 and sum(data["cost"]["shares"]) == pytest.approx(1)


def test_of_several_sizes_each_has_its_order_and_its_share_of_the_time(result_of: Any) -> None:
    study = sizes.carried_out(*sizes.HOLDS)
    result = result_of(study.spec, study.rows, state="done")
    lines = "\n".join(verdict_lines(result))
    assert (
        "searched and chosen on the smallest of 2 proxies (model.d_model=8, trainer.max_steps=10; " in lines
    )
    assert "ln τ moves by +0.3, +0.2 (as given), which together multiplies temperatures by 1.65" in lines
    assert "the order at full size, of proxy 1: held; of proxy 2: held." in lines
    assert "compared on proxy 2, in the order of proxy 1: " in lines
    assert "% on proxy 1, " in lines and "% on proxy 2" in lines
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))["proxy"]
    assert [each["order"] for each in data["proxies"]] == ["held", "held"] and data["compared_at"] == 2
    assert len(data["cost"]["shares"]) == 3 and data["sets"] == sizes.SETS


def test_a_reversal_at_a_size_in_between_is_in_the_first_lines(result_of: Any) -> None:
    study = sizes.carried_out(*sizes.MIDDLE_REVERSED)
    result = result_of(study.spec, study.rows, state="done")
    _, second, todo, *_ = verdict_lines(result)
    assert second.startswith("  The proxy misled: the order on proxy 2, of proxy 1: reversed.")
    assert "so that nothing was compared with it at a larger size" in second
    assert todo.endswith("What gains on a smaller proxy loses on proxy 2: search on that, or at full size.")


def test_the_sizes_of_several_proxies_are_told_before_a_study_begins() -> None:
    found = sizes.spec_of().with_found({}, sizes={"steps": [10, 30, 100], "parameters": [12, 345, 6789]})
    first, second = proxy_sizes(found)
    assert first == (
        "The search trains proxy 1 (model.d_model=8, trainer.max_steps=10): 12 parameters, 10 steps a run. "
        "What it finds is compared on proxy 2 (model.d_model=16, trainer.max_steps=30): 345 parameters, "
        "30 steps a run; at full size 6,789 parameters, 100 steps a run."
    )
    assert second.startswith("From each size to the next ln τ moves by +0.3, +0.2 (as given)")


def test_a_study_without_a_proxy_says_nothing_of_one(result_of: Any) -> None:
    spec = make(study__trials=6)
    result = result_of(spec, Simulated(spec, TRANSFERS).run().rows, state="done")
    assert result.proxy is None and result.to_json()["proxy"] is None
    assert not any("proxy" in line for line in verdict_lines(result))
    assert result.tickets["transfer"].requested == 0


def test_the_sizes_of_both_are_told_before_a_study_begins() -> None:
    spec = spec_of({"temperature": "head_dim"})
    first, second = proxy_sizes(spec)
    assert first == "The search trains a proxy (model.d_model=8, trainer.max_steps=10)."
    assert second == "From it to full size temperatures move by head_dim, once its sizes are known."
    found = spec.with_found({}, sizes={"steps": [10, 100], "parameters": [1234, 56789], "head_dim": [32, 8]})
    first, second = proxy_sizes(found)
    assert "1,234 parameters, 10 steps a run; at full size 56,789 parameters, 100 steps a run" in first
    assert "ln τ moves by −0.693 (head_dim: 32 to 8), which multiplies temperatures by 0.5" in second
    assert proxy_sizes(make()) == []


def test_a_shift_that_is_measured_is_told_before_and_afterwards(result_of: Any) -> None:
    study = shifts.carried_out(0.4, size=0.02)
    before = " ".join(proxy_sizes(study.spec))
    assert "From it to full size ln τ moves by the shift that runs show to be best: −0.4, +0.4 or 0" in before
    result = result_of(study.spec, study.rows, state="done")
    lines = verdict_lines(result)
    assert any(
        "ln τ moves by +0.4 (measured), which multiplies temperatures by 1.49" in each for each in lines
    )
    (told,) = [
        each for each in lines if "shift of ln τ of the winner of the search, at full size: −0.4" in each
    ]
    assert "+0.4 over 0: +" in told and told.endswith("a difference that is shown.")
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))["proxy"]
    assert data["rule"] == "measured" and data["shifts_of_ln_tau"] == [0.4]
    assert [each["shift"] for each in data["measured_shift"]["tried"]] == [-0.4, 0.0, 0.4]
    assert data["measured_shift"]["told_apart"] is True and data["moved"] == ["temperature_init"]


def test_a_shift_that_is_measured_as_none_is_told_as_such(result_of: Any) -> None:
    study = shifts.carried_out(0.0)
    told = "\n".join(verdict_lines(result_of(study.spec, study.rows, state="done")))
    assert "from the proxy to full size temperatures stay as they are (measured)" in told
    assert ". The best of the others over 0: −" in told


def test_a_shift_that_is_not_measured_yet_is_no_number(result_of: Any) -> None:
    study = Simulated(shifts.spec_of(), TRANSFERS)
    study.search()
    data = result_of(study.spec, study.rows, state="running").to_json()["proxy"]
    assert data["shifts_of_ln_tau"] is None and data["measured_shift"] is None


def test_the_widening_of_a_range_is_of_what_was_searched(result_of: Any) -> None:
    # 4 is the end of the searched range, and 4 exp(0.4) is confirmed
    def worth(ticket: Any) -> float:
        best = 4.0 if ticket.kind in AT_PROXY else 4.0 * math.exp(0.4)
        return -abs(math.log(tau(ticket) / best)) + noise(ticket, 0.02)

    spec = shifts.spec_of(study__enqueue=[{"temperature_init": 4.0}])
    study = Simulated(spec, worth).run()
    result = result_of(spec, study.rows, state="done")
    assert result.recommendation is not None
    assert all(each.value <= 4.0 for each in result.recommendation.widen)


def test_where_the_search_chose_one_no_shift_was_measured(result_of: Any) -> None:
    spec = shifts.spec_of(study__enqueue=[{"temperature_init": 1.0}])
    study = Simulated(spec, lambda ticket: -abs(math.log(tau(ticket))) + noise(ticket, 0.01)).run()
    result = result_of(spec, study.rows, state="done")
    told = "\n".join(verdict_lines(result))
    assert not study.of("transfer") and "to be best" not in told
    assert "from the proxy to full size no shift of ln τ was measured" in told
