"""The note on a study's page: what it says, in Markdown that shows what people wrote as they wrote it."""

from __future__ import annotations

import pytest

from tempopt.report.findings import find
from tempopt.report.note import belongs_to_tempopt, escape_markdown, render_note
from tempopt.report.study_lines import decision_lines
from tests.report.made_study import World, make

MARKUP = '<a href="x">`|*_[</a>'


def test_the_note_has_the_decision_and_every_finding() -> None:
    result = make(World(trials=8, layers=0)).result()
    note = render_note(result).replace("\\", "")
    assert all(text in note for text in decision_lines(result))
    findings = [finding for finding in find(result)[1:] if finding.kind != "recommendation"]
    assert all(text[1:] in note for finding in findings for text in (finding.text, *finding.details))
    assert "tempopt export pairs" in note and "tempopt report pairs" in note


@pytest.mark.parametrize("ends", [("pruned",), ("failed",), ("diverged", "pruned")])
def test_a_study_without_a_winner_has_a_note(ends: tuple[str, ...]) -> None:
    note = render_note(make(World(trials=6, ends=ends, confirmed=False)).result())
    assert "What was found" in note and "```" not in note


def test_the_same_study_has_the_same_note_and_a_changed_one_is_not_ours() -> None:
    note = render_note(make(World(trials=8, layers=0)).result())
    assert note == render_note(make(World(trials=8, layers=0)).result())
    assert belongs_to_tempopt(note)
    for changed_note in (f"{note}!", note.replace("What was found", "what"), f" {note}", "mine", ""):
        assert not belongs_to_tempopt(changed_note)


def test_what_people_wrote_stays_text() -> None:
    assert escape_markdown(MARKUP) == '\\<a href\\=\\"x\\"\\>\\`\\|\\*\\_\\[\\<\\/a\\>'
    assert escape_markdown("two\nlines\t| a") == "two lines \\| a"
    assert len(escape_markdown("p" * 5000)) == 2000
