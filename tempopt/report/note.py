"""The note of a study in Optuna's dashboard, in Markdown: the decision and all findings.

The first line holds a digest, by which a note that a person changed is left alone.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import string
from collections.abc import Iterator

from tempopt.report.formatting import shorten
from tempopt.report.study_lines import decision_lines, statements
from tempopt.report.study_result import StudyResult

# A link without references, which Markdown does not show.
_MARK = re.compile(r"\[tempopt\]: # \(([0-9a-f]{16})\)\n\n")
_SPECIAL = re.compile(f"[{re.escape(string.punctuation)}]")
_MAX_LINE_LENGTH = 2000


def render_note(result: StudyResult) -> str:
    """Render the note of a study in its present state; the same state gives the same note."""
    text = "\n".join(_note_parts(result))
    return f"[tempopt]: # ({_digest(text)})\n\n{text}"


def belongs_to_tempopt(note: str) -> bool:
    """Return whether tempopt wrote a note that is unchanged since."""
    mark = _MARK.match(note)
    return mark is not None and mark[1] == _digest(note[mark.end() :])


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _note_parts(result: StudyResult) -> Iterator[str]:
    title, *other_lines = decision_lines(result)
    yield f"### What was found\n\n**{escape_markdown(title)}**\n"
    yield from (f"- {escape_markdown(line)}" for line in other_lines)
    yield "\n### All findings\n"
    for text, details in statements(result):
        yield f"- {escape_markdown(text)}"
        yield from (f"  - {escape_markdown(detail)}" for detail in details)
    yield "\n### More\n"
    name = shlex.quote(result.name)
    yield f"- The whole report, as one page to send on: {_code(f'tempopt report {name}')}"
    yield f"- On the terminal: {_code(f'tempopt show {name}')}"
    kind = "YAML for LightningCLI" if result.spec.program is None else "a command or a call"
    yield f"- As {kind}, or as a script: {_code(f'tempopt export {name}')}"
    yield (
        "\n*`tempopt dashboard` keeps this note up to date. A note that you change stays as you leave it; "
        "empty it, and this one comes back.*"
    )


def escape_markdown(text: str) -> str:
    """Escape a text for Markdown and HTML; make it one line, truncated if long."""
    line = shorten(" ".join(text.split()), _MAX_LINE_LENGTH)
    return _SPECIAL.sub(lambda sign: f"\\{sign[0]}", line)


def _code(text: str) -> str:
    """Return a text as inline code, between more backticks than it has in a row."""
    line = " ".join(text.split())
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    pad = " " if "`" in line else ""
    return f"{fence}{pad}{line}{pad}{fence}"
