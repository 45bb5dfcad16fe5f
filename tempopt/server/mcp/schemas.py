"""Models of the arguments and answers of tools, whose JSON schemas clients see."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tempopt.report.study_summary import AnswerKind
from tempopt.server.mcp.budget import BudgetLimit
from tempopt.spec.compared_sets import MAX_COMPARISON_RUNS
from tempopt.storage.rows import StudyStanding, StudyState

Name = Annotated[str, Field(min_length=1, max_length=255, description="Name of the study.")]
Spec = Annotated[
    str | dict[str, Any],
    Field(
        description="Study spec: the path of a YAML file below the folder in which this program was started, "
        "the name of a bundled study such as clip_digits, or the spec itself as an object."
    ),
]
Settings = Annotated[
    list[str],
    Field(
        default_factory=list,
        max_length=100,
        description='Keys of the spec to set, each KEY=VALUE, as in "study.trials=10".',
    ),
]


class ToolArguments(BaseModel):
    """Arguments of a tool; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid")


class SpecArguments(ToolArguments):
    """Arguments of ``plan`` and ``search``."""

    spec: Spec
    set: Settings


class CompareArguments(SpecArguments):
    """Arguments of ``compare``."""

    sets: Annotated[
        list[Annotated[str, Field(pattern=r"(?s)^\s*([^\s/={}]+=)?\s*\{.*\}\s*$")]],
        Field(
            default_factory=list,
            max_length=50,
            description="Parameter sets in YAML, the reference first, each with a name if you like: "
            '["{}", "warm={temperature_init: 2}"]. {} is the spec as it stands. Without any, those of the '
            "spec's section compare.",
        ),
    ]
    vary: Annotated[
        dict[str, Annotated[list[Any], Field(max_length=1000)]],
        Field(
            default_factory=dict,
            description='In place of sets: values by parameter, as in {"model.num_heads": [1, 2, 4]}, each '
            "combination of which is a set.",
        ),
    ]
    all_pairs: Annotated[
        bool, Field(description="Compare every two sets, instead of each with the first.")
    ] = False
    pairs: Annotated[
        int | None, Field(ge=2, le=1000, description="Number of fresh seeds; null: as the spec says.")
    ] = None
    max_runs: Annotated[int, Field(ge=1, description="Refuse a comparison that may take more runs.")] = (
        MAX_COMPARISON_RUNS
    )
    name: Annotated[
        str | None, Field(description="Name of its study; null: the spec's with a hash of the sets.")
    ] = None


class StudyArguments(ToolArguments):
    """Arguments of ``show``, ``verdict`` and ``stop``."""

    study: Name


class ExportArguments(StudyArguments):
    """Arguments of ``export``."""

    format: Annotated[
        Literal["yaml", "python"], Field(description="YAML for LightningCLI, or a Python script.")
    ] = "yaml"
    winner: Annotated[
        bool, Field(description="The winner of the search, whatever the verdict recommends.")
    ] = False


class ListArguments(ToolArguments):
    """Arguments of ``list``: none."""


class BudgetAnswer(BaseModel):
    """The budget of this session's user; without limits the list is empty."""

    user: str
    limits: list[BudgetLimit]


class PlanAnswer(BaseModel):
    """Forecast of a study: its cost, and the smallest gain that it can show; nothing was created.

    Args:
        runs_with_gain: Trainings with a gain of two standard deviations: ``min``, ``typical``, ``max``.
        runs_without_gain: Trainings without a gain, likewise.
        hours_with_gain: Hours to the verdict with ``workers`` concurrent trials; null: not known.
        hours_without_gain: Without a gain, likewise.
        gpu_hours_at_most: Maximal GPU-hours; without a GPU, training hours; null: not known.
        smallest_gain: The smallest gain that it can show, as a range in the metric's unit; null: not known
            before the first runs.
        fits: Whether it fits into the budget.
        refusal: Why it does not fit; null if it fits.
        details: As ``tempopt plan --json``.
    """

    study: str
    metric: str
    runs_with_gain: dict[str, float]
    runs_without_gain: dict[str, float]
    hours_with_gain: dict[str, float] | None
    hours_without_gain: dict[str, float] | None
    workers: int
    gpu_hours_at_most: float | None
    smallest_gain: tuple[float, float] | None
    fits: bool
    refusal: str | None
    budget: BudgetAnswer
    details: dict[str, Any]


class StartAnswer(BaseModel):
    """A study that was created or continued; call ``show`` until its state is done.

    Args:
        notes: Notes on the study.
    """

    study: str
    state: StudyState
    notes: list[str]
    budget: BudgetAnswer


class ShowAnswer(BaseModel):
    """State of a study.

    Args:
        state: ``running``: an agent works on it; ``waiting``: it continues as soon as an agent joins;
            ``paused``: it is paused until search or compare is called again; ``done``.
        words: The output of ``tempopt show``.
        not_shown: Statements that are not shown so far, with intervals if there are any.
        troubles: Known obstacles to its progress.
        details: As ``tempopt show --json``.
    """

    study: str
    state: StudyStanding
    runs_done: int
    runs_running: int
    runs_asked: int
    words: list[str]
    not_shown: list[str]
    troubles: list[str]
    details: dict[str, Any]


class VerdictAnswer(BaseModel):
    """Verdict of a study.

    Args:
        done: Whether the study is over.
        answer: ``gain_shown``: the confirmation shows a gain, and guards are kept; ``not_shown``: it does
            not; ``none_yet``: it is not over; ``no_verdict``: it is over and nothing could be compared.
        headline: The verdict in one line.
        recommendation: The recommendation as a sentence; null without a verdict of a search.
        action: The recommended action, as in ``tempopt show --json``; null likewise.
        params: The recommended parameters; null if there are none.
        words: The output of ``tempopt show``.
        not_shown: Statements that are not shown, each with its interval.
        details: Verdict or comparison, as in ``tempopt show --json``.
    """

    study: str
    done: bool
    answer: AnswerKind
    headline: str
    recommendation: str | None
    action: str | None
    params: dict[str, Any] | None
    words: list[str]
    not_shown: list[str]
    details: dict[str, Any]


class Exported(BaseModel):
    """The recommendation as code. Nothing was written to a file."""

    study: str
    format: Literal["yaml", "python"]
    text: str


class ListAnswer(BaseModel):
    """The studies of the store, the oldest first, as ``tempopt list --json``, and the budget."""

    studies: list[dict[str, Any]]
    budget: BudgetAnswer


class StopAnswer(BaseModel):
    """Result of stopping a search.

    Args:
        before: State of the study before.
        withdrawn: Number of search runs that were withdrawn.
        text: A sentence on what happens next.
    """

    study: str
    before: StudyState
    withdrawn: int
    text: str
