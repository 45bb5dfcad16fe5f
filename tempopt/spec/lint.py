"""Checks of a study spec as text, without importing its classes; messages have lines and columns.

Reads no file and no environment variable, and imports nothing that the spec names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tempopt.errors import SpecError, not_text
from tempopt.spec.collect_errors import find_all_faults
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
        text: The error, the allowed values, and what to do.
        line: Line of the message, from 1; None: it is about the whole text.
        column: Column of the key in that line, from 1; None where ``line`` is None.
        severity: ``error``: the study cannot be created.
        path: Dotted path of the key; empty if the message is about none.
    """

    text: str
    line: int | None = None
    column: int | None = None
    severity: Severity = "error"
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecLintResult:
    """Result of checking a text.

    Args:
        messages: Sorted by line, those about the whole text first.
        spec: The spec; None if there are errors.
        document: The text as plain data with the positions of its keys; None if it is not YAML.
    """

    messages: tuple[LintMessage, ...]
    spec: StudySpec | None = None
    document: YamlDocument | None = None

    @property
    def name(self) -> str | None:
        """Name of the study; None if it has none."""
        if self.spec is not None:
            return self.spec.study.name
        study = None if self.document is None else self.document.data.get("study")
        name = study.get("name") if isinstance(study, dict) else None
        return name if isinstance(name, str) else None

    def with_messages(self, new_messages: Sequence[LintMessage]) -> SpecLintResult:
        """Return the result with further messages; without a spec if one of them is an error."""
        spec = None if any(message.severity == "error" for message in new_messages) else self.spec
        return replace(self, messages=sort_messages([*self.messages, *new_messages]), spec=spec)


def check_text(text: str) -> SpecLintResult:
    """Check the text of a study spec in YAML; errors are returned, not raised."""
    if problem := not_text(text):
        return SpecLintResult(messages=(LintMessage(text=f"The text holds {problem}. Take it out."),))
    try:
        document = parse(text, source=_SOURCE)
    except SpecError as error:
        return SpecLintResult(messages=(_parse_yaml_error(str(error)),))
    try:
        spec = StudySpec.parse(document.data, source=document)
    except FaultySpecError as error:
        faults = [message_at(document, path, fault) for path, fault in find_all_faults(error)]
        return SpecLintResult(messages=sort_messages(faults), document=document)
    warnings = parse_messages("\n".join(spec.notes), document, severity="warning")
    return SpecLintResult(messages=sort_messages(warnings), spec=spec, document=document)


def message_at(document: YamlDocument, path: str, text: str, *, severity: Severity = "error") -> LintMessage:
    """Return a message about a key, or about the nearest key above it in the text."""
    line, column = document.line_and_column(path)
    return LintMessage(line=line or None, column=column or None, severity=severity, path=path, text=text)


def parse_messages(report: str, document: YamlDocument, *, severity: Severity = "error") -> list[LintMessage]:
    """Return a message for each line of a report; a line that begins with the path of a key is about that
    key.
    """
    messages: list[LintMessage] = []
    for line in report.splitlines():
        match = _PATH.match(line)
        if match is not None and match[1].partition(".")[0] in StudySpec.model_fields:
            text = match[3] if match[2] == ": " else line
            messages.append(message_at(document, match[1], text, severity=severity))
        else:
            messages.append(LintMessage(text=line, severity=severity))
    return messages


def sort_messages(messages: Sequence[LintMessage]) -> tuple[LintMessage, ...]:
    """Return messages in the order of their lines, without duplicates."""
    return tuple(
        dict.fromkeys(sorted(messages, key=lambda message: (message.line or 0, message.column or 0)))
    )


def _parse_yaml_error(error_text: str) -> LintMessage:
    match = _LOCATION_PREFIX.match(error_text)
    if match is None:
        return LintMessage(text=error_text)
    return LintMessage(text=error_text[match.end() :], line=int(match[1]), column=int(match[2] or 1))
