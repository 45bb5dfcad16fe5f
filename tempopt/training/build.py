"""Build the module, the data and the Trainer's arguments of one run from a program and a parameter set.

Creates objects and checks everything that needs no training; it neither sets seeds nor trains.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from tempopt.class_loading import load_class, load_schedule
from tempopt.errors import SpecError, unknown
from tempopt.spec.program import Program
from tempopt.temperature.custom_schedules import is_custom_schedule
from tempopt.temperature.entropy import ENTROPY_PARAMETERS
from tempopt.temperature.entropy_control import CONTROL_PARAMETERS, ControlParameters
from tempopt.temperature.generation import GENERATION
from tempopt.temperature.named import split_name
from tempopt.temperature.parameters import (
    NEUTRAL,
    PLAN_PARAMETERS,
    TEMPERATURE_PARAMETERS,
    ParameterNames,
    drop_unused_params,
)
from tempopt.temperature.plan import CUSTOM_NUMBER_PREFIX, flatten_schedule_args, is_custom_number
from tempopt.training.arguments import Arguments, loaders, parameter, takes_namespace

if TYPE_CHECKING:
    import lightning as L

    from tempopt.training.loggers import LoggerConfig

# attaching handles the parameters of attention; these act on the loss and its logits
_BESIDE_THE_PLAN = (*ENTROPY_PARAMETERS, "output_temperature")
# parameters of the temperature, which all ways of attaching accept
_FOLLOWED = ParameterNames((*PLAN_PARAMETERS, *CONTROL_PARAMETERS))
# all parameters of attention
_ATTENDED = ParameterNames((*_FOLLOWED, *ENTROPY_PARAMETERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComponents:
    """Objects and arguments that one run trains with.

    Args:
        module: The module, its temperature set if it is a TemperedModule.
        datamodule: The data, or None if the module has its own loaders.
        trainer_kwargs: Arguments of ``lightning.Trainer`` from the spec and the parameters, without its
            loggers.
        loggers: Configurations of the loggers of the spec.
        temperature: The given parameters of the plan; a TemperedModule already has them.
        control: Target of the attention entropy.
    """

    module: L.LightningModule
    datamodule: L.LightningDataModule | None
    trainer_kwargs: dict[str, Any]
    loggers: Sequence[LoggerConfig]
    temperature: dict[str, Any]
    control: ControlParameters


class ProgramFactory:
    """A program with imported classes and checked arguments, which creates the objects of its runs.

    Importing runs a person's module and may draw random numbers; creating objects draws them in constructors
    only. So prepare first, then set the seeds, then create.

    Raises:
        SpecError: A class or an argument is wrong; there is a line for each.
    """

    def __init__(self, program: Program) -> None:
        import lightning.pytorch

        from tempopt.training.lightning_package import (
            LightningDataModule,
            LightningModule,
            lightning_package,
        )
        from tempopt.training.loggers import parse_loggers
        from tempopt.training.module import TemperedModule
        from tempopt.training.usual_callbacks import without_screens

        faults: list[str] = []
        model = _section("model", program.model, LightningModule, faults)
        data = _section("data", program.data, LightningDataModule, faults) if program.data else None
        trainer_args = {name: value for name, value in program.trainer.items() if name != "logger"}
        try:
            if "callbacks" in trainer_args:
                trainer_args["callbacks"] = without_screens(trainer_args["callbacks"])
        except SpecError as error:
            faults.append(str(error))
        package = lightning.pytorch if model is None else lightning_package(model.cls)
        if model and data and (data_package := lightning_package(data.cls)) is not package:
            faults.append(
                f"data: {data.called} is built on the package {data_package.__name__}, but {model.called} on "
                f"{package.__name__}, whose Trainer takes no other. Derive both from classes of one of them."
            )
        trainer = _section("trainer", {"init_args": trainer_args}, package.Trainer, faults)
        self.loggers, logger_faults = parse_loggers(program.trainer.get("logger"))
        faults += logger_faults
        if faults or model is None or trainer is None:
            raise SpecError("\n".join(_drop_repeated_faults(faults)))
        self._model, self._data, self._trainer = model, data, trainer
        self._program = program
        self.tempered = issubclass(model.cls, TemperedModule)
        if self.tempered and program.attach is not None:
            raise SpecError(
                f"attach: is given, but {model.called} is a TemperedModule, which sets its own temperature. "
                f"Take attach: out."
            )

    def module(self, parameters: Mapping[str, Any]) -> L.LightningModule:
        """Return a new module with these parameters.

        Raises:
            SpecError: A parameter is unknown, of the wrong type, or cannot be put on this module.
        """
        from tempopt.training.lightning_package import is_overridden

        values = self._model.values(self._split(parameters)["model"])
        if self.tempered:
            attention_args = _effective_params({name: values[name] for name in _ATTENDED if name in values})
            values = {name: value for name, value in values.items() if name not in _ATTENDED} | attention_args
        module: L.LightningModule = _instantiate(self._model, values)
        # layers that are made here are attached to; Lightning has it return at once the second time
        if is_overridden("configure_model", module):
            module.configure_model()
        return module

    def datamodule(self, parameters: Mapping[str, Any]) -> L.LightningDataModule | None:
        """Return a new data module with these parameters, or None if the module has its own loaders.

        Raises:
            SpecError: A parameter is unknown or of the wrong type.
        """
        overrides = self._split(parameters)["data"]
        if self._data is None:
            return None
        module: L.LightningDataModule = _instantiate(self._data, self._data.values(overrides))
        return module

    def trainer(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the Trainer's keyword arguments that are given, with fresh callbacks; loggers apart.

        Raises:
            SpecError: A parameter is unknown or of the wrong type.
        """
        return self._trainer.values(self._split(parameters)["trainer"])

    def temperature(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of attention: those given, else a TemperedModule's init arguments."""
        all_parameters = {**(self._model.init_args if self.tempered else {}), **parameters}
        names = _ATTENDED if self.tempered else self._attachable
        return _effective_params({name: value for name, value in all_parameters.items() if name in names})

    @property
    def _attachable(self) -> Sequence[str]:
        """Names that attaching takes; others are the module's own to have."""
        return () if self._program.attach is None else _ATTENDED

    def check(self, search: Mapping[str, Sequence[Any]], *, test_data: bool, training: bool) -> list[str]:
        """Return what is wrong with these names at these values, a line for each."""
        faults = self._loader_faults(test_data=test_data, training=training)
        # sets that are compared need no temperature, and none of them has to be at temperature 1
        is_compared = self._program.compared
        faults += [] if is_compared else self._temperature_faults(search)
        for name, values in search.items():
            for value in values:
                try:
                    self._check_parameter(name, value)
                except SpecError as error:
                    faults.append(f"{'compare' if is_compared else 'search'}.{name}: {error}")
                    if not is_compared:
                        break
        valueless_names = [name for name, values in search.items() if not values]
        return list(
            dict.fromkeys([*faults, *_unknown_names(self._model.cls, valueless_names, self._attachable)])
        )

    def _check_parameter(self, name: str, value: Any) -> None:
        sections = {"model": self._model, "data": self._data, "trainer": self._trainer}
        for section, overrides in self._split({name: value}).items():
            arguments = sections[section]
            for argument, override in overrides.items():
                assert arguments is not None
                arguments.check(argument, override)

    def _split(self, parameters: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return parameters by the section of the spec that they are of, dotted prefixes taken off."""
        parts: dict[str, dict[str, Any]] = {"model": {}, "data": {}, "trainer": {}}
        for name, value in _nest(parameters, self._model.init_args.get("schedule_args")).items():
            if split_name(name)[0]:
                # a number of the module follows it
                continue
            prefix, dot, argument = name.partition(".")
            if dot and prefix == "trainer":
                parts["trainer"][argument] = value
            elif dot and prefix == "data":
                if self._data is None:
                    raise SpecError(f"{name} is given, but the spec has no data: section. Add one.")
                parts["data"][argument] = value
            elif "." in argument and prefix == "model":
                self._check_name(argument.partition(".")[0])
                parts["model"][argument] = value
            elif not self.tempered and name in TEMPERATURE_PARAMETERS:
                self._place_outside(parts["model"], name, value)
            else:
                self._check_name(prefix)
                parts["model"][name] = value
        return parts

    def _place_outside(self, model: dict[str, Any], name: str, value: Any) -> None:
        """Put a temperature parameter of a module that is not ours where it belongs, or refuse it."""
        has_argument = name in self._model.names
        class_name = self._model.called
        if name in self._attachable or name in _FOLLOWED:
            self._check_attachable(name)
            if has_argument:
                raise SpecError(
                    f"{name} could mean what attach: sets, or the argument {name} of {class_name}. "
                    f"Rename the argument."
                )
        elif has_argument:
            model[name] = value
        elif name in ENTROPY_PARAMETERS:
            self._check_attachable(name)
        elif value != NEUTRAL[name]:
            subject = "drawing tokens" if name in GENERATION else "the temperature of its logits"
            raise SpecError(
                f"{name} cannot be set from outside: {subject} is the module's to apply. "
                f"Make it an init argument of {class_name}, or take it out."
            )

    def _check_attachable(self, name: str) -> None:
        class_name = self._model.called
        if self._program.attach is None and name in _FOLLOWED:
            raise SpecError(
                f"{name} is a temperature parameter, but {class_name} is not a TemperedModule. Add attach: "
                f"{{layers: auto}} to the spec to set it from outside, or derive from TemperedModule."
            )

    def _check_name(self, name: str) -> None:
        if name not in self._model.names:
            raise SpecError(_unknown_argument(self._model.cls, name, self._attachable))

    def _temperature_faults(self, search: Mapping[str, Sequence[Any]]) -> list[str]:
        """Return what keeps the baseline arm from being at temperature 1, or the others from leaving it."""
        has_temperature = self.tempered or self._program.attach is not None or self._program.values
        if not has_temperature and not set(search) & set(_BESIDE_THE_PLAN):
            return [
                f"model: {self._model.called} is not a TemperedModule, so nothing would set its temperature. "
                f"Add attach: {{layers: auto}} to the spec, or derive it from tempopt.TemperedModule."
            ]
        faults = []
        for name in self._model.names if self.tempered else ():
            init_parameter = parameter(self._model.cls, name)
            if name not in TEMPERATURE_PARAMETERS or name in self._model.init_args or name in search:
                continue
            if init_parameter is not None and init_parameter.default != NEUTRAL[name]:
                faults.append(
                    f"model: {self._model.called} has {name}={init_parameter.default!r} by default, but "
                    f"temperature 1 is {name}={NEUTRAL[name]!r}. Write it under model.init_args, so that the "
                    f"baseline can change it."
                )
        return faults

    def _loader_faults(self, *, test_data: bool, training: bool) -> list[str]:
        holder = self._data or self._model
        available_kinds = loaders(holder.cls)
        required_kinds = {"val"} | ({"train"} if training else set()) | ({"test"} if test_data else set())
        remedies = {
            "train": "Write one, or give another class.",
            "val": "The search goes by validation: write one, or give another class.",
            "test": "A gain is confirmed on data that no search has seen: write one, or set "
            "study.confirm_on: validate, which the verdict then states.",
        }
        return [
            f"{holder.section}: {holder.called} has no {kind}_dataloader. {remedy}"
            for kind, remedy in remedies.items()
            if kind in required_kinds - available_kinds
        ]


def _nest(parameters: Mapping[str, Any], schedule_args: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return parameters with each ``schedule_args.knee`` moved into ``schedule_args``, over its values."""
    arguments = {name: value for name, value in parameters.items() if not is_custom_number(name)}
    numbers = {
        n.removeprefix(CUSTOM_NUMBER_PREFIX): value for n, value in parameters.items() if is_custom_number(n)
    }
    if numbers:
        arguments["schedule_args"] = {
            **(schedule_args or {}),
            **(arguments.get("schedule_args") or {}),
            **numbers,
        }
    return arguments


def _effective_params(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attention parameters that have an effect; a schedule outside tempopt is imported."""
    if is_custom_schedule(schedule := parameters.get("schedule")):
        load_schedule(str(schedule), where="schedule")
    return _nest(drop_unused_params(flatten_schedule_args(parameters)))


def build(
    program: Program,
    parameters: Mapping[str, Any],
    *,
    reseed: Callable[[Literal["data", "model"]], object] = lambda part: None,
) -> RunComponents:
    """Make what one run trains with: the data first, then the module, then the Trainer's arguments.

    Args:
        program: What is trained; prepared once in a process, however many runs follow.
        parameters: As in :class:`tempopt.training.messages.RunRequest`.
        reseed: Called before the data and before the module are made, to seed the generators for each.

    Raises:
        SpecError: A class, an argument or a parameter is wrong, with a line for each.
    """
    prepared = prepare(program)
    temperature = prepared.temperature(parameters)
    reseed("data")
    datamodule = prepared.datamodule(parameters)
    reseed("model")
    module = prepared.module(parameters)
    return RunComponents(
        datamodule=datamodule,
        module=module,
        trainer_kwargs=prepared.trainer(parameters),
        loggers=prepared.loggers,
        temperature={name: value for name, value in temperature.items() if name not in CONTROL_PARAMETERS},
        control=ControlParameters.from_mapping(temperature),
    )


def prepare(program: Program) -> ProgramFactory:
    """Import and check what a program names, once in a process.

    Raises:
        SpecError: As :class:`ProgramFactory`.
    """
    return _cached_factory(json.dumps(asdict(program)))


@functools.lru_cache(maxsize=8)
def _cached_factory(program: str) -> ProgramFactory:
    return ProgramFactory(Program(**json.loads(program)))


def _drop_repeated_faults(faults: Sequence[str]) -> list[str]:
    """Return faults without those that repeat a message for another section."""
    faults_by_message: dict[str, str] = {}
    for fault in faults:
        faults_by_message.setdefault(fault.partition(": ")[2] or fault, fault)
    return list(faults_by_message.values())


def check_space(program: Program, search: Mapping[str, Sequence[Any]], *, test_data: bool = False) -> None:
    """Check a program and the names that are searched against the classes, without training.

    Args:
        program: What would be trained.
        search: Searched name to values that stand for all: both ends of a range, every choice; none: only
            whether there is such an argument is checked.
        test_data: Whether the study needs a ``test_dataloader``.

    Raises:
        SpecError: Something does not fit; there is a line for each thing.
    """
    faults = prepare(program).check(search, test_data=test_data, training=program.weights is None)
    if faults:
        raise SpecError("\n".join(faults))


def _unknown_names(cls: type, search: Iterable[str], attachable: Sequence[str]) -> list[str]:
    """Return a line for each searched name that neither the class nor attaching takes."""
    known_names = {*Arguments.names_of(cls), *TEMPERATURE_PARAMETERS}
    return [
        f"search.{name}: {_unknown_argument(cls, name, attachable)}"
        for name in search
        if "." not in name and name not in known_names
    ]


def _unknown_argument(cls: type, name: str, attachable: Sequence[str]) -> str:
    remedy = "Arguments of the data and of the Trainer are written data.x and trainer.x."
    argument_kind = f"argument of {cls.__module__}.{cls.__qualname__}"
    return unknown(argument_kind, name, [*Arguments.names_of(cls), *attachable], remedy)


def _section(section: str, settings: Mapping[str, Any], base: type, faults: list[str]) -> Arguments | None:
    """Return a section's class with its arguments; what is wrong is added to ``faults``."""
    try:
        path = settings.get("class_path")
        cls = base if path is None else load_class(path, base=base, where=f"{section}.class_path")
        return Arguments(section, cls, settings.get("init_args") or {})
    except SpecError as error:
        faults.append(str(error))
        return None


def _instantiate(arguments: Arguments, values: Mapping[str, Any]) -> Any:
    values = {
        name: argparse.Namespace(**value)
        if isinstance(value, Mapping) and takes_namespace(arguments.cls, name)
        else value
        for name, value in values.items()
    }
    try:
        return arguments.cls(**values)
    except Exception as error:
        if isinstance(error, AttributeError) and isinstance(error.obj, dict):
            raise SpecError(
                f"{arguments.section}: {arguments.called} reads {error.name} as an attribute of a mapping. "
                "Annotate the argument as argparse.Namespace, which it is then given as."
            ) from error
        error.add_note(f"while making {arguments.called} with {dict(values)!r}")
        raise
