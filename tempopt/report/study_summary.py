"""What a study has found as a few values, for the REST and the tools of MCP."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from tempopt.report.decision import decide
from tempopt.report.findings import find, render_lines
from tempopt.report.open_questions import unproven_claims
from tempopt.report.study_result import StudyResult

AnswerKind = Literal["gain_shown", "not_shown", "none_yet", "no_verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyAnswer:
    """What a study has found.

    Args:
        answer: ``gain_shown``: the confirmation shows a gain, and guards are kept; ``not_shown``: it does
            not; ``none_yet``: it is not over; ``no_verdict``: it is over and nothing could be compared.
        headline: The verdict in one line.
        recommendation: What to do, in words; None: there is no verdict of a search.
        action: What to do as a word of ``tempopt show --json``; None likewise.
        params: The parameters that are recommended; None: none.
        words: All of it, as ``tempopt show`` prints it.
        not_shown: What was asked and is not shown, each with its interval.
    """

    answer: AnswerKind
    headline: str
    recommendation: str | None
    action: str | None
    params: dict[str, Any] | None
    words: list[str]
    not_shown: list[str]


def study_answer(result: StudyResult) -> StudyAnswer:
    """Return what a study has found."""
    findings = find(result)
    decision = decide(result)
    recommendation = None if result.verdict is None else result.to_json()["verdict"]["recommendation"]
    params = None if recommendation is None else recommendation["params"]
    if (comparison := result.comparison) is not None and comparison.recommended_set is not None:
        params = comparison.params_by_name[comparison.recommended_set]
    return StudyAnswer(
        answer=_kind(result),
        headline=findings[0].text if decision is None else decision.headline,
        recommendation=recommendation and recommendation["why"],
        action=recommendation and recommendation["action"],
        params=params,
        words=render_lines(findings),
        not_shown=unproven_claims(result),
    )


def verdict_json(result: StudyResult) -> dict[str, Any]:
    """Return what a study has found as plain data, with the parts of ``tempopt show --json`` on it."""
    data = result.to_json()
    return {
        "study": result.name,
        "done": result.state == "done",
        **asdict(study_answer(result)),
        "details": {name: data[name] for name in ("verdict", "comparison")},
    }


def _kind(result: StudyResult) -> AnswerKind:
    """Return what was found: a gain counts only where every guard is kept."""
    is_shown: bool | None = None
    if result.spec.compare is not None:
        comparison = result.comparison
        if comparison is not None and any(variant.answer for variant in comparison.variants):
            is_shown = comparison.outcome == "better"
    elif result.verdict is not None:
        recommendation = result.recommendation
        is_inference_only = (
            recommendation is not None and recommendation.action_without_training == "inference_only"
        )
        is_shown = is_inference_only or (result.verdict.total.significant and result.verdict.guards_kept)
    if is_shown is None:
        return "no_verdict" if result.state == "done" else "none_yet"
    return "gain_shown" if is_shown else "not_shown"
