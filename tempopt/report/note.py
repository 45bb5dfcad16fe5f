"""The note of a study in Optuna's dashboard, in Markdown: verdict, recommendation and progress.

The first line holds a digest, by which a note that a person changed is left alone.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tempopt.report.decision import decision_lines, statements
from tempopt.report.formatting import baseline_name
from tempopt.report.study_result import StudyResult
from tempopt.storage.rows import KINDS

# A link that nothing refers to: Markdown shows nothing of it.
_MARK = re.compile(r"\[tempopt\]: # \(([0-9a-f]{16})\)\n\n")
_SPECIAL = re.compile(f"[{re.escape(string.punctuation)}]")
_LONGEST = 200
_LONGEST_LINE = 2000
_MOST_ROWS = 60


def render_note(result: StudyResult) -> str:
    """Render the note of a study as it stands; the same study has the same note."""
    text = "\n".join(_parts(result))
    return f"[tempopt]: # ({_digest(text)})\n\n{text}"


def belongs_to_tempopt(note: str) -> bool:
    """Return whether tempopt wrote a note and it was not changed since."""
    mark = _MARK.match(note)
    return mark is not None and mark[1] == _digest(note[mark.end() :])


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _parts(result: StudyResult) -> Iterator[str]:
    title, *decided = decision_lines(result)
    yield f"### What was found\n\n**{escape_markdown(title, _LONGEST_LINE)}**\n"
    yield from (f"- {escape_markdown(line, _LONGEST_LINE)}" for line in decided)
    yield "\n### How far it is\n"
    yield from _table(("runs", "done", "at work", "failed"), _progress(result))
    title, parameters = _parameter_section(result)
    if parameters:
        yield f"\n### {title}\n"
        yield from _table(("parameter", "value"), _values(parameters))
        command = _code(f"tempopt export {shlex.quote(result.name)}")
        kind = "YAML for LightningCLI" if result.spec.program is None else "a command or a call"
        yield f"\nAs {kind}: {command}, and `--format python` for a script."
    name = shlex.quote(result.name)
    yield "\n### All findings\n"
    for text, details in statements(result):
        yield f"- {escape_markdown(text, _LONGEST_LINE)}"
        yield from (f"  - {escape_markdown(detail, _LONGEST_LINE)}" for detail in details)
    yield "\n### More\n"
    yield f"- The whole report, as one page to send on: {_code(f'tempopt report {name}')}"
    yield f"- On the terminal: {_code(f'tempopt show {name}')}"
    yield (
        "\n*`tempopt dashboard` keeps this note up to date. A note that you change stays as you leave it; "
        "empty it, and this one comes back.*"
    )


def _parameter_section(result: StudyResult) -> tuple[str, Mapping[str, Any]]:
    """Return what the note says how to use, and its parameters: what is recommended, once there is that."""
    recommendation = result.recommendation
    if recommendation is None:
        if result.winner:
            return "The winner, not confirmed", result.winner
        return "The best so far", result.best.params if result.best else {}
    at_inference = recommendation.at_inference or {}
    title = "What is recommended"
    if recommendation.action_without_training == "change_nothing":
        title = f"The configuration at {baseline_name(result.spec)}"
    return title, {
        **recommendation.parameters,
        **{f"{name} at inference": value for name, value in at_inference.items()},
    }


def _progress(result: StudyResult) -> Iterator[tuple[Any, ...]]:
    for kind in KINDS:
        count = result.tickets[kind]
        if count.requested != 0:
            requested_text = "" if count.requested is None else f" of {count.requested}"
            yield kind, f"{count.done}{requested_text}", count.running, count.failed


def _values(parameters: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    for name in list(parameters)[:_MOST_ROWS]:
        value = parameters[name]
        yield name, f"{value:.4g}" if isinstance(value, float) else str(value)
    if len(parameters) > _MOST_ROWS:
        yield f"and {len(parameters) - _MOST_ROWS} more", ""


def _table(columns: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'|'.join(' --- ' for _ in columns)}|"
    for row in rows:
        yield f"| {' | '.join(escape_markdown(str(cell)) for cell in row)} |"


def escape_markdown(text: str, longest: int = _LONGEST) -> str:
    """Escape a text for Markdown, its tables and HTML; put it on one line, cut if long."""
    line = " ".join(text.split())
    if len(line) > longest:
        line = f"{line[:longest]}…"
    return _SPECIAL.sub(lambda sign: f"\\{sign[0]}", line)


def _code(text: str) -> str:
    """Return a text as code within a line, between more backticks than it has in a row."""
    line = " ".join(text.split())
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    pad = " " if "`" in line else ""
    return f"{fence}{pad}{line}{pad}{fence}"
