"""What a study of a trained model may search, and what it refuses since it changes no evaluation."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import SpecError
from tests.specs import make

TAU = {"low": 0.5, "high": 2.0}
RATE = {"low": 1e-4, "high": 1e-2, "log": True}


def searching(search: dict[str, Any], **settings: Any) -> Any:
    return make(search=search, trainer=None, **{"study__evaluate_only": "m.ckpt", **settings})


@pytest.mark.parametrize(
    "search",
    [
        {"temperature_init": TAU},
        {"output_temperature": TAU},
        {"temperature_init": TAU, "layer_pattern": ["uniform", "linear"], "layer_ratio": TAU},
        {"length_scaling": ["none", "log_n"], "n0": {"low": 8.0, "high": 64.0}},
        {"normaliser": ["softmax", "top_k"], "top_k": [4, 8]},
        {"context": {"choices": [64, 128], "baseline": 64}},
        {"logit_temperature": TAU},
        {"sampling_temperature": TAU, "top_p": {"low": 0.5, "high": 1.0}},
        {"temperature_init": TAU, "top_k_tokens": [0, 20], "min_p": {"low": 0.0, "high": 0.2}},
    ],
)
def test_what_acts_in_an_evaluation_may_be_searched(search: dict[str, Any]) -> None:
    assert list(searching(search).search) == list(search)


@pytest.mark.parametrize(
    ("search", "why"),
    [
        ({"schedule": ["constant", "cosine"]}, "is evaluated at one temperature"),
        ({"temperature_final": TAU}, "is evaluated at one temperature"),
        ({"warmup_start": TAU}, "is evaluated at one temperature"),
        ({"schedule_args.knee": TAU}, "is evaluated at one temperature"),
        ({"entropy_lambda": {"low": -0.1, "high": 0.1}}, "the entropy term acts in training"),
        ({"entropy_control": ["none", "contrast"]}, "the control of the entropy acts in training"),
        ({"lr": RATE}, "by its name it acts in training"),
        ({"lr": {**RATE, "baseline": 1e-3}}, "by its name it acts in training"),
        (
            {"attention_dropout": {"low": 0.0, "high": 0.3, "baseline": 0.1}},
            "by its name it acts in training",
        ),
        ({"label_smoothing": {"low": 0.0, "high": 0.2}}, "by its name it acts in training"),
        ({"width": [32, 64]}, "by its name it acts in training"),
        ({"data.batch_size": [32, 64]}, "data: is the same in every evaluation"),
        ({"trainer.max_steps": [100, 200]}, "trainer: is the same in every evaluation"),
    ],
)
def test_what_changes_no_evaluation_is_refused_with_what_does(search: dict[str, Any], why: str) -> None:
    (name,) = search
    with pytest.raises(SpecError) as caught:
        searching({"temperature_init": TAU, **search})
    message = str(caught.value)
    assert message.startswith("This study spec has a fault:")
    assert f"search.{name}: " in message and why in message
    assert "What acts in an evaluation is a constant temperature (temperature_init)" in message


def test_what_belongs_to_a_confirmation_is_refused() -> None:
    for name, value in (("failure", 0.1), ("min_gain", "1%")):
        with pytest.raises(
            SpecError, match=f"study.{name}: given with evaluate_only, where nothing is confirmed"
        ):
            searching({"temperature_init": TAU}, **{f"study__{name}": value})


def test_a_fixed_schedule_is_refused_with_what_to_write() -> None:
    with pytest.raises(
        SpecError, match="model.init_args.schedule: given 'cosine'.*Write the temperature that"
    ):
        searching({"temperature_init": TAU}, model__init_args={"schedule": "cosine"})


def test_tau_1_keeps_the_normaliser_that_the_model_was_trained_with() -> None:
    given = {"normaliser": "sparsemax", "temperature_init": 0.5}
    spec = searching({"temperature_init": TAU}, model__init_args=given)
    assert spec.parameters("baseline", {}) == {"temperature_init": 1.0, "normaliser": "sparsemax"}
    assert spec.parameters("search", {"temperature_init": 2.0}) == {
        "temperature_init": 2.0,
        "normaliser": "sparsemax",
    }
