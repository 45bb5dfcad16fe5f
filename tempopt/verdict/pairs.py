"""The parameter sets that a round compares, and their runs: winner, references, and pairs.

The winner is chosen first, on separate seeds; racing.py drops candidates on the way. It is the best of a
search over all parameters, so part of its advantage may come from its other parameters (such as a learning
rate). Two comparisons exclude this, and a gain has to hold in both. The *baseline* is the best set at τ = 1
by the search's model. The *twin* has the winner's own other parameters at τ = 1. Neither is enough alone: if
τ and a learning rate are exchangeable, the winner's learning rate is bad at τ = 1, and its twin is a weak
reference. Both are trained: on few seeds a lucky twin would replace a better baseline.

Constants are trained once another winner shows a gain: the best one by the model, and the winner with the
geometric mean of its schedule.

Pure: rows in, new tickets and parameter sets out. run_evaluations.py defines the measurements at a run's end,
paired_evidence.py and verdict.py the statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tempopt.seeds import derive, seed_name, shared_seed
from tempopt.spec.conditions import active_params
from tempopt.spec.search_space import params_key
from tempopt.storage.racing import best_parameters, candidate_parameters, next_pairs, surviving_candidates
from tempopt.storage.rows import Kind, NewTicket, Parameters, TicketRow
from tempopt.storage.ticket_queries import (
    ARMS,
    DECIDING_ARMS,
    ConfirmationArm,
    are_over,
    current_round,
    fresh_seed,
    is_usable,
    join_arms,
    next_number,
    of_kind,
    pairs_of,
    parameters_of,
    to_maximize,
)
from tempopt.temperature import (
    active_groups,
    list_temperatures,
    make_constant,
    mean_level,
    same_training,
    training_key,
)
from tempopt.verdict.paired_evidence import Evidence, gain_over_baseline, is_confirmation_complete
from tempopt.verdict.statistics.paired_tests import Direction

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

Recommend = Callable[[Any, int], list[Parameters]]
"""Returns at most ``count`` parameter sets of an arm that are expected to be best; empty if unknown."""


def candidates(tickets: Iterable[TicketRow], k: int, direction: Direction) -> list[Parameters]:
    """Return the k best distinct parameter sets, best first, by the values of their complete runs.

    Two sets are the same if their effective parameters are equal; a set that was run more than once counts
    with the mean of its complete runs, and if values are equal the earlier set is first.

    Args:
        tickets: The tickets of one arm, in the order of their runs.
        k: Largest number of sets, >= 1.
        direction: Which values are better.
    """
    runs: dict[str, list[TicketRow]] = {}
    for ticket in tickets:
        if is_usable(ticket) and ticket.parameters is not None:
            runs.setdefault(params_key(ticket.parameters), []).append(ticket)
    ranked = sorted(
        runs.values(),
        key=lambda run: to_maximize(fmean(t.value for t in run if t.value is not None), direction),
        reverse=True,
    )
    return [dict(run[0].parameters) for run in ranked[:k] if run[0].parameters is not None]


def no_recommendations(arm: Kind, count: int) -> list[Parameters]:
    """Recommend no parameter set: candidates are then those with the best values."""
    return []


def search_candidates(
    arm: str, tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend
) -> list[Parameters]:
    """Return the candidates of a searching arm, best first; empty if no run is complete."""
    runs = of_kind(tickets, arm)  # type: ignore[arg-type]
    max_candidates = spec.study.candidates
    return recommend(arm, max_candidates) or candidates(runs, max_candidates, spec.study.direction)


def choose_tickets(tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend) -> list[NewTicket]:
    """Return the tickets that choose the winner, on fresh seeds that all candidates share.

    Choosing the best of k on the seeds of the estimate would be a second winner's curse, so choosing has its
    own seeds. A single candidate gets no ticket, and one that is out of the race gets no further ones
    (:mod:`tempopt.storage.racing`).

    Args:
        tickets: All tickets of the study, all of them ended.
        spec: The study's spec.
        recommend: Recommends the candidates of a round without tickets for choosing.

    Returns:
        The next tickets of the current round; empty if the winner is chosen.
    """
    choose = of_kind(tickets, "choose", "search", of_round=current_round(tickets))
    num_pairs = pairs_of(choose)
    if num_pairs:
        candidates_by_rank = _racing_candidates(choose, spec)
    else:
        sets = search_candidates("search", tickets, spec, recommend)
        candidates_by_rank = dict(enumerate(sets)) if len(sets) > 1 else {}
    plan = [
        (pair, "search", rank, parameters)
        for pair in next_pairs(num_pairs, spec.study.seeds.choose)
        for rank, parameters in candidates_by_rank.items()
    ]
    return _build_tickets(tickets, spec, plan)


def _build_tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, plan: Sequence[tuple[int, str, int, Parameters]]
) -> list[NewTicket]:
    """Return the tickets for choosing runs: pair, arm, number of the candidate and its parameters."""
    this_round = current_round(tickets)
    return [
        NewTicket(
            kind="choose",
            arm=arm,
            number=number,
            seed=fresh_seed(spec.study.seed, "choose", pair, this_round),
            candidate=rank,
            pair=pair,
            parameters=parameters,
            round=this_round,
        )
        for number, (pair, arm, rank, parameters) in enumerate(plan, next_number(tickets, "choose"))
    ]


def _racing_candidates(arm_tickets: Sequence[TicketRow], spec: StudySpec) -> dict[int, Parameters]:
    """Return the candidates that need more seeds, by number; empty if the winner is chosen."""
    if not 0 < pairs_of(arm_tickets) < spec.study.seeds.choose:
        return {}
    numbers = surviving_candidates(arm_tickets, spec.study.direction)
    return (
        {candidate: candidate_parameters(arm_tickets, candidate) for candidate in numbers}
        if len(numbers) > 1
        else {}
    )


def max_choosing_tickets(tickets: Sequence[TicketRow], spec: StudySpec) -> int:
    """Return the largest number of further tickets for choosing the winner, once there are some."""
    choose = of_kind(tickets, "choose", "search", of_round=current_round(tickets))
    num_pairs = pairs_of(choose)
    if are_over(choose):
        num_racing = len(_racing_candidates(choose, spec))
    else:
        num_racing = sum(ticket.pair == num_pairs - 1 for ticket in choose)
    return num_racing * max(0, spec.study.seeds.choose - num_pairs)


def first_winner(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = no_recommendations
) -> Parameters | None:
    """Return the search's choice in the current round; None if there is none yet.

    The best mean over the choosing seeds wins. A candidate that diverged or was lost on some of them ranks
    below every candidate with fewer such seeds; if means are equal, the better one of the search wins.
    """
    choose = of_kind(tickets, "choose", "search", of_round=current_round(tickets))
    if choose:
        is_decided = are_over(choose) and not _racing_candidates(choose, spec)
        return best_parameters(choose, spec.study.direction) if is_decided else None
    sets = search_candidates("search", tickets, spec, recommend)
    return sets[0] if len(sets) == 1 else None


def list_missing_on_choosing_seeds(
    tickets: Sequence[TicketRow], spec: StudySpec, sets: Sequence[Parameters], arm: str
) -> list[NewTicket]:
    """Return the missing runs for comparing parameter sets on all choosing seeds of a round.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
        sets: The parameter sets; those that any arm has trained on a seed are not trained again.
        arm: Arm of the new tickets.
    """
    this_round = current_round(tickets)
    trained_keys = {
        (training_key(t.parameters), t.pair)
        for t in of_kind(tickets, "choose", of_round=this_round)
        if t.parameters is not None
    }
    plan = [
        (pair, arm, rank, parameters)
        for pair in range(spec.study.seeds.choose)
        for rank, parameters in enumerate(sets)
        if (training_key(parameters), pair) not in trained_keys
    ]
    return _build_tickets(tickets, spec, plan)


def values_on_choosing_seeds(
    tickets: Iterable[TicketRow], spec: StudySpec, of_round: int
) -> dict[str, dict[int, float]]:
    """Return the values on a round's choosing seeds, larger being better, by ``training_key`` and pair."""
    values: dict[str, dict[int, float]] = {}
    for ticket in of_kind(tickets, "choose", of_round=of_round):
        if is_usable(ticket) and ticket.value is not None and ticket.pair is not None:
            pair_values = values.setdefault(training_key(ticket.parameters or {}), {})
            pair_values[ticket.pair] = to_maximize(ticket.value, spec.study.direction)
    return values


