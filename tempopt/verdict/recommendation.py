"""The recommendation after a verdict: a verdict and its evidence in, one recommendation out.

Pure. The order of precedence:

1. No gain over τ = 1 is shown. If the winner is shown to fail less often, train with it. Else, if evaluating
   models trained at τ = 1 at another temperature is shown to gain on its own, do that. Else, if the spec
   gives ``study.min_gain`` and such a gain is still possible, add pairs. Else change nothing.
2. A gain is shown, and is smaller than ``study.min_gain``: change nothing.
3. A gain is shown. If an alternative is shown to gain and to be better than the winner, it is recommended.
   Else it is the simplest change that is shown to gain, is shown to keep ``study.keep_share`` of the winner's
   gain, and that the winner is not shown to beat by ``study.min_gain``: the temperature at inference only,
   then configurations with fewer parts than the winner, then the winner.
4. Only configurations that are shown to keep each guard (``study.guards``) are recommended. If the winner is
   not, it is the simplest change that is shown to gain, those that keep enough of its gain first; else
   nothing.
5. If a gain is shown and the recommended configuration lies at the end of a searched range, widen that range
   first.

Without a true gain, the first verdict shows a gain in at most 2.5 % of studies. Unless a gain is shown,
inference only is tested at a quarter of that level: 0.6 %. Failures are tested at the whole level: 2.5 % of
the studies in which runs fail.
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
from tempopt.temperature import CREDITED, active_groups, is_controlled, is_scheduled, training_key
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
    "train_with_parameters",
    "inference_only",
    "change_nothing",
    "more_pairs",
    "widen_range",
]

INFERENCE_ALPHA_SHARE = 0.25
"""Share of the verdict's level for inference only if no gain is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MorePairs:
    """Pairs that would decide, and their cost.

    Args:
        pairs: Confirming seeds to add: with them a gain of ``study.min_gain`` is shown with probability 80 %.
        runs: Number of their runs.
        seconds: Training seconds of these runs, an estimate from the pairs so far.
        gpu_seconds: The same in GPU seconds; None if no pair was trained on a GPU.
    """

    pairs: int
    runs: int
    seconds: float
    gpu_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An alternative to the winner.

    Args:
        action: The action of the change.
        params: Parameters to train with.
        gain: Its gain over τ = 1.
        is_share_kept: Whether it is shown to keep ``study.keep_share`` of the winner's gain.
        winner_over_it: The winner's gain over it.
        plan_name: Name of the plan of inference to evaluate with; None: as trained.
        guards: Results of the guards of the study.
    """

    action: Action
    params: Parameters
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The recommended action and configuration.

    Args:
        action: The next action.
        action_without_training: The action without further trials: differs from ``action`` only for
            ``more_pairs`` and ``widen_range``.
        params: Parameters to train with now; the best tuned at τ = 1 unless a change is recommended.
        at_inference: Temperature parameters to evaluate the trained model with; None: as trained.
        plan_name: Name of that plan of inference; None: as trained.
        gain: Gain of this configuration over τ = 1; None if no change is recommended.
        winner_over_it: The winner's gain over the recommended alternative; None if the winner or no change is
            recommended.
        reason: The reason for a change: ``gain`` or ``stability``; None if no change is recommended.
        min_gain: ``study.min_gain`` in the metric's unit.
        excluded: Gains of the winner over τ = 1 above this are excluded; None if a gain is shown, or there is
            no bound.
        more_pairs: Pairs that would decide; None unless the action is ``more_pairs``.
        widen: The ranges to widen; empty unless the action is ``widen_range``.
        passed_over: Simpler or better configurations that are not recommended because of a guard only.
    """

    action: Action
    action_without_training: Action
    params: Parameters
    at_inference: dict[str, Any] | None = None
    plan_name: str | None = None
    gain: PairedResult | None = None
    winner_over_it: PairedResult | None = None
    reason: Literal["gain", "stability"] | None = None
    min_gain: float = 0.0
    excluded: float | None = None
    more_pairs: MorePairs | None = None
    widen: tuple[Widening, ...] = ()
    passed_over: tuple[Option, ...] = ()


