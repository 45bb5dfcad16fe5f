"""A comparison of given parameter sets: its runs, and the result for each variant.

Pure. The sets are in the spec's section ``compare:``; the first one is the reference. All of them are trained
on the same fresh seeds, and each other set, a *variant*, is compared with the reference by
paired_evidence.py. Several variants share the level evenly (Bonferroni), so the probability that any of them
is falsely shown to be better is that of a single one, and all intervals hold jointly.

With ``study.all_pairs`` every two sets are compared, and all of these comparisons share the level evenly, so
the intervals hold jointly and bound the gain of the best set over another one (Hsu 1996, "Multiple
Comparisons: Theory and Methods", chapter 5).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from tempopt.errors import SpecError, UsageError
from tempopt.seeds import derive
from tempopt.spec.alpha_levels import alpha_for_verdict
from tempopt.spec.compared_sets import ComparedSet, digest
from tempopt.storage.rows import Measurement, NewTicket, Parameters, TicketRow
from tempopt.storage.ticket_queries import (
    are_over,
    current_round,
    is_round_of_added_pairs,
    is_usable,
    of_kind,
    pairs_of,
    parameters_of,
    rounds_of_verdict,
)
from tempopt.temperature import TEMPERATURE_PARAMETERS, training_key
from tempopt.verdict.guards import GuardResult, evaluate_guards
from tempopt.verdict.paired_evidence import (
    Evidence,
    PairedResult,
    PairedRuns,
    gains_of,
    has_values,
    paired_failures,
)
from tempopt.verdict.pairs import paired_tickets
from tempopt.verdict.statistics.failure_rates import FailureRates

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

ABSENT = object()
"""In place of a value that a spec does not give."""
_MIN_PAIRS = 2
Outcome = Literal["better", "not_shown", "worse"]
"""Outcome of a comparison: ``better``: some variant is; ``worse``: some variant is, and none is better;
``not_shown``: neither. If every two sets are compared: ``better`` if some set is shown to beat another.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One variant against the reference.

    Args:
        name: Name of the variant.
        params: Complete parameter set, effective values.
        answer: The variant against the reference; None if one of the two has no value.
        runs: Number of seeds that both were trained on.
        failures: How often both failed (diverged, or failed on every attempt); None if neither did.
        fails_more: Whether it is shown to fail more often, or has no value where the reference has one.
        guards: Results of ``study.guards``.
    """

    name: str
    params: Parameters
    answer: PairedResult | None
    runs: int = 0
    failures: FailureRates | None = None
    fails_more: bool = False
    guards: tuple[GuardResult, ...] = ()

    @property
    def failed(self) -> int:
        """Number of seeds on which it failed."""
        return 0 if self.failures is None else self.failures.arm.failed

    @property
    def reference_failed(self) -> int:
        """Number of seeds on which the reference failed."""
        return 0 if self.failures is None else self.failures.reference.failed

    @property
    def answer_by_values(self) -> PairedResult | None:
        """The answer; None where failures decide: it has no value, or fails on more seeds."""
        return None if self.answer is None or self.answer.diverges_more else self.answer

    @property
    def better(self) -> bool:
        """Whether it is shown to be better than the reference, and does not fail on more seeds."""
        return self.answer is not None and self.answer.significant

    @property
    def worse(self) -> bool:
        """Whether it is shown to be worse than the reference, to fail more often, or to break a guard."""
        is_worse = self.answer is not None and self.answer.worse
        return is_worse or self.fails_more or any(guard.state == "broken" for guard in self.guards)

    @property
    def keeps_guards(self) -> bool:
        """Whether it is shown to keep each guard; a guard that was not measured counts as not kept."""
        return not any(guard.blocks_recommendation for guard in self.guards)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPair:
    """Comparison of two sets, if every two of them are compared.

    Args:
        name: The later one.
        reference: The earlier one.
        answer: The later one against the earlier, at its share of the level; None if one has no value.
        sole: Name of the only one that has a value; None if both or neither has one.
    """

    name: str
    reference: str
    answer: PairedResult | None
    sole: str | None = None

    @property
    def winner(self) -> str | None:
        """The set that is shown to beat the other, and does not fail on more seeds; None if neither is.

        A set without any value is beaten by one that has values.
        """
        if (answer := self.answer) is None:
            return self.sole
        is_worse = answer.worse and answer.diverged >= answer.reference_diverged
        return self.name if answer.significant else self.reference if is_worse else None

    def upper_gain_over(self, name: str) -> float:
        """Return the upper end of the interval of the other set's gain over set ``name``."""
        if self.answer is None:
            return 0.0 if name == self.sole else math.inf
        test = self.answer.paired
        return test.ci_high if name == self.reference else -test.ci_low


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result of a comparison.

    Args:
        reference: Name of the reference.
        reference_params: Complete parameter set of the reference, effective values.
        variants: The other sets, in their given order.
        confirmed_on: ``test`` or ``validate``; None for given values, whose data are unknown.
        round: Number of the round: 0, and one more each time that pairs were added.
        verdict_number: Number of the verdict of the study, from 1.
        alpha: Two-sided level that all comparisons share.
        means: Mean of the metric over the complete runs of each set that has one.
        pairs: Comparisons of every two sets with ``study.all_pairs``; else empty.
    """

    reference: str
    reference_params: Parameters
    variants: tuple[Variant, ...]
    confirmed_on: str | None
    round: int
    verdict_number: int
    alpha: float
    means: Mapping[str, float]
    pairs: tuple[SetPair, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """Outcome of the comparison."""
        if self.pairs:
            return "better" if any(pair.winner for pair in self.pairs) else "not_shown"
        if self.best is not None:
            return "better"
        return "worse" if any(variant.worse for variant in self.variants) else "not_shown"

    @property
    def has_verdict(self) -> bool:
        """Whether there is anything to compare with: the reference has a value, or of all pairs some set."""
        return bool(self.means) if self.pairs else self.reference in self.means

    @property
    def best(self) -> Variant | None:
        """The better variant that keeps the guards and has the largest gain; None if there is none."""
        candidates = [
            (variant.answer.paired.gain, variant)
            for variant in self.variants
            if variant.answer and variant.better and variant.keeps_guards
        ]
        return max(candidates, key=lambda candidate: candidate[0])[1] if candidates else None

    @property
    def unvaried(self) -> list[str]:
        """The sets whose runs all have the same value, so that nothing is shown of them."""
        answers = {variant.name: variant.answer for variant in self.variants if variant.answer is not None}
        is_reference_unvaried = any(answer.is_reference_unvaried for answer in answers.values())
        unvaried = [name for name, answer in answers.items() if answer.is_unvaried]
        return [self.reference, *unvaried] if is_reference_unvaried else unvaried

    @property
    def main(self) -> Variant | None:
        """The variant that the decision is about: the best or the only one; None if there is none."""
        if self.pairs:
            return None
        return self.best or (self.variants[0] if len(self.variants) == 1 else None)

    @property
    def unbeaten(self) -> list[str]:
        """With all pairs, the sets that no other is shown to beat, in their given order."""
        beaten_names = {
            pair.reference if pair.winner == pair.name else pair.name for pair in self.pairs if pair.winner
        }
        return [name for name in self.params_by_name if name not in beaten_names]

    @property
    def params_by_name(self) -> dict[str, Parameters]:
        """Complete parameter set of each set, in their given order."""
        return {self.reference: self.reference_params} | {
            variant.name: variant.params for variant in self.variants
        }

    @property
    def recommended_set(self) -> str | None:
        """The recommended set: the best variant; with all pairs the first set that none is shown to beat.

        A set that fails on more seeds than another unbeaten set is passed over.
        """
        if not self.pairs:
            return None if self.best is None else self.best.name
        if not self.has_verdict:
            return None
        failed = {self.reference: self.variants[0].reference_failed}
        failed |= {variant.name: variant.failed for variant in self.variants}
        return min(self.unbeaten, key=lambda name: failed[name], default=None)

    @property
    def max_loss(self) -> float:
        """Upper bound of the best set's gain over the recommended one: the highest upper end of intervals."""
        set_name = self.recommended_set
        ends = [
            pair.upper_gain_over(set_name)
            for pair in self.pairs
            if set_name is not None and set_name in (pair.name, pair.reference)
        ]
        return max(0.0, *ends) if ends else math.inf


