"""Check both ends of the ranges of temperatures in the dry run, since a module may clamp a number."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from tempopt.errors import SpecError, UsageError
from tempopt.temperature import drop_unused_params, join_name, split_name
from tempopt.training.messages import RunRequest
from tempopt.training.run import LightningRun

# The temperature just inside a range, in ratio to its end.
_INSIDE = 1.25
_ENDS = ("temperature_init", "temperature_final")


def lowest_request(request: RunRequest) -> RunRequest | None:
    """Return the request at the first values of its temperatures; None: that is what it has already."""
    names = [name for name in request.space if split_name(name)[1] in _ENDS or name in _ENDS]
    lowest_values = {name: request.space[name][0] for name in names}
    if all(request.parameters.get(name) == value for name, value in lowest_values.items()):
        return None
    parameters = drop_unused_params({**request.parameters, **lowest_values})
    return dataclasses.replace(request, parameters=parameters, evaluations=[])


def try_lowest(request: RunRequest, train: Callable[[RunRequest], LightningRun]) -> bool:
    """Train two steps at the lowest temperatures of the ranges; return whether these are others than before.

    Raises:
        SpecError: They cannot be trained at.
    """
    lowest = lowest_request(request)
    if lowest is None:
        return False
    changed = {
        name: value for name, value in lowest.parameters.items() if request.parameters.get(name) != value
    }
    text = ", ".join(f"{name}={value:g}" for name, value in changed.items() if isinstance(value, float | int))
    try:
        run = train(lowest)
    except UsageError as error:
        raise SpecError(f"search: at the lower end of the ranges, {text}: {error}") from error
    if run.diverged_at is not None:
        raise SpecError(
            f"search: at the lower end of the ranges, {text}, the loss or the metric is NaN or infinite by "
            f"step {run.diverged_at}. Raise low."
        )
    return True


def refuse_bounded(run: LightningRun, loss: Callable[[], Any]) -> None:
    """Refuse ranges of named temperatures at whose ends the loss is that of a temperature inside.

    Args:
        run: A run with the temperatures.
        loss: Computes the loss of one fixed batch, or several.

    Raises:
        SpecError: The module holds a number within bounds; there is a line for each end.
    """
    lines = []
    for name, attachment in run.values.attachments.items():
        searched = [
            value
            for parameter in _ENDS
            for value in run.request.space.get(join_name(name, parameter), ())
            if isinstance(value, float | int)
        ]
        if not searched:
            continue
        plan = attachment.plan
        try:
            for end, inside in (
                (min(searched), min(searched) * _INSIDE),
                (max(searched), max(searched) / _INSIDE),
            ):
                losses = []
                for temperature in (end, inside):
                    attachment.set_temperatures([temperature])
                    losses.append(_numbers(loss()))
                if losses[0] == losses[1]:
                    lines.append(
                        f"search.{join_name(name, _ENDS[0])}: at {end:g} the loss is the same as at "
                        f"{inside:g}, {losses[0][0]:.6g}: the module keeps {attachment.path} within bounds "
                        "of its own (a clamp), or it has no effect there. Search within those bounds."
                    )
        finally:
            attachment.keep(plan)
    if lines:
        raise SpecError("\n".join(lines))


def _numbers(losses: Any) -> list[float]:
    return [
        float(leaf.detach()) for leaf in tree_leaves(losses) if isinstance(leaf, Tensor) and leaf.numel() == 1
    ]
