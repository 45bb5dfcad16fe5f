"""Compile a module's steps with torch.compile, so that one set of graphs serves every run of a process.

Lightning's way, passing ``torch.compile(module)`` to the Trainer, does not: it traces through ``self.log``
(which fails), the Trainer's counters and metrics, and recompiles at every step.
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

# Number of graphs that torch keeps of one function before it runs it uncompiled. It is twice torch's default:
# a run that begins with at most half of it in use has the room that torch allows.
_LIMIT = 16
_MAX_GRAPHS_BEFORE = _LIMIT // 2
_STEPS = ("training_step", "validation_step")
# Lightning only does bookkeeping in these, which would fail to trace or recompile at each step.
_LIGHTNINGS = (
    *("log", "log_dict", "print", "all_gather"),
    *("optimizers", "lr_schedulers", "manual_backward", "toggle_optimizer", "untoggle_optimizer"),
    *("clip_gradients", "configure_gradient_clipping"),
)
# Counters of the Trainer (global_step, current_epoch) enter a graph as dynamic values.
_COUNTERS = r"L\['self'\]\._trainer\..*"
Metric.forward = torch.compiler.disable(Metric.forward)  # type: ignore[method-assign]


def compile_steps(module: L.LightningModule, mode: str) -> None:
    """Make the module compile its training and validation steps on first use; other steps are unchanged.

    Graphs that were compiled in this process for other modules of the class are reused. New graphs are
    compiled for

    - other shapes: a second size of a dimension makes one graph for all sizes that follow;
    - training with the entropy term and without, each kind of head pattern and length scaling, each
      normaliser and each number of local heads (the temperature itself, its schedule, ``n0``, ``top_k``,
      ``min_weight``, ``window`` and ``entropy_lambda`` are tensors and are in no graph);
    - any other Python number, string or flag that the steps read from the module: a float that is only used
      in arithmetic needs one more graph at its second value, a dropout probability or a width one for each
      value.

    A step that reads a number that changes at every call is compiled ``_LIMIT`` times and then runs
    uncompiled; :func:`faults` reports it.

    Args:
        module: The module; its steps are replaced on the instance.
        mode: Mode of ``torch.compile``.
    """
    _prepare()
    _leave_out_optimizer_steps(lightning_package(type(module)))
    for name in _LIGHTNINGS:
        _leave_out(module, name)
    for submodule in module.modules():
        if isinstance(submodule, Metric):
            # copying a metric recreates these two, and would keep any other replaced method
            for name in ("update", "compute"):
                _leave_out(submodule, name)
    for name in _STEPS:
        setattr(module, name, torch.compile(getattr(module, name), mode=mode))


def faults() -> list[str]:
    """Return a line if a function ran uncompiled, otherwise an empty list."""
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
    """Configure torch's compiler for successive runs, and make room for the next one."""
    torch._dynamo.config.recompile_limit = _LIMIT
    # torch before 2.8 does not have it: steps that read a counter are then compiled up to the limit
    with contextlib.suppress(AttributeError):
        torch.compiler.config.dynamic_sources = _COUNTERS
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        # by default each worker starts a compile process for each core of the machine
        torch._inductor.config.compile_threads = torch.get_num_threads()
    # beyond the limit, a single run has used it up: clearing it would not help the next
    if _MAX_GRAPHS_BEFORE < _most_graphs() <= _LIMIT:
        torch._dynamo.reset()


def _most_graphs() -> int:
    """Return the number of compilations of the most often compiled function."""
    from torch._dynamo.convert_frame import FRAME_COMPILE_COUNTER

    return max(FRAME_COMPILE_COUNTER.values(), default=0)
