"""How a budget of GPU-hours is best split between search, choosing candidates and proof.

Of all studies that the budget holds even if each has as many runs as it can have, the one with the highest
worth (``worth.py``). Pure: a spec and prices in, numbers out. Which numbers are open is
``tempopt.spec.budget``'s.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from tempopt.confirmation.costs import MeanCosts
from tempopt.confirmation.stages import Upcoming, at_sizes, to_prove, upcoming
from tempopt.confirmation.timing import REPETITIONS
from tempopt.confirmation.transfer import most_to_transfer
from tempopt.errors import SpecError
from tempopt.forecast.outcomes import CLEAR_GAIN, Space, as_row, by_students_test
from tempopt.forecast.power import detectable
from tempopt.forecast.prices import ROUNDING, costs_given, prices_text, rounded_down, rounded_up
from tempopt.forecast.worth import AGREEMENT, Array, Worths, worths
from tempopt.records.rows import Kind, NewTicket, TicketRow
from tempopt.spec.budget import NUMBERS, QUESTIONS, value_of, with_numbers
from tempopt.spec.guards import STEP_TIME
from tempopt.spec.model_sizes import full_size
from tempopt.spec.sections import Pairs
from tempopt.spec.study_spec import StudySpec
from tempopt.statistics.alpha_ledger import level
from tempopt.statistics.paired_tests import least_pairs
from tempopt.statistics.power import power_of

TRIALS = tuple(number for step in (1, 2, 4, 8, 16) for number in range(16 * step, 32 * step, step))
TRIALS = (*range(2, 16), *TRIALS)
CANDIDATES = (1, 2, 3, 4, 5)
CHOOSING = (2, 3, 4, 5, 6, 8)
FINALISTS = (1, 2, 3, 4, 5)
PAIRS = (*range(2, 21), *range(22, 41, 2), *range(44, 65, 4))
"""What is looked at of each number that is open."""

CHANCE = 0.5
"""With what chance a study has to show a clear gain at least, so that a budget is spent on it."""

ANSWERS = 1.1
"""Worth of a study that asks what no verdict needs (``QUESTIONS``), to one that does not."""

_TWO = 2
_OWN_NUMBERS = (
    "study.candidates and study.seeds",
    "study.candidates, study.seeds and study.proxy.finalists",
)
_NOTHING_ELSE: dict[str, Any] = {"init_only": False, "learned": False, "ablation": "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What a budget is split into.

    Args:
        numbers: Value of each name of ``NUMBERS`` and ``QUESTIONS``, open or given.
        search: GPU-hours at most of the runs that search.
        choose: GPU-hours at most of those that choose, and of those that compare finalists at full size.
        proof: GPU-hours at most of those that prove the gain and say where it comes from.
        effect: Smallest gain shown with 80 % power, in standard deviations of a pair's difference.
        gain: Gain that the winner is expected to have in a study that has one to find, in the same unit.
        shown: Chance to show it.
        worth: What was maximised.
    """

    numbers: Mapping[str, Any]
    search: float
    choose: float
    proof: float
    effect: float
    gain: float
    shown: float
    worth: float

    @property
    def gpu_hours(self) -> float:
        """GPU-hours at most."""
        return self.search + self.choose + self.proof

    @property
    def asks(self) -> list[str]:
        """The questions that are asked besides the verdict."""
        return [name for name in QUESTIONS if self.numbers[name] not in (False, "none")]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data, under the keys of ``tempopt plan --json``."""
        pairs = self.numbers["seeds.confirm"]
        return {
            "trials": self.numbers["trials"],
            "candidates": self.numbers["candidates"],
            "choosing_seeds": self.numbers["seeds.choose"],
            "finalists": self.numbers["proxy.finalists"],
            "pairs": pairs.max,
            "questions": self.asks,
            "gpu_hours": {"search": self.search, "choose": self.choose, "proof": self.proof},
            "effect": self.effect,
            "expected_gain": self.gain,
            "shown": self.shown,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """What a budget is split into, and what another one would be.

    Args:
        gpu_hours: The budget.
        costs: GPU-hours of a run.
        chosen: Its split.
        half: That of half of it; None: too little to prove a gain.
        twice: That of twice as much.
        least: GPU-hours that prove a clear gain, at least.
    """

    gpu_hours: float
    costs: MeanCosts
    chosen: Split
    half: Split | None
    twice: Split
    least: float

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data, under the keys of ``tempopt plan --json``."""
        return {
            "gpu_hours": self.gpu_hours,
            "run_gpu_hours": self.costs.full,
            "proxy_gpu_hours": list(self.costs.proxies),
            "chosen": self.chosen.to_json(),
            "half": None if self.half is None else self.half.to_json(),
            "twice": self.twice.to_json(),
            "needed": self.least,
        }


