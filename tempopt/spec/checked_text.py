"""A study spec as text, checked: everything that can be told of it without its classes, and where it stands.

Reads no file and no variable of the environment, and imports nothing of what the spec names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tempopt.errors import SpecError, not_text
from tempopt.spec.remaining_faults import all_faults
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.validation_errors import FaultySpecError
from tempopt.spec.yaml_source import Document, parse

Severity = Literal["error", "warning"]

_SOURCE = "The text"
_PLACE = re.compile(rf"^{_SOURCE}:(\d+)(?::(\d+))?: ")
_PATH = re.compile(r"^([A-Za-z_][\w.-]*)(: | (?=is ))(.+)$", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One thing that there is to say of a spec.

    Args:
        line: Line that it is about, from 1; None: it is about the whole text.
        column: Column of the key in that line, from 1; None as ``line``.
        severity: ``error``: such a study cannot be begun.
        path: Dotted path of the key; empty: it is about none.
        text: What is wrong, what is allowed, what to do.
    """

    line: int | None
    column: int | None
    severity: Severity
    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedText:
    """What a text says.

    Args:
        messages: In the order of lines, those about the whole text first.
        spec: The spec; None: it has errors.
        origin: The text as plain data with the places of its keys; None: it is no YAML.
    """

    messages: tuple[Message, ...]
    spec: StudySpec | None
    origin: Document | None

    @property
    def name(self) -> str | None:
        """The name of the study, None if none is given."""
        if self.spec is not None:
            return self.spec.study.name
        study = None if self.origin is None else self.origin.data.get("study")
        name = study.get("name") if isinstance(study, dict) else None
        return name if isinstance(name, str) else None

    def with_messages(self, more: Sequence[Message]) -> CheckedText:
        """Return the same with further messages; an error among them takes the spec away."""
        spec = None if any(each.severity == "error" for each in more) else self.spec
        return CheckedText(messages=ordered([*self.messages, *more]), spec=spec, origin=self.origin)


def check_text(text: str) -> CheckedText:
    """Check the text of a study spec in YAML; what is wrong with it is told, not raised."""
    if told := not_text(text):
        message = Message(
            line=None, column=None, severity="error", path="", text=f"The text holds {told}. Take it out."
        )
        return CheckedText(messages=(message,), spec=None, origin=None)
    try:
        origin = parse(text, source=_SOURCE)
    except SpecError as error:
        return CheckedText(messages=(_of_yaml(str(error)),), spec=None, origin=None)
    try:
        spec = StudySpec.parse(origin.data, source=origin)
    except FaultySpecError as error:
        found = tuple(message_at(origin, path, told) for path, told in all_faults(error))
        return CheckedText(messages=ordered(found), spec=None, origin=origin)
    warnings = tuple(messages_of(note, origin, severity="warning")[0] for note in spec.notes)
    return CheckedText(messages=ordered(warnings), spec=spec, origin=origin)


def message_at(origin: Document, path: str, text: str, *, severity: Severity = "error") -> Message:
    """Return a message about a key, or about the nearest key above it that was written."""
    line, column = origin.place(path)
    return Message(line=line or None, column=column or None, severity=severity, path=path, text=text)


def messages_of(told: str, origin: Document, *, severity: Severity = "error") -> list[Message]:
    """Return the messages of a text, one a line; one that begins with a key's path is about that key."""
    found: list[Message] = []
    for line in told.splitlines():
        placed = _PATH.match(line)
        if placed is not None and placed[1].partition(".")[0] in StudySpec.model_fields:
            text = placed[3] if placed[2] == ": " else line
            found.append(message_at(origin, placed[1], text, severity=severity))
        else:
            found.append(Message(line=None, column=None, severity=severity, path="", text=line))
    return found


def ordered(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages in the order of their lines, each once."""
    return tuple(dict.fromkeys(sorted(messages, key=lambda each: (each.line or 0, each.column or 0))))


def _of_yaml(told: str) -> Message:
    found = _PLACE.match(told)
    if found is None:
        return Message(line=None, column=None, severity="error", path="", text=told)
    column = 1 if found[2] is None else int(found[2])
    text = told[found.end() :]
    return Message(line=int(found[1]), column=column, severity="error", path="", text=text)
