"""Whole studies by several ways to search, which count what their answer costs in optimizer steps.

A way is a part of a spec: the default sampler, the same over schedules with common beginnings, a population,
or a search on a proxy. All ways ask the primary question alone, whether the winner is better than τ = 1:
without init-only and learned runs, without an ablation, and with one constant. A study goes on, round by
round with more trials, until the interval of its primary answer excludes 0 or it has had its rounds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.simulated.whole import Whole, with_study
from tempopt.confirmation.pairs import winner_of
from tempopt.records.rows import TicketRow
from tempopt.spec.model_sizes import full_size, size_of
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import steps_until

Parameters = Mapping[str, Any]

ROUNDS = 3
"""Verdicts that a study has at most."""
_OF_THE_TASK = ("name", "metric", "direction", "test", "failure")
_ASKS: dict[str, Any] = {"init_only": False, "learned": False, "ablation": "none", "arms": {"constant": 1}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Which temperatures are searched.

    Args:
        prefix: Name of the temperature with a dot; attention's has none.
        low: The lowest temperature.
        high: The highest.
        starts: Temperatures that schedules with common beginnings hold at first.
    """

    prefix: str = ""
    low: float = 0.25
    high: float = 4.0
    starts: tuple[float, ...] = (0.5, 1.0, 2.0)

    def named(self, search: Mapping[str, Any]) -> dict[str, Any]:
        """Return a section ``search:`` with the temperature's name before its keys."""
        return {f"{self.prefix}{key}": each for key, each in search.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a study searches.

    Args:
        search: Its section ``search:``; of other parameters there are none.
        study: What its section ``study:`` has of its own.
        more: Trials that are added after a verdict that shows nothing.
    """

    search: Mapping[str, Any]
    study: Mapping[str, Any]
    more: int


def ways(trials: int = 8, space: Space | None = None) -> dict[str, Way]:
    """Return the ways by name.

    Args:
        trials: Whole trainings that the default search, and the population, has before its first verdict.
        space: Which temperatures are searched; None: those of attention.
    """
    space = Space() if space is None else space
    tau = {"low": space.low, "high": space.high}
    plain = space.named(
        {"temperature_init": tau, "temperature_final": tau, "schedule": ["constant", "linear", "cosine"]}
    )
    hold = {
        "schedule": ["hold_anneal"],
        "temperature_init": list(space.starts),
        "temperature_final": tau,
        "hold_fraction": [0.25, 0.5, 0.75],
    }
    proxy = {"set": {"model.width": 1}, "temperature": "same", "finalists": 3}
    population = {"name": "population", "members": trials, "intervals": 5}
    current = {"validate_at": "current"}
    made = {
        "plain": Way(search=plain, study={"trials": trials, **current}, more=trials),
        "hold": Way(search=space.named(hold), study={"trials": trials, **current}, more=trials),
        "population": Way(
            search=space.named({"temperature_init": tau}), study={"sampler": population}, more=5 * trials
        ),
        "proxy": Way(search=plain, study={"trials": 3 * trials, **current, "proxy": proxy}, more=3 * trials),
    }
    # a population searches attention's temperature alone
    return {name: way for name, way in made.items() if name != "population" or not space.prefix}


def asking(spec: StudySpec, way: Way, **study: Any) -> StudySpec:
    """Return a study that searches in a way and asks the primary question alone."""
    data = spec.to_json()
    kept = {key: data["study"][key] for key in _OF_THE_TASK if data["study"].get(key) is not None}
    own = {**kept, "seeds": {"confirm": {"min": 4, "max": 16}}, **_ASKS, **way.study, **study}
    return with_study(StudySpec.from_json({**data, "study": own, "search": dict(way.search)}))


class Answerable(Protocol):
    """A world whose trainings may be ended where a member's interval ends."""

    rungs: tuple[int, ...]
    total_steps: int

    def train(self, parameters: Parameters, seed: int) -> Any:
        """Return a training; the same for the same parameters and seed."""

    def reached(self, parameters: Parameters, seed: int, until: float) -> float:
        """Return what a validation shows at a progress, at the temperature of the moment."""

    def worth(self, parameters: Parameters) -> float:
        """Return what a parameter set comes to in the mean over seeds; more is better."""


@dataclass(slots=True)
class Steps:
    """Optimizer steps of a study so far.

    Args:
        full: At full size.
        proxy: Those of the proxy.
        by_stage: At full size, by what they are for: ``search`` with the arms beside it, ``prove``.
    """

    full: int = 0
    proxy: int = 0
    by_stage: dict[str, int] = field(default_factory=lambda: {"search": 0, "prove": 0})

    def add(self, kind: str, steps: int, *, small: bool) -> None:
        """Count the steps of a run that nobody had trained before."""
        assert steps >= 0
        if small:
            self.proxy += steps
            return
        self.full += steps
        self.by_stage["search" if kind in ("baseline", "constant", "search") else "prove"] += steps


def equivalent(full: float, proxy: float, share: float) -> float:
    """Return steps at full size that cost as much as these.

    Args:
        full: Steps at full size.
        proxy: Steps of the proxy.
        share: What a step of the proxy costs, in steps at full size, 0 to 1.
    """
    assert 0.0 <= share <= 1.0
    return full + share * proxy


class Priced(Whole):
    """A study in memory that knows what it has trained of either size.

    Args:
        world: What trainings come to at full size.
        spec: The study's spec.
        small: What those of the proxy come to; None: there is none.
    """

    def __init__(self, world: Any, spec: StudySpec, small: Any = None) -> None:
        super().__init__(world, spec)
        self._full, self._small, self.spec = world, small, spec
        self.counted = Steps()

    def _do(self, ticket: TicketRow) -> None:
        small = size_of(ticket, self.spec) < full_size(self.spec)
        self._world = self._small if small else self._full
        before = self.steps
        super()._do(ticket)
        self.counted.add(ticket.kind, self.steps - before, small=small)

    def _watched(self, ticket: TicketRow, training: Any) -> tuple[Any, dict[int, float]]:
        population = self.spec.study.population
        if population is None or ticket.kind != "search":
            return super()._watched(ticket, training)
        until, total = population.until(ticket.number), self._full.total_steps
        value = self._full.reached(ticket.parameters, ticket.seed, until or 1.0)
        last = total if until is None else steps_until(until, total)
        return ("complete" if until is None else "pruned"), {last: value}


def answered(study: Priced, worth: Any, more: int, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Carry a study out until its answer is shown, and return a record of each verdict.

    Args:
        study: The study.
        worth: Returns the true mean of a parameter set, more being better.
        more: Trials that are added after each verdict that shows nothing.
        rounds: Verdicts at most.
    """
    found = []
    for number, verdict in enumerate(study.rounds(rounds, more)):
        counted = study.counted
        current = verdict if verdict is not None and verdict.round == number else None
        named = winner_of(study.rows, study.spec, of_round=number)
        gain = None if current is None else current.total.paired
        shown = gain is not None and bool(current and current.total.significant)
        # the interval is given at the level of this look, so that both say the same
        assert gain is None or shown == (gain.ci_low > 0) or gain.n_pairs < 2, (shown, gain)
        found.append(
            {
                "full": counted.full,
                "proxy": counted.proxy,
                **counted.by_stage,
                "shown": shown,
                "gain": None if gain is None else gain.gain,
                "low": None if gain is None or not math.isfinite(gain.ci_low) else gain.ci_low,
                "named": None if named is None else dict(named),
                "worth": worth({} if named is None else named),
            }
        )
        if shown:
            break
    return found


def keep(record: Mapping[str, Any], lines: Path) -> None:
    """Write one record down."""
    lines.parent.mkdir(parents=True, exist_ok=True)
    with lines.open("a") as file:
        file.write(json.dumps(record) + "\n")


def known(lines: Path) -> list[dict[str, Any]]:
    """Return the records that there are; the last line of what was killed may be half a line."""
    if not lines.exists():
        return []
    return [json.loads(each) for each in lines.read_text().splitlines(keepends=True) if each.endswith("\n")]


def until_shown(records: Iterable[Mapping[str, Any]], share: float) -> list[float]:
    """Return the steps of each study until its answer was shown, in steps at full size; ∞: it never was."""
    found = []
    for record in records:
        last = record["verdicts"][-1]
        cost = equivalent(last["full"], last["proxy"], share)
        found.append(cost if last["shown"] else math.inf)
    return found


def median(values: Sequence[float]) -> float:
    """Return the median, the upper one of two in the middle: what was not shown counts as ∞."""
    return sorted(values)[len(values) // 2]
