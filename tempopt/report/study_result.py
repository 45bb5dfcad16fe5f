"""StudyResult, the read side of a study, from its rows.

Available at every stage of a study; unknown values are None. Writes nothing and does not query Optuna.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, get_args

from tempopt.errors import ScheduleNotImported, SpecError, UsageError, install_command
from tempopt.files import replace as replace_file
from tempopt.report import export
from tempopt.report.alpha_spending import ledger_json
from tempopt.report.decision import decide, decide_comparison
from tempopt.report.export import Format
from tempopt.report.findings import find
from tempopt.report.heads_text import heads_json
from tempopt.report.study_data import BaselineStats, Cost, Curve, RunCounts, StudyData, best_of
from tempopt.report.study_lines import screen_lines
from tempopt.report.verdict_json import comparison_json, earlier_json, verdict_json
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.damage import collect_damage
from tempopt.storage.liveness import active_agents, display_state
from tempopt.storage.queries import failed_ticket
from tempopt.storage.rows import KINDS, Kind, Measurement, Outcome, StudyRow, TicketRow
from tempopt.storage.run_code import run_codes_json
from tempopt.storage.ticket_queries import arms_of, current_round, is_usable, of_kind
from tempopt.temperature import TEMPERATURE_PARAMETERS, check_parameter
from tempopt.training.messages import CONTROLLED_CURVE, LEARNED_CURVE
from tempopt.verdict.explanation import LEARNED_ARM
from tempopt.verdict.pairs import find_winner
from tempopt.verdict.run_evaluations import INFERENCE_ARMS
from tempopt.verdict.set_comparison import evaluate_comparison
from tempopt.verdict.verdict import compute_verdict, earlier_verdicts

if TYPE_CHECKING:
    from pandas import DataFrame

    from tempopt.storage.store import Store

_REPORT = "report"
# columns that are of interest to a person; the others of a ticket concern operation
_COLUMNS = (
    *("name", "kind", "arm", "number", "round", "candidate", "pair", "seed"),
    *("state", "outcome", "value"),
    *("steps", "total_steps", "seconds", "gpu_seconds"),
    *("peak_memory", "trial_number", "diverged_at"),
    *("agent", "machine", "device", "code", "started", "finished", "error"),
)
_ONE_RUN = ("id", "name", "kind", "arm", "number")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StudyResult(StudyData):
    """One study in its present state, with its renderings; see :class:`.StudyData` for the fields."""

    def to_json(self) -> dict[str, Any]:
        """Return the documented data of ``tempopt show --json``; unknown values are null."""
        decision = decide(self) if self.comparison is None else decide_comparison(self)
        return {
            "study": self.name,
            "metric": self.metric,
            "direction": self.direction,
            "state": self.state,
            "agents": self.agents,
            "tickets": {kind: asdict(count) for kind, count in self.tickets.items()},
            "trials": self.trials,
            "baseline": self.baseline and asdict(self.baseline),
            "best": self.best and asdict(self.best),
            "decision": decision and decision.to_json(),
            "findings": [finding.to_json() for finding in find(self)],
            "verdict": self.verdict and verdict_json(self),
            "comparison": self.comparison and comparison_json(self.comparison),
            "cost": asdict(self.cost),
            "alone": [ticket.name for ticket in self.alone],
            "codes": run_codes_json(run.code for run in self.runs),
            "heads": heads_json(self),
            "ledger": ledger_json(self),
            "earlier_verdicts": [earlier_json(self, verdict) for verdict in self.earlier_verdicts],
        }

    def export(self, path: str | Path | None = None, *, winner: bool = False, format: Format = "yaml") -> str:
        """Return the recommended configuration as text, as written by ``tempopt export``.

        Args:
            path: File to write as well, which is replaced if it exists; None for no file.
            winner: Whether to export the winner of the search regardless of the recommendation.
            format: ``yaml`` for LightningCLI, or ``python`` for a script.

        Raises:
            StudyFailed: No search trial is complete, so there is nothing to export.
            UsageError: There is no such format, or the file cannot be written.
        """
        text = export.to_text(self, format, winner=winner)
        if path is not None:
            replace_file(Path(path), text)
        return text

    def runs_frame(self) -> DataFrame:
        """Return a pandas frame with a row per ticket; its parameters are columns named ``param.…``."""
        names = sorted({name for run in self.runs for name in run.parameters or {}})
        rows = [
            [getattr(run, name) for name in _COLUMNS] + [(run.parameters or {}).get(name) for name in names]
            for run in self.runs
        ]
        frame = _data_frame(rows, [*_COLUMNS, *(f"param.{name}" for name in names)])
        return frame.set_axis([run.id for run in self.runs], axis="index").rename_axis(index="id")

    def curves_frame(self) -> DataFrame:
        """Return a pandas frame of the validations during training: run, kind, arm, number, step, value."""
        rows = [(*_run_cells(run), *point) for run in self.runs for point in self.curves.get(run.id, ())]
        return _data_frame(rows, [*_ONE_RUN, "step", "value"])

    def measurements_frame(self) -> DataFrame:
        """Return a pandas frame of other measurements: as the curves, with the measurement's name."""
        rows = [
            (*_run_cells(run), name, *point)
            for run in self.runs
            for name, points in self.measured.get(run.id, {}).items()
            for point in points
        ]
        return _data_frame(rows, [*_ONE_RUN, "measurement", "step", "value"])

    def __str__(self) -> str:
        """Return the decision of the study, as printed by ``tempopt show``."""
        return "\n".join(screen_lines(self))

    def __repr__(self) -> str:
        """Return name, progress and the first line of the verdict."""
        headline, *_ = str(self).splitlines()
        return f"StudyResult(name={self.name!r}, state={self.state!r}, headline={headline!r})"

    def _repr_html_(self) -> str:
        first_line, *other_lines = screen_lines(self)
        title = f"{self.name}: {self.direction} {self.metric}, {self.state}"
        lines = "".join(f"<li>{_escape_html(line.strip())}</li>" for line in other_lines)
        head = f"<h4>{_escape_html(title)}</h4><p><strong>{_escape_html(first_line)}</strong></p>"
        return f"<div>{head}<ul>{lines}</ul></div>"


