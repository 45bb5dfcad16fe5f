"""The digits: a split that holds, an output temperature, and the same task without tempopt."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import lightning as L
import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

from lightning_modules.digits import DigitsData, DigitsViT

Fit = Callable[..., L.Trainer]


def split(name: str, seed: int = 0) -> torch.Tensor:
    data = DigitsData(seed=seed)
    data.setup("fit")
    return data.splits[name].__getitems__(range(len(data.splits[name]))).pixels_BHW


def test_the_splits_are_all_images_once() -> None:
    pixels = torch.cat([split(name) for name in ("train", "val", "test")]).flatten(1)
    everything = torch.from_numpy(load_digits().data).float() / 16
    assert len(split("train")) == 300
    assert sorted(pixels.tolist()) == sorted(everything.tolist())


def test_the_split_follows_its_seed_alone() -> None:
    torch.manual_seed(1)
    first = split("test")
    torch.manual_seed(2)
    assert torch.equal(first, split("test"))
    assert not torch.equal(first, split("test", seed=1))


def test_labels_stay_with_their_images() -> None:
    data = DigitsData()
    data.setup("fit")
    pixels, labels = load_digits(return_X_y=True)
    label_by_image = {
        tuple(image): label for image, label in zip((pixels / 16).tolist(), labels.tolist(), strict=True)
    }
    (batch,) = data.val_dataloader()
    for image, label in zip(batch.pixels_BHW.flatten(1).tolist(), batch.label_B.tolist(), strict=True):
        assert label_by_image[tuple(image)] == label


def test_a_few_epochs_teach_most_digits(fit: Fit) -> None:
    L.seed_everything(0, verbose=False)
    trainer = fit(DigitsViT(), DigitsData(), steps=120)
    assert trainer.callback_metrics["val_accuracy"] > 0.5
    assert trainer.callback_metrics["val_loss"] < 1.8


def test_the_output_temperature_divides_the_logits_in_the_loss_and_moves_no_prediction(fit: Fit) -> None:
    data = DigitsData()
    data.setup("fit")
    (batch,) = data.val_dataloader()
    L.seed_everything(0, verbose=False)
    module = DigitsViT(output_temperature=2.0)
    expected = F.cross_entropy(module(batch.pixels_BHW) / 2.0, batch.label_B)
    assert torch.allclose(module.training_step(batch, 0), expected)
    trainer = L.Trainer(logger=False, enable_progress_bar=False, accelerator="cpu")
    (logged,) = trainer.validate(module, datamodule=data, verbose=False)
    right = (module(batch.pixels_BHW).argmax(-1) == batch.label_B).float().mean()
    assert logged["val_loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert logged["val_accuracy"] == pytest.approx(right.item())


@pytest.mark.long
def test_the_modules_that_are_not_tempered_modules_do_not_import_tempopt() -> None:
    code = (
        "import sys, lightning_modules.digits_data, lightning_modules.digits_stock,"
        "lightning_modules.clip_digits, lightning_modules.gumbel_digits;"
        "print([name for name in sys.modules if name.split('.')[0] == 'tempopt'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