def is_open(spec: StudySpec) -> bool:
    """Return whether a budget is to decide anything of a study."""
    limits = spec.study.limits
    return limits.gpu_hours is not None and bool(limits.split) and spec.about_temperature


def divided(spec: StudySpec) -> StudySpec:
    """Return a spec with the numbers that its budget decides; as it is where none does, or no price is known.

    Raises:
        SpecError: The budget is too small to prove anything; or, where it decides nothing, for a single run.
    """
    costs, budget = costs_given(spec), spec.study.limits.gpu_hours
    if costs is None or budget is None or not spec.about_temperature:
        return spec
    if not is_open(spec):
        _require_a_trial(spec, costs, budget)
        return spec
    found = split(spec, costs, budget)
    if found is None:
        raise SpecError(_too_small(spec, costs, budget))
    left: dict[str, Any] = {name: found.numbers[name] for name in spec.study.limits.split or ()}
    return with_numbers(spec, left, run=costs.full, proxy=costs.proxies)


def split(spec: StudySpec, costs: MeanCosts, gpu_hours: float) -> Split | None:
    """Return the split of a budget with the highest worth; None: it holds no study that can prove a gain.

    Of two splits with the same worth the cheaper one is returned. More hours never lower the worth.

    Args:
        spec: The study's spec, with ``limits.split``.
        costs: GPU-hours of a run.
        gpu_hours: The budget, > 0.
    """
    best: tuple[float, float, _Studies, tuple[int, ...]] | None = None
    for studies in _all_studies(_text(spec)):
        hours_TKSFP = studies.hours(costs)
        worth_TKSFP = np.where(hours_TKSFP <= gpu_hours, studies.worth_TKSFP, -np.inf)
        top = float(worth_TKSFP.max())
        if top == -math.inf:
            continue
        cheapest = np.where(worth_TKSFP == top, hours_TKSFP, np.inf)
        where = np.unravel_index(int(cheapest.argmin()), cheapest.shape)
        found = (top, -float(cheapest[where]), studies, tuple(map(int, where)))
        if best is None or found[:2] > best[:2]:
            best = found
    return None if best is None else best[2].at(best[3], costs)


def least(spec: StudySpec, costs: MeanCosts) -> Split:
    """Return the cheapest split that can prove a gain; arguments as for :func:`split`."""
    cheapest = []
    for studies in _all_studies(_text(spec)):
        hours = studies.hours(costs)
        where = tuple(map(int, np.unravel_index(int(hours.argmin()), hours.shape)))
        cheapest.append(studies.at(where, costs))
    return min(cheapest, key=lambda each: each.gpu_hours)


def splits(spec: StudySpec, costs: MeanCosts) -> Splits:
    """Return how the budget of a spec is split, and how half and twice of it would be.

    Raises:
        SpecError: It is too small to prove anything.
    """
    budget = spec.study.limits.gpu_hours
    assert budget is not None, "there is no budget to split"
    half, chosen, twice = (split(spec, costs, budget * factor) for factor in (0.5, 1.0, 2.0))
    if chosen is None or twice is None:
        raise SpecError(_too_small(spec, costs, budget))
    needed = rounded_up(least(spec, costs).gpu_hours)
    return Splits(gpu_hours=budget, costs=costs, chosen=chosen, half=half, twice=twice, least=needed)


