"""Which runs confirm a search: the winner and what it is compared with, on seeds that nothing was chosen on.

Pure: rows in, new tickets out. What is measured at a run's end is run_evaluations.py's, the statistics on the
results are paired_evidence.py's and verdict.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tempopt.storage.rows import NewTicket, Parameters, TicketRow
from tempopt.storage.ticket_queries import (
    ARMS,
    DECIDING_ARMS,
    Arm,
    current_round,
    finished,
    fresh_seed,
    join_arms,
    next_number,
    of_kind,
    pairs_of,
    parameters_of,
)
from tempopt.temperature import is_neutral, to_neutral, training_key
from tempopt.verdict.paired_evidence import Evidence, gain_over_baseline, is_confirmation_complete
from tempopt.verdict.references import baseline_of, constants_to_train, winner
from tempopt.verdict.selection import Recommend, no_recommendations

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec


def select_arm_params(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = no_recommendations
) -> dict[Arm, Parameters]:
    """Return the parameter set of each arm that decides, as far as the arms have been chosen.

    Empty if no search run was complete. Where the search has chosen τ = 1 itself there is nothing that it
    could be compared with but itself.
    """
    winner_params = winner(tickets, spec, recommend)
    if winner_params is None:
        return {}
    if is_neutral(winner_params):
        return {"search": winner_params, "baseline": winner_params, "twin": winner_params}
    arms: dict[Arm, Parameters | None] = {
        "search": winner_params,
        "baseline": baseline_of(tickets, spec, winner_params, recommend),
        "twin": to_neutral(winner_params),
    }
    return {arm: parameters for arm, parameters in arms.items() if parameters is not None}


def confirm_tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = no_recommendations
) -> list[NewTicket]:
    """Return the next pairs that decide: every arm's choice on new seeds.

    Args:
        tickets: All tickets of the study, which are all over.
        spec: The study's spec.
        recommend: As for :data:`tempopt.verdict.selection.Recommend`.

    Returns:
        ``confirm`` tickets of the current round pair by pair; none if no search run was complete, or all
        pairs that are needed were trained.
    """
    this_round = current_round(tickets)
    confirm = of_kind(tickets, "confirm", of_round=this_round)
    num_pairs, looks = pairs_of(confirm), spec.study.seeds.confirm.looks
    if confirm and is_confirmation_complete(tickets, spec, this_round):
        return []
    end = next(look for look in looks if look > num_pairs)
    arms = deciding_arms(confirm) if confirm else select_arm_params(tickets, spec, recommend)
    if not {"baseline", "search"} <= arms.keys():
        return []
    return _pair_tickets(tickets, spec, arms, range(num_pairs, end), this_round)


def constant_tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = no_recommendations
) -> list[NewTicket]:
    """Return the runs of constant temperatures on the confirming seeds; none unless a gain is shown.

    Whether a schedule is worth more than one constant is asked once it is shown to be worth anything.

    Args:
        tickets: All tickets of the study, which are all over.
        spec: The study's spec.
        recommend: As for :data:`tempopt.verdict.selection.Recommend`.
    """
    this_round = current_round(tickets)
    confirm = of_kind(tickets, "confirm", of_round=this_round)
    arms = confirmed_arms(confirm)
    if not confirm or {"constant", "constant_twin"} & arms.keys():
        return []
    answer = gain_over_baseline(Evidence(tickets, spec, this_round))
    if answer is None or not answer.significant:
        return []
    trained_keys = {training_key(parameters) for parameters in arms.values()}
    constants = {
        arm: parameters
        for arm, parameters in constants_to_train(tickets, spec, arms["search"], recommend).items()
        if training_key(parameters) not in trained_keys
    }
    return _pair_tickets(tickets, spec, constants, range(pairs_of(confirm)), this_round)


def confirmed_arms(confirm: Sequence[TicketRow]) -> dict[Arm, Parameters]:
    """Return the parameter set of each arm that tickets confirm."""
    params_by_arm = {arm: parameters_of(confirm, arm) for arm in ARMS}
    return {arm: parameters for arm, parameters in params_by_arm.items() if parameters is not None}


def deciding_arms(confirm: Sequence[TicketRow]) -> dict[Arm, Parameters]:
    """Return the parameter set of each arm that decides whether a gain is shown."""
    arms = confirmed_arms(confirm)
    return {arm: parameters for arm, parameters in arms.items() if arm in DECIDING_ARMS}


def _pair_tickets(
    tickets: Sequence[TicketRow],
    spec: StudySpec,
    arms: dict[Arm, Parameters],
    pairs: range,
    of_round: int,
) -> list[NewTicket]:
    """Return the runs of all arms on these pairs; arms with the same parameters share theirs."""
    seeds = {pair: fresh_seed(spec.study.seed, "confirm", pair, of_round) for pair in pairs}
    plan = [(pair, arm, parameters) for pair in pairs for arm, parameters in join_arms(arms).items()]
    return [
        NewTicket(
            kind="confirm",
            arm=arm,
            number=number,
            seed=seeds[pair],
            pair=pair,
            parameters=parameters,
            round=of_round,
        )
        for number, (pair, arm, parameters) in enumerate(plan, next_number(tickets, "confirm"))
    ]


def more_pairs(tickets: Sequence[TicketRow], spec: StudySpec, count: int) -> list[NewTicket]:
    """Return a round of that many more pairs of what decides, all of whose tickets are over.

    Its verdict rests on the pairs before it, too, and has its own level. None if nothing was confirmed, or
    more is still to come.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
        count: Number of pairs, >= 1.
    """
    this_round = current_round(tickets)
    confirm = of_kind(tickets, "confirm", of_round=this_round)
    if not confirm or not finished(confirm) or not is_confirmation_complete(tickets, spec, this_round):
        return []
    return _pair_tickets(tickets, spec, deciding_arms(confirm), range(count), this_round + 1)


def winner_of(
    tickets: Sequence[TicketRow], spec: StudySpec, *, of_round: int | None = None
) -> Parameters | None:
    """Return the search arm's choice: what is being confirmed, or else what choosing has decided.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
        of_round: The round whose choice is asked for; None for the current one.
    """
    this_round = current_round(tickets)
    confirmed = of_kind(tickets, "confirm", "search", of_round=this_round if of_round is None else of_round)
    if confirmed:
        return confirmed[0].parameters
    if of_round in (None, this_round) and of_kind(tickets, "choose", "search", of_round=this_round):
        return winner(tickets, spec)
    return None
