"""Parameter sets that a person wants tried."""

from __future__ import annotations

import json

import pytest

from tempopt.errors import SpecError
from tempopt.spec.identity import diff_specs
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.yaml_source import read_sets
from tests.specs import Write, make


def test_how_a_study_is_looked_after_is_no_change() -> None:
    managed_spec = make(
        study__limits={"hours": 1.5, "gpu_hours": 8},
        study__lease=5,
        study__store_timeout=0,
        study__checkpoint_every=60,
        study__enqueue=[{"temperature_init": 2}],
        resources={"grace": 1},
    )
    assert diff_specs(make(), managed_spec) == {}
    assert managed_spec.identity() == make().identity()
    assert StudySpec.from_json(json.loads(json.dumps(managed_spec.to_json()))) == managed_spec


def test_parameter_sets_that_do_not_fit_are_told_all_at_once() -> None:
    with pytest.raises(SpecError) as error:
        make().parse_enqueued_sets([{"temperature_init": 5}, {"temperatur_init": 1}, {}])
    assert str(error.value).splitlines() == [
        "These parameter sets have 3 faults:",
        "  enqueue.0.temperature_init: given 5. Give a number from 0.25 to 4.0.",
        '  enqueue.1.temperatur_init: Unknown searched name "temperatur_init". Did you mean '
        '"temperature_init"? Known: temperature_init.',
        "  enqueue.2: given no value. Give at least one searched name, or take the set out.",
    ]
    with pytest.raises(SpecError, match=r"given 2 parameter sets, but study\.trials is 1"):
        make(study__trials=1).parse_enqueued_sets([{"temperature_init": 1}] * 2)


def test_parameter_sets_are_read_from_a_file_of_their_own(write: Write) -> None:
    path = write("- {temperature_init: 1e-1, data.x: null}\n- temperature_init: 2\n")
    assert read_sets(path) == [{"temperature_init": 0.1, "data.x": None}, {"temperature_init": 2}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a list of parameter sets. Give a line for each, with values of searched names, as in"),
        ("{temperature_init: 1}", "is not a list of parameter sets"),
        ("[]", "is not a list of parameter sets"),
        ("- 3", "is not a list of parameter sets"),
        ("- {a: 1", "study.yaml:1:8: this is not valid YAML"),
    ],
)
def test_a_file_of_something_else_is_refused(write: Write, text: str, message: str) -> None:
    path = write(text)
    with pytest.raises(SpecError) as error:
        read_sets(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
