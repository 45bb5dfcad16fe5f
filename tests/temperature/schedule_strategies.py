"""Values of the parameters of schedules, for tests that draw them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

LEVELS = ("temperature_init", "temperature_final", "warmup_start")
SHAPES: dict[str, st.SearchStrategy[Any]] = {
    "warmup_fraction": st.sampled_from([0.1, 0.3]),
    "hold_fraction": st.sampled_from([0.2, 0.5]),
    "curvature": st.sampled_from([0.5, 10.0]),
    "cycles": st.sampled_from([0.5, 2.5]),
    "power": st.sampled_from([0.5, 3.0]),
    "num_steps": st.sampled_from([2, 5]),
}
