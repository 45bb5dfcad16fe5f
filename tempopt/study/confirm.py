"""Which runs prove a search: candidates, the tickets that choose among them and those that estimate.

Pure: rows in, new tickets and evaluations out. The statistics on the results are in answers.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from tempopt.store.rows import OVER, Kind, NewTicket, TicketRow
from tempopt.study.paired import Direction
from tempopt.study.space import distinct
from tempopt.temperature import TEMPERATURE_PARAMETERS
from tempopt.training.messages import Evaluation
from tempopt.training.seeds import derive

if TYPE_CHECKING:
    from tempopt.study.spec import StudySpec

Parameters = dict[str, Any]

ARMS: tuple[Kind, ...] = ("unit", "constant", "search")
"""The arms that are confirmed, in the order of their tickets."""

POSTHOC_CONSTANTS = (0.25, 0.35, 0.5, 0.7, 1.4, 2.0, 2.8, 4.0)
"""Constant temperatures that models trained at tau = 1 are evaluated under; 1 itself is measured anyway."""

OBSERVED = (("confirm", "unit"), ("confirm", "search"))
"""Kinds and arms of the runs whose attention is looked at: the winner's, and those at temperature 1."""


def over(ticket: TicketRow) -> bool:
    """Return whether nothing more will become of the ticket; one that was withdrawn is over, too."""
    return ticket.state in OVER


def finished(tickets: Iterable[TicketRow]) -> bool:
    """Return whether no ticket is waiting or running."""
    return all(over(ticket) for ticket in tickets)


def current_round(tickets: Iterable[TicketRow]) -> int:
    """Return the round that is being worked on, or was last: 0 for a study that was never enlarged."""
    return max((ticket.round for ticket in tickets), default=0)


def usable(ticket: TicketRow) -> bool:
    """Return whether the run came to its end with a finite value."""
    return ticket.outcome == "complete" and ticket.value is not None and math.isfinite(ticket.value)


def of_kind(
    tickets: Iterable[TicketRow], kind: Kind, arm: str | None = None, *, of_round: int | None = None
) -> list[TicketRow]:
    """Return the tickets of a kind (and arm, and round) by number."""
    found = [
        ticket
        for ticket in tickets
        if ticket.kind == kind and arm in (None, ticket.arm) and of_round in (None, ticket.round)
    ]
    return sorted(found, key=lambda ticket: ticket.number)


def oriented(value: float, direction: Direction) -> float:
    """Return the value with the sign under which more is better."""
    return value if direction == "maximize" else -value


def candidates(tickets: Iterable[TicketRow], k: int, direction: Direction) -> list[Parameters]:
    """Return the k best distinct parameter sets, best first, by the values of their complete runs.

    Two sets are the same if their effective parameters are; a set that was run more than once counts
    with the mean of its complete runs, and of equal values the earlier goes first.

    Args:
        tickets: The tickets of one arm.
        k: How many at most, >= 1.
        direction: Which values are better.
    """
    runs: dict[str, list[TicketRow]] = {}
    for ticket in sorted(tickets, key=lambda ticket: ticket.number):
        if usable(ticket) and ticket.parameters is not None:
            runs.setdefault(distinct(ticket.parameters), []).append(ticket)
    ranked = sorted(
        runs.values(),
        key=lambda run: oriented(fmean(t.value for t in run if t.value is not None), direction),
        reverse=True,
    )
    return [dict(run[0].parameters) for run in ranked[:k] if run[0].parameters is not None]


def _candidates_of(arm: Kind, tickets: Sequence[TicketRow], spec: StudySpec) -> list[Parameters]:
    runs = of_kind(tickets, arm)
    found = candidates(runs, spec.study.candidates, spec.study.direction)
    if not found and arm == "unit":
        # tau = 1 is what everything is measured against, also where it never trains to the end.
        begun = [dict(run.parameters) for run in runs if run.parameters is not None]
        found = begun[:1] or ([] if spec.space("unit") else [spec.parameters("unit", {})])
    return found


