"""The options that are written down are those of the installed Optuna."""

from __future__ import annotations

import inspect
from typing import Any

import optuna
import pytest

from tempopt.errors import SpecError
from tempopt.spec.sections import PRUNERS, SAMPLERS
from tempopt.spec.strategy_options import PRUNER_OPTIONS, SAMPLER_OPTIONS
from tests.specs import make

_PLAIN = {"bool", "int", "float", "str", "None"}


def options_of(kind: type[Any]) -> dict[str, str]:
    """Return the options of a class that a spec can write, with their types."""
    annotations = {
        name: parameter.annotation
        if isinstance(parameter.annotation, str)
        else inspect.formatannotation(parameter.annotation)
        for name, parameter in inspect.signature(kind).parameters.items()
        if name != "seed"
    }
    return {name: text for name, text in annotations.items() if set(text.split(" | ")) <= _PLAIN}


@pytest.mark.parametrize(
    ("module", "classes", "table"),
    [(optuna.samplers, SAMPLERS, SAMPLER_OPTIONS), (optuna.pruners, PRUNERS, PRUNER_OPTIONS)],
)
def test_the_options_are_optunas(module: Any, classes: dict[str, str | None], table: dict[str, Any]) -> None:
    kinds_by_name = {name: kind for name, kind in classes.items() if kind is not None}
    assert table == {name: options_of(getattr(module, kind)) for name, kind in kinds_by_name.items()}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"study__sampler": {"name": "random", "group": True}}, "study.sampler: random takes no options"),
        ({"study__sampler": {"name": "tpe", "group": 1}}, "study.sampler.group: given 1. tpe takes bool."),
        ({"study__pruner": "threshold"}, "threshold was given no lower or upper. Give it, as in {name: thr"),
        ({"study__pruner": "percentile"}, "percentile was given no percentile. Give it, as in"),
        ({"study__pruner": {"name": "median", "n_min_trials": True}}, "median takes int. Give that."),
    ],
)
def test_an_option_that_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as error:
        make(**settings)
    assert message in str(error.value)
