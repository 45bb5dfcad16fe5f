"""What changes nothing on the model at hand is refused before a search spends a dimension on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tempopt import attach
from tempopt.errors import SpecError
from tempopt.temperature import NEUTRAL
from tempopt.training import dry_run as training_dry_run
from tempopt.training.messages import Evaluation

TEST = [Evaluation(name="test", on="test")]
RATIOS = [0.25, 4.0]
ON_STOCK = {"module": "Stock", "attach": {"layers": "auto"}}


def dry_run(request_for: Any, listener: Any, space: dict[str, list[Any]], **options: Any) -> str:
    module = options.pop("module", "Toy")
    sampled = {name: values[-1] for name, values in space.items()}
    request = request_for(
        module, task="dry_run", evaluations=TEST, space=space, parameters=sampled, **options
    )
    state: str = training_dry_run.dry_run(request, listener()).state
    return state


def test_a_pattern_over_one_layer_is_refused(request_for: Any, listener: Any) -> None:
    space = {"layer_pattern": ["uniform", "linear"], "layer_ratio": RATIOS}
    message = r'layer_pattern: "linear" changes nothing.*one tempered layer, "layer 0".*and layer_ratio out'
    with pytest.raises(SpecError, match=message):
        dry_run(request_for, listener, space)


def test_a_ratio_under_a_pattern_that_is_set_is_refused(request_for: Any, listener: Any) -> None:
    init = {"layer_pattern": "exp"}
    with pytest.raises(SpecError, match='search.layer_ratio: "exp" changes nothing'):
        dry_run(request_for, listener, {"layer_ratio": RATIOS}, init=init)
    # what is not searched takes no dimension
    assert dry_run(request_for, listener, {"lr": [0.1]}, init=init) == "complete"


def test_on_two_layers_u_is_flat(request_for: Any, listener: Any) -> None:
    space = {"layer_pattern": ["uniform", "linear", "u", "exp"], "layer_ratio": RATIOS}
    with pytest.raises(SpecError, match=r'"u" changes nothing.*has 2 tempered layers.*Take "u" out\.'):
        dry_run(request_for, listener, space, **ON_STOCK)
    space["layer_pattern"] = ["uniform", "linear", "inverse_layer"]
    assert dry_run(request_for, listener, space, **ON_STOCK) == "complete"


NONE_LOG_N = {"length_scaling": ["none", "log_n"]}
TOP_K = {"normaliser": ["softmax", "top_k"]}
# The toy's queries see the four keys of each sample.
WITHOUT = {
    "log_n": (NONE_LOG_N, {"n0": 4.0}, 'length_scaling: "log_n" with n0=4 .*each query sees 4 keys'),
    "yarn": ({"length_scaling": ["yarn", "none"]}, {"n0": 8.0}, 'length_scaling: "yarn" with n0=8'),
    "n0": ({"n0": [4.0, 50.0]}, {"length_scaling": "clipped_log_n"}, "search.n0: .*n0=4 to 50 .*n0 below 4"),
    "top_k": ({**TOP_K, "top_k": [4, 9]}, {}, 'normaliser: "top_k" with top_k=4 or more'),
    "number": ({"top_k": [8, 16]}, {"normaliser": "top_k"}, "search.top_k: .*below 4"),
}
WITH = {
    "log_n": (NONE_LOG_N, {"n0": 5.0}),
    "n0": ({**NONE_LOG_N, "n0": [4.0, 9.0]}, {}),
    "yarn": ({"length_scaling": ["none", "yarn"]}, {"n0": 3.0}),
    "top_k": ({**TOP_K, "top_k": [3, 9]}, {}),
}


@pytest.mark.parametrize(("space", "init", "message"), WITHOUT.values(), ids=WITHOUT)
def test_what_the_number_of_keys_leaves_without_effect_is_refused(
    space: dict[str, list[Any]], init: dict[str, Any], message: str, request_for: Any, listener: Any
) -> None:
    with pytest.raises(SpecError, match=message):
        dry_run(request_for, listener, space, init=init)


@pytest.mark.parametrize(("space", "init"), WITH.values(), ids=WITH)
def test_what_has_an_effect_somewhere_in_its_range_is_searched(
    space: dict[str, list[Any]], init: dict[str, Any], request_for: Any, listener: Any
) -> None:
    assert dry_run(request_for, listener, space, init=init) == "complete"


# ---- models of transformers


def outputs(name: str, method: Any, plan: dict[str, Any]) -> Tensor:
    from family_modules import FamilyModule

    module = FamilyModule(name).eval()
    with torch.no_grad(), attach(module, {"temperature_init": 2.0, **plan}, method=method, example=None):
        model_outputs: Tensor = module.outputs().double()
    return model_outputs


ROWS, INTERFACE = "query_rows", "attention_interface"
LINEAR, ENDS = ({"layer_pattern": name, "layer_ratio": 4.0} for name in ("linear", "u"))
# What changes nothing, and what is like it and does.
REAL = [
    ("Albert", ROWS, LINEAR, "one tempered layer"),
    ("Bert", ROWS, ENDS, "2 tempered layers"),
    ("Llama", INTERFACE, ENDS, "2 tempered layers"),
    ("Llama", INTERFACE, {"length_scaling": "clipped_log_n", "n0": 64.0}, "its factor is 1"),
    ("Qwen3", INTERFACE, {"normaliser": "top_k", "top_k": 64}, "the same as softmax"),
    ("Bert", ROWS, LINEAR, None),
    ("Llama", INTERFACE, {"length_scaling": "clipped_log_n", "n0": 2.0}, None),
    ("Qwen3", INTERFACE, {"normaliser": "top_k", "top_k": 2}, None),
]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "method", "plan", "message"), REAL)
def test_what_is_refused_on_a_real_model_leaves_its_outputs_as_they_are(
    name: str, method: str, plan: dict[str, Any], message: str | None, request_for: Any, listener: Any
) -> None:
    pytest.importorskip("transformers", reason="NOT TESTED: models of transformers.")
    request = request_for(task="dry_run")
    program = replace(
        request.program,
        model={"class_path": "family_modules.FamilyModule", "init_args": {"family": name}},
        data=None,
        trainer={"max_steps": 2, "accelerator": "cpu"},
        attach={"layers": "auto", "method": method},
    )
    space = {key: [NEUTRAL[key], v] if isinstance(v, str) else [v] for key, v in plan.items()}
    request = replace(request, program=program, space=space, parameters=plan)
    moved = float((outputs(name, method, plan) - outputs(name, method, {})).abs().max())
    if message is None:
        assert moved > 1e-3
        assert training_dry_run.dry_run(request, listener()).state == "complete"
        return
    # other normalisers are computed otherwise, so up to rounding
    assert moved <= (1e-5 if "top_k" in plan else 0.0)
    with pytest.raises(SpecError, match=message):
        training_dry_run.dry_run(request, listener())
