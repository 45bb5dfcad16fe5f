"""Usual trainings are resumed exactly wherever they were interrupted, or are known to start again."""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path
from typing import Any

import pytest

from tempopt.training.dry_run import dry_run
from tempopt.training.messages import Evaluation, decode, encode
from tests.tiers import long_but
from tests.training.shared_trainings import check_resume

pytestmark = [
    pytest.mark.filterwarnings("ignore:Found .* in eval mode"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists"),
]

EPOCHS = {"max_steps": -1, "max_epochs": 4, "val_check_interval": 1.0, "check_val_every_n_epoch": 1}
STEPS = {"max_steps": 16, "max_epochs": -1, "val_check_interval": 4, "check_val_every_n_epoch": None}
PARAMETERS = {"temperature_init": 2.0, "temperature_final": 0.5, "schedule": "linear"}


def callback(name: str, **init_args: Any) -> dict[str, Any]:
    path = name if "." in name else f"lightning.pytorch.callbacks.{name}"
    return {"trainer": {"callbacks": [{"class_path": path, "init_args": init_args}]}}


def rate(name: str, **fields: Any) -> dict[str, Any]:
    return {"module": "resume_modules.RateNet", "init": {"rate": name}, **fields}


def data(kind: str, workers: int = 0, **fields: Any) -> dict[str, Any]:
    return {"data": {"kind": kind, "workers": workers}, **fields}


CASES: dict[str, dict[str, Any]] = {
    "StepLR": rate("StepLR"),
    "OneCycleLR": {"module": "unusual_modules.AskingNet"},
    "ReduceLROnPlateau": rate("ReduceLROnPlateau"),
    "ReduceLROnPlateau of a training mean": rate("train_loss"),
    "LambdaLR with NumPy": {"module": "unusual_modules.NumpyNet"},
    "number of steps that setup asks for": {"module": "unusual_modules.EarlyAskingNet"},
    "CosineAnnealingWarmRestarts": rate("CosineAnnealingWarmRestarts"),
    "LambdaLR with a state of its own": rate("closure"),
    "warm-up by hand": {"module": "resume_modules.WarmedNet"},
    "parts that hooks make": {"module": "resume_modules.HookedNet"},
    "shuffle": {},
    "batches that a hook prepares": data("mapping"),
    "epochs that grow": {**data("growing"), "trainer": {"reload_dataloaders_every_n_epochs": 1}},
    "bf16-mixed": {"trainer": {"precision": "bf16-mixed"}},
    "bf16-true": {"trainer": {"precision": "bf16-true"}},
    "64-true": {"trainer": {"precision": "64-true"}},
    "WeightedRandomSampler": data("weighted"),
    "sampler with a torch.Generator": data("torch generator"),
    "sampler with a NumPy generator": {
        "data_class": "unusual_modules.SamplerData",
        "data": {"kind": "sampler"},
    },
    "batch sampler with a state": {"data_class": "unusual_modules.SamplerData", "data": {"kind": "batches"}},
    "IterableDataset": data("stream", trainer=STEPS),
    "IterableDataset, 2 workers": data("stream", 2, trainer=STEPS),
    "dict of loaders": {"module": "resume_modules.PairNet", **data("dict")},
    "CombinedLoader min_size": {"module": "resume_modules.PairNet", **data("min_size")},
    "CombinedLoader max_size_cycle": {"module": "resume_modules.PairNet", **data("max_size_cycle")},
    "accumulate_grad_batches": {"trainer": {"accumulate_grad_batches": 3}},
    "GradientAccumulationScheduler": callback("GradientAccumulationScheduler", scheduling={1: 2}),
    "gradient_clip_val": {"trainer": {"gradient_clip_val": 0.1}},
    "StochasticWeightAveraging": callback("StochasticWeightAveraging", swa_lrs=0.02, swa_epoch_start=2),
    "StochasticWeightAveraging of a batch norm": {
        "module": "unusual_modules.NormedNet",
        **callback("StochasticWeightAveraging", swa_lrs=0.02, swa_epoch_start=2, annealing_epochs=3),
    },
    "EMAWeightAveraging": callback("EMAWeightAveraging", decay=0.5),
    "average in the state of a callback": callback("resume_modules.OwnAverage", holds=True),
    "average in an attribute of a callback": callback("resume_modules.OwnAverage"),
    "average of later epochs": callback("resume_modules.OwnAverage", start=2),
    "average in a module of a callback": callback("resume_modules.OwnAverage", copies=True),
    "average in a module, of later epochs": callback("resume_modules.OwnAverage", copies=True, start=2),
    "weight that an epoch begins with": callback("resume_modules.EpochWeight"),
    "EarlyStopping": callback("EarlyStopping", monitor="val_loss", patience=2, min_delta=0.5),
    "EarlyStopping by a training mean": rate(
        "StepLR",
        **callback(
            "EarlyStopping", monitor="train_loss", patience=1, min_delta=0.03, check_on_train_epoch_end=True
        ),
    ),
    "ModelCheckpoint": callback("ModelCheckpoint", monitor="val_loss", save_top_k=2),
    "BackboneFinetuning": callback("BackboneFinetuning", unfreeze_backbone_at_epoch=1),
    "BackboneFinetuning of a batch norm": {
        "module": "unusual_modules.NormedNet",
        **callback("BackboneFinetuning", unfreeze_backbone_at_epoch=1),
    },
    "state of a callback of several types": callback("unusual_modules.Remembering"),
    "freezing by hand": {"module": "unusual_modules.FreezingNet"},
    "unfreezing by hand": {"module": "unusual_modules.UnfreezingNet"},
    "two optimizers": {"module": "resume_modules.GanNet"},
    "hidden state in a buffer": {"module": "resume_modules.CarryingNet", "init": {"storage": "buffer"}},
    "hidden state in a buffer that is not saved": {
        "module": "resume_modules.CarryingNet",
        "init": {"storage": "temporary"},
    },
    "hidden state in an attribute": {
        "module": "resume_modules.CarryingNet",
        "init": {"storage": "attribute"},
    },
    "torch.Generator of the module": {"module": "resume_modules.NoisyNet"},
    "NumPy generator of the module": {"module": "resume_modules.NoisyNet", "init": {"kind": "numpy"}},
    "metrics that are reset when training begins": {"module": "resume_modules.TemplateNet"},
    "number that the module remembers": {"module": "resume_modules.WorstNet"},
    "2 workers": data("plain", 2),
    "persistent workers": data("persistent", 2),
    "reload_dataloaders_every_n_epochs": {
        **data("by epoch"),
        "trainer": {"reload_dataloaders_every_n_epochs": 1},
    },
    "val_check_interval": {"trainer": {"val_check_interval": 0.5}},
    "limit_train_batches": {"trainer": {"limit_train_batches": 0.75}},
}
FEW = {
    "LambdaLR with a state of its own",
    "parts that hooks make",
    "batches that a hook prepares",
    "epochs that grow",
    "bf16-mixed",
    "OneCycleLR",
    "batch sampler with a state",
    "StochasticWeightAveraging of a batch norm",
    "state of a callback of several types",
    "metrics that are reset when training begins",
}
STARTS_AGAIN = {
    "IterableDataset",
    "IterableDataset, 2 workers",
    "LambdaLR with a state of its own",
    "parts that hooks make",
}


@pytest.mark.filterwarnings("ignore:The training data do not know their position")
@pytest.mark.parametrize(
    ("fields", "is_resumed"),
    [long_but(name, FEW, case, name not in STARTS_AGAIN) for name, case in CASES.items()],
)
def test_a_usual_training_is_resumed_exactly_or_known_to_start_again(
    request_for: Any,
    listener: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    is_resumed: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"module": "unusual_modules.Net", "data_class": "resume_modules.LoaderData", **fields}
    made_request = request_for(
        **{**options, "trainer": {**EPOCHS, **fields.get("trainer", {})}},
        attach={"layers": "auto"},
        parameters=PARAMETERS,
        evaluations=[Evaluation(name="test", on="test")],
    )
    # as a worker receives it
    request: Any = decode(encode(made_request))
    not_resumed = dry_run(request, listener()).not_resumed
    assert (not_resumed is None) == is_resumed, not_resumed
    request = dataclasses.replace(
        request, program=dataclasses.replace(request.program, not_resumed=not_resumed)
    )
    first_step = listener(stop_at=0, keep=True)
    reference = check_resume(request, tmp_path / "first step", interrupted=first_step)[1]
    # behind the validation between two epochs, and within the last epoch
    check_resume(request, tmp_path / "between", die_at=reference.step // 2 + 1)
    within = listener(stop_at=reference.step - 2, keep=True)
    check_resume(request, tmp_path / "within", interrupted=within)
    # processes that load items end with their loaders, and Python would wait for them when it ends
    gc.collect()
