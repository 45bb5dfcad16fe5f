"""Compiles a module's steps with torch.compile, so that one set of graphs serves every run of a process.

Handing ``torch.compile(module)`` to the Trainer, which is Lightning's own way, does not: it traces through
``self.log`` (which fails), the Trainer's counters and metrics, and compiles anew at every step.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

import lightning as L
import torch
from torchmetrics import Metric

from tempopt.training.lightning_package import lightning_package

# Graphs that torch keeps of one function before it leaves it uncompiled. It is twice torch's own number: a
# run that begins with no more than half of it taken has room for what torch allows.
_LIMIT = 16
_ROOM = _LIMIT // 2
_STEPS = ("training_step", "validation_step")
# What Lightning does in them is bookkeeping, and would not be traced or would be compiled anew at each step.
_LIGHTNINGS = (
    *("log", "log_dict", "print", "all_gather"),
    *("optimizers", "lr_schedulers", "manual_backward", "toggle_optimizer", "untoggle_optimizer"),
    *("clip_gradients", "configure_gradient_clipping"),
)
# Counters of the Trainer (global_step, current_epoch) enter a graph as what may change.
_COUNTERS = r"L\['self'\]\._trainer\..*"
Metric.forward = torch.compiler.disable(Metric.forward)  # type: ignore[method-assign]


def compile_steps(module: L.LightningModule, mode: str) -> None:
    """Have the module's training and validation steps compiled when they first run; others stay as they are.

    Whatever has been compiled in this process for other modules of the class is used again. New graphs are
    compiled for

    - other shapes: a second size of a dimension makes one graph for all sizes that follow;
    - training with the entropy term and without, each kind of head pattern and length scaling, each
      normaliser and each number of local heads (the temperature itself, its schedule, ``n0``, ``top_k``,
      ``min_weight``, ``window`` and ``entropy_lambda`` are tensors and are in no graph);
    - any other Python number, string or flag that the steps read of the module: a float that is only
      computed with makes one more graph at its second value, a dropout probability or a width one for each.

    A step that reads a number of its own that changes with every call is compiled ``_LIMIT`` times and is
    from then on run uncompiled; :func:`faults` tells.

    Args:
        module: The module; its steps are replaced on the instance.
        mode: As of ``torch.compile``.
    """
    _prepare()
    _leave_out_optimizer_steps(lightning_package(type(module)))
    for name in _LIGHTNINGS:
        _leave_out(module, name)
    for submodule in module.modules():
        if isinstance(submodule, Metric):
            # a copy of a metric makes these two anew, and would keep any other
            for name in ("update", "compute"):
                _leave_out(submodule, name)
    for name in _STEPS:
        setattr(module, name, torch.compile(getattr(module, name), mode=mode))


def faults() -> list[str]:
    """Return what a person should know of how compiling went: a line, or none."""
    if _most_graphs() <= _LIMIT:
        return []
    return [
        f"study.compile: more than {_LIMIT} graphs were needed for one function, so it is run uncompiled. A "
        "step reads a number of the module that changes all the time (a counter, say): keep it in a tensor, "
        "or take study.compile out. TORCH_LOGS=recompiles names it in the log."
    ]


def _leave_out(owner: Any, name: str) -> None:
    setattr(owner, name, torch.compiler.disable(getattr(owner, name)))


@functools.cache
def _leave_out_optimizer_steps(package: Any) -> None:
    """A module that steps by itself does it in its training step."""
    _leave_out(package.core.optimizer.LightningOptimizer, "step")


def _prepare() -> None:
    """Set torch's compiler up for runs that come one after another, and give the next one room."""
    torch._dynamo.config.recompile_limit = _LIMIT
    # torch before 2.8 does not know it: steps that read a counter are then compiled up to the limit
    with contextlib.suppress(AttributeError):
        torch.compiler.config.dynamic_sources = _COUNTERS
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        # by itself it starts a process for each core of the machine, in every worker
        torch._inductor.config.compile_threads = torch.get_num_threads()
    # beyond the limit, one run alone has used it up: the next would do the same
    if _ROOM < _most_graphs() <= _LIMIT:
        torch._dynamo.reset()


def _most_graphs() -> int:
    """Return how often the most often compiled function was compiled."""
    from torch._dynamo.convert_frame import FRAME_COMPILE_COUNTER

    return max(FRAME_COMPILE_COUNTER.values(), default=0)
