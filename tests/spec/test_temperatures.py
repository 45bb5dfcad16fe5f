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
from tempopt.temperature import constant_levels, is_neutral, training_key
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
    (temperature,) = spec.temperatures.values()
    assert (temperature.value, temperature.transform, temperature.as_found) == (
        "criterion.logit_scale",
        "log_inverse",
        1.0,
    )
    assert spec.program().values == {
        "contrast": {
            "value": "criterion.logit_scale",
            "transform": "log_inverse",
            "as_found": 1.0,
            "evaluated": None,
            "trained": None,
        }
    }
    assert make().temperatures == {} and make().program().values == {}
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
    assert spec.program().values == {
        "contrast": {
            "value": None,
            "transform": "identity",
            "as_found": None,
            "evaluated": None,
            "trained": None,
        }
    }
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


PARTS: list[tuple[dict[str, Any], str]] = [
    (
        {"search": {**SEARCH, "contrst.schedule": ["linear"]}},
        'search.contrst.schedule: there is no temperature "contrst". The named temperatures are contrast.',
    ),
    (
        {"temperatures": None, "search": {"contrast.temperature_init": RANGE}},
        'search.contrast.temperature_init: there is no temperature "contrast". None has a name.',
    ),
    *(
        (
            {"temperatures": {name: CONTRAST}, "search": {"temperature_init": RANGE}},
            f'temperatures.{name}: "{name}" is no name of a temperature. Give lower-case letters, digits',
        )
        for name in ("model", "data", "trainer", "schedule", "temperature_init", "Contrast", "1x", "a.b", "")
    ),
    (
        {"model__init_args": {"contrast": 0.5}},
        'temperatures.contrast: the model has an init argument "contrast", too. Give the temperature another',
    ),
    (
        {
            "temperatures": {"contrast": CONTRAST, "gate": CONTRAST},
            "search": {**SEARCH, "gate.temperature_init": RANGE},
        },
        'temperatures.gate.value: "criterion.temperature" is the temperature contrast already. Take one of',
    ),
    (
        {
            "temperatures": {"contrast": {}, "gate": {"value": "contrast_temperature"}},
            "search": {**SEARCH, "gate.temperature_init": RANGE},
        },
        'temperatures.gate.value: "contrast_temperature" is the temperature contrast already. Take one of',
    ),
    (
        {"search": {"temperature_init": RANGE}},
        "temperatures.contrast: its level is not searched. Search it, as in contrast.temperature_init: {low:",
    ),
    (
        {"search": {"temperature_init": RANGE}, "temperatures": {"contrast": {**CONTRAST, "as_found": 4}}},
        "in contrast.temperature_init: {low: 0.5, high: 32}, or take contrast out. Usual ranges are in docs/",
    ),
    (
        {"search": {**SEARCH, "contrast.as_found": RANGE}},
        "search.contrast.as_found: the temperature as found is not searched. It is written "
        "temperatures.contrast.as_found.",
    ),
    (
        {"temperatures": {"contrast": CONTRAST, "attention": {"layers": "auto"}}, "attach": {}},
        "temperatures.attention: given beside attach:, which is the same. Take one of them out.",
    ),
    (
        {"search": {**SEARCH, "contrast.temperature_init": {**RANGE, "low": 0.0}}},
        "search.contrast.temperature_init: low is 0.0, but the range is logarithmic. Give a low above 0.",
    ),
    (
        {"search": {**SEARCH, "contrast.schedule": ["linear", "cosin"]}},
        'search.contrast.schedule: Unknown schedule "cosin". Did you mean "cosine"?',
    ),
    (
        {"search": {**SEARCH, "contrast.schedule": RANGE}},
        "search.contrast.schedule: given a range, but a schedule has a name. Give a list of names.",
    ),
    (
        {"search": {**SEARCH, "contrast.temperature_init": {**RANGE, "baseline": 0.5}}},
        "search.contrast.temperature_init: given a baseline, but",
    ),
    (
        {"search": {"contrast.temperature_init": RANGE, "contrast.temperature_final": RANGE}},
        "search.contrast.temperature_final: it changes nothing: nothing in this space depends on it.",
    ),
    (
        {"search": {**SEARCH, "contrast.cycles": [0.5, 1.5]}},
        "search.contrast.cycles: it changes nothing: nothing in this space depends on it.",
    ),
    (
        {"search": {**SEARCH, "contrast.layer_ratio": RANGE}},
        'search.contrast.layer_ratio: Unknown parameter of contrast "layer_ratio".',
    ),
    (
        {"search": {**SEARCH, "contrast.scedule": ["linear"]}},
        'search.contrast.scedule: Unknown parameter of contrast "scedule". Did you mean "schedule"?',
    ),
]


