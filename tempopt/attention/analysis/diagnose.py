"""Find problems of attention or of a temperature schedule, with advice, from plain numbers.

Heads are judged by entropy relative to ln of the number of keys that each query sees, since 2 nats are little
among 512 keys and impossible among 5. An outlier has to be one among the other heads *and* in an absolute
band. About one in a hundred models without an unusual head has a finding about the entropy of a head, for any
number of heads (``benchmarks/diagnose.py``, with the models). The numbers come from
``tempopt.attention.analysis.monitor`` or another source. The thresholds are the constants below, with their
sources; a finding is a reason to look, not a proof.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from tempopt.attention.analysis.histories import (
    MIN_TREND_POINTS,
    QUERY_KEY_MAGNITUDE,
    HeadHistory,
    MonitorReport,
    trend,
)
from tempopt.attention.analysis.outliers import FALSE_ALARMS, Outlier, heads_without_peers, outliers
from tempopt.errors import UsageError
from tempopt.temperature import Constant, TemperaturePlan, progress
from tempopt.temperature.schedules import Piecewise, WarmupAnneal

Kind = Literal[
    "collapse",
    "dispersion",
    "dead_head",
    "falling_entropy",
    "growing_logits",
    "slow_start",
    "oscillation",
    "late_dispersion",
    "timid_outputs",
    "ignored_classes",
]

Points = Sequence[tuple[int, float]]
"""(step, value), steps ascending."""

COLLAPSED = 0.2
"""H / ln n below which attention is collapsed; the bound of the troubleshooting table's "slow start"."""

DISPERSED = 0.9
"""H / ln n above which attention is dispersed; the bound of the table's "late dispersion"."""

DEAD = 0.01
"""Distance of H / ln n from 0 or 1 within which the weights no longer depend on the query. Our choice."""

MIN_LOGIT_GROWTH = 2.0
"""Growth of |q||k| over the latest half of the observations above which it is a finding, by the lower end of
the trend's interval: a doubling. In the first half of a healthy training it grows by more than that, from
small weights. Our choice.
"""

EARLY = 0.2
"""Share of training that is its start; the share after LATE is its end: the fifths of the table."""

LATE = 0.8  # share of training

SLOW = EARLY / 2
"""Share of the loss decrease in the early part below which a start is slow: half that of a line."""

SETBACK = 1.0 / 3.0
"""Share of adverse moves in all moves from which a curve oscillates: it loses half of what it gains."""

FAST = 2.0
"""|d ln tau / d progress| that is fast. Our choice: exponential 4 -> 1 over a whole training, which worked
well on max retrieval, has ln 4 = 1.39 and is not fast; the same within half of it has 2.77 and is.
"""

TIMID = 0.1
"""Accuracy minus mean confidence from which outputs are too timid. Our choice; calibrated outputs have 0 (Guo
et al. 2017, "On Calibration of Modern Neural Networks").
"""

IGNORED = 0.1
"""Predictions over labels of a class below which the class is ignored. Our choice."""

MIN_POINTS = 3
"""Number of points whose median is the level of a curve, so that no single point decides."""

MIN_MOVES = 6
"""Smallest number of moves between validations that separates oscillation from chance: all adverse in 1 of
64.
"""

