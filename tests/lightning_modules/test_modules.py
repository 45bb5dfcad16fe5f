"""What holds for all modules here: found by name, made again from what was saved, baked in by its name."""

from __future__ import annotations

import cmath
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics import MeanMetric

import lightning_modules
from lightning_modules import (
    AssociativeRecall,
    AssociativeRecallData,
    ClipDigits,
    DigitsData,
    DigitsViT,
    DistilledDigits,
    GraphWalks,
    GraphWalksData,
    GumbelDigits,
    MaxRetrieval,
    MaxRetrievalData,
    QKNormLM,
    SourceData,
    SourceLM,
    TaughtDigits,
)
from lightning_modules.associative_recall import draw_recall
from lightning_modules.batches import Drawn, Stored, batches
from lightning_modules.distillation import DistillationLoss
from lightning_modules.grouped import Grouped
from lightning_modules.optimisation import warmup_cosine
from lightning_modules.transformer import rotate
from tempopt import SpecError, ValueCallback
from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec

Fit = Callable[..., L.Trainer]
Validate = Callable[..., tuple[float, torch.Tensor]]

TEMPERED = [AssociativeRecall, DigitsViT, GraphWalks, MaxRetrieval, QKNormLM, SourceLM]
BEST = {
    "temperature_init": 3.0,
    "temperature_final": 0.5,
    "schedule": "cosine",
    "layer_pattern": "linear",
    "entropy_lambda": 0.01,
    "length_scaling": "log_n",
    "lr": 0.002,
}


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match='no attribute "MaxRetrival"; it has .*MaxRetrieval'):
        lightning_modules.MaxRetrival  # noqa: B018


def test_importing_the_package_is_light() -> None:
    code = "import sys, lightning_modules; print('torch' in sys.modules, 'lightning' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
@pytest.mark.parametrize(
    ("module_class", "name"),
    [
        (ClipDigits, "temperature"),
        (DigitsViT, "output_temperature"),
        (DistillationLoss, "temperature"),
        (GumbelDigits, "temperature"),
        (QKNormLM, "gain"),
    ],
)
def test_a_number_that_is_not_positive_is_refused(module_class: Any, name: str, value: float) -> None:
    with pytest.raises((ValueError, SpecError), match=f"{name}.*{value}"):
        module_class(**{name: value})


OF_A_LOSS = [
    (ClipDigits, DigitsData, "criterion.temperature", ["val_mrr"]),
    (DistilledDigits, TaughtDigits, "criterion.temperature", ["val_accuracy", "val_loss"]),
    (GumbelDigits, DigitsData, "sampler.temperature", ["val_nelbo"]),
]
"""Modules whose temperature is not attention's, their data, where the temperature is, and their metrics."""


@pytest.mark.parametrize(
    ("module_class", "data_class", "arguments"),
    [
        (AssociativeRecall, AssociativeRecallData, BEST),
        (DigitsViT, DigitsData, BEST),
        (GraphWalks, GraphWalksData, BEST),
        (MaxRetrieval, MaxRetrievalData, BEST),
        (QKNormLM, SourceData, BEST),
        (SourceLM, SourceData, BEST),
        *((module_class, data, {"temperature": 0.2, "lr": 0.002}) for module_class, data, *_ in OF_A_LOSS),
    ],
)
def test_a_checkpoint_makes_the_module_again(
    module_class: type[L.LightningModule],
    data_class: type[L.LightningDataModule],
    arguments: dict[str, Any],
    tmp_path: Path,
    fit: Fit,
) -> None:
    module = module_class(**arguments)
    assert dict(module.hparams).items() >= arguments.items()
    fit(module, data_class(), steps=1).save_checkpoint(tmp_path / "run.ckpt")
    loaded_module = module_class.load_from_checkpoint(tmp_path / "run.ckpt", weights_only=True)
    assert loaded_module.hparams == module.hparams
    for name, parameter in loaded_module.named_parameters():
        assert torch.equal(parameter, module.get_parameter(name))


@pytest.mark.parametrize(("module_class", "data_class", "path", "metrics"), OF_A_LOSS)
def test_the_temperature_moves_the_loss_and_no_metric(
    module_class: type[L.LightningModule],
    data_class: type[L.LightningDataModule],
    path: str,
    metrics: list[str],
    validate: Validate,
) -> None:
    L.seed_everything(0, verbose=False)
    module: Any = module_class()
    data = data_class()
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    holder, _, name = path.partition(".")
    losses: set[float] = set()
    measured: list[list[tuple[float, torch.Tensor]]] = []
    for seed, temperature in enumerate((0.1, 1.0, 8.0)):
        setattr(getattr(module, holder), name, temperature)
        torch.manual_seed(0)
        losses.add(module.training_step(batch, 0).item())
        torch.manual_seed(seed)
        measured.append([validate(module, data, metric) for metric in metrics])
    assert len(losses) == 3
    for values in measured[1:]:
        for (value, of_images), (first_value, first_of_images) in zip(values, measured[0], strict=True):
            assert value == first_value and torch.equal(of_images, first_of_images)


