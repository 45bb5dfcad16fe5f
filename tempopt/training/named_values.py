"""The named temperatures of one run: schedules on numbers of its module."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import lightning as L

from tempopt.attention.attach.attachment import attach_untested
from tempopt.attention.attach.number_path import AttributePath, find_number, suggest_attributes
from tempopt.attention.attach.values import SAME_AS_FOUND, ValueAttachment, attach_value
from tempopt.errors import AttachError, SpecError
from tempopt.spec.program import Program
from tempopt.temperature import AS_FOUND, named_schedule_params, registered_path
from tempopt.temperature.ranges import HIGHEST, LOWEST
from tempopt.training.build import RunComponents
from tempopt.training.callbacks import TemperedAttention
from tempopt.training.example_step import training_step
from tempopt.training.lightning_package import is_overridden
from tempopt.training.module import TemperedModule
from tempopt.training.untempered import Untempered
from tempopt.training.value_callback import ValueTemperatureCallback

# as large as in the self-test, as ratios to the temperature as found
_PERTURBED = (16.0, 1 / 16.0, 1.5)


class NamedValues:
    """Attaches the named temperatures of a program to a module, each with its own parameters.

    Args:
        module: Module with the numbers.
        values: The section ``temperatures:`` as plain data, by name.
        parameters: All parameters of the run.
        validate_at: As for :class:`tempopt.training.callbacks.TemperatureCallback`.

    Attributes:
        attachments: The schedules, by name.
        callbacks: Callbacks that set them during training.

    Raises:
        AttachError: A number is missing or cannot be tempered; there is a line for each.
        SpecError: The temperature of the module differs from that in the study.
    """

    def __init__(
        self,
        module: L.LightningModule,
        values: Mapping[str, Mapping[str, Any]],
        parameters: Mapping[str, Any],
        *,
        validate_at: str,
    ) -> None:
        self.attachments: dict[str, ValueAttachment] = {}
        faults: list[AttachError | SpecError] = []
        for name, settings in values.items():
            try:
                path = settings["value"] or _registered_buffer_path(module, name)
                self._refuse_twice(find_number(module, path))
                # as found, nothing is written: the module keeps the number with its own rounding
                schedule = named_schedule_params(parameters, name)
                attachment = attach_value(module, path, schedule, transform=settings["transform"])
                self.attachments[name] = attachment
                _check_found(name, attachment, settings[AS_FOUND])
            except AttachError as error:
                faults.append(AttachError(f"temperatures.{name}.value: {error}"))
            except SpecError as error:
                faults.append(error)
        if faults:
            self.detach()
            raise type(faults[0])("\n".join(map(str, faults))) from faults[0]
        self.callbacks = [
            ValueTemperatureCallback(attachment, validate_at=validate_at, as_found=True)
            for attachment in self.attachments.values()
        ]

    def _refuse_twice(self, location: AttributePath) -> None:
        for name, attachment in self.attachments.items():
            if attachment.is_at(location):
                raise AttachError(
                    f'"{location.path}" is the number at "{attachment.path}", which is the temperature '
                    f"{name} already. Take one of them out."
                )

    @property
    def places(self) -> list[str]:
        """Paths of the numbers."""
        return [layer for attachment in self.attachments.values() for layer in attachment.layers]

    @property
    def initial_temperatures(self) -> dict[str, float]:
        """The temperatures that the module had at first, by name."""
        return {name: attachment.initial_temperature for name, attachment in self.attachments.items()}

    def validate_at(self, temperature: str) -> None:
        """Select the temperatures of validation: ``final`` or ``current``."""
        for callback in self.callbacks:
            callback.validate_at = temperature

    @contextlib.contextmanager
    def other_plans(self, parameters: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
        """Return a context in which some of the temperatures follow other plans.

        Args:
            parameters: The temperature parameters under their bare names, by temperature.
        """
        plans = {name: self.attachments[name].plan for name in parameters}
        try:
            for name, plan_parameters in parameters.items():
                self.attachments[name].use(plan_parameters)
            yield
        finally:
            for name, plan in plans.items():
                self.attachments[name].keep(plan)

    def perturb_each(self, names: Sequence[str]) -> Iterator[str]:
        """Set each temperature in turn to other values than its own, and yield its name at each."""
        for name in names:
            attachment = self.attachments[name]
            plan = attachment.plan
            try:
                for factor in _PERTURBED:
                    attachment.set_temperatures(
                        [min(max(attachment.initial_temperature * factor, LOWEST), HIGHEST)]
                    )
                    yield name
            finally:
                attachment.keep(plan)

    def detach(self) -> None:
        """Remove the schedules and restore the numbers as found."""
        for attachment in self.attachments.values():
            attachment.detach()


def attach_attention_temperature(
    built: RunComponents, program: Program, *, learns_heads: bool = False
) -> TemperedAttention:
    """Return the module if it is a TemperedModule, else attach attention's temperature to it.

    Args:
        built: The parts of the run.
        program: What is trained.
        learns_heads: Whether heads will have learned temperatures.

    Raises:
        AttachError: The temperature cannot be attached to this module.
    """
    module = built.module
    if isinstance(module, TemperedModule):
        module.validate_at = program.validate_at
        return module
    if program.attach is None and (program.compared or program.values):
        return Untempered()
    try:
        return attach_untested(
            module,
            built.temperature,
            layers=(program.attach or {}).get("layers", "auto"),
            forward=training_step(module, built.datamodule),
            learns_heads=learns_heads,
        )
    except AttachError as error:
        refusal = str(error)
        advice = ""
        if "No attention was found" in refusal and is_overridden("setup", module):
            advice = (
                " Layers that setup makes are not there yet: make them in __init__ or in configure_model."
            )
        if "No attention was found" in refusal and not program.values:
            advice += other_temperatures(module)
        raise AttachError(f"{refusal}{advice}") from error


def other_temperatures(module: L.LightningModule) -> str:
    """Return how to search a temperature other than attention's; empty if the module has none.

    These are registered temperatures, and numbers whose names suggest a temperature.
    """
    registered_names = module.registered_temperatures if isinstance(module, TemperedModule) else ()
    if registered_names:
        return f" To search the temperature that it registers: temperatures: {{{registered_names[0]}: {{}}}}."
    numbers = suggest_attributes(module)
    if not numbers:
        return ""
    alternatives = (
        f" By their names, {', '.join(numbers[1:])} may be temperatures, too." if numbers[1:] else ""
    )
    scale = " (with transform: inverse or log_inverse if it is a scale)" if "scale" in numbers[0] else ""
    return (
        " To search another temperature than attention's, give the path of its number: "
        f"temperatures: {{contrast: {{value: {numbers[0]}}}}}{scale}.{alternatives}"
    )


def _registered_buffer_path(module: L.LightningModule, name: str) -> str:
    """Return the buffer of a temperature that the module registers by this name; AttachError if there is
    none.
    """
    registered_names = module.registered_temperatures if isinstance(module, TemperedModule) else ()
    if name not in registered_names:
        registered_text = (
            f"registers {', '.join(registered_names)} only"
            if registered_names
            else "registers no temperature"
        )
        raise AttachError(
            f"no value is given, and {type(module).__name__} {registered_text}. Give the "
            f"path of a number, as in {name}: {{value: criterion.temperature}}, or have a TemperedModule "
            f'call self.register_temperature("{name}", 0.5) in its __init__, with the temperature that it '
            f'has now, and read self.temperature("{name}") in its training step.'
        )
    return registered_path(name)


def _check_found(name: str, attachment: ValueAttachment, expected: float | None) -> None:
    if expected is None or math.isclose(attachment.initial_temperature, expected, rel_tol=SAME_AS_FOUND):
        return
    raise SpecError(
        f"temperatures.{name}: the module has the temperature {attachment.initial_temperature:g} at "
        f"{attachment.label}, and the study takes it to be {expected:g} as found. All runs of a study begin "
        "from one: take out what is searched or set that changes it, or correct "
        f"temperatures.{name}.as_found."
    )
