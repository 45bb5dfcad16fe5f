"""What a study decides, in a few values and one line; computes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from tempopt.report.alpha_spending import earlier_seeds, seeds_text
from tempopt.report.finding import GAIN, NO_GAIN
from tempopt.report.formatting import baseline_name, confidence, p_text, value_text_in
from tempopt.report.recommendation_text import remarks, untested_parameters, use_text
from tempopt.verdict.paired_evidence import PairedResult
from tempopt.verdict.statistics.paired_tests import PairedTest
from tempopt.verdict.verdict import Verdict

if TYPE_CHECKING:
    from tempopt.report.study_data import ComparedData, StudyData

Outcome = Literal["gain", "gain_at_inference", "more_stable", "no_gain", "worse", "untrained"]

WORDS: Mapping[Outcome, str] = {
    "gain": GAIN,
    "gain_at_inference": "Gain shown at inference",
    "more_stable": "More stable",
    "no_gain": NO_GAIN,
    "worse": NO_GAIN,
    "untrained": "No verdict",
}
_OUTCOMES: Mapping[str, Outcome] = {"better": "gain", "not_shown": "no_gain", "worse": "worse"}
_MAX_REMARKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision of a study.

    Args:
        outcome: Outcome of the verdict.
        metric: Name of the metric.
        before: Mean of the metric at the baseline, over the confirming seeds; None: not measured.
        after: The same mean for the subject of the numbers.
        change: ``after`` minus ``before``; below 0 is better if the metric is minimised.
        low: Lower end of the interval of that change; infinite if there are too few pairs for a bound.
        high: Its upper end.
        p_value: Two-sided p of no change.
        confidence: Coverage of the interval, as in ``95 %``.
        seeds: Fresh seeds that it rests on.
        use: What to use, in words.
        params: The parameters to train with.
        is_change: Whether the temperatures are to be changed, in training or at inference.
        baseline: What is used now, in words.
        about: Subject of the numbers: the tested ``winner`` of the search or, if that gains nothing, the
            ``recommended`` configuration; of a comparison the name of a set.
        earlier_seeds: Number of these seeds that the verdict before uses too.
        is_winner_replaced: Whether the numbers are the winner's, but another configuration is recommended.
        untested: Ordinary parameters to train with at the baseline that differ from the spec's: ``value`` and
            ``spec`` by name; no run compares the two.
        also: Further notes, most important first.
        is_about_temperature: Whether the gain is one of temperatures.
    """

    outcome: Outcome
    metric: str
    before: float | None
    after: float | None
    change: float
    low: float
    high: float
    p_value: float
    confidence: str | None
    seeds: int | None
    use: str
    params: Mapping[str, Any]
    is_change: bool
    baseline: str
    about: str | None
    earlier_seeds: int
    is_winner_replaced: bool = False
    untested: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    is_about_temperature: bool = True

    @property
    def headline(self) -> str:
        """The decision in one line."""
        seeds = seeds_text(self.seeds or 0, self.earlier_seeds)
        if self.outcome == "untrained":
            return f"{self.word}: {self.baseline} has no finite value on any seed."
        change = value_text_in(self.change, self.change, self.low, self.high)
        basis = f"(no interval, {seeds})"
        if math.isfinite(self.low) or math.isfinite(self.high):
            ends = (value_text_in(end, self.change, self.low, self.high) for end in (self.low, self.high))
            basis = f"({self.confidence} interval {' to '.join(ends)}), {seeds}, {p_text(self.p_value)}"
        subject = ", of the winner" if self.is_winner_replaced else ""
        return f"{self.word}: {self._values()}{change} {basis}{subject}"

    @property
    def word(self) -> str:
        """The outcome in a few words."""
        has_other_gains = self.is_about_temperature and bool(self.untested) and not self.is_change
        return "No gain of temperature shown" if has_other_gains else WORDS[self.outcome]

    def _values(self) -> str:
        if self.before is None or self.after is None:
            return f"{self.metric} "
        width = (self.high - self.low) / 2
        digits = 3
        if 0 < width < math.inf:
            digits = max(0, min(8, 1 - math.floor(math.log10(width))))
        before, after = (f"{value:.{digits}f}".replace("-", "−") for value in (self.before, self.after))
        return f"{self.metric} {before} -> {after}, "

    def to_json(self) -> dict[str, Any]:
        """Return the decision as plain data without infinities."""
        data = asdict(self)
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in data.items()
            if name not in ("is_change", "is_winner_replaced", "is_about_temperature")
        }


