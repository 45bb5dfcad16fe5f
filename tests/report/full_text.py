"""All findings of a study as lines of text."""

from __future__ import annotations

from tempopt.report.findings import find, render_lines
from tempopt.report.study_result import StudyResult


def full_lines(result: StudyResult) -> list[str]:
    """Return what ``tempopt show --full`` prints of what a study found."""
    return render_lines(find(result))