def _escape_html(text: str) -> str:
    # a notebook treats text between two dollars as a formula
    return html.escape(text).replace("$", "&#36;")


def _run_cells(run: TicketRow) -> tuple[Any, ...]:
    return tuple(getattr(run, name) for name in _ONE_RUN)


def _data_frame(rows: Sequence[Sequence[Any]], columns: Sequence[str]) -> DataFrame:
    try:
        from pandas import DataFrame
    except ImportError:
        raise UsageError(
            f"Frames need pandas, which is not installed. Run: {install_command('dataframe')}"
        ) from None
    return DataFrame(rows, columns=list(columns))


def load(store: Store, name: str, *, needs_measurements: bool = False) -> StudyResult:
    """Return the study of that name in its present state.

    Args:
        store: The store of the study.
        name: Name of the study.
        needs_measurements: Whether to load all measurements of its runs as well, which takes long for a large
            study.

    Raises:
        StudyNotFound: No study of that name is in the store.
    """
    with collect_damage() as damaged:
        result = _load(store, name, needs_measurements=needs_measurements)
    if len(damaged) > 1:
        damaged = [f"{len(damaged)} values are damaged. The first: {damaged[0]}"]
    return replace(result, damaged="".join(damaged))


def _load(store: Store, name: str, *, needs_measurements: bool) -> StudyResult:
    row = store.load_study(name)
    tickets = store.tickets(row.id)
    maps = store.attention_maps(
        row.id, [ticket.id for ticket in tickets if ticket.kind == "confirm" and ticket.pair == 0]
    )
    if needs_measurements:
        result = assemble(row, tickets, store.measurements(row.id), needs_measurements=True, maps=maps)
        return replace(result, earlier=store.warm_start(row.id)) if result.spec.study.warm_start else result
    guarded = StudySpec.from_json(row.spec).study.guards
    ticket_ids = [
        ticket.id
        for ticket in tickets
        if (ticket.kind == "confirm" and not set(INFERENCE_ARMS).isdisjoint(arms_of(ticket)))
        or (ticket.kind == "ablation" and LEARNED_ARM in arms_of(ticket))
        or (guarded and ticket.kind in ("confirm", "ablation"))
    ]
    # these runs have many entropies, which no verdict uses
    prefixes = ("validate", "test", LEARNED_CURVE, CONTROLLED_CURVE)
    return assemble(row, tickets, store.measurements(row.id, ticket_ids, prefixes=prefixes), maps=maps)


