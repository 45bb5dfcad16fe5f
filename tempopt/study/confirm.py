"""Which runs prove a search: the tickets that estimate what was chosen, and what is measured at their end.

Pure: rows in, new tickets and evaluations out. The statistics on the results are in answers.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tempopt.store.rows import Kind, NewTicket, TicketRow
from tempopt.study.choose import Named, Parameters, names_none, pick
from tempopt.study.tickets import ARMS, current_round, finished, fresh_seed, next_number, of_kind
from tempopt.temperature import TEMPERATURE_PARAMETERS
from tempopt.training.messages import Evaluation

if TYPE_CHECKING:
    from tempopt.study.spec import StudySpec

POSTHOC_CONSTANTS = (0.25, 0.35, 0.5, 0.7, 1.4, 2.0, 2.8, 4.0)
"""Constant temperatures that models trained at tau = 1 are evaluated under; 1 itself is measured anyway."""

OBSERVED = (("confirm", "unit"), ("confirm", "search"))
"""Kinds and arms of the runs whose attention is looked at: the winner's, and those at temperature 1."""


def confirm_tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, named: Named = names_none
) -> list[NewTicket]:
    """Return the tickets that estimate: every arm's choice, and init-only, on one set of new seeds.

    The initialisation-only run takes one thing away from the winner, the temperature during training:
    its temperature parameters are the unit arm's, all others (the learning rate, ...) the winner's, and
    the agent bakes the winner's temperature at step 0 into its initial weights.

    Args:
        tickets: All tickets of the study, which are all over.
        spec: The study's spec.
        named: As for :func:`choose_tickets`.

    Returns:
        ``confirm`` tickets of the current round pair by pair, then its ``init_only``; none if no search
        run was complete.
    """
    chosen = pick(tickets, spec, named) if spec.confirms else {}
    if not {"unit", "search"} <= chosen.keys():
        return []
    now = current_round(tickets)
    seeds = [fresh_seed(spec.study.seed, "confirm", pair, now) for pair in range(spec.study.seeds.confirm)]
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