def _too_small(spec: StudySpec, costs: MeanCosts, budget: float) -> str:
    needed = rounded_up(least(spec, costs).gpu_hours)
    other = ""
    if spec.study.proxy is None:
        each = max(each.most_of_a_proxy(costs.full, budget) for each in _all_studies(_text(spec)))
        other = " A smaller model to search on (study.proxy) is not enough: the proof alone takes more."
        if each > 0:
            other = (
                f" Or search on a smaller model (study.proxy), a run of which takes {rounded_down(each):g} "
                "GPU-hours at most; the less it takes, the more is searched."
            )
    return (
        f"study.limits.gpu_hours: given {budget:g}, which is too little to prove a gain. With "
        f"{prices_text(spec, costs)}, the smallest study that shows a clear gain ({CLEAR_GAIN:g} standard "
        f"deviations of a pair's difference) more likely than not takes {needed:g} GPU-hours at most. Give "
        f"that many, or make a run cheaper.{other} To search with numbers of your own, give study.trials, "
        f"{_OWN_NUMBERS[spec.study.proxy is not None]}."
    )


def _require_a_trial(spec: StudySpec, costs: MeanCosts, budget: float) -> None:
    """Raise if a limit that decides nothing ends the search before its first run (agent/stopping.py)."""
    rows = _waiting(spec.num_baseline, spec.num_constant, spec.study.trials)
    left = to_prove(rows, spec)
    proof = costs.of(left.sizes)
    if costs.smallest + proof <= budget * (1 + ROUNDING):
        return
    search = costs.smallest * len(rows)
    raise SpecError(
        f"study.limits.gpu_hours: given {budget:g}, which would end the search before its first run. With "
        f"{prices_text(spec, costs)} and the numbers of the spec, choosing and confirming take "
        f"{rounded_up(proof):g} GPU-hours at most, and all of the search {rounded_up(search):g}. Give "
        f"{rounded_up(proof + search):g}, or smaller numbers; or leave out study.trials, "
        f"{_OWN_NUMBERS[spec.study.proxy is not None]}, which the budget then decides."
    )


def after_gain(spec: StudySpec) -> Upcoming:
    """Return how many runs at most take the winner apart, and time its steps, once a gain is shown."""
    by_seed, by_pair, fixed = _after_gain(_text(spec))
    ordered, proved = by_seed * spec.study.seeds.choose, by_pair * spec.study.seeds.confirm.max + fixed
    return at_sizes(spec, smallest=ordered, full=proved)


@functools.lru_cache(maxsize=16)
def _after_gain(text: str) -> tuple[int, int, int]:
    """Return the runs of a spec, as JSON: for each choosing seed, for each pair, and in any case."""
    spec = StudySpec.from_json(json.loads(text))
    test, guards = spec.study.test, spec.study.guards
    timing = max(REPETITIONS, least_pairs(test, level(1))) if STEP_TIME in guards else 0
    parts = 0 if spec.study.ablation == "none" else Space(by_students_test(spec)).most_parts
    # one part is all of the winner, which is confirmed without it anyway
    if parts < _TWO:
        return 0, 0, timing
    # of two parts, to keep one is to leave out the other; else a simpler plan may be trained besides
    plans, apart = (_TWO, _TWO) if parts == _TWO else (2 * parts, parts + 1)
    # the winner and the baseline may not have been trained on the choosing seeds
    return plans + 2, apart, timing


