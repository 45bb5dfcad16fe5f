"""What is shown of a study in tests: tickets and snapshots that no study has to run for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tempopt.agent.observer import Snapshot, WorkerView
from tempopt.storage.rows import TicketRow
from tests.rows import ticket_row


@pytest.fixture
def make_ticket() -> Callable[..., TicketRow]:
    """Return a maker of finished search tickets; keyword arguments replace fields."""

    def make(**fields: Any) -> TicketRow:
        search = {"kind": "search", "arm": "search", "number": 7, "trial_number": 7, "outcome": "complete"}
        parameters = {"temperature_init": 2.5, "schedule": "cosine"}
        run = {"parameters": parameters, "value": 0.71239, "seconds": 3.0, "steps": 500, "total_steps": 500}
        return ticket_row(**{"id": 1, "seed": 1, **search, **run, **fields})

    return make


@pytest.fixture
def make_snapshot() -> Callable[..., Snapshot]:
    """Return a maker of snapshots in the middle of a search; keyword arguments replace fields."""

    def make(**fields: Any) -> Snapshot:
        values: dict[str, Any] = {
            "study": "pairs",
            "metric": "val_accuracy",
            "direction": "maximize",
            "stage": "search",
            "done": {"baseline": 3, "constant": 20, "search": 16},
            "requested": {"baseline": 3, "constant": 20, "search": 40},
            "best": 0.69,
            "best_params": {"schedule": "cosine", "temperature_init": 2.5},
            "baseline_mean": 0.61,
            "workers": [
                WorkerView(
                    slot=0,
                    kind="search",
                    number=17,
                    step=100,
                    total_steps=500,
                    value=0.55,
                    device="cpu",
                ),
                WorkerView(slot=1, device="cpu"),
            ],
            "elapsed": 61.0,
            "remaining": 125.0,
        }
        return Snapshot(**{**values, **fields})

    return make
