"""The section ``program:``, which takes the place of model, data and trainer: a command or a function."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, field_validator, model_validator

from tempopt.class_loading import dotted_path
from tempopt.errors import SpecError
from tempopt.spec.command import SEED, CommandTemplate
from tempopt.spec.program import CommandProgram, FunctionProgram
from tempopt.spec.program_pattern import num_groups_in
from tempopt.spec.sections import SpecSection, StudySection
from tempopt.spec.yaml_source import CollectedSpecError
from tempopt.temperature.parameters import TEMPERATURE_PARAMETERS

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

PROGRAM_DATA = "program"
"""``study.confirm_on`` of a program, which measures its value on data of its own."""

_IN_PLACE_OF = ("model", "data", "trainer", "attach", "temperatures")
_OF_MODULES = (
    *("validate_at", "compile", "guards", "metric_reads_temperature", "checkpoint_every"),
    *("learned", "not_learned", "not_resumed"),
)
"""Keys of ``study:`` that act on a LightningModule alone."""
_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


class ProgramSection(SpecSection):
    """The ``program:`` section: what a run trains where it is no LightningModule.

    Args:
        command: Words and placeholders; None: it is a function.
        function: Import path of a Python function; None: it is a command.
        metric: What stands before the value in a command's output, or a regular expression with one group;
            None: the run reports its value.
    """

    command: Annotated[
        str | None, Field(description="a command, as in python train.py --seed {seed} --lr {lr}")
    ] = None
    function: Annotated[
        str | None, Field(description="the import path of a function, as in my_package.train:train")
    ] = None
    metric: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=1000,
            description="the name before the value in the output, or a regular expression with one group",
        ),
    ] = None

    @field_validator("command")
    @classmethod
    def _check_command(cls, text: str | None) -> str | None:
        if text is not None:
            CommandTemplate.parse(text)
        return text

    @field_validator("function")
    @classmethod
    def _dotted(cls, path: str | None) -> str | None:
        if path is None or _IMPORT_PATH.fullmatch(dotted_path(path)):
            return path and dotted_path(path)
        raise ValueError(f"given {path!r}. Give an import path: my_package.train:train.")

    @field_validator("metric")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None and (num_groups := num_groups_in(pattern)) > 1:
            raise ValueError(
                f"given {pattern!r}, a regular expression with {num_groups} groups. Give one group, which is "
                "the value, and write others as (?:...)."
            )
        return pattern

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.command is None) == (self.function is None):
            choice = "neither" if self.command is None else "both"
            raise ValueError(
                f"given {choice} of command and function. Give one of them: command: python train.py --seed "
                "{seed}, or function: my_package.train:train."
            )
        if self.function is not None and self.metric is not None:
            message = "a function returns or reports its value, and its output is not searched. Take it out."
            raise CollectedSpecError([("metric", message)])
        return self

    @property
    def label(self) -> str:
        """What is run, in words."""
        return f"the function {self.function}" if self.command is None else f"the command: {self.command}"

    def build(self, spec: StudySpec) -> CommandProgram | FunctionProgram:
        """Return what a worker runs."""
        metric, identity = spec.study.metric, spec.identity()
        if self.command is not None:
            return CommandProgram(command=self.command, metric=metric, pattern=self.metric, identity=identity)
        assert self.function is not None, "validated before"
        return FunctionProgram(function=self.function, metric=metric, identity=identity)


def normalize_program(data: object) -> object:
    """Return a spec with the defaults of its section ``program:``; refuse sections that this one replaces.

    Raises:
        CollectedSpecError: The spec has sections of a LightningModule as well, or neither.
    """
    if not isinstance(data, Mapping):
        return data
    if data.get("program") is None:
        if data.get("model") is None:
            message = "is missing. Give the LightningModule, as in {class_path: package.module.Class}, or in "
            message += "place of it a section program: {command: ...} for any other training."
            raise CollectedSpecError([("model", message)])
        return data
    if sections := [name for name in _IN_PLACE_OF if data.get(name)]:
        message = "given as well as program:, which takes its place. Take one of the two out."
        raise CollectedSpecError([(name, message) for name in sections])
    study, program = data.get("study"), data["program"]
    if not isinstance(study, Mapping):
        return data
    defaults = {"confirm_on": PROGRAM_DATA}
    metric = program.get("metric") if isinstance(program, Mapping) else None
    if isinstance(metric, str) and not num_groups_in(metric):
        defaults["metric"] = metric
    return {**data, "study": {**defaults, **study}}


def program_name_problem(name: str) -> str | None:
    """Return what is wrong with the name of a searched or compared parameter of a program, or None."""
    if name == SEED:
        return "every run has a seed of its own. Take it out; study.seed is the study's seed."
    return None


def program_problems(spec: StudySpec) -> Iterator[tuple[str, str]]:
    """Yield what does not fit together in a spec with a section ``program:``: paths and messages."""
    section, study = spec.program, spec.study
    if section is None:
        if study.confirm_on == PROGRAM_DATA:
            yield "study.confirm_on", f"given {PROGRAM_DATA!r}. Give test or validate."
        return
    for name in _OF_MODULES:
        if getattr(study, name) != StudySection.model_fields[name].get_default(call_default_factory=True):
            yield f"study.{name}", "it acts on a LightningModule alone, and not on program:. Take it out."
    if study.confirm_on != PROGRAM_DATA:
        message = (
            "a program measures its value on data of its own, also on the confirming seeds. Take it out."
        )
        yield "study.confirm_on", message
    if spec.search and not spec.searches_temperature and not spec.baselines:
        name = next(iter(spec.search))
        yield (
            "search",
            f"given {', '.join(spec.search)} without a baseline, so that there is nothing to compare with. "
            f"Say for one name at least which value you use now, as in {name}: {{..., baseline: ...}}.",
        )
    if section.command is not None:
        command = CommandTemplate.parse(section.command)
        for name in sorted(command.placeholders & _names_without_value(spec)):
            yield (
                "program.command",
                f"{{{name}}} has no value in some of the runs. Give it one in each parameter set, and search "
                "it without when:; or take it out, and read it by tempopt.current_run().",
            )
        try:
            command.check({name for _, name, _ in spec.written_parameters()})
        except SpecError as error:
            yield "program.command", str(error)


def _names_without_value(spec: StudySpec) -> set[str]:
    """Return the parameters that some runs do not have, but temperatures, which then are neutral."""
    names = {name for name, domain in spec.search.items() if domain.when is not None}
    for compared_set in spec.compare or ():
        names |= {name for _, name, _ in spec.written_parameters()} - compared_set.parameters.keys()
    return {name for name in names if name not in TEMPERATURE_PARAMETERS}
