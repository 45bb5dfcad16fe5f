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
EXP = {"init": {"layer_pattern": "exp"}}
ON_STOCK = {"module": "Stock", "attach": {"layers": "auto"}}


def dry_run(request_for: Any, listener: Any, space: dict[str, list[Any]], **options: Any) -> str:
    module = options.pop("module", "Toy")
    sampled = {name: values[-1] for name, values in space.items()}
    request = request_for(
        module, task="dry_run", evaluations=TEST, space=space, parameters=sampled, **options
    )
    state: str = training_dry_run.dry_run(request, listener()).state
    return state


NONE_LOG_N = {"length_scaling": ["none", "log_n"]}
TOP_K = {"normaliser": ["softmax", "top_k"]}
# The toy's queries see the four keys of each sample.
WITHOUT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "one layer": (
        {"layer_pattern": ["uniform", "linear"], "layer_ratio": RATIOS},
        {},
        r'layer_pattern: "linear" changes nothing.*one tempered layer, "layer 0".*and layer_ratio out',
    ),
    "ratio": ({"layer_ratio": RATIOS}, EXP, 'search.layer_ratio: "exp" changes nothing'),
    "u of two layers": (
        {"layer_pattern": ["uniform", "linear", "u", "exp"], "layer_ratio": RATIOS},
        ON_STOCK,
        r'"u" changes nothing.*has 2 tempered layers.*Take "u" out\.',
    ),
    "log_n": (
        NONE_LOG_N,
        {"init": {"n0": 4.0}},
        'length_scaling: "log_n" with n0=4 .*each query sees 4 keys',
    ),
    "yarn": (
        {"length_scaling": ["yarn", "none"]},
        {"init": {"n0": 8.0}},
        'length_scaling: "yarn" with n0=8',
    ),
    "n0": (
        {"n0": [4.0, 50.0]},
        {"init": {"length_scaling": "clipped_log_n"}},
        "search.n0: .*n0=4 to 50 .*n0 below 4",
    ),
    "top_k": ({**TOP_K, "top_k": [4, 9]}, {}, 'normaliser: "top_k" with top_k=4 or more'),
    "number": ({"top_k": [8, 16]}, {"init": {"normaliser": "top_k"}}, "search.top_k: .*below 4"),
}
WITH: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # what is not searched takes no dimension
    "fixed pattern": ({"lr": [0.1]}, EXP),
    "two layers": (
        {"layer_pattern": ["uniform", "linear", "inverse_layer"], "layer_ratio": RATIOS},
        ON_STOCK,
    ),
    "log_n": (NONE_LOG_N, {"init": {"n0": 5.0}}),
    "n0": ({**NONE_LOG_N, "n0": [4.0, 9.0]}, {}),
    "yarn": ({"length_scaling": ["none", "yarn"]}, {"init": {"n0": 3.0}}),
    "top_k": ({**TOP_K, "top_k": [3, 9]}, {}),
}


@pytest.mark.parametrize(("space", "options", "message"), WITHOUT.values(), ids=WITHOUT)
def test_what_has_no_effect_on_the_module_is_refused(
    space: dict[str, list[Any]], options: dict[str, Any], message: str, request_for: Any, listener: Any
) -> None:
    with pytest.raises(SpecError, match=message):
        dry_run(request_for, listener, space, **options)


@pytest.mark.parametrize(("space", "options"), WITH.values(), ids=WITH)
def test_what_has_an_effect_somewhere_in_its_range_is_searched(
    space: dict[str, list[Any]], options: dict[str, Any], request_for: Any, listener: Any
) -> None:
    assert dry_run(request_for, listener, space, **options) == "complete"


# ---- models of transformers


def outputs(name: str, plan: dict[str, Any]) -> Tensor:
    from family_modules import FamilyModule

    module = FamilyModule(name).eval()
    with torch.no_grad(), attach(module, {"temperature_init": 2.0, **plan}, example=None):
        model_outputs: Tensor = module.outputs().double()
    return model_outputs


LINEAR, ENDS = ({"layer_pattern": name, "layer_ratio": 4.0} for name in ("linear", "u"))
# What changes nothing, and what is like it and does.
REAL = [
    ("Albert", LINEAR, "one tempered layer"),
    ("Bert", ENDS, "2 tempered layers"),
    ("Llama", ENDS, "2 tempered layers"),
    ("Llama", {"length_scaling": "clipped_log_n", "n0": 64.0}, "its factor is 1"),
    ("Qwen3", {"normaliser": "top_k", "top_k": 64}, "the same as softmax"),
    ("Bert", LINEAR, None),
    ("Llama", {"length_scaling": "clipped_log_n", "n0": 2.0}, None),
    ("Qwen3", {"normaliser": "top_k", "top_k": 2}, None),
]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "plan", "message"), REAL)
def test_what_is_refused_on_a_real_model_leaves_its_outputs_as_they_are(
    name: str, plan: dict[str, Any], message: str | None, request_for: Any, listener: Any
) -> None:
    pytest.importorskip("transformers", reason="NOT TESTED: models of transformers.")
    request = request_for(task="dry_run")
    program = replace(
        request.program,
        model={"class_path": "family_modules.FamilyModule", "init_args": {"family": name}},
        data=None,
        trainer={"max_steps": 2, "accelerator": "cpu"},
        attach={"layers": "auto"},
    )
    space = {key: [NEUTRAL[key], v] if isinstance(v, str) else [v] for key, v in plan.items()}
    request = replace(request, program=program, space=space, parameters=plan)
    moved = float((outputs(name, plan) - outputs(name, {})).abs().max())
    if message is None:
        assert moved > 1e-3
        assert training_dry_run.dry_run(request, listener()).state == "complete"
        return
    # other normalisers are computed otherwise, so up to rounding
    assert moved <= (1e-5 if "top_k" in plan else 0.0)
    with pytest.raises(SpecError, match=message):
        training_dry_run.dry_run(request, listener())