# largest number of observations in a trend
_LATEST = 32
# smallest number for a trend that is valid for any number of heads
_MIN_FALLING = 12
_SHARES = ("entropy", "accuracy", "confidence")
# Half precision may put a share this far outside [0, 1].
_ROUNDING = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """A finding about attention or training.

    Args:
        kind: Kind of the finding.
        layer: Depth of the layer, None if it is about the whole model.
        head: Number of the head, None if it is about the whole layer or model.
        evidence: The observation, with numbers.
        advice: Recommended action.
    """

    kind: Kind
    layer: int | None = None
    head: int | None = None
    evidence: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCurves:
    """Curves of a training; empty ones are not used.

    Args:
        total_steps: Steps of the whole training, >= 1.
        train_loss: Loss on training data.
        validation: The validation metric.
        direction: ``minimize`` or ``maximize``, for ``validation``.
        entropy: Mean H / ln n over the model (:meth:`tempopt.attention.analysis.monitor.MonitorReport.mean`).
        accuracy: Share of correct predictions, in [0, 1].
        confidence: Mean probability of the predicted class, in [0, 1], on the same data.
        labels: Number of examples of each class in the data of the last validation.
        predictions: Number of predictions of each class on these data.

    Raises:
        UsageError: A value is not finite, out of range or out of order.
    """

    total_steps: int
    train_loss: Points = ()
    validation: Points = ()
    direction: Literal["minimize", "maximize"] = "minimize"
    entropy: Points = ()
    accuracy: Points = ()
    confidence: Points = ()
    labels: Sequence[int] = field(default=())
    predictions: Sequence[int] = field(default=())

    def __post_init__(self) -> None:
        if self.total_steps < 1:
            raise UsageError(f"total_steps={self.total_steps!r} is out of range. Give at least 1.")
        if self.direction not in ("minimize", "maximize"):
            raise UsageError(f'direction is "{self.direction}"; allowed are minimize and maximize.')
        for name in ("train_loss", "validation", "entropy", "accuracy", "confidence"):
            _check_points(name, getattr(self, name), share=name in _SHARES)
        if len(self.labels) != len(self.predictions):
            raise UsageError(
                f"Given {len(self.labels)} labels and {len(self.predictions)} predictions. Give one count "
                "for each class in both."
            )


def diagnose(report: MonitorReport, curves: TrainingCurves, plan: TemperaturePlan) -> list[Anomaly]:
    """Return all findings of :func:`anomalies` and :func:`troubleshoot`.

    Args:
        report: Report of the monitor.
        curves: Curves of the training; without an entropy that of the report is used.
        plan: The plan of the training.
    """
    return [*anomalies(report), *troubleshoot(curves, plan, entropy=report.mean("entropy"))]


def anomalies(report: MonitorReport) -> list[Anomaly]:
    """Return unusual layers and heads at the latest observation, and adverse trends."""
    histories = report.of("entropy")
    latest_entropy: dict[int, dict[int, float]] = {}
    for history in histories:
        latest_entropy.setdefault(history.layer, {})[history.head] = history.last
    findings = entropy_anomalies(latest_entropy)
    found_heads = {(finding.layer, finding.head) for finding in findings}
    other_histories = [history for history in histories if (history.layer, history.head) not in found_heads]
    falling_findings = (
        _find_falling_entropy(history, _trend_confidence(histories)) for history in other_histories
    )
    magnitudes = report.of(QUERY_KEY_MAGNITUDE)
    growing_findings = (
        _find_growing_logits(history, _trend_confidence(magnitudes)) for history in magnitudes
    )
    return [*findings, *filter(None, falling_findings), *filter(None, growing_findings)]


def _trend_confidence(histories: Sequence[HeadHistory]) -> float:
    """Return the confidence of each trend at which 1 % of models have a false alarm."""
    return 1.0 - FALSE_ALARMS / max(len(histories), 1)


