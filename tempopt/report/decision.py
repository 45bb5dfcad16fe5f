"""What a study decides, in the few values and lines that a screen has room for; computes nothing.

Terminal, report, note and lists lead with it.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tempopt.report.alpha_spending import earlier_seeds, seeds_text
from tempopt.report.comparison_text import pairs_answer
from tempopt.report.finding import GAIN, NO_GAIN
from tempopt.report.findings import (
    GAIN_AT_INFERENCE,
    MODELS,
    NO_GAIN_OF_TEMPERATURE,
    answer_of,
    find,
    render_lines,
)
from tempopt.report.formatting import (
    baseline_name,
    confidence,
    duration,
    format_signed,
    limit,
    p_text,
    plan_text,
    temperature_text,
    value_text_in,
)
from tempopt.report.guard_text import not_kept
from tempopt.report.recommendation_text import recommendation_text, untested_parameters, untested_text
from tempopt.temperature import registered_path
from tempopt.verdict.paired_evidence import PairedResult
from tempopt.verdict.statistics.paired_tests import PairedTest
from tempopt.verdict.verdict import Verdict

if TYPE_CHECKING:
    from tempopt.report.study_data import ComparedData, StudyData
    from tempopt.spec.study_spec import StudySpec

Outcome = Literal["gain", "gain_at_inference", "more_stable", "no_gain", "worse", "untrained"]

_WORDS: Mapping[Outcome, str] = {
    "gain": GAIN,
    "gain_at_inference": GAIN_AT_INFERENCE,
    "more_stable": "More stable",
    "no_gain": NO_GAIN,
    "worse": NO_GAIN,
    "untrained": "No verdict",
}
_OUTCOMES: Mapping[str, Outcome] = {"better": "gain", "not_shown": "no_gain", "worse": "worse"}
_LABEL_WIDTH = 8
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
            return f"{_WORDS[self.outcome]}: {self.baseline} diverged on every seed."
        change = value_text_in(self.change, self.change, self.low, self.high)
        basis = f"(no interval, {seeds})"
        if math.isfinite(self.low) or math.isfinite(self.high):
            ends = (value_text_in(end, self.change, self.low, self.high) for end in (self.low, self.high))
            basis = f"({self.confidence} interval {' to '.join(ends)}), {seeds}, {p_text(self.p_value)}"
        has_other_gains = self.is_about_temperature and bool(self.untested) and not self.is_change
        word = NO_GAIN_OF_TEMPERATURE if has_other_gains else _WORDS[self.outcome]
        subject = ", of the winner" if self.is_winner_replaced else ""
        return f"{word}: {self._values()}{change} {basis}{subject}"

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
    verdict = result.valid_earlier_verdict or result.verdict
    if verdict is None or verdict.recommendation is None:
        return None
    advice = verdict.recommendation
    answer = deciding_answer(verdict)
    baseline_mean = verdict.mean_at_one
    return Decision(
        outcome=_outcome(verdict),
        metric=result.metric,
        before=baseline_mean,
        **_numbers_of(result, answer.paired, baseline_mean),
        use=_use_text(result.spec, verdict),
        params=advice.parameters,
        is_change=advice.action_without_training != "change_nothing",
        baseline=baseline_name(result.spec),
        about="winner" if answer == verdict.total else "recommended",
        is_winner_replaced=is_winner_replaced(verdict),
        earlier_seeds=earlier_seeds(result, verdict.round),
        untested=untested_parameters(result.spec, advice),
        also=tuple(_also_lines(result, verdict, storage))[:_MAX_REMARKS],
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


def _outcome(verdict: Verdict) -> Outcome:
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


def _use_text(spec: StudySpec, verdict: Verdict) -> str:
    advice, baseline = verdict.recommendation, baseline_name(spec)
    assert advice is not None
    plan_phrase = "" if advice.plan_name is None else f", evaluated at {plan_text(advice.plan_name)}"
    if advice.action_without_training == "change_nothing":
        return f"{baseline}, as now{untested_text(spec, advice)}"
    if advice.action_without_training == "inference_only":
        return f"{baseline}{untested_text(spec, advice)}{plan_phrase}"
    return f"{temperature_text(advice.parameters)}{plan_phrase}"


def _also_lines(result: StudyData, verdict: Verdict, storage: str) -> list[str]:
    """Return what is to be known beside the decision, most important first."""
    advice, total = verdict.recommendation, verdict.total
    assert advice is not None
    lines = []
    if total.significant and not verdict.guards_kept:
        lines.append(f"the winner gains, but {not_kept(verdict.guards)}")
    if verdict.is_more_stable and verdict.failures is not None:
        rates = verdict.failures
        lines.append(
            f"{rates.reference.failed} of {rates.reference.runs} trainings failed at "
            f"{baseline_name(result.spec)}, {rates.arm.failed} with this ({p_text(rates.p_value)})"
        )
    if total.significant:
        lines += _beside_constants_lines(verdict)
        if advice.action_without_training == "change_nothing" and verdict.guards_kept:
            min_gain = f"{advice.min_gain:.3g}"
            lines.append(
                f"the gain is shown, and smaller than is worth a change ({min_gain}, study.min_gain)"
            )
    elif not verdict.at_one:
        winner_text = temperature_text(verdict.params)
        source = "the best of the search" if result.has_trial(verdict.params) else MODELS
        lines.append(f"the winner was {winner_text}, {source}")
        if advice.excluded is not None and not total.worse:
            upper_bound = limit(advice.excluded, total.paired)
            lines.append(f"a gain above {upper_bound} is excluded ({confidence(total.paired)})")
    if advice.widen:
        names = " and ".join(widening.name for widening in advice.widen)
        lines.append(f"{names} at the end of the searched range: `tempopt show --full` has how to widen it")
    if advice.more_pairs is not None:
        study_args = f"{shlex.quote(result.name)}{storage}"
        lines.append(f"more pairs may decide: tempopt resume {study_args} --pairs +{advice.more_pairs.pairs}")
    if total.is_skewed:
        lines.append("the differences are skewed: the error rate may be higher than stated")
    return lines


def _beside_constants_lines(verdict: Verdict) -> list[str]:
    """Return what the winner is worth beside a constant temperature, and beside what is recommended."""
    advice, subject, lines = verdict.recommendation, "", []
    assert advice is not None
    if advice.action_without_training == "inference_only":
        return ["training at another temperature is not shown to be worth more"]
    if advice.parameters != verdict.params:
        subject = "the winner is "
        if advice.winner_over_it is not None:
            relation = "is worse than" if advice.winner_over_it.worse else "is not shown to be better than"
            gain = "" if advice.gain is None else f", whose gain is {format_signed(advice.gain.paired)}"
            lines.append(f"the winner ({temperature_text(verdict.params)}) {relation} this{gain}")
    best = (verdict.constant_params, verdict.over_constant)
    twin = (verdict.constant_twin_params, verdict.over_constant_twin)
    constants = [(params, answer) for params, answer in (best, twin) if params is not None and answer]
    if not constants or advice.action_without_training == "train_at_constant":
        return lines
    # the one over which the winner's gain is least shown
    params, answer = max(constants, key=lambda pair: pair[1].paired.p_value)
    worth = "worth" if verdict.schedule_shown else "not shown to be worth"
    gain = f"{format_signed(answer.paired)} over {temperature_text(params)} ({p_text(answer.paired.p_value)})"
    return [f"{subject}{worth} more than a constant: {gain}", *lines]


def screen_lines(result: StudyData, storage: str = "", report: str = "") -> list[str]:
    """Return what a study decides in about five lines; of a comparison all that it found.

    Args:
        result: The study.
        storage: As for :func:`decide`.
        report: Path of its report, if one was written.
    """
    decision = decide(result, storage)
    if decision is None:
        return render_lines(find(result, storage))
    labelled = [("use", decision.use)]
    if decision.is_change:
        labelled.append(("now", decision.baseline))
    labelled += [("" if index else "also", text) for index, text in enumerate(decision.also)]
    study_args = f"{shlex.quote(result.name)}{storage}"
    hints = [f"details: tempopt show {study_args} --full"]
    if decision.is_change or decision.untested:
        hints.append(f"as code: tempopt export {study_args}")
    if report:
        hints.append(f"report: {report}")
    spent = f"{result.num_ended} runs, {duration(result.cost.train_seconds)} of training"
    lines = [f"  {label:<{_LABEL_WIDTH}}{text}" for label, text in labelled]
    return [decision.headline, *lines, f"{spent}; {'; '.join(hints)}"]


def outcome_label(result: StudyData) -> str:
    """Return in a few words what the study found."""
    if result.comparison is not None:
        if result.comparison.pairs:
            return pairs_answer(result.comparison)
        return GAIN if result.comparison.outcome == "better" else NO_GAIN
    if result.verdict is None:
        return "No verdict" if result.state == "done" else "No verdict yet"
    return answer_of(result, result.verdict)


def statements(result: StudyData, storage: str = "") -> list[tuple[str, list[str]]]:
    """Return what is to be said beside the decision and what to do: each statement with what is below it.

    Args:
        result: The study.
        storage: As for :func:`decide`.
    """
    return [
        (sentence(finding.text), [sentence(detail) for detail in finding.details])
        for finding in find(result, storage)[1:]
        if finding.kind != "recommendation"
    ]


def sentence(text: str) -> str:
    """Return a text that begins with a capital; τ stays small, its capital is a T."""
    return text if text.startswith("τ") else text[0].upper() + text[1:]


def decision_lines(result: StudyData, storage: str = "") -> list[str]:
    """Return the decision: a headline, and what to use in place of what; a comparison has the headline alone.

    Args:
        result: The study.
        storage: As for :func:`decide`.
    """
    decision = decide(result, storage)
    if decision is None:
        return [find(result, storage)[0].text]
    lines = [decision.headline, f"Use {decision.use}."]
    if decision.is_change:
        lines.append(f"Now: {decision.baseline}.")
    return [*lines, *(f"{sentence(text)}." for text in decision.also)]


def what_to_do(result: StudyData, storage: str = "") -> str:
    """Return the recommendation; empty without a verdict.

    Args:
        result: The study.
        storage: As for :func:`decide`.
    """
    if result.verdict is None:
        return ""
    return sentence(recommendation_text(result, storage))


def glossary(result: StudyData) -> list[str]:
    """Return what the words of a verdict mean, a sentence each, for a reader of nothing else."""
    sentences = []
    if result.spec.attends:
        sentences.append(
            "τ is the temperature of attention, softmax(q·k / (√d · τ)): 1 is usual, below 1 attention is "
            "sharper, above 1 softer."
        )
    for name, temperature in result.spec.temperatures.items():
        suffix = "" if temperature.as_found is None else f"; the module has {temperature.as_found:.4g}"
        sentences.append(
            f"{name} is the temperature at {temperature.value or registered_path(name)}{suffix}."
        )
    if result.verdict is None:
        return sentences
    advice = result.recommendation
    param_sets = [result.verdict.params, *((advice.parameters, advice.at_inference or {}) if advice else ())]
    if any(params.get("length_scaling", "none") != "none" for params in param_sets):
        sentences.append(
            "Length scaling changes 1/τ with n, the number of keys that a query sees; log_n multiplies it by "
            "ln n / ln n0, so n0 is the number of keys at which nothing changes."
        )
    sentences.append(
        "Fresh seeds neither searched nor chose, so the luck of the search is not in the gain. Each makes a "
        f"pair: it is trained with the winner and at {baseline_name(result.spec)}, from the same initial "
        "weights, in the same order of data. A gain with + is better, also where less of the metric is. p is "
        "how likely a difference this large is if there is none."
    )
    return sentences
