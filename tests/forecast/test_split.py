"""A budget's split beside one that is looked for by hand, study by study and draw by draw."""

from __future__ import annotations

import functools
import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import nct
from scipy.stats import t as student

from tempopt.confirmation.costs import MeanCosts
from tempopt.confirmation.transfer import most_to_transfer
from tempopt.errors import SpecError
from tempopt.forecast import split as module
from tempopt.forecast.outcomes import CLEAR_GAIN, most
from tempopt.forecast.prices import costs_given, price, rounded_up
from tempopt.forecast.split import divided, least, split, splits
from tempopt.forecast.split_text import split_text
from tempopt.forecast.worth import AGREEMENT, STUDIES, worths
from tempopt.spec.model_sizes import size_of
from tempopt.spec.study_spec import StudySpec
from tempopt.statistics.alpha_ledger import level
from tests.specs import make

TAU: dict[str, Any] = {"temperature_init": {"low": 0.5, "high": 2.0}}
SCALED = {**TAU, "length_scaling": ["log_n"]}
TUNED = {**SCALED, "lr": {"low": 0.001, "high": 0.1}}
PROXY = {"set": {"trainer.max_steps": 10}, "steps": [10, 100]}
ONE = MeanCosts(sizes=(1.0,), basis="stated")


def costs_at(*sizes: float | None) -> MeanCosts:
    """Return what runs cost where a proxy of no cost is none."""
    return MeanCosts(sizes=tuple(each for each in sizes if each is not None), basis="stated")


def open_spec(search: dict[str, Any] = TAU, *, hours: float = 60.0, **study: Any) -> StudySpec:
    """Return a spec of which the budget decides what is not given."""
    data = make(data=None).to_json()
    data["search"] = search
    for name in ("trials", "candidates", "seeds", "init_only", "learned", "ablation"):
        del data["study"][name]
    limits = {"gpu_hours": hours, **study.pop("limits", {})}
    return StudySpec.parse({**data, "study": {**data["study"], "limits": limits, **study}}, source="the test")


def most_hours(spec: StudySpec, costs: MeanCosts) -> float:
    """Return the GPU-hours of a study that has as many runs as its own decisions can give it."""
    return max(sum(costs.sizes[size_of(row, spec)] for row in made.rows) for made in most(spec))


FEW: dict[str, tuple[int, ...]] = {
    "TRIALS": (2, 6, 12),
    "CANDIDATES": (1, 3),
    "CHOOSING": (2,),
    "FINALISTS": (1, 3),
    "PAIRS": (2, 4, 8),
}
"""What is looked at where all of it is looked at by hand."""


def by_hand(proxy: float | None, hours: float) -> float:
    """Return the highest worth of a budget, by plain loops over few studies."""
    return max(worth for worth, cost in all_by_hand(proxy) if cost <= hours)


@functools.cache
def all_by_hand(proxy: float | None) -> list[tuple[float, float]]:
    """Return worth and GPU-hours of each study, with a proxy that costs as much, or with none."""
    found = []
    data = open_spec(proxy=None if proxy is None else PROXY).to_json()
    costs = costs_at(proxy, 1.0)
    finals = (1,) if proxy is None else FEW["FINALISTS"]
    some = (FEW["TRIALS"], FEW["CANDIDATES"], FEW["CHOOSING"], finals, FEW["PAIRS"])
    for asks, (trials, candidates, seeds, finalists, pairs) in itertools.product(
        (True, False), itertools.product(*some)
    ):
        if proxy is not None:
            data["study"]["proxy"] = {**data["study"]["proxy"], "finalists": finalists}
        data["study"] |= {
            "trials": trials,
            "candidates": candidates,
            "seeds": {"choose": seeds, "confirm": pairs},
            "init_only": asks,
            "learned": asks,
            "ablation": "auto" if asks else "none",
        }
        limit = student.isf(level(1) / 2, pairs - 1)
        if nct.sf(limit, pairs - 1, CLEAR_GAIN * math.sqrt(pairs)) < 0.5:
            continue
        gains = drawn_winners(trials, candidates, seeds, finalists, 1.0 if proxy is None else AGREEMENT)
        powers = nct.sf(limit, pairs - 1, np.maximum(gains, 0.0) * math.sqrt(pairs))
        worth = float(np.mean(np.maximum(gains, 0.0) * powers)) * (1.1 if asks else 1.0)
        found.append((worth, most_hours(StudySpec.from_json(data), costs)))
    return found


