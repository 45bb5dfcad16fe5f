"""What a winner is compared with: the tuned baseline, its twin at τ = 1, and constant temperatures.

The winner is the best of a search over all parameters, so a part of what it is better by may be what the
other parameters (a learning rate) happened to earn there. Two comparisons take that away, and a gain has to
hold in both. The *baseline* is what the search's model expects to be best at τ = 1. The *twin* has the
winner's own other parameters at τ = 1. Neither alone is enough: where τ and a learning rate are exchangeable,
the winner's learning rate is a bad one at τ = 1, and its twin is no match. Both are trained: on few seeds a
twin of good luck would take the place of a better baseline.

Constants are trained once a gain of something else is shown: the best one that the model names, and the
winner with the geometric mean of its schedule in place of it.

Pure: rows in, new tickets and parameter sets out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tempopt.seeds import derive, seed_name, shared_seed
from tempopt.spec.conditions import active_params
from tempopt.storage.rows import Kind, NewTicket, Parameters, TicketRow
from tempopt.storage.ticket_queries import Arm, current_round, is_usable, next_number, of_kind
from tempopt.temperature import (
    active_groups,
    at_constant,
    is_neutral,
    mean_level,
    same_training,
    temperatures_of,
    to_neutral,
    training_key,
)
from tempopt.verdict.selection import (
    Recommend,
    first_winner,
    list_missing_on_choosing_seeds,
    mean_by_candidate,
    no_recommendations,
    search_candidates,
)

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec


_FEWEST_CONSTANTS = 4
"""Complete runs at constants from which the best constant is compared with a schedule."""


def winner(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = no_recommendations
) -> Parameters | None:
    """Return what is to be confirmed: the search's choice, or that with the baseline's other parameters.

    Of both sets the better on the choosing seeds is the winner.
    """
    winner_params = first_winner(tickets, spec, recommend)
    if winner_params is None:
        return None
    baseline = baseline_of(tickets, spec, winner_params, recommend)
    mean_of, exchanged = (
        mean_by_candidate(tickets, spec, current_round(tickets)),
        exchange(spec, winner_params, baseline),
    )
    mean, exchanged_mean = mean_of.get(training_key(winner_params)), mean_of.get(training_key(exchanged))
    is_better = mean is not None and exchanged_mean is not None and exchanged_mean > mean
    return exchanged if is_better else winner_params


def exchange(spec: StudySpec, parameters: Parameters, baseline: Parameters) -> Parameters:
    """Return parameters with the other parameters of the baseline."""
    other_params = {name: baseline[name] for name in spec.other_names if name in baseline}
    return active_params(spec.search, {**parameters, **other_params})


def baseline_of(
    tickets: Sequence[TicketRow], spec: StudySpec, winner_params: Parameters, recommend: Recommend
) -> Parameters:
    """Return what is expected to be best at τ = 1.

    τ = 1 is what everything is measured against, also where it never trains to the end: then the winner's own
    other parameters are what is left to measure it with, which are known to train at another temperature.
    """
    if is_neutral(winner_params):
        return winner_params
    candidates = search_candidates("baseline", tickets, spec, recommend)
    return candidates[0] if candidates else to_neutral(winner_params)


def tuning_tickets(tickets: Sequence[TicketRow], spec: StudySpec) -> list[NewTicket]:
    """Return the runs at τ = 1 that tune the ordinary parameters once the search is over; none: it has them.

    The search's model says what they train: it knows best by then.

    Args:
        tickets: All tickets of the study, which are all over.
        spec: The study's spec.
    """
    this_round = current_round(tickets)
    if not any(map(is_usable, of_kind(tickets, "search"))) or has_tuned(tickets, spec, this_round):
        return []
    first_number = next_number(tickets, "baseline")
    return [
        NewTicket(
            kind="baseline",
            arm="baseline",
            number=number,
            seed=search_seed(spec, "baseline", number),
            round=this_round,
        )
        for number in range(first_number, first_number + spec.num_tuning)
    ]


def has_tuned(tickets: Sequence[TicketRow], spec: StudySpec, of_round: int) -> bool:
    """Return whether a round has the runs that tune the baseline after its search."""
    in_design = spec.num_baseline if of_round == 0 else 0
    return len(of_kind(tickets, "baseline", of_round=of_round)) > in_design


def search_seed(spec: StudySpec, kind: Kind, number: int) -> int:
    """Return the seed of a searching run: all kinds share the study's search seeds."""
    shared = spec.study.seeds.search
    if shared is None:
        return derive(spec.study.seed, seed_name(kind), number)
    return derive(spec.study.seed, seed_name("search"), shared_seed(number, shared))


def reference_tickets(tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend) -> list[NewTicket]:
    """Return the runs that try the winner with the baseline's other parameters; none: that is decided.

    Args:
        tickets: All tickets of the study, which are all over.
        spec: The study's spec.
        recommend: Names the baseline.
    """
    winner_params = first_winner(tickets, spec, recommend)
    if winner_params is None or is_neutral(winner_params) or not spec.other_names:
        return []
    exchanged = exchange(spec, winner_params, baseline_of(tickets, spec, winner_params, recommend))
    if same_training(exchanged, winner_params):
        return []
    return list_missing_on_choosing_seeds(tickets, spec, [winner_params, exchanged], "exchange")


def constants_to_train(
    tickets: Sequence[TicketRow], spec: StudySpec, winner: Parameters, recommend: Recommend
) -> dict[Arm, Parameters]:
    """Return the constant temperatures that a winner is compared with by arm; none if it is one itself."""
    if is_constant(winner):
        return {}
    at_mean = winner
    for name in temperatures_of(winner):
        at_mean = at_constant(at_mean, mean_level(winner, name), name)
    arms: dict[Arm, Parameters] = {"constant_twin": at_mean}
    num_constants = sum(map(is_usable, of_kind(tickets, "constant")))
    if num_constants < _FEWEST_CONSTANTS:
        # the best of so few would be no match
        return arms
    if best := search_candidates("constant", tickets, spec, recommend)[:1]:
        arms["constant"] = best[0]
    return arms


def is_constant(parameters: Parameters) -> bool:
    """Return whether parameters have constant temperatures and nothing else that is not neutral."""
    return all(group.rpartition(".")[2] == "level" for group in active_groups(parameters))
