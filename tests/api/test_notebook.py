"""A real Jupyter kernel that defines a module in a cell, searches, is interrupted, and goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tempopt.errors import StudyNotFound
from tempopt.storage.opening import open_store

nbclient = pytest.importorskip("nbclient", reason="needs Jupyter: pip install nbclient ipykernel")
nbformat = pytest.importorskip("nbformat", reason="needs Jupyter: pip install nbclient ipykernel")
pytest.importorskip("ipykernel", reason="needs Jupyter: pip install nbclient ipykernel")

pytestmark = [
    pytest.mark.long,
    # of Jupyter's own
    pytest.mark.filterwarnings("default::DeprecationWarning", "default::ResourceWarning"),
]

URL = "sqlite:///tempopt.db"
MODULE = """\
import lightning as L
import torch
import torch.nn.functional
from lightning_modules import DigitsData
from torch import nn
from torchmetrics.classification import MulticlassAccuracy
import tempopt

PATCH = 2


def patches(images):
    return images[:, None]


class Reader(L.LightningModule):
    def __init__(self, lr: float = 4e-3):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Conv2d(1, 32, kernel_size=PATCH, stride=PATCH)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.classify = nn.Linear(32, 10)
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def forward(self, images):
        embedded = self.embed(patches(images)).flatten(2).transpose(1, 2)
        return self.classify(self.encoder(embedded).mean(1))

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self(batch.pixels_BHW), batch.label_B)

    def validation_step(self, batch, batch_idx):
        self.accuracy.update(self(batch.pixels_BHW), batch.label_B)
        self.log("val_accuracy", self.accuracy, on_epoch=True, batch_size=len(batch.label_B))

    def test_step(self, batch, batch_idx):
        self.validation_step(batch, batch_idx)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])
"""
SPEC = """\
spec = {
    "study": {
        "name": "reader", "metric": "val_accuracy", "direction": "maximize", "trials": 3,
        "arms": {"baseline": 1, "constant": 1}, "candidates": 1, "seeds": {"confirm": 2},
    },
    "model": Reader,
    "data": {"class_path": DigitsData, "init_args": {"num_train": 100}},
    "trainer": {"max_steps": 40, "accelerator": "cpu"},
    "attach": {"layers": "auto"},
    "search": {"temperature_init": {"low": 0.25, "high": 4.0}},
}
"""


class Notebook:
    """Cells that are run one after the other in one kernel."""

    def __init__(self, folder: Path) -> None:
        node = nbformat.v4.new_notebook()
        node.metadata["kernelspec"] = {"name": "python3", "display_name": "", "language": "python"}
        self.client = nbclient.NotebookClient(
            node, timeout=600, resources={"metadata": {"path": str(folder)}}, allow_errors=True
        )
        self._node = node

    def run(self, code: str) -> list[Any]:
        """Run a cell and return its outputs."""
        cell = nbformat.v4.new_code_cell(code)
        self._node.cells.append(cell)
        self.client.execute_cell(cell, len(self._node.cells) - 1)
        return list(cell.outputs)

    def interrupt(self) -> None:
        """Do what the button does."""
        asyncio.run(self.client.km._async_interrupt_kernel())


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """Yield a notebook in an empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]))
    notebook_runner = Notebook(tmp_path)
    with notebook_runner.client.setup_kernel():
        yield notebook_runner


def _text(outputs: list[Any]) -> str:
    """Return all that a cell shows, as plain text."""
    texts = []
    for output in outputs:
        if output.output_type == "stream":
            texts.append(output.text)
        elif output.output_type == "error":
            texts.append("\n".join(output.traceback))
        else:
            texts.append(output.data["text/plain"])
    return "\n".join(texts)


def _tickets_done() -> int:
    with contextlib.suppress(StudyNotFound), open_store(URL, create=True) as store:
        return sum(ticket.state == "done" for ticket in store.tickets(store.load_study("reader").id))
    return 0


def test_a_module_of_a_cell_is_searched_interrupted_and_gone_on_with(notebook: Notebook) -> None:
    assert not notebook.run(MODULE)
    assert not notebook.run(SPEC)

    def interrupt() -> None:
        deadline = time.monotonic() + 300
        while _tickets_done() < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        notebook.interrupt()

    hand = threading.Thread(target=interrupt)
    hand.start()
    outputs_interrupted = notebook.run("result = tempopt.search(spec, workers=1)")
    hand.join()
    text = _text(outputs_interrupted)
    assert "Everything that was reported is saved" in text
    assert "tempopt resume reader" in text
    assert 2 <= _tickets_done() < 10
    # nothing of the agent's inside
    assert len(text) < 8000

    outputs = notebook.run("result = tempopt.search(spec, workers=1)")
    pictures = [output for output in outputs if "text/html" in output.get("data", {})]
    assert len(pictures) == 1, _text(outputs)
    assert "baseline" in pictures[0].data["text/html"]
    assert "3/3" in pictures[0].data["text/plain"]
    assert "done" in _text(notebook.run("print(result.state)"))
    assert "val_accuracy" in _text(notebook.run("print(result)"))
    assert "reader.html" in _text(notebook.run("print(tempopt.write_report(result))"))
    assert Path("reader.html").is_file()
    assert "Reader" in _text(notebook.run("print(result.export('reader.py', format='python'))"))

    # the class of a study is that of its cell
    notebook.run(MODULE.replace("0.0", "0.1"))
    notebook.run(SPEC)
    changed_text = _text(notebook.run("tempopt.search(spec, workers=1)"))
    assert "StudyChanged" in changed_text
    assert "model.class_path" in changed_text
    assert "is not what it was when the study was begun" in changed_text
