"""Comparisons of arms on paired seeds: rows in, gains with interval and p out.

Pure. pairs.py plans the runs, verdict.py combines the comparisons into a verdict, and paired_tests.py has the
statistics.

How failed runs count, decided before any results:

* *Lost* (the infrastructure failed on every attempt): the pair is left out and counted as dropped. The
  failure of a machine is not evidence about the temperature. A program may itself fail, and so may a given
  set of a comparison, so there such a run counts as a diverged one (``StudySpec.counts_failures``).
* *Diverged*: leaving the pair out would reward parameters for the seeds on which they diverge. The run counts
  with the worst value that any run of the two compared arms reached: better than the truth, so a gain over an
  arm that diverges is a lower bound. So that this never creates a gain, an arm that diverged on more seeds
  than its reference is not significantly better, whatever p is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tempopt.spec.alpha_levels import alpha_for_verdict
from tempopt.storage.rows import Kind, TicketRow
from tempopt.storage.ticket_queries import (
    is_round_of_added_pairs,
    is_usable,
    of_kind,
    pairs_of,
    rounds_of_verdict,
    to_maximize,
    verdicts,
)
from tempopt.verdict.statistics.failure_rates import FailureRates, failure_rates
from tempopt.verdict.statistics.group_sequential import Look, alpha_spending
from tempopt.verdict.statistics.paired_tests import (
    Direction,
    PairedTest,
    StageDifferences,
    paired_test,
    skewness,
)

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec


_SKEWED = 2.0
"""Standard errors of the skewness from which differences count as skewed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedResult:
    """One comparison of an arm with a reference on paired seeds, or the more cautious of several.

    Args:
        paired: Estimate, interval and p over the pairs that count.
        dropped: Pairs left out because the infrastructure lost one of the two runs.
        diverged: Number of pairs, or seeds of an independent sample, on which the arm diverged.
        reference_diverged: The same for the reference.
        component_results: The comparisons of which this is the more cautious; empty for a single one.
        lost: Number of references without runs left to compare with; nothing is shown without them.
        is_unvaried: Whether all values of the arm are equal, so that nothing is shown: the noise between
            seeds is unknown.
        is_reference_unvaried: The same for the reference.
        skewness: Sample skewness of the differences in standard errors under a normal distribution; None with
            fewer than six pairs, or if all differences are equal.
    """

    paired: PairedTest
    dropped: int = 0
    diverged: int = 0
    reference_diverged: int = 0
    component_results: tuple[PairedResult, ...] = ()
    lost: int = 0
    is_unvaried: bool = False
    is_reference_unvaried: bool = False
    skewness: float | None = None

    @property
    def components(self) -> tuple[PairedResult, ...]:
        """The comparisons of which this is the more cautious; itself for a single one."""
        return self.component_results or (self,)

    @property
    def is_skewed(self) -> bool:
        """Whether the differences are visibly skewed; the tests assume a symmetric distribution."""
        scores = [answer.skewness for answer in self.components]
        return any(score is not None and abs(score) > _SKEWED for score in scores)

    @property
    def diverges_more(self) -> bool:
        """Whether the arm diverged on a larger share of its seeds than the reference."""
        num_runs, num_reference_runs = self.paired.sample_sizes or (1, 1)
        return self.diverged * num_reference_runs > self.reference_diverged * num_runs

    @property
    def significant(self) -> bool:
        """Whether the arm is better by p, and does not diverge more often; of several, than each of them."""
        return not self.lost and all(
            answer.paired.significant and not answer.diverges_more for answer in self.components
        )

    @property
    def fails_less(self) -> bool:
        """Whether the arm diverges on fewer pairs than the reference; of several, than each of them."""
        return all(answer.diverged < answer.reference_diverged for answer in self.components)

    @property
    def worse(self) -> bool:
        """Whether the arm is significantly worse; of several references, than each of them."""
        return all(answer.paired.is_worse for answer in self.components)

    @property
    def ignores_seeds(self) -> bool:
        """Whether neither arm nor reference varies, so that more seeds would show nothing either."""
        return self.is_unvaried and self.is_reference_unvaried