# ---- the runs


def compare_tickets(tickets: Sequence[TicketRow], spec: StudySpec) -> list[NewTicket]:
    """Return the next pairs to train: a run of the reference and of each variant that needs more.

    Args:
        tickets: All tickets of the study, all of them ended; empty for the first ones.
        spec: The study's spec.

    Returns:
        ``confirm`` tickets of the current round, pair by pair; empty if no more are needed.
    """
    this_round = current_round(tickets)
    num_pairs = pairs_of(of_kind(tickets, "confirm", of_round=this_round))
    sets = _undecided_sets(tickets, spec, this_round) if num_pairs else spec.compared_sets
    if not sets:
        return []
    upto = next(look for look in spec.study.seeds.confirm.looks if look > num_pairs)
    return _pair_tickets(tickets, spec, sets, range(num_pairs, upto), this_round)


def more_compare_pairs(tickets: Sequence[TicketRow], spec: StudySpec, count: int) -> list[NewTicket]:
    """Return a round with ``count`` more pairs of all sets; empty while the comparison is not complete.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
        count: Number of pairs, >= 1.
    """
    this_round = current_round(tickets)
    confirm = of_kind(tickets, "confirm", of_round=this_round)
    if not confirm or not are_over(confirm) or _undecided_sets(tickets, spec, this_round):
        return []
    return _pair_tickets(tickets, spec, spec.compared_sets, range(count), this_round + 1)


