"""What all attachments of a named temperature share: its plan, when it is set, and the loss that tests it.

Where a temperature is written is decided in ``values.py`` (a number of the model) and in ``rows.py`` (the
outputs of projections). Attention is attached to in ``attachment.py``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import torch
from torch import Tensor, nn

from tempopt.attention.attach.observers import Observe, check_temperatures
from tempopt.attention.attach.outputs import nested_tensors
from tempopt.attention.attach.unchanged import copy_back, same_randomness
from tempopt.errors import AttachError, unknown
from tempopt.temperature import (
    GROUPS,
    NEUTRAL,
    Constant,
    EntropyParameters,
    TemperatureParameters,
    TemperaturePlan,
    is_own,
    is_own_number,
)
from tempopt.workers.class_paths import load_schedule

VALUE_PARAMETERS = frozenset(GROUPS["schedule"] | GROUPS["level"])
"""Names of the temperature parameters that a named temperature can follow: those of a schedule."""

SAME_AS_FOUND = 1e-6
"""Difference, as a share, within which a temperature is the one that was found."""


class NamedAttachment(ABC):
    """A schedule on one temperature of a model that is not attention's.

    It has what :class:`tempopt.Attachment` has, so that one callback moves either of them. As a context
    manager it detaches at the end.

    Attributes:
        layers: Where the temperature is.
        found: The temperature that was there when it was attached.
        plan: The temperature over progress.
        progress: The training progress, in [0, 1], whose temperature is set.
        entropy: No entropy term: there is no attention.
    """

    plan: TemperaturePlan

    def __init__(self, model: nn.Module, layers: Sequence[str], found: float) -> None:
        self.layers: Sequence[str] = list(layers)
        self.found = found
        self.progress = 0.0
        self.entropy = EntropyParameters()
        self._model = model
        self._own: tuple[float, ...] | None = None
        self._writes = False

    @property
    @abstractmethod
    def attached(self) -> bool:
        """Whether the schedule is still on the model."""

    @property
    @abstractmethod
    def called(self) -> str:
        """What messages call the place of the temperature."""

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The temperature in force, as the only entry."""
        return self.plan.temperatures(self.progress) if self._own is None else self._own

    @property
    def last(self) -> float:
        """The temperature at the end of the plan, or that which is held whatever the plan says."""
        return self.plan.temperatures(1.0)[0] if self._own is None else self._own[0]

    def use(self, parameters: TemperatureParameters | Mapping[str, object]) -> None:
        """Change to another plan, at the same progress.

        Args:
            parameters: The plan. In a mapping, ``temperature_init`` and ``warmup_start`` that are left out
                are the temperature that was found.

        Raises:
            AttachError: It was detached, or the parameters are about layers, lengths or attention.
            SpecError: A parameter is out of range.
        """
        self.keep(_plan(parameters, self.found))

    def keep(self, plan: TemperaturePlan) -> None:
        """Change to a plan that is made already, at the same progress; AttachError if it was detached."""
        self._require_attached()
        self.plan = plan
        self._own = None
        schedule = self.plan.schedule
        # a number in float32 is not the one that a person writes
        same = isinstance(schedule, Constant) and math.isclose(
            schedule.temperature_init, self.found, rel_tol=SAME_AS_FOUND
        )
        self._set_writes(not same)
        self.set_progress(self.progress)

    def set_progress(self, progress: float) -> None:
        """Set the temperature at ``progress`` in [0, 1]; at the temperature as found nothing is written.

        To be called before a forward, not between a forward and its backward.

        Raises:
            AttachError: It was detached, or it cannot be written any more.
        """
        self._require_attached()
        self.progress = progress
        if self._writes:
            self._write(self.temperatures[0])

    def set_temperatures(self, temperatures: Sequence[float]) -> None:
        """Hold it at a temperature, whatever the plan says, until :meth:`use`.

        Raises:
            AttachError: It was detached.
            SpecError: It is not one number from 1e-6 to 1e6.
        """
        self._require_attached()
        self._own = check_temperatures(temperatures, 1)
        self._set_writes(True)
        self.set_progress(self.progress)

    @abstractmethod
    def learn(self) -> None:
        """Have backward passes leave the gradient of the temperature from now on."""

    @abstractmethod
    def log_gradients(self) -> list[float] | None:
        """Return the gradient with respect to ln τ, an entry a layer, and forget it; None: none was left."""

    def observed(self, observe: Observe) -> AbstractContextManager[None]:
        """Return a context in which nothing is shown: there is no attention."""
        return contextlib.nullcontext()

    def set_loss_scale(self, loss_scale: float) -> None:
        """Do nothing: there is no entropy term."""
        assert not self.entropy.has_term

    @abstractmethod
    def self_test(self, loss: Callable[[], Any]) -> None:
        """Prove that training reads the temperature; AttachError if it does not."""

    @abstractmethod
    def detach(self) -> None:
        """Take the schedule off: the model is again what it was."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def _set_writes(self, writes: bool) -> None:
        if writes and not self._writes:
            self._keep_unwritten()
        elif self._writes and not writes:
            self._restore()
        self._writes = writes
        if writes:
            self._hold()

    @abstractmethod
    def _write(self, temperature: float) -> None:
        """Put a temperature where training reads it."""

    @abstractmethod
    def _keep_unwritten(self) -> None:
        """Keep what is there before the first temperature is written, for :meth:`_restore`."""

    @abstractmethod
    def _hold(self) -> None:
        """Prepare for temperatures that are written."""

    @abstractmethod
    def _restore(self) -> None:
        """Put back what was there before temperatures were written."""

    def _require_attached(self) -> None:
        if not self.attached:
            raise AttachError(f"{self.called} was detached, so no temperature can be set. Attach it again.")


@dataclasses.dataclass(frozen=True, slots=True)
class Trained:
    """What the loss of one batch comes to.

    Args:
        losses: What it returned.
        gradients: The gradient of their sum for each parameter that was asked for; None: it does not depend
            on it.
    """

    losses: list[Tensor]
    gradients: list[Tensor | None]

    @property
    def all(self) -> list[Tensor]:
        """Losses and gradients, as far as there are any."""
        return [*self.losses, *(each for each in self.gradients if each is not None)]


def trained(model: nn.Module, loss: Callable[[], Any], parameters: Sequence[Tensor]) -> Trained:
    """Return the loss of a batch and its gradients; buffers and random generators stay as they are.

    Args:
        model: Whose loss it is.
        loss: Returns a tensor, or tensors in any nesting.
        parameters: What the gradients are asked for; each requires one.
    """
    devices = {each.device for each in model.parameters()}
    # statistics that a forward adds to, as the centre of DINO, are buffers
    with _buffers_kept(model), same_randomness(devices), torch.enable_grad():
        found = list(nested_tensors(loss()))
        losses = [each.sum() for each in found if each.requires_grad]
        gradients: Sequence[Tensor | None] = [None] * len(parameters)
        if losses and parameters:
            whole = torch.stack([each.double() for each in losses]).sum()
            gradients = torch.autograd.grad(whole, list(parameters), allow_unused=True)
        return Trained(
            losses=[each.detach().clone() for each in found],
            gradients=[None if each is None else each.detach().clone() for each in gradients],
        )


def trained_twice(train: Callable[[], Trained]) -> tuple[Trained, Trained]:
    """Return two computations of the same loss; AttachError if it is none."""
    one = train()
    if not one.losses:
        raise AttachError("The loss returned no tensor. Have it return the training loss.")
    return one, train()


def not_the_same(called: str) -> AttachError:
    """Return the error for a loss that differs from call to call, of what is called so."""
    return AttachError(
        "The loss of one batch is not the same twice, so it cannot be told whether "
        f"{called} moves it. Give it one fixed batch."
    )


def equal(one: Trained, other: Trained) -> bool:
    """Return whether losses and gradients are equal to the bit."""
    some, others = one.all, other.all
    return len(some) == len(others) and all(map(torch.equal, some, others))


def _plan(parameters: TemperatureParameters | Mapping[str, object], found: float) -> TemperaturePlan:
    given = dataclasses.asdict(parameters) if isinstance(parameters, TemperatureParameters) else parameters
    if not isinstance(given, Mapping):
        raise AttachError(
            f"The parameters are {given!r}. Give temperature parameters by name, as in "
            '{"temperature_init": 0.1}.'
        )
    for name, value in given.items():
        if name in VALUE_PARAMETERS or is_own_number(name):
            continue
        if name not in NEUTRAL:
            raise AttachError(unknown("temperature parameter", name, sorted(VALUE_PARAMETERS)))
        if value != NEUTRAL[name]:
            raise AttachError(
                f"{name}={value!r} is about layers, lengths or attention, and a named temperature has none "
                f"of them. Give {', '.join(sorted(VALUE_PARAMETERS))}."
            )
    if is_own(schedule := given.get("schedule")):
        load_schedule(str(schedule), where="schedule")
    whole = {"temperature_init": found, "warmup_start": found, **given}
    return TemperatureParameters.from_mapping(whole).plan(1)


@contextlib.contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    # a forward may write into a buffer, or put another one in its place
    own = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    kept = [(module, dict(module._buffers)) for module in own]
    values = [(each, each.detach().clone()) for each in model.buffers()]
    try:
        yield
    finally:
        for module, buffers in kept:
            module._buffers.update(buffers)
        copy_back(values)
