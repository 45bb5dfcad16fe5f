"""Studies whose rows are written by hand, as agents would have left them."""

from __future__ import annotations

import time

from tempopt.spec.study_spec import StudySpec
from tempopt.storage import Store
from tempopt.storage.rows import StudyRow
from tempopt.verdict.planned_runs import planned_runs
from tests.storage.scenes import HOUR, complete, make_end, new_ticket, take_next
from tests.toy_study import SMALL, toy_spec

SMALL_RUNS = round(planned_runs(StudySpec.parse(toy_spec(**SMALL), source="the test")).max_total())
"""Runs that a study of :func:`begin_study` takes at the most."""


def begin_study(store: Store, name: str, *, owner: str, hours: float | None, runs: int = 2) -> StudyRow:
    """Return a study with so many tickets, of which the first has used 90 s of a GPU, and the others wait."""
    spec = StudySpec.parse(toy_spec(name=name, **SMALL, limits={"gpu_hours": hours}), source="the test")
    study = store.create_study(name, spec.to_json(), name, owner=owner)
    store.add_tickets(study.id, [new_ticket(number) for number in range(runs)])
    ticket = take_next(store, study)
    store.begin(ticket.id, 1, {"temperature_init": 1.0}, {}, None)
    outcomes = complete(gpu_seconds=90.0)
    store.write(study.id, [make_end(ticket, outcomes)], agent="agent", lease=HOUR)
    return study


def state_after(store: Store, name: str, *, state: str) -> str:
    """Return the state of a study once it is as expected, or after a while."""
    deadline = time.monotonic() + 20
    while (study_state := store.load_study(name).state) != state and time.monotonic() < deadline:
        time.sleep(0.02)
    return study_state
