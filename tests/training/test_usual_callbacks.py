"""Callbacks that usual configurations have are left out of runs, work in them, or are refused with advice."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.spec.study_spec import StudySpec
from tempopt.training.dry_run import dry_run
from tempopt.training.messages import Evaluation
from tempopt.training.run import LightningRun

CALLBACKS = "lightning.pytorch.callbacks."


def entry(name: str, **init_args: Any) -> dict[str, Any]:
    return {"class_path": name if "." in name else CALLBACKS + name, "init_args": init_args}


@pytest.mark.parametrize(
    "name",
    [
        *("RichProgressBar", "TQDMProgressBar", "RichModelSummary", "LearningRateMonitor"),
        *("DeviceStatsMonitor", "unusual_modules.Bar"),
    ],
)
def test_a_callback_that_shows_something_is_left_out(request_for: Any, listener: Any, name: str) -> None:
    request = request_for(trainer={"callbacks": [entry(name)]}, evaluations=[Evaluation(name="a", on="test")])
    assert dry_run(request, listener()).state == "complete"
    plain_run = LightningRun(request_for(), listener())
    assert LightningRun(request, listener()).execute().reports == plain_run.execute().reports


@pytest.mark.parametrize("name", ["RichProgressBar", "DeviceStatsMonitor"])
def test_a_callback_that_is_left_out_is_noted(name: str) -> None:
    spec = StudySpec.parse(
        {
            "study": {"name": "usual", "metric": "val_loss", "direction": "minimize"},
            "model": {"class_path": "lightning_modules.DigitsViT"},
            "trainer": {"max_steps": 4, "callbacks": [entry(name)]},
            "search": {"temperature_init": {"low": 0.25, "high": 4}},
        },
        source="the spec",
    )
    (note,) = spec.notes
    assert f"{name} is left out" in note


@pytest.mark.parametrize(
    ("name", "init_args", "advice"),
    [
        ("LearningRateFinder", {"num_training_steps": 8}, "search the argument of the module"),
        ("BatchSizeFinder", {}, "data.batch_size"),
        ("Timer", {"duration": "00:00:00:02"}, "trainer.max_steps"),
        ("unusual_modules.ClockTimer", {}, "trainer.max_steps"),
    ],
)
def test_a_callback_that_makes_runs_differ_is_refused_with_advice(
    request_for: Any, listener: Any, name: str, init_args: dict[str, Any], advice: str
) -> None:
    with pytest.raises(SpecError, match=rf"trainer.callbacks: {name.rpartition('.')[2]} .*{advice}"):
        dry_run(request_for(trainer={"callbacks": [entry(name, **init_args)]}), listener())


def test_callbacks_of_the_module_are_left_out_and_refused_as_well(request_for: Any, listener: Any) -> None:
    options = {"attach": {"layers": "auto"}, "data_class": "unusual_modules.WordData"}
    request = request_for("unusual_modules.ShowingNet", **options)
    assert LightningRun(request, listener()).execute().state == "complete"
    request = request_for("unusual_modules.ShowingNet", init={"clock": True}, **options)
    with pytest.raises(SpecError, match="ClockTimer ends a run by the clock"):
        LightningRun(request, listener()).execute()
