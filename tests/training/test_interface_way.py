"""A study's runs reach the attention of a model of transformers: attach: {layers: ...}."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tempopt.training.run import LightningRun

ATTACH = {"layers": "auto"}
TARGET = {"entropy_lambda": 0.5, "entropy_target": 0.4}
MOVING = {"entropy_lambda": 0.5, "entropy_lambda_final": 0.0, "entropy_schedule": "linear"}


@pytest.fixture
def make_hugging_request(request_for: Callable[..., Any]) -> Callable[..., Any]:
    def make(*, attach: Any = ATTACH, trainer: Any = None, **options: Any) -> Any:
        options = {"attach": attach, "trainer": {"max_steps": 12, **(trainer or {})}, **options}
        return request_for("hugging_modules.HuggingFaceModule", **options)

    return make


@pytest.mark.parametrize(
    "parameters",
    [
        {"length_scaling": "log_n", "n0": 4.0},
        {"normaliser": "sparsemax"},
        {"entropy_lambda": 0.5},
        TARGET,
        MOVING,
    ],
)
def test_what_is_attached_beside_a_temperature_acts(
    make_hugging_request: Any, listener: Any, parameters: Any
) -> None:
    tempered, plain = (
        LightningRun(make_hugging_request(parameters=run_params), listener())
        for run_params in (parameters, {})
    )
    assert tempered.execute().reports != plain.execute().reports
