"""The arguments of the Trainer that are written down are those of the installed Lightning."""

from __future__ import annotations

import inspect
from types import NoneType
from typing import get_args

import lightning as L

from tempopt.spec.lightning_config import NUMBER, SWITCH, TRAINER_ARGUMENTS, WHOLE_NUMBER

_TYPES = {WHOLE_NUMBER: {int}, NUMBER: {int, float}, SWITCH: {bool}}


def test_the_arguments_are_lightnings() -> None:
    parameters = inspect.signature(L.Trainer.__init__).parameters
    assert list(TRAINER_ARGUMENTS) == [name for name in parameters if name != "self"]
    for name, allowed in TRAINER_ARGUMENTS.items():
        annotation = parameters[name].annotation
        types = set(get_args(annotation) or (annotation,)) - {NoneType}
        assert allowed is None or types == _TYPES[allowed], name
