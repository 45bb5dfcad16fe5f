"""Learns the temperatures of a run beside its weights: ln τ, moved by an optimizer of its own.

What holds a temperature leaves its gradient (``tempopt.attention.attach.learning``); here it moves it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import lightning as L
import torch
from torch import Tensor

from tempopt.attention.attach.learning import HeadTemperatures
from tempopt.attention.attach.values import ValueAttachment
from tempopt.errors import AttachError
from tempopt.temperature import LEARNED, PER_HEAD, temperatures_of
from tempopt.temperature.ranges import HIGHEST, LOWEST
from tempopt.training.callbacks import Tempered, TemperedAttention, loss_scale
from tempopt.training.entropy_callback import Curves
from tempopt.training.ranks import ALONE, Ranks
from tempopt.training.steps import step_of, steps_of
from tempopt.workers.messages import LEARNED_CURVE, RunRequest

_POINTS = 24
# Those that take gradients and nothing else, and vectors of parameters.
_OPTIMIZERS = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "SGD", "Rprop")
# What chooses a kernel on the device of the weights.
_KERNELS = ("foreach", "fused", "capturable", "differentiable")


class LearnedTemperatureCallback(L.Callback):
    """Learn every temperature of some tempered modules, as ln τ, from the temperature in force at the start.

    ln τ has an optimizer of the class and the options of the Trainer's first one, without weight decay, and
    steps whenever that does. Its learning rate is ``lr_ratio`` times that of the first group of parameters at
    that step, so that it follows any scheduler. What it moves is no parameter of the module: the module's
    optimizer, its clipping and its state are those of a training without it. Where the first optimizer is of
    a class that takes no vectors, or more than gradients, ln τ has Adam.

    Args:
        tempered: What has the temperatures, by name; the empty name is attention's, each of whose layers
            has a temperature of its own.
        lr_ratio: Learning rate of ln τ in ratio to the module's, > 0.
        per_head: Attention each of whose heads has a temperature of its own.
        ranks: Who train the run together; their gradients are averaged.
    """

    def __init__(
        self,
        tempered: Mapping[str, Tempered],
        *,
        lr_ratio: float,
        per_head: TemperedAttention | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self._tempered: dict[str, Tempered | HeadTemperatures] = {
            name: each for name, each in tempered.items() if each.layers
        }
        self._per_head = per_head
        self._lr_ratio = lr_ratio
        self._ranks = ranks
        self._logs = torch.zeros(0, dtype=torch.float64)
        self._optimizer: torch.optim.Optimizer | None = None
        self._steps: frozenset[int] = frozenset()
        self._loaded: dict[str, Any] | None = None
        self._path: list[list[float]] = []
        self._reached: set[str] = set()

    @property
    def names(self) -> list[str]:
        """The learned temperatures: the named ones by their names, attention's by numbers.

        ``LAYER``, or ``LAYER.HEAD`` where each head has its own.
        """
        found: list[str] = []
        for name, each in self._tempered.items():
            if isinstance(each, HeadTemperatures):
                found += each.names
            else:
                found += [name or str(layer) for layer in range(len(each.temperatures))]
        return found

    @property
    def without_gradient(self) -> list[str]:
        """Names of the temperatures that no gradient has reached so far, attention's being empty."""
        return [name for name in self._tempered if name not in self._reached]

    @property
    def curves(self) -> Curves:
        """The temperatures at some 24 steps, from the first to the last."""
        return {
            f"{LEARNED_CURVE}{name}": [[point[0], point[1 + index]] for point in self._path]
            for index, name in enumerate(self.names)
        }

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.optimizers:
            raise AttachError("The module has no optimizer, so no temperature can be learned beside it.")
        last = steps_of(trainer)
        self._steps = frozenset(round(i * last / (_POINTS - 1)) for i in range(_POINTS))
        for each in self._tempered.values():
            if not isinstance(each, HeadTemperatures):
                each.learn()
        if self._per_head is not None:
            self._tempered[""] = self._per_head.learn_heads()
        if self._loaded is not None:
            self._begin(trainer, self._loaded["heads"])
            assert self._optimizer is not None
            self._logs.copy_(torch.tensor(self._loaded["logs"], dtype=torch.float64))
            self._optimizer.load_state_dict(self._loaded["optimizer"])
            self._loaded = None
            self._write()
        elif self._per_head is None:
            self._begin(trainer, None)

    def _begin(self, trainer: L.Trainer, counts: list[int] | None) -> None:
        """Take the temperatures that are there; those of heads are once every layer has run.

        Args:
            counts: Number of heads of each layer; None: as many as have been seen.
        """
        heads = self._heads
        if heads is not None:
            heads.begin(heads.counts if counts is None else counts)
        own = [tau for each in self._tempered.values() for tau in each.temperatures]
        self._logs = torch.tensor([math.log(tau) for tau in own], dtype=torch.float64)
        self._optimizer = _optimizer(trainer.optimizers[0], self._logs)
        self._write()
        if not self._path:
            self._note(step_of(trainer))

    @property
    def _heads(self) -> HeadTemperatures | None:
        found = self._tempered.get("")
        return found if isinstance(found, HeadTemperatures) else None

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if optimizer is not trainer.optimizers[0]:
            return
        if self._optimizer is None:
            self._begin(trainer, None)
        assert self._optimizer is not None
        gradient = self._gradient(trainer, optimizer)
        # with a gradient scaler the step of the weights is left out as well
        if all(map(math.isfinite, gradient)):
            self._logs.grad = torch.tensor(gradient, dtype=torch.float64)
            self._optimizer.param_groups[0]["lr"] = self._lr_ratio * float(optimizer.param_groups[0]["lr"])
            self._optimizer.step()
            self._logs.clamp_(math.log(LOWEST), math.log(HIGHEST))
            self._write()
        if step_of(trainer) + 1 in self._steps:
            self._note(step_of(trainer) + 1)

    def _gradient(self, trainer: L.Trainer, optimizer: torch.optim.Optimizer) -> list[float]:
        """Return the gradient with respect to each ln τ, the mean over all ranks; 0 where none was left."""
        scale, found = loss_scale(trainer), list[float]()
        moved = {id(each) for group in optimizer.param_groups for each in group["params"]}
        for name, each in self._tempered.items():
            own = each.log_gradients()
            if own is None:
                found += [0.0] * len(each.temperatures)
                continue
            self._reached.add(name)
            # a gradient scaler has put those of the module's parameters right already
            right = isinstance(each, ValueAttachment) and id(each.tensor) in moved
            found += own if right else [value / scale for value in own]
        return self._ranks.mean(found)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._path and self._path[-1][0] != step_of(trainer):
            self._note(step_of(trainer))

    def _write(self) -> None:
        taus = iter(self._logs.exp().clamp(LOWEST, HIGHEST).tolist())
        for each in self._tempered.values():
            each.set_temperatures([next(taus) for _ in each.temperatures])

    def _note(self, step: int) -> None:
        self._path.append([step, *self._logs.exp().tolist()])

    def state_dict(self) -> dict[str, Any]:
        if self._optimizer is None:
            return {}
        return {
            "logs": self._logs.tolist(),
            "optimizer": self._optimizer.state_dict(),
            "heads": None if self._heads is None else self._heads.counts,
            "path": [list(point) for point in self._path],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict:
            self._loaded = state_dict
            self._path = [list(point) for point in state_dict["path"]]


def learned_of(
    attention: TemperedAttention, named: Mapping[str, Tempered], request: RunRequest, ranks: Ranks
) -> LearnedTemperatureCallback | None:
    """Return what learns the temperatures of a run that is to learn them; None where they follow schedules.

    Args:
        attention: What tempers attention, if there is any.
        named: What has other temperatures, by name.
        request: The run; those learn that its parameters are about.
        ranks: Who train it together.
    """
    lr_ratio = request.parameters.get(LEARNED)
    if lr_ratio is None:
        return None
    searched = temperatures_of(request.parameters)
    wanted: dict[str, Tempered] = {name: named[name] for name in searched if name in named}
    per_head = attention if "" in searched and request.parameters.get(PER_HEAD) else None
    if "" in searched and per_head is None:
        wanted = {"": attention, **wanted}
    return LearnedTemperatureCallback(wanted, lr_ratio=lr_ratio, per_head=per_head, ranks=ranks)


def _optimizer(base: torch.optim.Optimizer, logs: Tensor) -> torch.optim.Optimizer:
    """Return an optimizer of one vector like another, without weight decay."""
    kind = type(base)
    if kind.__module__.partition(".")[0] != "torch" or kind.__name__ not in _OPTIMIZERS:
        return torch.optim.Adam([logs], weight_decay=0.0)
    takes = inspect.signature(kind).parameters
    options = {name: value for name, value in base.defaults.items() if name in takes and name not in _KERNELS}
    if "weight_decay" in takes:
        options["weight_decay"] = 0.0
    options["lr"] = float(options["lr"])
    return kind([logs], **options)
