"""The tools: their names, descriptions and functions."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ValidationError

from tempopt.errors import ScheduleNotImported, SpecError, UsageError, unknown
from tempopt.report import study_result
from tempopt.report.study_lines import screen_lines
from tempopt.report.study_summary import summary_json, unproven_claims, verdict_json
from tempopt.server.mcp import schemas
from tempopt.server.mcp.session import Session
from tempopt.spec import yaml_source
from tempopt.spec.comparison_spec import comparison_spec, refuse_comparison
from tempopt.spec.load import SUFFIXES, bundled_specs, find_spec, load_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.validation_errors import format_error_list
from tempopt.storage.liveness import display_state

F = TypeVar("F", bound=Callable[..., BaseModel])


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool.

    Args:
        name: Its name.
        title: Its name for people.
        description: Its purpose, for a language model.
        takes: Model of its arguments.
        returns: Model of its answer.
        does: Function of a session and the arguments.
        reads_only: Whether it changes nothing.
        runs_code: Whether it imports and calls what its arguments name.
    """

    name: str
    title: str
    description: str
    takes: type[schemas.ToolArguments]
    returns: type[BaseModel]
    does: Callable[[Session, Any], BaseModel]
    reads_only: bool
    runs_code: bool


TOOLS: dict[str, Tool] = {}
"""The tools by name, in the order in which clients see them."""


def tool(
    title: str, description: str, *, reads_only: bool = False, runs_code: bool = False
) -> Callable[[F], F]:
    """Register a function as a tool, with its name, arguments and answer."""

    def register(does: F) -> F:
        name, types = does.__name__.strip("_"), get_type_hints(does)
        TOOLS[name] = Tool(
            name=name,
            title=title,
            description=description,
            takes=types["arguments"],
            returns=types["return"],
            does=does,
            reads_only=reads_only,
            runs_code=runs_code,
        )
        return does

    return register


def call(session: Session, tool: Tool, raw_arguments: dict[str, Any]) -> dict[str, Any]:
    """Call a tool, and return its answer as plain data.

    Raises:
        TempoptError: The arguments are invalid, or the tool failed.
    """
    try:
        arguments = tool.takes.model_validate(raw_arguments)
    except ValidationError as error:
        raise UsageError(_list_faults(tool, error)) from error
    try:
        return tool.does(session, arguments).model_dump(mode="json")
    except ScheduleNotImported as error:
        message = str(error).replace("COMMAND", "mcp")
        raise ScheduleNotImported(f"{message} A person has to start this server with it.") from error


def _list_faults(tool: Tool, error: ValidationError) -> str:
    """Return a line for each invalid argument."""
    field_names = list(tool.takes.model_fields)
    lines: dict[str, str] = {}
    for fault in error.errors(include_url=False):
        name = str(fault["loc"][0]) if fault["loc"] else "arguments"
        if fault["type"] == "extra_forbidden":
            lines[name] = unknown("argument", name, field_names)
        elif fault["type"] == "missing":
            lines[name] = f"{name}: is missing."
        else:
            # pydantic reports an error for each alternative of a union
            allowed = tool.takes.model_fields[name].description if name in field_names else None
            description = allowed or f"{fault['msg'][0].lower()}{fault['msg'][1:]}."
            lines[name] = f"{name}: was given {repr(fault['input'])[:100]}. It takes: {description}"
    return format_error_list(f"What {tool.name} was given has", list(lines.values()))


@tool(
    "Plan a study",
    "Say how many trainings a study takes, how long, and how small a gain it can show, and "
    "whether it fits into the budget. Runs the code that the spec names, for a few steps of training on this "
    "machine; begins nothing.",
    runs_code=True,
)
def _plan(session: Session, arguments: schemas.SpecArguments) -> schemas.PlanAnswer:
    spec = _load_spec(arguments)
    forecast = session.plan(spec)
    refusal = session.refusal(spec, forecast)
    gain, no_gain = (forecast.runs.total(gain=gain) for gain in (True, False))
    hours = forecast.hours(gain), forecast.hours(no_gain)
    return schemas.PlanAnswer(
        study=forecast.name,
        metric=forecast.metric,
        runs_with_gain=asdict(gain),
        runs_without_gain=asdict(no_gain),
        hours_with_gain=None if hours[0] is None else asdict(hours[0]),
        hours_without_gain=None if hours[1] is None else asdict(hours[1]),
        workers=forecast.run.workers,
        gpu_hours_at_most=forecast.max_gpu_hours,
        smallest_gain=forecast.smallest_gain,
        fits=refusal is None,
        refusal=refusal,
        budget=_build_budget(session),
        details=forecast.to_json(),
    )


@tool(
    "Begin a search",
    "Begin or continue the search of a study, and return at once. Refused if it could "
    "exceed the budget. Look with show until its state is done, then ask for the verdict.",
    runs_code=True,
)
def _search(session: Session, arguments: schemas.SpecArguments) -> schemas.StartAnswer:
    spec = _load_spec(arguments)
    refuse_comparison(spec)
    return _build_start_response(session, spec, session.begin(spec))


