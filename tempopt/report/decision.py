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
    """What a study decides.

    Args:
        outcome: What is shown.
        metric: Name of the metric.
        before: Mean of the metric at the baseline, over the confirming seeds; None: not measured.
        after: The same with what the numbers are of.
        change: ``after`` less ``before``; below 0 is better where less of the metric is.
        low: Lower end of the interval of that change; infinite where too few pairs bound it.
        high: Its upper end.
        p_value: Two-sided, of no change.
        confidence: Coverage of the interval, as in ``95 %``.
        seeds: Fresh seeds that it rests on.
        use: What to use, in words.
        params: The parameters to train with.
        is_change: Whether the temperatures are to be changed, in training or at inference.
        baseline: What is used now, in words.
        about: What the numbers are of: the ``winner`` of the search, which is what was tested, or, where
            that gains nothing, what is ``recommended``; of a comparison the name of a set.
        earlier_seeds: Those of the seeds that the verdict before rests on, too.
        is_winner_replaced: Whether the numbers are the winner's, and something else is to be used.
        untested: Ordinary parameters to train with at the baseline that differ from the spec's, by name
            ``value`` and ``spec``; no run compares them.
        also: What is to be known besides, most important first.
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
            return f"{self.word}: {self.baseline} diverged on every seed."
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
    """Return what a study of temperatures decides; None without a verdict.

    Args:
        result: The study.
        storage: Option that leads to its database, ` --storage URL`, for the commands; empty: they have none.
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
        **_numbers_of(result, answer.paired, baseline_mean),
        use=use_text(result.spec, verdict),
        params=advice.parameters,
        is_change=advice.action_without_training != "change_nothing",
        baseline=baseline_name(result.spec),
        about="winner" if answer == verdict.total else "recommended",
        is_winner_replaced=is_winner_replaced(verdict),
        earlier_seeds=earlier_seeds(result, verdict.round),
        untested=untested_parameters(result.spec, advice),
        also=tuple(islice(remarks(result, verdict, storage), _MAX_REMARKS)),
        is_about_temperature=result.spec.attends or bool(result.spec.temperatures),
    )


def decide_comparison(result: ComparedData) -> Decision | None:
    """Return what a comparison decides, for programs; None where nothing is compared.

    The numbers are those of the set to take, or of the only variant, against the reference; else they are not
    finite.
    """
    comparison = result.comparison
    if comparison is None or all(variant.answer is None for variant in comparison.variants):
        return None
    variant = comparison.main
    test = None if variant is None or variant.answer is None else variant.answer.paired
    name = comparison.recommended_set or comparison.reference
    mean = comparison.means.get(comparison.reference)
    return Decision(
        outcome=_OUTCOMES[comparison.outcome],
        metric=result.metric,
        before=mean,
        **_numbers_of(result, test, mean),
        use=name,
        params=comparison.params_by_name[name],
        is_change=name != comparison.reference,
        baseline=comparison.reference,
        about=None if variant is None else variant.name,
        earlier_seeds=earlier_seeds(result, comparison.round),
    )


def _numbers_of(result: ComparedData, test: PairedTest | None, before: float | None) -> dict[str, Any]:
    """Return the values of a decision that a comparison gives, with the sign of the metric's own change."""
    if test is None:
        empty = dict.fromkeys(("change", "low", "high", "p_value"), math.nan)
        return {**empty, "after": None, "confidence": None, "seeds": None}
    sign = 1.0 if result.direction == "maximize" else -1.0
    low, high = sorted((sign * test.ci_low, sign * test.ci_high))
    change = sign * test.gain
    after = None if before is None else before + change
    numbers = {"after": after, "change": change, "low": low, "high": high, "p_value": test.p_value}
    return {**numbers, "confidence": confidence(test), "seeds": test.num_runs}


def deciding_answer(verdict: Verdict) -> PairedResult:
    """Return the gain that a verdict's decision rests on.

    Where the winner gains, it is the winner's, also where something simpler is recommended, which was picked
    on the same seeds. Else it is the gain of what is recommended, if it has one.
    """
    advice = verdict.recommendation
    if verdict.total.significant or advice is None or advice.gain is None:
        return verdict.total
    return advice.gain


def is_winner_replaced(verdict: Verdict) -> bool:
    """Return whether a decision's numbers are the winner's, and something else is to be used."""
    advice = verdict.recommendation
    if advice is None or advice.action_without_training == "change_nothing":
        return False
    return deciding_answer(verdict) == verdict.total and advice.parameters != verdict.params


def outcome_of(verdict: Verdict) -> Outcome:
    """Return what a verdict shows."""
    advice = verdict.recommendation
    if verdict.total.significant:
        return "gain"
    if advice is not None and advice.reason == "gain":
        return "gain_at_inference"
    if verdict.is_more_stable:
        return "more_stable"
    if verdict.untrained:
        return "untrained"
    return "worse" if verdict.total.worse else "no_gain"