@functools.cache
def drawn_winners(
    trials: int, candidates: int, seeds: int, finalists: int = 1, agreement: float = 1.0
) -> np.ndarray:
    """Return what winners gain in searches that are drawn anew, one by one; 0 where τ = 1 has won."""
    draw = np.random.default_rng(7)
    usual = draw.standard_normal((4000, 40)).max(axis=1).mean()
    found = []
    for _ in range(4000):
        spread = CLEAR_GAIN * draw.random() / usual
        true = draw.standard_normal(trials) * spread
        other = draw.standard_normal(trials) * spread if agreement < 1 else 0.0
        full = agreement * true + math.sqrt(1 - agreement**2) * other
        seen = true + draw.standard_normal(trials) * math.sqrt(0.5)
        best = np.argsort(-seen)[:candidates]
        again = [np.mean(true[each] + draw.standard_normal(seeds) * math.sqrt(0.5)) for each in best]
        finals = [full[best[place]] for place in np.argsort(again)[::-1][:finalists]]
        if len(finals) > 1:
            finals.append(0.0)
            shown = [np.mean(each + draw.standard_normal(max(2, seeds)) * math.sqrt(0.5)) for each in finals]
            finals = [finals[int(np.argmax(shown))]]
        found.append(finals[0])
    return np.array(found)


@pytest.mark.parametrize(
    ("proxy", "hours"), [(None, 24.0), (None, 40.0), (None, 60.0), (0.1, 14.0), (0.1, 24.0), (0.1, 48.0)]
)
def test_the_split_is_the_best_of_all_that_the_budget_holds(
    monkeypatch: pytest.MonkeyPatch, proxy: float | None, hours: float
) -> None:
    for name, values in FEW.items():
        monkeypatch.setattr(module, name, values)
    module._all_studies.cache_clear()
    costs = costs_at(proxy, 1.0)
    found = split(open_spec(proxy=None if proxy is None else PROXY), costs, hours)
    module._all_studies.cache_clear()
    assert found is not None and found.gpu_hours <= hours
    # draws differ, and of what costs alike either may be the better one by chance
    assert found.worth == pytest.approx(by_hand(proxy, hours), rel=0.08, abs=0.05)


@pytest.mark.parametrize("search", [TAU, SCALED, TUNED])
@pytest.mark.parametrize("proxy", [None, PROXY])
@pytest.mark.parametrize("hours", [70.0, 150.0])
def test_a_study_that_is_split_never_has_more_runs_than_its_budget_holds(
    search: dict[str, Any], proxy: Any, hours: float
) -> None:
    costs = costs_at(0.2 if proxy else None, 1.0)
    limits = {"run_gpu_hours": 1.0, "proxy_gpu_hours": 0.2 if proxy else None}
    spec = divided(open_spec(search, hours=hours, proxy=proxy, limits=limits))
    found = split(spec, costs, hours)
    assert found is not None
    assert most_hours(spec, costs) <= found.gpu_hours + 1e-9 <= hours + 2e-9
    # nor is much of it left, since a trial more would fit
    assert found.gpu_hours > 0.9 * hours


def test_gains_and_their_chances_are_those_of_searches_drawn_anew() -> None:
    found = worths((3, 20), (1, 4), (2, 8), (5, 9), alpha=0.04, comparisons=1)
    for (one, trials), (two, candidates), (three, seeds) in itertools.product(
        enumerate((3, 20)), enumerate((1, 4)), enumerate((2, 8))
    ):
        gains = drawn_winners(trials, candidates, seeds)
        noise = gains.std() * (1 / math.sqrt(STUDIES) + 1 / math.sqrt(len(gains)))
        drawn = float(np.maximum(gains, 0.0).mean())
        assert found.gain_TKSF[one, two, three, 0] == pytest.approx(drawn, abs=3 * noise)
        for four, pairs in enumerate((5, 9)):
            limit = student.isf(0.02, pairs - 1)
            powers = nct.sf(limit, pairs - 1, np.maximum(gains, 0.0) * math.sqrt(pairs))
            assert found.shown_TKSFP[one, two, three, 0, four] == pytest.approx(powers.mean(), abs=0.06)
    two_of_them = worths((20,), (4,), (8,), (9,), alpha=0.04, comparisons=2)
    assert 0 < two_of_them.shown_TKSFP[0, 0, 0, 0, 0] < found.shown_TKSFP[1, 1, 1, 0, 1]


