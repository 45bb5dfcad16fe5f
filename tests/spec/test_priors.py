"""Advice as a prior: what each says, of which studies, and what is refused."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.spec.priors import PRIORS, LogNormal, applied_prior
from tempopt.temperature import TEMPERATURE_PARAMETERS, check_parameter
from tests.spec.test_study_spec import make

PAGE = (Path(__file__).parents[2] / "docs" / "search.md").read_text(encoding="utf-8")
CONTRAST = {
    "temperatures": {"contrast": {"value": "criterion.temperature"}},
    "search": {"contrast.temperature_init": {"low": 0.01, "high": 1.0}},
}


@pytest.mark.parametrize("name", PRIORS)
def test_each_prior_is_about_parameters_that_there_are_and_has_its_sources(name: str) -> None:
    prior = PRIORS[name]
    assert prior.sources and all(re.search(r"\d{4}|tutorials", each) for each in prior.sources)
    assert prior.trial and prior.numbers
    for parameter, each in prior.numbers.items():
        check_parameter(parameter, each.median)
        assert each.factor > 1
    for values in (prior.choices, prior.trial):
        for parameter, value in values.items():
            assert parameter in TEMPERATURE_PARAMETERS
            check_parameter(parameter, value)
    (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", PAGE, flags=re.MULTILINE)
    about, says, first, source = row.split(" | ")
    assert about == prior.about and source == "; ".join(prior.sources)
    told = re.findall(r"`(\w+)` ([\d.]+) \(([\d.]+) to ([\d.]+)\)", says)
    assert [(n, float(median)) for n, median, _, _ in told] == [
        (n, e.median) for n, e in prior.numbers.items()
    ]
    for (_, _, low, high), each in zip(told, prior.numbers.values(), strict=True):
        assert (float(low), float(high)) == pytest.approx((each.low, each.high), rel=0.06)
    assert first == ", ".join(f"{n} {v}" for n, v in prior.trial.items())


def test_a_belief_agrees_with_its_median_fully_and_with_what_is_far_hardly() -> None:
    belief = LogNormal(median=0.5, factor=2.0)
    assert belief.agreement(0.5) == 1.0
    assert belief.agreement(0.25) == pytest.approx(belief.agreement(1.0)) == pytest.approx(math.exp(-0.5))
    assert belief.agreement(8.0) < 0.001
    assert (belief.low, belief.high) == (0.25, 1.0)


def test_a_prior_speaks_of_what_is_searched_as_far_as_the_range_holds_it() -> None:
    spec = make(study__prior="long_context", search__length_scaling=["none", "log_n"])
    found = applied_prior(spec)
    assert found is not None
    assert found.choices == {"length_scaling": "log_n"}
    assert found.numbers == {"temperature_init": LogNormal(median=0.5, factor=2.0)}
    assert found.trial == {"length_scaling": "log_n", "temperature_init": 0.5}
    assert applied_prior(make()) is None
    hot = make(study__prior="long_context", search__temperature_init={"low": 1.0, "high": 4.0},
               search__length_scaling=["none", "log_n"])  # fmt: skip
    found = applied_prior(hot)
    assert found is not None and not found.numbers and found.trial == {"length_scaling": "log_n"}
    assert any(
        "says that temperature_init is about 0.5, which its range does not hold" in n for n in hot.notes
    )


def test_a_prior_of_a_loss_is_about_the_named_temperature() -> None:
    found = applied_prior(make(study__prior="contrast", **CONTRAST))
    assert found is not None and found.temperature == "contrast"
    assert list(found.numbers) == ["contrast.temperature_init"]
    assert found.trial == {"contrast.temperature_init": 0.1}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"study__prior": "long"}, r'prior: Unknown prior "long"\. Known: pretraining, .*long_context'),
        ({"study__prior": "generation"}, r"study\.prior: generation says nothing of what is searched here"),
        ({"study__prior": "contrast"}, r"prior: contrast .* one entry in temperatures:, and has none"),
        (
            {
                "study__prior": "contrast",
                "temperatures": {"a": {"value": "criterion.a"}, "b": {"value": "criterion.b"}},
                "search": {"a.temperature_init": [0.1, 0.2], "b.temperature_init": [0.1, 0.2]},
            },
            r"study\.prior: contrast is about .* and has a, b\.",
        ),
        ({"study__prior": 3}, r"study\.prior: .*the name of a prior, as in long_context"),
    ],
)  # fmt: skip
def test_a_prior_that_says_nothing_here_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        make(**given)


def test_a_prior_is_part_of_the_question() -> None:
    assert make(study__prior="long_context").identity() != make().identity()
