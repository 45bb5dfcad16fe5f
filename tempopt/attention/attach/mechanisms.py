"""The ways in which temperatures lie on a model, each behind the same few calls.

Which of them a model gets is decided in ``tempopt.attention.attach.attachment``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from torch import nn

from tempopt.attention.attach.hf_interface import Interface
from tempopt.attention.attach.hf_layers import InterfaceLayer, check_deliverable
from tempopt.attention.attach.learning import HeadTemperatures
from tempopt.attention.attach.observers import Observe, fused_attention_observed
from tempopt.attention.attach.projection import Factors, temper
from tempopt.attention.attach.query_rows import AS_TEMPERED_MODULE, QueryRows
from tempopt.attention.attach.self_check import TemperedForward, TemperedInterface, TemperedRows
from tempopt.errors import AttachError
from tempopt.temperature import EntropyParameters, TemperaturePlan

ROWS, INTERFACE = "query_rows", "attention_interface"


class Mechanism(Protocol):
    """One of the ways, on one model."""

    method: str

    @property
    def attached(self) -> bool:
        """Whether the model still has the temperatures."""

    @property
    def tempered(self) -> TemperedForward:
        """The layers and their temperatures."""

    def require_in_place(self) -> None:
        """Raise AttachError if the model was given another attention meanwhile."""

    def use(self, plan: TemperaturePlan, entropy: EntropyParameters) -> None:
        """Take what the plan says beside the temperatures."""

    def set(self, temperatures: Sequence[float], entropy_weight: float) -> None:
        """Take the temperatures and the weight of the entropy term."""

    def end_at(self, temperatures: Sequence[float]) -> None:
        """Take the temperatures at the end of the plan, which a model is evaluated with."""

    def set_loss_scale(self, loss_scale: float) -> None:
        """Take the factor on the loss."""

    def learn(self) -> None:
        """Have backward passes leave the gradient of the temperatures."""

    def learn_heads(self, base: Sequence[float]) -> HeadTemperatures:
        """Give each head a temperature of its own, from those of the layers and the head pattern."""

    def log_gradients(self) -> list[float] | None:
        """Return the gradient with respect to ln τ of each layer, and forget it."""

    def observed(self, observe: Observe) -> AbstractContextManager[None]:
        """Show queries and keys for a while."""


class QueryRowsMechanism:
    """Query rows scaled as they are read.

    Args:
        model: The model.
        rows: Its query projections, first layer first.
    """

    method = ROWS

    def __init__(self, model: nn.Module, rows: Sequence[QueryRows]) -> None:
        self._model = model
        factors = Factors(rows)
        self.tempered: TemperedForward = TemperedRows(list(rows), factors)
        self._factors = factors
        temper(rows, factors)

    @property
    def attached(self) -> bool:
        return self._factors.attached

    def require_in_place(self) -> None:
        """Do nothing: a module that is put in place of another is another model."""

    def use(self, plan: TemperaturePlan, entropy: EntropyParameters) -> None:
        """Do nothing: what there is beside the temperatures was refused."""

    def set(self, temperatures: Sequence[float], entropy_weight: float) -> None:
        self.tempered.set_values([1.0 / temperature for temperature in temperatures])

    def end_at(self, temperatures: Sequence[float]) -> None:
        self._factors.final = tuple(temperatures)

    def set_loss_scale(self, loss_scale: float) -> None:
        """Do nothing: nothing is added to the loss."""

    def learn(self) -> None:
        self._factors.learn()

    def learn_heads(self, base: Sequence[float]) -> HeadTemperatures:
        raise AttachError(
            "Temperatures of heads cannot be attached by query rows: which row is of which head is not known "
            f'there. Attach a model of transformers with method="{INTERFACE}", or {AS_TEMPERED_MODULE}. Of a '
            "study write study: {learned: true}, so that each layer has one."
        )

    def log_gradients(self) -> list[float] | None:
        return self._factors.log_gradients()

    def observed(self, observe: Observe) -> AbstractContextManager[None]:
        return fused_attention_observed(self._model, self.tempered.names, observe)


class HFInterfaceMechanism:
    """The attention function of transformers.

    Args:
        model: The model.
        layers: Its attention modules, first layer first.
    """

    method = INTERFACE

    def __init__(self, model: nn.Module, layers: Sequence[InterfaceLayer]) -> None:
        self._layers = list(layers)
        self._interface = Interface(model, layers)
        self.tempered: TemperedForward = TemperedInterface(self._layers, self._interface)

    @property
    def attached(self) -> bool:
        return self._interface.attached

    def require_in_place(self) -> None:
        self._interface.require_in_place()

    def use(self, plan: TemperaturePlan, entropy: EntropyParameters) -> None:
        check_deliverable(self._layers, plan, entropy)
        self._interface.use(plan, entropy)

    def set(self, temperatures: Sequence[float], entropy_weight: float) -> None:
        self._interface.set_values([1.0 / temperature for temperature in temperatures], entropy_weight)

    def end_at(self, temperatures: Sequence[float]) -> None:
        self._interface.final = tuple(temperatures)

    def set_loss_scale(self, loss_scale: float) -> None:
        self._interface.set_loss_scale(loss_scale)

    def learn(self) -> None:
        self._interface.learn()

    def learn_heads(self, base: Sequence[float]) -> HeadTemperatures:
        self._interface.heads = HeadTemperatures(base, self._interface.head_factors.pattern)
        return self._interface.heads

    def log_gradients(self) -> list[float] | None:
        return self._interface.log_gradients()

    def observed(self, observe: Observe) -> AbstractContextManager[None]:
        return self._interface.observers.observer_added(observe)
