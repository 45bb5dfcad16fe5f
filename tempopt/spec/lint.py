"""A study spec as text, checked: everything that can be told of it without its classes, and where it stands.

Reads no file and no variable of the environment, and imports nothing of what the spec names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tempopt.errors import SpecError, not_text
from tempopt.spec.collect_errors import all_faults
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.validation_errors import FaultySpecError
from tempopt.spec.yaml_source import YamlDocument, parse

Severity = Literal["error", "warning"]

_SOURCE = "The text"
_LOCATION_PREFIX = re.compile(rf"^{_SOURCE}:(\d+)(?::(\d+))?: ")
_PATH = re.compile(r"^([A-Za-z_][\w.-]*)(: | (?=is ))(.+)$", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LintMessage:
    """A message about a spec.

    Args:
        text: What is wrong, what is allowed, what to do.
        line: Line that it is about, from 1; None: it is about the whole text.
        column: Column of the key in that line, from 1; None as ``line``.
        severity: ``error``: such a study cannot be begun.
        path: Dotted path of the key; empty: it is about none.
    """

    text: str
    line: int | None = None
    column: int | None = None
    severity: Severity = "error"
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecLintResult:
    """The result of checking a text.

    Args:
        messages: In the order of lines, those about the whole text first.
        spec: The spec; None: it has errors.
        origin: The text as plain data with the places of its keys; None: it is no YAML.
    """

    messages: tuple[LintMessage, ...]
    spec: StudySpec | None = None
    origin: YamlDocument | None = None

    @property
    def name(self) -> str | None:
        """The name of the study, None if none is given."""
        if self.spec is not None:
            return self.spec.study.name
        study = None if self.origin is None else self.origin.data.get("study")
        name = study.get("name") if isinstance(study, dict) else None
        return name if isinstance(name, str) else None

    def with_messages(self, new_messages: Sequence[LintMessage]) -> SpecLintResult:
        """Return the same with further messages; an error among them takes the spec away."""
        spec = None if any(message.severity == "error" for message in new_messages) else self.spec
        return replace(self, messages=sort_messages([*self.messages, *new_messages]), spec=spec)


def check_text(text: str) -> SpecLintResult:
    """Check the text of a study spec in YAML; faults are returned, not raised."""
    if problem := not_text(text):
        return SpecLintResult(messages=(LintMessage(text=f"The text holds {problem}. Take it out."),))
    try:
        origin = parse(text, source=_SOURCE)
    except SpecError as error:
        return SpecLintResult(messages=(_of_yaml(str(error)),))
    try:
        spec = StudySpec.parse(origin.data, source=origin)
    except FaultySpecError as error:
        faults = [message_at(origin, path, fault) for path, fault in all_faults(error)]
        return SpecLintResult(messages=sort_messages(faults), origin=origin)
    warnings = messages_of("\n".join(spec.notes), origin, severity="warning")
    return SpecLintResult(messages=sort_messages(warnings), spec=spec, origin=origin)


def message_at(origin: YamlDocument, path: str, text: str, *, severity: Severity = "error") -> LintMessage:
    """Return a message about a key, or about the nearest key above it that was written."""
    line, column = origin.line_and_column(path)
    return LintMessage(line=line or None, column=column or None, severity=severity, path=path, text=text)


def messages_of(report: str, origin: YamlDocument, *, severity: Severity = "error") -> list[LintMessage]:
    """Return the messages of a text, one a line; one that begins with a key's path is about that key."""
    messages: list[LintMessage] = []
    for line in report.splitlines():
        match = _PATH.match(line)
        if match is not None and match[1].partition(".")[0] in StudySpec.model_fields:
            text = match[3] if match[2] == ": " else line
            messages.append(message_at(origin, match[1], text, severity=severity))
        else:
            messages.append(LintMessage(text=line, severity=severity))
    return messages


def sort_messages(messages: Sequence[LintMessage]) -> tuple[LintMessage, ...]:
    """Return messages in the order of their lines, without duplicates."""
    return tuple(
        dict.fromkeys(sorted(messages, key=lambda message: (message.line or 0, message.column or 0)))
    )


def _of_yaml(error_text: str) -> LintMessage:
    match = _LOCATION_PREFIX.match(error_text)
    if match is None:
        return LintMessage(text=error_text)
    return LintMessage(text=error_text[match.end() :], line=int(match[1]), column=int(match[2] or 1))
