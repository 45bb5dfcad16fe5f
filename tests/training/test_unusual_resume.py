"""A run that is resumed trains what it would have trained, or is known to start again."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.training.dry_run import dry_run
from tempopt.training.messages import Evaluation, Started
from tempopt.training.run import LightningRun

pytestmark = pytest.mark.filterwarnings("ignore:Found .* in eval mode")

PARAMETERS = {"temperature_init": 2.0, "temperature_final": 0.5, "schedule": "linear"}
EPOCHS = {"max_steps": -1, "max_epochs": 4, "val_check_interval": 1.0, "check_val_every_n_epoch": 1}
CALLBACKS = "lightning.pytorch.callbacks."
REMEMBERING = {"class_path": "unusual_modules.Remembering"}
FROM_SAMPLERS = "unusual_modules.SamplerData"


@pytest.fixture
def epochs_request(request_for: Any) -> Any:
    """Return a function that makes a request of four epochs, with a checkpoint at each batch."""

    def make(module: str = "Net", *callbacks: Any, **fields: Any) -> Any:
        options = {"attach": {"layers": "auto"}, "data_class": "unusual_modules.WordData", **fields}
        return request_for(
            f"unusual_modules.{module}",
            trainer={**EPOCHS, "callbacks": list(callbacks)},
            parameters=PARAMETERS,
            evaluations=[Evaluation(name="test", on="test")],
            checkpoint_every=0.0,
            **options,
        )

    return make


@pytest.mark.parametrize(
    ("module", "callbacks", "fields", "reason"),
    [
        (
            "Net",
            [{**REMEMBERING, "init_args": {"opaque": True}}],
            {},
            r"cannot be read as data \(it holds a unusual_modules.Opaque\)",
        ),
        ("CountingNet", [], {}, "ends with other weights .* keeps a state that no checkpoint holds"),
        ("UnsteadyNet", [], {}, 'reports .* for "val_loss", .* keeps a state that no checkpoint holds'),
        ("Net", [], {"data_class": FROM_SAMPLERS, "data": {"kind": "noise"}}, "a dataset or a sampler"),
        ("Net", [], {"data_class": FROM_SAMPLERS, "data": {"kind": "counter"}}, "a dataset or a sampler"),
        ("Net", [], {"data_class": FROM_SAMPLERS, "data": {"kind": "unseeded"}}, "a dataset or a sampler"),
        pytest.param(
            "Net",
            [],
            {"data_class": FROM_SAMPLERS, "data": {"kind": "noise", "workers": 2}},
            "a dataset or a sampler",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_run_that_cannot_be_resumed_is_named_in_the_dry_run_and_starts_again(
    epochs_request: Any,
    listener: Any,
    tmp_path: Path,
    module: str,
    callbacks: list[Any],
    fields: Any,
    reason: str,
) -> None:
    request = epochs_request(module, *callbacks, **fields)
    not_resumed = dry_run(request, listener()).not_resumed
    assert not_resumed is not None
    assert re.search(reason, not_resumed)
    program = dataclasses.replace(request.program, not_resumed=not_resumed)
    request = dataclasses.replace(request, program=program, checkpoints=str(tmp_path))
    killed_channel, channel = listener(die_at=6), listener()
    with pytest.raises(SystemExit):
        LightningRun(request, killed_channel).execute()
    assert killed_channel.saved == []
    LightningRun(dataclasses.replace(request, attempt=2), channel).execute()
    (started,) = channel.messages_of(Started)
    assert started.step == 0
    assert started.notes == [f"A resumed run starts again from its first step: {not_resumed}."]


def test_a_checkpoint_that_turns_out_unreadable_is_named_and_no_more_are_written(
    epochs_request: Any, listener: Any, tmp_path: Path
) -> None:
    callback = {**REMEMBERING, "init_args": {"opaque": True}}
    channel = listener()
    finished = LightningRun(epochs_request("Net", callback, checkpoints=str(tmp_path)), channel).execute()
    assert (finished.state, channel.saved, list(tmp_path.iterdir())) == ("complete", [], [])
    (note,) = finished.notes
    assert "starts again from its first step" in note
    assert "\x1b" not in note


def test_data_that_are_fewer_than_they_say_are_refused(epochs_request: Any, listener: Any) -> None:
    with pytest.raises(SpecError, match="says that it has 4 batches, and has 3"):
        dry_run(epochs_request(data_class="unusual_modules.MiscountedData"), listener())
