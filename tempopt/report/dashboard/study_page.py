"""What tempopt adds to a study's page in Optuna's dashboard: a few plots and a note, written as one.

Plain optuna-dashboard shows them as well. Owns what is on the page and when it is new; serves nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna_dashboard import get_note, save_note, save_plotly_graph_object
from plotly.basedatatypes import BasePlotlyType

from tempopt.errors import NothingToPlot
from tempopt.records.rows import SAMPLED, StudySummary, TicketRow
from tempopt.records.tickets import oriented
from tempopt.report import headline
from tempopt.report.dashboard.note import belongs_to_tempopt, written
from tempopt.report.plots import PLOTS, Plot
from tempopt.report.plots.style import GROUND, evenly
from tempopt.results.study_result import StudyResult, load
from tempopt.store.store import Store
from tempopt.version import __version__

if TYPE_CHECKING:
    import plotly.graph_objects as go

LARGEST = 16 * 2045
"""Characters that a plot has at most: every look at the page reads all of it from the database."""

_IDS = "tempopt-"
_STAMP = "tempopt:page"
HEADLINE = "tempopt:headline"
"""The key under which a page keeps its headline: answer, verdict and what to do, in full and in short."""

_PLOTS, _NOTE = f"dashboard:plot_data:{_IDS}", "dashboard:note_"
_METRIC = "dashboard:objective_names"
PREFIXES = (_PLOTS, _NOTE, _METRIC, _STAMP, HEADLINE)
"""How the keys of the page's attributes begin in Optuna's tables."""
_MANY = 16
# The dashboard gives a plot 450 pixels.
_HEIGHT = 440
_MOST_TRIALS = (None, 400, 200, 100, 50, 25)
# What a pruner would do follows from every trial.
_OF_THE_WHOLE = ("pruning_check",)


def stamp(summary: StudySummary) -> str:
    """Return what is the same as long as there is nothing new to show of a study."""
    facts = (
        __version__,
        summary.study.spec_hash,
        summary.study.state,
        summary.study.version,
        summary.tickets,
    )
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8).hexdigest()


def publish(store: Store, name: str, summary: StudySummary | None = None) -> int:
    """Bring a study's page up to date, in one transaction; return how many rows were written.

    What is there already is not written again. A note that a person wrote, or has changed, is left alone; one
    that is empty is nobody's.

    Args:
        store: Where the study is.
        name: Its name.
        summary: How it stands, as :meth:`Store.list_studies` tells; None: to be looked up.

    Raises:
        StudyNotFound: There is no study of that name.
        StorageError: The database cannot be written, or Optuna's tables are of another version.
    """
    if summary is None:
        found = {each.study.name: each for each in store.list_studies()}
        summary = found.get(name) or StudySummary(study=store.load_study(name), tickets={})
    now = stamp(summary)
    there = store.page(name, PREFIXES)
    if there is None or there.get(_STAMP) == now:
        return 0
    result = load(store, name, whole=True)
    plots: dict[str, tuple[str, go.Figure]] = {}
    absent = []
    for key, title, plot in _plots(result):
        if isinstance(plot, str):
            absent.append(f"{title} ({plot})")
        else:
            plots[key] = title, plot
    note = written(result, [title for title, _ in plots.values()], absent)
    attributes = _lasting_attributes({key: figure for key, (_, figure) in plots.items()}, result.metric)

    lead = {
        "answer": headline.answer(result),
        "verdict": headline.verdict(result)[0],
        "todo": headline.what_to_do(result),
        "in_short": headline.in_short(result),
    }

    def decide(there: Mapping[str, Any]) -> dict[str, Any]:
        gone = dict.fromkeys(key for key in there if key.startswith(_PLOTS))
        return {**gone, **attributes, **_note_attributes(there, note), HEADLINE: lead, _STAMP: now}

    return store.change_page(name, PREFIXES, decide)


def _plots(result: StudyResult) -> Iterator[tuple[str, str, go.Figure | str]]:
    """Yield of each plot that there is something for: key, title, and figure or why there is none."""
    for key, plot in PLOTS.items():
        try:
            found = _small(result, key, plot)
        except NothingToPlot:
            continue
        except Exception as error:
            # one plot that fails takes neither the others nor the note with it
            found = f"it could not be drawn: {type(error).__name__}"
        yield key, plot.title, found


def _small(result: StudyResult, key: str, plot: Plot) -> go.Figure | str:
    """Return a plot small enough for a page, of fewer trials if need be; in words why there is none."""
    last = None
    for most in _MOST_TRIALS[:1] if key in _OF_THE_WHOLE else _MOST_TRIALS:
        some = _thinned(result, most)
        if some is not last:
            last = some
            figure = _placed(plot(some), plot.title)
            if len(figure.to_json()) <= LARGEST:
                return figure
    return "too large for this page; the report has it"


def _placed(figure: go.Figure, title: str) -> go.Figure:
    """Return a figure as it stands in the dashboard's grid: coarser, with its title, on ground of its own."""
    for trace in figure.data:
        _coarsen(trace)
    figure.update_layout(
        title={
            "text": title,
            "font": {"size": 14},
            "x": 0.02,
            "xanchor": "left",
            "y": 0.98,
            "yanchor": "top",
            "yref": "container",
        },
        # light ground, whatever the dashboard's is: it has no say in the other colours
        paper_bgcolor=GROUND,
        plot_bgcolor=GROUND,
        height=_HEIGHT,
        margin={"t": 48, "b": 16},
        font={"size": 11},
        legend={"y": -0.2, "yanchor": "top"},
    )
    return figure


