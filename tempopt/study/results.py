"""StudyResult, the read side of a study: everything that is shown of it, assembled from its rows.

Works at every stage of a study; what is not known yet is None. Writes nothing and asks Optuna nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, get_args

from tempopt.store.rows import KINDS, Kind, Measurement, Outcome, StudyRow, StudyState, TicketRow
from tempopt.study.answers import Answer, Share, Verdict, conclude
from tempopt.study.confirm import of_kind, oriented, usable, winner_of
from tempopt.study.paired import Direction
from tempopt.study.spec import StudySpec

if TYPE_CHECKING:
    from tempopt.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Tickets:
    """How far the tickets of one kind are.

    Args:
        requested: Tickets asked for; None while it is not known which candidates there will be.
    """

    requested: int | None
    done: int
    running: int
    waiting: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The arm ``unit`` on its own seeds: mean and standard deviation (None for one run) of n runs."""

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
        pruned_saving: Training seconds that pruning saved, an estimate: the steps that the pruned trials
            did not take, at the pace of the steps that they did take.
    """

    train_seconds: float
    pruned_saving: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """One study as it stands.

    Args:
        spec: What was asked.
        state: ``running``, ``paused`` or ``done``.
        tickets: Progress by kind.
        trials: Search tickets by ``complete``, ``pruned``, ``diverged``, ``failed`` and ``running``.
        baseline: The arm ``unit`` during the search; None before its first complete run.
        best: Best complete search trial; None before the first.
        winner: Parameters that choosing has settled on; None before.
        verdict: The four answers; None before the last confirmation run.
        cost: What it took so far.
    """

    spec: StudySpec
    state: StudyState
    tickets: dict[Kind, Tickets]
    trials: dict[str, int]
    baseline: Baseline | None
    best: Best | None
    winner: dict[str, Any] | None
    verdict: Verdict | None
    cost: Cost

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

    def to_json(self) -> dict[str, Any]:
        """Return the documented data of ``tempopt show --json``; what is not known yet is null."""
        return {
            "study": self.name,
            "metric": self.metric,
            "direction": self.direction,
            "state": self.state,
            "tickets": {
                kind: {
                    "requested": count.requested,
                    "done": count.done,
                    "running": count.running,
                    "waiting": count.waiting,
                    "failed": count.failed,
                }
                for kind, count in self.tickets.items()
            },
            "trials": self.trials,
            "baseline": self.baseline
            and {"mean": self.baseline.mean, "sd": self.baseline.sd, "n": self.baseline.n},
            "best": self.best
            and {"number": self.best.number, "value": self.best.value, "params": self.best.params},
            "verdict": self.verdict and _verdict_json(self.verdict),
            "cost": {
                "train_seconds": self.cost.train_seconds,
                "pruned_saving": self.cost.pruned_saving,
            },
        }


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        **_answer_json(verdict.total),
        "n_pairs": verdict.total.paired.n_pairs,
        "significant": verdict.total.significant,
        "params": verdict.params,
        "test": verdict.test,
        "confirmed_on": verdict.confirmed_on,
        "against_constant": verdict.against_constant and _answer_json(verdict.against_constant),
        "inference_only": verdict.inference_only and _share_json(verdict.inference_only),
        "init_only": verdict.init_only and _share_json(verdict.init_only),
    }


def _share_json(share: Share) -> dict[str, Any]:
    return {**_answer_json(share.answer), "share": share.share}


def _answer_json(answer: Answer) -> dict[str, Any]:
    test = answer.paired
    return {
        "gain": test.gain,
        "ci_low": test.ci_low if math.isfinite(test.ci_low) else None,
        "ci_high": test.ci_high if math.isfinite(test.ci_high) else None,
        "p_value": test.p_value,
    }


def load(store: Store, name: str) -> StudyResult:
    """Return the study of that name as it stands.

    Raises:
        StudyNotFound: No study of that name is in the store.
    """
    row = store.load_study(name)
    tickets = store.tickets(row.id)
    compared = [t.id for t in tickets if t.kind == "confirm" and t.arm == "unit"]
    return assemble(row, tickets, store.measurements(row.id, compared))


def assemble(row: StudyRow, tickets: Sequence[TicketRow], measurements: Iterable[Measurement]) -> StudyResult:
    """Return the study as its rows tell it.

    Args:
        row: The study.
        tickets: All of its tickets.
        measurements: Those of the confirm tickets of the arm ``unit``, at least.
    """
    spec = StudySpec.from_json(row.spec)
    return StudyResult(
        spec=spec,
        state=row.state,
        tickets={kind: _count(tickets, kind, spec) for kind in KINDS},
        trials=_trials(of_kind(tickets, "search")),
        baseline=_baseline(of_kind(tickets, "unit")),
        best=_best(of_kind(tickets, "search"), spec.study.direction),
        winner=winner_of(tickets, spec),
        verdict=conclude(tickets, measurements, spec),
        cost=_cost(tickets),
    )


def _count(tickets: Sequence[TicketRow], kind: Kind, spec: StudySpec) -> Tickets:
    states = Counter(ticket.state for ticket in tickets if ticket.kind == kind)
    return Tickets(
        requested=states.total() or _planned(kind, spec),
        done=states["done"],
        running=states["running"],
        waiting=states["waiting"],
        failed=states["failed"],
    )


def _planned(kind: Kind, spec: StudySpec) -> int | None:
    """Return how many tickets there will be of a kind that has none yet, None where that is open."""
    if kind in ("unit", "constant", "search") or not spec.confirms:
        return 0
    return None


def _trials(search: Sequence[TicketRow]) -> dict[str, int]:
    outcomes = Counter("failed" if t.state == "failed" else t.outcome for t in search if t.state != "waiting")
    return {name: outcomes[name] for name in get_args(Outcome)} | {
        "running": sum(ticket.state == "running" for ticket in search)
    }


def _baseline(unit: Sequence[TicketRow]) -> Baseline | None:
    values = [run.value for run in unit if usable(run) and run.value is not None]
    if not values:
        return None
    return Baseline(mean=fmean(values), sd=stdev(values) if len(values) > 1 else None, n=len(values))


def _best(search: Sequence[TicketRow], direction: Direction) -> Best | None:
    values = [(t, t.value) for t in search if usable(t) and t.value is not None]
    if not values:
        return None
    ticket, value = max(values, key=lambda pair: oriented(pair[1], direction))
    return Best(number=ticket.trial_number, value=value, params=dict(ticket.parameters or {}))


def _cost(tickets: Iterable[TicketRow]) -> Cost:
    total, saved = 0.0, 0.0
    for ticket in tickets:
        total += ticket.seconds
        if ticket.outcome == "pruned" and ticket.steps and ticket.total_steps:
            saved += ticket.seconds * (ticket.total_steps - ticket.steps) / ticket.steps
    return Cost(train_seconds=total, pruned_saving=saved)
