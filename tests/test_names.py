"""The project's language: names say what they hold, and sentences are plain English.

A parameter, variable, attribute or function is not named by a bare participle, pronoun or filler; phrases
that readers stumbled over stay out of code, tests, documents and help.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tempopt.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
VAGUE_NAMES = {
    *("found", "told", "given", "kept", "seen", "said", "shown", "asked", "held", "wanted", "known", "made"),
    *("taken", "tried", "left", "begun", "judged", "brought", "meant", "heard", "ended", "chosen", "drawn"),
    *("settled", "placed", "grown", "whole", "own", "each", "place", "way", "other", "most", "least", "rest"),
    *("here", "there", "apart", "standing"),
}
# The second operand of an operator has this name in Python's own documentation.
OPERATOR_PARAMETER = "other"
# Phrase that was not understood at the first reading: what to write instead.
ODD_PHRASES = {
    r"who(m)?ever": "name who does it",
    r"nobody|somebody": "name who, or the user",
    r"(gone|go|goes|going) on with": "continue, resume",
    r"(is|are) told to": "name what is sent or requested",
    r"to be told|what (is|was) told": "name what is printed or sent",
    r"comes? to": "is, are equal",
    r"looks? on": "observe, watch",
    r"rehears\w*": "dry run",
    r"thrown away": "discarded",
    r"by itself alone": "alone",
    r"takes? part": "participate, count",
    r"given back": "returned",
    r"let go of": "release",
}
# In documents and help alone: in code these are words of its own, or of Python and Slurm.
ODD_IN_DOCUMENTS = {
    **ODD_PHRASES,
    r"came to the same": "are equal",
    r"(is|are) told (what|where|that)": "name what is printed or sent",
    r"in work": "in progress",
    r"unless told otherwise": "by default",
    r"at the most": "at most",
    r"cards?": "GPU",
    r"unit arm": "baseline",
    r"trainer process": "worker",
}
# The account that servers of databases run as.
ACCOUNT = 'users["nobody"]'


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of each function, parameter, variable and attribute that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
            is_operator = node.name.startswith("__")
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            extra = [argument for argument in (node.args.vararg, node.args.kwarg) if argument is not None]
            for argument in [*arguments, *extra]:
                if not (is_operator and argument.arg == OPERATOR_PARAMETER):
                    yield node.lineno, argument.arg
        elif isinstance(node, ast.Lambda):
            yield from ((node.lineno, argument.arg) for argument in node.args.args)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.ExceptHandler) and node.name is not None:
            yield node.lineno, node.name


@pytest.mark.parametrize("folder", ["tempopt", "tests", "benchmarks", "lightning_modules"])
def test_names_say_what_they_hold(folder: str) -> None:
    vague_names = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in _names(ast.parse(path.read_text(encoding="utf-8")))
        if name.strip("_").lower() in VAGUE_NAMES
    ]
    assert not vague_names, "\n".join(vague_names)


@pytest.mark.parametrize("folder", ["tempopt", "tests", "docs"])
def test_sources_have_no_phrases_that_readers_stumbled_over(folder: str) -> None:
    findings = [
        f"{path.relative_to(ROOT)}: {finding}"
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".md", ".html") and path != Path(__file__)
        for finding in _find(ODD_PHRASES, path.read_text(encoding="utf-8").replace(ACCOUNT, ""))
    ]
    assert not findings, "\n".join(findings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_none_of_them(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert not [*_find(ODD_IN_DOCUMENTS, prose)]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_none_of_them(name: str) -> None:
    command = COMMANDS[name]
    texts = [command.summary, *(str(argument.settings.get("help", "")) for argument in command.arguments)]
    assert not [*_find(ODD_IN_DOCUMENTS, "\n".join(texts))]


def _find(phrases: dict[str, str], text: str) -> Iterator[str]:
    """Yield each odd phrase of a text with its line, and what to write instead."""
    # nearly all texts have none, which one search tells
    if re.search(rf"\b({'|'.join(phrases)})\b", text, flags=re.IGNORECASE) is None:
        return
    for phrase, replacement in phrases.items():
        for match in re.finditer(rf"\b({phrase})\b", text, flags=re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            yield f"line {line}: {match.group()!r}; write: {replacement}"
