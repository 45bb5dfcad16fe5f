"""Knots in a spec: searched as numbers, fixed as a list, compared, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from optuna.distributions import FloatDistribution

from tempopt.errors import SpecError
from tempopt.sampling.features import Features
from tests.specs import make

RANGE = {"low": 0.25, "high": 4.0}
KNOTS = [[0, 2.0], [0.5, 1], [1, 0.5]]
SEARCH: dict[str, Any] = {
    "schedule": {"choices": ["piecewise"]},
    "temperature_init": RANGE,
    "temperature_knot_1": RANGE,
    "temperature_final": RANGE,
}
PIECEWISE_PARAMS = {"schedule": "piecewise", "temperature_knots": KNOTS}


def refusal(**settings: Any) -> str:
    with pytest.raises(SpecError) as error:
        make(**settings)
    return str(error.value)


def test_knots_are_searched_as_floats_on_a_logarithmic_scale() -> None:
    spec = make(search={**SEARCH, "temperature_knot_2": RANGE})
    space = spec.space("search")
    for name in ("temperature_knot_1", "temperature_knot_2"):
        assert space[name] == FloatDistribution(0.25, 4.0, log=True)
    params = {"schedule": "piecewise", "temperature_init": 1.0, "temperature_knot_1": 2.0}
    params |= {"temperature_knot_2": 3.0, "temperature_final": 0.5}
    assert spec.parameters("search", params) == params
    assert spec.parameters("baseline", {}) == {"schedule": "constant", "temperature_init": 1.0}
    constant = spec.parameters("constant", {"temperature_init": 2.0})
    assert constant == {"schedule": "constant", "temperature_init": 2.0}


def test_knots_beyond_their_number_and_of_other_schedules_are_no_part_of_what_was_tried() -> None:
    space = {**SEARCH, "schedule": ["piecewise", "cosine"], "num_knots": [1, 2], "temperature_knot_2": RANGE}
    spec = make(search={**space, "hold_fraction": [0.0, 0.7]})
    params = {"schedule": "piecewise", "temperature_init": 1.0, "temperature_knot_1": 2.0, "num_knots": 1}
    params |= {"temperature_final": 0.5, "hold_fraction": 0.7}
    assert spec.parameters("search", {**params, "temperature_knot_2": 3.0}) == params
    cosine = {"schedule": "cosine", "temperature_init": 1.0, "temperature_final": 0.5}
    assert spec.parameters("search", {**params, "schedule": "cosine"}) == cosine


@pytest.mark.parametrize(
    ("search", "idle"),
    [
        ({**SEARCH, "schedule": ["cosine"]}, "temperature_knot_1"),
        ({**SEARCH, "temperature_knot_2": RANGE, "num_knots": [1]}, "temperature_knot_2"),
        ({"schedule": ["piecewise"], "temperature_init": RANGE, "num_knots": [1, 2]}, "num_knots"),
    ],
)
def test_a_knot_that_no_schedule_of_the_space_reads_is_refused(search: dict[str, Any], idle: str) -> None:
    assert f"search.{idle}: it changes nothing" in refusal(search=search)


@pytest.mark.parametrize(
    ("name", "domain"),
    [
        ("temperature_knots", [KNOTS]),
        ("temperature_knot_1", {"low": 0, "high": 1}),
        ("num_knots", {"low": 1, "high": 5}),
    ],
)
def test_what_cannot_be_searched_is_refused(name: str, domain: Any) -> None:
    assert f"search.{name}: " in refusal(search={name: domain})


def test_a_module_of_ones_own_may_have_more_knots() -> None:
    assert (
        "temperature_knot_5" in make(search={"temperature_knot_5": RANGE, "temperature_init": RANGE}).search
    )


def test_a_list_of_knots_is_written_as_an_argument_of_the_model() -> None:
    spec = make(
        search={"schedule": ["piecewise", "cosine"], "temperature_init": RANGE, "temperature_final": RANGE},
        model__init_args={"temperature_knots": KNOTS},
    )
    ends = {"temperature_init": 1.0, "temperature_final": 2.0}
    piecewise_params = spec.parameters("search", {**ends, "schedule": "piecewise"})
    assert piecewise_params == {**PIECEWISE_PARAMS, "temperature_knots": [[0.0, 2.0], [0.5, 1.0], [1.0, 0.5]]}
    cosine_params = spec.parameters("search", {**ends, "schedule": "cosine"})
    assert cosine_params == {**ends, "schedule": "cosine"}
    # the surrogate draws either of them
    features = Features(spec)
    plain = make(search={"schedule": ["cosine"], "temperature_init": RANGE, "temperature_final": RANGE})
    assert features(cosine_params).tolist() == Features(plain)(cosine_params).tolist()
    assert features(piecewise_params)[2] == pytest.approx(np.log(0.5) / np.log(16.0))
    wrong_args = {"temperature_knots": [[0.5, 1.0], [0.5, 2.0]]}
    assert "model.init_args.temperature_knots: temperature_knots[1] is at progress 0.5" in refusal(
        search=SEARCH, model__init_args=wrong_args
    )


def test_a_named_temperature_whose_knots_alone_are_searched_has_a_level() -> None:
    temperatures = {"contrast": {"value": "criterion.temperature", "as_found": 0.1}}
    search = {"contrast.schedule": ["piecewise"], "contrast.temperature_knot_1": {"low": 0.05, "high": 0.3}}
    spec = make(search=search, temperatures=temperatures)
    space = spec.space("constant")
    assert space["contrast.temperature_init"] == FloatDistribution(0.05, 0.3, log=True)
