"""Finds in the dry run that validation is of other modules than those that are tempered."""

from __future__ import annotations

import dataclasses
import functools
import math

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from tempopt.errors import SpecError
from tempopt.training.messages import Evaluation
from tempopt.training.run import LightningRun

_TEMPERATURES = (16.0, 1.0, 1 / 16.0, 16.0)
# in root mean squares; a metric that counts answers may stay under a small change
_NOISE_SCALES = (1.0, 10.0, 100.0)
_ROUNDING_TOLERANCE = 1e-7
# data may come in another order; GPUs may add in another one
_REPEATED_TOLERANCE, _REPEATED_TOLERANCE_ON_GPU = 1e-5, 1e-3
_VALIDATE = Evaluation(name="validate", on="validate")


def require_metric_depends(run: LightningRun, attended_layers: set[int]) -> None:
    """Refuse a study whose metric is the same whatever the temperature of attention.

    A metric that counts answers may be the same by chance. It is taken to depend on the tempered layers if it
    changes with noise on their outputs.

    Args:
        run: A run that was trained.
        attended_layers: A set to which a TemperedModule adds the layers that attend.

    Raises:
        SpecError: It is, or it depends on earlier validations.
    """
    if not run.tempered.layers or run.request.program.compared:
        return
    metric = run.request.program.metric
    # layers that attended in training
    attended_layers.clear()
    values = []
    for temperature in _TEMPERATURES:
        plan = {"temperature_init": temperature}
        values.append(run.evaluate(dataclasses.replace(_VALIDATE, temperature=plan))[metric])
    _require_repeated(run, values[0], values[-1])
    if not _are_same(values) or attended_layers or _changes_with_outputs(run, values[1]):
        return
    raise SpecError(
        f'study.metric: "{metric}" does not change with the temperature of any layer: the same weights have '
        f"{values[0]:.6g} at the temperatures 16, 1 and 1/16. Validation runs other modules than "
        f"{', '.join(run.tempered.layers[:3])}, as an average of weights does that the module keeps in a "
        "copy, or the metric is the best of all validations so far. Validate with the modules that are "
        "trained, and give the metric of one validation; for an average of weights give "
        "lightning.pytorch.callbacks.EMAWeightAveraging under trainer.callbacks in place of the copy."
    )


def _changes_with_outputs(run: LightningRun, plain_value: float) -> bool:
    """Return whether the metric changes when noise is added to what the tempered layers give."""
    evaluation = dataclasses.replace(_VALIDATE, temperature={"temperature_init": 1.0})
    for scale in _NOISE_SCALES:
        # weights would do as well, but averaged ones come in when validation begins
        hooks = [
            run.module.get_submodule(name).register_forward_hook(functools.partial(_add_noise, scale))
            for name in run.tempered.layers
        ]
        try:
            value = run.evaluate(evaluation)[run.request.program.metric]
        finally:
            for hook in hooks:
                hook.remove()
        if not _are_same([plain_value, value]):
            metric = run.request.program.metric
            _require_repeated(run, plain_value, run.evaluate(evaluation)[metric])
            return True
    return False


def _require_repeated(run: LightningRun, value: float, later_value: float) -> None:
    """Refuse a metric that validations between two of the same weights have changed."""
    is_on_cpu = run.trainer.strategy.root_device.type == "cpu"
    tolerance = _REPEATED_TOLERANCE if is_on_cpu else _REPEATED_TOLERANCE_ON_GPU
    if not math.isclose(value, later_value, rel_tol=tolerance):
        raise SpecError(
            f'study.metric: "{run.request.program.metric}" is {value:.6g} in one validation and '
            f"{later_value:.6g} in a later one of the same weights at the same temperature: it depends on "
            "the validations between them, as the best value so far does. Give the metric of one validation."
        )


def _add_noise(scale: float, module: nn.Module, inputs: object, outputs: object) -> object:
    def perturb(leaf: object) -> object:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            return leaf
        return leaf + scale * (leaf.square().mean().sqrt() + 1e-3) * torch.randn_like(leaf)

    return tree_map(perturb, outputs)


def _are_same(values: list[float]) -> bool:
    return all(math.isclose(value, values[0], rel_tol=_ROUNDING_TOLERANCE) for value in values)