# ---- all studies that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class _Studies:
    """All studies with the same questions, by number of trials, candidates, seeds, finalists and pairs."""

    spec: StudySpec
    trials: Sequence[int]
    candidates: Sequence[int]
    seeds: Sequence[int]
    finalists: Sequence[int | None]
    pairs: Sequence[Pairs]
    searching_T: Array
    choosing_TKS: Array
    """Runs that choose, those that order simpler plans among them."""
    transfer_KSFZ: Array
    """Runs that compare finalists, by size."""
    proving_P: Array
    gain_TKSF: Array
    shown_TKSFP: Array
    worth_TKSFP: Array

    def hours(self, costs: MeanCosts) -> Array:
        """Return the GPU-hours at most."""
        before_TKSF = costs.smallest * self.searching_T[:, None, None, None] + self._choosing(costs)
        hours: Array = before_TKSF[..., None] + costs.full * self.proving_P
        return hours

    def _choosing(self, costs: MeanCosts) -> Array:
        transfer_KSF = self.transfer_KSFZ @ np.array(costs.sizes)
        found: Array = costs.smallest * self.choosing_TKS[..., None] + transfer_KSF
        return found

    def most_of_a_proxy(self, full: float, gpu_hours: float) -> float:
        """Return what a run of a proxy may cost at most, so that the smallest of them is affordable."""
        small = float((self.searching_T[:, None, None] + self.choosing_TKS).min())
        return (gpu_hours - full * float(self.proving_P.min())) / small

    def at(self, where: tuple[int, ...], costs: MeanCosts) -> Split:
        """Return one of them."""
        of_trials, of_candidates, of_seeds, of_finalists, of_pairs = where
        numbers: dict[str, Any] = {
            "trials": self.trials[of_trials],
            "candidates": self.candidates[of_candidates],
            "seeds.choose": self.seeds[of_seeds],
            "proxy.finalists": self.finalists[of_finalists],
            "seeds.confirm": self.pairs[of_pairs],
            **{name: value_of(self.spec, name) for name in QUESTIONS},
        }
        able = detectable(_with(self.spec, numbers))
        assert able is not None, "a study that proves nothing has no split"
        return Split(
            numbers=numbers,
            search=float(costs.smallest * self.searching_T[of_trials]),
            choose=float(self._choosing(costs)[where[:4]]),
            proof=float(costs.full * self.proving_P[of_pairs]),
            effect=able.effect,
            gain=float(self.gain_TKSF[where[:4]]),
            shown=float(self.shown_TKSFP[where]),
            worth=float(self.worth_TKSFP[where]),
        )


def _text(spec: StudySpec) -> str:
    return json.dumps(spec.to_json(), sort_keys=True)


def _with(spec: StudySpec, numbers: Mapping[str, Any]) -> StudySpec:
    return with_numbers(spec, numbers, run=None, proxy=None)


@functools.lru_cache(maxsize=8)
def _all_studies(text: str) -> tuple[_Studies, ...]:
    spec = StudySpec.from_json(json.loads(text))
    left = spec.study.limits.split or ()
    without: dict[str, Any] = {name: _NOTHING_ELSE[name] for name in QUESTIONS if name in left}
    asking = _studies(spec, left, ANSWERS)
    return (asking, _studies(_with(spec, without), left, 1.0)) if without else (asking,)


@functools.lru_cache(maxsize=16)
def _worths(
    trials: tuple[int, ...],
    candidates: tuple[int, ...],
    seeds: tuple[int, ...],
    finalists: tuple[int | None, ...],
    pairs: tuple[int, ...],
    proxies: int,
    alpha: float,
    comparisons: int,
) -> Worths:
    return worths(
        trials,
        candidates,
        seeds,
        pairs,
        finalists=[each or 1 for each in finalists],
        agreement=AGREEMENT if proxies else 1.0,
        between=max(0, proxies - 1),
        alpha=alpha,
        comparisons=comparisons,
    )


def _studies(spec: StudySpec, left: Sequence[str], factor: float) -> _Studies:
    all_looked_at: dict[str, tuple[Any, ...]] = {
        "trials": TRIALS,
        "candidates": CANDIDATES,
        "seeds.choose": CHOOSING,
        "proxy.finalists": FINALISTS,
        "seeds.confirm": _pairs(spec),
    }
    trials, candidates, seeds, finalists, pairs = (
        all_looked_at[name] if name in left else (value_of(spec, name),) for name in NUMBERS
    )
    able = detectable(spec)
    assert able is not None, "a study that proves nothing has no split"
    most_pairs = tuple(each.max for each in pairs)
    numbers = (trials, candidates, seeds, finalists, most_pairs)
    found = _worths(*numbers, full_size(spec), able.alpha, able.comparisons)
    searching_T, choosing_TKS, proving_P = _runs(spec, trials, candidates, seeds, pairs)
    return _Studies(
        spec=spec,
        trials=trials,
        candidates=candidates,
        seeds=seeds,
        finalists=finalists,
        pairs=pairs,
        searching_T=searching_T,
        choosing_TKS=choosing_TKS,
        transfer_KSFZ=_transfer(spec, candidates, seeds, finalists),
        proving_P=proving_P,
        gain_TKSF=found.gain_TKSF,
        shown_TKSFP=found.shown_TKSFP,
        worth_TKSFP=factor * found.worth_TKSFP,
    )


