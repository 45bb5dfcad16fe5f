"""A training by any Trainer that starts from weights, as a study's runs do."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from tempopt import AttachCallback, StartCallback
from tempopt.errors import SpecError
from tests.training import starting_modules as by_hand

pytest_plugins = ["tests.training.object_store"]


def trainer(*callbacks: L.Callback, steps: int = by_hand.STEPS) -> L.Trainer:
    quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(
        max_steps=steps, accelerator="cpu", callbacks=[*callbacks], enable_checkpointing=False, **quiet
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.save(by_hand.weights(), tmp_path / "weights.pt")
    return tmp_path / "weights.pt"


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_training_is_that_by_hand_and_is_resumed_from_its_own_checkpoint(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIGHTS", str(tmp_path))
    start = {"path": "${WEIGHTS}/weights.pt", "sha256": sha(file)}
    half, module = trainer(StartCallback(**start), steps=4), by_hand.Model()
    half.fit(module, datamodule=by_hand.Data())
    half.save_checkpoint(tmp_path / "half.ckpt")
    again = by_hand.Model()
    trainer(StartCallback(**start)).fit(
        again, datamodule=by_hand.Data(), ckpt_path=str(tmp_path / "half.ckpt"), weights_only=True
    )
    expected = by_hand.trained_by_hand(by_hand.weights())
    for name, each in again.state_dict().items():
        torch.testing.assert_close(each.double(), expected[name], rtol=1e-4, atol=1e-5)


def test_where_nothing_is_trained_nothing_is_loaded(file: Path) -> None:
    module = by_hand.Model()
    before = {name: each.clone() for name, each in module.state_dict().items()}
    trainer(StartCallback(str(file))).validate(module, by_hand.Data(), verbose=False)
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())


def test_a_module_that_is_trained_on_keeps_what_it_has_learned(file: Path) -> None:
    module, callback = by_hand.Model(), StartCallback(str(file))
    trainer(callback).fit(module, datamodule=by_hand.Data())
    learned = {name: each.clone() for name, each in module.state_dict().items()}
    callback.setup(trainer(), module, "fit")
    assert all(torch.equal(each, learned[name]) for name, each in module.state_dict().items())


def test_another_content_or_another_model_is_refused(file: Path) -> None:
    for given, module in (({"sha256": "0" * 64}, by_hand.Model()), ({}, by_hand.Model(width=16))):
        with pytest.raises(SpecError, match=r"^StartCallback: (?!.*study)"):
            StartCallback(str(file), **given).setup(trainer(), module, "fit")
    StartCallback(str(file), strict=False, prefix="body.").setup(trainer(), by_hand.Model(), "fit")


def test_weights_of_an_object_store_are_fetched(file: Path, bucket: str) -> None:
    import s3fs

    s3fs.S3FileSystem().put_file(str(file), f"{bucket}/weights.pt")
    module = by_hand.Model()
    StartCallback(f"{bucket}/weights.pt", sha256=sha(file)).setup(trainer(), module, "fit")
    assert all(torch.equal(each, by_hand.weights()[name]) for name, each in module.state_dict().items())


def test_it_comes_before_a_temperature_that_is_attached(tmp_path: Path) -> None:
    class Attends(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x = batch[0]
            return self.attention(x, x, x)[0].square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    weights = Attends().state_dict()
    torch.save(weights, tmp_path / "a.pt")
    module = Attends()
    attached = AttachCallback({"temperature_init": 2.0})
    trainer(StartCallback(str(tmp_path / "a.pt")), attached, steps=1).fit(
        module, by_hand.Data().train_dataloader()
    )
    assert attached.attachment.temperatures == (2.0,)
    assert torch.equal(module.state_dict()["attention.out_proj.weight"], weights["attention.out_proj.weight"])
