"""Constructors of usual forms work from a spec, or are refused with advice that works."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import UsageError
from tempopt.training.describe import inspect_module
from tempopt.training.dry_run import dry_run

LAYER_ARGS = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "batch_first": True}
LAYER = {"class_path": "torch.nn.TransformerEncoderLayer", "init_args": LAYER_ARGS}
GELU_LAYER = {**LAYER, "init_args": {**LAYER_ARGS, "activation": "gelu"}}
SGD = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}


@pytest.fixture
def form_request(request_for: Any) -> Any:
    def make(module: str, **fields: Any) -> Any:
        data_class = "unusual_modules.WordData"
        options = {"attach": {"layers": "auto"}, "data_class": data_class, **fields}
        return request_for(f"argument_forms.{module}", **options)

    return make


@pytest.mark.parametrize(
    ("module", "init"),
    [
        ("ConfiguredNet", {}),
        ("PoppingNet", {"width": 3, "depth": 2, "lr": 0.02}),
        ("NamespaceNet", {"args": {"lr": 0.02}}),
        ("LayerNet", {"layer": LAYER}),
        ("LayerNet", {"layer": GELU_LAYER}),
    ],
)
def test_a_form_of_constructor_works(form_request: Any, listener: Any, module: str, init: Any) -> None:
    assert dry_run(form_request(module, init=init), listener()).state == "complete"


@pytest.mark.parametrize(
    ("module", "init", "advice"),
    [
        ("SetUpNet", {}, "make them in __init__ or in configure_model"),
        ("PoppingNet", {"width": 3, "wdith": 4}, 'Unknown argument .*"wdith"'),
        ("UntypedNet", {"hparams": {"lr": 0.02}}, "Annotate the argument as argparse.Namespace"),
        ("OptimizerNet", {"optimizer": SGD}, r"optimizer: Callable\[\[Iterable\], torch.optim.Optimizer\]"),
        ("OptimizerNet", {"optimizer": "torch.optim.SGD"}, r"Callable\[\[Iterable\]"),
    ],
)
def test_another_form_is_refused_with_advice(
    form_request: Any, listener: Any, module: str, init: Any, advice: str
) -> None:
    with pytest.raises(UsageError, match=advice):
        dry_run(form_request(module, init=init), listener())


@pytest.mark.usefixtures("request_for")
def test_a_metric_that_is_logged_by_the_mode_is_found() -> None:
    assert inspect_module("argument_forms.ModeNet").metrics == ["val_loss"]
