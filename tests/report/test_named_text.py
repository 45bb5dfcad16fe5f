"""How the verdict calls the baseline of a study with named temperatures, and their parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tempopt.report.export import to_yaml
from tempopt.report.formatting import baseline_name, baseline_values
from tempopt.report.study_lines import glossary
from tempopt.report.study_result import StudyResult
from tempopt.storage.rows import TicketRow
from tests.report.full_text import full_lines
from tests.simulated import SimulatedStudy

ATTENTION = {"temperature_init": {"low": 1.2, "high": 1.5}}
LEVEL = {"low": 0.02, "high": 1.0}


def named_sections(*names: str, attention: bool = False, schedule: str = "linear") -> dict[str, Any]:
    """Return the sections of a spec with named temperatures that were found at √2, 2√2, and so on."""
    search: dict[str, Any] = dict(ATTENTION) if attention else {}
    for name in names:
        search[f"{name}.temperature_init"] = LEVEL
        search[f"{name}.temperature_final"] = LEVEL
        search[f"{name}.schedule"] = [schedule]
    sections = {
        name: {"value": f"{name}.tau", "as_found": round(2**0.5 * index, 3)}
        for index, name in enumerate(names, start=1)
    }
    return {"search": search, "temperatures": sections}


def run_named_study(
    make_spec: Any, result_of: Any, sections: dict[str, Any], gain: float = 1.0
) -> StudyResult:
    """Return a study whose runs gain where the temperature ``contrast`` is not as found."""

    def worth(t: TicketRow) -> float:
        assert t.parameters is not None
        noise = np.random.default_rng([t.seed % 2**32, len(str(t.parameters))]).normal(0, 0.01)
        return float(noise + gain * (t.parameters["contrast.temperature_init"] < 1.2))

    simulation = SimulatedStudy(make_spec(sections, trials=6, learned=False), worth).run()
    result: StudyResult = result_of(simulation.spec, simulation.rows, state="done")
    return result


@pytest.mark.parametrize("gain", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("names", [("contrast",), ("contrast", "head")])
def test_nothing_is_said_of_attention_where_its_temperature_is_not_searched(
    names: tuple[str, ...], gain: float, make_spec: Any, result_of: Any
) -> None:
    result = run_named_study(make_spec, result_of, named_sections(*names), gain)
    text = "\n".join([*full_lines(result), *glossary(result), to_yaml(result)])
    assert "τ" not in text
    name = baseline_name(result.spec)
    assert any(
        f"compared with {name}{baseline_values(result.spec)} on " in line for line in full_lines(result)
    )
    assert f"it is trained with the winner and at {name}, from" in glossary(result)[-1]
