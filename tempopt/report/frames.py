"""A study in a notebook: its rows as pandas frames, and itself as a few lines of HTML.

pandas is optional: it is imported when a frame is made.
"""

from __future__ import annotations

import html as markup
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tempopt.errors import UsageError
from tempopt.report.decision import screen_lines

if TYPE_CHECKING:
    from pandas import DataFrame

    from tempopt.report.study_data import StudyData
    from tempopt.storage.rows import TicketRow

# What a person asks of a run; the rest of a ticket is how it is looked after.
_COLUMNS = (
    *("name", "kind", "arm", "number", "round", "candidate", "pair", "seed"),
    *("state", "outcome", "value"),
    *("steps", "total_steps", "seconds", "gpu_seconds"),
    *("peak_memory", "trial_number", "diverged_at"),
    *("agent", "machine", "device", "code", "started", "finished", "error"),
)
_ONE_RUN = ("id", "name", "kind", "arm", "number")


def _dataframe() -> type[DataFrame]:
    try:
        from pandas import DataFrame
    except ImportError:
        raise UsageError(
            "Frames need pandas, which is not installed. Run: pip install 'tempopt[dataframe]'"
        ) from None
    return DataFrame


def runs_frame(result: StudyData) -> DataFrame:
    """Return a row for each ticket, indexed by its id, in the order of work."""
    names = sorted({name for run in result.runs for name in run.parameters or {}})
    rows = [
        [getattr(run, name) for name in _COLUMNS] + [(run.parameters or {}).get(name) for name in names]
        for run in result.runs
    ]
    index = [run.id for run in result.runs]
    frame = _dataframe()(rows, index=index, columns=[*_COLUMNS, *(f"param.{name}" for name in names)])
    return frame.rename_axis(index="id")


def curves_frame(result: StudyData) -> DataFrame:
    """Return a row for each validation during training, by run and step."""
    rows = [(*_run(run), *point) for run in result.runs for point in result.curves.get(run.id, ())]
    return _dataframe()(rows, columns=[*_ONE_RUN, "step", "value"])


def measurements_frame(result: StudyData) -> DataFrame:
    """Return a row for each number that was measured beside the validations, by run, name and step."""
    return _dataframe()(list(_measured(result)), columns=[*_ONE_RUN, "measurement", "step", "value"])


def _run(run: TicketRow) -> tuple[Any, ...]:
    return tuple(getattr(run, name) for name in _ONE_RUN)


def _measured(result: StudyData) -> Iterator[tuple[Any, ...]]:
    for run in result.runs:
        for name, points in result.measured.get(run.id, {}).items():
            for point in points:
                yield (*_run(run), name, *point)


def html(result: StudyData) -> str:
    """Return what Jupyter shows of a study: the verdict and how far its runs are."""
    first_line, *other_lines = screen_lines(result)
    head = f"<h4>{_text(result.name)}: {_text(result.direction)} {_text(result.metric)}, {result.state}</h4>"
    lines = "".join(f"<li>{_text(line.strip())}</li>" for line in other_lines)
    rows = "".join(
        f"<tr><th>{kind}</th><td>{'?' if count.requested is None else count.requested}</td>"
        f"<td>{count.done}</td><td>{count.running}</td><td>{count.failed}</td></tr>"
        for kind, count in result.tickets.items()
    )
    titles = "".join(f"<th>{title}</th>" for title in ("runs", "asked", "done", "running", "failed"))
    table = f"<table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<div>{head}<p><strong>{_text(first_line)}</strong></p><ul>{lines}</ul>{table}</div>"


def _text(text: str) -> str:
    # a notebook takes what stands between two dollars for a formula
    return re.sub(r"\$", "&#36;", markup.escape(text))