def mean_by_candidate(tickets: Sequence[TicketRow], spec: StudySpec, of_round: int) -> dict[str, float]:
    """Return the mean over a round's choosing seeds, larger being better, of each set trained on all of them.

    By ``training_key``; sets that diverged or were lost on a seed are left out.
    """
    return {
        key: fmean(pair_values.values())
        for key, pair_values in values_on_choosing_seeds(tickets, spec, of_round).items()
        if len(pair_values) >= spec.study.seeds.choose
    }


# ---- what the winner is compared with

_MIN_CONSTANTS = 4
"""Number of complete runs at constants from which the best constant is compared with a schedule."""


def winner(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = no_recommendations
) -> Parameters | None:
    """Return the set to confirm: the search's choice, or that with the baseline's ordinary parameters.

    The better of the two on the choosing seeds is the winner.
    """
    winner_params = first_winner(tickets, spec, recommend)
    if winner_params is None:
        return None
    baseline = _select_baseline(tickets, spec, winner_params, recommend)
    exchanged_params = exchange(spec, winner_params, baseline)
    means = mean_by_candidate(tickets, spec, current_round(tickets))
    mean, exchanged_mean = (means.get(training_key(params)) for params in (winner_params, exchanged_params))
    is_better = mean is not None and exchanged_mean is not None and exchanged_mean > mean
    return exchanged_params if is_better else winner_params