@pytest.mark.parametrize(("module_class", "data_class", "path", "metrics"), OF_A_LOSS)
def test_a_training_follows_its_seed_and_its_schedule(
    module_class: type[L.LightningModule],
    data_class: type[L.LightningDataModule],
    path: str,
    metrics: list[str],
    fit: Fit,
) -> None:
    def trained_weights(seed: int, *callbacks: L.Callback) -> torch.Tensor:
        L.seed_everything(seed, verbose=False)
        module = module_class()
        fit(module, data_class(), steps=12, seed=seed, callbacks=callbacks)
        return torch.cat([param.detach().flatten() for param in module.parameters()])

    plain = trained_weights(0)
    assert torch.equal(plain, trained_weights(0, ValueCallback(path, {})))
    assert not torch.equal(plain, trained_weights(1))
    schedule = {"schedule": "exponential", "temperature_final": 0.05}
    assert not torch.equal(plain, trained_weights(0, ValueCallback(path, schedule)))


# ---- One metric per group


def test_each_group_has_a_mean_of_its_own() -> None:
    grouped = Grouped(MeanMetric)
    grouped.update("64", torch.tensor([1.0, 2.0]))
    grouped.update("256", torch.tensor([5.0]))
    grouped.update("64", torch.tensor([6.0]))
    assert {group: value.item() for group, value in grouped.compute().items()} == {"64": 3.0, "256": 5.0}


def test_a_group_that_was_not_seen_since_is_left_out() -> None:
    grouped = Grouped(MeanMetric)
    grouped.update("64", torch.tensor([1.0]))
    grouped.update("256", torch.tensor([5.0]))
    grouped.compute()
    grouped.update("256", torch.tensor([7.0]))
    assert {group: value.item() for group, value in grouped.compute().items()} == {"256": 7.0}


# ---- The learning rate: warm-up, then half a cosine to nothing


def rate(step: int, total_steps: int = 100, warmup_fraction: float = 0.1) -> float:
    return warmup_cosine(step, total_steps=total_steps, warmup_fraction=warmup_fraction)


def test_the_rate_peaks_at_the_end_of_the_warm_up_and_ends_at_nothing() -> None:
    assert rate(0) == pytest.approx(0.1)
    assert rate(9) == rate(10) == 1.0
    assert rate(55) == pytest.approx(0.5)
    assert rate(100) == pytest.approx(0.0, abs=1e-12)


@given(total=st.integers(1, 1000), fraction=st.floats(0.0, 0.99), step=st.integers(0, 1500))
def test_the_rate_is_a_share_at_any_step(total: int, fraction: float, step: int) -> None:
    share = rate(step, total, fraction)
    assert math.isfinite(share)
    assert 0.0 <= share <= 1.0


# ---- Whole batches: nothing is lost, order follows the generator


class SampledPair(NamedTuple):
    number: Tensor
    nothing: None
    label: Tensor


def make_stored(size: int) -> Stored[SampledPair]:
    return Stored(SampledPair(torch.arange(size), None, torch.arange(size) * 10))


def test_a_stored_batch_keeps_its_fields_together() -> None:
    batch = make_stored(10).__getitems__([7, 2])
    assert batch.number.tolist() == [7, 2]
    assert batch.label.tolist() == [70, 20]
    assert batch.nothing is None


def test_a_shuffled_loader_has_batches_of_one_size_in_an_order_that_follows_the_generator() -> None:
    orders = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        orders.append([batch.number.tolist() for batch in batches(make_stored(10), 4, shuffle=True)])
    assert [len(batch) for batch in orders[0]] == [4, 4]
    assert orders[0] == orders[1] != orders[2]


def test_drawn_items_follow_the_global_generator_and_are_new_each_time() -> None:
    dataset = Drawn(lambda size: (torch.rand(size),), epoch_size=8)
    torch.manual_seed(3)
    first_epoch, second = [torch.cat([batch[0] for batch in batches(dataset, 4)]) for _ in range(2)]
    torch.manual_seed(3)
    second_epoch = torch.cat([batch[0] for batch in batches(dataset, 4)])
    assert len(first_epoch) == len(dataset) == 8
    assert torch.equal(first_epoch, second_epoch)
    assert not torch.equal(first_epoch, second)


# ---- The ablation of the number of heads: what is compared differs in the number of heads and nothing else

NUM_HEADS = (1, 2, 4, 8)


@pytest.fixture(scope="module")
def spec() -> StudySpec:
    return load_spec(Path(__file__).parents[2] / "studies" / "head_count.yaml")


def test_every_number_of_heads_has_the_same_parameters_and_computes_something_else(spec: StudySpec) -> None:
    # Tutorials call it an adaptive number of heads when the same weights are cut into other groups; that is
    # another function all the same, so each number has to be trained.
    recall = draw_recall(2, 4, vocabulary=128, generator=torch.Generator().manual_seed(0))
    outputs, shapes = [], set()
    for heads in NUM_HEADS:
        torch.manual_seed(0)
        module = AssociativeRecall(**{**spec.model["init_args"], "num_heads": heads})
        shapes.add(tuple((name, value.shape) for name, value in module.named_parameters()))
        outputs.append(module(recall))
    assert len(shapes) == 1
    assert not any(torch.equal(outputs[0], output) for output in outputs[1:])


# ---- The transformer layer: rotary positions know only of distances, attention is handed in


def test_a_rotation_is_a_complex_product() -> None:
    x = torch.randn(1, 1, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turned = rotate(x)
    for position in range(5):
        for pair, speed in enumerate((1.0, 0.01)):
            before = complex(x[0, 0, position, pair], x[0, 0, position, pair + 2])
            after = before * cmath.exp(1j * position * speed)
            assert turned[0, 0, position, pair].item() == pytest.approx(after.real, abs=1e-6)
            assert turned[0, 0, position, pair + 2].item() == pytest.approx(after.imag, abs=1e-6)
