"""Can the answers of a verdict be trusted? Whole confirmations simulated, in worlds whose truth is known."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import arms_of
from tempopt.verdict.pairs import find_winner
from tempopt.verdict.stages import next_tickets
from tempopt.verdict.verdict import Verdict, compute_verdict
from tests.simulated import ModelledStudy, SimulatedStudy, Worth
from tests.tiers import long_but
from tests.verdict.verdicts import ALPHA

Noise = Callable[[np.random.Generator, int], Any]
NOISES: dict[str, Noise] = {
    "normal": lambda rng, size: rng.normal(0, 1, size),
    "heavy": lambda rng, size: rng.standard_t(3, size),
    "skewed": lambda rng, size: rng.exponential(1, size),
    "bimodal": lambda rng, size: rng.normal(0, 0.1, size) - 3 * (rng.random(size) < 0.25),
    "discrete": lambda rng, size: rng.binomial(50, 0.9, size) / 50,
}


def simulate_study(
    run_ticket: Any, make_ticket: Any, spec: StudySpec, draws: Iterator[float], gain: float, naive: bool
) -> list[TicketRow]:
    """Return a whole study in which every parameter set has the same noise, the search's plus ``gain``.

    ``naive``: the winner is estimated by the very runs that made it the winner.
    """

    def value(arm: str) -> float:
        return next(draws) + (gain if arm == "search" else 0.0)

    tickets = [make_ticket("baseline", number, value("baseline")) for number in range(3)]
    tickets += [
        make_ticket(arm, number, value(arm), parameters={"temperature_init": tau + number})
        for arm, tau in (("constant", 2.0), ("search", 2.5))
        for number in range(10)
    ]
    while new_tickets := next_tickets(tickets, spec):
        winner = find_winner(tickets, spec)
        chosen_values = {
            t.pair: t.value for t in tickets if (t.kind, t.arm, t.parameters) == ("choose", "search", winner)
        }
        confirms = new_tickets[0].kind == "confirm"
        for t in new_tickets:
            reuses = naive and confirms and "search" in arms_of(t)
            tickets.append(run_ticket(t, chosen_values[t.pair] if reuses else value(arms_of(t)[0])))
    return tickets


def tally(spec: StudySpec, studies: Iterator[list[TicketRow]], truth: float) -> tuple[int, int]:
    """Return how often a gain is claimed, and how often the interval covers."""
    claims = num_covered = 0
    for tickets in studies:
        verdict = compute_verdict(tickets, [], spec)
        assert verdict is not None
        total = verdict.primary.paired
        # A mean of accuracies that are multiples of 1/50 is off by rounding.
        num_covered += total.ci_low - 1e-9 <= truth <= total.ci_high + 1e-9
        claims += verdict.primary.significant
    return claims, num_covered


def is_within_level(misses: int, studies: int, level: float = ALPHA) -> bool:
    """Whether so many misses are no more than chance makes of a level (p > 0.001)."""
    return bool(stats.binom.sf(misses - 1, studies, level) > 1e-3)


@pytest.fixture
def simulation(make_spec: Any, make_ticket: Any, run_ticket: Any) -> Callable[..., tuple[int, int]]:
    def simulate(
        noise: str, studies: int, *, gain: float = 0.0, naive: bool = False, candidates: int = 5
    ) -> tuple[int, int]:
        seeds = {"choose": 8 if naive else 4, "confirm": 8}
        spec = make_spec(candidates=candidates, seeds=seeds)
        rng = np.random.default_rng(20250101)
        samples = NOISES[noise](rng, 256 * studies).reshape(studies, 256).tolist()
        runs = (simulate_study(run_ticket, make_ticket, spec, iter(draws), gain, naive) for draws in samples)
        return tally(spec, runs, gain)

    return simulate


@pytest.mark.parametrize("noise", [long_but(name, {"normal"}, name) for name in NOISES])
def test_where_nothing_helps_a_fortieth_of_the_studies_claims_a_gain_at_most(
    simulation: Any, noise: str
) -> None:
    claims, num_covered = simulation(noise, 150)
    assert is_within_level(claims, 150, ALPHA / 2), claims
    assert is_within_level(150 - num_covered, 150), num_covered


@pytest.mark.parametrize("noise", [long_but(name, {"normal"}, name) for name in NOISES])
def test_the_intervals_cover_a_gain_that_is_there(simulation: Any, noise: str) -> None:
    _, num_covered = simulation(noise, 100, gain=0.5)
    assert is_within_level(100 - num_covered, 100), num_covered


@pytest.mark.long
def test_estimating_on_the_seeds_that_chose_would_be_caught(
    simulation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # no candidate leaves the race, so that the winner has a run on each of them
    monkeypatch.setattr("tempopt.storage.racing.ALPHA", 0.0)
    claims, num_covered = simulation("normal", 1000, naive=True, candidates=10)
    assert not is_within_level(claims, 1000, ALPHA / 2)
    assert not is_within_level(1000 - num_covered, 1000)


def test_a_gain_of_three_times_the_noise_is_found_nearly_always(simulation: Any) -> None:
    claims, _ = simulation("normal", 50, gain=3.0)
    assert claims > 45


# ---- worlds in which other parameters matter

SPACE = {
    "temperature_init": {"low": 0.25, "high": 4.0},
    "lr": {"low": 1e-4, "high": 1e-1, "log": True},
}
OTHERS = {"b": {"low": 0.0, "high": 1.0}, "c": {"low": 0.0, "high": 1.0}}


def matters(world: random.Random, ridge: float = 0.0) -> Worth:
    """Return a world in which other parameters matter, and tau only by where the best rate lies.

    ``ridge``: by how many decades the best rate moves with each doubling of tau; no best is better.
    """
    best = {name: world.random() for name in ("lr", "b", "c")}
    noise: dict[Any, float] = {}

    def worth(t: TicketRow) -> float:
        p = t.parameters
        assert p is not None
        lr_position = (np.log10(p["lr"]) + 4) / 3 + ridge * np.log2(p["temperature_init"]) / 3
        positions = {**p, "lr": lr_position}
        distance = sum((positions[name] - best[name]) ** 2 for name in best if name in positions)
        seed_noise = noise.setdefault(t.seed, world.gauss(0, 0.01))
        run_noise = noise.setdefault((t.seed, str(p)), world.gauss(0, 0.01))
        return float(-0.2 * distance + seed_noise + run_noise)

    return worth


def verdicts(simulated: type[SimulatedStudy], specs: list[StudySpec], ridge: float = 0.0) -> list[Verdict]:
    """Return verdicts of worlds in which temperature does nothing but move the best rate."""
    verdicts = []
    for number, spec in enumerate(specs):
        study = simulated(spec, matters(random.Random(number), ridge)).run()
        verdict = compute_verdict(study.rows, [], spec)
        assert verdict is not None
        verdicts.append(verdict)
    return verdicts


def test_what_other_parameters_are_worth_is_not_credited_to_temperature(make_spec: Any) -> None:
    sections = {"search": {**SPACE, **OTHERS}}
    all_verdicts = verdicts(SimulatedStudy, [make_spec(sections, trials=20, seed=n) for n in range(100)])
    assert is_within_level(sum(v.primary.significant for v in all_verdicts), 100, ALPHA / 2)
    assert is_within_level(sum(v.schedule_shown for v in all_verdicts), 100, ALPHA / 2)
    assert is_within_level(
        sum(not v.primary.paired.ci_low <= 0 <= v.primary.paired.ci_high for v in all_verdicts), 100
    )


@pytest.mark.long
def test_along_a_ridge_of_temperature_and_rate_no_gain_is_shown(make_spec: Any) -> None:
    all_verdicts = verdicts(ModelledStudy, [make_spec({"search": SPACE}, seed=n) for n in range(60)], 1.0)
    assert is_within_level(sum(v.primary.significant for v in all_verdicts), 60, ALPHA / 2)
