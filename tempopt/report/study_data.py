"""StudyData: the facts of a study as it stands, assembled from its rows; renderers read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import Kind, PriorRuns, StudyStanding, TicketRow
from tempopt.storage.ticket_queries import is_usable, of_kind, to_maximize
from tempopt.temperature import training_key
from tempopt.verdict.recommendation import Recommendation
from tempopt.verdict.set_comparison import Comparison
from tempopt.verdict.statistics.paired_tests import Direction
from tempopt.verdict.verdict import Verdict, find_valid_earlier_verdict

Curve = tuple[tuple[int, float], ...]
"""What a run measured over its training: optimizer step and value, by step."""


class ComparedData(Protocol):
    """What the words of a comparison are made of: a study, or values that were given."""

    @property
    def comparison(self) -> Comparison | None: ...
    @property
    def metric(self) -> str: ...
    @property
    def direction(self) -> Direction: ...
    @property
    def runs(self) -> tuple[TicketRow, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounts:
    """How far the tickets of one kind are.

    Args:
        requested: Tickets asked for; None while it is not known which candidates there will be.
        failed: Of which every attempt was lost.
        withdrawn: Asked for, and not begun because the study was stopped.
    """

    requested: int | None
    done: int
    running: int
    waiting: int
    failed: int
    withdrawn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineStats:
    """The arm ``baseline`` on its own seeds: mean and standard deviation (None for one run) of n runs."""

    mean: float
    sd: float | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best complete trial of the search; its value is a winner's, never the gain to expect."""

    number: int | None
    value: float
    params: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the runs took.

    Args:
        train_seconds: Training seconds of all runs, all attempts.
        checkpoint_seconds: Part of the training seconds that went into writing checkpoints.
        gpu_seconds: Seconds of cards, a share of one counting as that share; None if no run was on a card.
        peak_memory: Most bytes that a run had allocated on one card; None if none was on a card.
    """

    train_seconds: float
    checkpoint_seconds: float
    gpu_seconds: float | None = None
    peak_memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyData:
    """The facts of one study as it stands.

    Args:
        spec: What was asked.
        state: ``done``; else ``running`` if an agent is at work on it, ``paused`` if none is.
        agents: Number of agents at work: those whose runs have shown progress lately.
        tickets: Progress by kind.
        trials: Search tickets by ``complete``, ``pruned``, ``diverged``, ``failed`` and ``running``.
        baseline: The arm ``baseline`` during the search; None before its first complete run.
        best: Best complete search trial in the search space of now; None before the first.
        winner: Parameters that the verdict is about, or without one those that choosing has settled on.
        verdict: The four answers of the last round that was confirmed; None before the first was.
        earlier_verdicts: Those of the rounds before, oldest first.
        cost: What it took so far.
        round: The round that is being worked on, or was last; above the verdict's while it is not confirmed.
        lost: Tickets of which attempts were lost, those first that have failed for good.
        alone: Tickets that needed a card to themselves, having run out of its memory beside others.
        created: When the study was begun, in UTC.
        runs: Every ticket in the order of work.
        curves: Ticket id to the validations during training; empty unless measurements were loaded.
        maps: Ticket id to what the heads of its attention attend to
            (:mod:`tempopt.training.attention_maps`), of the first pair of confirming runs.
        measured: Ticket id to what else was measured, by name (``test``, ``test:constant=0.5``,
            ``entropy/0/1`` for layer and head); empty unless measurements were loaded.
        earlier: What the study keeps of earlier ones; empty unless measurements were loaded.
        comparison: Of a study that compares given parameter sets what it found, once it is over; else None.
    """

    spec: StudySpec
    state: StudyStanding
    agents: int
    tickets: dict[Kind, RunCounts]
    trials: dict[str, int]
    baseline: BaselineStats | None
    best: Best | None
    winner: dict[str, Any] | None
    verdict: Verdict | None
    cost: Cost
    round: int
    lost: list[TicketRow]
    alone: list[TicketRow]
    created: datetime
    runs: tuple[TicketRow, ...]
    curves: Mapping[int, Curve] = field(default_factory=dict)
    measured: Mapping[int, Mapping[str, Curve]] = field(default_factory=dict)
    maps: Mapping[int, Any] = field(default_factory=dict)
    earlier: PriorRuns = ()
    comparison: Comparison | None = None
    earlier_verdicts: tuple[Verdict, ...] = ()

    @property
    def name(self) -> str:
        """Name of the study."""
        return self.spec.study.name

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return self.spec.study.metric

    @property
    def direction(self) -> Direction:
        """Which values of the metric are better."""
        return self.spec.study.direction

    @property
    def valid_earlier_verdict(self) -> Verdict | None:
        """The earlier verdict whose recommendation stays valid, where the latest changes nothing."""
        return (
            None if self.verdict is None else find_valid_earlier_verdict(self.verdict, self.earlier_verdicts)
        )

    @property
    def recommendation(self) -> Recommendation | None:
        """What is to be done now: what the latest verdict recommends, or an earlier one that stays valid."""
        verdict = self.valid_earlier_verdict or self.verdict
        return None if verdict is None else verdict.recommendation

    @property
    def best_baseline(self) -> BaselineStats | None:
        """The best baseline run of the search alone, where they are tuned (``ordinary_names``); else None."""
        best = best_of(of_kind(self.runs, "baseline"), self.direction) if self.spec.ordinary_names else None
        return None if best is None else BaselineStats(mean=best.value, sd=None, n=1)

    @property
    def num_ended(self) -> int:
        """Number of runs that ended, well or not."""
        return sum(count.done + count.failed for count in self.tickets.values())

    def has_trial(self, parameters: Mapping[str, Any]) -> bool:
        """Return whether a run of the search has trained with these parameters."""
        kinds = ("baseline", "constant", "search")
        trials = (run.parameters for run in self.runs if run.kind in kinds and run.parameters is not None)
        return training_key(parameters) in map(training_key, trials)

    @property
    def plan(self) -> tuple[str, dict[str, Any] | None]:
        """What plots show, and its parameters: what is recommended, else the winner or the best trial."""
        advice = self.recommendation
        if advice is not None and advice.action_without_training not in ("change_nothing", "inference_only"):
            return "recommended", advice.parameters
        if self.winner is not None:
            return "winner", self.winner
        return "best trial", None if self.best is None else self.best.params


def best_of(search: Sequence[TicketRow], direction: Direction) -> Best | None:
    values = [(t, t.value) for t in search if is_usable(t) and t.value is not None]
    if not values:
        return None
    ticket, value = max(values, key=lambda pair: to_maximize(pair[1], direction))
    return Best(number=ticket.trial_number, value=value, params=dict(ticket.parameters or {}))
