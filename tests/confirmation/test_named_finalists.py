"""The last finalist of a proxy is named when the others have been trained at full size."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tempopt.confirmation.proxy_order import proxy_order
from tempopt.confirmation.stages import next_tickets
from tempopt.confirmation.transfer import finalists, most_to_transfer, on_proxy, transferred
from tempopt.confirmation.verdict import conclude
from tempopt.records.rows import Parameters, TicketRow
from tempopt.spec.size_race import unnamed
from tempopt.temperature import is_neutral, training_key
from tests.confirmation import test_sizes
from tests.confirmation.test_transfer import REVERSED, SHIFT, TRANSFERS, best_at, spec_of, tau
from tests.simulated import Simulated, Worth

Names = Callable[[Any, int], list[Parameters]]


def at(*taus: float) -> Names:
    """Return what names these temperatures for full size, and nothing for the proxy."""

    def recommend(arm: Any, count: int) -> list[Parameters]:
        return [{"temperature_init": each} for each in taus][:count] if arm == "transfer" else []

    return recommend


class Naming(Simulated):
    def __init__(self, worth: Worth, recommend: Names, **proxy: Any) -> None:
        super().__init__(spec_of(proxy), worth)
        self.recommend = recommend

    def step(self) -> list[TicketRow]:
        return self.do(next_tickets(self.rows, self.spec, self.recommend))


def test_the_last_place_is_open_until_the_others_have_had_their_first_seeds() -> None:
    study = Naming(TRANSFERS, at(1.7))
    study.search()
    first = study.until("transfer")
    assert Counter(t.candidate for t in first) == {0: 2, 1: 2, 3: 2} and unnamed(first) == [2]
    assert all(is_neutral(t.parameters or {}) for t in first if t.candidate == 3)
    assert transferred(study.rows, study.spec) is None
    second = study.step()
    assert {(t.candidate, t.pair, t.seed) for t in second} == {(2, t.pair, t.seed) for t in first}
    assert all(tau(t) == pytest.approx(1.7 * math.exp(SHIFT), rel=1e-12) for t in second)
    assert len({t.number for t in (*first, *second)}) == 8
    # from here on they race together
    assert {t.pair for t in study.until("transfer")} <= {2, 3}


def test_no_more_runs_are_trained_than_were_announced() -> None:
    for recommend in (at(), at(1.7), at(3.9)):
        study = Naming(TRANSFERS, recommend)
        study.search()
        study.until("transfer")
        while [t for t in study.batches[-1] if t.kind == "transfer"]:
            announced = most_to_transfer(study.rows, study.spec)[1]
            before = len(study.of("transfer"))
            new = study.step()
            assert len(study.of("transfer")) - before <= announced
            if new[0].kind == "transfer":
                assert most_to_transfer(study.rows, study.spec)[1] <= announced - len(new)
        assert len(study.of("transfer")) <= 4 * 4


def test_whoever_the_proxy_had_for_the_place_gets_it_where_nobody_new_is_named() -> None:
    plain = Naming(TRANSFERS, at())
    plain.search()
    expected = {t.candidate: t.parameters for t in plain.until("transfer")}
    assert len(expected) == 4
    for place in (0, 1, 3):
        study = Naming(TRANSFERS, at(tau_of(on_proxy(plain.rows, plain.spec, expected[place] or {}))))
        study.search()
        study.until("transfer")
        found = {t.candidate: t.parameters for t in study.step()}
        assert found == {2: expected[2]}


def tau_of(parameters: Parameters) -> float:
    return float(parameters.get("temperature_init", 1.0))


def test_a_named_set_that_is_best_is_confirmed_and_the_order_is_that_of_the_winner_of_the_proxy() -> None:
    study = Naming(REVERSED, at(0.3)).run()
    verdict = conclude(study.rows, [], study.spec)
    assert verdict is not None and verdict.total.significant
    assert tau_of(verdict.params) == pytest.approx(0.3 * math.exp(SHIFT), rel=1e-12)
    order = proxy_order(study.rows, study.spec, verdict)
    assert order is not None and order.order == "reversed" and not order.confirmed
    first = finalists([t for t in study.rows if t.kind not in ("transfer", "confirm")], study.spec)[0]
    assert training_key(on_proxy(study.rows, study.spec, order.parameters or {})) == training_key(first)
    # no run of the proxy has trained it
    assert [each.before is None for each in order.finalists] == [False, False, True, False]
    assert [each.named for each in order.finalists] == [False, False, True, False]


def test_one_finalist_and_sizes_in_between_are_left_to_the_proxies() -> None:
    alone = Naming(TRANSFERS, at(1.7), finalists=1).run()
    assert not alone.of("transfer")
    spec = test_sizes.spec_of()
    between = Naming(test_sizes.best_at(spec, *test_sizes.HOLDS, size=0.3), at(1.7))
    between.spec = spec
    between.run()
    middle = test_sizes.at_size(between, 1)
    assert unnamed(middle) == [] and 1.7 * math.exp(0.3) not in {tau(t) for t in middle}


def test_of_two_finalists_the_second_is_named() -> None:
    study = Naming(best_at(2.5, 2.5), at(1.7), finalists=2)
    study.search()
    assert {t.candidate for t in study.until("transfer")} == {0, 2}
    assert {t.candidate for t in study.step()} == {1}


@pytest.mark.parametrize("left", [1, 2])
def test_after_a_size_in_between_the_last_of_two_or_more_gives_its_place_up(left: int) -> None:
    def worth(ticket: TicketRow) -> float:
        # so many are as good as τ = 1 there
        worse = ticket.kind == "transfer" and ticket.size == 1 and left <= (ticket.candidate or 0) < 3
        return -10.0 * worse + float(ticket.kind == "choose" and ticket.arm == "search")

    study = Naming(worth, at(1.7))
    study.spec = test_sizes.spec_of()
    study.run()
    full = {t.candidate: tau(t) for t in test_sizes.at_size(study, 2)}
    named = [rank for rank, each in full.items() if each == pytest.approx(1.7 * math.exp(0.5), rel=1e-12)]
    assert len(full) == left + 1 and named == ([1] if left == 2 else [])
