"""The tools: their names, what they are for, and what each does in a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from tempopt.errors import ScheduleNotImported, UsageError, unknown
from tempopt.mcp_server import answers
from tempopt.mcp_server.session import Session
from tempopt.records.liveness import study_standing
from tempopt.results import study_result
from tempopt.results.summary import summary_json
from tempopt.spec.compared_sets import refuse_comparison
from tempopt.spec.comparison_spec import comparison_spec
from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.validation_errors import listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool.

    Args:
        name: Its name.
        title: Its name for people.
        description: What it is for, for a model to read.
        takes: Model of its arguments.
        returns: Model of its answer.
        does: What it does in a session.
        reads_only: Whether it changes nothing.
    """

    name: str
    title: str
    description: str
    takes: type[answers.Arguments]
    returns: type[BaseModel]
    does: Callable[[Session, Any], BaseModel]
    reads_only: bool = False


def call(session: Session, tool: Tool, given: dict[str, Any]) -> dict[str, Any]:
    """Return what a tool answers, as plain data.

    Raises:
        TempoptError: It was given what it does not take, or it cannot be done.
    """
    try:
        asked = tool.takes.model_validate(given)
    except ValidationError as error:
        raise UsageError(_faults(tool, error)) from error
    try:
        return tool.does(session, asked).model_dump(mode="json")
    except ScheduleNotImported as error:
        told = str(error).replace("COMMAND", "mcp")
        raise ScheduleNotImported(f"{told} A person has to start this server so.") from error


def _faults(tool: Tool, error: ValidationError) -> str:
    """Return what is wrong with arguments, a line for each of them."""
    known = list(tool.takes.model_fields)
    lines: dict[str, str] = {}
    for each in error.errors(include_url=False):
        name = str(each["loc"][0]) if each["loc"] else "arguments"
        if each["type"] == "extra_forbidden":
            lines[name] = unknown("argument", name, known)
        elif each["type"] == "missing":
            lines[name] = f"{name}: is missing."
        else:
            # every alternative of a union has its say
            allowed = tool.takes.model_fields[name].description if name in known else None
            told = allowed or f"{each['msg'][0].lower()}{each['msg'][1:]}."
            lines[name] = f"{name}: was given {repr(each['input'])[:100]}. It takes: {told}"
    return listed(f"What {tool.name} was given has", list(lines.values()))


def _plan(session: Session, asked: answers.PlanArguments) -> answers.Planned:
    spec = _spec(asked)
    found = session.plan(spec)
    refusal = session.refusal(spec, found)
    gain, no_gain = (found.runs.total(gain=gain) for gain in (True, False))
    hours = found.hours(gain), found.hours(no_gain)
    return answers.Planned(
        study=found.name,
        metric=found.metric,
        runs_with_gain=asdict(gain),
        runs_without_gain=asdict(no_gain),
        hours_with_gain=None if hours[0] is None else asdict(hours[0]),
        hours_without_gain=None if hours[1] is None else asdict(hours[1]),
        workers=found.run.workers,
        gpu_hours_at_most=found.max_gpu_hours,
        smallest_gain=found.smallest_gain,
        fits=refusal is None,
        refusal=refusal,
        budget=answers.budget_answer(session.standing()),
        details=found.to_json(),
    )


def _search(session: Session, asked: answers.SearchArguments) -> answers.Begun:
    spec = _spec(asked)
    refuse_comparison(spec)
    return _begun(session, spec, session.begin(spec))


def _compare(session: Session, asked: answers.CompareArguments) -> answers.Begun:
    spec = comparison_spec(
        asked.spec,
        asked.sets,
        vary=asked.vary,
        all_pairs=asked.all_pairs,
        name=asked.name,
        pairs=asked.pairs,
        overrides=tuple(asked.set),
    )
    return _begun(session, spec, session.begin(spec, max_runs=asked.max_runs))


def _begun(session: Session, spec: StudySpec, notes: list[str]) -> answers.Begun:
    name = spec.study.name
    return answers.Begun(
        study=name,
        state=session.store.load_study(name).state,
        notes=notes,
        budget=answers.budget_answer(session.standing()),
    )