def remaining_comparison_runs(tickets: Sequence[TicketRow], spec: StudySpec) -> int:
    """Return the largest number of further tickets of the current round."""
    this_round = current_round(tickets)
    confirm = of_kind(tickets, "confirm", of_round=this_round)
    num_pairs = pairs_of(confirm)
    if is_round_of_added_pairs(tickets, this_round):
        return 0
    if confirm and are_over(confirm):
        num_sets = len(_undecided_sets(tickets, spec, this_round))
    else:
        num_sets = sum(ticket.pair == num_pairs - 1 for ticket in confirm)
    return num_sets * (spec.study.seeds.confirm.max - num_pairs)


def _pair_tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, sets: Sequence[ComparedSet], pairs: range, of_round: int
) -> list[NewTicket]:
    # other comparisons have other seeds, so that the best of many can be confirmed on fresh ones
    sets_digest = digest(spec.compared_sets, names=False)
    seeds = {pair: derive(spec.study.seed, "compare", sets_digest, pair, of_round) for pair in pairs}
    params_by_set = {entry.name: spec.parameters("search", entry.parameters) for entry in sets}
    runs = [(pair, seed, *entry) for pair, seed in seeds.items() for entry in params_by_set.items()]
    return paired_tickets(tickets, "confirm", of_round, runs)


def _reference_and_variants(spec: StudySpec) -> tuple[ComparedSet, list[ComparedSet]]:
    """Return the reference and the variants."""
    return spec.compared_sets[0], spec.compared_sets[1:]


def _undecided_sets(tickets: Sequence[TicketRow], spec: StudySpec, of_round: int) -> list[ComparedSet]:
    """Return the sets that need more pairs after a round whose tickets have all ended.

    A variant gets no more pairs once it is shown to be better or worse than the reference, one of the two has
    no value, the values of neither vary, or they are the same on every seed. If every two sets are compared,
    all of them get more until each comparison is decided.
    """
    confirm = of_kind(tickets, "confirm", of_round=of_round)
    num_pairs = pairs_of(confirm)
    if is_round_of_added_pairs(tickets, of_round) or num_pairs >= spec.study.seeds.confirm.max:
        return []
    reference, variants = _reference_and_variants(spec)
    if spec.study.all_pairs:
        is_decided = all(_is_decided(pair.answer) for pair in _compare_sets(tickets, spec, of_round))
        return [] if is_decided else [reference, *variants]
    undecided_sets = []
    for variant in variants:
        # a variant with fewer pairs was decided at an earlier look
        if pairs_of(ticket for ticket in confirm if ticket.arm == variant.name) == num_pairs:
            if not _is_decided(_variant_answer(tickets, spec, of_round, variant.name)):
                undecided_sets.append(variant)
    return [reference, *undecided_sets] if undecided_sets else []


def _is_decided(answer: PairedResult | None) -> bool:
    if answer is None or answer.significant or answer.worse:
        return True
    return answer.paired.is_without_effect or answer.ignores_seeds


# ---- what they say


def evaluate_comparison(
    tickets: Sequence[TicketRow], spec: StudySpec, measurements: Sequence[Measurement] = ()
) -> Comparison | None:
    """Return the result of the last complete round; None before the first is complete.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec, with the sets.
        measurements: Measurements of the runs, for the guards.
    """
    reference, variants = _reference_and_variants(spec)
    for of_round in range(current_round(tickets), -1, -1):
        confirm = of_kind(tickets, "confirm", of_round=of_round)
        if not confirm or not are_over(confirm) or _undecided_sets(tickets, spec, of_round):
            continue
        verdict_number = _variant_evidence(tickets, spec, of_round, variants[0].name).verdict_number
        pairs = _compare_sets(tickets, spec, of_round) if spec.study.all_pairs else ()
        of_reference = {pair.name: pair.answer for pair in pairs if pair.reference == reference.name}
        return Comparison(
            reference=reference.name,
            reference_params=parameters_of(confirm, reference.name) or {},
            variants=tuple(
                _evaluate_variant(tickets, spec, of_round, variant.name, measurements, of_reference)
                for variant in variants
            ),
            confirmed_on=spec.study.confirm_on,
            round=of_round,
            verdict_number=verdict_number,
            alpha=alpha_for_verdict(verdict_number),
            means=_means_by_set(tickets, spec, of_round),
            pairs=pairs,
        )
    return None


