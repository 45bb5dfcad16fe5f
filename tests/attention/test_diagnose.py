"""Findings: each symptom is found where it is and not where it is not; the bounds are relative to ln n."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tempopt.attention.analysis.diagnose import (
    Anomaly,
    TrainingCurves,
    anomalies,
    entropy_anomalies,
    troubleshoot,
)
from tempopt.attention.analysis.histories import HeadHistory, MonitorReport
from tempopt.attention.analysis.monitor import AttentionMonitor
from tempopt.attention.analysis.outliers import outliers
from tempopt.errors import UsageError
from tempopt.temperature import TemperatureParameters, TemperaturePlan

TOTAL = 101
USUAL = {0: {0: 0.52, 1: 0.55, 2: 0.5, 3: 0.57}, 1: {0: 0.6, 1: 0.63, 2: 0.58, 3: 0.61}}


def plan(**parameters: Any) -> TemperaturePlan:
    return TemperatureParameters(**parameters).plan(2)


def with_change(layer: int, head: int, value: float) -> dict[int, dict[int, float]]:
    return {**USUAL, layer: {**USUAL[layer], head: value}}


def kinds(findings: list[Anomaly]) -> list[tuple[str, int | None, int | None]]:
    return [(finding.kind, finding.layer, finding.head) for finding in findings]


def history(values: list[float], statistic: str = "entropy", head: int = 0, layer: int = 0) -> HeadHistory:
    return HeadHistory(
        statistic=statistic,
        layer=layer,
        head=head,
        first=values[0],
        steps=tuple(range(0, 10 * len(values), 10)),
        values=tuple(values),
    )


@pytest.mark.parametrize(
    ("value", "kind"),
    [(0.04, "collapse"), (0.98, "dispersion"), (0.004, "dead_head"), (0.998, "dead_head")],
)
def test_a_head_unlike_the_others_and_in_the_band_is_found(value: float, kind: str) -> None:
    [finding] = entropy_anomalies(with_change(1, 2, value))
    assert (finding.kind, finding.layer, finding.head) == (kind, 1, 2)
    assert f"{value:.3f}" in finding.evidence
    assert "0.610" in finding.evidence  # the median of the others
    assert finding.advice


def test_a_head_in_the_band_among_heads_as_sharp_is_no_outlier() -> None:
    [finding] = entropy_anomalies({0: {0: 0.12, 1: 0.15, 2: 0.1, 3: 0.18}})
    assert (finding.kind, finding.layer, finding.head) == ("collapse", 0, None)


@pytest.mark.parametrize(("middle", "kind"), [(0.05, "collapse"), (0.97, "dispersion")])
def test_a_layer_is_judged_as_a_whole(middle: float, kind: str) -> None:
    findings = entropy_anomalies({**USUAL, 2: {head: middle + 0.001 * head for head in range(4)}})
    assert kinds(findings) == [(kind, 2, None)]


def test_heads_of_a_narrow_layer_are_compared_with_those_of_the_model() -> None:
    findings = entropy_anomalies({layer: {0: 0.5 + 0.02 * layer} for layer in range(5)} | {5: {0: 0.02}})
    assert kinds(findings) == [("collapse", 5, None), ("collapse", 5, 0)]


def test_a_dead_head_needs_no_others_to_be_one() -> None:
    assert kinds(entropy_anomalies({0: {0: 0.5, 1: 0.55, 2: 0.0}})) == [("dead_head", 0, 2)]
    assert entropy_anomalies({0: {0: 0.5, 1: 0.55, 2: 0.05}}) == []
    assert kinds(entropy_anomalies({0: {0: 0.001, 1: 0.002}})) == [("collapse", 0, None)]


def test_the_gap_and_what_it_takes_are_those_of_the_formulas() -> None:
    entropy = {0: {0: 0.5, 1: 0.4, 2: 0.6, 3: 0.45, 4: 0.01, 5: 0.55}, 1: {0: 0.7, 1: 0.75, 2: 0.65, 3: 0.8}}
    residuals = {}
    for layer, heads in entropy.items():
        for head, value in heads.items():
            other_values = [other_value for other_head, other_value in heads.items() if other_head != head]
            far = np.log(value / (1 - value)) - np.log(
                np.median(other_values) / (1 - np.median(other_values))
            )
            residuals[layer, head] = far / np.sqrt(1 + np.pi / (2 * len(other_values)))
    spread = np.median(np.abs(list(residuals.values())))
    scale = np.sqrt((20 * 0.4**2 + 10 * spread**2) / 30) / np.log(2)
    [(head_key, outlier)] = outliers(entropy).items()
    assert head_key == (0, 4) and outlier.usual == 0.5
    assert outlier.needed == pytest.approx(scale * np.log(200))
    assert outlier.gap == pytest.approx(residuals[0, 4] - sorted(residuals.values())[1])


def test_two_dead_heads_do_not_hide_each_other() -> None:
    entropy = {layer: dict(heads) for layer, heads in USUAL.items()} | {2: {head: 0.55 for head in range(8)}}
    entropy[0][1], entropy[2][3] = 0.004, 0.005
    assert kinds(entropy_anomalies(entropy)) == [("dead_head", 0, 1), ("dead_head", 2, 3)]
    # what a quarter of the heads are is usual
    dead_heads = {0: {head: 0.004 if head < 4 else 0.6 for head in range(16)}}
    assert entropy_anomalies(dead_heads) == []


@pytest.mark.parametrize("heads", [4, 12, 48])
def test_of_models_with_exponential_tails_one_in_a_hundred_has_an_outlier_whatever_their_size(
    heads: int,
) -> None:
    draw, models = np.random.default_rng(heads), 1500
    num_outliers = 0
    for _ in range(models):
        levels = 1 / (1 + np.exp(-draw.laplace(scale=0.8, size=(2, heads // 2))))
        num_outliers += bool(
            outliers(
                {
                    layer: dict(enumerate(map(float, layer_levels)))
                    for layer, layer_levels in enumerate(levels)
                }
            )
        )
    # the upper end of what 1 % gives, at one in a thousand
    assert num_outliers <= stats.binom.isf(1e-3, models, 0.01)


def test_entropy_in_nats_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Give H / ln n, in \[0, 1\]"):
        entropy_anomalies({0: {0: 3.4}})


def test_entropy_that_is_heading_for_collapse_is_found_before_it_is_there() -> None:
    falling = [0.9 - 0.01 * number for number in range(60)]
    report = MonitorReport(histories=(history(falling), history([0.5 + 0.01 * (i % 3) for i in range(60)])))
    [finding] = anomalies(report)
    assert (finding.kind, finding.layer, finding.head) == ("falling_entropy", 0, 0)
    assert "in 110 steps" in finding.evidence  # 0.31 now, 0.2 at 0.001 a step
    slowly = [0.9 - 0.001 * number for number in range(60)]
    assert anomalies(MonitorReport(histories=(history(slowly),))) == []
    assert anomalies(MonitorReport(histories=(history(falling[:4]),))) == []


def test_logits_that_grow_are_found() -> None:
    growing = [1.1**number for number in range(20)]
    report = MonitorReport(histories=(history(growing, "query_key_magnitude", head=3),))
    [finding] = anomalies(report)
    assert (finding.kind, finding.head) == ("growing_logits", 3)
    assert "2.4 times" in finding.evidence and "90 steps" in finding.evidence
    # weights that begin at 0, and what grows while it finds its level
    saturating_values = [0.0] * 4 + [1.0 - 0.9**number for number in range(1, 40)]
    assert anomalies(MonitorReport(histories=(history(saturating_values, "query_key_magnitude"),))) == []
    slower = [1.05**number for number in range(20)]
    assert anomalies(MonitorReport(histories=(history(slower, "query_key_magnitude"),))) == []


def test_anomalies_are_found_in_what_a_monitor_saw() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 6, 40, 8, generator=generator) for _ in range(2))
    q[:, 4] *= 40
    q[:, 5] = 0
    monitor = AttentionMonitor()
    monitor.update(0, 0, 2 * q, k, is_causal=True)
    kind_by_head = {finding.head: finding.kind for finding in anomalies(monitor.report())}
    assert kind_by_head == {4: "collapse", 5: "dead_head"}


def losses(shape: Any) -> list[tuple[int, float]]:
    return [(step, float(shape(step / (TOTAL - 1)))) for step in range(0, TOTAL, 2)]


def flat(value: float) -> list[tuple[int, float]]:
    return [(step, value) for step in range(0, TOTAL, 10)]


def late_start(u: float) -> float:
    return 3.0 if u < 0.4 else 3.0 - 2 * (u - 0.4)


def test_a_slow_start_of_sharp_attention_asks_for_a_higher_first_temperature() -> None:
    curves = TrainingCurves(total_steps=TOTAL, train_loss=losses(late_start), entropy=flat(0.1))
    [finding] = troubleshoot(curves, plan(temperature_init=0.5))
    assert finding.kind == "slow_start"
    assert "Raise temperature_init above 0.5" in finding.advice
    warmed_up = plan(schedule="warmup_anneal", warmup_start=0.3)
    [finding] = troubleshoot(curves, warmed_up)
    assert "Raise warmup_start above 0.3" in finding.advice


@pytest.mark.parametrize(
    ("loss", "entropy"),
    [(lambda u: 3 - 2 * u, 0.1), (lambda u: 3 * math.exp(-5 * u), 0.1), (late_start, 0.5)],
)
def test_neither_a_quick_start_nor_broad_attention_is_a_slow_start(loss: Any, entropy: float) -> None:
    curves = TrainingCurves(total_steps=TOTAL, train_loss=losses(loss), entropy=flat(entropy))
    assert troubleshoot(curves, plan()) == []


def wobbling_loss(u: float) -> float:
    return 0.5 + 0.1 * u + 0.1 * math.cos(math.pi * u * (TOTAL - 1) / 2)


FAST_PLAN = {"schedule": "exponential", "temperature_init": 4.0, "temperature_final": 0.25}


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_validation_that_oscillates_while_the_temperature_falls_fast_asks_for_a_longer_schedule(
    direction: Any,
) -> None:
    curves = TrainingCurves(total_steps=TOTAL, validation=losses(wobbling_loss), direction=direction)
    [finding] = troubleshoot(curves, plan(**FAST_PLAN))
    assert finding.kind == "oscillation"
    assert "2.77" in finding.evidence  # ln 16
    assert finding.advice.startswith("Lengthen the schedule")


@pytest.mark.parametrize(
    "parameters",
    [{}, {"schedule": "exponential", "temperature_init": 4.0, "temperature_final": 1.0}],
)
def test_oscillation_under_a_slow_temperature_is_not_the_temperatures(parameters: dict[str, Any]) -> None:
    curves = TrainingCurves(total_steps=TOTAL, validation=losses(wobbling_loss), direction="maximize")
    assert troubleshoot(curves, plan(**parameters)) == []


@pytest.mark.parametrize(("direction", "sign"), [("maximize", 1), ("minimize", -1)])
def test_steady_validation_under_a_fast_temperature_is_in_order(direction: Any, sign: int) -> None:
    curves = TrainingCurves(total_steps=TOTAL, validation=losses(lambda u: sign * u), direction=direction)
    assert troubleshoot(curves, plan(**FAST_PLAN)) == []


def test_broad_attention_late_asks_for_a_lower_last_temperature() -> None:
    late = [(step, 0.5 if step < 80 else 0.95) for step in range(0, TOTAL, 10)]
    falling = plan(schedule="linear", temperature_init=2.0, temperature_final=0.7)
    [finding] = troubleshoot(TrainingCurves(total_steps=TOTAL, entropy=late), falling)
    assert finding.kind == "late_dispersion"
    assert "Lower temperature_final below 0.7" in finding.advice
    # A constant temperature has no temperature_final to lower.
    [finding] = troubleshoot(TrainingCurves(total_steps=TOTAL, entropy=late), plan())
    assert finding.advice.startswith("Lower temperature_init, or by a schedule that moves")
    early = [(step, 0.95 if step < 80 else 0.5) for step in range(0, TOTAL, 10)]
    assert troubleshoot(TrainingCurves(total_steps=TOTAL, entropy=early), plan()) == []


def test_outputs_less_confident_than_right_ask_for_a_lower_output_temperature() -> None:
    curves = TrainingCurves(total_steps=TOTAL, accuracy=flat(0.9), confidence=flat(0.7))
    [finding] = troubleshoot(curves, plan())
    assert finding.kind == "timid_outputs"
    assert "0.200" in finding.evidence
    for confidence in (0.85, 0.99):
        calibrated = TrainingCurves(total_steps=TOTAL, accuracy=flat(0.9), confidence=flat(confidence))
        assert troubleshoot(calibrated, plan()) == []


def test_classes_that_are_never_predicted_are_found() -> None:
    curves = TrainingCurves(total_steps=TOTAL, labels=[50, 30, 20, 0], predictions=[80, 1, 19, 0])
    [finding] = troubleshoot(curves, plan())
    assert finding.kind == "ignored_classes"
    assert finding.evidence.endswith("is class 1.")


@pytest.mark.parametrize(
    ("curve_args", "message"),
    [
        ({"total_steps": 0}, "at least 1"),
        ({"direction": "up"}, "minimize and maximize"),
        ({"train_loss": [(0, 1.0), (1, math.nan)]}, "train_loss is nan at step 1"),
        ({"validation": [(1, 1.0), (1, 2.0)]}, "validation are not ascending"),
        ({"entropy": [(0, 3.4)]}, "entropy is 3.4 at step 0. Give a share"),
        ({"accuracy": [(0, 93.0)]}, "accuracy is 93.0 at step 0. Give a share"),
        ({"labels": [1, 2], "predictions": [3]}, "2 labels and 1 predictions"),
    ],
)
def test_bad_curves_are_refused(curve_args: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainingCurves(**{"total_steps": TOTAL, **curve_args})