def entropy_anomalies(entropy: Mapping[int, Mapping[int, float]]) -> list[Anomaly]:
    """Return layers whose heads are collapsed or dispersed as a whole, and heads that differ from the others.

    Heads are compared by :func:`tempopt.attention.analysis.outliers.outliers`. Where there are too few, a
    head is judged alone, and reported if it is dead and its layer is not.

    Args:
        entropy: H / ln n, in [0, 1], by layer and head.

    Raises:
        UsageError: An entropy is outside [0, 1]: it is in nats, or relative to another n.
    """
    findings = []
    for layer, heads in entropy.items():
        for value in heads.values():
            if not -_ROUNDING <= value <= 1.0 + _ROUNDING:
                raise UsageError(
                    f"Given the entropy {value!r} in layer {layer}. Give H / ln n, in [0, 1], with the "
                    "number of keys n that each query sees."
                )
        middle = median(heads.values())
        if kind := _out_of_band_kind(middle):
            findings.append(_layer_anomaly(kind, layer, middle))
    for (layer, head), outlier in sorted(outliers(entropy).items()):
        if finding := _head_anomaly(layer, head, entropy[layer][head], outlier):
            findings.append(finding)
    for layer, head in heads_without_peers(entropy):
        value, middle = entropy[layer][head], median(entropy[layer].values())
        if not DEAD <= value <= 1.0 - DEAD and _out_of_band_kind(middle) is None:
            evidence = f"Head {head} of layer {layer} has H / ln n {value:.3f} (too few heads to compare it)."
            advice = _REMEDY["dead_head"]
            findings.append(
                Anomaly(kind="dead_head", layer=layer, head=head, evidence=evidence, advice=advice)
            )
    return findings


def troubleshoot(curves: TrainingCurves, plan: TemperaturePlan, *, entropy: Points = ()) -> list[Anomaly]:
    """Return the findings of the troubleshooting table: a symptom, its likely cause, and what to change.

    Args:
        curves: Curves of the training.
        plan: The plan of the training.
        entropy: Mean entropy over steps, used if ``curves`` has none.
    """
    entropy = curves.entropy or entropy
    _check_points("entropy", entropy, share=True)
    findings: Iterable[Anomaly | None] = (
        _slow_start(curves, plan, entropy),
        _find_oscillation(curves, plan),
        _late_dispersion(curves, plan, entropy),
        _timid_outputs(curves),
        _ignored_classes(curves),
    )
    return [finding for finding in findings if finding is not None]


def _out_of_band_kind(value: float) -> Kind | None:
    if value < COLLAPSED:
        return "collapse"
    return "dispersion" if value > DISPERSED else None


_REMEDY: dict[str, str] = {
    "collapse": "Raise the temperature here, reward entropy (entropy_lambda > 0), normalise queries and "
    "keys, or lower the learning rate: entropy collapse goes with unstable training.",
    "dispersion": "Lower the temperature here or punish entropy (entropy_lambda < 0); if it comes with "
    'length, scale by length_scaling="log_n".',
    "dead_head": "Its weights hardly depend on the query. See what it is worth (head importance) and prune "
    "it, or give the layer fewer heads.",
}


def _layer_anomaly(kind: Kind, layer: int, middle: float) -> Anomaly:
    bound_text = f"below {COLLAPSED}" if kind == "collapse" else f"above {DISPERSED}"
    evidence = f"Half of the heads of layer {layer} have H / ln n {bound_text}; the median is {middle:.3f}."
    return Anomaly(kind=kind, layer=layer, evidence=evidence, advice=_REMEDY[kind])


def _head_anomaly(layer: int, head: int, value: float, outlier: Outlier) -> Anomaly | None:
    kind = _out_of_band_kind(value)
    if kind is None or (outlier.gap < 0) != (kind == "collapse"):
        return None
    if value < DEAD or value > 1.0 - DEAD:
        kind = "dead_head"
    evidence = (
        f"Head {head} of layer {layer} has H / ln n {value:.3f}, where the median of the other heads is "
        f"{outlier.usual:.3f} ({abs(outlier.gap):.1f} logits beyond the next head; by chance it is below "
        f"{outlier.needed:.1f})."
    )
    return Anomaly(kind=kind, layer=layer, head=head, evidence=evidence, advice=_REMEDY[kind])


