"""Studies with a proxy in memory: who is compared at full size, who is confirmed, whether the order held."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import pytest

from tempopt.confirmation.costs import MeanCosts, Total, costs_of, mean_costs
from tempopt.confirmation.proxy_order import ProxyOrder, proxy_order
from tempopt.confirmation.retrying import retried
from tempopt.confirmation.stages import reserve, to_come, upcoming
from tempopt.confirmation.transfer import finalists, on_proxy, transferred
from tempopt.confirmation.verdict import Verdict, conclude
from tempopt.forecast.runs import Forecast
from tempopt.records.rows import AT_PROXY, TicketRow
from tempopt.seeds import derive
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import is_neutral, training_key
from tests.simulated import SPACE, Simulated, Worth
from tests.specs import make

SHIFT = 0.5
PROXY = {"set": {"model.d_model": 8, "trainer.max_steps": 10}, "temperature": SHIFT}


def spec_of(proxy: dict[str, Any] | None = None, **settings: Any) -> StudySpec:
    return make(**{"study__trials": 8, "study__proxy": {**PROXY, **(proxy or {})}, **settings})


def tau(ticket: TicketRow) -> float:
    return float((ticket.parameters or {}).get("temperature_init", 1.0))


def noise(ticket: TicketRow, size: float = 0.05) -> float:
    return random.Random(f"{ticket.kind} {ticket.seed} {ticket.parameters}").gauss(0, size)


def best_at(small: float, large: float) -> Worth:
    """Return runs whose best temperature is one on the proxy and another at full size."""

    def worth(ticket: TicketRow) -> float:
        best = small if ticket.kind in AT_PROXY else large
        return -abs(math.log(tau(ticket) / best)) + noise(ticket)

    return worth


TRANSFERS = best_at(2.5, 2.5 * math.exp(SHIFT))
REVERSED = best_at(4.0, 0.25)


def verdict_of(study: Simulated) -> tuple[Verdict, ProxyOrder]:
    verdict = conclude(study.rows, [], study.spec)
    assert verdict is not None
    order = proxy_order(study.rows, study.spec, verdict)
    assert order is not None
    return verdict, order


def test_finalists_are_compared_at_full_size_between_choosing_and_confirming() -> None:
    study = Simulated(spec_of(), TRANSFERS)
    study.search()
    first = study.until("transfer")
    assert study.kinds() == ["baseline", "constant", "search", "choose", "transfer"]
    assert {t.pair for t in first} == {0, 1}
    chosen = [each for each in finalists([t for t in study.rows if t.kind != "transfer"], study.spec)]
    assert len(chosen) == 4 and is_neutral(chosen[-1])
    for ticket in first:
        own = chosen[ticket.candidate or 0]
        expected = 1.0 if is_neutral(own) else own["temperature_init"] * math.exp(SHIFT)
        assert tau(ticket) == pytest.approx(expected, rel=1e-12)
        assert ticket.arm == ("baseline" if ticket.candidate == 3 else "search")
        assert ticket.seed == derive(study.spec.study.seed, "transfer", ticket.pair)
    others = {t.seed for t in study.rows if t.kind != "transfer"}
    assert others.isdisjoint(t.seed for t in first)


def test_the_winner_of_the_proxy_goes_first_and_the_next_best_of_its_choosing_follow() -> None:
    study = Simulated(spec_of(study__candidates=4), best_at(2.0, 2.0))
    study.search()
    study.until("transfer")
    tried = [t for t in study.rows if t.kind == "choose" and t.arm == "search"]
    both = {t.pair for t in tried}
    means = {}
    for candidate in {t.candidate for t in tried}:
        runs = [t for t in tried if t.candidate == candidate]
        shared = both if len(runs) == len(both) else {t.pair for t in runs}
        means[candidate] = sum(t.value or 0.0 for t in runs if t.pair in shared) / len(runs)
    first = {t.candidate: t for t in study.of("transfer") if t.pair == 0}
    winner = next(t for t in tried if t.candidate == max(means, key=lambda each: means[each]))
    assert tau(first[0]) == pytest.approx(tau(winner) * math.exp(SHIFT), rel=1e-12)
    assert len({tau(t) for t in first.values()}) == 4


def test_the_best_at_full_size_is_confirmed_and_known_on_the_proxy_to_the_bit() -> None:
    # what is best on the proxy is the worst of the finalists at full size
    study = Simulated(spec_of(), best_at(4.0, 1.5 * math.exp(SHIFT))).run()
    transfer = study.of("transfer")
    confirmed = study.of("confirm", "search")[0]
    small = transferred(study.rows, study.spec)
    assert small is not None
    assert small["temperature_init"] in {tau(t) for t in study.rows if t.kind in AT_PROXY}
    values = {
        t.candidate: [each.value for each in transfer if each.candidate == t.candidate] for t in transfer
    }
    best = max(values, key=lambda rank: sum(values[rank]) / len(values[rank]))
    assert training_key(confirmed.parameters or {}) == training_key(
        next(t.parameters for t in transfer if t.candidate == best) or {}
    )
    assert best != 0
    assert on_proxy(study.rows, study.spec, confirmed.parameters or {}) == small


@pytest.mark.parametrize("proxy", [{"finalists": 1}, {}])
def test_nothing_is_compared_where_there_is_one_finalist(proxy: dict[str, Any]) -> None:
    alone = {} if proxy else {"study__candidates": 1}
    study = Simulated(spec_of(proxy, **alone), TRANSFERS).run()
    assert not study.of("transfer") and study.of("confirm")
    assert tau(study.of("confirm", "search")[0]) > 2.5
    assert verdict_of(study)[1].finalists == ()


def test_the_transfer_takes_two_pairs_at_least() -> None:
    study = Simulated(spec_of(study__seeds={"choose": 1}), TRANSFERS).run()
    assert {t.pair for t in study.of("transfer")} == {0, 1}


def test_a_proxy_that_chose_tau_one_transfers_nothing() -> None:
    study = Simulated(spec_of(study__enqueue=[{"temperature_init": 1.0}]), best_at(1.0, 4.0)).run()
    assert not study.of("transfer")
    verdict, order = verdict_of(study)
    assert verdict.at_one and order.order == "not_decided"


def test_a_reversed_proxy_is_found_out_and_tau_one_recommended() -> None:
    study = Simulated(spec_of(), REVERSED).run()
    verdict, order = verdict_of(study)
    assert verdict.at_one and verdict.recommendation is not None
    assert verdict.recommendation.now == "change_nothing" and is_neutral(verdict.recommendation.parameters)
    assert order.order == "reversed" and not order.confirmed
    (small,) = order.sizes
    assert small.gain is not None and small.gain.gain > 0 and small.gain.p_value < 0.05
    assert order.at_largest is not None and order.at_largest.gain < 0
    # the winner of the proxy has stayed beside τ = 1 on all seeds, the others have not
    assert order.finalists[0].pairs == order.finalists[-1].pairs == 4
    assert order.at_largest.n_pairs == 4


def test_a_reversed_proxy_is_found_out_by_the_confirmation_where_nothing_was_compared_before() -> None:
    study = Simulated(spec_of({"finalists": 1}), REVERSED).run()
    verdict, order = verdict_of(study)
    assert not verdict.at_one and verdict.total.worse and order.order == "reversed" and order.confirmed
    assert verdict.recommendation is not None and verdict.recommendation.now == "change_nothing"
    assert order.at_largest == verdict.over_baseline.paired  # type: ignore[union-attr]


def test_a_reversed_proxy_is_found_out_where_another_finalist_is_better_at_full_size() -> None:
    levels = {"hot": (2.0, -2.0), "cold": (0.5, 2.0), "neutral": (1.0, 1.0), "warm": (0.0, 0.0)}

    def worth(ticket: TicketRow) -> float:
        near_one = "neutral" if tau(ticket) < 1.1 else "warm"
        name = "hot" if tau(ticket) > 3.9 else "cold" if tau(ticket) < 0.9 else near_one
        return levels[name][0 if ticket.kind in AT_PROXY else 1] + noise(ticket)

    enqueued = [{"temperature_init": each} for each in (4.0, 0.3)]
    study = Simulated(spec_of({"temperature": "same"}, study__enqueue=enqueued), worth).run()
    verdict, order = verdict_of(study)
    assert verdict.total.significant and verdict.params["temperature_init"] < 0.9
    assert order.order == "reversed" and not order.confirmed
    assert order.parameters is not None and order.parameters["temperature_init"] == 4.0
    assert order.at_largest is not None and order.at_largest.gain == pytest.approx(-3.0, abs=0.2)
    assert order.at_largest.n_pairs == 2


def test_an_order_that_holds_is_said_to() -> None:
    verdict, order = verdict_of(Simulated(spec_of(), TRANSFERS).run())
    assert verdict.total.significant and order.order == "held" and order.confirmed
    assert order.parameters == verdict.params
    assert order.finalists[-1].at_one and all(each.before is not None for each in order.finalists)


def test_noise_alone_decides_nothing() -> None:
    study = Simulated(spec_of(), lambda ticket: noise(ticket, 1.0)).run()
    assert verdict_of(study)[1].order == "not_decided"


def test_the_cost_is_that_of_both_sizes() -> None:
    study = Simulated(spec_of(), TRANSFERS).run()
    cost = verdict_of(study)[1].cost
    small = [t for t in study.rows if t.kind in AT_PROXY]
    large = [t for t in study.rows if t.kind not in AT_PROXY]
    assert (
        cost.steps == cost.shares == pytest.approx([len(each) / len(study.rows) for each in (small, large)])
    )
    # every run takes 2 s here, and a search at full size has nothing to transfer
    assert cost.searched_at_full == pytest.approx(2.0 * (len(small) + len(large) - len(study.of("transfer"))))


@pytest.mark.long
def test_a_study_that_tunes_other_parameters_goes_through_all_its_stages() -> None:
    def worth(ticket: TicketRow) -> float:
        lr = float((ticket.parameters or {}).get("lr", 0.5))
        return tau(ticket) - abs(lr - 0.5) + noise(ticket)

    spec = spec_of(search=SPACE, study__trials=12, study__ablation="full")
    study = Simulated(spec, worth).run()
    kinds = study.kinds()
    place = kinds.index("transfer")
    assert kinds[:place].count("rematch") == 1 and kinds[place + 1 :].count("choose") >= 1
    assert kinds.index("confirm") > place and "ablation" in kinds
    # what is ordered on the proxy is trained with the proxy's parameters, and never twice on a seed
    runs = [(training_key(t.parameters or {}), t.pair) for t in study.of("choose")]
    own = [t for t in study.of("choose") if "simpler" in t.arm]
    assert own and len({*runs}) >= len(runs) - len(study.of("choose", "exchange"))
    winner = on_proxy(study.rows, spec, study.of("confirm", "search")[0].parameters or {})
    assert not any(training_key(t.parameters or {}) == training_key(winner) for t in own)


def test_more_trials_have_a_transfer_of_their_own() -> None:
    study = Simulated(spec_of(), TRANSFERS).run().more(4)
    rounds = [{t.seed for t in study.of("transfer", of_round=each)} for each in (0, 1)]
    assert all(rounds) and rounds[0].isdisjoint(rounds[1])


def test_what_is_to_come_is_told_by_size_and_is_an_upper_bound() -> None:
    study = Simulated(spec_of(), TRANSFERS)
    study.search()
    told = []
    while True:
        told.append((len(study.rows), upcoming(study.rows, study.spec)))
        if not study.step():
            break
    for count, more in told:
        later = study.rows[count:]
        small = sum(t.kind in AT_PROXY for t in later)
        if any(t.kind == "confirm" for t in study.rows[:count]):
            continue
        proving = sum(t.kind not in (*AT_PROXY, "ablation", "timing") for t in later)
        assert more.sizes[1] >= proving and more.all == to_come(study.rows[:count], study.spec)
        # the ablation orders simpler plans, which is not counted
        assert more.sizes[0] >= small - sum("simpler" in t.arm for t in later)


def test_runs_at_full_size_are_priced_as_such() -> None:
    spec = spec_of().with_found({}, sizes={"steps": [10, 100], "parameters": [50, 100]})
    study = Simulated(spec, TRANSFERS)
    study.search()
    costs = costs_of(study.rows, spec)
    assert costs == MeanCosts(sizes=(2.0, 2.0 * 10 * 2), basis="ratio")
    more = upcoming(study.rows, spec)
    assert reserve(study.rows, spec) == pytest.approx(2.0 * more.sizes[0] + 40.0 * more.sizes[1])
    unknown = costs_of(study.rows, spec_of())
    assert unknown is not None and (unknown.full, unknown.basis) == (2.0, "proxy")
    study.until("transfer")
    measured = costs_of(study.rows, spec)
    assert measured is not None and (measured.full, measured.basis) == (2.0, "measured")
    assert mean_costs(spec, [Total(), Total()]) is None
    assert mean_costs(make(), [Total(2, 6.0)]) == MeanCosts(sizes=(3.0,), basis="measured")


def test_a_lost_run_of_the_transfer_is_asked_for_again_until_something_is_confirmed() -> None:
    study = Simulated(spec_of(), TRANSFERS)
    study.search()
    lost = row_failed(study.until("transfer")[0])
    rows = [lost if t.id == lost.id else t for t in study.rows]
    assert retried(rows, study.spec)[0] == [lost]
    done = study.run().rows
    assert retried([lost if t.id == lost.id else t for t in done], study.spec)[0] == []


def row_failed(ticket: TicketRow) -> TicketRow:
    return dataclasses.replace(ticket, state="failed", outcome="failed", value=None)


@pytest.mark.long
def test_a_forecast_counts_the_transfer_and_what_trains_the_proxy() -> None:
    spec = spec_of({"temperature": "head_dim"}, study__trials=6, study__candidates=2)
    found = Forecast(spec, studies=2)
    # two candidates and τ = 1, on two to four seeds; the race ends sooner or not
    assert found.by_kind["transfer"].most == 3 * 4
    assert 0 < found.runs_of_size(0).most < found.runs().most
    (plain,) = Forecast(make(study__trials=6), studies=2).runs_by_size()
    assert plain == Forecast(make(study__trials=6), studies=2).runs()
