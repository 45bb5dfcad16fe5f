"""The section ``temperatures:``: how it is written, what is wrong with it, and what a study makes of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.sampling.initial_design import initial_params
from tempopt.spec.comparison_spec import comparison_spec
from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.validation_errors import FaultySpecError
from tempopt.temperature import is_neutral, mean_level, training_key
from tests.specs import BASE, Write, make

RANGE = {"low": 0.02, "high": 1.0}
SEARCH = {
    "contrast.temperature_init": RANGE,
    "contrast.temperature_final": RANGE,
    "contrast.schedule": ["constant", "linear", "cosine"],
}
CONTRAST = {"value": "criterion.temperature"}
CONTRAST_AS_FOUND = {**CONTRAST, "as_found": 0.5}
GATE = {"value": "gate.tau", "transform": "inverse", "as_found": 2.0}


def named_spec(**settings: Any) -> StudySpec:
    return make(**{"temperatures": {"contrast": CONTRAST}, "search": SEARCH, **settings})


def test_a_temperature_is_a_path_a_transform_and_what_was_found(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_ROOT", "/data")
    text = BASE.replace(
        "search:\n  temperature_init: {low: 0.25, high: 4}",
        "search:\n  contrast.temperature_init: {low: 0.02, high: 1}\n"
        "temperatures:\n  contrast: {value: criterion.logit_scale, transform: log_inverse, as_found: 1}",
    )
    spec = load_spec(write(text))
    values = {"value": "criterion.logit_scale", "transform": "log_inverse", "as_found": 1.0}
    assert spec.lightning_program().values == {"contrast": {**values, "evaluated": None, "trained": None}}
    assert make().temperatures == {} and make().lightning_program().values == {}
    plain = named_spec().temperatures["contrast"]
    assert (plain.transform, plain.as_found) == ("identity", None)


@pytest.mark.parametrize(
    "temperatures", [{"contrast": CONTRAST}, {"contrast": CONTRAST_AS_FOUND}, {"contrast": {}}]
)
def test_a_spec_is_stored_and_read_as_it_was(temperatures: dict[str, Any]) -> None:
    spec = named_spec(temperatures=temperatures)
    reread_spec = StudySpec.from_json(spec.to_json())
    assert reread_spec == spec and reread_spec.to_json() == spec.to_json()
    assert reread_spec.space().keys() == SEARCH.keys()


def test_a_temperature_without_a_path_is_that_which_the_module_registers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATA_ROOT", "/data")
    spec = named_spec(temperatures={"contrast": {}})
    assert spec.lightning_program().values["contrast"]["value"] is None
    assert named_spec().identity() != spec.identity()
    assert spec.with_dry_run_results({"contrast": 0.5}).identity() == spec.identity()


def test_what_a_module_has_is_no_part_of_what_is_asked() -> None:
    spec = named_spec()
    assert named_spec(temperatures={"contrast": CONTRAST_AS_FOUND}).identity() == spec.identity()
    known_spec = spec.with_dry_run_results({"contrast": 0.25})
    assert known_spec.identity() == spec.identity()
    assert known_spec.fixed_temperatures == {"contrast.as_found": 0.25}
    assert StudySpec.from_json(known_spec.to_json()) == known_spec
    # what a person writes goes before what is found
    assert named_spec(temperatures={"contrast": CONTRAST_AS_FOUND}).with_dry_run_results(
        {"contrast": 9.0}
    ).fixed_temperatures == {"contrast.as_found": 0.5}
    for other_section in (
        {"value": "criterion.tau"},
        {**CONTRAST, "transform": "inverse"},
    ):
        assert named_spec(temperatures={"contrast": other_section}).identity() != spec.identity()


GATE_VALUE = "temperatures.gate.value"
GATE_RANGE = {**SEARCH, "gate.temperature_init": RANGE}
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"search": {**SEARCH, "contrst.schedule": ["linear"]}}, "search.contrst.schedule"),
    ({"temperatures": None, "search": {"contrast.schedule": ["linear"]}}, "search.contrast.schedule"),
    *(
        ({"temperatures": {name: CONTRAST}, "search": {"temperature_init": RANGE}}, f"temperatures.{name}")
        for name in ("model", "data", "trainer", "schedule", "temperature_init", "Contrast", "1x", "a.b", "")
    ),
    ({"model__init_args": {"contrast": 0.5}}, "temperatures.contrast"),
    ({"temperatures": {"contrast": CONTRAST, "gate": CONTRAST}, "search": GATE_RANGE}, GATE_VALUE),
    (
        {"temperatures": {"contrast": {}, "gate": {"value": "contrast_temperature"}}, "search": GATE_RANGE},
        GATE_VALUE,
    ),
    ({"search": {"temperature_init": RANGE}}, "temperatures.contrast"),
    *(
        ({"search": {**SEARCH, f"contrast.{name}": domain}}, f"search.contrast.{name}")
        for name, domain in (
            ("as_found", RANGE),
            ("temperature_init", {**RANGE, "low": 0.0}),
            ("temperature_init", {**RANGE, "baseline": 0.5}),
            ("schedule", ["linear", "cosin"]),
            ("schedule", RANGE),
            ("cycles", [0.5, 1.5]),
            ("layer_ratio", RANGE),
            ("scedule", ["linear"]),
        )
    ),
    (
        {"search": {"contrast.temperature_init": RANGE, "contrast.temperature_final": RANGE}},
        "search.contrast.temperature_final",
    ),
    *(
        ({"temperatures": {"contrast": {**CONTRAST, key: value}}}, f"temperatures.contrast.{key}")
        for key, value in (
            ("value", ""),
            ("value", 3),
            ("transform", "log"),
            ("as_found", 0),
            ("as_found", "warm"),
            ("transfrom", "inverse"),
        )
    ),
]


@pytest.mark.parametrize(("settings", "path"), FAULTS)
def test_what_is_wrong_is_told_at_its_key(settings: dict[str, Any], path: str) -> None:
    with pytest.raises(FaultySpecError) as error:
        named_spec(**settings)
    assert path in [fault_path for fault_path, _ in error.value.lines]


def test_an_example_of_a_range_is_about_the_temperature_as_found() -> None:
    with pytest.raises(SpecError, match=r"temperature_init: \{low: 0.5, high: 32\}"):
        named_spec(search={"temperature_init": RANGE}, temperatures={"contrast": {**CONTRAST, "as_found": 4}})


def test_a_study_attends_if_anything_of_attention_is_searched_or_attached() -> None:
    assert make().attends
    assert not named_spec().attends
    assert named_spec(attach={"layers": "auto"}).attends
    assert named_spec(search={**SEARCH, "temperature_init": {"low": 0.25, "high": 4}}).attends


def test_every_arm_begins_from_the_temperature_as_found() -> None:
    spec = named_spec(
        temperatures={"contrast": CONTRAST_AS_FOUND}, search={**SEARCH, "lr": {"low": 1e-4, "high": 1e-2}}
    )
    baseline = spec.parameters("baseline", {"lr": 1e-3})
    assert baseline["contrast.temperature_init"] == baseline["contrast.as_found"] == 0.5
    assert is_neutral(baseline) and training_key(baseline) == training_key({"lr": 1e-3})
    constant = spec.parameters("constant", {"contrast.temperature_init": 0.1, "lr": 1e-3})
    assert mean_level(constant, "contrast") == 0.1 and not is_neutral(constant)
    assert set(spec.space("constant")) == {"contrast.temperature_init", "lr"}
    assert set(spec.space("baseline")) == {"lr"}
    params = spec.parameters("search", {"contrast.schedule": "linear", "contrast.temperature_final": 0.1})
    assert params["contrast.as_found"] == 0.5


def test_the_first_trial_is_not_at_the_temperature_as_found() -> None:
    # the first design has runs of the baseline's arm there
    spec = named_spec(temperatures={"contrast": {**CONTRAST, "as_found": 0.5}})
    assert not is_neutral(spec.parameters("search", initial_params(spec, "search", 0, seed=3)))


def test_constants_of_two_temperatures_cover_both() -> None:
    spec = make(
        temperatures={"contrast": CONTRAST_AS_FOUND, "gate": GATE},
        search={**SEARCH, "gate.temperature_init": {"low": 0.5, "high": 8}},
        study__arms={"constant": 27},
    )
    constants = spec.constants()
    assert len(constants) == 27
    ends = {"contrast.temperature_init": (0.02, 1.0), "gate.temperature_init": (0.5, 8.0)}
    assert all(constant.keys() == ends.keys() for constant in constants)
    places = [
        tuple(math.log(constant[name] / low) / math.log(high / low) for name, (low, high) in ends.items())
        for constant in constants
    ]
    assert places[0] == pytest.approx((1 / 4, 1 / 3)) and places[1] == pytest.approx((3 / 4, 2 / 3))
    assert len(set(places)) == 27
    # every square of three by three has some: low of one comes with high of the other
    cells = {tuple(min(int(3 * coordinate), 2) for coordinate in position) for position in places}
    assert len(cells) == 9


def test_a_constant_is_searched_where_only_the_end_of_a_schedule_is() -> None:
    spec = named_spec(
        search={"contrast.temperature_final": RANGE, "contrast.schedule": ["linear", "cosine"]},
        study__arms={"constant": 3},
    )
    assert [constant["contrast.temperature_init"] for constant in spec.constants()] == pytest.approx(
        [0.02 ** (1 - position) for position in (0.25, 0.75, 0.125)]
    )


def test_enqueued_trials_name_the_temperature() -> None:
    spec = named_spec(study__enqueue=[{"contrast.temperature_init": 1, "contrast.schedule": "constant"}])
    assert spec.study.enqueue
    with pytest.raises(SpecError, match=r"study\.enqueue\.0\.contrast\.temperature_init: given 9"):
        named_spec(study__enqueue=[{"contrast.temperature_init": 9}])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("contrst.temperature_init", 2.0),
        ("contrast.as_found", 2.0),
        ("contrast.temperature_init", -2.0),
        ("contrast.schedule", "cosin"),
    ],
)
def test_a_wrong_set_is_refused(name: str, value: object) -> None:
    with pytest.raises(FaultySpecError) as error:
        comparison_spec(named_spec(), [{}, {name: value}])
    assert [path for path, _ in error.value.lines] == [f"compare.B.{name}"]
