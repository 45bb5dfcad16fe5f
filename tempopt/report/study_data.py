"""StudyData: the facts of a study in its present state, from its rows; renderers read it."""

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
"""Values of a run over its training: optimizer step and value, by step."""


class ComparedData(Protocol):
    """Data for the text of a comparison: a study, or given values."""

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
    """Progress of the tickets of one kind.

    Args:
        requested: Number of requested tickets; None while the candidates are unknown.
        failed: Number of tickets all of whose attempts were lost.
        withdrawn: Number of requested tickets that were not started because the study was stopped.
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
    """Cost of the runs.

    Args:
        train_seconds: Training seconds of all runs, all attempts.
        checkpoint_seconds: Part of the training seconds spent writing checkpoints.
        gpu_seconds: GPU seconds, a share of a GPU counting as that share; None if no run used a GPU.
        peak_memory: Peak of allocated bytes of a run on one GPU; None if no run used a GPU.
    """

    train_seconds: float
    checkpoint_seconds: float
    gpu_seconds: float | None = None
    peak_memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyData:
    """The facts of one study in its present state.

    Args:
        spec: The spec of the study.
        state: ``done``; otherwise ``running`` if an agent works on it, or ``paused``.
        agents: Number of working agents: those whose runs have recently made progress.
        tickets: Progress by kind.
        trials: Number of search tickets ``complete``, ``pruned``, ``diverged``, ``failed`` and ``running``.
        baseline: The arm ``baseline`` during the search; None before its first complete run.
        best: Best complete search trial in the present search space; None before the first.
        winner: Parameters of the verdict, or without one those chosen on the choosing seeds.
        verdict: Verdict of the last confirmed round; None before the first.
        earlier_verdicts: Verdicts of earlier rounds, oldest first.
        cost: Cost so far.
        round: The present round, or the last one; above the verdict's while it is not confirmed.
        lost: Tickets with lost attempts, permanently failed ones first.
        alone: Tickets that needed a whole GPU, since memory was exhausted on a shared one.
        created: When the study was created, in UTC.
        runs: All tickets, in the order of work.
        curves: Ticket id to the validations during training; empty unless measurements are loaded.
        maps: Ticket id to the maps of its attention (:mod:`tempopt.training.attention_maps`), of the first
            pair of confirming runs.
        measured: Ticket id to other measurements by name (``test``, ``test:constant=0.5``, ``entropy/0/1``
            for layer and head); empty unless measurements are loaded.
        earlier: Warm-start runs of earlier studies; empty unless measurements are loaded.
        comparison: Result of a study that compares parameter sets, once it is complete; else None.
        damaged: A line on the damaged values in the database, without which the study is shown; or empty.
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
    damaged: str = ""

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
        """Whether larger or smaller values of the metric are better."""
        return self.spec.study.direction

    @property
    def valid_earlier_verdict(self) -> Verdict | None:
        """The earlier verdict whose recommendation is still valid, if the latest changes nothing."""
        return (
            None if self.verdict is None else find_valid_earlier_verdict(self.verdict, self.earlier_verdicts)
        )

    @property
    def deciding_verdict(self) -> Verdict | None:
        """The verdict that says what to do: the earlier one that stays valid, else the latest."""
        return self.valid_earlier_verdict or self.verdict

    @property
    def recommendation(self) -> Recommendation | None:
        """What is to be done now."""
        return None if self.deciding_verdict is None else self.deciding_verdict.recommendation

    @property
    def best_baseline(self) -> BaselineStats | None:
        """The single best baseline run of the search, if these runs are tuned; else None."""
        best = best_of(of_kind(self.runs, "baseline"), self.direction) if self.spec.ordinary_names else None
        return None if best is None else BaselineStats(mean=best.value, sd=None, n=1)

    @property
    def num_ended(self) -> int:
        """Number of ended runs, failed ones included."""
        return sum(count.done + count.failed for count in self.tickets.values())

    def has_trial(self, parameters: Mapping[str, Any]) -> bool:
        """Return whether a search run was trained with these parameters."""
        kinds = ("baseline", "constant", "search")
        trials = (run.parameters for run in self.runs if run.kind in kinds and run.parameters is not None)
        return training_key(parameters) in map(training_key, trials)

    @property
    def plan(self) -> tuple[str, dict[str, Any] | None]:
        """Role and parameters of the plan in plots: recommended, else the winner or the best trial."""
        advice = self.recommendation
        if advice is not None and advice.action_without_training not in ("change_nothing", "inference_only"):
            return "recommended", advice.params
        if self.winner is not None:
            return "winner", self.winner
        return "best trial", None if self.best is None else self.best.params


def best_of(search: Sequence[TicketRow], direction: Direction) -> Best | None:
    values = [(t, t.value) for t in search if is_usable(t) and t.value is not None]
    if not values:
        return None
    ticket, value = max(values, key=lambda pair: to_maximize(pair[1], direction))
    return Best(number=ticket.trial_number, value=value, params=dict(ticket.parameters or {}))
