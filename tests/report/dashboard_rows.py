"""Finished studies with Optuna's half of them, for tests of the dashboard; written without any training."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, distribution_to_json
from sqlalchemy import Connection, MetaData, create_engine, insert, select

from tempopt.spec.study_spec import StudySpec
from tempopt.storage.opening import open_store
from tempopt.storage.optuna_calls import make_study
from tempopt.storage.optuna_tables import TICKET
from tempopt.storage.rows import Measurement, TicketRow
from tempopt.storage.trial_changes import TrialEnd
from tests.report.made_study import SyntheticStudy, World, make, write

_TABLES = (
    "trials",
    "trial_params",
    "trial_user_attributes",
    "trial_values",
    "trial_intermediate_values",
)
_STATES = {"complete": "COMPLETE", "pruned": "PRUNED", "diverged": "PRUNED", "failed": "FAIL"}


def write_whole(url: str, world: World, *, first_id: int = 1) -> SyntheticStudy:
    """Write a study with Optuna's study of the same name, and return its rows.

    Args:
        first_id: Id of its first ticket; of a store that has others, one that is free.
    """
    synthetic = _shift_ids(make(world), first_id)
    write(url, synthetic)
    with open_store(url) as store:
        spec = StudySpec.from_json(synthetic.row.spec)
        make_study(store.url, name=spec.study.name, direction=spec.study.direction, metric=spec.study.metric)
        engine = create_engine(store.url)
    with engine.begin() as connection:
        tables = MetaData()
        tables.reflect(connection)
        for name, rows in _rows(connection, tables, synthetic, spec).items():
            if rows:
                connection.execute(insert(tables.tables[name]), rows)
    engine.dispose()
    return synthetic


def _shift_ids(synthetic: SyntheticStudy, first_id: int) -> SyntheticStudy:
    shift = first_id - 1
    tickets = [replace(ticket, id=ticket.id + shift) for ticket in synthetic.tickets]
    measurements = [
        replace(measurement, ticket_id=measurement.ticket_id + shift)
        for measurement in synthetic.measurements
    ]
    maps = {id + shift: head_maps for id, head_maps in synthetic.maps.items()}
    return replace(synthetic, tickets=tickets, measurements=measurements, maps=maps)


def _rows(
    connection: Connection, tables: MetaData, synthetic: SyntheticStudy, spec: StudySpec
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of Optuna's tables, one trial a search ticket, as its public calls write them."""
    studies = tables.tables["studies"]
    study_id = connection.scalar(select(studies.c.study_id).where(studies.c.study_name == synthetic.row.name))
    reports: dict[int, list[Measurement]] = {}
    for measurement in synthetic.measurements:
        if measurement.name == "report":
            reports.setdefault(measurement.ticket_id, []).append(measurement)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in _TABLES}
    for ticket in (t for t in synthetic.tickets if t.kind == "search"):
        of_trial = {"trial_id": ticket.id}
        trial = {
            "number": ticket.number,
            "study_id": study_id,
            "state": _STATES.get(ticket.outcome or "", "RUNNING"),
        }
        times = {"datetime_start": ticket.started, "datetime_complete": ticket.finished}
        rows["trials"].append(
            of_trial | trial | {name: time and time.replace(tzinfo=None) for name, time in times.items()}
        )
        rows["trial_params"] += [of_trial | param for param in _params(ticket, spec)]
        end = TrialEnd(
            outcome=ticket.outcome or "complete",
            numbers={TICKET: ticket.id, "tau_final": 0.5 + ticket.number},
        )
        attributes = end.attributes().items()
        rows["trial_user_attributes"] += [
            of_trial | {"key": key, "value_json": json.dumps(value)} for key, value in attributes
        ]
        if ticket.value is not None:
            finite = {"objective": 0, "value": ticket.value, "value_type": "FINITE"}
            rows["trial_values"].append(of_trial | finite)
        rows["trial_intermediate_values"] += [
            of_trial | value_row for value_row in _values(reports.get(ticket.id, ()))
        ]
    return rows


def _params(ticket: TicketRow, spec: StudySpec) -> Iterator[dict[str, Any]]:
    for name, value in (ticket.sampled or {}).items():
        domain: Any = spec.search[name]
        if hasattr(domain, "choices"):
            distribution: Any = CategoricalDistribution(tuple(domain.choices))
        else:
            distribution = FloatDistribution(domain.low, domain.high, log=domain.log)
        internal_value = float(distribution.to_internal_repr(value))
        yield {
            "param_name": name,
            "param_value": internal_value,
            "distribution_json": distribution_to_json(distribution),
        }


def _values(reports: Sequence[Measurement]) -> Iterator[dict[str, Any]]:
    for report in reports:
        finite = math.isfinite(report.value)
        yield {
            "step": report.step,
            "intermediate_value": report.value if finite else None,
            "intermediate_value_type": "FINITE" if finite else "NAN",
        }
