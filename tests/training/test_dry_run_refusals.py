"""Studies whose metric or ranges would mislead are refused in the dry run."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.training.dry_run import dry_run
from tempopt.training.messages import Evaluation
from tempopt.training.run import LightningRun

TEST = Evaluation(name="test", on="test")
BACKBONE = {"layers": ["backbone.*"]}


@pytest.fixture
def word_request(request_for: Any) -> Any:
    def make(module: str, **fields: Any) -> Any:
        options = {
            "attach": BACKBONE,
            "data_class": "unusual_modules.WordData",
            "evaluations": [TEST],
            **fields,
        }
        return request_for(f"unusual_modules.{module}", **options)

    return make


@pytest.mark.parametrize("init", [{}, {"both": True}, {"counts": True}, {"counts": True, "both": True}])
def test_a_metric_of_other_modules_than_the_tempered_ones_is_refused(
    word_request: Any, listener: Any, init: dict[str, Any]
) -> None:
    with pytest.raises(SpecError, match='"val_loss" does not change with the temp.*EMAWeightAveraging'):
        dry_run(word_request("AveragingNet", init=init), listener())


@pytest.mark.parametrize("module", ["AveragingNet", "Net"])
def test_a_metric_of_the_tempered_modules_is_taken(word_request: Any, listener: Any, module: str) -> None:
    init = {"averages": False, "counts": True} if module == "AveragingNet" else {}
    average = "lightning.pytorch.callbacks.EMAWeightAveraging"
    trainer = {} if init else {"callbacks": [{"class_path": average}]}
    assert dry_run(word_request(module, init=init, trainer=trainer), listener()).state == "complete"


@pytest.mark.parametrize(
    ("module", "init"),
    [("BestNet", {"is_worst": False}), ("BestNet", {"is_worst": True}), ("RunningMeanNet", {})],
)
def test_a_metric_of_all_validations_so_far_is_refused(
    word_request: Any, listener: Any, module: str, init: dict[str, Any]
) -> None:
    with pytest.raises(SpecError, match=r"study\.metric: .*best.* so far.* metric of one validation"):
        dry_run(word_request(module, init=init), listener())


@pytest.mark.parametrize("index", [0, 1])
def test_a_metric_of_one_of_two_validation_loaders_is_that_of_the_test_loader(
    word_request: Any, listener: Any, index: int
) -> None:
    metric = f"val_loss/dataloader_idx_{index}"
    evaluations = [Evaluation(name="test", on="test", guards=["val_loss/dataloader_idx_0"])]
    data_class = "unusual_modules.TwoLoaderData"
    request = word_request("TwoLoaderNet", metric=metric, evaluations=evaluations, data_class=data_class)
    assert dry_run(request, listener()).state == "complete"
    finished = LightningRun(request, listener()).execute()
    assert finished.measurements["test"] == finished.metrics["test"]["val_loss"]
    assert finished.measurements["validate"] == finished.reports[-1][1]


def test_a_metric_without_the_number_of_a_loader_is_refused_with_the_names(
    word_request: Any, listener: Any
) -> None:
    with pytest.raises(SpecError, match="Known: val_loss/dataloader_idx_0, val_loss/dataloader_idx_1"):
        dry_run(word_request("TwoLoaderNet", data_class="unusual_modules.TwoLoaderData"), listener())


@pytest.mark.parametrize(
    ("bounds", "values", "message"),
    [
        ("forward", [0.01, 1.0], "at 0.01 the loss is the same as at 0.0125"),
        ("forward", [1.0, 100.0], "at 100 the loss is the same as at 80"),
        ("place", [0.01, 1.0], "at 0.01 the loss is the same as at 0.0125"),
    ],
)
def test_bounds_of_the_module_within_a_range_are_found(
    word_request: Any, listener: Any, bounds: str, values: list[float], message: str
) -> None:
    request = word_request(
        "ScaledNet",
        attach=None,
        init={"bounds": bounds},
        values={"scale": {"value": "tau"}},
        parameters={"scale.temperature_init": values[-1]},
        space={"scale.temperature_init": values},
    )
    with pytest.raises(SpecError, match=message):
        dry_run(request, listener())


@pytest.mark.parametrize("bounds", ["none", "forward", "place"])
def test_a_range_within_the_bounds_is_taken(word_request: Any, listener: Any, bounds: str) -> None:
    request = word_request(
        "ScaledNet",
        attach=None,
        init={"bounds": bounds},
        values={"scale": {"value": "tau"}},
        parameters={"scale.temperature_init": 5.0},
        space={"scale.temperature_init": [0.2, 5.0]},
    )
    assert dry_run(request, listener()).state == "complete"