SECTION: list[tuple[object, str]] = [
    ({"contrast": {"value": ""}}, '.contrast.value: given the text "". Give a path, as in criterion.temp'),
    ({"contrast": {"value": 3}}, ".contrast.value: given 3. Give a path, as in criterion.temperature, or"),
    (
        {"contrast": {**CONTRAST, "transform": "log"}},
        '.contrast.transform: given the text "log". Give identity, inverse or log_inverse.',
    ),
    (
        {"contrast": {**CONTRAST, "as_found": 0}},
        ".contrast.as_found: given 0. Give a number from 1e-06 to 1e+06, or null.",
    ),
    (
        {"contrast": {**CONTRAST, "as_found": "warm"}},
        '.contrast.as_found: given the text "warm". Give a number from 1e-06 to 1e+06, or null.',
    ),
    (
        {"contrast": {**CONTRAST, "transfrom": "inverse"}},
        '.contrast.transfrom: Unknown key "transfrom". Did you mean "transform"?',
    ),
    ({"contrast": "criterion.temperature"}, '.contrast: given the text "criterion.temperature". Give'),
    (3, ": given 3. Give a mapping"),
]


def faults_of(**settings: Any) -> list[str]:
    """Return the lines of what is wrong with a spec."""
    with pytest.raises(SpecError) as error:
        named_spec(**settings)
    return str(error.value).splitlines()[1:]


@pytest.mark.parametrize(("settings", "message"), PARTS, ids=[message[:60] for _, message in PARTS])
def test_what_is_wrong_is_said_in_one_line(settings: dict[str, Any], message: str) -> None:
    (line,) = faults_of(**settings)
    assert message in line


def test_all_that_is_wrong_is_told_at_once() -> None:
    lines = faults_of(
        temperatures={"Contrast": CONTRAST, "gate": CONTRAST}, search={"temperature_init": RANGE}
    )
    assert [line.split(": ")[1] for line in lines] == [
        "temperatures.Contrast",
        "temperatures.gate",
        "temperatures.gate.value",
    ]


def test_attention_may_be_written_among_the_temperatures() -> None:
    section = {"layers": ["encoder.*"]}
    spec_one = make(temperatures={"attention": section})
    spec_other = make(attach=section)
    assert spec_one == spec_other and spec_one.identity() == spec_other.identity()
    assert spec_one.attach is not None and spec_one.temperatures == {}
    spec_both = make(
        temperatures={"attention": {"layers": "auto"}, "contrast": CONTRAST},
        search={**SEARCH, "temperature_init": {"low": 0.25, "high": 4}},
    )
    assert spec_both == make(
        attach={"layers": "auto"},
        temperatures={"contrast": CONTRAST},
        search={**SEARCH, "temperature_init": {"low": 0.25, "high": 4}},
    )
    assert StudySpec.from_json(spec_both.to_json()) == spec_both
    with pytest.raises(SpecError, match=r"layers: given 3\. Give auto, or a list of patterns"):
        make(temperatures={"attention": {"layers": 3}})


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
    assert constant_levels(constant, "contrast") == [0.1] and not is_neutral(constant)
    assert set(spec.space("constant")) == {"contrast.temperature_init", "lr"}
    assert set(spec.space("baseline")) == {"lr"}
    params = spec.parameters("search", {"contrast.schedule": "linear", "contrast.temperature_final": 0.1})
    assert params["contrast.as_found"] == 0.5
    # nothing is said of the beginning, which is where the module was found
    assert constant_levels(params, "contrast")[-1] == 0.5


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
    assert (
        spec.constants()[:9]
        == make(
            temperatures={"contrast": CONTRAST_AS_FOUND, "gate": GATE},
            search={**SEARCH, "gate.temperature_init": {"low": 0.5, "high": 8}},
            study__arms={"constant": 9},
        ).constants()
    )


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


def make_comparison(*sets: Any, **settings: Any) -> StudySpec:
    spec_base = make(**{"temperatures": {"contrast": CONTRAST}, "search": SEARCH, **settings})
    return comparison_spec(spec_base, sets)


@pytest.mark.parametrize(
    ("bad_set", "message"),
    [
        ({"contrst.temperature_init": 2.0}, 'there is no temperature "contrst". The named temperatures are'),
        ({"contrast.as_found": 2.0}, "compare.B.contrast.as_found: the temperature as found is not "),
        ({"contrast.temperature_init": -2.0}, "compare.B.contrast.temperature_init: "),
        ({"contrast.schedule": "cosin"}, 'compare.B.contrast.schedule: Unknown schedule "cosin"'),
    ],
)
def test_a_wrong_set_is_refused(bad_set: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as error:
        make_comparison({}, bad_set)
    (line,) = str(error.value).splitlines()[1:]
    assert message in line
