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
5. What is to be trained with lies at the end of a searched range: widen that range first.

Where there is nothing to gain, the first verdict shows a gain in at most 2.5 % of studies. Inference alone is
judged at a quarter of the level unless a gain is shown, 0.6 %, and failures at the whole of it, 2.5 % of
studies in which runs fail.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal

from tempopt.spec.alpha_ledger import alpha_for_verdict
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

ALONE_SHARE = 0.25
"""Share of the level at which inference alone is judged where no gain is shown."""


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
        plan: Name of a plan of inference, None with it.
        guards: Those that it is not shown to keep.
    """

    action: Action
    parameters: Parameters
    plan: str | None
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
        plan: Name of that plan of inference, None with it.
        gain: What that gains over τ = 1; None where nothing is to be changed.
        winner: What the winner gains over what is recommended in its place; None if it is the winner, or
            nothing is to be changed.
        reason: What is shown that speaks for a change: ``gain`` or ``stability``; None: nothing is changed.
        min_gain: ``study.min_gain`` in the metric's unit.
        excluded: Gains of the winner over τ = 1 above this are excluded; None where a gain is shown, or
            nothing bounds it.
        pairs: What would decide; None unless the action is ``more_pairs``.
        widen: The ranges to widen; empty unless the action is ``widen_range``.
        passed_over: What is simpler or better and is not recommended because of a guard alone.
    """

    action: Action
    action_without_training: Action
    parameters: Parameters
    at_inference: dict[str, Any] | None = None
    plan: str | None = None
    gain: PairedResult | None = None
    winner: PairedResult | None = None
    reason: Literal["gain", "stability"] | None = None
    min_gain: float = 0.0
    excluded: float | None = None
    pairs: MorePairs | None = None
    widen: tuple[Widening, ...] = ()
    passed_over: tuple[BlockedOption, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """Something in place of the winner: what it gains, what it keeps, what the winner gains over it."""

    action: Action
    parameters: Parameters
    gain: PairedResult | None
    is_share_kept: bool
    winner: PairedResult | None
    plan: str | None = None

    guards: tuple[GuardResult, ...] = ()

    def gains(self, min_gain: float) -> bool:
        """Whether its gain is shown, and worth having."""
        return self.gain is not None and self.gain.significant and self.gain.paired.gain >= min_gain

    @property
    def beats_winner(self) -> bool:
        """Whether it is shown to be better than the winner."""
        return self.winner is not None and self.winner.worse

    def replaces_winner(self, min_gain: float) -> bool:
        """Whether its gain is shown and worth having, and it is better than the winner or keeps enough."""
        if self.beats_winner:
            return self.gains(min_gain)
        winner_answer = self.winner
        is_behind = (
            winner_answer is not None and winner_answer.significant and winner_answer.paired.gain >= min_gain
        )
        return self.gains(min_gain) and self.is_share_kept and not is_behind

    @property
    def in_the_way(self) -> tuple[GuardResult, ...]:
        """The guards that it may not be recommended for."""
        return tuple(guard for guard in self.guards if guard.blocks_recommendation)

    def to_blocked_option(self, guards: tuple[GuardResult, ...]) -> BlockedOption:
        return BlockedOption(action=self.action, parameters=self.parameters, plan=self.plan, guards=guards)


def recommend(verdict: Verdict, evidence: Evidence) -> Recommendation:
    """Return what to do after a verdict.

    Args:
        verdict: The verdict.
        evidence: The pairs that it rests on.
    """
    min_gain = evidence.spec.study.min_gain_in_units(*_mean_and_deviation(evidence.runs("baseline")))
    if not verdict.total.significant:
        return _none_shown(verdict, evidence, min_gain)
    if verdict.total.paired.gain < min_gain:
        return _change_nothing(verdict, min_gain)
    options = [*_inference(verdict), *sorted(_other_trainings(verdict, evidence), key=_parts)]
    options.sort(key=lambda option: not option.beats_winner)
    option, passed_over = _pick_option(verdict, options, min_gain)
    if option is None:
        return _change_nothing(verdict, min_gain, passed_over=passed_over)
    widen = (
        ()
        if option.action == "inference_only"
        else tuple(find_params_at_range_ends(option.parameters, evidence.spec))
    )
    return replace(
        _recommend_option(option, verdict, evidence.spec, min_gain),
        action="widen_range" if widen else option.action,
        winner=option.winner,
        widen=widen,
        passed_over=passed_over,
    )


def _recommend_option(option: _Option, verdict: Verdict, spec: StudySpec, min_gain: float) -> Recommendation:
    at_inference = None if option.plan is None else inference_plans(spec, verdict.params)[option.plan]
    return Recommendation(
        action=option.action,
        action_without_training=option.action,
        parameters=option.parameters,
        at_inference=at_inference,
        plan=option.plan,
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
        # the winner is out, and what it would be better by does not count: what keeps enough of it goes first
        gaining_options = [option for option in options if option.gains(min_gain)]
        candidates = sorted(gaining_options, key=lambda option: not option.is_share_kept)
    passed_over: list[BlockedOption] = []
    for option in candidates:
        if not (broken_guards := option.in_the_way):
            return option, tuple(passed_over)
        passed_over.append(option.to_blocked_option(broken_guards))
    if not verdict.guards_kept:
        return None, tuple(passed_over)
    winner = _Option(
        action=_training(verdict.params),
        parameters=verdict.params,
        gain=verdict.total,
        is_share_kept=True,
        winner=None,
        plan=_winners_plan(verdict, min_gain),
    )
    return winner, tuple(passed_over)


def _mean_and_deviation(runs: Sequence[PairedRuns]) -> tuple[float, float]:
    values = [value for round_runs in runs for value in round_runs.values.values()]
    return fmean(values) if values else 0.0, stdev(values) if len(values) > 1 else 0.0


def _none_shown(verdict: Verdict, evidence: Evidence, min_gain: float) -> Recommendation:
    if verdict.is_more_stable and verdict.guards_kept and not verdict.total.worse:
        training = _training(verdict.params)
        return Recommendation(
            action=training,
            action_without_training=training,
            parameters=verdict.params,
            reason="stability",
            min_gain=min_gain,
        )
    passed_over: list[BlockedOption] = []
    for option in _inference(verdict):
        assert option.gain is not None
        test = option.gain.paired
        is_enough_alone = (
            option.gain.significant and test.p_value < ALONE_SHARE * test.alpha and test.gain >= min_gain
        )
        if is_enough_alone and option.in_the_way:
            passed_over.append(option.to_blocked_option(option.in_the_way))
        elif is_enough_alone:
            recommendation = _recommend_option(option, verdict, evidence.spec, min_gain)
            return replace(recommendation, excluded=_gain_upper_bound(verdict))
    excluded = _gain_upper_bound(verdict)
    possible = excluded is None or excluded >= min_gain
    is_given = evidence.spec.study.min_gain is not None and min_gain > 0
    if is_given and possible and not verdict.total.worse and not verdict.at_one:
        pairs = _more_pairs(evidence, min_gain)
        if pairs is not None:
            return _change_nothing(verdict, min_gain, pairs, passed_over=passed_over)
    return _change_nothing(verdict, min_gain, passed_over=passed_over)


def _change_nothing(
    verdict: Verdict,
    min_gain: float,
    pairs: MorePairs | None = None,
    *,
    passed_over: Sequence[BlockedOption] = (),
) -> Recommendation:
    return Recommendation(
        action="change_nothing" if pairs is None else "more_pairs",
        action_without_training="change_nothing",
        parameters=verdict.baseline_params,
        min_gain=min_gain,
        excluded=_gain_upper_bound(verdict),
        pairs=pairs,
        passed_over=tuple(passed_over),
    )


def _gain_upper_bound(verdict: Verdict) -> float | None:
    """Return an upper bound of the gain, which is at least 0; None where nothing bounds it."""
    total = verdict.total
    # where τ = 1 has diverged the gain is a lower bound, which excludes nothing above
    bounded = not any(answer.reference_diverged for answer in total.components)
    upper_bound = max(total.paired.ci_high, 0.0)
    return upper_bound if bounded and not total.lost and math.isfinite(upper_bound) else None


def _inference(verdict: Verdict) -> Iterator[_Option]:
    inference = verdict.inference_only
    if inference is None or inference.plan == AS_TRAINED:
        return
    yield _Option(
        action="inference_only",
        parameters=verdict.baseline_params,
        gain=inference.answer,
        is_share_kept=inference.keep_share_result is not None and inference.keep_share_result.significant,
        winner=inference.difference,
        plan=inference.plan,
        guards=verdict.guards_of.get("inference_only", ()),
    )


def _other_trainings(verdict: Verdict, evidence: Evidence) -> Iterator[_Option]:
    """Return the configurations trained on the winner's pairs with fewer parts, or shown to be better."""
    winner, baseline, references = evidence.runs("search"), evidence.runs("baseline"), baseline_runs(evidence)
    known_keys = {training_key(verdict.params)}
    simplest = verdict.simplest
    if simplest is not None and training_key(simplest.parameters) not in known_keys:
        known_keys.add(training_key(simplest.parameters))
        yield _Option(
            action=_training(simplest.parameters),
            parameters=simplest.parameters,
            gain=simplest.gain,
            is_share_kept=simplest.holds,
            winner=simplest.lost,
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
        kept_answer = test_keeps_share(evidence, runs, winner, baseline)
        yield _Option(
            action="train_at_constant",
            parameters=parameters,
            gain=most_conservative([evidence.compare(runs, reference) for reference in references]),
            is_share_kept=kept_answer is not None and kept_answer.significant,
            winner=answer,
            guards=verdict.guards_of.get(arm, ()),
        )


def _parts(option: _Option) -> tuple[int, float]:
    """Return the order of what is simpler: the fewest parts first, then the least that the winner gains."""
    lost = math.inf if option.winner is None else option.winner.paired.gain
    return len(active_groups(option.parameters)), lost


def _training(parameters: Mapping[str, Any]) -> Action:
    if is_controlled(parameters):
        return "train_with_control"
    return "train_with_schedule" if is_scheduled(parameters) else "train_at_constant"


def _winners_plan(verdict: Verdict, min_gain: float) -> str | None:
    """Return the plan of inference that is shown to gain for the winner's own models, if there is one."""
    inference = verdict.inference_only
    tuned = None if inference is None else inference.winner
    # the guards were tested at the temperature of the training
    if verdict.guards or tuned is None or tuned.plan == AS_TRAINED or not tuned.answer.significant:
        return None
    return tuned.plan if tuned.answer.paired.gain >= min_gain else None


def _more_pairs(evidence: Evidence, min_gain: float) -> MorePairs | None:
    """Return the pairs with which a gain of ``study.min_gain`` would be shown; None: no number of them.

    As many as the comparison needs that needs the most. One whose pairs are lost, or gain all alike, does not
    say how many it needs, and leaves that to the others.
    """
    study = evidence.spec.study
    winner, needed = evidence.runs("search"), []
    for reference in baseline_runs(evidence):
        gains = evidence.gains(winner, reference)
        if not gains or min(gains) == max(gains) > 0:
            continue
        pairs = pairs_to_add(
            evidence.stages(winner, reference),
            min_gain,
            test=study.test,
            direction=study.direction,
            alpha=alpha_for_verdict(evidence.verdict + 1),
        )
        if pairs is None:
            return None
        needed.append(pairs)
    return _estimate_cost(evidence, max(needed)) if needed else None


def _estimate_cost(evidence: Evidence, pairs: int) -> MorePairs:
    num_done = sum(map(evidence.num_planned_pairs, evidence.rounds))
    tickets = {
        ticket.id: ticket
        for of_round in evidence.rounds
        for arm in DECIDING_ARMS
        for ticket in evidence.tickets("confirm", arm, of_round)
    }.values()
    runs = len(tickets) / max(1, num_done)
    trained_tickets = [ticket for ticket in tickets if is_usable(ticket)]
    mean_seconds = fmean(ticket.seconds for ticket in trained_tickets) if trained_tickets else 0.0
    mean_gpu_seconds = fmean(ticket.gpu_seconds for ticket in trained_tickets) if trained_tickets else 0.0
    total = math.ceil(runs * pairs)
    return MorePairs(
        pairs=pairs,
        runs=total,
        seconds=mean_seconds * total,
        gpu_seconds=mean_gpu_seconds * total if mean_gpu_seconds else None,
    )