def exchange(spec: StudySpec, parameters: Parameters, baseline: Parameters) -> Parameters:
    """Return parameters with the ordinary parameters of the baseline."""
    other_params = {name: baseline[name] for name in spec.ordinary_names if name in baseline}
    return active_params(spec.search, {**parameters, **other_params})


def _select_baseline(
    tickets: Sequence[TicketRow], spec: StudySpec, winner_params: Parameters, recommend: Recommend
) -> Parameters:
    """Return the set that is expected to be best at τ = 1.

    τ = 1 is the reference of everything, even if it never trains to the end: then the winner's own ordinary
    parameters are used, which are known to train at another temperature.
    """
    if spec.is_baseline(winner_params):
        return winner_params
    candidates = search_candidates("baseline", tickets, spec, recommend)
    return candidates[0] if candidates else spec.to_baseline(winner_params)


def tuning_tickets(tickets: Sequence[TicketRow], spec: StudySpec) -> list[NewTicket]:
    """Return the runs at τ = 1 that tune the ordinary parameters after the search; empty if there are none
    left.

    The search's model, which then knows most, chooses their parameters.

    Args:
        tickets: All tickets of the study, all of them ended.
        spec: The study's spec.
    """
    this_round = current_round(tickets)
    if not any(map(is_usable, of_kind(tickets, "search"))) or has_tuned(tickets, spec, this_round):
        return []
    first_number = next_number(tickets, "baseline")
    return search_tickets(spec, "baseline", range(first_number, first_number + spec.num_tuning), this_round)


def has_tuned(tickets: Sequence[TicketRow], spec: StudySpec, of_round: int) -> bool:
    """Return whether a round has the runs that tune the baseline after its search."""
    in_design = spec.num_baseline if of_round == 0 else 0
    return len(of_kind(tickets, "baseline", of_round=of_round)) > in_design


def search_tickets(
    spec: StudySpec, kind: Kind, numbers: range, of_round: int = 0, enqueued: Sequence[Mapping[str, Any]] = ()
) -> list[NewTicket]:
    """Return searching runs, the first of them with enqueued values.

    Runs of all kinds share the study's search seeds, if it has any.
    """
    assert len(enqueued) <= len(numbers), "more parameter sets than tickets to try them"
    num_seeds, seed = spec.study.seeds.search, spec.study.seed
    return [
        NewTicket(
            kind=kind,
            arm=kind,
            number=number,
            seed=derive(seed, seed_name(kind), number)
            if num_seeds is None
            else derive(seed, seed_name("search"), shared_seed(number, num_seeds)),
            round=of_round,
            sampled=dict(enqueued[index]) if index < len(enqueued) else None,
        )
        for index, number in enumerate(numbers)
    ]


def reference_tickets(tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend) -> list[NewTicket]:
    """Return the runs that test the winner with the baseline's ordinary parameters; empty if this is decided.

    Args:
        tickets: All tickets of the study, all of them ended.
        spec: The study's spec.
        recommend: Recommends the baseline.
    """
    winner_params = first_winner(tickets, spec, recommend)
    if winner_params is None or spec.is_baseline(winner_params) or not spec.ordinary_names:
        return []
    baseline = _select_baseline(tickets, spec, winner_params, recommend)
    exchanged_params = exchange(spec, winner_params, baseline)
    if same_training(exchanged_params, winner_params):
        return []
    return list_missing_on_choosing_seeds(tickets, spec, [winner_params, exchanged_params], "exchange")


def constants_to_train(
    tickets: Sequence[TicketRow], spec: StudySpec, winner: Parameters, recommend: Recommend
) -> dict[ConfirmationArm, Parameters]:
    """Return the constant temperatures that a winner is compared with, by arm; empty if it is constant."""
    if is_constant(winner):
        return {}
    at_mean = winner
    for name in list_temperatures(winner):
        at_mean = make_constant(at_mean, mean_level(winner, name), name)
    arms: dict[ConfirmationArm, Parameters] = {"constant_twin": at_mean}
    num_constants = sum(map(is_usable, of_kind(tickets, "constant")))
    if num_constants < _MIN_CONSTANTS:
        # the best of so few would be a weak reference
        return arms
    if best := search_candidates("constant", tickets, spec, recommend)[:1]:
        arms["constant"] = best[0]
    return arms


