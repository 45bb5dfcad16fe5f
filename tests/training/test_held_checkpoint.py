"""A checkpoint where a schedule first moves, for others that begin the same way."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tempopt.training.run import Run
from tempopt.workers.messages import Started
from tests.training.test_checkpoint_callback import everything, same
from tests.training.test_forks import fork

# of 24 steps progress is step / 23, and 16 / 23 the last one that is not beyond 0.7
HELD = 17


@pytest.mark.parametrize(
    ("parameters", "steps"),
    [
        ({"schedule": "piecewise", "hold_fraction": 0.7, "temperature_knot_1": 2.0}, [HELD]),
        ({"schedule": "hold_anneal", "hold_fraction": 0.7, "temperature_final": 2.0}, [HELD]),
        ({"schedule": "piecewise", "temperature_knots": [[0.3, 1.0], [1, 2.0]]}, [7]),
        # of these others would save next to nothing
        ({"schedule": "linear", "temperature_final": 2.0}, []),
        ({"schedule": "constant"}, []),
    ],
)
def test_a_checkpoint_is_written_where_the_hold_ends(
    request_for: Any, listener: Any, tmp_path: Path, parameters: dict[str, Any], steps: list[int]
) -> None:
    given = {"checkpoints": str(tmp_path), "checkpoint_every": 3600.0}
    request = request_for(parameters={"temperature_init": 1.0, **parameters}, **given)
    channel = listener()
    Run(dataclasses.replace(request, keeps_held=True), channel).execute()
    assert [saved.step for saved in channel.saved] == steps
    if steps == [HELD]:
        # a run that nobody may begin from has none
        channel = listener()
        Run(request, channel).execute()
        assert channel.saved == []


def test_a_run_with_other_knots_that_begins_there_is_the_one_that_trains_every_step(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    held = {"schedule": "piecewise", "temperature_init": 2.0, "hold_fraction": 0.7}
    one, other = ({**held, "temperature_knot_1": tau, "temperature_final": tau / 3} for tau in (1.0, 0.5))
    given = {"checkpoint_every": 3600.0, "validate_at": "current"}
    parent = request_for(ticket=1, parameters=one, checkpoints=str(tmp_path / "1"), **given)
    child = request_for(ticket=2, parameters=other, **given)
    channel = listener()
    Run(dataclasses.replace(parent, keeps_held=True), channel).execute()
    [saved] = channel.saved
    whole = Run(child, listener())
    expected = everything(whole, whole.execute())
    heard = listener()
    place = str(tmp_path / "2")
    forked = Run(dataclasses.replace(child, checkpoints=place, forks=[fork(parent, saved, child)]), heard)
    found = everything(forked, forked.execute())
    [started] = heard.of(Started)
    assert (started.step, started.forked) == (HELD, parent.ticket)
    assert [name for name in expected if not same(found[name], expected[name])] == []