def _spec(asked: answers.PlanArguments) -> StudySpec:
    if isinstance(asked.spec, str):
        return load_spec(asked.spec, asked.set)
    return StudySpec.parse(asked.spec, source="the study spec").with_overrides(asked.set)


def _show(session: Session, asked: answers.StudyArguments) -> answers.Shown:
    result, state = study_result.load(session.store, asked.study), session.store.load_study(asked.study).state
    standing = study_standing(state, int(result.agents or session.works_on(asked.study)))
    return answers.shown_answer(result, standing, session.troubles(asked.study, standing))


def _verdict(session: Session, asked: answers.StudyArguments) -> answers.VerdictAnswer:
    return answers.verdict_answer(study_result.load(session.store, asked.study))


def _export(session: Session, asked: answers.ExportArguments) -> answers.Exported:
    result = study_result.load(session.store, asked.study)
    text = result.export(winner=asked.winner, format=asked.format)
    return answers.Exported(study=result.name, format=asked.format, text=text)


def _list(session: Session, asked: answers.ListArguments) -> answers.Listed:
    return answers.Listed(
        studies=[summary_json(each) for each in session.store.list_studies()],
        budget=answers.budget_answer(session.standing()),
    )


def _stop(session: Session, asked: answers.StudyArguments) -> answers.Stopped:
    told = session.stop(asked.study)
    if told.before == "done":
        text = "It is done: there is nothing to stop."
    elif told.compares:
        text = "It is a comparison: there is no search to stop."
    else:
        text = "It searches no further. Runs at work end, then what was found is confirmed" + (
            "." if told.agents else ", once an agent works on it: call search again."
        )
    return answers.Stopped(study=asked.study, before=told.before, withdrawn=told.withdrawn, text=text)


TOOLS = (
    Tool(
        name="plan",
        title="Plan a study",
        description="Say how many trainings a study takes, how long, and how small a gain it can show, and "
        "whether it fits into the budget. Trains a few steps of it on this machine; begins nothing.",
        takes=answers.PlanArguments,
        returns=answers.Planned,
        does=_plan,
        reads_only=True,
    ),
    Tool(
        name="search",
        title="Begin a search",
        description="Begin the search of a study, or go on with it, and return at once. Refused if it could "
        "exceed the budget. Look with show until its state is done, then ask for the verdict.",
        takes=answers.SearchArguments,
        returns=answers.Begun,
        does=_search,
    ),
    Tool(
        name="compare",
        title="Compare parameter sets",
        description="Begin to compare parameter sets on fresh paired seeds, each with the first one, and "
        "return at once. Refused if it could exceed the budget. Look with show, then ask for the verdict.",
        takes=answers.CompareArguments,
        returns=answers.Begun,
        does=_compare,
    ),
    Tool(
        name="show",
        title="Show a study",
        description="Say how a study stands: runs, what was found so far, and what is not shown. The best "
        "value of a search is not a gain.",
        takes=answers.StudyArguments,
        returns=answers.Shown,
        does=_show,
        reads_only=True,
    ),
    Tool(
        name="verdict",
        title="The verdict of a study",
        description="Say what the confirmation on fresh seeds shows and what it does not, and what to do. "
        "Change code only on answer = gain_shown.",
        takes=answers.StudyArguments,
        returns=answers.VerdictAnswer,
        does=_verdict,
        reads_only=True,
    ),
    Tool(
        name="export",
        title="Export as code",
        description="Return what the verdict recommends as YAML for LightningCLI or as a Python script.",
        takes=answers.ExportArguments,
        returns=answers.Exported,
        does=_export,
        reads_only=True,
    ),
    Tool(
        name="list",
        title="List studies",
        description="List the studies of the store, and say what is left of the budget.",
        takes=answers.ListArguments,
        returns=answers.Listed,
        does=_list,
        reads_only=True,
    ),
    Tool(
        name="stop",
        title="Stop a search",
        description="End the search of a study of this budget; what it has found is then confirmed.",
        takes=answers.StudyArguments,
        returns=answers.Stopped,
        does=_stop,
    ),
)
