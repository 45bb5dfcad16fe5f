"""The arguments of the Trainer that are written down are those of the installed Lightning."""

from __future__ import annotations

import inspect
from types import NoneType
from typing import Any, get_args

import lightning as L
import pytest

from tempopt.errors import SpecError
from tempopt.spec.trainer_arguments import NUMBER, SWITCH, TRAINER_ARGUMENTS, WHOLE_NUMBER
from tests.specs import make

_TYPES = {WHOLE_NUMBER: {int}, NUMBER: {int, float}, SWITCH: {bool}}


def test_the_arguments_are_lightnings() -> None:
    parameters = inspect.signature(L.Trainer.__init__).parameters
    assert list(TRAINER_ARGUMENTS) == [name for name in parameters if name != "self"]
    for name, allowed in TRAINER_ARGUMENTS.items():
        annotation = parameters[name].annotation
        types = set(get_args(annotation) or (annotation,)) - {NoneType}
        assert allowed is None or types == _TYPES[allowed], name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"trainer__acumulate_grad_batches": 2},
            'Did you mean "accumulate_grad_batches"? Known: accelerator',
        ),
        ({"trainer__accumulate_grad_batches": "two"}, 'given the text "two". Give a whole number.'),
        ({"trainer__accumulate_grad_batches": 2.5}, "trainer.accumulate_grad_batches: given 2.5. Give a wh"),
        ({"trainer__detect_anomaly": "often"}, 'given the text "often". Give true or false.'),
        ({"trainer__gradient_clip_val": [1.0]}, "trainer.gradient_clip_val: given [1.0]. Give a number."),
        (
            {"search": {"temperature_init": [0.5, 2.0], "trainer.gradient_clip": [0.5, 1.0]}},
            'search.trainer.gradient_clip: Unknown argument of lightning.Trainer "gradient_clip". Did you',
        ),
    ],
)
def test_an_argument_that_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as error:
        make(**settings)
    assert message in str(error.value)


@pytest.mark.parametrize("value", ["2", "${STEPS}", 2])
def test_a_number_in_quotes_and_a_variable_are_allowed(value: object) -> None:
    assert make(trainer__accumulate_grad_batches=value).trainer["accumulate_grad_batches"] == value
