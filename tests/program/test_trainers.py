"""Programs whose training is that of a package: ``.fit()``, the Trainer of Hugging Face, torchrun.

The code is that of docs/programs.md, between what imports and data a script has besides.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import tempopt
from tempopt import cli

PAGE = Path(__file__).parents[2] / "docs" / "programs.md"

# in the form of neuralforecast 3.3: a LightningModule that hands further arguments on to its Trainer
NEURALFORECAST = """
import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class PatchTST(pl.LightningModule):
    def __init__(self, h, input_size, max_steps=20, random_seed=1, callbacks=None):
        super().__init__()
        pl.seed_everything(random_seed, verbose=False)
        self.h, self.input_size, self.max_steps, self.callbacks = h, input_size, max_steps, callbacks
        self.embed, self.head = nn.Linear(1, 8), nn.Linear(8, h)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, values):
        embedded = self.embed(values[..., None])
        return self.head(self.attention(embedded, embedded, embedded)[0][:, -1])

    def training_step(self, batch, batch_idx):
        return (self(batch[0]) - batch[1]).abs().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class NeuralForecast:
    def __init__(self, models, freq):
        (self.model,) = models

    def cross_validation(self, series, n_windows):
        model, values = self.model, torch.tensor(series["y"].to_numpy(), dtype=torch.float32)
        windows = values.unfold(0, model.input_size + model.h, 1)
        inputs, targets = windows[:, : model.input_size], windows[:, model.input_size :]
        loader = DataLoader(TensorDataset(inputs[:-n_windows], targets[:-n_windows]), 16, shuffle=True)
        pl.Trainer(
            max_steps=model.max_steps, callbacks=model.callbacks, accelerator="cpu", logger=False,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        ).fit(model, loader)
        with torch.no_grad():
            forecasts = model.eval()(inputs[-n_windows:])
        return pd.DataFrame({"PatchTST": forecasts.flatten(), "y": targets[-n_windows:].flatten()})
"""
FORECAST = """
import numpy as np
import pandas as pd
from neuralforecast import NeuralForecast, PatchTST

import tempopt

series = pd.DataFrame({"y": np.sin(np.arange(120) / 5)})

"""
HUGGING = """
import torch
from transformers import BertConfig, BertForSequenceClassification, set_seed
from transformers import Trainer, TrainerCallback, TrainingArguments

import tempopt

generator = torch.Generator().manual_seed(0)
items = [
    {"input_ids": ids, "labels": ids[0] % 2} for ids in torch.randint(20, (64, 6), generator=generator)
]


def make_model():
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    # logits that a temperature tells apart
    return BertForSequenceClassification(BertConfig(vocab_size=20, initializer_range=0.5, **sizes))

"""
HUGGING_END = """
arguments = TrainingArguments(
    output_dir=run.folder, max_steps=8, eval_strategy="steps", eval_steps=4, seed=run.seed, report_to=[],
    use_cpu=True, disable_tqdm=True, save_strategy="no",
)
Trainer(model, arguments, train_dataset=items, eval_dataset=items, callbacks=[RunCallback()]).train()
"""
LOOP = """
import sys

import torch
from torch import distributed, nn

seed, lr = int(sys.argv[1]), float(sys.argv[2])
distributed.init_process_group("gloo")
torch.manual_seed(seed)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
torch.manual_seed(seed + distributed.get_rank())
for _ in range(20):
    items = torch.randn(16, 8)
    loss = (model(items)[:, 0] - items.sum(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if distributed.get_rank() == 0:
    print("loss", float(loss))
distributed.destroy_process_group()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def block(title: str) -> str:
    """Return the code of that title on the page."""
    match = re.search(rf'```python title="{title}"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert match is not None
    return match[1]


def check_that_a_temperature_acts(program: dict[str, Any]) -> None:
    """Compare two temperatures, and one of them twice with another parameter that nothing reads."""
    spec = {"study": {"name": "mine", "metric": "loss", "direction": "minimize"}, "program": program}
    sets = {
        "one": {"temperature_init": 1.0, "unread": 1},
        "again": {"temperature_init": 1.0, "unread": 2},
        "hot": {"temperature_init": 50.0, "unread": 1},
    }
    comparison = tempopt.compare(spec, sets, pairs=2, workers=1, progress=False).comparison
    assert comparison is not None
    again, hot = comparison.variants
    # a seed gives one training, and another temperature another one
    assert again.answer is not None and again.answer.paired.gain == 0
    assert hot.answer is not None and hot.answer.paired.gain != 0


def test_a_temperature_reaches_the_trainer_of_a_package_with_fit(folder: Path) -> None:
    (folder / "neuralforecast.py").write_text(NEURALFORECAST, encoding="utf-8")
    (folder / "forecast.py").write_text(FORECAST + block("forecast.py"), encoding="utf-8")
    check_that_a_temperature_acts({"function": "forecast:train"})


@pytest.mark.long
def test_a_temperature_reaches_the_trainer_of_hugging_face(folder: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate, which .ci/run installs apart")
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(Path(accelerate.__file__).parents[1])])
    (folder / "hugging.py").write_text(HUGGING + block("hugging.py") + HUGGING_END, encoding="utf-8")
    check_that_a_temperature_acts({"command": f"SEED={{seed}} PYTHONPATH={path} python hugging.py"})


@pytest.mark.long
def test_two_processes_of_torchrun_are_one_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "loop.py").write_text(LOOP, encoding="utf-8")
    command = "torchrun --standalone --nproc-per-node 2 loop.py {seed} {lr}"
    words = ["--vary", "lr=0.001,0.1", "--metric", "loss", "--direction", "minimize", "--pairs", "2"]
    code = cli.main(["compare", "--command", command, *words, "--workers", "1", "--no-report", "--json"])
    assert code in (0, 3)
    (variant,) = json.loads(capsys.readouterr().out)["comparison"]["variants"]
    # twenty steps of a hundredth of the rate have hardly left the first weights
    assert variant["gain"] > 1


def test_a_run_whose_parameters_are_not_all_temperatures_is_attached() -> None:
    run = tempopt.current_run(params={"temperature_init": 2.0, "lr": 0.1})
    assert tempopt.AttachCallback(run.params).parameters == {"temperature_init": 2.0}
    with pytest.raises(tempopt.TempoptError, match="lr"):
        tempopt.attach(torch.nn.MultiheadAttention(4, 1), {"temperature_init": 2.0, "lr": 0.1})