def choose_tickets(tickets: Sequence[TicketRow], spec: StudySpec) -> list[NewTicket]:
    """Return the tickets that choose each arm's candidate, on fresh seeds that all candidates share.

    Best of k on the very seeds that are estimated on would be a second winner's curse, so choosing
    has seeds of its own. An arm with a single candidate has nothing to choose and gets no ticket.

    Args:
        tickets: All tickets of the study, of which unit, constant and search are over.
        spec: The study's spec.

    Returns:
        The tickets of the current round; none if it has nothing to choose, or nothing to confirm.
    """
    if not spec.confirms:
        return []
    found = {arm: _candidates_of(arm, tickets, spec) for arm in ARMS}
    if not found["unit"] or not found["search"]:
        return []
    now = current_round(tickets)
    plan = [
        (pair, arm, rank, parameters)
        for pair in range(spec.study.seeds.choose)
        for arm in ARMS
        if len(found[arm]) > 1
        for rank, parameters in enumerate(found[arm])
    ]
    return [
        NewTicket(
            kind="choose",
            arm=arm,
            number=number,
            seed=_seed(spec, "choose", pair, now),
            candidate=rank,
            pair=pair,
            parameters=parameters,
            round=now,
        )
        for number, (pair, arm, rank, parameters) in enumerate(plan, next_number(tickets, "choose"))
    ]


def next_number(tickets: Iterable[TicketRow], kind: Kind) -> int:
    """Return the first number that no ticket of the kind has: numbers go on from round to round."""
    return 1 + max((ticket.number for ticket in tickets if ticket.kind == kind), default=-1)


def _seed(spec: StudySpec, kind: Kind, pair: int, of_round: int) -> int:
    later = (of_round,) if of_round else ()
    return derive(spec.study.seed, kind, pair, *later)


def pick(tickets: Sequence[TicketRow], spec: StudySpec) -> dict[Kind, Parameters]:
    """Return the chosen parameter set of each arm, as far as the arms have been decided in this round.

    The best mean over the choosing seeds wins. A candidate that diverged or was lost on some of them
    ranks below every candidate that was so on fewer; of equal means the better of the search wins.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.

    Returns:
        Arm to parameters; without the arms of which no run was complete or whose choosing is not over.
    """
    chosen: dict[Kind, Parameters] = {}
    now = current_round(tickets)
    for arm in ARMS:
        tried = of_kind(tickets, "choose", arm, of_round=now)
        if tried:
            found = [_best(tried, spec.study.direction)] if finished(tried) else []
        else:
            found = _candidates_of(arm, tickets, spec)
        if len(found) == 1:
            chosen[arm] = found[0]
    return chosen


def _best(tried: Sequence[TicketRow], direction: Direction) -> Parameters:
    def rank(candidate: int) -> tuple[int, float, int]:
        runs = [ticket for ticket in tried if ticket.candidate == candidate]
        values = [oriented(t.value, direction) for t in runs if usable(t) and t.value is not None]
        mean = fmean(values) if values else -math.inf
        return len(runs) - len(values), -mean, candidate

    best = min((t.candidate for t in tried if t.candidate is not None), key=rank)
    return next(dict(t.parameters) for t in tried if t.candidate == best and t.parameters is not None)


