"""What report, dashboard and note lead with: the verdict in two words and in a sentence, and what to do."""

from __future__ import annotations

from tempopt.results.recommendation_text import HEAD, recommendation_text
from tempopt.results.study_result import StudyResult
from tempopt.results.verdict_text import verdict_lines

GAIN = "Gain shown"
_INDENT = 2
"""How far the statements of a verdict are indented."""


def answer(result: StudyResult) -> str:
    """Return in two or three words what the study found."""
    if result.comparison is not None:
        return GAIN if result.comparison.outcome == "better" else "No gain shown"
    if result.verdict is None:
        return "No verdict" if result.state == "done" else "No verdict yet"
    return GAIN if result.verdict.total.significant else "No gain shown"


def verdict(result: StudyResult) -> tuple[str, list[tuple[str, list[str]]]]:
    """Return the verdict in a line, and what is to be said besides: each statement with what is below it.

    What to do is not among them.
    """
    first, *rest = verdict_lines(result)
    rest = [line for line in rest if not line.strip().startswith(HEAD)]
    prefix = f"{answer(result)}: "
    if first.startswith(prefix):
        first = first.removeprefix(prefix)
        first = first[0].upper() + first[1:] if not first.startswith(result.metric) else first
    told: list[tuple[str, list[str]]] = []
    for line in rest:
        text = line.strip()
        text = text[0].upper() + text[1:]
        if told and is_below(line):
            told[-1][1].append(text)
        else:
            told.append((text, []))
    return first, told


def is_below(line: str) -> bool:
    """Return whether a line of the verdict belongs to the statement before it."""
    return len(line) - len(line.lstrip()) > _INDENT


def what_to_do(result: StudyResult) -> str:
    """Return the recommendation; empty without a verdict."""
    if result.verdict is None:
        return ""
    text = recommendation_text(result)
    return text[0].upper() + text[1:]
