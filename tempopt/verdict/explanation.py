"""Runs that explain a verdict: the worth of each part of the winner, and simpler alternatives.

Each part of the winner that is not neutral is set to neutral, one at a time, on the confirming seeds. Simpler
plans and learned temperatures are ranked on the choosing seeds, and the best of each are trained on the
confirming seeds. Pure: rows in, new tickets out; verdict.py evaluates them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tempopt.spec.domains import UNSET
from tempopt.storage.rows import NewTicket, Parameters, TicketRow
from tempopt.storage.ticket_queries import (
    ConfirmationArm,
    current_round,
    join_arms,
    of_kind,
    rounds_of_verdict,
)
from tempopt.temperature import (
    GENERATION,
    LR_RATIOS,
    NEUTRAL,
    NORMALISATION,
    active_groups,
    add_learned_temperatures,
    drop_unused_params,
    join_name,
    make_constant,
    remove_part,
    training_key,
)
from tempopt.verdict.paired_evidence import is_confirmation_complete
from tempopt.verdict.pairs import (
    confirmed_arms,
    list_missing_on_choosing_seeds,
    mean_by_candidate,
    paired_tickets,
)

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

SIMPLEST = "simplest"
"""Arm of the simpler plan that is trained on the confirming seeds."""
LEARNED_ARM = "learned"
"""Arm of the baseline with its temperatures learned, on the confirming seeds."""
_SIMPLER = "simpler"
_MOVING = ("schedule", "control")
# several names share a column of 255 characters
_LONGEST = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Simpler:
    """A plan with some of the winner's parts.

    Args:
        parts: Its parts, as in :data:`tempopt.temperature.GROUPS`.
        params: The whole parameter set.
    """

    parts: tuple[str, ...]
    params: Parameters


def arm_without(part: str) -> str:
    """Return the arm of the runs that train the winner without one of its parts."""
    if len(part) > _LONGEST:
        part = f"{part[: _LONGEST - 9]}_{hashlib.sha256(part.encode()).hexdigest()[:8]}"
    return f"without_{part}"


def ablate(spec: StudySpec, arms: Mapping[ConfirmationArm, Parameters]) -> dict[str, Parameters]:
    """Return the winner with one part set to neutral, by part, for each part that is not neutral.

    Method parameters (a normaliser, label smoothing) are parts too, and the searched parameters of generation
    together are one. Without its schedule or entropy control, the winner has the geometric mean of the
    schedule.

    Args:
        spec: The study's spec.
        arms: The confirmed arms.
    """
    winner = arms["search"]
    ablations = {part: remove_part(winner, part) for part in active_groups(winner)}
    moving_parts = [part for part in ablations if part.rpartition(".")[2] in _MOVING]
    if len(moving_parts) == 1:
        constant = arms.get("constant_twin") or arms.get("constant")
        ablations[moving_parts[0]] = constant or ablations[moving_parts[0]]
    for name in spec.method_parameter_names:
        if name == "window":
            # the width belongs to local_share and is not a part
            continue
        baseline = spec.search[name].baseline
        value = NEUTRAL[name] if name in NORMALISATION else baseline
        if value != UNSET and winner.get(name, value) != value:
            ablations[name] = drop_unused_params({**winner, name: value})
    generation_params = {name: NEUTRAL[name] for name in GENERATION if name in spec.search and name in winner}
    if any(winner[name] != value for name, value in generation_params.items()):
        ablations["generation"] = drop_unused_params({**winner, **generation_params})
    return ablations


def simpler_plans(arms: Mapping[ConfirmationArm, Parameters]) -> list[Simpler]:
    """Return the plans that keep one part of the winner, or all but one; the fewest parts first."""
    winner = arms["search"]
    parts = active_groups(winner)
    constant = arms.get("constant_twin", {})
    known_keys = {training_key(winner), training_key(arms.get("twin", winner))}
    plans = []
    part_choices = [(part,) for part in parts] + [tuple(p for p in parts if p != part) for part in parts]
    for part_set in sorted(
        set(part_choices), key=lambda part_set: (len(part_set), [parts.index(part) for part in part_set])
    ):
        parameters = winner
        for part in parts:
            name, _, group = part.rpartition(".")
            level = constant.get(join_name(name, "temperature_init"))
            if group in _MOVING and part not in part_set and level is not None:
                parameters = make_constant(parameters, level, name)
        for part in parts:
            if part not in part_set:
                parameters = remove_part(parameters, part)
        if (key := training_key(parameters)) not in known_keys:
            known_keys.add(key)
            plans.append(Simpler(parts=part_set, params=parameters))
    return plans


def explanation_tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, *, is_requested: bool = False
) -> list[NewTicket]:
    """Return the next runs that explain a verdict; empty if this is not requested, or complete.

    Args:
        tickets: All tickets of the study, all of them ended, including the confirmation's.
        spec: The study's spec.
        is_requested: Whether an explanation is requested regardless of the spec.
    """
    this_round = current_round(tickets)
    arms = confirmed_arms(of_kind(tickets, "confirm", of_round=this_round))
    if not {"search", "baseline", "twin"} <= arms.keys() or not is_confirmation_complete(
        tickets, spec, this_round
    ):
        return []
    has_begun = bool(of_kind(tickets, "choose", _SIMPLER, of_round=this_round))
    is_at_one = training_key(arms["search"]) == training_key(arms["twin"])
    is_explained = round_of_explanation(tickets, this_round) is not None
    if is_at_one or is_explained or not (is_requested or spec.study.explain or has_begun):
        return []
    return _choosing_tickets(tickets, spec, arms) or _confirming_tickets(tickets, spec, arms, this_round)


def max_explanation_runs(tickets: Sequence[TicketRow], spec: StudySpec, added: Sequence[NewTicket]) -> int:
    """Return the largest number of runs of an explanation, which begins with the runs ``added``."""
    if added[0].kind == "ablation":
        return len(added)
    confirm = of_kind(tickets, "confirm", of_round=current_round(tickets))
    arms = confirmed_arms(confirm)
    confirmed_keys = set(map(training_key, arms.values()))
    ablations = set(map(training_key, ablate(spec, arms).values())) - confirmed_keys
    plans = {training_key(plan.params) for plan in simpler_plans(arms)} - confirmed_keys - ablations
    num_arms = len(ablations) + bool(plans) + bool(_learned_sets(spec, arms))
    return len(added) + num_arms * len({ticket.pair for ticket in confirm})


def round_of_explanation(tickets: Sequence[TicketRow], of_round: int) -> int | None:
    """Return the last round of a verdict that has an explanation of the winner; None if none has."""
    rounds = (
        round_number
        for round_number in rounds_of_verdict(tickets, of_round)
        if of_kind(tickets, "ablation", of_round=round_number)
    )
    return max(rounds, default=None)


def _choosing_tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, arms: Mapping[ConfirmationArm, Parameters]
) -> list[NewTicket]:
    """Return the missing runs on choosing seeds that rank what may replace the winner."""
    plans, learned_sets = simpler_plans(arms), _learned_sets(spec, arms)
    if not plans and not learned_sets:
        return []
    sets = [arms["search"], arms["baseline"], *(plan.params for plan in plans), *learned_sets]
    return list_missing_on_choosing_seeds(tickets, spec, sets, _SIMPLER)


def _learned_sets(spec: StudySpec, arms: Mapping[ConfirmationArm, Parameters]) -> list[Parameters]:
    """Return the baseline with its temperatures learned, at each learning rate; empty if they cannot be
    learned.
    """
    learned_spec = spec.study.learned
    return (
        [add_learned_temperatures(arms["baseline"], ratio, learns=learned_spec) for ratio in LR_RATIOS]
        if spec.learns
        else []
    )


def _best_learned(
    tickets: Sequence[TicketRow], spec: StudySpec, arms: Mapping[ConfirmationArm, Parameters], this_round: int
) -> Parameters | None:
    """Return the better of the learned sets on the choosing seeds; the first one if none has a mean."""
    mean_of = mean_by_candidate(tickets, spec, this_round)
    sets = _learned_sets(spec, arms)
    return max(sets, key=lambda learned: mean_of.get(training_key(learned), -math.inf), default=None)


def simplest(
    tickets: Sequence[TicketRow], spec: StudySpec, arms: Mapping[ConfirmationArm, Parameters], of_round: int
) -> Simpler | None:
    """Return the simpler plan to test: the one with the fewest parts that is promising; None if there is
    none.

    A plan is promising if its mean over the choosing seeds keeps at least the midpoint between the whole gain
    and ``study.keep_share`` of it.
    """
    means = mean_by_candidate(tickets, spec, of_round)

    def mean_of(parameters: Parameters) -> float | None:
        return means.get(training_key(parameters))

    winner, baseline = mean_of(arms["search"]), mean_of(arms["baseline"])
    if winner is None or baseline is None or winner <= baseline:
        return None
    min_mean = baseline + (1 + spec.study.keep_share) / 2 * (winner - baseline)
    candidates = [
        (len(plan.parts), -mean, plan)
        for plan in simpler_plans(arms)
        if (mean := mean_of(plan.params)) is not None and mean >= min_mean
    ]
    return min(candidates, key=lambda candidate: candidate[:2])[2] if candidates else None


def _confirming_tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, arms: Mapping[ConfirmationArm, Parameters], this_round: int
) -> list[NewTicket]:
    """Return the runs on the confirming seeds; confirmed parameter sets are not trained again."""
    params_by_arm = {arm_without(part): parameters for part, parameters in ablate(spec, arms).items()}
    if plan := simplest(tickets, spec, arms, this_round):
        params_by_arm[SIMPLEST] = plan.params
    if (learned := _best_learned(tickets, spec, arms, this_round)) is not None:
        params_by_arm[LEARNED_ARM] = learned
    confirmed_keys = {training_key(parameters) for parameters in arms.values()}
    new_arms = join_arms(
        {
            arm: parameters
            for arm, parameters in params_by_arm.items()
            if training_key(parameters) not in confirmed_keys
        }
    )
    pairs = {t.pair: t.seed for t in of_kind(tickets, "confirm", of_round=this_round) if t.pair is not None}
    runs = [(pair, seed, *entry) for pair, seed in sorted(pairs.items()) for entry in new_arms.items()]
    return paired_tickets(tickets, "ablation", this_round, runs)