def _pairs(spec: StudySpec) -> tuple[Pairs, ...]:
    """Return the numbers of pairs that show a clear gain more likely than not, by the study's test."""
    able = detectable(spec)
    assert able is not None, "a study that proves nothing has no split"
    each = 1 - (1 - CHANCE) / able.comparisons
    fewest = least_pairs(spec.study.test, able.alpha)
    return tuple(
        Pairs(min=number, max=number)
        for number in PAIRS
        if number >= fewest and power_of(CLEAR_GAIN, number, alpha=able.alpha) >= each
    )


@functools.lru_cache(maxsize=256)
def _waiting(baseline: int, constant: int, search: int) -> tuple[TicketRow, ...]:
    """Return tickets that wait, as many as a study begins with; nothing else decides how many follow."""
    counts: dict[Kind, int] = {"baseline": baseline, "constant": constant, "search": search}
    new = [
        NewTicket(kind=kind, arm=kind, number=number, seed=0)
        for kind, count in counts.items()
        for number in range(count)
    ]
    return tuple(as_row(each, id, state="waiting", attempt=0) for id, each in enumerate(new))


def _runs(
    spec: StudySpec,
    trials: Sequence[int],
    candidates: Sequence[int],
    seeds: Sequence[int],
    pairs: Sequence[Pairs],
) -> tuple[Array, Array, Array]:
    """Return the runs at most that search, that choose, and that prove, as :class:`_Studies` has them.

    They are what the study's own decisions would give it, without those that compare finalists. Each pair
    more is one run more of each arm.
    """
    by_seed, by_pair, timing = _after_gain(_text(spec))
    fewest = pairs[0]
    one_more = _with(spec, {"seeds.confirm": Pairs(min=fewest.max + 1, max=fewest.max + 1)})
    spec = _with(spec, {"seeds.confirm": fewest})
    rows = _waiting(spec.num_baseline, spec.num_constant, trials[0])
    arms = upcoming(rows, one_more).all - upcoming(rows, spec).all
    ends = (seeds[0], seeds[-1])
    searching_T = np.zeros(len(trials))
    choosing_TKE = np.zeros((len(trials), len(candidates), len(ends)))
    for at_trials, number in enumerate(trials):
        begun = _with(spec, {"trials": number})
        rows = _waiting(begun.num_baseline, begun.num_constant, number)
        searching_T[at_trials] = len(rows)
        for at_candidates, most in enumerate(candidates):
            for at_end, fresh in enumerate(ends):
                own = _with(begun, {"candidates": most, "seeds.choose": fresh})
                more = upcoming(rows, own).all - sum(most_to_transfer(rows, own))
                more += by_seed * fresh - arms * fewest.max
                choosing_TKE[at_trials, at_candidates, at_end] = more
    # each choosing seed more is a run more of each candidate
    share_S = np.array([(each - ends[0]) / max(1, ends[1] - ends[0]) for each in seeds])
    first_TK1, last_TK1 = choosing_TKE[:, :, :1], choosing_TKE[:, :, 1:]
    choosing_TKS = first_TK1 + share_S * (last_TK1 - first_TK1)
    proving_P = np.array([(arms + by_pair) * each.max + timing for each in pairs], dtype=float)
    return searching_T, choosing_TKS, proving_P


def _transfer(
    spec: StudySpec, candidates: Sequence[int], seeds: Sequence[int], finalists: Sequence[int | None]
) -> Array:
    """Return the runs at most that compare finalists, by candidates, choosing seeds, finalists and size."""
    names = ("candidates", "seeds.choose", "proxy.finalists")
    each = product(candidates, seeds, finalists)
    runs = [most_to_transfer((), _with(spec, dict(zip(names, numbers, strict=True)))) for numbers in each]
    return np.array(runs, dtype=float).reshape(len(candidates), len(seeds), len(finalists), -1)