def is_constant(parameters: Parameters) -> bool:
    """Return whether parameters have constant temperatures and no other part that is not neutral."""
    return all(group.rpartition(".")[2] == "level" for group in active_groups(parameters))


# ---- the pairs that confirm it


def select_arm_params(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = no_recommendations
) -> dict[ConfirmationArm, Parameters]:
    """Return the parameter set of each deciding arm, as far as these are chosen.

    Empty if no search run is complete. If the search has chosen τ = 1 itself, it has no other reference.
    """
    winner_params = winner(tickets, spec, recommend)
    if winner_params is None:
        return {}
    if spec.is_baseline(winner_params):
        return {"search": winner_params, "baseline": winner_params, "twin": winner_params}
    arms: dict[ConfirmationArm, Parameters | None] = {
        "search": winner_params,
        "baseline": _select_baseline(tickets, spec, winner_params, recommend),
        "twin": spec.to_baseline(winner_params),
    }
    return {arm: parameters for arm, parameters in arms.items() if parameters is not None}


def confirm_tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = no_recommendations
) -> list[NewTicket]:
    """Return the next pairs that decide: every arm's choice on new seeds.

    Args:
        tickets: All tickets of the study, all of them ended.
        spec: The study's spec.
        recommend: As for :data:`Recommend`.

    Returns:
        ``confirm`` tickets of the current round pair by pair; empty if no search run is complete, or all
        required pairs are trained.
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
    """Return the runs of constant temperatures on the confirming seeds; empty unless a gain is shown.

    A schedule is compared with constants only if it shows a gain at all.

    Args:
        tickets: All tickets of the study, all of them ended.
        spec: The study's spec.
        recommend: As for :data:`Recommend`.
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


def confirmed_arms(confirm: Sequence[TicketRow]) -> dict[ConfirmationArm, Parameters]:
    """Return the parameter set of each arm that tickets confirm."""
    params_by_arm = {arm: parameters_of(confirm, arm) for arm in ARMS}
    return {arm: parameters for arm, parameters in params_by_arm.items() if parameters is not None}


def deciding_arms(confirm: Sequence[TicketRow]) -> dict[ConfirmationArm, Parameters]:
    """Return the parameter set of each arm that decides whether a gain is shown."""
    arms = confirmed_arms(confirm)
    return {arm: parameters for arm, parameters in arms.items() if arm in DECIDING_ARMS}


def _pair_tickets(
    tickets: Sequence[TicketRow],
    spec: StudySpec,
    arms: dict[ConfirmationArm, Parameters],
    pairs: range,
    of_round: int,
) -> list[NewTicket]:
    """Return the runs of all arms on these pairs; arms with equal parameters share runs."""
    seeds = {pair: fresh_seed(spec.study.seed, "confirm", pair, of_round) for pair in pairs}
    runs = [(pair, seed, *entry) for pair, seed in seeds.items() for entry in join_arms(arms).items()]
    return paired_tickets(tickets, "confirm", of_round, runs)


def paired_tickets(
    tickets: Sequence[TicketRow],
    kind: Kind,
    of_round: int,
    runs: Sequence[tuple[int, int, str, Parameters]],
) -> list[NewTicket]:
    """Return the tickets of runs on common seeds, from pair, seed, arm and parameters of each."""
    return [
        NewTicket(
            kind=kind,
            arm=arm,
            number=number,
            seed=seed,
            pair=pair,
            parameters=parameters,
            round=of_round,
        )
        for number, (pair, seed, arm, parameters) in enumerate(runs, next_number(tickets, kind))
    ]


def more_pairs(tickets: Sequence[TicketRow], spec: StudySpec, count: int) -> list[NewTicket]:
    """Return a round with ``count`` more pairs of the deciding arms, all of whose tickets have ended.

    Its verdict includes the earlier pairs and has its own level. Empty if nothing was confirmed, or the round
    is not complete.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
        count: Number of pairs, >= 1.
    """
    this_round = current_round(tickets)
    confirm = of_kind(tickets, "confirm", of_round=this_round)
    if not confirm or not are_over(confirm) or not is_confirmation_complete(tickets, spec, this_round):
        return []
    return _pair_tickets(tickets, spec, deciding_arms(confirm), range(count), this_round + 1)


def find_winner(
    tickets: Sequence[TicketRow], spec: StudySpec, *, of_round: int | None = None
) -> Parameters | None:
    """Return the search arm's choice: the confirmed one, or else the one that choosing has decided.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
        of_round: The round of the choice; None for the current one.
    """
    this_round = current_round(tickets)
    confirmed = of_kind(tickets, "confirm", "search", of_round=this_round if of_round is None else of_round)
    if confirmed:
        return confirmed[0].parameters
    if of_round in (None, this_round) and of_kind(tickets, "choose", "search", of_round=this_round):
        return winner(tickets, spec)
    return None