def confirm_tickets(tickets: Sequence[TicketRow], spec: StudySpec) -> list[NewTicket]:
    """Return the tickets that estimate: every arm's choice, and init-only, on one set of new seeds.

    The initialisation-only run takes one thing away from the winner, the temperature during training:
    its temperature parameters are the unit arm's, all others (the learning rate, ...) the winner's, and
    the agent bakes the winner's temperature at step 0 into its initial weights.

    Args:
        tickets: All tickets of the study, which are all over.
        spec: The study's spec.

    Returns:
        ``confirm`` tickets of the current round pair by pair, then its ``init_only``; none if no search
        run was complete.
    """
    chosen = pick(tickets, spec) if spec.confirms else {}
    if not {"unit", "search"} <= chosen.keys():
        return []
    now = current_round(tickets)
    seeds = [_seed(spec, "confirm", pair, now) for pair in range(spec.study.seeds.confirm)]
    plan = [(pair, seed, arm) for pair, seed in enumerate(seeds) for arm in ARMS if arm in chosen]
    neutral = {n: value for n, value in chosen["unit"].items() if n in TEMPERATURE_PARAMETERS}
    others = {n: value for n, value in chosen["search"].items() if n not in TEMPERATURE_PARAMETERS}
    return [
        NewTicket(
            kind="confirm", arm=arm, number=number, seed=seed, pair=pair, parameters=chosen[arm], round=now
        )
        for number, (pair, seed, arm) in enumerate(plan, next_number(tickets, "confirm"))
    ] + [
        NewTicket(
            kind="init_only",
            arm="init_only",
            number=number,
            seed=seed,
            pair=pair,
            parameters=neutral | others,
            round=now,
        )
        for number, (pair, seed) in enumerate(enumerate(seeds), next_number(tickets, "init_only"))
    ]


def winner_of(
    tickets: Sequence[TicketRow], spec: StudySpec, *, of_round: int | None = None
) -> Parameters | None:
    """Return the search arm's choice: what is being confirmed, or else what choosing has decided.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
        of_round: The round whose choice is asked for; None for the current one.
    """
    now = current_round(tickets)
    confirmed = of_kind(tickets, "confirm", "search", of_round=now if of_round is None else of_round)
    if confirmed:
        return confirmed[0].parameters
    chosen = of_kind(tickets, "choose", of_round=now)
    if of_round in (None, now) and chosen and finished(chosen):
        return pick(tickets, spec).get("search")
    return None


def counted(kind: Kind, spec: StudySpec) -> str:
    """Return the name of the evaluation whose value becomes the value of a ticket of this kind."""
    on = _dataloader(kind, spec)
    return on if spec.study.validate_at == "final" else f"{on}_current"


def constant_name(on: str, temperature: float) -> str:
    """Return the name of the evaluation under a constant temperature, as in ``test:constant=0.5``."""
    return f"{on}:constant={temperature:g}"


def evaluations(kind: Kind, arm: str, spec: StudySpec, winner: Mapping[str, Any]) -> list[Evaluation]:
    """Return what is measured at the end of a run.

    Every run is measured at its plan's final and at its current temperature. The confirm runs of the
    arm ``unit`` are measured under the winner's final plan and under constants too: what they reach
    there, no training at another temperature was needed for. The constants are measured on the
    validation data as well, where the best of them is picked.

    Args:
        kind: Kind of the ticket.
        arm: Arm of the ticket.
        spec: The study's spec.
        winner: Parameters of the search arm's choice; read for the confirm runs of ``unit`` only.
    """
    on = _dataloader(kind, spec)
    measured = [
        Evaluation(name=on, on=on),
        Evaluation(name=f"{on}_current", on=on, at="current"),
    ]
    if kind != "confirm" or arm != "unit":
        return measured
    plan = {n: value for n, value in winner.items() if n in TEMPERATURE_PARAMETERS}
    measured.append(Evaluation(name=f"{on}:winner", on=on, temperature=plan))
    if on == "test":
        measured.append(Evaluation(name="validate", on="validate"))
    loaders: list[Literal["validate", "test"]] = ["validate"] if on == "validate" else ["validate", "test"]
    return measured + [
        Evaluation(name=constant_name(loader, tau), on=loader, temperature={"temperature_init": tau})
        for loader in loaders
        for tau in POSTHOC_CONSTANTS
    ]


def _dataloader(kind: Kind, spec: StudySpec) -> Literal["validate", "test"]:
    return "test" if kind in ("confirm", "init_only") and spec.study.confirm_on == "test" else "validate"