def _find_falling_entropy(history: HeadHistory, confidence: float) -> Anomaly | None:
    """Return a finding if entropy falls so fast that it will be far below COLLAPSED after as many steps
    again.

    The trend is a line through the latest half of the observations, at the slow end of its interval. An
    exponential decay to a floor above COLLAPSED, as of a head that has learned where to look, is not
    reported.
    """
    num_latest = min(_LATEST, len(history.steps) // 2)
    if num_latest < _MIN_FALLING:
        return None
    course = history.trend(latest=num_latest, confidence=confidence)
    if course is None or not course.falls or history.last < COLLAPSED:
        return None
    horizon = history.steps[-1] - history.steps[-num_latest]
    if history.last + course.high * horizon >= COLLAPSED / 2.0:
        return None
    steps_left = (COLLAPSED - history.last) / course.slope
    evidence = (
        f"H / ln n of head {history.head} of layer {history.layer} is {history.last:.3f} and falls by "
        f"{-1000 * course.slope:.3f} in 1000 steps ({-1000 * course.high:.3f} to {-1000 * course.low:.3f}); "
        f"at that it is below {COLLAPSED} in {steps_left:.0f} steps."
    )
    return Anomaly(
        kind="falling_entropy",
        layer=history.layer,
        head=history.head,
        evidence=evidence,
        advice="Anneal the temperature less far or more slowly, or reward entropy (entropy_lambda > 0).",
    )


def _find_growing_logits(history: HeadHistory, confidence: float) -> Anomaly | None:
    num_latest = min(_LATEST, len(history.steps) // 2)
    steps, values = history.steps[-num_latest:], history.values[-num_latest:]
    if num_latest < MIN_TREND_POINTS or min(values) <= 0.0:
        return None
    # exponential growth is a line in logarithms
    course = trend(steps, [math.log(value) for value in values], confidence=confidence)
    if course is None or math.exp(course.low * (steps[-1] - steps[0])) < MIN_LOGIT_GROWTH:
        return None
    return Anomaly(
        kind="growing_logits",
        layer=history.layer,
        head=history.head,
        evidence=f"|q||k| of head {history.head} of layer {history.layer} is {history.last / values[0]:.1f} "
        f"times what it was {steps[-1] - steps[0]} steps before, and rises.",
        advice="Normalise queries and keys, or lower the learning rate: the logits outgrow the temperature.",
    )


def _slow_start(curves: TrainingCurves, plan: TemperaturePlan, entropy: Points) -> Anomaly | None:
    early_losses, early_entropies = _early_values(curves, curves.train_loss), _early_values(curves, entropy)
    if len(early_losses) < 2 * MIN_POINTS or not early_entropies:
        return None
    sharpness = median(early_entropies)
    first_loss = median(early_losses[:MIN_POINTS])
    final_loss = median(value for _, value in curves.train_loss[-MIN_POINTS:])
    early_drop, total_drop = first_loss - median(early_losses[-MIN_POINTS:]), first_loss - final_loss
    if sharpness >= COLLAPSED or early_drop > max(SLOW * total_drop, 0.0):
        return None
    begins = "warmup_start" if isinstance(plan.schedule, WarmupAnneal) else "temperature_init"
    begins = "the first of temperature_knots" if _has_knots(plan) else begins
    return Anomaly(
        kind="slow_start",
        evidence=f"In the first {EARLY:.0%} of training the loss fell by {early_drop:.3g} of "
        f"{total_drop:.3g}, and H / ln n was {sharpness:.3f}: attention was sharp before it knew where to "
        "look.",
        advice=f"Raise {begins} above {plan.schedule(0.0):.3g}, to 1.5 to 3 times that.",
    )


def _find_oscillation(curves: TrainingCurves, plan: TemperaturePlan) -> Anomaly | None:
    """Return a finding if validation oscillates while the temperature changes fast."""
    sign = 1.0 if curves.direction == "maximize" else -1.0
    gains, rates = [], []
    for (step, score), (next_step, next_score) in itertools.pairwise(curves.validation):
        rate = _mean_log_rate(
            plan, progress(step, curves.total_steps), progress(next_step, curves.total_steps)
        )
        if abs(rate) >= FAST:
            gains.append(sign * (next_score - score))
            rates.append(abs(rate))
    total_change = math.fsum(abs(gain) for gain in gains)
    if len(gains) < MIN_MOVES or total_change == 0:
        return None
    setback = math.fsum(-gain for gain in gains if gain < 0) / total_change
    if setback < SETBACK:
        return None
    return Anomaly(
        kind="oscillation",
        evidence=f"While |d ln tau / d progress| was {median(rates):.2f} (fast is {FAST} or "
        f"more), {setback:.0%} of all that validation moved was for the worse, over {len(gains)} moves.",
        advice="Lengthen the schedule or soften it: temperature_init and temperature_final closer together, "
        "fewer cycles, or more steps of training.",
    )


def _late_dispersion(curves: TrainingCurves, plan: TemperaturePlan, entropy: Points) -> Anomaly | None:
    late_entropies = [value for step, value in entropy if progress(step, curves.total_steps) >= LATE]
    if not late_entropies or median(late_entropies) <= DISPERSED:
        return None
    ends = "the last of temperature_knots" if _has_knots(plan) else "temperature_final"
    if isinstance(plan.schedule, Constant):
        ends = "temperature_init, or by a schedule that moves temperature_final,"
    return Anomaly(
        kind="late_dispersion",
        evidence=f"In the last {1 - LATE:.0%} of training H / ln n was {median(late_entropies):.3f}, above "
        f"{DISPERSED}: attention had not made up its mind.",
        advice=f"Lower {ends} below {plan.schedule(1.0):.3g}.",
    )


def _timid_outputs(curves: TrainingCurves) -> Anomaly | None:
    confidence = dict(curves.confidence)
    gaps = [value - confidence[step] for step, value in curves.accuracy if step in confidence]
    gap = median(gaps[-MIN_POINTS:]) if len(gaps) >= MIN_POINTS else 0.0
    if gap < TIMID:
        return None
    return Anomaly(
        kind="timid_outputs",
        evidence=f"At the end accuracy is {gap:.3f} above mean confidence.",
        advice="Lower the output temperature at the end (0.3 to 0.7 times), or fit it on validation data "
        "after training, which changes no prediction.",
    )


def _ignored_classes(curves: TrainingCurves) -> Anomaly | None:
    ignored_classes = [
        number
        for number, (labels, predictions) in enumerate(zip(curves.labels, curves.predictions, strict=True))
        if labels > 0 and predictions < IGNORED * labels
    ]
    if not ignored_classes:
        return None
    return Anomaly(
        kind="ignored_classes",
        evidence=f"Predicted less than {IGNORED:.0%} as often as it is right is class "
        f"{', '.join(map(str, ignored_classes))}.",
        advice="Search learning rate and output temperature together (a loss at T has gradients of about "
        "1 / T), and check the balance of the classes.",
    )


def _early_values(curves: TrainingCurves, points: Points) -> list[float]:
    """Return the values in the early part of training."""
    return [value for step, value in points if progress(step, curves.total_steps) <= EARLY]


def _has_knots(plan: TemperaturePlan) -> bool:
    return isinstance(plan.schedule, Piecewise) and plan.schedule.temperature_knots is not None


def _mean_log_rate(plan: TemperaturePlan, start: float, end: float) -> float:
    """Return the mean of d ln tau / d progress between two progresses; the layers share it."""
    if end == start:
        return 0.0
    return math.log(plan.schedule(end) / plan.schedule(start)) / (end - start)


def _check_points(name: str, points: Points, *, share: bool) -> None:
    steps = [step for step, _ in points]
    if any(next_step <= step for step, next_step in itertools.pairwise(steps)):
        raise UsageError(f"The steps of {name} are not ascending. Give each step once, in ascending order.")
    for step, value in points:
        if not math.isfinite(value):
            raise UsageError(
                f"{name} is {value!r} at step {step}. Give finite values: a run that diverged needs a lower "
                "learning rate before it needs a diagnosis."
            )
        if share and not -_ROUNDING <= value <= 1.0 + _ROUNDING:
            raise UsageError(f"{name} is {value!r} at step {step}. Give a share, in [0, 1].")
