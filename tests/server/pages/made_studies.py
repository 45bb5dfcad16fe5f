"""Studies for the pages to show: one of each kind that people meet, written without any training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import create_engine, delete, insert, update

from tempopt.storage.models import LOG, MEASUREMENT, STUDY, TICKET
from tempopt.storage.opening import open_store
from tests.report.made_study import SyntheticStudy, World, make, write

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>"
TRACEBACK = f"""Traceback (most recent call last):
  File "train.py", line 12, in <module>
    fit({MARKUP!r})
RuntimeError: CUDA error: an illegal memory access was encountered {MARKUP}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySetting:
    """How a study stands beside its runs."""

    owner: str = "ada"
    priority: int = 0
    state: str | None = None
    age: timedelta = timedelta(days=2)


def put(url: str, world: World, setting: StudySetting, first_id: int) -> int:
    """Write a study whose tickets have ids from one on, and return the first id that is free."""
    synthetic = make(world)
    shift = first_id - 1
    tickets = [replace(ticket, id=ticket.id + shift) for ticket in synthetic.tickets]
    measurements = [
        replace(measurement, ticket_id=measurement.ticket_id + shift)
        for measurement in synthetic.measurements
    ]
    maps = {id + shift: head_maps for id, head_maps in synthetic.maps.items()}
    write(url, SyntheticStudy(row=synthetic.row, tickets=tickets, measurements=measurements, maps=maps))
    values: dict[str, Any] = {
        "owner": setting.owner,
        "priority": setting.priority,
        "created": datetime.now(UTC) - setting.age,
    }
    if setting.state is not None:
        values["state"] = setting.state
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(update(STUDY).where(STUDY.c.name == synthetic.row.name).values(values))
    engine.dispose()
    return first_id + len(tickets)


def at_work(url: str, name: str, *, num_running: int, waiting: int) -> None:
    """Have the last runs of a study be in progress, and those before them wait."""
    engine = create_engine(url)
    with open_store(url) as store, engine.begin() as connection:
        rows = store.tickets(store.load_study(name).id)
        active_rows = rows[len(rows) - num_running - waiting :]
        clean = {"outcome": None, "value": None, "finished": None}
        for row in active_rows[:waiting]:
            values = {**clean, "state": "waiting", "agent": None, "attempt": 0, "seconds": 0.0}
            connection.execute(update(TICKET).where(TICKET.c.id == row.id).values(values))
            connection.execute(delete(MEASUREMENT).where(MEASUREMENT.c.ticket_id == row.id))
        lease = datetime.now(UTC).timestamp() + 3600
        for row in active_rows[waiting:]:
            values = {
                **clean,
                "state": "running",
                "lease": lease,
                "agent": f"node-{row.id % 2}:{row.id}:0:0.1",
            }
            connection.execute(update(TICKET).where(TICKET.c.id == row.id).values({**values, "steps": 420}))
    engine.dispose()


def break_runs(url: str, name: str) -> None:
    """Have a study's failed runs say why, in markup, with a log each."""
    engine = create_engine(url)
    with open_store(url) as store, engine.begin() as connection:
        for row in store.tickets(store.load_study(name).id):
            if row.state == "failed":
                error = f"RuntimeError: CUDA error {MARKUP}"
                connection.execute(update(TICKET).where(TICKET.c.id == row.id).values(error=error))
                log_row = {"ticket_id": row.id, "attempt": 1, "agent": row.agent, "text": TRACEBACK}
                connection.execute(insert(LOG).values({**log_row, "written": datetime.now(UTC)}))
    engine.dispose()


def fill(url: str) -> None:
    """Write one study of each kind."""
    free = put(url, World(study={"name": "pairs"}), StudySetting(), 1)
    free = put(
        url,
        World(study={"name": "no-gain.v2"}, gain=0.0, layers=1),
        StudySetting(owner="grace", age=timedelta(days=9)),
        free,
    )
    free = put(
        url,
        World(study={"name": "searching"}, confirmed=False, trials=24),
        StudySetting(owner="grace", priority=5, age=timedelta(hours=3)),
        free,
    )
    at_work(url, "searching", num_running=3, waiting=9)
    free = put(
        url,
        World(
            study={"name": "a.very-long_name.of-a-study.that-a-user.has-chosen.with-care_2026-11-27"},
            confirmed=False,
            trials=12,
            cards=False,
        ),
        StudySetting(owner="katherine.johnson@example.com", state="paused", age=timedelta(minutes=40)),
        free,
    )
    free = put(
        url,
        World(
            study={"name": "losing"},
            confirmed=False,
            trials=12,
            ends=["failed", "complete", "diverged"],
            search={"optimizer": {"choices": [MARKUP, "adam"]}},
        ),
        StudySetting(owner="ada", age=timedelta(seconds=50)),
        free,
    )
    break_runs(url, "losing")
