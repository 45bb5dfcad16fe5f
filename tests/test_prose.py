"""Documents and help keep to plain terms: phrases that readers stumbled over stay out of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tempopt.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# phrase that was not understood at the first reading: what to write instead
STUMBLED_OVER = {
    r"(gone|go|goes|going) on with": "continue, resume",
    r"who(m)?ever": "name who does it",
    r"(come|comes|came) to the same": "are equal",
    r"(is|are) told (what|where|that|to)": "name what is printed or sent",
    r"looks? on": "observe, watch",
    r"in work": "in progress",
    r"unless told otherwise": "by default",
    r"at the most": "at most",
    r"cards?": "GPU",
    r"nobody": "name who does not",
    r"unit arm": "baseline",
    r"trainer process": "worker",
    r"rehears(e|al)": "dry run",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_none_of_the_phrases_that_readers_stumbled_over(page: Path) -> None:
    _check(page.name, page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_none_of_them(name: str) -> None:
    command = COMMANDS[name]
    texts = [command.summary, *(str(argument.settings.get("help", "")) for argument in command.arguments)]
    _check(name, "\n".join(texts))


def _check(location: str, text: str) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    findings = [
        f"{location}: {match.group()!r} in {_line(prose, match.start())!r}; write: {replacement}"
        for phrase, replacement in STUMBLED_OVER.items()
        for match in re.finditer(rf"\b{phrase}\b", prose, flags=re.IGNORECASE)
    ]
    assert not findings, "\n".join(findings)


def _line(text: str, position: int) -> str:
    return text[text.rfind("\n", 0, position) + 1 : (text + "\n").index("\n", position)].strip()