@tool(
    "Compare parameter sets",
    "Begin to compare parameter sets on fresh paired seeds, each with the first one, and "
    "return at once. Refused if it could exceed the budget. Look with show, then ask for the verdict.",
    runs_code=True,
)
def _compare(session: Session, arguments: schemas.CompareArguments) -> schemas.StartAnswer:
    spec = comparison_spec(
        _resolve_spec(arguments.spec),
        arguments.sets,
        vary=arguments.vary,
        all_pairs=arguments.all_pairs,
        name=arguments.name,
        pairs=arguments.pairs,
        overrides=tuple(arguments.set),
    )
    return _build_start_response(session, spec, session.begin(spec, max_runs=arguments.max_runs))


def _build_start_response(session: Session, spec: StudySpec, notes: list[str]) -> schemas.StartAnswer:
    name = spec.study.name
    return schemas.StartAnswer(
        study=name, state=session.store.load_study(name).state, notes=notes, budget=_build_budget(session)
    )


def _build_budget(session: Session) -> schemas.BudgetAnswer:
    status = session.ledger.budget_status()
    return schemas.BudgetAnswer(user=status.user, limits=status.limits)


def _load_spec(arguments: schemas.SpecArguments) -> StudySpec:
    spec = _resolve_spec(arguments.spec)
    if isinstance(spec, str):
        return load_spec(spec, arguments.set)
    return StudySpec.parse(spec, source="the study spec").with_overrides(arguments.set)


def _resolve_spec(spec: str | dict[str, Any]) -> str | dict[str, Any]:
    """Return a spec, or its name or path, which a client may read: below its folder, and a study spec.

    Raises:
        UsageError: It is another file; the message has nothing of its content.
    """
    if isinstance(spec, dict) or spec in bundled_specs():
        return spec
    folder = Path.cwd().resolve()
    try:
        path = (folder / spec).resolve()
        is_file = path.is_file()
    except (OSError, ValueError, RuntimeError):
        # too long for a path, or no path at all
        path, is_file = folder, False
    remedy = "Give a YAML file below it, the name of a bundled spec, or the spec as an object."
    if not path.is_relative_to(folder):
        raise UsageError(f"spec: {spec} is not below {folder}, where this server was started. {remedy}")
    if not is_file:
        find_spec(spec)  # raises what is wrong with the name, unless it is a pipe or a device
    try:
        is_spec = path.suffix in SUFFIXES and "study" in yaml_source.read(path).data
    except SpecError:
        is_spec = False
    if not is_spec:
        raise UsageError(
            f"spec: {spec} is not a study spec in YAML, with a section study:. {remedy} A person sees its "
            f"faults by: tempopt check {shlex.quote(spec)}"
        )
    return spec


@tool(
    "Show a study",
    "Say how a study stands: runs, what was found so far, and what is not shown. The best "
    "value of a search is not a gain.",
    reads_only=True,
)
def _show(session: Session, arguments: schemas.StudyArguments) -> schemas.ShowAnswer:
    result = study_result.load(session.store, arguments.study)
    row = session.store.load_study(arguments.study)
    state = display_state(row.state, int(result.agents or session.is_working_on(arguments.study)))
    counts = result.tickets.values()
    return schemas.ShowAnswer(
        study=result.name,
        state=state,
        runs_done=sum(count.done + count.failed for count in counts),
        runs_running=sum(count.running for count in counts),
        runs_asked=sum(count.requested or 0 for count in counts),
        words=screen_lines(result),
        not_shown=unproven_claims(result),
        troubles=session.find_blockers(arguments.study, state),
        details=result.to_json(),
    )


@tool(
    "The verdict of a study",
    "Say what the confirmation on fresh seeds shows and what it does not, and what to do. "
    "Change code only on answer = gain_shown.",
    reads_only=True,
)
def _verdict(session: Session, arguments: schemas.StudyArguments) -> schemas.VerdictAnswer:
    result = study_result.load(session.store, arguments.study)
    return schemas.VerdictAnswer.model_validate(verdict_json(result))


@tool(
    "Export as code",
    "Return what the verdict recommends as YAML for LightningCLI or as a Python script.",
    reads_only=True,
)
def _export(session: Session, arguments: schemas.ExportArguments) -> schemas.Exported:
    result = study_result.load(session.store, arguments.study)
    text = result.export(winner=arguments.winner, format=arguments.format)
    return schemas.Exported(study=result.name, format=arguments.format, text=text)


@tool("List studies", "List the studies of the store, and say what is left of the budget.", reads_only=True)
def _list(session: Session, arguments: schemas.ListArguments) -> schemas.ListAnswer:
    return schemas.ListAnswer(
        studies=[summary_json(summary) for summary in session.store.list_studies()],
        budget=_build_budget(session),
    )


@tool("Stop a search", "End the search of a study of this budget; what it has found is then confirmed.")
def _stop(session: Session, arguments: schemas.StudyArguments) -> schemas.StopAnswer:
    change = session.stop(arguments.study)
    if change.before == "done":
        text = "It is done: there is nothing to stop."
    elif change.compares:
        text = "It is a comparison: there is no search to stop."
    else:
        text = "It searches no further. Runs at work end, then what was found is confirmed" + (
            "." if change.agents else ", once an agent works on it: call search again."
        )
    return schemas.StopAnswer(
        study=arguments.study, before=change.before, withdrawn=change.withdrawn, text=text
    )
