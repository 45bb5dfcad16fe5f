"""Values of the parameters of schedules, for tests that draw them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

INNER = ("temperature_knot_1", "temperature_knot_2", "temperature_knot_3", "temperature_knot_4")
LEVELS = ("temperature_init", "temperature_final", "warmup_start", *INNER)
SHAPES: dict[str, st.SearchStrategy[Any]] = {
    "warmup_fraction": st.sampled_from([0.1, 0.3]),
    "hold_fraction": st.sampled_from([0.2, 0.5]),
    "curvature": st.sampled_from([0.5, 10.0]),
    "cycles": st.sampled_from([0.5, 2.5]),
    "power": st.sampled_from([0.5, 3.0]),
    "num_steps": st.sampled_from([2, 5]),
    "num_knots": st.sampled_from([None, 1, 3]),
    # lists have tests of their own
    "temperature_knots": st.none(),
}
