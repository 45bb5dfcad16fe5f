"""The shift of ln τ that is measured at the first larger size, in studies in memory."""

from __future__ import annotations

import dataclasses
import math
from statistics import fmean
from typing import Any

import pytest
from scipy import stats

from tempopt.confirmation.measured_shift import measured_shift
from tempopt.confirmation.stages import upcoming
from tempopt.confirmation.transfer import on_proxy
from tempopt.records.rows import AT_PROXY, TicketRow
from tempopt.records.tickets import usable
from tempopt.spec.model_sizes import size_of, to_size
from tempopt.spec.size_race import with_measured_shift
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import is_neutral
from tests.confirmation.test_transfer import PROXY, noise, tau, verdict_of
from tests.simulated import Simulated, Worth
from tests.specs import make

SETS = [{"model.d_model": 8, "trainer.max_steps": 10}, {"model.d_model": 16, "trainer.max_steps": 30}]


def spec_of(proxy: dict[str, Any] | None = None, **settings: Any) -> StudySpec:
    own = {**PROXY, "temperature": "measured", **(proxy or {})}
    return make(**{"study__trials": 8, "study__proxy": own, **settings})


def best_by(spec: StudySpec, *shifts: float, size: float = 0.05) -> Worth:
    """Return runs whose best temperature is 2 on the smallest proxy, and is moved by shifts at others."""

    def worth(ticket: TicketRow) -> float:
        best = 2.0 * math.exp(sum(shifts[: size_of(ticket, spec)]))
        return -abs(math.log(tau(ticket) / best)) + noise(ticket, size)

    return worth


def carried_out(*shifts: float, size: float = 0.05, **proxy: Any) -> Simulated:
    spec = spec_of(proxy)
    return Simulated(spec, best_by(spec, *shifts, size=size)).run()


def compared(study: Simulated, size: int = 1) -> dict[int, float]:
    """Return the temperature of each finalist at a size by its number."""
    return {t.candidate or 0: tau(t) for t in study.of("transfer") if size_of(t, study.spec) == size}


@pytest.mark.parametrize("shift", [-0.4, 0.4])
def test_the_winner_is_tried_with_each_shift_and_the_best_is_confirmed(shift: float) -> None:
    study = carried_out(shift, finalists=1)
    found = compared(study)
    own = found[0]
    assert sorted(found) == [0, 1, 2, 3] and found[3] == 1.0
    assert [found[1], found[2]] == pytest.approx([own * math.exp(-0.4), own * math.exp(0.4)])
    assert own in {tau(t) for t in study.of("choose", "search")}
    confirmed = {tau(t) for t in study.of("confirm", "search")}
    assert confirmed == {found[1 if shift < 0 else 2]}
    (proxy,) = [with_measured_shift(study.rows, study.spec).study.proxy]
    assert proxy is not None and proxy.shifts == [shift] and not proxy.is_unmeasured
    # what is stored stays what was asked
    assert study.spec.study.proxy is not None and study.spec.study.proxy.is_unmeasured


def test_constants_are_moved_by_what_was_measured_and_the_baseline_is_not() -> None:
    study = carried_out(0.4)
    constant = {tau(t) for t in study.of("confirm", "constant")}
    small = {tau(t) for t in study.rows if t.kind in ("choose", "constant")}
    assert constant and not constant & small
    assert any(each == pytest.approx(other * math.exp(0.4)) for each in constant for other in small)
    assert {tau(t) for t in study.of("confirm", "baseline")} == {1.0}


def test_nothing_is_moved_where_the_winner_is_best_as_it_is() -> None:
    study = carried_out(0.0)
    spec = with_measured_shift(study.rows, study.spec)
    assert spec.study.proxy is not None and spec.study.proxy.shifts == [0.0]
    assert {tau(t) for t in study.of("confirm", "search")} == {compared(study)[0]}
    _, order = verdict_of(study)
    assert order.order == "held" and order.shift is not None and order.shift.shift == 0.0
    assert order.shift.gain is not None and order.shift.gain.gain < 0


def test_what_was_measured_is_told_by_the_means_and_a_paired_test() -> None:
    study = carried_out(0.4, size=0.02, finalists=1)
    found = measured_shift(study.rows, study.spec)
    assert found is not None and found.shift == 0.4 and found.told_apart
    runs: dict[int, dict[int, float]] = {0: {}, 1: {}, 2: {}}
    for ticket in study.of("transfer"):
        if ticket.candidate in runs and usable(ticket) and ticket.pair is not None:
            runs[ticket.candidate][ticket.pair] = ticket.value or 0.0
    assert [each.shift for each in found.tried] == [-0.4, 0.0, 0.4]
    for each, rank in zip(found.tried, (1, 0, 2), strict=True):
        assert each.value == pytest.approx(fmean(runs[rank].values())) and each.pairs == len(runs[rank])
    both = sorted(runs[0].keys() & runs[2].keys())
    test = stats.ttest_rel([runs[2][pair] for pair in both], [runs[0][pair] for pair in both])
    assert found.gain is not None and found.gain.p_value == pytest.approx(test.pvalue)
    assert test.pvalue < 0.025


