"""Puts a temperature schedule on one number of a model: the temperature of a loss, a sampler or a gate.

The number is found by a dotted path. It is written where the model keeps it, and read by the model's own
code, of which nothing is changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from tempopt.attention.attach.learning import pop_gradient, require_gradients
from tempopt.attention.attach.number_path import (
    AttributePath,
    find_number,
    same_number,
    suggest_attributes,
)
from tempopt.attention.attach.observers import Observe, check_temperatures
from tempopt.attention.attach.outputs import iter_nested_tensors, outputs_close
from tempopt.attention.attach.preserve_state import preserve_attributes, preserve_rng_state
from tempopt.class_loading import load_schedule
from tempopt.errors import AttachError, SpecError, unknown
from tempopt.temperature import (
    GROUPS,
    NEUTRAL,
    Constant,
    EntropyParameters,
    TemperatureParameters,
    TemperaturePlan,
    is_custom_number,
    is_custom_schedule,
)
from tempopt.temperature.ranges import HIGHEST, LOWEST, check_number

VALUE_PARAMETERS = frozenset(GROUPS["schedule"] | GROUPS["level"])
"""Names of the temperature parameters that a named temperature can follow: those of a schedule."""

SAME_AS_FOUND = 1e-6
"""Difference, as a share, within which a temperature is the one that was found."""

Transform = Literal["identity", "inverse", "log_inverse"]
"""How a model stores its temperature τ: as τ, as 1/τ, or as ln(1/τ), as CLIP's ``logit_scale`` does."""

Curve = Callable[[float], float]
# What is stored at τ, its derivative with respect to ln τ at τ, and τ of what is stored.
_TRANSFORMS: dict[str, tuple[Curve, Curve, Curve]] = {
    "identity": (lambda tau: tau, lambda tau: tau, lambda stored: stored),
    "inverse": (lambda tau: 1.0 / tau, lambda tau: -1.0 / tau, lambda stored: 1.0 / stored),
    "log_inverse": (lambda tau: -math.log(tau), lambda tau: -1.0, lambda stored: math.exp(-stored)),
}

# Codes that are sampled with the same noise change at large steps only.
_PERTURBED = (1.5, 1 / 1.5, 16.0, 1 / 16.0)
_ATTACHED = "_tempopt_values"
_NO_OTHER = "Give the path of the number that the loss reads in every forward."


