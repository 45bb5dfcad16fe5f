"""Whether training and the metric read the named temperatures of a module, by a run of two steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tempopt.errors import AttachError, SpecError
from tempopt.training.batch_loss import make_single_batch_loss
from tempopt.training.messages import Evaluation
from tempopt.training.run import Run

VALIDATE = Evaluation(name="validate", on="validate")

# Below this ratio two metrics in single precision are the same but for rounding.
_ROUNDED = 1e-5


def require_read(run: Run) -> None:
    """Refuse named temperatures that training does not read, with a line for each."""
    faults: list[str] = []
    for name, attachment in run.values.attachments.items():
        try:
            attachment.self_test(make_single_batch_loss(run))
        except AttachError as error:
            is_read_elsewhere = next(_metric_moves(run, [name]), None) is not None
            metric = f' Validation reads it, for "{run.request.program.metric}" changes with it.'
            faults.append(f"temperatures.{name}.value: {error}{metric if is_read_elsewhere else ''}")
    if faults:
        raise AttachError("\n".join(faults))


def trained_values(run: Run) -> list[str]:
    """Return the named temperatures that the module's own optimizers hold where nothing is written."""
    groups = (group for optimizer in run.trainer.optimizers for group in optimizer.param_groups)
    optimized_ids = {id(parameter) for group in groups for parameter in group["params"]}
    return [
        name
        for name, attachment in run.values.attachments.items()
        if attachment.is_learned and id(attachment.tensor) in optimized_ids
    ]


def read_by_metric(run: Run) -> list[str]:
    """Return the named temperatures with which the metric moves alone.

    Raises:
        SpecError: There is one, and the study does not say that there may be: the metric would compare
            temperatures, not models.
    """
    metric, names = run.request.program.metric, dict[str, None]()
    for name, plain_metric, changed_metric in _metric_moves(run, list(run.values.attachments)):
        if run.request.program.metric_reads_temperature:
            names[name] = None
            continue
        raise SpecError(
            f'study.metric: "{metric}" changes with the temperature {name} alone: the same weights have '
            f"{plain_metric:.6g} and {changed_metric:.6g}. It cannot compare trainings at different "
            "temperatures. Give a metric that does not read the temperature, as the accuracy or the rank of "
            "the match, or, if the temperature is part of what is deployed, write study: "
            "{metric_reads_temperature: true}."
        )
    return list(names)


def _metric_moves(run: Run, names: Sequence[str]) -> Iterator[tuple[str, float, float]]:
    """Yield each of some temperatures with which the metric changes, and the metric without and with that."""
    metric = run.request.program.metric
    plain_metric = run.evaluate(VALIDATE)[metric] if names else 0.0
    for name in run.values.perturbed(names):
        changed_metric = run.evaluate(VALIDATE)[metric]
        # a sum in another order, or a product that is undone, rounds otherwise and no more
        if not math.isclose(changed_metric, plain_metric, rel_tol=_ROUNDED):
            yield name, plain_metric, changed_metric
