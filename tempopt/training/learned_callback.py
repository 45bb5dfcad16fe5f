"""Learn the temperatures of a run together with its weights: ln τ, updated by its own optimizer.

Tempered objects provide the gradient (``tempopt.attention.attach.learning``); this module updates ln τ.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import lightning as L
import torch
from torch import Tensor

from tempopt.attention.attach.learning import HeadTemperatures, PerHeadTemperatures
from tempopt.attention.attach.values import ValueAttachment
from tempopt.errors import AttachError
from tempopt.temperature import LEARNED, PER_HEAD, list_temperatures
from tempopt.temperature.ranges import HIGHEST, LOWEST
from tempopt.training.callbacks import TemperatureTarget, TemperedAttention, loss_scale
from tempopt.training.lightning_package import LightningCallback
from tempopt.training.messages import LEARNED_CURVE, RunRequest
from tempopt.training.ranks import ALONE, Ranks
from tempopt.training.steps import Curves, RecordedCurves, current_step, total_steps

# optimizers that need only gradients and accept vectors of parameters
_OPTIMIZERS = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "SGD", "Rprop")
# options that select a kernel for the device of the weights
_KERNELS = ("foreach", "fused", "capturable", "differentiable")


class LearnedTemperatureCallback(LightningCallback):
    """Learn every temperature of some tempered modules, as ln τ, from the temperature at the start.

    ln τ has an optimizer with the class and the options of the Trainer's first one, without weight decay, and
    steps whenever that one does; the heads of a layer join at the first step before which the layer has
    attended. Its learning rate is ``lr_ratio`` times that of the first parameter group at that step, so it
    follows any scheduler. ln τ is not a parameter of the module: the module's optimizer, its clipping and its
    state are those of a training without it. If the class of the first optimizer accepts no vectors, or needs
    more than gradients, ln τ uses Adam.

    Args:
        tempered: Objects with temperatures, by name; the empty name is attention's, with one temperature per
            layer.
        lr_ratio: Learning rate of ln τ as a ratio to the module's, > 0.
        per_head: Attention with a learned temperature for each head.
        ranks: The processes that train the run; their gradients are averaged.
    """

    def __init__(
        self,
        tempered: Mapping[str, TemperatureTarget],
        *,
        lr_ratio: float,
        per_head: TemperedAttention | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self._tempered = {name: holder for name, holder in tempered.items() if holder.layers}
        self._per_head = per_head
        self._lr_ratio = lr_ratio
        self._ranks = ranks
        self._heads: HeadTemperatures | None = None
        self._groups: dict[str, _LearnedGroup] = {}
        self._optimizer: torch.optim.Optimizer | None = None
        self._loaded: dict[str, Any] | None = None
        self._reached: set[str] = set()
        self._recorded = RecordedCurves()

    @property
    def curves(self) -> Curves:
        """The temperatures at about 24 steps, from the first to the last.

        Keys are the name of a named temperature, ``LAYER``, or ``LAYER.HEAD`` if each head has its own.
        """
        return self._recorded.curves

    @property
    def names_without_gradient(self) -> list[str]:
        """Names of the temperatures without any gradient so far; attention's is the empty text."""
        names = [*self._tempered, *([""] if self._per_head is not None else [])]
        return [name for name in names if name not in self._reached]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.optimizers:
            raise AttachError("The module has no optimizer, so no temperature can be learned beside it.")
        self._recorded.begin(total_steps(trainer))
        for holder in self._tempered.values():
            holder.learn()
        if self._per_head is not None:
            self._heads = self._per_head.learn_heads()
        for name, holder in self._tempered.items():
            names = [name or str(layer) for layer in range(len(holder.temperatures))]
            self._add_group(trainer, name, _LearnedGroup(name, names, holder))
        if self._loaded is not None:
            self._restore(trainer, self._loaded)
            self._loaded = None

    def _add_group(self, trainer: L.Trainer, key: str, learned_group: _LearnedGroup) -> None:
        """Start learning temperatures, from their present values."""
        self._groups[key] = learned_group
        if self._optimizer is None:
            self._optimizer = _build_optimizer(trainer.optimizers[0], learned_group.log_taus)
        else:
            self._optimizer.add_param_group({"params": [learned_group.log_taus]})
        learned_group.write()
        new_curves = {name: tau for name, tau in learned_group.values.items() if name not in self.curves}
        self._recorded.record(current_step(trainer), new_curves)

    def _add_heads(self, trainer: L.Trainer) -> None:
        """Start learning the heads of layers that have attended on any rank and are not yet learned."""
        heads = self._heads
        if heads is None or all(f"{layer}." in self._groups for layer in range(len(heads.counts))):
            return
        shares = self._ranks.mean([float(count > 0) for count in heads.counts])
        mean = self._ranks.mean([float(count) for count in heads.counts])
        for layer, (share, count) in enumerate(zip(shares, mean, strict=True)):
            if share and f"{layer}." not in self._groups:
                layer_heads = heads.begin(layer, round(count / share))
                self._add_group(trainer, f"{layer}.", _LearnedGroup("", layer_heads.names, layer_heads))

    def _restore(self, trainer: L.Trainer, state: dict[str, Any]) -> None:
        for key, logs in state["parts"]:
            if key not in self._groups:
                assert self._heads is not None
                layer_heads = self._heads.begin(int(key.rstrip(".")), len(logs))
                self._add_group(trainer, key, _LearnedGroup("", layer_heads.names, layer_heads))
            self._groups[key].log_taus.copy_(torch.tensor(logs, dtype=torch.float64))
            self._groups[key].write()
        if self._optimizer is not None:
            self._optimizer.load_state_dict(state["optimizer"])

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if optimizer is not trainer.optimizers[0]:
            return
        self._add_heads(trainer)
        gradients = self._gradients(trainer, optimizer)
        # a gradient scaler then also skips the step of the weights
        if self._optimizer is not None and all(map(math.isfinite, gradients)):
            gradient_iterator = iter(gradients)
            for learned_group in self._groups.values():
                learned_group.log_taus.grad = torch.tensor(
                    [next(gradient_iterator) for _ in learned_group.names], dtype=torch.float64
                )
            for group in self._optimizer.param_groups:
                group["lr"] = self._lr_ratio * float(optimizer.param_groups[0]["lr"])
            self._optimizer.step()
            for learned_group in self._groups.values():
                learned_group.log_taus.clamp_(math.log(LOWEST), math.log(HIGHEST))
                learned_group.write()
        if self._recorded.is_due(current_step(trainer) + 1):
            self._note(current_step(trainer) + 1)

    def _gradients(self, trainer: L.Trainer, optimizer: torch.optim.Optimizer) -> list[float]:
        """Return the gradient with respect to each ln τ, averaged over all ranks; 0 if there is none."""
        scale, gradients = loss_scale(trainer), list[float]()
        parameter_ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for learned_group in self._groups.values():
            log_gradients = learned_group.holder.log_gradients()
            if log_gradients is None:
                gradients += [0.0] * len(learned_group.names)
                continue
            self._reached.add(learned_group.temperature)
            # a gradient scaler has already unscaled the gradients of the module's parameters
            is_unscaled = (
                isinstance(learned_group.holder, ValueAttachment)
                and id(learned_group.holder.tensor) in parameter_ids
            )
            gradients += log_gradients if is_unscaled else [value / scale for value in log_gradients]
        return self._ranks.mean(gradients)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._note(current_step(trainer))

    def _note(self, step: int) -> None:
        for learned_group in self._groups.values():
            self._recorded.record(step, learned_group.values)

    def state_dict(self) -> dict[str, Any]:
        if self._optimizer is None:
            return {}
        return {
            "parts": [[key, learned_group.log_taus.tolist()] for key, learned_group in self._groups.items()],
            "optimizer": self._optimizer.state_dict(),
            "curves": self._recorded.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict:
            self._loaded = state_dict
            self._recorded.load_state_dict(state_dict["curves"])


class _LearnedGroup:
    """Temperatures that are learned from the same step on.

    Args:
        temperature: Name of the temperature; attention's is the empty text.
        names: Name of each value.
        holder: Object with the temperatures.
    """

    def __init__(
        self, temperature: str, names: list[str], holder: TemperatureTarget | PerHeadTemperatures
    ) -> None:
        self.temperature, self.names, self.holder = temperature, names, holder
        self.log_taus = torch.tensor([math.log(tau) for tau in holder.temperatures], dtype=torch.float64)

    @property
    def values(self) -> dict[str, float]:
        """The temperatures by the names of their curves."""
        logs = zip(self.names, self.log_taus.tolist(), strict=True)
        return {f"{LEARNED_CURVE}{name}": math.exp(log) for name, log in logs}

    def write(self) -> None:
        """Apply the temperatures."""
        self.holder.set_temperatures(self.log_taus.exp().clamp(LOWEST, HIGHEST).tolist())


def build_learned_callback(
    attention: TemperedAttention,
    named_temperatures: Mapping[str, TemperatureTarget],
    request: RunRequest,
    ranks: Ranks,
) -> LearnedTemperatureCallback | None:
    """Return the callback that learns the temperatures of a run; None if they follow schedules.

    Args:
        attention: Object that tempers attention, if there is one.
        named_temperatures: Objects with other temperatures, by name.
        request: The run; the temperatures in its parameters are learned.
        ranks: The processes that train it.
    """
    lr_ratio = request.parameters.get(LEARNED)
    if lr_ratio is None:
        return None
    temperatures = list_temperatures(request.parameters)
    tempered: dict[str, TemperatureTarget] = {
        name: named_temperatures[name] for name in temperatures if name in named_temperatures
    }
    per_head = attention if "" in temperatures and request.parameters.get(PER_HEAD) else None
    if "" in temperatures and per_head is None:
        tempered = {"": attention, **tempered}
    return LearnedTemperatureCallback(tempered, lr_ratio=lr_ratio, per_head=per_head, ranks=ranks)


def _build_optimizer(base: torch.optim.Optimizer, log_taus: Tensor) -> torch.optim.Optimizer:
    """Return an optimizer of one vector like another, without weight decay."""
    kind = type(base)
    if kind.__module__.partition(".")[0] != "torch" or kind.__name__ not in _OPTIMIZERS:
        return torch.optim.Adam([log_taus], weight_decay=0.0)
    parameters = inspect.signature(kind).parameters
    options = {
        name: value for name, value in base.defaults.items() if name in parameters and name not in _KERNELS
    }
    if "weight_decay" in parameters:
        options["weight_decay"] = 0.0
    options["lr"] = float(options["lr"])
    return kind([log_taus], **options)
