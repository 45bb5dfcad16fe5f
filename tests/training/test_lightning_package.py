"""Modules, data and Trainers of pytorch_lightning train as those of lightning do, to the same bits."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import yaml
from torch.nn import functional as F

import tempopt
from tempopt.errors import SpecError
from tempopt.service.template import render_spec_template
from tempopt.training.build import check_space
from tempopt.training.describe import inspect_module
from tempopt.training.messages import Evaluation, RunLabel, RunRequest
from tempopt.training.run import LightningRun
from tests.toy_study import SMALL
from tests.training.package_modules import PLAttender, PLAttenderData
from tests.training.shared_trainings import assert_same_state, check_resume

PLAN = {"temperature_init": 4.0, "temperature_final": 0.5, "schedule": "linear"}
OPTIONS: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


def loss_written_out(model: Any, temperature: float) -> float:
    """Return the validation loss, its attention computed by hand from the weights."""
    items, labels = PLAttenderData().items(2).tensors
    attention = model.attention
    query, key, value = (
        F.linear(items, attention.in_proj_weight, attention.in_proj_bias).view(60, 4, 3, 2, 4).unbind(2)
    )
    logits = torch.einsum("bnhd,bmhd->bhnm", query, key) / (math.sqrt(4) * temperature)
    attended = torch.einsum("bhnm,bmhd->bnhd", logits.softmax(-1), value).reshape(60, 4, 8)
    return float(F.cross_entropy(model.head(attention.out_proj(attended).mean(1)), labels))


def test_the_callback_acts_in_a_trainer_of_the_other_package(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = PLAttender()
    callback = tempopt.AttachCallback(PLAN)
    trainer = pl.Trainer(max_epochs=2, callbacks=[callback], default_root_dir=tmp_path, **OPTIONS)
    trainer.fit(model, datamodule=PLAttenderData())
    validated = float(trainer.callback_metrics["val_loss"])
    model.eval()
    with torch.no_grad():
        assert validated == pytest.approx(loss_written_out(model, 0.5), rel=1e-5)
        assert validated != pytest.approx(loss_written_out(model, 1.0), rel=1e-3)
    # its checkpoint is of the model that was validated, and needs no callback
    path = trainer.checkpoint_callback.best_model_path  # type: ignore[union-attr]
    baked_model = PLAttender.load_from_checkpoint(path, weights_only=True).eval()
    with torch.no_grad():
        assert loss_written_out(baked_model, 1.0) == pytest.approx(validated, rel=1e-5)


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_copy_of_the_callback_acts_as_well(make_copy: Callable[[Any], Any]) -> None:
    model = PLAttender()
    callback = make_copy(tempopt.AttachCallback({"temperature_init": 2.0}))
    (metrics,) = pl.Trainer(callbacks=[callback], **OPTIONS).validate(
        model, datamodule=PLAttenderData(), verbose=False
    )
    with torch.no_grad():
        assert metrics["val_loss"] == pytest.approx(loss_written_out(model.eval(), 2.0), rel=1e-5)


def test_a_callback_for_entropy_control_acts_in_a_trainer_of_the_other_package() -> None:
    plan = {"temperature_init": 1.5, "entropy_control": "hold", "control_level": 0.4}
    callback = tempopt.AttachCallback(plan)
    trainer = pl.Trainer(max_epochs=2, callbacks=[callback], enable_checkpointing=False, **OPTIONS)
    trainer.fit(PLAttender(), datamodule=PLAttenderData())
    assert callback.attachment is not None
    assert callback.attachment.temperatures != (1.5,)


def make_request(request_for: Any, prefix: str, **fields: Any) -> RunRequest:
    """Return a request whose classes begin so, with a test at the end."""
    request: RunRequest = request_for(
        f"package_modules.{prefix}Attender",
        parameters=PLAN,
        attach={"layers": "auto"},
        evaluations=[Evaluation(name="test", on="test")],
        **fields,
    )
    data = {"class_path": f"package_modules.{prefix}AttenderData", "init_args": {}}
    return dataclasses.replace(request, program=dataclasses.replace(request.program, data=data))


@pytest.mark.parametrize("trainer", [{}, {"gradient_clip_val": 0.1, "accumulate_grad_batches": 2}])
def test_a_run_is_that_of_the_same_module_on_lightning(
    request_for: Any, listener: Any, trainer: dict[str, Any]
) -> None:
    runs = [
        LightningRun(make_request(request_for, prefix, trainer=trainer, observe=True), listener())
        for prefix in ("", "PL")
    ]
    on_lightning, on_other = (run.execute() for run in runs)
    for name in ("state", "reports", "measurements", "curves"):
        assert getattr(on_other, name) == getattr(on_lightning, name), name
    assert_same_state(runs[0].module, runs[1].module)
    assert type(runs[1].trainer) is pl.Trainer


def test_a_run_that_was_killed_resumes_to_the_same_bits(request_for: Any, tmp_path: Path) -> None:
    check_resume(make_request(request_for, "PL"), tmp_path)


def test_loggers_and_callbacks_of_the_other_package_serve_its_runs(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    saver = {
        "class_path": "pytorch_lightning.callbacks.ModelCheckpoint",
        "init_args": {"dirpath": f"{tmp_path}/mine", "save_last": True},
    }
    logger = {"class_path": "pytorch_lightning.loggers.CSVLogger", "init_args": {"save_dir": str(tmp_path)}}
    label = {"study": "s", "study_created_at": "now", "run": "search-1", "kind": "search", "arm": "search"}
    request = make_request(
        request_for,
        "PL",
        trainer={"callbacks": [saver], "logger": logger, "log_every_n_steps": 5},
        folder=str(tmp_path / "search-1"),
        label=RunLabel(**label),
    )
    LightningRun(request, listener()).execute()
    assert (tmp_path / "mine" / "search-1" / "last.ckpt").is_file()
    assert "temperature/0" in (tmp_path / "s" / "search-1" / "metrics.csv").read_text()


def test_data_of_one_package_and_a_module_of_the_other_are_refused(request_for: Any) -> None:
    request = make_request(request_for, "PL")
    mixed = dataclasses.replace(
        request.program, data={"class_path": "package_modules.AttenderData", "init_args": {}}
    )
    with pytest.raises(SpecError, match=r"built on the package lightning.pytorch.*Derive both"):
        check_space(mixed, {})


def test_init_writes_a_spec_of_which_a_search_reaches_a_verdict(
    request_for: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = yaml.safe_load(render_spec_template(inspect_module("package_modules.PLAttender")))
    assert (spec["study"]["metric"], spec["study"]["direction"]) == ("val_loss", "minimize")
    assert spec["model"]["class_path"] == "package_modules.PLAttender"
    assert spec["data"]["class_path"] == "package_modules.PLAttenderData"
    spec["study"] |= {**SMALL, "candidates": 1}
    spec["trainer"] = {"max_steps": 10, "accelerator": "cpu"}
    result = tempopt.search(spec, workers=1, progress=False)
    assert result.verdict is not None
    assert "from pytorch_lightning import Trainer" in result.export(winner=True, format="python")
