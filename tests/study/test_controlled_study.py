"""Whole studies whose trials are under control of the entropy, from dry run to the exported training."""

from __future__ import annotations

import contextlib
import io
import runpy
from pathlib import Path
from typing import Any

import pytest

from tempopt.records.tickets import arms_of, usable
from tempopt.results.export import to_python
from tempopt.study.api import load_study, search
from tempopt.temperature import is_controlled
from tests.toy_study import SMALL, URL, tickets, toy_spec, work_in

pytestmark = pytest.mark.long

SPACE = {
    "entropy_control": ["hold", "contrast"],
    "control_level": {"low": 0.3, "high": 0.9},
    "control_spread": {"low": 0.2, "high": 5.0},
    "temperature_init": {"low": 0.5, "high": 2.0},
}
TEMPERED: dict[str, Any] = {}
ATTACHED = {"model": {"class_path": "toy_modules.Stock"}, "attach": {"layers": "auto"}}


@pytest.fixture(scope="module", params=["tempered", "attached"])
def ended(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder and the result of a study."""
    folder = tmp_path_factory.mktemp(request.param)
    trainer = {"log_every_n_steps": 1}
    spec = toy_spec(space=SPACE, trainer=trainer, **{**SMALL, "trials": 4})
    spec |= ATTACHED if request.param == "attached" else TEMPERED
    with pytest.MonkeyPatch.context() as patch:
        work_in(folder, patch)
        return folder, search(spec, storage=URL, workers=1)


def test_a_search_ends_in_a_verdict_on_control(there: Any) -> None:
    verdict = there.verdict
    assert there.state == "done" and verdict is not None
    assert is_controlled(verdict.params)
    whole = load_study(URL, "toy")
    assert whole.verdict == verdict
    for t in tickets():
        if {"baseline", "constant", "twin"} & {t.arm, *arms_of(t)}:
            assert t.parameters is not None and not is_controlled(t.parameters)
        measured = any(name.startswith("controlled/") for name in whole.measured.get(t.id, {}))
        assert measured == (usable(t) and is_controlled(t.parameters or {}))
    for mean, low, high in verdict.controlled.values():
        assert 0 < low <= mean <= high
    assert verdict.controlled and verdict.inference_only is not None


def test_the_exported_script_trains_under_control(there: Any) -> None:
    Path("exported.py").write_text(to_python(there, winner=True))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        ran = runpy.run_path("exported.py")
    callbacks = [each for each in ran["trainer"].callbacks if hasattr(each, "attachment")]
    tempered = callbacks[0].attachment if callbacks else ran["model"]
    first = there.verdict.params["temperature_init"]
    assert tempered.temperatures != (first,) * len(tempered.temperatures)
    assert len(tempered.temperatures) == len(there.verdict.controlled)
