"""What a study decides and what it found, as lines for the terminal, the page and the note."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tempopt.report.comparison_text import pairs_answer
from tempopt.report.decision import decide
from tempopt.report.finding import GAIN, NO_GAIN
from tempopt.report.findings import find, render_lines
from tempopt.report.formatting import baseline_name, baseline_values, duration, parameters_text
from tempopt.report.recommendation_text import sentence
from tempopt.temperature import CREDITED, registered_path

if TYPE_CHECKING:
    from tempopt.report.study_data import StudyData

_LABEL_WIDTH = 8


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
    labelled_texts = [("use", decision.use)]
    if decision.is_change:
        labelled_texts.append(("now", _now_text(result)))
    labelled_texts += [("" if index else "also", text) for index, text in enumerate(decision.also)]
    if result.damaged:
        labelled_texts.append(("damaged", result.damaged))
    study_args = f"{shlex.quote(result.name)}{storage}"
    hints = [f"details: tempopt show {study_args} --full"]
    if decision.is_change or decision.untested:
        hints.append(f"as code: tempopt export {study_args}")
    if report:
        hints.append(f"report: {report}")
    spent = f"{result.num_ended} runs, {duration(result.cost.train_seconds)} of training"
    lines = [f"  {label:<{_LABEL_WIDTH}}{text}" for label, text in labelled_texts]
    return [decision.headline, *lines, f"{spent}; {'; '.join(hints)}"]


def _now_text(result: StudyData) -> str:
    """Return the baseline with the values of its other parameters, by which it was trained."""
    verdict, spec = result.deciding_verdict, result.spec
    assert verdict is not None
    tested_names = CREDITED if spec.has_temperature else spec.baselines
    tuned = {name: value for name, value in verdict.baseline_params.items() if name not in tested_names}
    values = "" if spec.has_temperature else baseline_values(spec)
    texts = [f"{baseline_name(spec)}{values}", *([parameters_text(tuned)] if tuned else [])]
    return ", ".join(texts)


def outcome_label(result: StudyData) -> str:
    """Return in a few words what the study found."""
    if result.comparison is not None:
        if result.comparison.pairs:
            return pairs_answer(result.comparison)
        if not result.comparison.has_verdict:
            return "No verdict"
        return GAIN if result.comparison.outcome == "better" else NO_GAIN
    if (decision := decide(result)) is None or (verdict := result.deciding_verdict) is None:
        return "No verdict" if result.state == "done" else "No verdict yet"
    is_blocked = decision.outcome == "gain" and not verdict.guards_kept
    return f"{decision.word}, but a guard is not kept" if is_blocked else decision.word


def statements(result: StudyData, storage: str = "") -> list[tuple[str, list[str]]]:
    """Return the findings beside decision and recommendation: each statement with its details.

    Args:
        result: The study.
        storage: As for :func:`decide`.
    """
    return [
        (sentence(finding.text), [sentence(detail) for detail in finding.details])
        for finding in find(result, storage)[1:]
        if finding.kind != "recommendation"
    ]


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
        lines.append(f"Now: {_now_text(result)}.")
    return [*lines, *(f"{sentence(text)}." for text in decision.also)]


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
    param_sets = [result.verdict.params, *((advice.params, advice.at_inference or {}) if advice else ())]
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
