"""What is shown of a study in tests: snapshots that no study has to run for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tempopt.agent.observer import Snapshot, WorkerView


@pytest.fixture
def make_snapshot() -> Callable[..., Snapshot]:
    """Return a maker of snapshots in the middle of a search; keyword arguments replace fields."""

    def make(**fields: Any) -> Snapshot:
        slots: list[dict[str, Any]] = [{"slot": slot, "device": "cpu"} for slot in range(2)]
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
                WorkerView(kind="search", number=17, step=100, total_steps=500, value=0.55, **slots[0]),
                WorkerView(**slots[1]),
            ],
            "elapsed": 61.0,
            "remaining": 125.0,
        }
        return Snapshot(**{**values, **fields})

    return make