def _coarsen(place: BasePlotlyType) -> None:
    """Have the many numbers of a trace kept in single precision, which plotly writes in less room."""
    for name in place:
        value = place[name]
        if isinstance(value, BasePlotlyType):
            _coarsen(value)
        elif isinstance(value, np.ndarray) and value.dtype.kind in "iuf" and value.dtype.itemsize <= 4:
            # no larger than it would become, and whole numbers stay exact
            continue
        elif isinstance(value, tuple | np.ndarray) and len(value) >= _MANY:
            with contextlib.suppress(TypeError, ValueError):
                place[name] = np.asarray(value, dtype=np.float32)


def _thinned(result: StudyResult, most: int | None) -> StudyResult:
    """Return the study with so many runs of an arm: the last that were the best yet, and others evenly."""
    if most is None:
        return result
    kept: set[int] = set()
    for kind in SAMPLED:
        runs = [run for run in result.runs if run.kind == kind]
        kept |= {run.id for run in _records(runs, result)[-most // 2 :]}
        kept |= {runs[place].id for place in evenly(len(runs), most - most // 2)}
    left = tuple(run for run in result.runs if run.kind not in SAMPLED or run.id in kept)
    return result if len(left) == len(result.runs) else replace(result, runs=left)


def _records(runs: Sequence[TicketRow], result: StudyResult) -> list[TicketRow]:
    """Return the runs that were better than all before them."""
    found: list[TicketRow] = []
    best = -math.inf
    for run in runs:
        if run.outcome == "complete" and run.value is not None:
            value = oriented(run.value, result.direction)
            if value > best:
                best = value
                found.append(run)
    return found


# ---- Optuna's form of it, which its public functions know


class _Memory:
    """A study in memory, on which those functions write."""

    def __init__(self) -> None:
        self._storage = InMemoryStorage()
        self._id = self._storage.create_new_study([StudyDirection.MAXIMIZE], "page")
        self.study = optuna.load_study(study_name="page", storage=self._storage)

    def put(self, key: str, value: Any) -> None:
        self._storage.set_study_system_attr(self._id, key, value)

    def attributes(self) -> dict[str, Any]:
        return dict(self._storage.get_study_system_attrs(self._id))


def _lasting_attributes(figures: Mapping[str, go.Figure], metric: str) -> dict[str, Any]:
    memory = _Memory()
    for key, figure in figures.items():
        # no ":" in an id: the dashboard would answer every look at the study with an error
        assert ":" not in key, key
        save_plotly_graph_object(memory.study, figure, graph_object_id=f"{_IDS}{key}")
    # Or it would be called "Objective 0". The public function names it in Optuna, too, whose frames of trials
    # then have other columns than people's notebooks look for.
    return {**memory.attributes(), _METRIC: [metric]}


def _note_attributes(there: Mapping[str, Any], note: str) -> dict[str, Any]:
    """Return what to write so that the note is ours; nothing if it is a person's, or the same already."""
    memory = _Memory()
    for key in (key for key in there if key.startswith(_NOTE)):
        memory.put(key, there[key])
    before = get_note(memory.study)
    if before == note or not (before.strip() == "" or belongs_to_tempopt(before)):
        return {}
    save_note(memory.study, note)
    return memory.attributes()
