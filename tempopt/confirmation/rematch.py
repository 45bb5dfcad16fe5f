"""What a winner is compared with: the baseline tuned again, its twin at τ = 1, and constants of its own.

The winner is the best of a search over all parameters, so a part of what it is better by may be what the
other parameters (a learning rate) happened to earn there. Two comparisons take that away, and a gain has to
hold in both. In the *rematch* the arm at τ = 1 tunes the other parameters once more, the winner's own tried
first. The *twin* has the winner's own other parameters at τ = 1. Neither alone is enough: where τ and a
learning rate are exchangeable, the winner's learning rate is a bad one at τ = 1, and its twin is no match.

Pure: rows in, new tickets and parameter sets out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tempopt.confirmation.selection import (
    Recommend,
    all_on_choosing_seeds,
    chosen,
    means,
    recommend_none,
    searched,
)
from tempopt.records.rows import NewTicket, Parameters, TicketRow
from tempopt.records.tickets import current_round, next_number
from tempopt.seeds import derive
from tempopt.spec.conditions import counted
from tempopt.temperature import (
    LR_RATIOS,
    as_found,
    at_constant,
    constant_plans,
    is_neutral,
    learning,
    neutral,
    same_training,
    temperatures_of,
    training_key,
)

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

REMATCHED = ("baseline", "constant_twin", "learned")
"""The arms that are chosen after the rematch, one after the other."""
_FEWEST = 10


def first_winner(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = recommend_none
) -> Parameters | None:
    """Return the search arm's choice in the current round, None while there is none."""
    return chosen("search", tickets, spec, lambda: searched("search", tickets, spec, recommend))


def winner(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = recommend_none
) -> Parameters | None:
    """Return what is to be confirmed: the search arm's choice, or that with the baseline's other parameters.

    The rematch tunes the other parameters in a smaller space than the search does, and so better. What it
    has found there is no reason for the winner to be behind: of both sets the better on the choosing seeds
    is the winner.
    """
    found = first_winner(tickets, spec, recommend)
    baseline = None if found is None else baseline_of(tickets, spec, found, recommend)
    if found is None or baseline is None:
        return found
    known, other = means(tickets, spec, current_round(tickets)), exchanged(spec, found, baseline)
    own, others = known.get(training_key(found)), known.get(training_key(other))
    return other if own is not None and others is not None and others > own else found


def exchanged(spec: StudySpec, found: Parameters, baseline: Parameters) -> Parameters:
    """Return the winner with the other parameters of the baseline."""
    own = {name: baseline[name] for name in spec.other_names if name in baseline}
    return counted(spec.search, {**found, **own})


def baseline_of(
    tickets: Sequence[TicketRow], spec: StudySpec, found: Parameters, recommend: Recommend
) -> Parameters | None:
    """Return the choice of the arm at τ = 1, None while there is none."""
    return chosen("baseline", tickets, spec, lambda: baseline_candidates(tickets, spec, found, recommend))


def exchange_tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, found: Parameters, recommend: Recommend
) -> list[NewTicket]:
    """Return the runs that compare the search arm's choice with itself at the baseline's other parameters."""
    baseline = baseline_of(tickets, spec, found, recommend)
    if baseline is None or not spec.other_names:
        return []
    other = exchanged(spec, found, baseline)
    if same_training(other, found):
        return []
    return all_on_choosing_seeds(tickets, spec, [found, other], "exchange")


def rematch_tickets(tickets: Sequence[TicketRow], spec: StudySpec, found: Parameters) -> list[NewTicket]:
    """Return the runs at τ = 1 that tune the other parameters again, the winner's own first.

    With them the baseline has had as many runs as the search, and ten more than before at the least. None if
    every arm trains with the same other parameters, or the winner is at τ = 1 itself.

    Args:
        tickets: All tickets of the study, which are all over.
        spec: The study's spec.
        found: The winner.
    """
    names = spec.space("baseline")
    if not names or is_neutral(found):
        return []
    first = next_number(tickets, "rematch")
    return [
        NewTicket(
            kind="rematch",
            arm="baseline",
            number=number,
            seed=derive(spec.study.seed, "rematch", number),
            round=current_round(tickets),
            sampled={name: found[name] for name in names if name in found} if number == first else None,
        )
        for number in range(first, first + rematch_runs(tickets, spec))
    ]


def rematch_runs(tickets: Sequence[TicketRow], spec: StudySpec) -> int:
    """Return how many runs the next rematch has."""
    asked = {kind: 0 for kind in ("search", "baseline", "rematch")}
    for ticket in tickets:
        if ticket.kind in asked and ticket.state != "withdrawn":
            asked[ticket.kind] += 1
    return rematch_size(spec, asked["search"], asked["baseline"] + asked["rematch"])


def rematch_size(spec: StudySpec, num_searched: int, num_at_one: int) -> int:
    """Return how many runs a rematch has after so many of the search and so many at τ = 1."""
    return spec.study.arms.rematch or max(_FEWEST, num_searched - num_at_one)


def baseline_candidates(
    tickets: Sequence[TicketRow], spec: StudySpec, found: Parameters, recommend: Recommend
) -> list[Parameters]:
    """Return the candidates of the arm at τ = 1, best first, at least one.

    τ = 1 is what everything is measured against, also where it never trains to the end: then the winner's own
    other parameters are what is left to measure it with, which are known to train at another temperature.
    """
    if is_neutral(found):
        return [found]
    return searched("baseline", tickets, spec, recommend) or [neutral(found)]


def constant_candidates(spec: StudySpec, found: Parameters) -> list[Parameters]:
    """Return the winner with each of some constant temperatures in place of its schedule.

    None where the arm of constants has tried just that, and with more constants: nothing but a temperature
    was searched, or the winner has nothing else that is not neutral.
    """
    plain = found
    for name in temperatures_of(found):
        plain = at_constant(plain, as_found(found).get(name, 1.0), name)
    if not spec.space("baseline") and same_training(plain, spec.parameters("baseline", {})):
        return []
    return constant_plans(found)


def learned_candidates(spec: StudySpec, baseline: Parameters) -> list[Parameters]:
    """Return the baseline with its temperatures learned, at each learning rate; none if none is wanted."""
    of = spec.study.learned
    return [learning(baseline, lr_ratio, of=of) for lr_ratio in LR_RATIOS] if spec.learns else []
