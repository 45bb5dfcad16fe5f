"""Judgement, the result of ``tempopt judge``: as text and as JSON; computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tempopt.report.comparison_text import (
    comparison_notes,
    decision_finding,
    diverges_too_often,
    failure_text,
    noise_text,
    same_values_text,
    variant_text,
)
from tempopt.report.decision import decide_comparison
from tempopt.report.finding import Finding, comparison_finding, facts
from tempopt.report.findings import render_lines
from tempopt.report.verdict_json import comparison_json
from tempopt.storage.rows import TicketRow
from tempopt.verdict.judgement import ValuesBySeed
from tempopt.verdict.set_comparison import Comparison, Variant
from tempopt.verdict.statistics.paired_tests import Direction, PairedTest

_MAX_SEEDS = 10


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Judgement:
    """Comparison of existing values of variants with a baseline.

    Args:
        comparison: The baseline, ``comparison.reference``, and the result of each variant.
        values: Value of each run by variant and seed; None if the run failed.
        seeds_needed: Seeds with which a new test shows a true gain of the measured size with probability 80
            %; None: a difference is shown, no gain was measured, or more seeds may not show it.
        direction: Whether larger or smaller values are better.
        metric: Name of the values.
        runs: Runs of a study; always empty.
    """

    comparison: Comparison
    values: Mapping[str, ValuesBySeed]
    seeds_needed: Mapping[str, int | None]
    direction: Direction
    metric: str = "value"
    runs: tuple[TicketRow, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """The statements, the decision first."""
        comparison, variants = self.comparison, self.comparison.variants
        findings = [decision_finding(self, comparison)]
        findings += facts("reference", [f"{self._mean_text(comparison.reference)}, the reference."])
        for variant in variants:
            text = self._mean_text(variant.name)
            if len(variants) > 1:
                text += f"; gain {variant_text(variant, comparison)}"
            findings.append(comparison_finding("variant", f"{text}.", variant.answer_by_values))
        findings += facts("note", ["a gain with + is better."])
        findings += facts("note", comparison_notes(self, comparison))
        for variant in variants:
            findings += facts("caveat", self._caveats(variant))
        return findings

    def to_json(self) -> dict[str, Any]:
        """Return the documented data of ``tempopt judge --json``, without infinities."""
        decision, comparison = decide_comparison(self), comparison_json(self.comparison)
        for variant, data in zip(self.comparison.variants, comparison["variants"], strict=True):
            test = variant.answer and variant.answer.paired
            sizes = test and test.sample_sizes
            data |= {
                "test": test and ("welch" if sizes else "t"),
                "sample_sizes": sizes and list(sizes),
                "seeds_needed": self.seeds_needed[variant.name],
                "more_seeds": test and self._more_seeds(variant.name, test),
            }
        return {
            "metric": self.metric,
            "direction": self.direction,
            "decision": decision and decision.to_json(),
            "findings": [finding.to_json() for finding in self.findings],
            "comparison": comparison,
        }

    def __str__(self) -> str:
        """Return the output of ``tempopt judge``."""
        return "\n".join(render_lines(self.findings))

    def __repr__(self) -> str:
        """Return the first line."""
        return f"Judgement({self.findings[0].text!r})"

    def _mean_text(self, name: str) -> str:
        values = self.values[name].values()
        failed = sum(value is None for value in values)
        mean = self.comparison.means.get(name)
        text = "no value" if mean is None else f"mean {mean:.5g}"
        num_complete = len(values) - failed
        seeds = f" of {num_complete} seed{'s' * (num_complete != 1)}" if num_complete else ""
        return f"{name}: {text}{seeds}{f', {failed} failed' if failed else ''}"

    def _more_seeds(self, name: str, test: PairedTest) -> int | None:
        """Return the number of needed seeds beyond the compared ones."""
        num_needed = self.seeds_needed[name]
        return None if num_needed is None else max(0, num_needed - min(test.sample_sizes or (test.n_pairs,)))

    def _caveats(self, variant: Variant) -> Iterator[str]:
        names, answer = (variant.name, self.comparison.reference), variant.answer
        if answer is None:
            return
        test = answer.paired
        if test.sample_sizes is not None:
            yield (
                f"{' and '.join(names)} have fewer than two seeds in common, so they are compared as "
                "independent samples (Welch's t-test)."
            )
        elif answer.dropped:
            for name, peer in (names, names[::-1]):
                if unmatched := [seed for seed in self.values[name] if seed not in self.values[peer]]:
                    listing = ", ".join(unmatched[:_MAX_SEEDS])
                    more = f" and {len(unmatched) - _MAX_SEEDS} more" if unmatched[_MAX_SEEDS:] else ""
                    yield f"not in pairs, as {peer} lacks them: seeds {listing}{more} of {name}."
        if answer.diverged or answer.reference_diverged:
            end = "; so its gain does not count" if diverges_too_often(answer) else ""
            failures = failure_text(variant, self.comparison)
            yield f"{failures} (counted with the worst value of both variants){end}."
        if text := same_values_text(answer, *names, variant.name):
            yield text
        if text := noise_text(answer, variant.name):
            yield f"{text}."
        if (more_seeds := self._more_seeds(variant.name, test)) is not None:
            yield (
                f"{more_seeds} more seeds would show a gain of {variant.name} of the measured size: a new "
                f"test with {self.seeds_needed[variant.name]} seeds in all shows it with 80 % chance."
            )
