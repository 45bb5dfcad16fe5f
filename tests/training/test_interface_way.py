"""A study's runs reach the attention of a model of transformers: attach: {layers: ...}."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tempopt.errors import SpecError
from tempopt.training.build import check_space
from tempopt.training.dry_run import dry_run
from tempopt.training.run import LightningRun

ATTACH = {"layers": "auto"}
ENTROPY_PARAMS = {"entropy_lambda": 0.5}
TARGET = {"entropy_lambda": 0.5, "entropy_target": 0.4}
MOVING = {"entropy_lambda": 0.5, "entropy_lambda_final": 0.0, "entropy_schedule": "linear"}


@pytest.fixture
def make_hugging_request(request_for: Callable[..., Any]) -> Callable[..., Any]:
    def make(*, attach: Any = ATTACH, trainer: Any = None, **options: Any) -> Any:
        options = {"attach": attach, "trainer": {"max_steps": 12, **(trainer or {})}, **options}
        return request_for("hugging_modules.HuggingFaceModule", **options)

    return make


def weights(run: LightningRun) -> list[torch.Tensor]:
    return [param.detach().clone() for param in run.module.parameters()]


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


def test_a_term_keeps_its_weight_when_gradients_are_summed(make_hugging_request: Any, listener: Any) -> None:
    # the same batch twice, at half the loss each: the same gradient, of the loss and of the term
    single_run = LightningRun(make_hugging_request(parameters=ENTROPY_PARAMS), listener())
    summed_run = LightningRun(
        make_hugging_request(
            parameters=ENTROPY_PARAMS,
            trainer={"accumulate_grad_batches": 2, "val_check_interval": 8},
        ),
        listener(),
    )
    single_run.execute()
    summed_run.execute()
    for single_weight, summed_weight in zip(weights(single_run), weights(summed_run), strict=True):
        torch.testing.assert_close(single_weight, summed_weight, rtol=1e-4, atol=1e-6)


def test_the_attention_of_such_a_run_is_observed(make_hugging_request: Any, listener: Any) -> None:
    curves = LightningRun(make_hugging_request(observe=True), listener()).execute().curves
    assert [*curves] == [f"entropy/{layer}/{head}" for layer in range(2) for head in range(2)]


def test_it_is_tested_and_its_space_checked(make_hugging_request: Any, listener: Any) -> None:
    request = make_hugging_request(space={"length_scaling": ["none", "log_n"], "entropy_lambda": [-0.1, 0.1]})
    assert dry_run(request, listener()).state == "complete"
    with pytest.raises(SpecError, match="output_temperature cannot be set from outside"):
        check_space(request.program, {"output_temperature": [0.5, 2.0], "temperature_init": [0.5, 2.0]})


def test_modules_that_share_a_configuration_are_tested(
    make_hugging_request: Any, listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = make_hugging_request()
    import hugging_modules

    shared = hugging_modules.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=6
    )
    monkeypatch.setattr(hugging_modules, "BertConfig", lambda **sizes: shared)
    assert dry_run(request, listener()).state == "complete"