def recommend(verdict: Verdict, evidence: Evidence) -> Recommendation:
    """Return the recommendation after a verdict.

    Args:
        verdict: The verdict.
        evidence: The pairs of the verdict.
    """
    min_gain = evidence.spec.study.min_gain_in_units(*_mean_and_deviation(evidence.runs("baseline")))
    if not verdict.primary.significant:
        return _recommend_without_gain(verdict, evidence, min_gain)
    if verdict.primary.paired.gain < min_gain:
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
        else tuple(find_params_at_range_ends(option.params, evidence.spec))
    )
    return replace(
        _recommend_option(option, verdict, evidence.spec, min_gain),
        action="widen_range" if widen else option.action,
        winner_over_it=option.winner_over_it,
        widen=widen,
        passed_over=passed_over,
    )


def _recommend_option(option: Option, verdict: Verdict, spec: StudySpec, min_gain: float) -> Recommendation:
    plan_name = option.plan_name
    return Recommendation(
        action=option.action,
        action_without_training=option.action,
        params=option.params,
        at_inference=None if plan_name is None else inference_plans(spec, verdict.params)[plan_name],
        plan_name=plan_name,
        gain=option.gain,
        reason="gain",
        min_gain=min_gain,
    )


def _pick_option(
    verdict: Verdict, options: Sequence[Option], min_gain: float
) -> tuple[Option | None, tuple[Option, ...]]:
    """Return the recommended option if a gain is shown (None: no change), and those that guards block."""
    if verdict.guards_kept:
        candidates = [option for option in options if option.replaces_winner(min_gain)]
    else:
        # The winner is blocked, so its advantage over an option does not count. Options that keep enough of
        # its gain come first.
        gaining_options = [option for option in options if option.is_gain_shown(min_gain)]
        candidates = sorted(gaining_options, key=lambda option: not option.is_share_kept)
    passed_over: list[Option] = []
    for option in candidates:
        if not option.blocking_guards:
            return option, tuple(passed_over)
        passed_over.append(option)
    if not verdict.guards_kept:
        return None, tuple(passed_over)
    winner_option = Option(
        action=_training_action(verdict.params),
        params=verdict.params,
        gain=verdict.primary,
        is_share_kept=True,
        winner_over_it=None,
        plan_name=_winner_plan_name(verdict, min_gain),
    )
    return winner_option, tuple(passed_over)


def _mean_and_deviation(runs: Sequence[PairedRuns]) -> tuple[float, float]:
    values = [value for round_runs in runs for value in round_runs.values.values()]
    return fmean(values) if values else 0.0, stdev(values) if len(values) > 1 else 0.0


def _recommend_without_gain(verdict: Verdict, evidence: Evidence, min_gain: float) -> Recommendation:
    if verdict.is_more_stable and verdict.guards_kept and not verdict.primary.worse:
        action = _training_action(verdict.params)
        return Recommendation(
            action=action,
            action_without_training=action,
            params=verdict.params,
            reason="stability",
            min_gain=min_gain,
        )
    passed_over: list[Option] = []
    for option in _inference_options(verdict):
        assert option.gain is not None
        test = option.gain.paired
        is_enough_alone = (
            option.gain.significant
            and test.p_value < INFERENCE_ALPHA_SHARE * test.alpha
            and test.gain >= min_gain
        )
        if is_enough_alone and option.blocking_guards:
            passed_over.append(option)
        elif is_enough_alone:
            recommendation = _recommend_option(option, verdict, evidence.spec, min_gain)
            return replace(recommendation, excluded=_gain_upper_bound(verdict))
    excluded_gain = _gain_upper_bound(verdict)
    is_possible = excluded_gain is None or excluded_gain >= min_gain
    has_min_gain = evidence.spec.study.min_gain is not None and min_gain > 0
    no_change = _change_nothing(verdict, min_gain, passed_over)
    can_gain = not (verdict.primary.worse or verdict.at_one or verdict.unvaried)
    if has_min_gain and is_possible and can_gain:
        more_pairs = _find_more_pairs(evidence, min_gain)
        if more_pairs is not None:
            return replace(no_change, action="more_pairs", more_pairs=more_pairs)
    return no_change


