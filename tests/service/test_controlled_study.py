"""Whole studies whose trials are under control of the entropy, from dry run to the exported training."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.api.calls import search
from tempopt.service.studies import load_study
from tempopt.storage.ticket_queries import arms_of, is_usable
from tempopt.temperature import is_controlled
from tests.service.conftest import run_exported
from tests.toy_study import SMALL, URL, tickets, toy_spec, work_in

pytestmark = pytest.mark.long

SPACE = {
    "entropy_control": ["hold", "contrast"],
    "control_level": {"low": 0.3, "high": 0.9},
    "control_spread": {"low": 0.2, "high": 5.0},
    "temperature_init": {"low": 0.5, "high": 2.0},
}
ATTACHED = {"model": {"class_path": "toy_modules.Stock"}, "attach": {"layers": "auto"}}


@pytest.fixture(scope="module", params=["tempered", "attached"])
def ended_study(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder and the result of a study."""
    folder = tmp_path_factory.mktemp(request.param)
    trainer = {"log_every_n_steps": 1}
    spec = toy_spec(space=SPACE, trainer=trainer, **{**SMALL, "trials": 4, "seed": 2})
    spec |= ATTACHED if request.param == "attached" else {}
    with pytest.MonkeyPatch.context() as patch:
        work_in(folder, patch)
        return folder, search(spec, storage=URL, workers=1)


def test_a_search_ends_in_a_verdict_on_control(ended_result: Any) -> None:
    verdict = ended_result.verdict
    assert ended_result.state == "done" and verdict is not None
    assert is_controlled(verdict.params)
    loaded_result = load_study(URL, "toy")
    assert loaded_result.verdict == verdict
    for t in tickets():
        if {"baseline", "constant", "twin"} & {t.arm, *arms_of(t)}:
            assert t.parameters is not None and not is_controlled(t.parameters)
        has_control = any(name.startswith("controlled/") for name in loaded_result.measured.get(t.id, {}))
        assert has_control == (is_usable(t) and is_controlled(t.parameters or {}))
    for mean, low, high in verdict.controlled.values():
        assert 0 < low <= mean <= high
    assert verdict.controlled and verdict.inference_only is not None


def test_the_exported_script_trains_under_control(ended_result: Any) -> None:
    script_globals = run_exported(ended_result, winner=True)
    callbacks = [
        callback for callback in script_globals["trainer"].callbacks if hasattr(callback, "attachment")
    ]
    attachment = callbacks[0].attachment if callbacks else script_globals["model"]
    first = ended_result.verdict.params["temperature_init"]
    assert attachment.temperatures != (first,) * len(attachment.temperatures)
    assert len(attachment.temperatures) == len(ended_result.verdict.controlled)
