"""Temperatures that training itself moves, learned or by an entropy: where they ended, and what they gain.

What learned ones gain is a secondary answer. They are those of the baseline, from where it has them, at one
of two learning rates; what the winner is compared with does not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import geometric_mean

from tempopt.storage.rows import Kind, Measurement, Parameters
from tempopt.storage.ticket_queries import is_usable, last_values, parameters_of
from tempopt.temperature import LEARNED
from tempopt.training.messages import LEARNED_CURVE
from tempopt.verdict.explanation import LEARNED_ARM
from tempopt.verdict.inference import share_of
from tempopt.verdict.paired_evidence import Evidence, PairedResult
from tempopt.verdict.statistics.fieller import Ratio

Ends = dict[str, tuple[float, float, float]]
"""Temperatures at the end of training by name, attention's by the number of its layer: geometric mean, lowest
and highest over the runs."""


def final_temperatures(
    evidence: Evidence,
    measurements: Iterable[Measurement],
    arm: str,
    curve: str,
    kind: Kind = "confirm",
) -> Ends:
    """Return where the temperatures of an arm's runs ended.

    Args:
        evidence: The pairs of the verdict's round.
        measurements: What the confirm runs measured.
        arm: The arm.
        curve: What the names of the measurements begin with.
        kind: Kind of the runs.
    """
    ticket_ids = {
        ticket.id
        for of_round in evidence.rounds
        for ticket in evidence.tickets(kind, arm, of_round)
        if is_usable(ticket)
    }
    last_taus = last_values(
        (measurement for measurement in measurements if measurement.ticket_id in ticket_ids), curve
    )
    taus = {name: list(values.values()) for name, values in last_taus.items()}
    return {name: (geometric_mean(values), min(values), max(values)) for name, values in taus.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Trainings that learn the temperatures beside the weights.

    Args:
        params: Parameters of the runs.
        answer: What they gain over the baseline.
        winner_over_it: What the winner gains over them; None if no pair of both is left.
        share: What they gain over the baseline as a share of what the winner gains over it; None unless the
            total gain is significant.
        ends: The temperatures at the end of training.
    """

    params: Parameters
    answer: PairedResult
    winner_over_it: PairedResult | None
    share: Ratio | None
    ends: Ends

    @property
    def lr_ratio(self) -> float:
        """Learning rate of ln τ in ratio to that of the weights."""
        return float(self.params[LEARNED])


def evaluate_learned_arm(
    evidence: Evidence, measurements: Iterable[Measurement], total: PairedResult
) -> Learned | None:
    """Return the gain of learned temperatures; None if none were trained, or no pair of theirs is complete.

    Args:
        evidence: The pairs of the verdict's round.
        measurements: What the runs measured.
        total: The winner's gain over τ = 1.
    """
    params = parameters_of(evidence.tickets("ablation", LEARNED_ARM, evidence.rounds[-1]), LEARNED_ARM)
    if params is None:
        return None
    runs, baseline = evidence.runs(LEARNED_ARM, "ablation"), evidence.runs("baseline")
    answer = evidence.compare(runs, baseline)
    if answer is None:
        return None
    return Learned(
        params=params,
        answer=answer,
        winner_over_it=evidence.compare(evidence.runs("search"), runs),
        share=share_of(evidence, runs, baseline) if total.significant else None,
        ends=final_temperatures(evidence, measurements, LEARNED_ARM, LEARNED_CURVE, kind="ablation"),
    )
