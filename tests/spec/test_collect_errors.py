"""One validation run reports all faults of a spec, including those that later stages would find."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tempopt.spec.collect_errors import find_all_faults, with_all_faults
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.validation_errors import FaultySpecError

VALID_SPEC: dict[str, Any] = {
    "study": {"name": "mine", "metric": "val_loss", "direction": "minimize"},
    "model": {"class_path": "mine.Mine", "init_args": {"width": 3}},
    "trainer": {"max_steps": 10},
    "search": {"temperature_init": {"low": 0.25, "high": 4.0}, "lr": {"low": 0.1, "high": 1.0}},
}


def refusal(**changes: Any) -> FaultySpecError:
    """Return the error of the spec with sections changed; None takes a section out."""
    spec_data = copy.deepcopy(VALID_SPEC)
    for section, keys in changes.items():
        spec_data[section] = {**spec_data.get(section, {}), **keys}
    with pytest.raises(FaultySpecError) as error:
        StudySpec.parse(spec_data, source="mine.yaml")
    return error.value


def paths(error: FaultySpecError) -> list[str]:
    """Return where there is something wrong."""
    return sorted(path for path, _ in find_all_faults(error))


def test_what_does_not_fit_together_is_told_with_what_is_wrong_by_itself() -> None:
    error = refusal(study={"trails": 4}, trainer={"max_steps": -1}, search={"layer_ratio": [0.5, 2.0]})
    assert [path for path, _ in error.lines] == ["study.trails"]
    assert paths(error) == ["search.layer_ratio", "study.trails", "trainer"]


def test_a_blank_hides_no_other_fault() -> None:
    error = refusal(study={"metric": "???", "trails": 4}, search={"lr": {"low": 2.0, "high": 1.0}})
    assert [path for path, _ in error.lines] == ["study.metric"]
    assert paths(error) == ["search.lr", "study.metric", "study.trails"]


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"trainer": {"max_steps": 0}}, "trainer.max_steps"),
        ({"search": {"temperature_init": 3}}, "search.temperature_init"),
        ({"search": {"lr": 3}, "study": {"enqueue": [{"lr": 0.5}]}}, "search.lr"),
        ({"study": {"direction": None}}, "study.direction"),
        ({"model": {"class_path": 3}}, "model.class_path"),
        ({"study": {"seeds": {"confirm": 1}}}, "study.seeds.confirm"),
    ],
)
def test_a_fault_is_not_told_a_second_time_for_what_it_leaves_undone(
    changes: dict[str, Any], path: str
) -> None:
    assert paths(refusal(**changes)) == [path]


def test_the_error_tells_all_faults_a_password_among_them() -> None:
    logger = {"class_path": "a.B", "init_args": {"api_key": "k"}}
    error = refusal(study={"trails": 4}, trainer={"logger": logger}, search={"layer_ratio": [0.5, 2.0]})
    full_error = with_all_faults(error)
    assert [path for path, _ in full_error.lines] == [
        *("study.trails", "search.layer_ratio", "trainer.logger.init_args.api_key"),
    ]
    assert str(full_error).startswith("This study spec has 3 faults:")


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        ({"value": ""}, "temperatures.gate.value"),
        ({"value": "tau", "transform": "log"}, "temperatures.gate.transform"),
        ({"value": "tau", "rows": "gate"}, "temperatures.gate.rows"),
        ("gate", "temperatures.gate"),
    ],
)
def test_a_fault_of_a_named_temperature_hides_no_other_and_leaves_its_name(entry: object, path: str) -> None:
    search_params = {"gate.temperature_init": {"low": 0.25, "high": 4.0}}
    error = refusal(
        temperatures={"classifier": {"value": "head.tau"}, "gate": entry},
        search={**search_params, "classifier.temperature_init": [0.5, 2.0], "layer_ratio": [0.5, 2.0]},
        trainer={"max_steps": -1},
    )
    assert paths(error) == ["search.layer_ratio", path, "trainer"]
