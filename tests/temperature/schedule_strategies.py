"""Values of the parameters of schedules, for tests that draw them."""

from __future__ import annotations

import inspect
from typing import Any

from hypothesis import strategies as st

from tempopt.temperature import SCHEDULES

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
OTHERS = {"lr": 0.03, "data.batch_size": 16}
levels = st.floats(0.05, 20.0)


@st.composite
def schedule_params(draw: st.DrawFn) -> dict[str, Any]:
    """The parameters of a schedule, of any kind there is, and nothing else."""
    kind = draw(st.sampled_from(sorted(SCHEDULES)))
    names = inspect.signature(SCHEDULES[kind]).parameters
    return {"schedule": kind} | {name: draw(levels if name in LEVELS else SHAPES[name]) for name in names}