@pytest.mark.parametrize("agreement", [-0.9, 0.0, 0.7, 1.0])
def test_of_a_proxy_gains_are_those_of_searches_whose_finalists_race_at_full_size(agreement: float) -> None:
    found = worths(
        (20,), (1, 3), (2,), (5,), finalists=(1, 2, 3), agreement=agreement, alpha=0.04, comparisons=1
    )
    for (one, candidates), (two, finalists) in itertools.product(enumerate((1, 3)), enumerate((1, 2, 3))):
        gains = np.maximum(drawn_winners(20, candidates, 2, finalists, agreement), 0.0)
        noise = gains.std() * (1 / math.sqrt(STUDIES) + 1 / math.sqrt(len(gains)))
        assert found.gain_TKSF[0, one, 0, two] == pytest.approx(gains.mean(), abs=3 * noise + 0.02)
    # a single candidate does not race, and a race is worth the more, the less the order can be relied upon
    assert np.ptp(found.gain_TKSF[0, 0, 0]) == 0
    if agreement < 0.5:
        assert found.gain_TKSF[0, 1, 0, 2] > 1.3 * found.gain_TKSF[0, 1, 0, 0]


def test_with_a_size_in_between_gains_are_those_of_finalists_that_are_dropped_there() -> None:
    found = worths(
        (20,), (1, 3), (2,), (5,), finalists=(1, 3), agreement=0.5, between=1, alpha=0.04, comparisons=1
    )
    for (one, candidates), (two, finalists) in itertools.product(enumerate((1, 3)), enumerate((1, 3))):
        gains = np.maximum(through_the_middle(20, candidates, 2, finalists, 0.5), 0.0)
        noise = gains.std() * (1 / math.sqrt(STUDIES) + 1 / math.sqrt(len(gains)))
        assert found.gain_TKSF[0, one, 0, two] == pytest.approx(gains.mean(), abs=3 * noise + 0.02)


def through_the_middle(
    trials: int, candidates: int, seeds: int, finalists: int, agreement: float
) -> np.ndarray:
    """Return what winners gain in searches that are drawn anew, whose finalists go through one more size."""
    draw = np.random.default_rng(11)
    usual = draw.standard_normal((4000, 40)).max(axis=1).mean()
    step = math.sqrt(agreement)
    found = []
    for _ in range(3000):
        spread = CLEAR_GAIN * draw.random() / usual
        sizes = [draw.standard_normal(trials) * spread]
        for _ in range(2):
            sizes.append(step * sizes[-1] + math.sqrt(1 - step**2) * draw.standard_normal(trials) * spread)
        seen = sizes[0] + draw.standard_normal(trials) * math.sqrt(0.5)
        best = np.argsort(-seen)[:candidates]
        again = [np.mean(sizes[0][each] + draw.standard_normal(seeds) * math.sqrt(0.5)) for each in best]
        left = {int(best[place]) for place in np.argsort(again)[::-1][:finalists]} | {-1}

        def mean(size: int, each: int, sizes: list[Any] = sizes) -> float:
            gain = 0.0 if each < 0 else sizes[size][each]
            return float(np.mean(gain + draw.standard_normal(seeds) * math.sqrt(0.5)))

        middle = {each: mean(1, each) for each in left}
        top, limit = (
            max(middle.values()),
            student.isf(0.1, (len(left) - 1) * (seeds - 1)) * math.sqrt(1 / seeds),
        )
        left = {each for each in left if top - middle[each] <= limit}
        chosen = max(middle, key=lambda each: middle[each])
        if finalists > 1 and len(left) > 1:
            full = {each: mean(2, each) for each in left | {-1}}
            chosen = max(full, key=lambda each: full[each])
        found.append(0.0 if chosen < 0 else sizes[2][chosen])
    return np.array(found)


@pytest.mark.parametrize("hours", [70.0, 150.0])
def test_with_several_sizes_a_study_has_no_more_runs_than_its_budget_holds(hours: float) -> None:
    proxy = {"set": [{"trainer.max_steps": 10}, {"trainer.max_steps": 30}], "steps": [10, 30, 100]}
    costs = costs_at(0.1, 0.3, 1.0)
    limits = {"run_gpu_hours": 1.0, "proxy_gpu_hours": [0.1, 0.3]}
    spec = divided(open_spec(TUNED, hours=hours, proxy=proxy, limits=limits))
    found = split(spec, costs, hours)
    assert found is not None and costs_given(spec) == costs
    assert most_hours(spec, costs) <= found.gpu_hours + 1e-9 <= hours + 2e-9
    assert found.gpu_hours > 0.9 * hours
    # by steps where the prices of the proxies are not given
    assert costs_given(open_spec(proxy=proxy, limits={"run_gpu_hours": 1.0})) == costs
    assert divided(StudySpec.from_json(spec.to_json())).to_json() == spec.to_json()