def _means_by_set(tickets: Sequence[TicketRow], spec: StudySpec, of_round: int) -> dict[str, float]:
    """Return the mean of each set's complete runs, over the rounds of the comparison."""
    rounds = rounds_of_verdict(tickets, of_round)
    values: dict[str, list[float]] = {compared_set.name: [] for compared_set in spec.compared_sets}
    for ticket in of_kind(tickets, "confirm"):
        if ticket.round in rounds and is_usable(ticket) and ticket.value is not None:
            values[ticket.arm].append(ticket.value)
    return {name: fmean(set_values) for name, set_values in values.items() if set_values}


def _compare_sets(tickets: Sequence[TicketRow], spec: StudySpec, of_round: int) -> tuple[SetPair, ...]:
    """Return the comparison of every two sets, the later against the earlier; all have runs on the same
    seeds.
    """
    names = [compared_set.name for compared_set in spec.compared_sets]
    evidence = Evidence(tickets, spec, of_round, share=1.0 / math.comb(len(names), 2))
    return tuple(
        SetPair(
            name=name,
            reference=reference,
            answer=_compare_runs(evidence, name, reference),
            sole=_sole_set_with_values(evidence, name, reference),
        )
        for reference, name in combinations(names, 2)
    )


def _evaluate_variant(
    tickets: Sequence[TicketRow],
    spec: StudySpec,
    of_round: int,
    name: str,
    measurements: Sequence[Measurement],
    of_reference: Mapping[str, PairedResult | None],
) -> Variant:
    evidence, reference = (
        _variant_evidence(tickets, spec, of_round, name),
        _reference_and_variants(spec)[0].name,
    )
    variant_tickets = [
        ticket
        for round_number in evidence.rounds
        for ticket in evidence.tickets("confirm", name, round_number)
    ]
    failures = paired_failures(evidence.runs(name), evidence.runs(reference), alpha=evidence.alpha)
    return Variant(
        name=name,
        params=parameters_of(variant_tickets, name) or {},
        answer=of_reference[name] if of_reference else _variant_answer(tickets, spec, of_round, name),
        runs=len(variant_tickets),
        failures=failures,
        # tested once, on all pairs; what never has a value needs no test
        fails_more=_sole_set_with_values(evidence, name, reference) == reference
        or (
            failures is not None
            and evidence.has_all_pairs
            and failures.p_value < evidence.alpha
            and failures.arm.failed > failures.reference.failed
        ),
        guards=evaluate_guards(evidence, measurements, arm=name, reference=reference),
    )


def _variant_evidence(tickets: Sequence[TicketRow], spec: StudySpec, of_round: int, variant: str) -> Evidence:
    """Return the pairs of a variant and of the reference, with the variant's share of the level."""
    reference, variants = _reference_and_variants(spec)
    confirm = of_kind(tickets, "confirm")
    pair_keys = {(ticket.round, ticket.pair) for ticket in confirm if ticket.arm == variant}
    pair_tickets = [
        ticket
        for ticket in confirm
        if ticket.arm in (reference.name, variant) and (ticket.round, ticket.pair) in pair_keys
    ]
    return Evidence(pair_tickets, spec, of_round, share=1.0 / len(variants))


def _variant_answer(
    tickets: Sequence[TicketRow], spec: StudySpec, of_round: int, variant: str
) -> PairedResult | None:
    evidence = _variant_evidence(tickets, spec, of_round, variant)
    return _compare_runs(evidence, variant, _reference_and_variants(spec)[0].name)


def _compare_runs(evidence: Evidence, name: str, reference: str) -> PairedResult | None:
    """Return the comparison of two sets; None if one of them has no value."""
    runs, reference_runs = evidence.runs(name), evidence.runs(reference)
    if not (has_values(runs) and has_values(reference_runs)):
        return None
    return evidence.compare(runs, reference_runs)


def _sole_set_with_values(evidence: Evidence, *names: str) -> str | None:
    """Return the name of the only one of two sets that has a value; None if both or neither has one."""
    names_with_values = [name for name in names if has_values(evidence.runs(name))]
    return names_with_values[0] if len(names_with_values) == 1 else None


