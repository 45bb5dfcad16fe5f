"""The values of one parameter, compared: which runs that takes, and which of the values is recommended.

Pure. A study with ``study.compare`` searches once for each value, chooses a configuration of each, and trains
these on the same fresh seeds. Each value is then compared with each other one, pair by pair. The comparisons
share the level of the verdict evenly (Bonferroni), so that all of their intervals hold together, whichever of
them a decision looks at (all pairwise comparisons: Hsu 1996, "Multiple Comparisons: Theory and Methods",
chapter 5; comparisons with the unknown best are among them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tempopt.confirmation.comparisons import Answer, Evidence, gains_by_pair
from tempopt.confirmation.selection import (
    Recommend,
    candidates,
    choose_tickets,
    chosen,
    most_to_choose,
    recommend_none,
)
from tempopt.records.rows import NewTicket, Parameters, TicketRow
from tempopt.records.tickets import (
    added_pairs,
    current_round,
    finished,
    fresh_seed,
    next_number,
    of_kind,
    pairs_of,
    parameters_of,
    rounds_behind,
    usable,
)
from tempopt.spec.amendments import fitting
from tempopt.spec.compared_values import ComparedValue
from tempopt.spec.domains import same_value
from tempopt.spec.sections import FEWEST, KNOWLEDGE_GRADIENT
from tempopt.statistics.alpha_ledger import level

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedValue:
    """One value with the configuration that was chosen for it.

    Args:
        name: What it is called, as in ``num_heads=4``.
        value: The value.
        params: Its whole parameter set, effective values.
        mean: Mean of the metric over its complete runs on fresh seeds; None: none is complete.
        runs: Fresh seeds that it was trained on.
        failed: Of these, those on which its run diverged, or failed on every attempt.
    """

    name: str
    value: Any
    params: Parameters
    mean: float | None
    runs: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuePair:
    """Two values against each other.

    Args:
        name: The one.
        reference: The other.
        answer: The first against the second, the gain being that of the first; None: no pair is left.
    """

    name: str
    reference: str
    answer: Answer | None

    def turned(self) -> ValuePair:
        """Return the same comparison from the other side."""
        answer = self.answer
        if answer is not None:
            test = answer.paired
            test = replace(test, gain=-test.gain, ci_low=-test.ci_high, ci_high=-test.ci_low)
            answer = replace(
                answer,
                paired=test,
                diverged=answer.reference_diverged,
                reference_diverged=answer.diverged,
            )
        return ValuePair(name=self.reference, reference=self.name, answer=answer)

    def better_by(self, least: float) -> bool:
        """Return whether the first value is shown to be better by more than ``least``, in the metric's unit.

        It is where the simultaneous interval lies above, and the value does not diverge on more seeds.
        """
        answer = self.answer
        return answer is not None and answer.significant and (not least or answer.paired.ci_low > least)

    @property
    def decided(self) -> bool:
        """Whether one of the two is shown to be better."""
        return self.answer is not None and (self.answer.significant or self.answer.worse)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesCompared:
    """What a comparison of values found.

    Args:
        parameter: The searched parameter whose values these are.
        values: Those that were confirmed, in their order: numbers ascending, others as listed.
        unconfirmed: Names of those of which the search has no complete run.
        pairs: Each two values, the later one against the earlier.
        least: Gain that is worth having, ``study.min_gain`` in the metric's unit; 0: any that is shown.
        test: ``t``, ``sign_flip`` or ``wilcoxon``.
        confirmed_on: ``test`` or ``validate``.
        round: The round that it is of.
        looks: Which verdict of the study it is, from 1.
        alpha: Two-sided level that all pairs share.
        comparisons: How many share it: all pairs of the values that the study has, confirmed or not.
        still_shown: Names of two values each of which the first was shown to be better by more than is worth
            having, by a verdict on some of these pairs, and is not shown to be worse now. Verdicts share the
            level of the study, so what one has shown holds; the level of a later one is stricter.
    """

    parameter: str
    values: tuple[ConfirmedValue, ...]
    unconfirmed: tuple[str, ...]
    pairs: tuple[ValuePair, ...]
    least: float
    test: str
    confirmed_on: str
    round: int
    looks: int
    alpha: float
    comparisons: int
    still_shown: frozenset[tuple[str, str]] = frozenset()

    def against(self, name: str) -> list[ValuePair]:
        """Return each other value against this one."""
        own = [each for each in self.pairs if name in (each.name, each.reference)]
        return [each if each.reference == name else each.turned() for each in own]

    def is_beaten(self, name: str) -> bool:
        """Return whether another value is shown to be better than this one by more than ``least``."""
        earlier = any(worse == name for _, worse in self.still_shown)
        return earlier or any(each.better_by(self.least) for each in self.against(name))

    @property
    def candidates(self) -> tuple[ConfirmedValue, ...]:
        """The values of which no other one is shown to be better."""
        return tuple(each for each in self.values if not self.is_beaten(each.name))

    @property
    def recommended(self) -> ConfirmedValue | None:
        """The first of the candidates, smallest first, of those that fail on the fewest seeds; None: no pair.

        A value that fails on more seeds than another candidate is passed over: that may be its doing.
        """
        if all(each.answer is None for each in self.pairs):
            return None
        fewest = min((each.failed for each in self.candidates), default=0)
        return next((each for each in self.candidates if each.failed == fewest), None)

    @property
    def at_most_lost(self) -> float:
        """What the best of the values may gain over the recommended one, at most; infinite: not bounded.

        The highest upper end of the simultaneous intervals of the others against it, so that it bounds what
        is lost against the true best, whichever that is. 0 where the recommended one is shown to be the best.
        """
        found = self.recommended
        if found is None:
            return math.inf
        ends = [math.inf if e.answer is None else e.answer.paired.ci_high for e in self.against(found.name)]
        return max(0.0, *ends) if ends else math.inf

    @property
    def shown(self) -> bool:
        """Whether any value is shown to be better than another one."""
        return bool(self.still_shown) or any(each.decided for each in self.pairs)

    @property
    def all_shown(self) -> frozenset[tuple[str, str]]:
        """Names of two values each of which the first is shown to be better by more than ``least``."""
        both = [way for each in self.pairs for way in (each, each.turned())]
        return self.still_shown | {(e.name, e.reference) for e in both if e.better_by(self.least)}


# ---- the runs


def value_tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = recommend_none
) -> list[NewTicket]:
    """Return the tickets that follow in a study that compares values; none when it is over.

    Args:
        tickets: All tickets of the study, which are all over.
        spec: Its spec, with ``study.compare``.
        recommend: Returns the candidates of a value by its name; none: those with the best values.

    Returns:
        ``choose`` tickets until each value has its configuration, then ``confirm`` tickets pair by pair: a
        run of every value, until each comparison is decided or there are ``study.seeds.confirm`` pairs.
    """
    now = current_round(tickets)
    confirm = of_kind(tickets, "confirm", of_round=now)
    if confirm:
        if not _open(tickets, spec, now):
            return []
        sets = _confirmed(confirm, spec)
    else:
        found = _candidates(tickets, spec, recommend)
        if new := choose_tickets(tickets, spec, found):
            return new
        own = {name: chosen(name, tickets, spec, of) for name, of in found.items()}
        sets = {name: parameters for name, parameters in own.items() if parameters is not None}
    done = pairs_of(confirm)
    upto = next(look for look in spec.study.seeds.confirm.looks if look > done)
    return _pairs(tickets, spec, sets, range(done, upto), now)


def more_value_pairs(tickets: Sequence[TicketRow], spec: StudySpec, count: int) -> list[NewTicket]:
    """Return a round of that many more pairs of all values; none while their comparison is not over.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
        count: Number of pairs, >= 1.
    """
    now = current_round(tickets)
    confirm = of_kind(tickets, "confirm", of_round=now)
    if not confirm or not finished(confirm) or _open(tickets, spec, now):
        return []
    return _pairs(tickets, spec, _confirmed(confirm, spec), range(count), now + 1)


def values_to_come(tickets: Sequence[TicketRow], spec: StudySpec) -> int:
    """Return how many tickets the current round will still get beside those there are, at most."""
    now, values = current_round(tickets), spec.compared_values
    confirm = of_kind(tickets, "confirm", of_round=now)
    if added_pairs(tickets, now):
        return 0
    pairs = spec.study.seeds.confirm.max
    if confirm:
        over = finished(confirm) and not _open(tickets, spec, now)
        return 0 if over else len(_confirmed(confirm, spec)) * (pairs - pairs_of(confirm))
    names = [each.name for each in values]
    if of_kind(tickets, "choose", of_round=now):
        return most_to_choose(tickets, spec, names) + len(names) * pairs
    most, named = spec.study.candidates, spec.study.sampler.name == KNOWLEDGE_GRADIENT
    asked = [len(_searched(tickets, spec, each)) for each in values]
    counts = [most if named and count >= FEWEST else min(count, most) for count in asked]
    return spec.study.seeds.choose * sum(n for n in counts if n > 1) + len(names) * pairs


def _searched(tickets: Sequence[TicketRow], spec: StudySpec, value: ComparedValue) -> list[TicketRow]:
    """Return the search tickets of a value that were not withdrawn."""
    return [
        t
        for t in of_kind(tickets, "search")
        if t.state != "withdrawn" and same_value((t.sampled or {}).get(value.parameter), value.value)
    ]


def _candidates(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend
) -> dict[str, Callable[[], list[Parameters]]]:
    def of_value(value: ComparedValue) -> list[Parameters]:
        runs, most = fitting(_searched(tickets, spec, value), spec), spec.study.candidates
        return recommend(value.name, most) or candidates(runs, most, spec.study.direction)

    return {each.name: partial(of_value, each) for each in spec.compared_values}


def _confirmed(confirm: Sequence[TicketRow], spec: StudySpec) -> dict[str, Parameters]:
    found = {each.name: parameters_of(confirm, each.name) for each in spec.compared_values}
    return {name: parameters for name, parameters in found.items() if parameters is not None}


def _pairs(
    tickets: Sequence[TicketRow],
    spec: StudySpec,
    sets: dict[str, Parameters],
    pairs: range,
    of_round: int,
) -> list[NewTicket]:
    if len(sets) < 2:
        return []
    plan = [(pair, name, parameters) for pair in pairs for name, parameters in sets.items()]
    return [
        NewTicket(
            kind="confirm",
            arm=name,
            number=number,
            seed=fresh_seed(spec.study.seed, "confirm", pair, of_round),
            pair=pair,
            parameters=parameters,
            round=of_round,
        )
        for number, (pair, name, parameters) in enumerate(plan, next_number(tickets, "confirm"))
    ]


def _open(tickets: Sequence[TicketRow], spec: StudySpec, of_round: int) -> bool:
    """Return whether a round, all of whose confirming runs are over, gets more pairs."""
    done = pairs_of(of_kind(tickets, "confirm", of_round=of_round))
    if added_pairs(tickets, of_round) or done >= spec.study.seeds.confirm.max:
        return False
    return not all(each.decided for each in _compared(tickets, spec, of_round))


# ---- what they say


def values_compared(tickets: Sequence[TicketRow], spec: StudySpec) -> ValuesCompared | None:
    """Return what the last round that is over says of the values, None before the first is.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec, with ``study.compare``.
    """
    found = _verdicts(tickets, spec)
    return found[-1] if found else None


def earlier_values(tickets: Sequence[TicketRow], spec: StudySpec) -> list[ValuesCompared]:
    """Return what the rounds before that one said, oldest first.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec, with ``study.compare``.
    """
    return _verdicts(tickets, spec)[:-1]


def _verdicts(tickets: Sequence[TicketRow], spec: StudySpec) -> list[ValuesCompared]:
    """Return what each round that is over says of the values, oldest first."""
    found: list[ValuesCompared] = []
    for of_round in range(current_round(tickets) + 1):
        confirm = of_kind(tickets, "confirm", of_round=of_round)
        # an amendment withdraws what nobody has begun
        if not any(each.attempt for each in confirm):
            continue
        if finished(confirm) and not _open(tickets, spec, of_round):
            behind = rounds_behind(tickets, of_round)
            before = [each for each in found if each.round in behind]
            found.append(_verdict(tickets, spec, of_round, before[-1] if before else None))
    return found


def _verdict(
    tickets: Sequence[TicketRow], spec: StudySpec, of_round: int, before: ValuesCompared | None
) -> ValuesCompared:
    """Return what a round says.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
        of_round: The round, which is over.
        before: What was said of the same configurations before pairs were added; None: they are new.
    """
    confirm = of_kind(tickets, "confirm", of_round=of_round)
    values = tuple(_value(tickets, spec, of_round, each) for each in _named(confirm, spec))
    means = [each.mean for each in values if each.mean is not None]
    best = max(means, default=0.0) if spec.study.direction == "maximize" else min(means, default=0.0)
    there = {each.name for each in values}
    evidence = _evidence(tickets, spec, of_round)
    now = ValuesCompared(
        parameter=spec.compared_values[0].parameter,
        values=values,
        unconfirmed=tuple(each.name for each in spec.compared_values if each.name not in there),
        pairs=tuple(_compared(tickets, spec, of_round)),
        least=spec.study.worth_having(best),
        test=spec.study.test,
        confirmed_on=spec.study.confirm_on,
        round=of_round,
        looks=evidence.verdict,
        alpha=level(evidence.verdict),
        comparisons=_comparisons(spec),
    )
    earlier = frozenset[tuple[str, str]]() if before is None else before.all_shown
    # what is shown the other way round now is no longer held
    turned = {(worse, better) for better, worse in now.all_shown}
    return replace(now, still_shown=earlier - turned)


def _named(confirm: Sequence[TicketRow], spec: StudySpec) -> list[ComparedValue]:
    confirmed = _confirmed(confirm, spec)
    return [each for each in spec.compared_values if each.name in confirmed]


def _value(
    tickets: Sequence[TicketRow], spec: StudySpec, of_round: int, value: ComparedValue
) -> ConfirmedValue:
    behind = rounds_behind(tickets, of_round)
    own = [t for t in of_kind(tickets, "confirm", value.name) if t.round in behind]
    complete = [t.value for t in own if usable(t) and t.value is not None]
    return ConfirmedValue(
        name=value.name,
        value=value.value,
        params=parameters_of(own, value.name) or {},
        mean=fmean(complete) if complete else None,
        runs=len(own),
        failed=len(own) - len(complete),
    )


def _comparisons(spec: StudySpec) -> int:
    return math.comb(len(spec.compared_values), 2)


def _evidence(tickets: Sequence[TicketRow], spec: StudySpec, of_round: int) -> Evidence:
    return Evidence(tickets, spec, of_round, share=1.0 / _comparisons(spec))


def _compared(tickets: Sequence[TicketRow], spec: StudySpec, of_round: int) -> list[ValuePair]:
    """Return each two values that a round confirms, the later one against the earlier."""
    confirm = of_kind(tickets, "confirm", of_round=of_round)
    evidence = _evidence(tickets, spec, of_round)
    runs = {each.name: evidence.runs(each.name) for each in _named(confirm, spec)}
    return [
        ValuePair(name=two, reference=one, answer=evidence.compare(runs[two], runs[one]))
        for one, two in combinations(runs, 2)
    ]


def pair_gains(
    tickets: Sequence[TicketRow], spec: StudySpec, of_round: int, name: str, reference: str
) -> list[tuple[int, float]]:
    """Return a value's gain over another on each pair that counts, numbered over the rounds.

    More is better, whatever the direction; pairs of which a run was lost are left out.
    """
    found, before = [], 0
    for each in rounds_behind(tickets, of_round):
        confirm = of_kind(tickets, "confirm", of_round=each)
        gains = gains_by_pair(tickets, spec, each, reference, name)
        found += [(before + pair, gain) for pair, gain in gains.items()]
        before += pairs_of(confirm)
    return found
