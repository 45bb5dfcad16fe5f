"""What is to be seen of a search trial in Optuna beside its value: a few numbers, by which it can be sorted.

Their names are no names of parameters, so that a table holds both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean, geometric_mean

from tempopt.storage.rows import Measurement, TicketRow
from tempopt.storage.ticket_queries import last_values
from tempopt.temperature import (
    TemperatureParameters,
    is_controlled,
    parameters_of_temperature,
    temperatures_of,
)
from tempopt.training.messages import CONTROLLED_CURVE

ENTROPY = "entropy/"
"""Measurements of the attention entropy begin so; the layer and the head follow."""


def build_trial_user_attrs(
    ticket: TicketRow, seconds: float, gain: float | None, measurements: Iterable[Measurement]
) -> dict[str, int | float]:
    """Return the numbers of a trial that has ended; what cannot be said of it is left out.

    ``tau_init``, ``tau_final``: attention's temperature at progress 0 and 1, in the geometric mean over the
    layers, or the last one that was measured where it follows a target of the entropy;
    ``contrast_init``, ``contrast_final``: that of a temperature named ``contrast``.
    ``gain``: value of a complete run less the mean of the baseline's runs, > 0 being better; of a trial that
    ended before all of these had there is none.
    ``entropy_final``: attention entropy at the end, a share of ln n in [0, 1], in the mean over all heads.
    ``seconds``: of training, all attempts. ``seed``: of the run.

    Args:
        ticket: As it was taken; one that has no trial has no attributes.
        seconds: Training seconds of this attempt.
        gain: As far as it is known.
        measurements: What was measured at its end.
    """
    if ticket.trial_number is None:
        return {}
    attributes: dict[str, int | float] = {}
    parameters = ticket.parameters or {}
    for name in temperatures_of(parameters):
        level = (
            TemperatureParameters.from_mapping(parameters_of_temperature(parameters, name)).plan(1).schedule
        )
        attributes |= {f"{name or 'tau'}_init": level(0.0), f"{name or 'tau'}_final": level(1.0)}
    measurements = list(measurements)
    if is_controlled(parameters):
        ends = _ends(CONTROLLED_CURVE, measurements)
        attributes["tau_final"] = geometric_mean(ends) if ends else math.nan
    if gain is not None:
        attributes["gain"] = gain
    if entropies := _ends(ENTROPY, measurements):
        attributes["entropy_final"] = fmean(entropies)
    attributes |= {"seconds": ticket.seconds + seconds, "seed": ticket.seed}
    return {name: number for name, number in attributes.items() if math.isfinite(number)}


def _ends(prefix: str, measurements: Iterable[Measurement]) -> list[float]:
    """Return the last value of each measurement of a ticket whose name begins so."""
    return [
        value
        for values_by_ticket in last_values(measurements, prefix).values()
        for value in values_by_ticket.values()
    ]