def gains_of_set(
    tickets: Sequence[TicketRow], spec: StudySpec, of_round: int, name: str, reference: str
) -> list[tuple[int, float]]:
    """Return the gain of a set over another one on each usable pair, numbered over the rounds.

    Larger is better for any direction.
    """
    numbered_gains, pair_offset = [], 0
    for round_number in rounds_of_verdict(tickets, of_round):
        confirm = of_kind(tickets, "confirm", of_round=round_number)
        set_tickets = [ticket for ticket in confirm if ticket.arm == name]
        set_pairs = {ticket.pair for ticket in set_tickets}
        reference_tickets = [t for t in confirm if t.arm == reference and t.pair in set_pairs]
        set_runs, reference_runs = (
            PairedRuns.of(runs, counts_failed=True) for runs in (set_tickets, reference_tickets)
        )
        gains = gains_of(set_runs, reference_runs, spec)
        numbered_gains += [(pair_offset + pair, gain) for pair, gain in gains.items()]
        pair_offset += pairs_of(confirm)
    return numbered_gains


# ---- what is refused


def check_comparison(spec: StudySpec, max_runs: int | None = None) -> None:
    """Refuse a comparison that could show nothing, or that takes more runs than allowed.

    Args:
        spec: Its spec; schedules outside tempopt in it are imported.
        max_runs: Largest allowed number of runs; None for no limit.

    Raises:
        SpecError: Two sets train the same.
        UsageError: It may take more runs.
    """
    name_by_key: dict[str, str] = {}
    lines = []
    for compared_set in spec.compared_sets:
        key = _training_identity(spec, compared_set)
        if key in name_by_key:
            lines.append(
                f"{compared_set.name} trains the same as {name_by_key[key]}, so there is nothing to compare. "
                "Give it other values, or take it out."
            )
        name_by_key.setdefault(key, compared_set.name)
    if lines:
        raise SpecError("\n".join(lines))
    _check_runs(spec, max_runs)


def _check_runs(spec: StudySpec, max_runs: int | None) -> None:
    num_sets, max_pairs = len(spec.compared_sets), spec.study.seeds.confirm.max
    if max_runs is None or num_sets * max_pairs <= max_runs:
        return
    affordable_pairs = max_runs // num_sets
    prefix = "up to " if spec.study.seeds.confirm.min < max_pairs else ""
    remedy = f"{affordable_pairs} pairs fit: --pairs {affordable_pairs}."
    if affordable_pairs < _MIN_PAIRS:
        remedy = f"A single pair shows nothing: allow at least {num_sets * _MIN_PAIRS} runs."
    raise UsageError(
        f"At most {max_runs} runs are allowed, and this comparison takes {prefix}{num_sets} sets × "
        f"{max_pairs} pairs = {num_sets * max_pairs} runs. {remedy}"
    )


def _training_identity(spec: StudySpec, compared_set: ComparedSet) -> str:
    """Return a text that is equal for sets that train the same, as far as the spec alone tells."""
    names = {name for parameter_set in spec.compared_sets for name in parameter_set.parameters}
    spec_values = {name: value_in_spec(spec, name) for name in names if name not in TEMPERATURE_PARAMETERS}
    parameters = {name: value for name, value in spec_values.items() if value is not ABSENT}
    parameters |= spec.parameters("search", compared_set.parameters)
    plan = {name: value for name, value in parameters.items() if name in TEMPERATURE_PARAMETERS}
    other_params = {name: _normalize_numbers(value) for name, value in parameters.items() if name not in plan}
    return json.dumps([training_key(plan), other_params], sort_keys=True)


def value_in_spec(spec: StudySpec, name: str) -> Any:
    """Return the value that a spec itself gives for a parameter, temperature parameters too; else ABSENT."""
    if spec.program is not None:
        return spec.baselines.get(name, ABSENT)
    section, _, path = name.partition(".")
    config: Any = {"trainer": spec.trainer, "data": spec.data or {}}.get(section) if path else None
    if config is None:
        # an init argument of the model, or of one of its parts
        config, path = spec.model, path if section == "model" and "." in path else name
    for key in path.split("."):
        if isinstance(config, Mapping) and "class_path" in config:
            config = config.get("init_args") or {}
        if not isinstance(config, Mapping) or key not in config:
            return ABSENT
        config = config[key]
    return config


def _normalize_numbers(value: Any) -> Any:
    """Return the value with integers replaced by equal floats."""
    if isinstance(value, list):
        return [_normalize_numbers(entry) for entry in value]
    if isinstance(value, Mapping):
        return {key: _normalize_numbers(entry) for key, entry in value.items()}
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