def most_conservative(answers: Sequence[PairedResult | None]) -> PairedResult | None:
    """Return the comparison with all of several references at once; None if no reference has runs left.

    It claims what each of them claims (an intersection-union test, Berger 1982, which needs no correction):
    the gain is the smallest, the interval extends from the lowest to the highest end, and p is the largest,
    or 1 if the signs differ.
    """
    valid_answers = [answer for answer in answers if answer is not None]
    lost = len(answers) - len(valid_answers)
    if len(valid_answers) < 2:
        return replace(valid_answers[0], lost=lost) if valid_answers else None
    tests = [answer.paired for answer in valid_answers]
    min_answer = min(valid_answers, key=lambda answer: answer.paired.gain)
    one_sign = len({test.gain > 0 for test in tests}) == 1
    return PairedResult(
        paired=PairedTest(
            gain=min_answer.paired.gain,
            ci_low=min(test.ci_low for test in tests),
            ci_high=max(test.ci_high for test in tests),
            p_value=max(test.p_value for test in tests) if one_sign else 1.0,
            n_pairs=min(test.n_pairs for test in tests),
            alpha=min_answer.paired.alpha,
        ),
        dropped=max(answer.dropped for answer in valid_answers),
        diverged=min_answer.diverged,
        reference_diverged=min_answer.reference_diverged,
        component_results=tuple(valid_answers),
        lost=lost,
        is_unvaried=any(answer.is_unvaried for answer in valid_answers),
        is_reference_unvaried=any(answer.is_reference_unvaried for answer in valid_answers),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRuns:
    """Value by pair, and the pairs that diverged; lost runs are in neither."""

    values: dict[int, float]
    diverged: frozenset[int] = frozenset()

    @property
    def pairs(self) -> frozenset[int]:
        return self.diverged | self.values.keys()

    @classmethod
    def of(cls, tickets: Iterable[TicketRow], *, counts_failed: bool = False) -> PairedRuns:
        """Return the values of runs by pair, and the pairs that diverged.

        Args:
            tickets: The runs of an arm.
            counts_failed: Whether runs that failed on every attempt count as diverged; else they are lost.
        """
        outcomes = ("complete", "diverged", "failed") if counts_failed else ("complete", "diverged")
        tickets = list(tickets)
        values = {
            t.pair: t.value for t in tickets if is_usable(t) and t.pair is not None and t.value is not None
        }
        diverged = {t.pair for t in tickets if t.outcome in outcomes and t.pair is not None} - values.keys()
        return cls(values=values, diverged=frozenset(diverged))


def has_values(runs: Iterable[PairedRuns]) -> bool:
    """Return whether an arm has a value in some round."""
    return any(round_runs.values for round_runs in runs)


class Evidence:
    """The pairs of the verdict of a round, and its level.

    Pairs that are added to a verdict make a new round, whose verdict includes the earlier pairs.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
        of_round: The round.
        include_earlier: Whether the pairs of the earlier rounds that it adds to count as well.
        share: Share of the level for each comparison, if several share it.
    """

    def __init__(
        self,
        tickets: Sequence[TicketRow],
        spec: StudySpec,
        of_round: int,
        *,
        include_earlier: bool = True,
        share: float = 1.0,
    ) -> None:
        self.spec = spec
        self.verdict_number = verdicts(tickets, of_round)
        self.alpha = share * alpha_for_verdict(self.verdict_number)
        self.rounds = rounds_of_verdict(tickets, of_round) if include_earlier else [of_round]
        self._tickets = [ticket for ticket in tickets if ticket.round in self.rounds]

    def tickets(self, kind: Kind, arm: str, of_round: int) -> list[TicketRow]:
        """Return the tickets of an arm in one of the rounds."""
        return of_kind(self._tickets, kind, arm, of_round=of_round)

    def runs(self, arm: str, kind: Kind = "confirm") -> list[PairedRuns]:
        """Return the runs of an arm, round by round."""
        return [
            PairedRuns.of(self.tickets(kind, arm, of_round), counts_failed=self.spec.counts_failures)
            for of_round in self.rounds
        ]

    def compare(self, arm: Sequence[PairedRuns], reference: Sequence[PairedRuns]) -> PairedResult | None:
        """Return the comparison over the pairs without a lost run; None if there is none.

        If failed runs count, it is None if no run of the two has a value.

        Args:
            arm: Its runs, by round.
            reference: Runs of its reference, by round.
        """
        if self.spec.counts_failures and not any(runs.values for runs in (*arm, *reference)):
            return None
        differences = self._differences(arm, reference)
        test = self.test(differences, self.spec.study.direction)
        if test is None:
            return None
        counted_pairs = [pair for round_differences in differences for pair in round_differences]
        num_planned = sum(map(self.num_planned_pairs, self.rounds))
        answer = PairedResult(
            paired=test,
            dropped=num_planned - len(counted_pairs),
            diverged=_count_diverged_pairs(arm, differences),
            reference_diverged=_count_diverged_pairs(reference, differences),
            skewness=skewness(
                [value for round_differences in differences for value in round_differences.values()]
            ),
        )
        # tempopt sets the seed of a module, but cannot see whether a program uses its own
        return require_noise(answer, arm, reference) if self.spec.program else answer

    def test(self, differences: Sequence[Mapping[int, float]], direction: Direction) -> PairedTest | None:
        """Test paired differences over all rounds; None if there are no differences.

        Args:
            differences: By pair, for each round.
            direction: Which sign of a difference is better.
        """
        stages = self._stages(differences)
        if not stages:
            return None
        *earlier, last_stage = stages
        return paired_test(
            last_stage.differences,
            direction=direction,
            alpha=self.alpha,
            looks=last_stage.looks,
            earlier=earlier,
        )

    def stages(self, arm: Sequence[PairedRuns], reference: Sequence[PairedRuns]) -> list[StageDifferences]:
        """Return the differences of each round that has any, with the looks at them."""
        return self._stages(self._differences(arm, reference))

    def _stages(self, differences: Sequence[Mapping[int, float]]) -> list[StageDifferences]:
        return [
            StageDifferences(
                differences=tuple(round_differences.values()),
                looks=self._looks(round_differences.keys(), of_round),
            )
            for round_differences, of_round in zip(differences, self.rounds, strict=True)
            if round_differences
        ]

    def _differences(
        self, arm: Sequence[PairedRuns], reference: Sequence[PairedRuns]
    ) -> list[dict[int, float]]:
        return [
            differences_by_pair(arm_runs, reference_runs, self.spec.study.direction)
            for arm_runs, reference_runs in zip(arm, reference, strict=True)
        ]

    @property
    def has_all_pairs(self) -> bool:
        """Whether there are at least as many pairs as the spec requires."""
        confirm = self.spec.study.seeds.confirm
        return len(self.rounds) > 1 or self.num_planned_pairs(self.rounds[-1]) >= confirm.max

    def num_planned_pairs(self, of_round: int) -> int:
        """Return the number of pairs with tickets in a round."""
        return pairs_of(of_kind(self._tickets, "confirm", of_round=of_round))

    def _looks(self, pairs: Iterable[int], of_round: int) -> tuple[Look, ...] | None:
        """Return the numbers of usable pairs at the looks at a round; None for a single look."""
        confirm, pairs = self.spec.study.seeds.confirm, sorted(pairs)
        num_pairs = pairs_of(of_kind(self._tickets, "confirm", of_round=of_round))
        if is_round_of_added_pairs(self._tickets, of_round) or confirm.min == confirm.max:
            return None
        looks: dict[int, float] = {}
        for look in confirm.looks:
            if look <= num_pairs and (usable_pairs := sum(pair < look for pair in pairs)) > 1:
                looks[usable_pairs] = alpha_spending(look, confirm.max)
        return tuple(looks.items()) or None

    def gains(self, arm: Sequence[PairedRuns], reference: Sequence[PairedRuns]) -> list[float]:
        """Return the gain of an arm over its reference on each usable pair, larger being better."""
        return [
            gain
            for arm_runs, reference_runs in zip(arm, reference, strict=True)
            for gain in gains_of(arm_runs, reference_runs, self.spec).values()
        ]


def test_keeps_share(
    evidence: Evidence,
    simple: Sequence[PairedRuns],
    winner: Sequence[PairedRuns],
    baseline: Sequence[PairedRuns],
) -> PairedResult | None:
    """Test whether an alternative keeps ``study.keep_share`` of the winner's gain over the baseline.

    It is shown to if the result is significant: the alternative is compared, pair by pair, with the point
    between the baseline and the winner. None if no pair is usable.

    Args:
        evidence: The pairs.
        simple: Runs of the simpler alternative, by round, like the others.
        winner: Runs of the winner.
        baseline: Runs of the common reference.
    """
    share = evidence.spec.study.keep_share
    worst_of: Callable[..., float] = min if evidence.spec.study.direction == "maximize" else max
    thresholds = []
    for runs in zip(simple, winner, baseline, strict=True):
        worst = worst_of((value for arm_runs in runs for value in arm_runs.values.values()), default=0.0)
        _, winner_runs, baseline_runs = runs
        thresholds.append(
            PairedRuns(
                values={
                    pair: share * winner_runs.values.get(pair, worst)
                    + (1 - share) * baseline_runs.values.get(pair, worst)
                    for pair in winner_runs.pairs & baseline_runs.pairs
                }
            )
        )
    return evidence.compare(simple, thresholds)


def require_noise(
    answer: PairedResult, arm: Sequence[PairedRuns], reference: Sequence[PairedRuns]
) -> PairedResult:
    """Return the comparison of runs that may ignore their seeds; equal values of all runs show nothing.

    Runs that ignore their seeds repeat a single run, so their number is no evidence.

    Args:
        answer: The comparison.
        arm: Its runs, by round.
        reference: Runs of its reference, by round.
    """
    unvaried = [
        len(values) > 1 and len(set(values)) == 1
        for values in ([value for r in runs for value in r.values.values()] for runs in (arm, reference))
    ]
    if not any(unvaried):
        return answer
    return replace(
        answer,
        paired=replace(answer.paired, ci_low=-math.inf, ci_high=math.inf, p_value=1.0),
        is_unvaried=unvaried[0],
        is_reference_unvaried=unvaried[1],
    )


def _count_diverged_pairs(runs: Sequence[PairedRuns], differences: Sequence[Mapping[int, float]]) -> int:
    return sum(
        len(arm_runs.diverged & round_differences.keys())
        for arm_runs, round_differences in zip(runs, differences, strict=True)
    )


def values_by_pair(
    arm: PairedRuns, reference: PairedRuns, direction: Direction
) -> tuple[dict[int, float], dict[int, float]]:
    """Return the values of both by pair, in order; a diverged run has the worst value of the two arms."""
    values = [*arm.values.values(), *reference.values.values()]
    pick: Callable[..., float] = min if direction == "maximize" else max
    # Without any value every difference is 0: two arms that always diverge are equally bad.
    worst = pick(values, default=0.0)
    of_arm, of_reference = (
        {pair: runs.values.get(pair, worst) for pair in sorted(runs.pairs)} for runs in (arm, reference)
    )
    return of_arm, of_reference


def differences_by_pair(arm: PairedRuns, reference: PairedRuns, direction: Direction) -> dict[int, float]:
    """Return by pair, in order, the arm's value minus the reference's, if neither was lost."""
    values, reference_values = values_by_pair(arm, reference, direction)
    return {
        pair: value - reference_values[pair] for pair, value in values.items() if pair in reference_values
    }


def gains_by_pair(
    tickets: Sequence[TicketRow],
    spec: StudySpec,
    of_round: int,
    reference: str = "baseline",
) -> dict[int, float]:
    """Return the winner's gain over a reference on each pair of a round, as in its verdict.

    Larger is better for any direction; pairs with a lost run are left out.
    """
    confirm = of_kind(tickets, "confirm", of_round=of_round)
    arm_runs, reference_runs = (
        PairedRuns.of(of_kind(confirm, "confirm", arm_name), counts_failed=spec.counts_failures)
        for arm_name in ("search", reference)
    )
    return gains_of(arm_runs, reference_runs, spec)


def gains_of(arm: PairedRuns, reference: PairedRuns, spec: StudySpec) -> dict[int, float]:
    """Return the gain of an arm's runs over a reference's by pair, as in a comparison of one round."""
    return {
        pair: to_maximize(difference, spec.study.direction)
        for pair, difference in differences_by_pair(arm, reference, spec.study.direction).items()
    }


def paired_failures(
    arm: Sequence[PairedRuns],
    reference: Sequence[PairedRuns],
    *,
    alpha: float,
    has_failed: Callable[[float], bool] | None = None,
) -> FailureRates | None:
    """Return how often two arms failed on the same seeds; None if neither failed.

    Runs fail by diverging; lost runs are left out.

    Args:
        arm: Its runs, by round.
        reference: Runs of its reference, by round.
        alpha: Level of the intervals.
        has_failed: Returns whether a run with this final value counts as failed too; None: none does.
    """
    failed: list[list[bool]] = [[], []]
    for round_runs in zip(arm, reference, strict=True):
        for pair in sorted(round_runs[0].pairs & round_runs[1].pairs):
            for flags, runs in zip(failed, round_runs, strict=True):
                value = runs.values.get(pair)
                flags.append(value is None or (has_failed is not None and has_failed(value)))
    if not any(map(any, failed)):
        return None
    return failure_rates(*failed, alpha=alpha)


def gain_over_baseline(evidence: Evidence) -> PairedResult | None:
    """Return the winner's gain over τ = 1: over baseline and twin, each; None if no pair is usable.

    If one of them has lost all of its runs, the other one gives the estimate, and no gain is shown.
    """
    winner = evidence.runs("search")
    return most_conservative([evidence.compare(winner, reference) for reference in baseline_runs(evidence)])


def baseline_runs(evidence: Evidence) -> list[list[PairedRuns]]:
    """Return the runs that a gain has to hold over: the baseline's, and the twin's if it has its own."""
    baseline, twin = evidence.runs("baseline"), evidence.runs("twin")
    # a twin without runs differs from the baseline too, since equal arms share their runs
    return [baseline] if twin == baseline else [baseline, twin]


def is_confirmation_complete(tickets: Sequence[TicketRow], spec: StudySpec, of_round: int) -> bool:
    """Return whether the confirmation of a round, all of whose tickets have ended, gets no more pairs.

    It has all of its pairs, a gain is shown, or none is in sight: the winner is behind, all runs of a program
    fail, or none of them varies. Stopping where the winner is behind is not binding: the level holds either
    way. A winner that fails less often than its reference gets all of its
    pairs, on which this is tested.
    """
    pairs = pairs_of(of_kind(tickets, "confirm", of_round=of_round))
    if is_round_of_added_pairs(tickets, of_round) or pairs >= spec.study.seeds.confirm.max:
        return True
    answer = gain_over_baseline(Evidence(tickets, spec, of_round))
    if answer is None:
        return spec.counts_failures
    if answer.significant or answer.ignores_seeds:
        return True
    return answer.paired.gain <= 0 and not answer.fails_less
