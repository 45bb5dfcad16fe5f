"""How the verdict calls the baseline of a study with named temperatures, and their parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tempopt.confirmation.widening import at_ends
from tempopt.forecast.power import detectable, known_of
from tempopt.forecast.words import gain_text
from tempopt.records.rows import TicketRow
from tempopt.report.headline import terms
from tempopt.results.export import to_yaml
from tempopt.results.recommendation_text import recommendation_text
from tempopt.results.study_result import StudyResult
from tempopt.results.verdict_text import verdict_lines
from tempopt.results.wording import baseline_label, baseline_name, baseline_values, set_text
from tests.simulated import Simulated

ATTENTION = {"temperature_init": {"low": 1.2, "high": 1.5}}
LEVEL = {"low": 0.02, "high": 1.0}


def named(*names: str, attention: bool = False, schedule: str = "linear") -> dict[str, Any]:
    """Return the sections of a spec with named temperatures that were found at √2, 2√2, and so on."""
    search: dict[str, Any] = dict(ATTENTION) if attention else {}
    for name in names:
        search[f"{name}.temperature_init"] = LEVEL
        search[f"{name}.temperature_final"] = LEVEL
        search[f"{name}.schedule"] = [schedule]
    sections = {
        name: {"value": f"{name}.tau", "as_found": round(2**0.5 * place, 3)}
        for place, name in enumerate(names, start=1)
    }
    return {"search": search, "temperatures": sections}


def studied(make_spec: Any, result_of: Any, sections: dict[str, Any], gain: float = 1.0) -> StudyResult:
    """Return a study whose runs gain where the temperature ``contrast`` is not as found."""

    def worth(t: TicketRow) -> float:
        assert t.parameters is not None
        noise = np.random.default_rng([t.seed % 2**32, len(str(t.parameters))]).normal(0, 0.01)
        return float(noise + gain * (t.parameters["contrast.temperature_init"] < 1.2))

    found = Simulated(make_spec(sections, trials=6, learned=False), worth).run()
    result: StudyResult = result_of(found.spec, found.rows, state="done")
    return result


@pytest.mark.parametrize(
    ("sections", "name", "values", "label"),
    [
        ({"search": ATTENTION}, "τ = 1", "", "τ = 1"),
        (named("contrast"), "contrast = 1.414 as found", "", "baseline"),
        (
            named("contrast", "head"),
            "the temperatures as found",
            " (contrast = 1.414, head = 2.828)",
            "baseline",
        ),
        (
            named("contrast", attention=True),
            "the temperatures as found",
            " (τ = 1, contrast = 1.414)",
            "baseline",
        ),
    ],
    ids=["attention", "one", "two", "attention and one"],
)
def test_the_baseline_has_the_name_of_what_is_searched(
    sections: dict[str, Any], name: str, values: str, label: str, make_spec: Any
) -> None:
    spec = make_spec(sections)
    assert (baseline_name(spec), baseline_values(spec), baseline_label(spec)) == (name, values, label)


def test_of_a_temperature_that_the_module_trains_the_baseline_says_so(make_spec: Any) -> None:
    sections = named("contrast")
    sections["temperatures"]["contrast"]["trained"] = True
    assert baseline_name(make_spec(sections)) == "contrast as found, learned by the module from 1.414"
    sections = named("contrast", "head")
    sections["temperatures"]["contrast"]["trained"] = True
    assert baseline_values(make_spec(sections)) == " (contrast learned from 1.414, head = 2.828)"


def test_before_a_module_was_looked_into_no_temperature_is_told(make_spec: Any) -> None:
    sections = named("contrast", "head")
    del sections["temperatures"]["head"]["as_found"]
    assert baseline_values(make_spec(sections)) == " (contrast = 1.414, head)"


@pytest.mark.parametrize("gain", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("names", [("contrast",), ("contrast", "head")])
def test_nothing_is_said_of_attention_where_its_temperature_is_not_searched(
    names: tuple[str, ...], gain: float, make_spec: Any, result_of: Any
) -> None:
    result = studied(make_spec, result_of, named(*names), gain)
    text = "\n".join([*verdict_lines(result), *terms(result), to_yaml(result)])
    assert "τ" not in text
    name = baseline_name(result.spec)
    assert f"{name}{baseline_values(result.spec)}" in verdict_lines(result)[0]
    assert f"it is trained with the winner and at {name}, from" in terms(result)[-1]


def test_of_several_temperatures_the_headline_alone_gives_the_values(make_spec: Any, result_of: Any) -> None:
    result = studied(make_spec, result_of, named("contrast", "head", attention=True))
    lines = verdict_lines(result)
    told = "than with the temperatures as found (τ = 1, contrast = 1.414, head = 2.828) ("
    assert told in lines[0] and not any("contrast = 1.414, head" in line for line in lines[1:])
    assert any("trained at the temperatures as found" in line for line in lines)
    parts = lines[lines.index("  the winner against itself without one of its parts:") + 1 :]
    assert [line.partition(":")[0].strip() for line in parts[:2]] == [
        "the level of attention (the schedule divided by its mean, so that it averages 1)",
        "the schedule of contrast",
    ]


def test_parameters_of_named_temperatures_are_told_by_temperature(make_spec: Any, result_of: Any) -> None:
    result = studied(make_spec, result_of, named("contrast", "head"))
    (winner,) = [line for line in verdict_lines(result) if line.startswith("  winner of the search: ")]
    assert winner.startswith("  winner of the search: contrast from 0.")
    assert "(linear), head from 0." in winner and "temperature_init=" not in winner
    kept = {"contrast.temperature_init": 0.1, "contrast.as_found": 0.5, "head.as_found": 2.0, "lr": 0.01}
    assert set_text(kept) == "contrast = 0.1, head = 2 as found, lr=0.01"
    assert (
        set_text({"temperature_init": 0.1, "schedule": "constant"})
        == "temperature_init=0.1, schedule=constant"
    )


def test_the_gain_that_can_be_shown_is_known_from_runs_of_the_baseline(
    make_spec: Any, result_of: Any
) -> None:
    spec = make_spec(named("contrast"), trials=6)
    study = Simulated(spec, lambda t: (t.seed % 97) / 97)
    study.search()
    able, known = detectable(spec), known_of(study.of("baseline"), spec)
    assert able is not None and known is not None
    text = gain_text(able, known, "val_mrr", baseline_name(spec))
    assert text.endswith("from 3 runs at contrast = 1.414 as found)")


def test_a_temperature_that_stays_as_found_lies_at_no_end_of_its_range(make_spec: Any) -> None:
    sections = named("contrast", "head", schedule="constant")
    for name in ("contrast", "head"):
        del sections["search"][f"{name}.temperature_final"], sections["search"][f"{name}.schedule"]
        sections["temperatures"][name]["as_found"] = 1.0
    spec = make_spec(sections)
    found = {"contrast.as_found": 1.0, "head.as_found": 1.0}
    parameters = {**found, "contrast.temperature_init": 0.02, "head.temperature_init": 1.0}
    assert [each.name for each in at_ends(parameters, spec)] == ["contrast.temperature_init"]


def test_a_temperature_of_evaluation_is_told_where_what_changes_is_read_there(
    make_spec: Any, result_of: Any
) -> None:
    told = []
    for reads in ("head", "contrast"):
        sections = named("contrast", "head", schedule="constant")
        for name in ("contrast", "head"):
            del sections["search"][f"{name}.temperature_final"]
            sections["temperatures"][name]["evaluated"] = name == reads
        result = studied(make_spec, result_of, sections)
        assert result.verdict is not None and result.verdict.recommendation is not None
        # of the winner only contrast is kept
        as_found = {"head.temperature_init": result.spec.temperatures["head"].as_found}
        kept = {**result.verdict.recommendation.parameters, **as_found}
        now = replace(result.verdict.recommendation, now="train_at_constant", parameters=kept, plan=None)
        told.append(recommendation_text(replace(result, verdict=replace(result.verdict, recommendation=now))))
    assert "Evaluate at" not in told[0] and "Evaluate at the same temperature." in told[1]