def test_a_budget_decides_on_finalists_where_there_is_a_proxy_and_none_are_given() -> None:
    limits = {"run_gpu_hours": 6.0, "proxy_gpu_hours": 0.3}
    spec = open_spec(hours=60.0, limits=limits, proxy=PROXY)
    assert spec.study.limits.split is not None and "proxy.finalists" in spec.study.limits.split
    found = divided(spec).study
    assert found.proxy is not None
    assert (found.proxy.finalists, found.seeds.confirm.max) == (1, 3) and found.trials > 8
    large = divided(open_spec(hours=360.0, limits=limits, proxy=PROXY)).study.proxy
    assert large is not None and large.finalists > 1


@pytest.mark.parametrize("hours", [90.0, 150.0])
def test_a_budget_pays_for_the_shifts_that_are_tried(hours: float) -> None:
    limits = {"run_gpu_hours": 1.0, "proxy_gpu_hours": 0.1}
    costs, proxy = costs_at(0.1, 1.0), {**PROXY, "temperature": "measured"}
    spec = divided(open_spec(hours=hours, proxy=proxy, limits=limits))
    found = split(spec, costs, hours)
    assert found is not None and most_hours(spec, costs) <= found.gpu_hours + 1e-9 <= hours + 2e-9
    assert spec.study.proxy is not None
    seeds = max(2, spec.study.seeds.choose)
    copies = sum(most_to_transfer((), spec)) - seeds * (spec.study.proxy.finalists + 1)
    assert copies == 2 * seeds
    assert "the first with other shifts of ln τ, too" in (split_text(spec) or "")
    given = open_spec(hours=120.0, limits=limits, proxy={**PROXY, "finalists": 2})
    assert "proxy.finalists" not in (given.study.limits.split or [])
    kept = divided(given).study.proxy
    assert kept is not None and kept.finalists == 2
    assert "proxy.finalists" not in (open_spec().study.limits.split or [])
    set_later = spec.with_overrides(["study.proxy.finalists=2"])
    assert "proxy.finalists" not in (set_later.study.limits.split or [])
    # the small training is another spec, and has no finalists
    assert spec.at_size(0).study.limits.split == []


def test_a_proxy_whose_price_is_not_known_is_not_taken_to_cost_as_much_as_full_size() -> None:
    unknown = {"set": PROXY["set"]}
    spec = open_spec(hours=60.0, limits={"run_gpu_hours": 6.0}, proxy=unknown)
    assert costs_given(spec) is None and divided(spec) is spec
    seconds: Any = {("search", 0): 1080.0, ("choose", 0): 900.0, ("confirm", 1): 7200.0}
    # what is stated is not measured over
    assert price(spec, seconds, 1.0) == costs_at(0.3, 6.0)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    hours=st.floats(1.0, 2000.0),
    more=st.floats(1.0, 3.0),
    proxy=st.sampled_from([None, 0.1, 0.5]),
)
def test_more_hours_never_lower_the_worth(hours: float, more: float, proxy: float | None) -> None:
    spec = open_spec(proxy=None if proxy is None else PROXY)
    costs = costs_at(proxy, 1.0)
    low, high = split(spec, costs, hours), split(spec, costs, hours * more)
    if low is None:
        assert hours < least(spec, costs).gpu_hours
        return
    assert high is not None
    assert low.worth <= high.worth
    assert low.gpu_hours <= hours and high.gpu_hours <= hours * more


def test_what_is_given_stays_and_the_rest_is_split() -> None:
    limits = {"run_gpu_hours": 1.0}
    spec = open_spec(hours=100.0, limits=limits, trials=7, seeds={"confirm": {"min": 4, "max": 12}})
    assert spec.study.limits.split == ["candidates", "seeds.choose", "init_only", "learned", "ablation"]
    found = divided(spec)
    assert found.study.trials == 7
    assert (found.study.seeds.confirm.min, found.study.seeds.confirm.max) == (4, 12)
    assert found.study.candidates > 1
    # what has been split is split alike again, by whoever reads it
    again = divided(StudySpec.from_json(found.to_json()))
    assert again.to_json() == found.to_json()


def test_where_all_numbers_are_given_a_budget_decides_nothing() -> None:
    numbers: dict[str, Any] = {"trials": 7, "candidates": 2, "seeds": {"choose": 2, "confirm": 2}}
    spec = open_spec(hours=30.0, limits={"run_gpu_hours": 1.0}, **numbers)
    assert spec.study.limits.split == []
    assert divided(spec) is spec


