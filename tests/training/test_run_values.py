"""The value of a run is that of the weights that it ends with, and each report that of a validation."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.training.dry_run import dry_run
from tempopt.training.messages import Evaluation, Report
from tempopt.training.run import LightningRun

VALIDATE = Evaluation(name="validate", on="validate")
TEST = Evaluation(name="test", on="test")
EPOCHS = {"max_steps": -1, "max_epochs": 4, "val_check_interval": 1.0, "check_val_every_n_epoch": 1}
SWA = {
    "class_path": "lightning.pytorch.callbacks.StochasticWeightAveraging",
    "init_args": {"swa_lrs": 0.02, "swa_epoch_start": 2},
}
EMA = {"class_path": "lightning.pytorch.callbacks.EMAWeightAveraging", "init_args": {"decay": 0.5}}
ZEROING = {"class_path": "unusual_modules.HeadZeroing"}


@pytest.fixture
def word_request(request_for: Any) -> Any:
    """Return a function that makes a request of a training of four epochs."""

    def make(module: str = "Net", trainer: dict[str, Any] | None = None, **fields: Any) -> Any:
        options = {"attach": {"layers": "auto"}, "data_class": "unusual_modules.WordData", **fields}
        return request_for(f"unusual_modules.{module}", trainer={**EPOCHS, **(trainer or {})}, **options)

    return make


@pytest.mark.parametrize(
    ("module", "callbacks"),
    [("Net", [SWA]), ("BestRestoringNet", []), ("Net", [ZEROING]), ("Net", [EMA]), ("SpectralNet", [])],
    ids=["averaged", "restored", "changed by a callback", "averaged for validations, too", "complex"],
)
def test_the_value_of_a_run_is_that_of_the_weights_that_it_ends_with(
    word_request: Any, listener: Any, module: str, callbacks: list[Any]
) -> None:
    channel = listener()
    run = LightningRun(word_request(module, {"callbacks": callbacks}, evaluations=[TEST]), channel)
    finished = run.execute()
    value = run.evaluate(VALIDATE)["val_loss"]
    assert finished.measurements["validate"] == value == finished.reports[-1][1]
    assert channel.messages_of(Report)[-1].value == value
    assert [step for step, _ in finished.reports] == [4, 8, 12, 16]


def test_weights_that_stay_are_not_validated_again(word_request: Any, listener: Any) -> None:
    run = LightningRun(word_request(trainer={"callbacks": [EMA]}), listener())
    num_validations = []
    run.module.on_validation_end = lambda: num_validations.append(run.trainer.global_step)  # type: ignore
    run.execute()
    assert num_validations == [4, 8, 12, 16]


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("first", [1, 2])
def test_a_validation_that_does_not_log_the_metric_is_no_report(
    word_request: Any, listener: Any, first: int, trains: bool
) -> None:
    often = LightningRun(word_request(evaluations=[TEST]), listener()).execute()
    channel = listener()
    request = word_request("SparseNet", init={"first": first, "trains": trains}, evaluations=[TEST])
    sparse = LightningRun(request, channel).execute()
    assert sparse.reports == often.reports[first - 1 :: 2]
    assert sparse.measurements == often.measurements
    assert all(report.metrics["often"] == report.value for report in channel.messages_of(Report))
    assert dry_run(request, listener()).state == "complete"


def test_a_metric_that_evaluations_at_the_end_do_not_log_is_refused_in_the_dry_run(
    word_request: Any, listener: Any
) -> None:
    with pytest.raises(SpecError, match='Unknown metric "val_loss". Known: often'):
        dry_run(word_request("EpochwiseNet", evaluations=[TEST]), listener())
