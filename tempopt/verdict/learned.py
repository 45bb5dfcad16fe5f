"""Temperatures that training changes, learned or by entropy control: final values and gain.

The gain of learned temperatures is a secondary result. They are learned at the baseline, from its
temperatures, at one of two learning rates; the references of the winner do not depend on them.
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
"""Temperatures at the end of training by name (attention's by the number of its layer): geometric mean,
lowest and highest over the runs.
"""


def final_temperatures(
    evidence: Evidence,
    measurements: Iterable[Measurement],
    arm: str,
    curve: str,
    kind: Kind = "confirm",
) -> Ends:
    """Return the final temperatures of an arm's runs.

    Args:
        evidence: The pairs of the verdict's round.
        measurements: Measurements of the confirm runs.
        arm: The arm.
        curve: Prefix of the names of the measurements.
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
    """Trainings that learn the temperatures together with the weights.

    Args:
        params: Parameters of the runs.
        answer: Their gain over the baseline.
        winner_over_it: The winner's gain over them; None if no pair of both is complete.
        share: Their gain over the baseline as a share of the winner's; None unless the primary gain is
            significant.
        ends: The temperatures at the end of training.
    """

    params: Parameters
    answer: PairedResult
    winner_over_it: PairedResult | None
    share: Ratio | None
    ends: Ends

    @property
    def lr_ratio(self) -> float:
        """Learning rate of ln τ as a ratio to that of the weights."""
        return float(self.params[LEARNED])


def evaluate_learned_arm(
    evidence: Evidence, measurements: Iterable[Measurement], primary: PairedResult
) -> Learned | None:
    """Return the gain of learned temperatures; None if none were trained, or no pair is complete.

    Args:
        evidence: The pairs of the verdict's round.
        measurements: Measurements of the runs.
        primary: The winner's gain over τ = 1.
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
        share=share_of(evidence, runs, baseline) if primary.significant else None,
        ends=final_temperatures(evidence, measurements, LEARNED_ARM, LEARNED_CURVE, kind="ablation"),
    )
