"""Studies with several proxies in memory: who goes on from size to size, and whether each order held."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from tempopt.confirmation.proxy_order import proxy_order
from tempopt.confirmation.retrying import retried
from tempopt.confirmation.stages import upcoming
from tempopt.confirmation.transfer import on_proxy
from tempopt.records.racing import in_race
from tempopt.records.rows import TicketRow
from tempopt.seeds import derive
from tempopt.spec.model_sizes import size_of
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import is_neutral, training_key
from tests.confirmation.test_transfer import noise, row_failed, tau, verdict_of
from tests.simulated import Simulated, Worth
from tests.specs import make

SHIFTS = [0.3, 0.2]
SETS = [
    {"model.d_model": 8, "trainer.max_steps": 10},
    {"model.d_model": 16, "trainer.max_steps": 30},
]


def spec_of(proxy: dict[str, Any] | None = None, **settings: Any) -> StudySpec:
    given = {"set": SETS, "temperature": SHIFTS, **(proxy or {})}
    return make(**{"study__trials": 8, "study__proxy": given, **settings})


def best_at(spec: StudySpec, *best: float, size: float = 0.05) -> Worth:
    """Return runs whose best temperature is another one at each size."""

    def worth(ticket: TicketRow) -> float:
        return -abs(math.log(tau(ticket) / best[size_of(ticket, spec)])) + noise(ticket, size)

    return worth


def carried_out(*best: float, size: float = 0.05, **proxy: Any) -> Simulated:
    spec = spec_of(proxy)
    return Simulated(spec, best_at(spec, *best, size=size)).run()


def at_size(study: Simulated, size: int) -> list[TicketRow]:
    return [t for t in study.of("transfer") if t.size == size]


HOLDS = (2.5, 2.5 * math.exp(0.3), 2.5 * math.exp(0.5))
MIDDLE_REVERSED = (4.0, 0.25, 0.25)
FULL_REVERSED = (4.0, 4.0, 0.25)


def test_finalists_go_from_size_to_size_and_ln_tau_moves_on_the_way() -> None:
    study = carried_out(*HOLDS, size=0.3)
    sizes = [t.size for batch in study.batches for t in batch if t.kind == "transfer"]
    assert sizes == sorted(sizes) and set(sizes) == {1, 2}  # type: ignore[type-var]
    small = {tau(t) for t in study.rows if t.kind == "choose"}
    for size, by in ((1, 0.3), (2, 0.5)):
        for ticket in at_size(study, size):
            expected = {1.0} if ticket.arm == "baseline" else {each * math.exp(by) for each in small}
            assert any(tau(ticket) == pytest.approx(each, rel=1e-12) for each in expected)
    assert study.of("confirm", "search")[0].parameters in [t.parameters for t in at_size(study, 2)]
    # what one size has decided on is not what decides at the next
    seeds = [{t.seed for t in study.rows if (t.kind, t.size) == which} for which in _stages()]
    assert all(not one & other for one, other in pairwise(seeds))
    assert {t.seed for t in at_size(study, 2)} == {
        derive(study.spec.study.seed, "transfer", pair) for pair in {t.pair for t in at_size(study, 2)}
    }


def _stages() -> list[tuple[str, int | None]]:
    return [("choose", None), ("transfer", 1), ("transfer", 2), ("confirm", None)]


def test_whoever_may_be_the_best_at_a_size_goes_on_in_its_order_beside_tau_one() -> None:
    spec = spec_of({"finalists": 4}, study__candidates=4)
    study = Simulated(spec, best_at(spec, *HOLDS, size=0.3))
    study.search()
    study.until("transfer")
    while not at_size(study, 2) and study.step():
        pass
    middle, full = at_size(study, 1), at_size(study, 2)
    assert full, "the noise leaves several"
    last = max(t.candidate or 0 for t in middle)
    left = [rank for rank in in_race(middle, spec.study.direction) if rank != last]
    values = {rank: [t.value or 0.0 for t in middle if t.candidate == rank] for rank in left}
    ranked = sorted(left, key=lambda rank: -sum(values[rank]) / len(values[rank]))
    small = [
        on_proxy(study.rows, spec, next(t.parameters or {} for t in middle if t.candidate == rank), size=1)
        for rank in ranked
    ]
    found = {t.candidate: t.parameters or {} for t in full if t.pair == 0}
    assert [training_key(on_proxy(study.rows, spec, found[rank])) for rank in range(len(ranked))] == [
        *map(training_key, small)
    ]
    assert is_neutral(found[len(ranked)]) and len(found) == len(ranked) + 1


def test_a_reversal_at_the_middle_size_ends_it_there() -> None:
    study = carried_out(*MIDDLE_REVERSED)
    assert at_size(study, 1) and not at_size(study, 2)
    verdict, order = verdict_of(study)
    assert verdict.at_one and verdict.recommendation is not None
    assert verdict.recommendation.now == "change_nothing"
    assert order.order == "reversed" and order.largest == 1 and not order.confirmed
    assert [each.order for each in order.sizes] == ["reversed"]
    assert order.at_largest is not None and order.at_largest.gain < 0
    # nothing but τ = 1 has been trained at full size
    assert all(is_neutral(t.parameters or {}) for t in study.rows if size_of(t, study.spec) == 2)


def test_a_reversal_at_full_size_is_said_of_both_proxies() -> None:
    study = carried_out(*FULL_REVERSED)
    verdict, order = verdict_of(study)
    assert order.largest == 2 and order.order == "reversed"
    assert [each.order for each in order.sizes] == ["reversed", "reversed"]
    assert all(each.gain is not None and each.gain.gain > 0 for each in order.sizes)
    assert verdict.at_one or verdict.total.worse


def test_an_order_that_holds_is_said_of_each_size() -> None:
    verdict, order = verdict_of(carried_out(*HOLDS))
    assert verdict.total.significant and order.confirmed and order.largest == 2
    assert [each.order for each in order.sizes] == ["held", "held"] and order.order == "held"
    assert order.parameters == verdict.params
    assert {each.size for each in order.finalists} >= {1}
    assert all(each.before is not None and each.value is not None for each in order.finalists)


def test_a_finalist_alone_is_compared_in_between_and_not_at_full_size() -> None:
    study = carried_out(*HOLDS, finalists=1)
    assert {t.candidate for t in at_size(study, 1)} == {0, 1} and not at_size(study, 2)
    assert tau(study.of("confirm", "search")[0]) == pytest.approx(tau(at_size(study, 1)[0]) * math.exp(0.2))
    ended = carried_out(*MIDDLE_REVERSED, finalists=1)
    assert verdict_of(ended)[0].at_one


def test_noise_alone_decides_nothing() -> None:
    spec = spec_of()
    study = Simulated(spec, lambda ticket: noise(ticket, 1.0)).run()
    assert verdict_of(study)[1].order in ("not_decided", "held")
    assert proxy_order(study.rows, spec, None) is not None


def test_the_cost_is_told_of_each_size() -> None:
    study = carried_out(*HOLDS)
    cost = verdict_of(study)[1].cost
    counts = [sum(size_of(t, study.spec) == size for t in study.rows) for size in (0, 1, 2)]
    assert cost.shares == pytest.approx([count / len(study.rows) for count in counts])
    spared = len(at_size(study, 1)) + len(at_size(study, 2))
    # every run takes 2 s here, and a search at full size has nothing to transfer
    assert cost.searched_at_full == pytest.approx(2.0 * (len(study.rows) - spared))


@pytest.mark.parametrize("best", [HOLDS, MIDDLE_REVERSED, FULL_REVERSED, (2.0, 2.0, 2.0)])
@pytest.mark.parametrize("finalists", [1, 3])
@pytest.mark.parametrize("size", [0.05, 0.5])
def test_what_is_to_come_is_an_upper_bound_at_each_size(
    best: tuple[float, ...], finalists: int, size: float
) -> None:
    spec = spec_of({"finalists": finalists})
    study = Simulated(spec, best_at(spec, *best, size=size))
    study.search()
    told = []
    while True:
        told.append((len(study.rows), upcoming(study.rows, spec)))
        if not study.step():
            break
    for count, more in told:
        if any(t.kind == "confirm" for t in study.rows[:count]):
            continue
        later = [
            t for t in study.rows[count:] if t.kind not in ("ablation", "timing") and "simpler" not in t.arm
        ]
        for at, most in enumerate(more.sizes):
            assert most >= sum(size_of(t, spec) == at for t in later), (count, at)


def test_a_lost_run_is_asked_for_again_until_the_next_size_has_begun() -> None:
    spec = spec_of()
    study = Simulated(spec, best_at(spec, *HOLDS, size=0.3))
    study.search()
    lost = row_failed(study.until("transfer")[0])
    assert retried([lost if t.id == lost.id else t for t in study.rows], spec)[0] == [lost]
    while not at_size(study, 2) and study.step():
        pass
    assert at_size(study, 2)
    assert retried([lost if t.id == lost.id else t for t in study.rows], spec)[0] == []
    own = row_failed(at_size(study, 2)[0])
    assert retried([own if t.id == own.id else t for t in study.rows], spec)[0] == [own]


def test_more_trials_go_through_all_sizes_again() -> None:
    study = carried_out(*HOLDS).more(4)
    seeds = [{t.seed for t in at_size(study, 1) if t.round == each} for each in (0, 1)]
    assert all(seeds) and seeds[0].isdisjoint(seeds[1])