def test_a_setting_of_a_number_is_not_split_over() -> None:
    spec = open_spec(limits={"run_gpu_hours": 0.5}).with_overrides(["study.trials=9", "study.seeds.choose=3"])
    assert spec.study.limits.split == ["candidates", "seeds.confirm", "init_only", "learned", "ablation"]
    found = divided(spec).study
    assert (found.trials, found.seeds.choose) == (9, 3)


def test_a_budget_that_proves_nothing_is_refused_with_what_is_needed() -> None:
    spec = open_spec(hours=10.0, limits={"run_gpu_hours": 1.0})
    needed = rounded_up(least(spec, ONE).gpu_hours)
    with pytest.raises(
        SpecError, match=rf"given 10, which is too little.* takes {needed:g} GPU-hours at most"
    ):
        divided(spec)
    with pytest.raises(SpecError, match="a run of which takes 0.166 GPU-hours at most"):
        divided(spec)
    with pytest.raises(SpecError, match="is not enough: the proof alone takes more"):
        divided(open_spec(hours=8.0, limits={"run_gpu_hours": 1.0}))
    enough = divided(open_spec(hours=needed, limits={"run_gpu_hours": 1.0}))
    assert most_hours(enough, ONE) <= needed
    with pytest.raises(SpecError, match="too little"):
        splits(spec, ONE)


def test_a_proxy_that_costs_what_a_refusal_says_is_enough_and_a_dearer_one_is_not() -> None:
    limits = {"run_gpu_hours": 6.0}
    with pytest.raises(SpecError, match="a run of which takes 1 GPU-hours at most"):
        divided(open_spec(hours=60.0, limits=limits))
    divided(open_spec(hours=60.0, limits={**limits, "proxy_gpu_hours": 1.0}, proxy=PROXY))
    with pytest.raises(SpecError, match="too little"):
        divided(open_spec(hours=60.0, limits={**limits, "proxy_gpu_hours": 1.01}, proxy=PROXY))


@pytest.mark.parametrize("proxy", [None, PROXY])
def test_a_limit_that_decides_nothing_and_holds_no_run_is_refused(proxy: Any) -> None:
    numbers: dict[str, Any] = {"trials": 7, "candidates": 2, "seeds": {"choose": 2, "confirm": 3}}
    numbers["proxy"] = None if proxy is None else {**proxy, "finalists": 2}
    limits = {"run_gpu_hours": 1.0, "proxy_gpu_hours": 0.25 if proxy else None}
    with pytest.raises(SpecError, match=r"given 5, which would end the search before its first run") as error:
        divided(open_spec(hours=5.0, limits=limits, **numbers))
    enough = re.search(r"Give ([\d.]+), or smaller numbers", str(error.value))
    assert enough is not None
    spec = open_spec(hours=float(enough[1]), limits=limits, **numbers)
    assert divided(spec) is spec
    costs = costs_at(0.25 if proxy else None, 1.0)
    # what takes the winner apart comes once a gain is shown, and keeps nothing from being searched
    confirmed = spec.model_copy(update={"study": spec.study.model_copy(update={"ablation": "none"})})
    assert most_hours(confirmed, costs) == pytest.approx(float(enough[1]))
    # a limit that ends no search ends nothing before it begins
    assert divided(open_spec(hours=5.0, **numbers)).study.trials == 7


def test_half_of_a_budget_may_prove_nothing_and_twice_shows_more() -> None:
    spec = open_spec(hours=28.0)
    found = splits(spec, ONE)
    assert found.half is None and found.least > 14.0
    assert found.twice.worth > found.chosen.worth and found.twice.shown > found.chosen.shown


def test_a_run_costs_what_its_dearest_kind_takes_on_its_cards() -> None:
    spec = open_spec(proxy=PROXY)
    seconds: Any = {
        ("search", 0): 360.0,
        ("choose", 0): 720.0,
        ("confirm", 1): 7200.0,
        ("init_only", 1): 3600.0,
    }
    assert price(spec, seconds, 0.5) == costs_at(0.1, 1.0)
    # without cards its hours of training count
    plain: Any = {(kind, 0): cost for (kind, _), cost in seconds.items()}
    assert price(open_spec(), plain, 0.0) == costs_at(2.0)


@pytest.mark.parametrize(("hours", "rounded"), [(108.0, 108.0), (108.04, 109.0), (0.12341, 0.124)])
def test_hours_are_rounded_up_to_what_is_enough(hours: float, rounded: float) -> None:
    assert rounded_up(hours) == rounded