def decide(result: StudyData, storage: str = "") -> Decision | None:
    """Return the decision of a study of temperatures; None without a verdict.

    Args:
        result: The study.
        storage: Option for its database, `` --storage URL``, in commands; empty for none.
    """
    verdict = result.deciding_verdict
    if verdict is None or verdict.recommendation is None:
        return None
    advice = verdict.recommendation
    answer = deciding_answer(verdict)
    baseline_mean = verdict.mean_at_one
    return Decision(
        outcome=outcome_of(verdict),
        metric=result.metric,
        before=baseline_mean,
        **_decision_numbers(result, answer.paired, baseline_mean),
        use=use_text(result.spec, verdict),
        params=advice.params,
        is_change=advice.action_without_training != "change_nothing",
        baseline=baseline_name(result.spec),
        about="winner" if answer == verdict.primary else "recommended",
        is_winner_replaced=is_winner_replaced(verdict),
        earlier_seeds=earlier_seeds(result, verdict.round, counts_failures=result.spec.counts_failures),
        untested=untested_parameters(result.spec, advice),
        also=tuple(islice(remarks(result, verdict, storage), _MAX_REMARKS)),
        is_about_temperature=result.spec.has_temperature,
    )


def decide_comparison(result: ComparedData) -> Decision | None:
    """Return the decision of a comparison, for programs; None if nothing is compared.

    The numbers are those of the recommended set, or of the only variant, against the reference; otherwise
    they are not finite.
    """
    comparison = result.comparison
    if comparison is None or not comparison.has_verdict:
        return None
    variant = comparison.main
    test = None if variant is None or variant.answer_by_values is None else variant.answer_by_values.paired
    name = comparison.recommended_set or comparison.reference
    about = None if variant is None else variant.name
    before, after = (comparison.means.get(label or "") for label in (comparison.reference, about))
    return Decision(
        outcome=_OUTCOMES[comparison.outcome],
        metric=result.metric,
        before=before,
        **_decision_numbers(result, test, before) | {"after": after},
        use=name,
        params=comparison.params_by_name[name],
        is_change=name != comparison.reference,
        baseline=comparison.reference,
        about=about,
        earlier_seeds=earlier_seeds(result, comparison.round),
    )


def _decision_numbers(result: ComparedData, test: PairedTest | None, before: float | None) -> dict[str, Any]:
    """Return the values of the decision of a comparison, with the sign of the metric's change."""
    if test is None:
        no_numbers = dict.fromkeys(("change", "low", "high", "p_value"), math.nan)
        return {**no_numbers, "after": None, "confidence": None, "seeds": None}
    sign = 1.0 if result.direction == "maximize" else -1.0
    low, high = sorted((sign * test.ci_low, sign * test.ci_high))
    change = sign * test.gain
    after = None if before is None else before + change
    numbers = {"after": after, "change": change, "low": low, "high": high, "p_value": test.p_value}
    return {**numbers, "confidence": confidence(test), "seeds": test.num_runs}


def deciding_answer(verdict: Verdict) -> PairedResult:
    """Return the gain on which a verdict's decision is based.

    It is the winner's gain if that is shown, even if a simpler change is recommended, which was selected on
    the same seeds. Otherwise it is the gain of the recommended configuration, if it has one.
    """
    advice = verdict.recommendation
    if verdict.primary.significant or advice is None or advice.gain is None:
        return verdict.primary
    return advice.gain


def is_winner_replaced(verdict: Verdict) -> bool:
    """Return whether a decision's numbers are the winner's, but another configuration is recommended."""
    advice = verdict.recommendation
    if advice is None or advice.action_without_training == "change_nothing":
        return False
    return deciding_answer(verdict) == verdict.primary and advice.params != verdict.params


def outcome_of(verdict: Verdict) -> Outcome:
    """Return what a verdict shows."""
    advice = verdict.recommendation
    if verdict.primary.significant:
        return "gain"
    if advice is not None and advice.reason == "gain":
        return "gain_at_inference"
    if verdict.is_more_stable:
        return "more_stable"
    if verdict.has_reference_diverged:
        return "untrained"
    return "worse" if verdict.primary.worse else "no_gain"
