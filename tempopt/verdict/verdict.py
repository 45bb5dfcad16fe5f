"""The verdict of a confirmation and its recommendation, as data; conclusion.py computes them.

One answer is primary and declared so in advance: the winner against τ = 1. All others are claimed only where
that one is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tempopt.storage.rows import Parameters
from tempopt.temperature import is_scheduled, training_key
from tempopt.verdict.final_temperatures import Ends
from tempopt.verdict.guards import GuardResult
from tempopt.verdict.inference import InferenceOnly
from tempopt.verdict.learned import Learned
from tempopt.verdict.paired_evidence import PairedResult
from tempopt.verdict.statistics.failure_rates import FailureRates
from tempopt.verdict.statistics.paired_tests import PairedTest
from tempopt.verdict.widening import Widening

Action = Literal[
    "train_with_schedule",
    "train_with_control",
    "train_at_constant",
    "inference_only",
    "change_nothing",
    "more_pairs",
    "widen_range",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GainPart:
    """What the winner loses without one of its parts.

    Args:
        name: Of the part, as in :data:`tempopt.temperature.GROUPS`, or a parameter that is no temperature.
        parameters: The winner without it.
        answer: The winner against that.
    """

    name: str
    parameters: Parameters
    answer: PairedResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Simplest:
    """The simpler plan that was tested.

    Args:
        parts: The winner's parts that it keeps.
        parameters: The whole parameter set.
        gain: It against the baseline, on the same pairs.
        lost: The winner against it.
        keep_share_test: By pair, its gain less ``study.keep_share`` of the winner's gain over the baseline.
    """

    parts: tuple[str, ...]
    parameters: Parameters
    gain: PairedResult
    lost: PairedResult
    keep_share_test: PairedTest

    @property
    def holds(self) -> bool:
        """Whether it is shown to keep that share of the gain, and does not diverge more often."""
        return self.keep_share_test.significant and self.lost.reference_diverged <= self.lost.diverged


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
class Verdict:
    """What a study found, on seeds that neither searched nor chose.

    Args:
        total: The winner against τ = 1: against the baseline and its twin, both of which it has to beat.
        over_baseline: The winner against the best that is known at τ = 1; None if none of its runs is left.
        over_twin: The winner against its own other parameters at τ = 1; None if none of these runs is left.
        twin_over_baseline: The twin against the baseline; None if of one of them no run is left.
        params: The winner's parameters.
        baseline_params: The baseline's.
        twin_params: The twin's.
        test: ``t`` or ``sign_flip``.
        confirmed_on: ``test`` or ``validate``.
        against_constant: The winner against constants: the best that is known, and the geometric mean of its
            schedule in place of it; None unless a gain is shown of a winner that is no constant itself.
        over_constant: The winner against the best constant that is known, by itself.
        over_constant_twin: The winner against itself with the geometric mean in place of its schedule.
        constant_params: Parameters of the best constant, None if it was not trained.
        constant_twin_params: The winner's with the geometric mean in place of its schedule, None likewise.
        inference_only: Models evaluated at other temperatures than they were trained with.
        learned: Trainings that learn the temperatures; None if there were none.
        parts: What the winner loses without each of its parts; empty unless it was taken apart.
        simplest: The simpler plan that was tested, None if there was none.
        failures: Rates of failed runs of winner and τ = 1, None if no run failed.
        has_all_pairs: Whether all pairs are there that the spec asks for, so that failures are tested.
        guards: What is said of each guard of the study; empty where the winner is τ = 1 itself.
        guards_of: The same for what is simpler than the winner: ``inference_only``, ``simplest``,
            ``constant`` and ``constant_twin``, as far as there are such.
        round: Round of search tickets that it closes, from 0.
        looks: Verdicts that the study has had with this one, >= 1.
        alpha: Its two-sided level.
        mean_at_one: Mean of the runs at τ = 1 that the total gain is over; None: none is complete.
        controlled: The winner's temperatures at the end of training, where they follow a target of the
            entropy; else empty.
        recommendation: What to do; None only while the verdict is being made.
    """

    total: PairedResult
    over_baseline: PairedResult | None
    over_twin: PairedResult | None
    twin_over_baseline: PairedResult | None
    params: dict[str, Any]
    baseline_params: dict[str, Any]
    twin_params: dict[str, Any]
    test: str
    confirmed_on: str
    against_constant: PairedResult | None
    over_constant: PairedResult | None
    over_constant_twin: PairedResult | None
    constant_params: dict[str, Any] | None
    constant_twin_params: dict[str, Any] | None
    inference_only: InferenceOnly | None
    learned: Learned | None
    parts: tuple[GainPart, ...]
    simplest: Simplest | None
    failures: FailureRates | None
    has_all_pairs: bool
    guards: tuple[GuardResult, ...]
    guards_of: dict[str, tuple[GuardResult, ...]]
    round: int
    looks: int
    alpha: float
    mean_at_one: float | None = None
    controlled: Ends = field(default_factory=dict)
    recommendation: Recommendation | None = None

    @property
    def is_constant(self) -> bool:
        """Whether the winner's temperature stays as it is during training."""
        return not is_scheduled(self.params)

    @property
    def schedule_shown(self) -> bool:
        """Whether the schedule is shown to be worth more than one constant, the best one included."""
        if self.over_constant is None or self.against_constant is None:
            return False
        return self.total.significant and self.against_constant.significant and not self.is_constant

    @property
    def at_one(self) -> bool:
        """Whether the search has chosen τ = 1 itself."""
        return training_key(self.params) == training_key(self.twin_params)

    @property
    def is_more_stable(self) -> bool:
        """Whether the winner is shown to fail less often than τ = 1, by McNemar's exact test on all pairs."""
        rates = self.failures
        if rates is None or not self.has_all_pairs:
            return False
        return rates.arm.failed < rates.reference.failed and rates.p_value < self.alpha

    @property
    def untrained(self) -> bool:
        """Whether what the winner has to beat at τ = 1 diverged on every seed: what it gains is not known."""
        answers = self.total.component_results or (self.total,)
        return any(answer.reference_diverged == answer.paired.n_pairs for answer in answers)

    @property
    def guards_kept(self) -> bool:
        """Whether the winner is shown to keep each guard of the study that can be measured."""
        return not any(guard.blocks_recommendation for guard in self.guards)
