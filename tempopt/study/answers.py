"""The four answers of a confirmation: rows and measurements in, gains with interval and p out.

Pure. Which runs there are is confirm.py's business, the plain words are verdict.py's.

How runs that did not end well count, decided before any was seen:

* *Lost* (the infrastructure failed on every attempt): its pair is left out and counted as dropped.
  What the machine did says nothing about the temperature.
* *Diverged*: leaving the pair out would reward parameters for the seeds they blow up on. The run counts
  with the worst value that any run of the two arms that are compared reached: kinder than the truth,
  so a gain over an arm that diverges is a lower bound. And so that kindness never makes a gain, an arm
  that diverged on more seeds than the one it is compared with is not significantly better, whatever p.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tempopt.store.rows import Measurement, TicketRow
from tempopt.study.confirm import POSTHOC_CONSTANTS, constant_name, counted
from tempopt.study.paired import PairedTest, paired
from tempopt.study.tickets import current_round, finished, of_kind, oriented, usable

if TYPE_CHECKING:
    from tempopt.study.spec import StudySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One comparison of an arm with a reference on paired seeds.

    Args:
        paired: Estimate, interval and p over the pairs that count.
        dropped: Pairs left out because the infrastructure lost one of the two runs.
        diverged: Pairs on which the arm diverged.
        reference_diverged: Pairs on which the reference diverged.
    """

    paired: PairedTest
    dropped: int = 0
    diverged: int = 0
    reference_diverged: int = 0

    @property
    def significant(self) -> bool:
        """Whether the arm is better, p < 0.05 two-sided, and does not diverge more often."""
        return self.paired.significant and self.diverged <= self.reference_diverged


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How much of the total gain something simpler reaches.

    Args:
        answer: Its own gain over tau = 1.
        share: Its gain over the total gain, below 0 if it makes things worse and above 1 if it is
            better than the winner; None unless the total gain is significant.
        temperature: The constant temperature that reached it, None if it was the winner's plan.
    """

    answer: Answer
    share: float | None
    temperature: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a study found, on seeds that neither searched nor chose.

    Args:
        total: The winner against tau = 1.
        params: The winner's parameters.
        test: ``t`` or ``wilcoxon``.
        confirmed_on: ``test`` or ``validate``.
        against_constant: The winner against the best constant; None if no constant could be trained.
        constant_params: Parameters of that constant.
        inference_only: Models trained at tau = 1 and evaluated at other temperatures.
        init_only: The winner's initial temperature baked into the weights, trained at tau = 1.
        round: Round of search tickets that it closes, from 0.
        looks: Verdicts that the study has had with this one, >= 1; p and intervals allow for it.
    """

    total: Answer
    params: dict[str, Any]
    test: str
    confirmed_on: str
    against_constant: Answer | None
    constant_params: dict[str, Any] | None
    inference_only: Share | None
    init_only: Share | None
    round: int
    looks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """Value by pair and the pairs that diverged; what was lost is in neither."""

    values: dict[int, float]
    diverged: frozenset[int]

    @property
    def pairs(self) -> frozenset[int]:
        return self.diverged | self.values.keys()


def conclude(
    tickets: Sequence[TicketRow], measurements: Iterable[Measurement], spec: StudySpec
) -> Verdict | None:
    """Return the four answers of the last round that is confirmed, or None before the first is.

    There is no answer from half of the pairs: looking at p on the way and stopping when it is small
    would be a test at another level than the one that is reported. Enlarging a study after a verdict is
    such a look, too: the verdict of a later round allows for all those before it.

    Args:
        tickets: All tickets of the study.
        measurements: What the confirm runs of the arm ``unit`` measured; others are ignored.
        spec: The study's spec.
    """
    measurements = list(measurements)
    for of_round in range(current_round(tickets), -1, -1):
        verdict = _conclude_round(of_round, tickets, measurements, spec)
        if verdict is not None:
            return verdict
    return None


def _conclude_round(
    of_round: int, tickets: Sequence[TicketRow], measurements: Sequence[Measurement], spec: StudySpec
) -> Verdict | None:
    confirm = of_kind(tickets, "confirm", of_round=of_round)
    init_only = of_kind(tickets, "init_only", of_round=of_round)
    if not confirm or not finished(confirm):
        return None
    # a round whose confirmation was never begun has shown nobody anything
    confirmed = {t.round for t in tickets if t.kind == "confirm" and t.attempt and t.round < of_round}
    looks = 1 + len(confirmed)
    arms = {arm: _runs(of_kind(confirm, "confirm", arm)) for arm in ("unit", "constant", "search")}
    total = _compare(arms["search"], arms["unit"], spec, looks)
    if total is None:
        return None
    baked = _compare(_runs(init_only), arms["unit"], spec, looks) if finished(init_only) else None
    return Verdict(
        total=total,
        params=_parameters(confirm, "search") or {},
        test=spec.study.test,
        confirmed_on=spec.study.confirm_on,
        against_constant=_compare(arms["search"], arms["constant"], spec, looks),
        constant_params=_parameters(confirm, "constant"),
        inference_only=_inference_only(confirm, measurements, arms["unit"], total, spec, looks),
        init_only=_share(baked, total) if baked is not None else None,
        round=of_round,
        looks=looks,
    )