def test_a_configuration_that_is_moved_is_known_on_the_proxy() -> None:
    study = carried_out(-0.4)
    _, order = verdict_of(study)
    assert order.order == "held" and order.confirmed
    assert all(each.before is not None and not each.named for each in order.finalists)
    assert order.parameters is not None and order.parameters["temperature_init"] in compared(study).values()


def test_where_another_finalist_or_one_is_best_nothing_is_moved() -> None:
    spec = spec_of({"try_shifts": [1.5]})

    def worth(ticket: TicketRow) -> float:
        # the moved copy and the winner are poor at full size
        best = 4.0 if ticket.kind in AT_PROXY else 1.0
        return -abs(math.log(tau(ticket) / best)) + noise(ticket)

    study = Simulated(spec, worth).run()
    found = with_measured_shift(study.rows, spec).study.proxy
    assert found is not None and found.shifts == [0.0] and not found.is_unmeasured
    assert 4 in compared(study) and {tau(t) for t in study.of("confirm")} == {1.0}


def test_sizes_after_the_first_larger_one_move_as_far_again_and_race_each_configuration_once() -> None:
    study = carried_out(0.4, 0.4, set=SETS, size=0.6)
    first, second = compared(study), compared(study, 2)
    assert len(first) == 6
    small = {tau(t) for t in study.of("choose", "search")}
    moved = [each for rank, each in second.items() if rank != max(second)]
    assert moved and len(moved) <= 3
    for each in moved:
        assert any(each == pytest.approx(other * math.exp(0.8)) for other in small)


@pytest.mark.parametrize("proxy", [{}, {"finalists": 1}, {"set": SETS}, {"set": SETS, "finalists": 1}])
@pytest.mark.parametrize("size", [0.05, 1.0])
def test_what_is_to_come_is_an_upper_bound(proxy: dict[str, Any], size: float) -> None:
    spec = spec_of(proxy)
    study = Simulated(spec, best_by(spec, 0.4, 0.4, 0.4, size=size))
    study.search()
    told = [upcoming(study.rows, spec).sizes]
    before = [len(study.rows)]
    while study.step():
        told.append(upcoming(study.rows, spec).sizes)
        before.append(len(study.rows))
    left = [
        [sum(size_of(t, spec) == at for t in study.rows[count:] if t.kind not in _AFTER) for at in range(3)]
        for count in before
    ]
    for most, came in zip(told, left, strict=True):
        assert all(one >= other for one, other in zip(most, came, strict=False))


_AFTER = ("ablation", "timing")


def test_a_second_round_keeps_what_the_first_has_measured() -> None:
    study = carried_out(0.4)
    study.more(8)
    second = [t for t in study.of("transfer") if t.round == 1]
    spec = with_measured_shift(study.rows, study.spec)
    assert spec.study.proxy is not None and spec.study.proxy.shifts == [0.4]
    small = {tau(t) for t in study.of("choose") if t.round == 1}
    for ticket in second:
        expected = 1.0 if is_neutral(ticket.parameters or {}) else tau(ticket) / math.exp(0.4)
        assert any(expected == pytest.approx(each) for each in {*small, 1.0})


@pytest.mark.parametrize("rule", [0.4, "measured"])
def test_what_is_moved_to_one_is_not_taken_for_the_baseline_whatever_the_order_of_rows(rule: Any) -> None:
    spec = spec_of({"temperature": rule})
    study = Simulated(spec, best_by(spec, 0.4)).run()
    if rule == "measured":
        spec = with_measured_shift(study.rows, spec)
    (one,) = [t for t in study.of("baseline")][:1]
    moved = dataclasses.replace(
        study.of("search")[0], id=-1, parameters={"schedule": "constant", "temperature_init": math.exp(-0.4)}
    )
    at_full = to_size(spec, moved.parameters or {}, 1)
    assert is_neutral(at_full) and is_neutral(one.parameters or {})
    rows = [moved, *study.rows]
    for order in (rows, rows[::-1]):
        assert on_proxy(order, spec, one.parameters or {}) == one.parameters
