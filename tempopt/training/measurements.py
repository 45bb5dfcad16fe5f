"""What is kept of all that a validation logs at the end of a run: the metric that counts, and the guarded."""

from __future__ import annotations

from collections.abc import Mapping

from tempopt.errors import SpecError, unknown
from tempopt.spec.program import guard_name
from tempopt.training.callbacks import metric_of
from tempopt.training.messages import Evaluation, RunRequest


def measurements(request: RunRequest, metrics_by_name: Mapping[str, dict[str, float]]) -> dict[str, float]:
    """Return by name what is kept of evaluations.

    Args:
        request: The run's request, whose evaluations say what they guard.
        metrics_by_name: Evaluation name to all that was logged.

    Raises:
        SpecError: The metric, or one that is guarded, was never logged.
    """
    values = {name: metric_of(metrics, request.program.metric) for name, metrics in metrics_by_name.items()}
    for evaluation in request.evaluations:
        if evaluation.name in metrics_by_name:
            values |= guarded(evaluation, metrics_by_name[evaluation.name])
    return values


def guarded(evaluation: Evaluation, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return by name what an evaluation guards.

    Raises:
        SpecError: It was never logged.
    """
    for name in evaluation.guards:
        if name not in metrics:
            advice = "Log it in validation_step with self.log, or take the guard out."
            raise SpecError("study.guards: " + unknown("metric", name, sorted(metrics), advice))
    return {guard_name(evaluation.name, name): metrics[name] for name in evaluation.guards}