def _parameters(confirm: Sequence[TicketRow], arm: str) -> dict[str, Any] | None:
    return next((t.parameters for t in confirm if t.arm == arm), None)


def _runs(tickets: Sequence[TicketRow]) -> _Runs:
    values = {t.pair: t.value for t in tickets if usable(t) and t.pair is not None and t.value is not None}
    diverged = {
        t.pair for t in tickets if t.outcome in ("complete", "diverged") and t.pair is not None
    } - values.keys()
    return _Runs(values=values, diverged=frozenset(diverged))


def _compare(arm: _Runs, reference: _Runs, spec: StudySpec, looks: int) -> Answer | None:
    """Return the comparison over the pairs of which neither run was lost; None if there is none."""
    differences = _differences(arm, reference, spec)
    if not differences:
        return None
    return Answer(
        paired=paired(
            list(differences.values()), test=spec.study.test, direction=spec.study.direction, looks=looks
        ),
        dropped=spec.study.seeds.confirm - len(differences),
        diverged=len(arm.diverged.intersection(differences)),
        reference_diverged=len(reference.diverged.intersection(differences)),
    )


def _differences(arm: _Runs, reference: _Runs, spec: StudySpec) -> dict[int, float]:
    """Return by pair, in their order, the arm's value minus the reference's, where neither was lost."""
    reached = [*arm.values.values(), *reference.values.values()]
    # Without any value at all every difference is 0: two arms that always diverge are equally bad.
    worst = (min if spec.study.direction == "maximize" else max)(reached, default=0.0)
    return {
        pair: arm.values.get(pair, worst) - reference.values.get(pair, worst)
        for pair in sorted(arm.pairs & reference.pairs)
    }


def gains_by_pair(tickets: Iterable[TicketRow], spec: StudySpec, of_round: int) -> dict[int, float]:
    """Return the winner's gain over tau = 1 on each pair of a round, as its verdict counts it.

    More is better, whatever the direction; pairs of which a run was lost are left out.
    """
    confirm = of_kind(tickets, "confirm", of_round=of_round)
    arms = [_runs([t for t in confirm if t.arm == arm]) for arm in ("search", "unit")]
    return {
        pair: oriented(difference, spec.study.direction)
        for pair, difference in _differences(arms[0], arms[1], spec).items()
    }


def _share(answer: Answer, total: Answer, temperature: float | None = None) -> Share:
    share = answer.paired.gain / total.paired.gain if total.significant else None
    return Share(answer=answer, share=share, temperature=temperature)


def _inference_only(
    confirm: Sequence[TicketRow],
    measurements: Iterable[Measurement],
    unit: _Runs,
    total: Answer,
    spec: StudySpec,
    looks: int,
) -> Share | None:
    """Return what evaluating the tau = 1 models at another temperature gains, without any training.

    Of the winner's final plan and the best constant the one with the larger gain counts, which leans
    towards "no training was needed". The constant is picked on the validation data and counted on the
    confirmation's. Where training diverged there is nothing to evaluate and nothing is gained.
    """
    pair_of = {t.id: t.pair for t in confirm if t.arm == "unit" and t.pair is not None and usable(t)}
    measured: dict[str, dict[int, float]] = {}
    for measurement in measurements:
        if measurement.ticket_id in pair_of and math.isfinite(measurement.value):
            measured.setdefault(measurement.name, {})[pair_of[measurement.ticket_id]] = measurement.value
    on = spec.study.confirm_on
    best = _best_constant(measured, pair_of.values(), spec)
    at_best = counted("confirm", spec) if best == 1.0 else constant_name(on, best)
    shares = []
    for name, temperature in ((f"{on}:winner", None), (at_best, best)):
        values = measured.get(name, {})
        evaluated = _Runs(values=values, diverged=unit.diverged)
        answer = _compare(evaluated, unit, spec, looks) if values.keys() >= set(pair_of.values()) else None
        if answer is not None:
            shares.append(_share(answer, total, temperature))
    return max(shares, key=lambda share: share.answer.paired.gain, default=None)


def _best_constant(
    measured: Mapping[str, Mapping[int, float]], pairs: Collection[int], spec: StudySpec
) -> float:
    """Return the constant with the best mean on the validation data; 1 unless another is better."""
    sign = 1 if spec.study.direction == "maximize" else -1
    best, best_mean = 1.0, -math.inf
    for temperature in (1.0, *POSTHOC_CONSTANTS):
        name = "validate" if temperature == 1.0 else constant_name("validate", temperature)
        values = measured.get(name, {})
        if pairs and values.keys() >= set(pairs):
            mean = sign * fmean(values[pair] for pair in pairs)
            if mean > best_mean:
                best, best_mean = temperature, mean
    return best
