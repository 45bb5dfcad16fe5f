"""Finding: one statement of a verdict as data, which terminal, report, note and JSON render."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tempopt.report.formatting import finite
from tempopt.verdict.paired_evidence import PairedResult

TESTS = {
    "t": "paired t-test",
    "sign_flip": "sign-flip permutation test",
}
DATA = {"test": "test", "validate": "validation"}
State = Literal["shown", "worse", "not_shown", "fact"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One statement of a verdict, which terminal, report, note and JSON render.

    Args:
        kind: What it is about, as in ``decision``, ``constants`` or ``cost``.
        text: The statement as a sentence.
        details: Statements below it.
        state: ``shown``, ``worse`` or ``not_shown`` of a comparison; ``fact`` of everything else.
        answer: The comparison; None without one.
        params: The parameter set that it is about; None without one.
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
        about = "winner" if self.kind == "decision" and self.params is not None else None
        return {**data, **numbers, "params": self.params, "about": about}


_NUMBERS = ("gain", "ci_low", "ci_high", "p_value", "alpha", "n_pairs")


def state_of(answer: PairedResult) -> Literal["shown", "worse", "not_shown"]:
    """Return what a comparison shows."""
    return "shown" if answer.significant else "worse" if answer.worse else "not_shown"