def assemble(
    row: StudyRow,
    tickets: Sequence[TicketRow],
    measurements: Iterable[Measurement],
    *,
    needs_measurements: bool = False,
    maps: Mapping[int, Any] | None = None,
) -> StudyResult:
    """Return the study from its rows.

    Args:
        row: The study.
        tickets: All of its tickets.
        measurements: Measurements of at least the confirm tickets of winner, baseline and twin and of timing
            tickets, by step; with guards those of all confirm and ablation tickets.
        needs_measurements: Whether the measurements are part of the result.
        maps: Ticket id to the maps of attention, of the observed runs.
    """
    measurements = list(measurements)
    curves, measured = _group_by_run(measurements) if needs_measurements else ({}, {})
    spec = StudySpec.from_json(row.spec)
    tickets = [_check_parameters(ticket) for ticket in tickets]
    concludes = spec.is_about_temperature
    verdict = compute_verdict(tickets, measurements, spec) if concludes else None
    agents = active_agents(tickets)
    lost = [ticket for ticket in tickets if ticket.failures or ticket.state == "failed"]
    return StudyResult(
        spec=spec,
        state=display_state(row.state, len(agents)),
        agents=len(agents),
        tickets={kind: _count_runs(tickets, kind, row.state == "done", spec) for kind in KINDS},
        trials=_count_trials(of_kind(tickets, "search")),
        baseline=_baseline_stats(of_kind(tickets, "baseline")),
        best=best_of(of_kind(tickets, "search"), spec.study.direction),
        winner=verdict.params if verdict else find_winner(tickets, spec) if concludes else None,
        verdict=verdict,
        earlier_verdicts=earlier_verdicts(tickets, measurements, spec, verdict) if verdict else (),
        comparison=evaluate_comparison(tickets, spec, measurements) if spec.compare is not None else None,
        cost=_total_cost(tickets),
        round=current_round(tickets),
        lost=sorted(lost, key=lambda ticket: ticket.state != "failed"),
        alone=[ticket for ticket in tickets if ticket.alone],
        created=row.created,
        runs=tuple(tickets),
        curves=curves,
        measured=measured,
        maps=maps or {},
    )


def _check_parameters(ticket: TicketRow) -> TicketRow:
    """Return a ticket whose parameters make a plan; one whose parameters do not counts as failed."""
    parameters = ticket.parameters or {}
    try:
        for name, value in parameters.items():
            if name in TEMPERATURE_PARAMETERS:
                check_parameter(name, value)
    except ScheduleNotImported:
        raise
    except SpecError as error:
        return failed_ticket(replace(ticket, parameters=None), f"parameters: {error}")
    return ticket


def _group_by_run(
    measurements: Iterable[Measurement],
) -> tuple[dict[int, Curve], dict[int, dict[str, Curve]]]:
    points: dict[int, dict[str, list[tuple[int, float]]]] = {}
    for measurement in measurements:
        of_run = points.setdefault(measurement.ticket_id, {})
        of_run.setdefault(measurement.name, []).append((measurement.step, measurement.value))
    measured = {
        ticket: {name: tuple(curve) for name, curve in of_run.items()} for ticket, of_run in points.items()
    }
    curves = {ticket: of_run.pop(_REPORT) for ticket, of_run in measured.items() if _REPORT in of_run}
    return curves, {ticket: of_run for ticket, of_run in measured.items() if of_run}


def _count_runs(tickets: Sequence[TicketRow], kind: Kind, is_done: bool, spec: StudySpec) -> RunCounts:
    states = Counter(ticket.state for ticket in tickets if ticket.kind == kind)
    follows = kind not in ("baseline", "constant", "search") and spec.compare is None
    open_ended = follows and not is_done
    return RunCounts(
        requested=states.total() or (None if open_ended else 0),
        done=states["done"],
        running=states["running"],
        waiting=states["waiting"],
        failed=states["failed"],
        withdrawn=states["withdrawn"],
    )


def _count_trials(search: Sequence[TicketRow]) -> dict[str, int]:
    outcomes = Counter("failed" if t.state == "failed" else t.outcome for t in search if t.state != "waiting")
    num_running = sum(ticket.state == "running" for ticket in search)
    return {name: outcomes[name] for name in get_args(Outcome)} | {"running": num_running}


def _baseline_stats(baseline: Sequence[TicketRow]) -> BaselineStats | None:
    values = [run.value for run in baseline if is_usable(run) and run.value is not None]
    if not values:
        return None
    return BaselineStats(mean=fmean(values), sd=stdev(values) if len(values) > 1 else None, n=len(values))


def _total_cost(tickets: Iterable[TicketRow]) -> Cost:
    tickets = list(tickets)
    return Cost(
        train_seconds=sum(ticket.seconds for ticket in tickets),
        checkpoint_seconds=sum(ticket.checkpoint_seconds for ticket in tickets),
        gpu_seconds=sum(ticket.gpu_seconds for ticket in tickets) or None,
        peak_memory=max((t.peak_memory for t in tickets if t.peak_memory is not None), default=None),
    )
