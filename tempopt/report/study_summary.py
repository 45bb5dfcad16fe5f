"""The result of a study as a few values, for lists, the REST API and the tools of MCP."""

from __future__ import annotations

from typing import Any, Literal

from tempopt.report.decision import decide
from tempopt.report.findings import find, render_lines
from tempopt.report.study_result import StudyResult
from tempopt.storage.liveness import summary_state
from tempopt.storage.rows import TICKET_STATES, StudyRow, StudySummary

AnswerKind = Literal["gain_shown", "not_shown", "none_yet", "no_verdict"]
"""``gain_shown``: the confirmation shows a gain, and guards are kept; ``not_shown``: it does not;
``none_yet``: it is not complete; ``no_verdict``: it is complete and nothing could be compared.
"""


def summary_json(summary: StudySummary) -> dict[str, Any]:
    """Return the documented data of ``tempopt list --json`` about one study."""
    study = summary.study
    state, num_agents = summary_state(summary)
    counts = {**dict.fromkeys(TICKET_STATES, 0), **summary.counts}
    return {
        "study": study.name,
        **{name: _read_setting(study, name) for name in ("metric", "direction")},
        "state": state,
        "agents": num_agents,
        "created": study.created.isoformat(),
        "tickets": {"requested": sum(counts.values()), **counts},
    }


def _read_setting(study: StudyRow, name: str) -> str:
    """Return a key of the section ``study`` of a spec, which may be damaged."""
    section = study.spec.get("study")
    return str(section.get(name, "") if isinstance(section, dict) else "")[:255]


def verdict_json(result: StudyResult) -> dict[str, Any]:
    """Return the result of a study as plain data, with the corresponding parts of ``tempopt show --json``."""
    data, findings, decision = result.to_json(), find(result), decide(result)
    recommendation = (data["verdict"] or {}).get("recommendation") or {}
    params = recommendation.get("params")
    if (comparison := result.comparison) is not None and comparison.recommended_set is not None:
        params = comparison.params_by_name[comparison.recommended_set]
    return {
        "study": result.name,
        "done": result.state == "done",
        "answer": answer_kind(result),
        "headline": findings[0].text if decision is None else decision.headline,
        "recommendation": recommendation.get("why"),
        "action": recommendation.get("action"),
        "params": params,
        "words": render_lines(findings),
        "not_shown": unproven_claims(result),
        "details": {name: data[name] for name in ("verdict", "comparison")},
    }


def unproven_claims(result: StudyResult) -> list[str]:
    """Return the statements that a study was to show and did not, with their intervals.

    An empty list means that all of them are shown. A study without a verdict has shown nothing.
    """
    decision, *others = find(result)
    claims = [] if decision.state == "shown" else [decision.text]
    for finding in others:
        # with every two sets, a loss of one is a gain of the other
        is_open = finding.state == "not_shown" or (finding.state == "worse" and finding.kind != "pair")
        is_decision = finding.answer is not None and finding.answer == decision.answer
        if is_open and not is_decision:
            claims.append(finding.text)
    return claims


def answer_kind(result: StudyResult) -> AnswerKind:
    """Return the kind of result: a gain counts only if every guard is kept."""
    is_shown: bool | None = None
    if (comparison := result.comparison) is not None and any(v.answer for v in comparison.variants):
        is_shown = comparison.outcome == "better"
    elif result.verdict is not None:
        advice = result.recommendation
        is_inference_only = advice is not None and advice.action_without_training == "inference_only"
        is_shown = is_inference_only or (result.verdict.primary.significant and result.verdict.guards_kept)
    if is_shown is None:
        return "no_verdict" if result.state == "done" else "none_yet"
    return "gain_shown" if is_shown else "not_shown"
