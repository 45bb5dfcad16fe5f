"""What to do after a verdict: a verdict and its evidence in, one recommendation out.

Pure. The order of precedence:

1. No gain over τ = 1 is shown. If the winner is shown to fail less often, train with it. Else, if evaluating
   models trained at τ = 1 at another temperature is shown to gain on its own, do that. Else, if the spec
   gives ``study.min_gain`` and such a gain is still possible, add pairs. Else change nothing.
2. A gain is shown, and is smaller than ``study.min_gain``: change nothing.
3. A gain is shown. What is shown to gain and to be better than the winner is recommended, if there is such.
   Else it is the simplest change that is shown to gain, is shown to keep ``study.keep_share`` of the winner's
   gain, and that the winner is not shown to beat by ``study.min_gain``: the temperature at inference only,
   then configurations with fewer parts than the winner, then the winner.
4. Nothing is recommended that is not shown to keep each guard (``study.guards``). Where the winner is not,
   it is the simplest change that is shown to gain, those that keep enough of its gain first; else nothing.
5. Where a gain is shown and what is to be trained with lies at the end of a searched range, widen that range
   first.

Where there is nothing to gain, the first verdict shows a gain in at most 2.5 % of studies. Unless a gain is
shown, inference alone is judged at a quarter of that level: 0.6 %. Failures are judged at the whole level:
2.5 % of the studies in which runs fail.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal

from tempopt.spec.alpha_levels import alpha_for_verdict
from tempopt.storage.rows import Parameters
from tempopt.storage.ticket_queries import DECIDING_ARMS, is_usable
from tempopt.temperature import active_groups, is_controlled, is_scheduled, training_key
from tempopt.verdict.guards import GuardResult
from tempopt.verdict.inference import AS_TRAINED
from tempopt.verdict.paired_evidence import (
    Evidence,
    PairedResult,
    PairedRuns,
    baseline_runs,
    most_conservative,
    test_keeps_share,
)
from tempopt.verdict.run_evaluations import inference_plans
from tempopt.verdict.statistics.paired_tests import pairs_to_add
from tempopt.verdict.widening import Widening, find_params_at_range_ends

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec
    from tempopt.verdict.verdict import Verdict

Action = Literal[
    "train_with_schedule",
    "train_with_control",
    "train_at_constant",
    "inference_only",
    "change_nothing",
    "more_pairs",
    "widen_range",
]

INFERENCE_ALPHA_SHARE = 0.25
"""Share of the verdict's level at which inference alone is judged where no gain is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MorePairs:
    """Pairs that would decide, and what they cost.

    Args:
        pairs: Confirming seeds to add: with them a gain of ``study.min_gain`` is shown with 80 % chance.
        runs: Runs that they take.
        seconds: Training seconds of these runs, an estimate from the pairs so far.
        gpu_seconds: The same in seconds of GPUs; None if no pair was trained on one.
    """

    pairs: int
    runs: int
    seconds: float
    gpu_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedOption:
    """What would be recommended if it were shown to keep the guards of the study.

    Args:
        action: What it would be to do.
        parameters: What to train with.
        plan_name: Name of the plan of inference to evaluate with; None: as it was trained.
        guards: Those that it is not shown to keep.
    """

    action: Action
    parameters: Parameters
    plan_name: str | None
    guards: tuple[GuardResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What to do.

    Args:
        action: What to do first.
        action_without_training: What holds as long as nothing more is trained: the same, but where ``action``
            is ``more_pairs`` or ``widen_range``.
        parameters: What to train with now; the best that was tuned at τ = 1 unless a change is recommended.
        at_inference: Temperature parameters to evaluate the trained model with; None: as it was trained.
        plan_name: Name of that plan of inference; None: as it was trained.
        gain: What that gains over τ = 1; None where nothing is to be changed.
        winner_over_it: What the winner gains over what is recommended in its place; None if it is the
            winner, or nothing is to be changed.
        reason: What is shown that speaks for a change: ``gain`` or ``stability``; None: nothing is changed.
        min_gain: ``study.min_gain`` in the metric's unit.
        excluded: Gains of the winner over τ = 1 above this are excluded; None where a gain is shown, or
            nothing bounds it.
        more_pairs: What would decide; None unless the action is ``more_pairs``.
        widen: The ranges to widen; empty unless the action is ``widen_range``.
        passed_over: What is simpler or better and is not recommended because of a guard alone.
    """

    action: Action
    action_without_training: Action
    parameters: Parameters
    at_inference: dict[str, Any] | None = None
    plan_name: str | None = None
    gain: PairedResult | None = None
    winner_over_it: PairedResult | None = None
    reason: Literal["gain", "stability"] | None = None
    min_gain: float = 0.0
    excluded: float | None = None
    more_pairs: MorePairs | None = None
    widen: tuple[Widening, ...] = ()
    passed_over: tuple[BlockedOption, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """Something in place of the winner: what it gains, what it keeps, what the winner gains over it."""

    action: Action
    parameters: Parameters
    gain: PairedResult | None
    is_share_kept: bool
    winner_over_it: PairedResult | None
    plan_name: str | None = None
    guards: tuple[GuardResult, ...] = ()

    def is_gain_shown(self, min_gain: float) -> bool:
        """Return whether its gain is shown and at least ``study.min_gain``."""
        return self.gain is not None and self.gain.significant and self.gain.paired.gain >= min_gain

    @property
    def beats_winner(self) -> bool:
        """Whether it is shown to be better than the winner."""
        return self.winner_over_it is not None and self.winner_over_it.worse

    def replaces_winner(self, min_gain: float) -> bool:
        """Return whether its gain is shown, and it is better than the winner or keeps enough of its gain."""
        if self.beats_winner:
            return self.is_gain_shown(min_gain)
        lead = self.winner_over_it
        is_behind = lead is not None and lead.significant and lead.paired.gain >= min_gain
        return self.is_gain_shown(min_gain) and self.is_share_kept and not is_behind

    @property
    def blocking_guards(self) -> tuple[GuardResult, ...]:
        """The guards that it is not shown to keep: broken, not shown or not measured."""
        return tuple(guard for guard in self.guards if guard.blocks_recommendation)

    def to_blocked_option(self, guards: tuple[GuardResult, ...]) -> BlockedOption:
        return BlockedOption(
            action=self.action, parameters=self.parameters, plan_name=self.plan_name, guards=guards
        )


def recommend(verdict: Verdict, evidence: Evidence) -> Recommendation:
    """Return what to do after a verdict.

    Args:
        verdict: The verdict.
        evidence: The pairs that it rests on.
    """
    min_gain = evidence.spec.study.min_gain_in_units(*_mean_and_deviation(evidence.runs("baseline")))
    if not verdict.total.significant:
        return _recommend_without_gain(verdict, evidence, min_gain)
    if verdict.total.paired.gain < min_gain:
        return _change_nothing(verdict, min_gain)
    options = [
        *_inference_options(verdict),
        *sorted(_other_trainings(verdict, evidence), key=_simplicity_key),
    ]
    options.sort(key=lambda option: not option.beats_winner)
    option, passed_over = _pick_option(verdict, options, min_gain)
    if option is None:
        return _change_nothing(verdict, min_gain, passed_over)
    widen = (
        ()
        if option.action == "inference_only"
        else tuple(find_params_at_range_ends(option.parameters, evidence.spec))
    )
    return replace(
        _recommend_option(option, verdict, evidence.spec, min_gain),
        action="widen_range" if widen else option.action,
        winner_over_it=option.winner_over_it,
        widen=widen,
        passed_over=passed_over,
    )


def _recommend_option(option: _Option, verdict: Verdict, spec: StudySpec, min_gain: float) -> Recommendation:
    plan_name = option.plan_name
    return Recommendation(
        action=option.action,
        action_without_training=option.action,
        parameters=option.parameters,
        at_inference=None if plan_name is None else inference_plans(spec, verdict.params)[plan_name],
        plan_name=plan_name,
        gain=option.gain,
        reason="gain",
        min_gain=min_gain,
    )


def _pick_option(
    verdict: Verdict, options: Sequence[_Option], min_gain: float
) -> tuple[_Option | None, tuple[BlockedOption, ...]]:
    """Return the option to recommend where a gain is shown (None: no change), and those that guards block."""
    if verdict.guards_kept:
        candidates = [option for option in options if option.replaces_winner(min_gain)]
    else:
        # The winner is out, so whether it beats an option does not count. Options that keep enough of its
        # gain go first.
        gaining_options = [option for option in options if option.is_gain_shown(min_gain)]
        candidates = sorted(gaining_options, key=lambda option: not option.is_share_kept)
    passed_over: list[BlockedOption] = []
    for option in candidates:
        if not (blocking_guards := option.blocking_guards):
            return option, tuple(passed_over)
        passed_over.append(option.to_blocked_option(blocking_guards))
    if not verdict.guards_kept:
        return None, tuple(passed_over)
    winner_option = _Option(
        action=_training_action(verdict.params),
        parameters=verdict.params,
        gain=verdict.total,
        is_share_kept=True,
        winner_over_it=None,
        plan_name=_winner_plan_name(verdict, min_gain),
    )
    return winner_option, tuple(passed_over)


def _mean_and_deviation(runs: Sequence[PairedRuns]) -> tuple[float, float]:
    values = [value for round_runs in runs for value in round_runs.values.values()]
    return fmean(values) if values else 0.0, stdev(values) if len(values) > 1 else 0.0


def _recommend_without_gain(verdict: Verdict, evidence: Evidence, min_gain: float) -> Recommendation:
    if verdict.is_more_stable and verdict.guards_kept and not verdict.total.worse:
        action = _training_action(verdict.params)
        return Recommendation(
            action=action,
            action_without_training=action,
            parameters=verdict.params,
            reason="stability",
            min_gain=min_gain,
        )
    passed_over: list[BlockedOption] = []
    for option in _inference_options(verdict):
        assert option.gain is not None
        test = option.gain.paired
        is_enough_alone = (
            option.gain.significant
            and test.p_value < INFERENCE_ALPHA_SHARE * test.alpha
            and test.gain >= min_gain
        )
        if is_enough_alone and option.blocking_guards:
            passed_over.append(option.to_blocked_option(option.blocking_guards))
        elif is_enough_alone:
            recommendation = _recommend_option(option, verdict, evidence.spec, min_gain)
            return replace(recommendation, excluded=_gain_upper_bound(verdict))
    excluded = _gain_upper_bound(verdict)
    is_possible = excluded is None or excluded >= min_gain
    has_min_gain = evidence.spec.study.min_gain is not None and min_gain > 0
    no_change = _change_nothing(verdict, min_gain, passed_over)
    if has_min_gain and is_possible and not verdict.total.worse and not verdict.at_one:
        more_pairs = _find_more_pairs(evidence, min_gain)
        if more_pairs is not None:
            return replace(no_change, action="more_pairs", more_pairs=more_pairs)
    return no_change


def _change_nothing(
    verdict: Verdict, min_gain: float, passed_over: Sequence[BlockedOption] = ()
) -> Recommendation:
    return Recommendation(
        action="change_nothing",
        action_without_training="change_nothing",
        parameters=verdict.baseline_params,
        min_gain=min_gain,
        excluded=_gain_upper_bound(verdict),
        passed_over=tuple(passed_over),
    )


def _gain_upper_bound(verdict: Verdict) -> float | None:
    """Return an upper bound of the gain, which is at least 0; None where nothing bounds it."""
    total = verdict.total
    # where τ = 1 has diverged the gain is a lower bound, which excludes nothing above
    is_bounded = not any(answer.reference_diverged for answer in total.components)
    upper_bound = max(total.paired.ci_high, 0.0)
    return upper_bound if is_bounded and not total.lost and math.isfinite(upper_bound) else None


def _inference_options(verdict: Verdict) -> Iterator[_Option]:
    inference = verdict.inference_only
    if inference is None or inference.plan_name == AS_TRAINED:
        return
    yield _Option(
        action="inference_only",
        parameters=verdict.baseline_params,
        gain=inference.answer,
        is_share_kept=inference.keep_share_result is not None and inference.keep_share_result.significant,
        winner_over_it=inference.difference,
        plan_name=inference.plan_name,
        guards=verdict.guards_of.get("inference_only", ()),
    )


def _other_trainings(verdict: Verdict, evidence: Evidence) -> Iterator[_Option]:
    """Return the configurations trained on the winner's pairs with fewer parts, or shown to be better."""
    winner_runs, baseline, references = (
        evidence.runs("search"),
        evidence.runs("baseline"),
        baseline_runs(evidence),
    )
    known_keys = {training_key(verdict.params)}
    simplest = verdict.simplest
    if simplest is not None and training_key(simplest.parameters) not in known_keys:
        known_keys.add(training_key(simplest.parameters))
        yield _Option(
            action=_training_action(simplest.parameters),
            parameters=simplest.parameters,
            gain=simplest.gain,
            is_share_kept=simplest.holds,
            winner_over_it=simplest.lost,
            guards=verdict.guards_of.get("simplest", ()),
        )
    for arm, parameters, answer in (
        ("constant_twin", verdict.constant_twin_params, verdict.over_constant_twin),
        ("constant", verdict.constant_params, verdict.over_constant),
    ):
        if parameters is None or training_key(parameters) in known_keys:
            continue
        is_simpler = len(active_groups(parameters)) < len(active_groups(verdict.params))
        if not is_simpler and (answer is None or not answer.worse):
            continue
        known_keys.add(training_key(parameters))
        runs = evidence.runs(arm)
        kept_answer = test_keeps_share(evidence, runs, winner_runs, baseline)
        yield _Option(
            action="train_at_constant",
            parameters=parameters,
            gain=most_conservative([evidence.compare(runs, reference) for reference in references]),
            is_share_kept=kept_answer is not None and kept_answer.significant,
            winner_over_it=answer,
            guards=verdict.guards_of.get(arm, ()),
        )


def _simplicity_key(option: _Option) -> tuple[int, float]:
    """Return a sort key: the fewest parts first, then the least that the winner gains over the option."""
    lost = math.inf if option.winner_over_it is None else option.winner_over_it.paired.gain
    return len(active_groups(option.parameters)), lost


def _training_action(parameters: Mapping[str, Any]) -> Action:
    if is_controlled(parameters):
        return "train_with_control"
    return "train_with_schedule" if is_scheduled(parameters) else "train_at_constant"


def _winner_plan_name(verdict: Verdict, min_gain: float) -> str | None:
    """Return the plan of inference that is shown to gain for the winner's own models, if there is one."""
    inference = verdict.inference_only
    tuned = None if inference is None else inference.winner
    # the guards were tested at the temperature of the training
    if verdict.guards or tuned is None or tuned.plan_name == AS_TRAINED or not tuned.answer.significant:
        return None
    return tuned.plan_name if tuned.answer.paired.gain >= min_gain else None


def _find_more_pairs(evidence: Evidence, min_gain: float) -> MorePairs | None:
    """Return the pairs with which a gain of ``study.min_gain`` would be shown; None: no number of them.

    As many as the comparison needs that needs the most. One whose pairs are lost, or gain all alike, does not
    say how many it needs, and leaves that to the others.
    """
    study = evidence.spec.study
    winner_runs, num_pairs_needed = evidence.runs("search"), []
    for reference in baseline_runs(evidence):
        gains = evidence.gains(winner_runs, reference)
        if not gains or min(gains) == max(gains) > 0:
            continue
        num_pairs = pairs_to_add(
            evidence.stages(winner_runs, reference),
            min_gain,
            direction=study.direction,
            alpha=alpha_for_verdict(evidence.verdict_number + 1),
        )
        if num_pairs is None:
            return None
        num_pairs_needed.append(num_pairs)
    return _estimate_cost(evidence, max(num_pairs_needed)) if num_pairs_needed else None


def _estimate_cost(evidence: Evidence, num_pairs: int) -> MorePairs:
    num_done = sum(map(evidence.num_planned_pairs, evidence.rounds))
    tickets = {
        ticket.id: ticket
        for of_round in evidence.rounds
        for arm in DECIDING_ARMS
        for ticket in evidence.tickets("confirm", arm, of_round)
    }.values()
    runs_per_pair = len(tickets) / max(1, num_done)
    trained_tickets = [ticket for ticket in tickets if is_usable(ticket)]
    mean_seconds = fmean(ticket.seconds for ticket in trained_tickets) if trained_tickets else 0.0
    mean_gpu_seconds = fmean(ticket.gpu_seconds for ticket in trained_tickets) if trained_tickets else 0.0
    num_runs = math.ceil(runs_per_pair * num_pairs)
    return MorePairs(
        pairs=num_pairs,
        runs=num_runs,
        seconds=mean_seconds * num_runs,
        gpu_seconds=mean_gpu_seconds * num_runs if mean_gpu_seconds else None,
    )