def _change_nothing(verdict: Verdict, min_gain: float, passed_over: Sequence[Option] = ()) -> Recommendation:
    return Recommendation(
        action="change_nothing",
        action_without_training="change_nothing",
        params=verdict.baseline_params,
        min_gain=min_gain,
        excluded=_gain_upper_bound(verdict),
        passed_over=tuple(passed_over),
    )


def _gain_upper_bound(verdict: Verdict) -> float | None:
    """Return an upper bound of the gain, which is at least 0; None if there is no bound."""
    total = verdict.primary
    # if τ = 1 has diverged, the gain is a lower bound and excludes nothing above it
    is_bounded = not any(answer.reference_diverged for answer in total.components)
    upper_bound = max(total.paired.ci_high, 0.0)
    return upper_bound if is_bounded and not total.lost and math.isfinite(upper_bound) else None


def _inference_options(verdict: Verdict) -> Iterator[Option]:
    inference = verdict.inference_only
    if inference is None or inference.plan_name == AS_TRAINED:
        return
    yield Option(
        action="inference_only",
        params=verdict.baseline_params,
        gain=inference.answer,
        is_share_kept=inference.keep_share_result is not None and inference.keep_share_result.significant,
        winner_over_it=inference.difference,
        plan_name=inference.plan_name,
        guards=verdict.guards_by_alternative.get("inference_only", ()),
    )


def _other_trainings(verdict: Verdict, evidence: Evidence) -> Iterator[Option]:
    """Yield the configurations trained on the winner's pairs with fewer parts, or shown to be better."""
    winner_runs, baseline, references = (
        evidence.runs("search"),
        evidence.runs("baseline"),
        baseline_runs(evidence),
    )
    known_keys = {training_key(verdict.params)}
    simplest = verdict.simplest
    if simplest is not None and training_key(simplest.params) not in known_keys:
        known_keys.add(training_key(simplest.params))
        yield Option(
            action=_training_action(simplest.params),
            params=simplest.params,
            gain=simplest.gain,
            is_share_kept=simplest.holds,
            winner_over_it=simplest.lost,
            guards=verdict.guards_by_alternative.get("simplest", ()),
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
        yield Option(
            action="train_at_constant",
            params=parameters,
            gain=most_conservative([evidence.compare(runs, reference) for reference in references]),
            is_share_kept=kept_answer is not None and kept_answer.significant,
            winner_over_it=answer,
            guards=verdict.guards_by_alternative.get(arm, ()),
        )


def _simplicity_key(option: Option) -> tuple[int, float]:
    """Return a sort key: the fewest parts first, then the least that the winner gains over the option."""
    lost = math.inf if option.winner_over_it is None else option.winner_over_it.paired.gain
    return len(active_groups(option.params)), lost


def _training_action(parameters: Mapping[str, Any]) -> Action:
    if is_controlled(parameters):
        return "train_with_control"
    if not any(name in CREDITED for name in parameters):
        return "train_with_parameters"
    return "train_with_schedule" if is_scheduled(parameters) else "train_at_constant"


def _winner_plan_name(verdict: Verdict, min_gain: float) -> str | None:
    """Return the plan of inference that is shown to gain for the winner's own models, or None."""
    inference = verdict.inference_only
    winner = None if inference is None else inference.winner
    # the guards were tested at the temperature of training
    if verdict.guards or winner is None or winner.plan_name == AS_TRAINED or not winner.answer.significant:
        return None
    return winner.plan_name if winner.answer.paired.gain >= min_gain else None


def _find_more_pairs(evidence: Evidence, min_gain: float) -> MorePairs | None:
    """Return the pairs with which a gain of ``study.min_gain`` would be shown; None if no number would do.

    It is the largest number that any comparison needs. A comparison without pairs, or with equal gains, does
    not determine a number, so the others do.
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
