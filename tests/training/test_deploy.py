"""From a study to a checkpoint that a process without tempopt loads: the same outputs, the same metric."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from tempopt import AttachCallback, load_study, search
from tempopt.report.export import to_python, to_yaml

TRAINING_TESTS = Path(__file__).parent
REPOSITORY = TRAINING_TESTS.parents[1]
TRAINER = {"max_steps": 8, "accelerator": "cpu", "logger": False}
# Each kind of weights that can take a temperature.
TWELVE = (
    "GPT2",
    "Bert",
    "T5",
    "ViT",
    "Longformer global",
    "Bloom",
    "DeepseekV3",
    "Llama",
    "Qwen3",
    "Gemma3",
    "Phi3",
    "GPTNeoX",
)
# What bakes is certain to a thousandth of the way that the temperature takes an output; this is what is left.
RIGHT = 1e-4


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(TRAINING_TESTS))
    yield tmp_path
    for name in ("family_modules", "stock"):
        sys.modules.pop(name, None)


def without_tempopt(folder: Path, code: str) -> Any:
    """Run code in a process that has no tempopt, and return the JSON that it prints last."""
    blocked = "import sys\nsys.modules['tempopt'] = None\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", blocked + textwrap.dedent(code)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (folder, TRAINING_TESTS, REPOSITORY)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", TWELVE)
def test_a_family_that_an_exported_script_has_trained_is_the_same_without_tempopt(
    family: str, folder: Path, make_spec: Any, make_ticket: Any, result_of: Any, capsys: Any
) -> None:
    pytest.importorskip("transformers", reason="NOT TESTED: models of transformers.")
    sections = {
        "model": {"class_path": "family_modules.FamilyModule", "init_args": {"family": family}},
        "data": None,
        "trainer": TRAINER,
        "attach": {"layers": "auto"},
        "search": {
            "schedule": ["linear"],
            "temperature_init": {"low": 0.5, "high": 4.0},
            "temperature_final": {"low": 0.2, "high": 4.0},
        },
    }
    best_params = {"schedule": "linear", "temperature_init": 2.0, "temperature_final": 0.3}
    result = result_of(make_spec(sections), [make_ticket("search", 0, 0.5, parameters=best_params)])
    space: dict[str, Any] = {}
    exec(compile(to_python(result), "export", "exec"), space)
    module = space["model"].eval()
    (callback,) = [
        callback for callback in space["trainer"].callbacks if isinstance(callback, AttachCallback)
    ]
    assert set(callback.attachment.temperatures) == {0.3}
    trained = outputs(module)
    callback.attachment.detach()
    at_one = outputs(module)
    moved = float((trained - at_one).abs().max())
    without_tempopt(
        folder,
        """
        import torch
        from family_modules import FamilyModule
        module = FamilyModule.load_from_checkpoint("deployed.ckpt").eval()
        with torch.no_grad():
            torch.save(module.outputs().double(), "outputs.pt")
        print(1)
        """,
    )
    off = float((torch.load("outputs.pt") - trained).abs().max())
    with capsys.disabled():
        print(f"\n| {family} | {moved:.1e} | {off:.1e} | {off / moved:.1e} |")
    assert moved > 1e-3
    assert off <= RIGHT * moved


def outputs(module: Any) -> Tensor:
    with torch.no_grad():
        model_outputs: Tensor = module.outputs().double()
    return model_outputs


STOCK = """
import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

class Stock(L.LightningModule):
    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.save_hyperparameters()
        # every run begins alike, so that one by LightningCLI can be compared with one of a study
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(8, 3)

    def loss(self, batch):
        return F.cross_entropy(self.head(self.encoder(batch[0]).mean(1)), batch[1])

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])

class Data(L.LightningDataModule):
    def items(self, number):
        items = torch.randn(number, 4, 8, generator=torch.Generator().manual_seed(number))
        return TensorDataset(3 * items, items[:, 0, :3].argmax(-1))

    def train_dataloader(self):
        return DataLoader(self.items(60), batch_size=10)

    def val_dataloader(self):
        return DataLoader(self.items(20), batch_size=20)
"""


@pytest.mark.long
def test_lightning_cli_trains_what_the_study_has_trained_and_its_checkpoint_is_that(folder: Path) -> None:
    (folder / "stock.py").write_text(STOCK)
    spec = {
        "study": {
            "name": "stock",
            "metric": "val_loss",
            "direction": "minimize",
            "confirm_on": "validate",
            "trials": 4,
            "arms": {"baseline": 1, "constant": 2},
            "candidates": 1,
            "seeds": {"choose": 1, "confirm": 2},
        },
        "search": {
            "temperature_init": {"low": 0.25, "high": 4.0},
            "temperature_final": {"low": 0.25, "high": 4.0},
            "schedule": ["linear", "cosine"],
            "lr": {"low": 0.003, "high": 0.03, "log": True},
        },
        "attach": {"layers": "auto"},
        "model": {"class_path": "stock.Stock"},
        "data": {"class_path": "stock.Data"},
        "trainer": {
            "max_steps": 24,
            "val_check_interval": 6,
            "check_val_every_n_epoch": None,
            "accelerator": "cpu",
        },
    }
    search(spec, storage="sqlite:///tempopt.db")
    result = load_study("sqlite:///tempopt.db", "stock")
    assert result.winner is not None
    # every seed gives the same, for nothing is drawn by it
    (of_winner,) = {run.value for run in result.runs if run.kind == "confirm" and run.arm == "search"}
    config = yaml.safe_load(to_yaml(result, winner=True))
    assert [callback["class_path"] for callback in config["trainer"]["callbacks"]] == [
        "tempopt.AttachCallback"
    ]
    parameters = config["trainer"]["callbacks"][0]["init_args"]["parameters"]
    shared_names = parameters.keys() & result.winner.keys()
    assert "temperature_init" in shared_names
    assert all(parameters[name] == result.winner[name] for name in shared_names)
    (folder / "winner.yaml").write_text(to_yaml(result, winner=True))
    code = """
        import json
        from lightning.pytorch.cli import LightningCLI
        cli = LightningCLI(save_config_callback=None)
        cli.trainer.save_checkpoint("trained.ckpt")
        print(json.dumps(float(cli.trainer.callback_metrics["val_loss"])))
        """
    words = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), "fit", "--config", "winner.yaml"]
    done = subprocess.run(
        words,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{REPOSITORY}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    fitted = json.loads(done.stdout.strip().splitlines()[-1])
    assert fitted == of_winner
    plain = """
        import json, glob
        import lightning as L
        from stock import Data, Stock
        trainer = L.Trainer(logger=False, accelerator="cpu", enable_progress_bar=False)
        # what was saved explicitly, and what ModelCheckpoint has saved by itself
        paths = ["trained.ckpt", *glob.glob("**/checkpoints/*.ckpt", recursive=True)]
        metrics = [
            trainer.validate(model, datamodule=Data(), verbose=False)
            for model in [Stock.load_from_checkpoint(path, weights_only=True) for path in paths]
        ]
        print(json.dumps([loader_metrics["val_loss"] for (loader_metrics,) in metrics]))
        """
    # weights round the temperature otherwise than queries
    assert without_tempopt(folder, plain) == pytest.approx([fitted, fitted], rel=1e-6)
