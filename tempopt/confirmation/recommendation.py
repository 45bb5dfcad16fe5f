"""What to do after a verdict: a verdict and its evidence in, one recommendation out.

Pure. The order of precedence:

1. No gain over τ = 1 is shown. If evaluating models trained at τ = 1 at another temperature is shown to gain
   on its own, do that. Else, if a gain of ``study.min_gain`` is still possible, add pairs. Else change
   nothing.
2. A gain is shown, and is smaller than ``study.min_gain``: change nothing.
3. A gain is shown, and the winner is not shown to keep a guard (``study.guards``): change nothing.
4. A gain is shown. The simplest change is recommended that is shown to gain, is shown to keep
   ``study.keep_share`` of the winner's gain, and that the winner is not shown to beat by ``study.min_gain``:
   the temperature at inference only, then configurations with fewer parts than the winner, then the winner.
   In a study with guards it is the winner, the only configuration that was tested on them.
5. What is to be trained with lies at the end of a searched range: widen that range first.

Where there is nothing to gain, the first verdict recommends a change in at most 2.5 % of studies: 2 % for the
gain of the winner, and 0.5 % for inference alone, which is judged at a quarter of the level unless a gain is
shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from tempopt.confirmation.comparisons import Answer, Evidence, Runs, at_one, cautious, keeps
from tempopt.confirmation.evaluations import inference_plans
from tempopt.confirmation.inference import AS_TRAINED
from tempopt.records.rows import Kind, Parameters
from tempopt.records.tickets import ARMS, usable
from tempopt.spec.domains import Range
from tempopt.statistics.alpha_ledger import level
from tempopt.statistics.paired_tests import ALPHA, pairs_to_add
from tempopt.temperature import CREDITED, GROUPS, active_groups, moves, training_key
from tempopt.temperature.ranges import RANGES

if TYPE_CHECKING:
    from tempopt.confirmation.verdict import Verdict
    from tempopt.spec.study_spec import StudySpec

Action = Literal[
    "train_with_schedule",
    "train_at_constant",
    "inference_only",
    "change_nothing",
    "more_pairs",
    "widen_range",
]

_ALONE = 4
"""Inference alone, where no gain is shown, is judged at the level divided by this."""
_END = 0.02
"""So near to an end of its range, as a share of it, a value lies at the end."""
_HALVINGS = 100
_ROUNDING = 1e-9
_PER_PAIR: tuple[Kind, ...] = ("confirm", "init_only")
_CONSTANTS: tuple[Literal["constant_twin", "constant"], ...] = ("constant_twin", "constant")


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
class Widening:
    """A searched range at whose end a recommended value lies.

    Args:
        name: The parameter.
        value: The recommended value.
        low: Lower end of the range that was searched.
        high: Its upper end.
        to_low: Lower end of the range to search.
        to_high: Its upper end.
    """

    name: str
    value: float
    low: float
    high: float
    to_low: float
    to_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What to do.

    Args:
        action: What to do first.
        now: What holds as long as nothing more is trained: the same, but where ``action`` is ``more_pairs``
            or ``widen_range``.
        parameters: What to train with now; the best that was tuned at τ = 1 unless a change is recommended.
        at_inference: Temperature parameters to evaluate the trained model with; None: as it was trained.
        plan: Name of that plan of inference, None with it.
        gain: What that gains over τ = 1; None where nothing is to be changed.
        winner: What the winner gains over what is recommended in its place; None if it is the winner, or
            nothing is to be changed.
        min_gain: ``study.min_gain`` in the metric's unit; 0 where it was not given.
        excluded: Gains of the winner over τ = 1 above this are excluded; None where a gain is shown, or
            nothing bounds it.
        pairs: What would decide; None unless the action is ``more_pairs``.
        widen: The ranges to widen; empty unless the action is ``widen_range``.
    """

    action: Action
    now: Action
    parameters: Parameters
    at_inference: dict[str, Any] | None = None
    plan: str | None = None
    gain: Answer | None = None
    winner: Answer | None = None
    min_gain: float = 0.0
    excluded: float | None = None
    pairs: MorePairs | None = None
    widen: tuple[Widening, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """Something simpler than the winner: what it gains, what it keeps, what the winner gains over it."""

    action: Action
    parameters: Parameters
    gain: Answer | None
    kept: bool
    winner: Answer | None
    plan: str | None = None

    def replaces_winner(self, min_gain: float) -> bool:
        gains = self.gain is not None and self.gain.significant and self.gain.paired.gain >= min_gain
        over = self.winner
        behind = over is not None and over.significant and over.paired.gain >= min_gain
        return gains and self.kept and not behind


def recommend(verdict: Verdict, evidence: Evidence) -> Recommendation:
    """Return what to do after a verdict.

    Args:
        verdict: The verdict.
        evidence: The pairs that it rests on.
    """
    min_gain = evidence.spec.study.worth_having(_mean(evidence.runs("baseline")))
    if not verdict.total.significant:
        return _none_shown(verdict, evidence, min_gain)
    if verdict.total.paired.gain < min_gain or not verdict.guards_kept:
        return _change_nothing(verdict, min_gain)
    options: list[_Option] = []
    if not verdict.guards:
        options = [*_inference(verdict), *sorted(_fewer_parts(verdict, evidence), key=_parts)]
    found = next((each for each in options if each.replaces_winner(min_gain)), None)
    if found is None:
        found = _Option(
            action=_training(verdict.params),
            parameters=verdict.params,
            gain=verdict.total,
            kept=True,
            winner=None,
            plan=_winners_plan(verdict, min_gain),
        )
    widen = () if found.action == "inference_only" else tuple(at_ends(found.parameters, evidence.spec))
    return Recommendation(
        action="widen_range" if widen else found.action,
        now=found.action,
        parameters=found.parameters,
        at_inference=_at_inference(found.plan, verdict, evidence.spec),
        plan=found.plan,
        gain=found.gain,
        winner=found.winner,
        min_gain=min_gain,
        widen=widen,
    )


def _mean(runs: Sequence[Runs]) -> float:
    values = [value for each in runs for value in each.values.values()]
    return fmean(values) if values else 0.0


def _none_shown(verdict: Verdict, evidence: Evidence, min_gain: float) -> Recommendation:
    for option in () if verdict.guards else _inference(verdict):
        assert option.gain is not None
        test = option.gain.paired
        alone = option.gain.significant and test.p_value < ALPHA / _ALONE and test.gain >= min_gain
        if alone:
            return Recommendation(
                action="inference_only",
                now="inference_only",
                parameters=option.parameters,
                at_inference=_at_inference(option.plan, verdict, evidence.spec),
                plan=option.plan,
                gain=option.gain,
                min_gain=min_gain,
                excluded=_excluded(verdict),
            )
    excluded = _excluded(verdict)
    possible = excluded is None or excluded >= min_gain
    if min_gain and possible and not verdict.total.worse and not verdict.at_one:
        pairs = _more_pairs(evidence, min_gain)
        if pairs is not None:
            return _change_nothing(verdict, min_gain, pairs)
    return _change_nothing(verdict, min_gain)


def _change_nothing(verdict: Verdict, min_gain: float, pairs: MorePairs | None = None) -> Recommendation:
    return Recommendation(
        action="change_nothing" if pairs is None else "more_pairs",
        now="change_nothing",
        parameters=verdict.baseline_params,
        min_gain=min_gain,
        excluded=_excluded(verdict),
        pairs=pairs,
    )


def _excluded(verdict: Verdict) -> float | None:
    """Return above what no gain is compatible with the pairs; None where nothing bounds it."""
    total = verdict.total
    # where τ = 1 has diverged the gain is a lower bound, which excludes nothing above
    bounded = not any(answer.reference_diverged for answer in total.each or (total,))
    above = max(total.paired.ci_high, 0.0)
    return above if bounded and not total.lost and math.isfinite(above) else None


def _inference(verdict: Verdict) -> Iterator[_Option]:
    found = verdict.inference_only
    if found is None or found.plan == AS_TRAINED:
        return
    yield _Option(
        action="inference_only",
        parameters=verdict.baseline_params,
        gain=found.answer,
        kept=found.kept is not None and found.kept.significant,
        winner=found.difference,
        plan=found.plan,
    )


def _fewer_parts(verdict: Verdict, evidence: Evidence) -> Iterator[_Option]:
    """Return the configurations with fewer parts than the winner that were trained on its pairs."""
    winner, baseline, references = evidence.runs("search"), evidence.runs("baseline"), at_one(evidence)
    known = {training_key(verdict.params)}
    simplest = verdict.simplest
    if simplest is not None and training_key(simplest.parameters) not in known:
        known.add(training_key(simplest.parameters))
        yield _Option(
            action=_training(simplest.parameters),
            parameters=simplest.parameters,
            gain=simplest.gain,
            kept=simplest.holds,
            winner=simplest.lost,
        )
    constants = {"constant_twin": verdict.constant_twin_params, "constant": verdict.constant_params}
    over = {"constant_twin": verdict.over_constant_twin, "constant": verdict.over_constant}
    for arm in _CONSTANTS:
        parameters = constants[arm]
        if (
            parameters is None
            or training_key(parameters) in known
            or not _simpler(parameters, verdict.params)
        ):
            continue
        known.add(training_key(parameters))
        runs = evidence.runs(arm)
        kept = keeps(evidence, runs, winner, baseline)
        yield _Option(
            action="train_at_constant",
            parameters=parameters,
            gain=cautious([evidence.compare(runs, each) for each in references]),
            kept=kept is not None and kept.significant,
            winner=over[arm],
        )


def _simpler(parameters: Mapping[str, Any], winner: Mapping[str, Any]) -> bool:
    return len(active_groups(parameters)) < len(active_groups(winner))


def _parts(option: _Option) -> tuple[int, float]:
    """Return the order of what is simpler: the fewest parts first, then the least that the winner gains."""
    lost = math.inf if option.winner is None else option.winner.paired.gain
    return len(active_groups(option.parameters)), lost


def _training(parameters: Mapping[str, Any]) -> Action:
    return "train_with_schedule" if moves(parameters) else "train_at_constant"


def _winners_plan(verdict: Verdict, min_gain: float) -> str | None:
    """Return the plan of inference that is shown to gain for the winner's own models, if there is one."""
    found = verdict.inference_only
    tuned = None if found is None else found.winner
    # the guards were tested at the temperature of the training
    if verdict.guards or tuned is None or tuned.plan == AS_TRAINED or not tuned.answer.significant:
        return None
    return tuned.plan if tuned.answer.paired.gain >= min_gain else None


def _at_inference(plan: str | None, verdict: Verdict, spec: StudySpec) -> dict[str, Any] | None:
    return None if plan is None else inference_plans(spec, verdict.params)[plan]


def _more_pairs(evidence: Evidence, min_gain: float) -> MorePairs | None:
    """Return the pairs with which a gain of ``study.min_gain`` would be shown; None: no number of them.

    As many as the comparison needs that needs the most. One whose pairs are lost, or gain all alike, does not
    say how many it needs, and leaves that to the others.
    """
    study = evidence.spec.study
    winner, needed = evidence.runs("search"), []
    for reference in at_one(evidence):
        gains = evidence.gains(winner, reference)
        if not gains or min(gains) == max(gains) > 0:
            continue
        pairs = pairs_to_add(
            evidence.stages(winner, reference),
            min_gain,
            test=study.test,
            direction=study.direction,
            alpha=level(evidence.verdict + 1),
        )
        if pairs is None:
            return None
        needed.append(pairs)
    return _priced(evidence, max(needed)) if needed else None


def _priced(evidence: Evidence, pairs: int) -> MorePairs:
    done = sum(map(evidence.planned, evidence.rounds))
    tickets = {
        ticket.id: ticket
        for of_round in evidence.rounds
        for kind in _PER_PAIR
        for arm in (*ARMS, "init_only")
        for ticket in evidence.tickets(kind, arm, of_round)
    }.values()
    runs = len(tickets) / max(1, done)
    trained = [ticket for ticket in tickets if usable(ticket)]
    each = fmean(ticket.seconds for ticket in trained) if trained else 0.0
    cards = fmean(ticket.gpu_seconds for ticket in trained) if trained else 0.0
    total = math.ceil(runs * pairs)
    return MorePairs(
        pairs=pairs, runs=total, seconds=each * total, gpu_seconds=cards * total if cards else None
    )


def at_ends(parameters: Mapping[str, Any], spec: StudySpec) -> Iterator[Widening]:
    """Return the searched ranges of temperatures at whose ends parameters lie, as far as they can be wider.

    Numbers that shape a schedule (a power, a share of training) are no reason to search again.
    """
    for name, domain in spec.search.items():
        value = parameters.get(name)
        shapes = name in GROUPS["schedule"] and name not in GROUPS["level"]
        if not isinstance(domain, Range) or name not in CREDITED or shapes:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        ends = _wider(name, domain, float(value))
        if ends is not None:
            yield Widening(
                name=name,
                value=float(value),
                low=float(domain.low),
                high=float(domain.high),
                to_low=ends[0],
                to_high=ends[1],
            )


def _wider(name: str, domain: Range, value: float) -> tuple[float, float] | None:
    """Return a range that is half as wide again at the end where a value lies, as far as is allowed.

    None: the value lies at neither end, or that end is the last value that is allowed.
    """
    log = domain.log and domain.low > 0 and value > 0
    low, high, at = (math.log(each) if log else each for each in (domain.low, domain.high, value))
    near = _END * (high - low)
    if at <= low + near:
        to_low = _beyond(name, domain, domain.low, domain.high)
        return None if to_low >= domain.low else (to_low, float(domain.high))
    if at >= high - near:
        to_high = _beyond(name, domain, domain.high, domain.low)
        return None if to_high <= domain.high else (float(domain.low), to_high)
    return None


def _beyond(name: str, domain: Range, end: float, other: float) -> float:
    """Return where a range ends that is half as wide again at an end, or the last value that is allowed."""
    ratio = math.sqrt(end / other) if domain.low > 0 else 1.0
    least = domain.step or isinstance(domain.low, int)
    further = end + math.copysign(max(abs(end - other) / 2, least), end - other)
    wanted = end * ratio if domain.log else further
    allowed = RANGES.get(name)
    if allowed is None or allowed.accepts(_number(wanted, domain)):
        return _number(wanted, domain)
    if allowed.accepts(_number(end * ratio, domain)) and not allowed.accepts(0.0):
        # what has to be above 0 goes half as far again in ratio
        return _number(end * ratio, domain)
    inside, outside = float(end), wanted
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if allowed.accepts(middle) else (inside, middle)
    plain = (0.0, _number(inside, domain), _inward(inside, end, domain))
    between = sorted((inside - _ROUNDING, end)) if inside < end else sorted((end, inside + _ROUNDING))
    return next((each for each in plain if allowed.accepts(each) and between[0] <= each <= between[1]), end)


def _number(value: float, domain: Range) -> float:
    """Return a value as it is written: whole where the range is, in its steps, else with three digits."""
    if domain.step is not None:
        steps = math.trunc((value - domain.low) / domain.step + math.copysign(_ROUNDING, value - domain.low))
        return float(f"{domain.low + steps * domain.step:.12g}")
    return float(round(value)) if isinstance(domain.low, int) else float(f"{value:.3g}")


def _inward(value: float, end: float, domain: Range) -> float:
    """Return a value as :func:`_number` does, but no farther from an end of its range."""
    towards = math.ceil if value < end else math.floor
    if isinstance(domain.low, int) or not value:
        return float(towards(value))
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return float(f"{towards(value / unit) * unit:.3g}")
