"""Finding: one statement of a verdict as data, which terminal, report, note and JSON render."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tempopt.report.formatting import finite
from tempopt.verdict.paired_evidence import PairedResult

PAIRED_TEST, WELCH_TEST = "paired t-test", "Welch's t-test"
DATA = {"test": "test", "validate": "validation", "program": "program's own"}
GAIN, NO_GAIN = "Gain shown", "No gain shown"
"""Outcome of a study, in a few words."""
MODELS = "proposed by the search's model"
"""Source of a parameter set whose values no trial of the search had."""
State = Literal["shown", "worse", "not_shown", "fact"]
_NUMBERS = ("gain", "ci_low", "ci_high", "p_value", "alpha", "n_pairs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One statement of a verdict, which terminal, report, note and JSON render.

    Args:
        kind: Topic, such as ``decision``, ``constants`` or ``cost``.
        text: The statement as a sentence.
        details: Statements below it.
        state: ``shown``, ``worse`` or ``not_shown`` for a comparison; ``fact`` for everything else.
        answer: The comparison; None if there is none.
        params: The parameter set of the statement; None if there is none.
    """

    kind: str
    text: str
    details: tuple[str, ...] = ()
    state: State = "fact"
    answer: PairedResult | None = None
    params: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain data without infinities."""
        test = None if self.answer is None else self.answer.paired
        numbers = {} if test is None else {name: finite(getattr(test, name)) for name in _NUMBERS}
        data = {"kind": self.kind, "state": self.state, "text": self.text, "details": list(self.details)}
        return {**data, **numbers, "params": self.params}


def facts(kind: str, texts: Iterable[str]) -> Iterator[Finding]:
    """Yield a finding of a kind for each statement without a comparison."""
    return (Finding(kind=kind, text=text) for text in texts)


def comparison_finding(
    kind: str,
    text: str,
    answer: PairedResult | None,
    params: Mapping[str, Any] | None = None,
    details: Iterable[str] = (),
) -> Finding:
    """Return the finding of a comparison with the state of its result; None: no result."""
    state: State = "fact"
    if answer is not None:
        state = "shown" if answer.significant else "worse" if answer.worse else "not_shown"
    return Finding(kind=kind, text=text, details=tuple(details), state=state, answer=answer, params=params)