class ValueAttachment:
    """A temperature schedule on one number of a model; :func:`attach_value` makes it.

    It has what :class:`tempopt.Attachment` has, so that one callback moves either of them. As a context
    manager it detaches at the end.

    Attributes:
        path: The path of the number.
        layers: The path, as the only entry.
        found: The temperature that was there when it was attached.
        plan: The temperature over progress.
        progress: The training progress, in [0, 1], whose temperature is set.
        entropy: No entropy term: there is no attention.
    """

    plan: TemperaturePlan

    def __init__(self, model: nn.Module, location: AttributePath, transform: Transform) -> None:
        self.layers: Sequence[str] = [location.path]
        self.initial_temperature = _read_temperature(location, transform)
        self.progress = 0.0
        self.entropy = EntropyParameters()
        self._model = model
        self._override_temperatures: tuple[float, ...] | None = None
        self._writes = False
        self.path = location.path
        self.transform = transform
        self._location = location
        self._is_number = location.tensor is None
        self._original = location.value if self._is_number else location.read()
        self.is_learned = location.tensor is not None and location.tensor.requires_grad
        self._learning = False

    @property
    def attached(self) -> bool:
        """Whether the schedule is still on the number."""
        return self in self._model.__dict__.get(_ATTACHED, ())

    @property
    def label(self) -> str:
        """What messages call the number."""
        return f'"{self.path}"'

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The temperature in force, as the only entry."""
        return self._override_temperatures or self.plan.temperatures(self.progress)

    def use(self, parameters: TemperatureParameters | Mapping[str, object]) -> None:
        """Change to another plan, at the same progress.

        Args:
            parameters: The plan. In a mapping, ``temperature_init`` and ``warmup_start`` that are left out
                are the temperature that was found.

        Raises:
            AttachError: It was detached, or the parameters are about layers, lengths or attention.
            SpecError: A parameter is out of range.
        """
        self.keep(_plan(parameters, self.initial_temperature))

    def keep(self, plan: TemperaturePlan) -> None:
        """Change to a plan that is made already, at the same progress; AttachError if it was detached."""
        self._require_attached()
        self.plan = plan
        self._override_temperatures = None
        schedule = self.plan.schedule
        # a number in float32 is not the one that a person writes
        is_constant = isinstance(schedule, Constant) and math.isclose(
            schedule.temperature_init, self.initial_temperature, rel_tol=SAME_AS_FOUND
        )
        self._set_writing_enabled(not is_constant)
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
        self._override_temperatures = check_temperatures(temperatures, 1)
        self._set_writing_enabled(True)
        self.set_progress(self.progress)

    @property
    def final(self) -> float | None:
        """What the model holds at the end of the plan; None where nothing is written."""
        temperatures = self._override_temperatures or self.plan.temperatures(1.0)
        return self.stored_value(temperatures[0]) if self._writes else None

    @property
    def tensor(self) -> Tensor | None:
        """The tensor that holds the number, None if a Python number does."""
        return self._location.tensor

    def is_at(self, location: AttributePath) -> bool:
        """Return whether the schedule is on the number at a place, whatever path leads there."""
        return self._location.same_as(location)

    def stored_value(self, temperature: float) -> float:
        """Return what the model holds at a temperature."""
        return _TRANSFORMS[self.transform][0](temperature)

    def read(self) -> float:
        """Return what the model holds now."""
        return float(self._location.read())

    def put(self, stored: float) -> None:
        """Have the model hold a number, until the plan writes the next one."""
        self._location.write(stored)

    def require_kept(self, *, as_found: bool) -> None:
        """Refuse a model whose own code has changed the number since it was set.

        Args:
            as_found: Whether a number that is not learned has to stay at what was found, too, where that is
                in force.

        Raises:
            AttachError: It is another number.
        """
        if not self._writes and (self.is_learned or not as_found):
            return
        self._require(self.stored_value(self.temperatures[0]) if self._writes else float(self._original))

    def _require(self, expected_value: float) -> None:
        stored_value = self._location.read()
        tensor = self._location.tensor
        if tensor is not None:
            # as its precision rounds it
            expected_value = torch.tensor(expected_value, dtype=tensor.dtype).item()
        if stored_value == expected_value or (tensor is None and same_number(stored_value, expected_value)):
            return
        raise AttachError(
            f'The code of {type(self._model).__name__} itself changes "{self.path}" in training: '
            f"{expected_value:.6g} was set, and {stored_value:.6g} is there. Then neither a schedule nor the "
            "temperature as found is what training reads. Take out what writes it: a schedule of the model's "
            "own, as in training_step or on_train_batch_start, or a clamp that is narrower than the schedule."
        )

    def learn(self) -> None:
        """Have backward passes leave the gradient of the temperature from now on.

        A Python number gives way to a tensor of one element until :meth:`detach`.

        Raises:
            AttachError: It was detached, or no tensor can be put in the place of the number.
        """
        temperature = self.temperatures[0] if self._writes else self.initial_temperature
        self._learning = True
        # keeps what is there before a tensor takes its place
        self.set_temperatures([temperature])
        if self._location.tensor is None:
            # as precise as the number, and of no weight in the type of a result
            self._location.hold(torch.tensor(self._location.read(), dtype=torch.float64))
            if self._location.tensor is None:
                raise AttachError(f'"{self.path}" takes numbers only, which have no gradient.')
        assert self._location.tensor is not None
        require_gradients([self._location.tensor])

    def log_gradients(self) -> list[float] | None:
        """Return the gradient with respect to ln τ, as the only entry, and forget it; None: none was left."""
        tensor = self._location.tensor
        gradient = None if tensor is None else pop_gradient(tensor)
        if gradient is None:
            return None
        return [float(gradient) * _TRANSFORMS[self.transform][1](self.temperatures[0])]

    def observed(self, observe: Observe) -> AbstractContextManager[None]:
        """Return a context in which nothing is shown: there is no attention."""
        return contextlib.nullcontext()

    def set_loss_scale(self, loss_scale: float) -> None:
        """Do nothing: there is no entropy term."""
        assert not self.entropy.has_term

    def self_test(self, loss: Callable[[], Any]) -> None:
        """Prove that training reads the number: the loss of a batch, or its gradient, moves with it.

        They are computed at the temperature in force and at four others, from a sixteenth of it to sixteen
        times it. The gradient counts, since codes that are sampled straight through (hard Gumbel-softmax)
        have the same values at every temperature. Buffers, gradients and random generators are afterwards as
        they were.

        Args:
            loss: Computes the training loss of a fixed batch and returns it: a tensor, or tensors in any
                nesting of sequences and mappings.

        Raises:
            AttachError: Neither moves with the number but for rounding, the model overwrites it, they are not
                the same twice, or there is no loss.
        """
        self._require_attached()
        original_value = self._location.read()
        temperature = self.temperatures[0] if self._writes else self.initial_temperature
        try:
            tensors, second_tensors = (
                self._compute_losses_and_gradients(loss),
                self._compute_losses_and_gradients(loss),
            )
            are_same = len(tensors) == len(second_tensors) and all(map(torch.equal, tensors, second_tensors))
            if not are_same or any(bool(tensor.isnan().any()) for tensor in tensors):
                raise AttachError(
                    "The loss of one batch or its gradient is not the same twice, or NaN, at the temperature "
                    f"{temperature:.4g}, so it cannot be told whether {self.label} moves it. Give it one "
                    "fixed batch, and weights that train."
                )
            for factor in _PERTURBED:
                self._location.write(self.stored_value(temperature * factor))
                if not outputs_close(tensors, self._compute_losses_and_gradients(loss)):
                    return
                self._require(self.stored_value(temperature * factor))
        finally:
            self._location.write(original_value)
        raise AttachError(
            f"The training loss and its gradient are the same but for rounding at the temperature "
            f'{temperature:.4g}, at a sixteenth of it and at sixteen times it: nothing reads "{self.path}" '
            "in training. It may have been copied when the module was made, be held between bounds, or be "
            f"undone by a norm that follows, or training reads a table by step or epoch in its place. "
            f"{_candidates(self._model, self.path)}"
        )

    def _compute_losses_and_gradients(self, loss: Callable[[], Any]) -> list[Tensor]:
        """Return the losses of a batch and their gradients, without those of the number itself.

        Attributes and random generators stay as they are.
        """
        number = self._location.tensor
        parameters = [
            parameter
            for parameter in self._model.parameters()
            if parameter.requires_grad and parameter is not number
        ]
        devices = {parameter.device for parameter in self._model.parameters()}
        with preserve_attributes(self._model), preserve_rng_state(devices), torch.enable_grad():
            tensors = list(iter_nested_tensors(loss()))
            if not tensors:
                raise AttachError("The loss returned no tensor. Have it return the training loss.")
            losses = [tensor.sum().double() for tensor in tensors if tensor.requires_grad]
            if losses and parameters:
                total_loss = torch.stack(losses).sum()
                gradients = torch.autograd.grad(total_loss, parameters, allow_unused=True)
                tensors += [gradient for gradient in gradients if gradient is not None]
            return [tensor.detach().clone() for tensor in tensors]

    def detach(self) -> None:
        """Take the schedule off: the number is what it was before one was written, and learned if it was."""
        if self.attached:
            if self._writes:
                self._restore()
            self._model.__dict__[_ATTACHED].remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def _set_writing_enabled(self, writes: bool) -> None:
        if writes and not self._writes:
            self._keep_unwritten()
        elif self._writes and not writes:
            self._restore()
        self._writes = writes
        if writes:
            self._hold()

    def _require_attached(self) -> None:
        if not self.attached:
            raise AttachError(f"{self.label} was detached, so no temperature can be set. Attach it again.")

    def _write(self, temperature: float) -> None:
        self._location.write(self.stored_value(temperature))

    def _keep_unwritten(self) -> None:
        # as found it may have been learned meanwhile
        self._original = self._location.value if self._is_number else self._location.read()

    def _hold(self) -> None:
        tensor = self._location.tensor
        if self.is_learned and tensor is not None and not self._learning:
            # what an optimizer moved, or what its gradient adds to a clipped norm, would be another training
            tensor.requires_grad_(False)
            tensor.grad = None

    def _restore(self) -> None:
        self._learning = False
        if self._is_number:
            # also where a tensor was put in its place
            self._location.hold(self._original)
            return
        self._location.write(self._original)
        tensor = self._location.tensor
        if tensor is not None and tensor.requires_grad != self.is_learned:
            tensor.requires_grad_(self.is_learned)
            tensor.grad = None


def attach_value(
    model: nn.Module,
    path: str,
    parameters: TemperatureParameters | Mapping[str, object],
    *,
    transform: Transform = "identity",
    loss: Callable[[], Any] | None = None,
) -> ValueAttachment:
    """Have a number that a model's training reads follow a temperature schedule, without editing the model.

    The number may be a Python number, a buffer, a parameter or another tensor of one element, or a property
    that can be set. A parameter that is learned is held at the schedule and not learned until :meth:`detach
    <ValueAttachment.detach>`. At the constant temperature that was found nothing is written, so training is
    bit for bit that of the model alone.

    Args:
        model: Any module.
        path: Where the number is, as in ``criterion.temperature`` or ``losses.0.tau``.
        parameters: The schedule, as temperature parameters by name. ``temperature_init`` and
            ``warmup_start`` that are left out are the temperature that was found.
        transform: How the number stores the temperature τ: ``identity`` τ, ``inverse`` 1/τ, ``log_inverse``
            ln(1/τ), as ``logit_scale`` of CLIP does.
        loss: The training loss of a fixed batch, to run :meth:`ValueAttachment.self_test` on; None tests
            nothing.

    Raises:
        AttachError: There is no number at the path, it cannot be written, another schedule is on it, the
            parameters are about layers, lengths or attention, or the self-test fails; the model is then as it
            was.
        SpecError: A parameter is out of range, or the transform is not known.
    """
    if transform not in _TRANSFORMS:
        raise SpecError(unknown("transform", transform, _TRANSFORMS))
    location = find_number(model, path)
    attachments: list[ValueAttachment] = model.__dict__.setdefault(_ATTACHED, [])
    for other_attachment in attachments:
        if other_attachment.is_at(location):
            alias = "" if other_attachment.path == path else f', which is the number at "{path}"'
            raise AttachError(
                f'A schedule is on "{other_attachment.path}" already{alias}. One number has one schedule: '
                "give one of them, or take the other off first, with detach() of what attach_value has "
                "returned, or of the attribute attachment of a ValueCallback."
            )
    attachment = ValueAttachment(model, location, transform)
    attachments.append(attachment)
    try:
        attachment.use(parameters)
        if loss is not None:
            attachment.self_test(loss)
    except BaseException:
        attachment.detach()
        raise
    return attachment


def _read_temperature(location: AttributePath, transform: Transform) -> float:
    stored = location.read()
    try:
        temperature = _TRANSFORMS[transform][2](stored)
        check_number("temperature", temperature)
    except (ArithmeticError, SpecError) as error:
        others = ", ".join(name for name in _TRANSFORMS if name != transform)
        raise AttachError(
            f'"{location.path}" is {stored:g}, which by transform="{transform}" is no temperature from '
            f"{LOWEST:g} to {HIGHEST:g}. Give another path, or say how it stores a temperature: {others}."
        ) from error
    return temperature


def _candidates(model: nn.Module, path: str) -> str:
    others = [other_path for other_path in suggest_attributes(model) if other_path != path]
    return f"Other numbers of this model are {', '.join(others)}." if others else _NO_OTHER


def _plan(
    parameters: TemperatureParameters | Mapping[str, object], initial_temperature: float
) -> TemperaturePlan:
    values = dataclasses.asdict(parameters) if isinstance(parameters, TemperatureParameters) else parameters
    if not isinstance(values, Mapping):
        raise AttachError(
            f"The parameters are {values!r}. Give temperature parameters by name, as in "
            '{"temperature_init": 0.1}.'
        )
    for name, value in values.items():
        if name in VALUE_PARAMETERS or is_custom_number(name):
            continue
        if name not in NEUTRAL:
            raise AttachError(unknown("temperature parameter", name, sorted(VALUE_PARAMETERS)))
        if value != NEUTRAL[name]:
            raise AttachError(
                f"{name}={value!r} is about layers, lengths or attention, and a named temperature has none "
                f"of them. Give {', '.join(sorted(VALUE_PARAMETERS))}."
            )
    if is_custom_schedule(schedule := values.get("schedule")):
        load_schedule(str(schedule), where="schedule")
    plan_values = {"temperature_init": initial_temperature, "warmup_start": initial_temperature, **values}
    return TemperatureParameters.from_mapping(plan_values).plan(1)
