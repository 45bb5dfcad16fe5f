"""The digits: a split that holds, an output temperature, and the same task without tempopt."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import lightning as L
import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from scipy.stats import bernoulli, chisquare, entropy
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score, label_ranking_average_precision_score, log_loss
from torch.nn import functional as F

from lightning_modules.clip_digits import ClipDigits, InfoNCE, reciprocal_ranks
from lightning_modules.digits import DigitsViT
from lightning_modules.digits_data import DigitsData, Images
from lightning_modules.distillation import DistilledDigits, TaughtDigits, TaughtImages
from lightning_modules.gumbel_digits import GumbelDigits, GumbelSoftmax, divergence_from_uniform, hard_codes

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


# ---- A student and its teacher: what the teacher knows, what the loss adds up, what the temperature moves

Validate = Callable[..., tuple[float, torch.Tensor]]
# the middle of each is the temperature as found
TEMPERATURES = (1.0, 4.0, 16.0)


def taught(**arguments: int) -> TaughtDigits:
    data = TaughtDigits(**arguments)
    data.setup("fit")
    return data


def lesson(data: TaughtDigits) -> TaughtImages:
    """Return all that the student is trained on, in the order in which it comes."""
    return TaughtImages(*(torch.cat(column) for column in zip(*data.train_dataloader(), strict=True)))


def unseen() -> Images:
    batch: Images
    (batch,) = taught().val_dataloader()
    return batch


def student(seed: int = 0, **arguments: float) -> DistilledDigits:
    L.seed_everything(seed, verbose=False)
    return DistilledDigits(**arguments)  # type: ignore[arg-type]


def test_the_student_is_trained_on_the_first_of_the_teachers_images() -> None:
    data = DigitsData(num_train=600)
    data.setup("fit")
    pixels_BHW, label_B = data.splits["train"].__getitems__(range(100))
    first = sorted(zip(pixels_BHW.flatten(1).tolist(), label_B.tolist(), strict=True))
    images = lesson(taught())
    assert sorted(zip(images.pixels_BHW.flatten(1).tolist(), images.label_B.tolist(), strict=True)) == first
    assert {name: len(split) for name, split in data.splits.items()} == {
        "train": 600,
        "val": 598,
        "test": 599,
    }


def test_the_teacher_gives_logarithms_of_probabilities_and_knows_its_own_images() -> None:
    images = lesson(taught())
    assert images.teacher_BC.shape == (100, 10)
    assert images.teacher_BC.double().exp().sum(dim=1).numpy() == pytest.approx(np.ones(100), rel=1e-5)
    assert torch.equal(images.teacher_BC.argmax(dim=1), images.label_B)


def test_the_teacher_is_the_same_in_each_run_and_leaves_the_generators_alone() -> None:
    data = taught(num_teacher=200, num_student=50)
    torch.manual_seed(1)
    np.random.seed(1)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist()
    data.train_dataloader()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]
    torch.manual_seed(1)
    first = lesson(data)
    torch.manual_seed(1)
    repeated_images = lesson(taught(num_teacher=200, num_student=50))
    assert all(
        torch.equal(tensor, repeated_tensor)
        for tensor, repeated_tensor in zip(first, repeated_images, strict=True)
    )


def test_a_student_with_more_images_than_its_teacher_is_refused() -> None:
    with pytest.raises(ValueError, match="num_student is 700.*num_teacher=600 images only"):
        TaughtDigits(num_student=700)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_loss_is_the_teachers_and_the_labels_by_their_shares(temperature: float) -> None:
    images, module = lesson(taught()), student(temperature=temperature, mix=0.7)
    logits = module(images.pixels_BHW).detach().double().numpy()
    teacher = softmax(images.teacher_BC.double().numpy() / temperature, axis=1)
    divergence = entropy(teacher, softmax(logits / temperature, axis=1), axis=1).mean()
    surprise = log_loss(images.label_B.numpy(), softmax(logits, axis=1), labels=range(10))
    expected = 0.7 * temperature**2 * divergence + 0.3 * surprise
    assert module.training_step(images, 0).item() == pytest.approx(expected, rel=1e-4)


def test_the_metrics_are_accuracy_and_cross_entropy_of_the_labels(validate: Validate) -> None:
    module, images = student(), unseen()
    probabilities = softmax(module(images.pixels_BHW).detach().double().numpy(), axis=1)
    labels = images.label_B.numpy()
    accuracy, of_images = validate(module, TaughtDigits(), "val_accuracy")
    assert accuracy == pytest.approx(accuracy_score(labels, probabilities.argmax(axis=1)))
    assert of_images.mean().item() == pytest.approx(accuracy)
    loss, of_images = validate(module, TaughtDigits(), "val_loss")
    assert loss == pytest.approx(log_loss(labels, probabilities, labels=range(10)), rel=1e-5)
    assert of_images.mean().item() == pytest.approx(loss, rel=1e-5)


def test_a_student_learns_more_from_its_teacher_than_from_the_labels_alone(fit: Fit) -> None:
    def accuracy(mix: float) -> float:
        trainer = fit(student(mix=mix), TaughtDigits(), steps=200)
        return trainer.callback_metrics["val_accuracy"].item()

    alone = accuracy(0.0)
    assert alone > 0.8
    assert accuracy(0.9) > alone + 0.02


# ---- Two towers and a contrastive loss: its value, the ranks, and what the temperature does not move

# the middle of each is the temperature as found
CLIP_TEMPERATURES = (0.05, 0.5, 5.0)


def validation_batch() -> Images:
    data = DigitsData()
    data.setup("fit")
    batch: Images
    (batch,) = data.val_dataloader()
    return batch


def towers(seed: int = 0, **arguments: float) -> ClipDigits:
    L.seed_everything(seed, verbose=False)
    return ClipDigits(**arguments)  # type: ignore[arg-type]


def unit_vectors(generator: np.random.Generator, count: int) -> np.ndarray:
    vectors = generator.normal(size=(count, 4))
    normed: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return normed


@pytest.mark.parametrize("temperature", CLIP_TEMPERATURES)
def test_the_loss_is_the_mean_surprise_of_the_match_in_both_directions(temperature: float) -> None:
    generator = np.random.default_rng(0)
    left_vectors, right_vectors = unit_vectors(generator, 7), unit_vectors(generator, 7)
    logits = left_vectors @ right_vectors.T / temperature
    by_row, by_column = log_softmax(logits, axis=1), log_softmax(logits, axis=0)
    expected = -np.mean([by_row[pair, pair] + by_column[pair, pair] for pair in range(7)]) / 2
    loss = InfoNCE(temperature)(torch.from_numpy(left_vectors), torch.from_numpy(right_vectors))
    assert loss.item() == pytest.approx(expected, rel=1e-9)


# Label ranking average precision with one relevant label each is the mean reciprocal rank, ties counted
# against it.
@pytest.mark.parametrize("decimals", [8, 1])
def test_reciprocal_ranks_are_those_of_scikit_learn_with_and_without_ties(decimals: int) -> None:
    similarity = np.round(np.random.default_rng(1).normal(size=(40, 40)), decimals)
    assert (len(np.unique(similarity)) < similarity.size) == (decimals == 1)
    ranked = reciprocal_ranks(torch.from_numpy(similarity))
    assert ranked.shape == (40,)
    for query, reciprocal_rank in enumerate(ranked.tolist()):
        relevant = np.eye(40, dtype=int)[query : query + 1]
        expected = label_ranking_average_precision_score(relevant, similarity[query : query + 1])
        assert reciprocal_rank == pytest.approx(expected, rel=1e-6)


def test_the_metric_is_the_mean_over_both_directions(validate: Validate) -> None:
    module, batch = towers(), validation_batch()
    left_vectors, right_vectors = (
        embeddings.detach().double().numpy() for embeddings in module(batch.pixels_BHW)
    )
    assert np.linalg.norm(left_vectors, axis=1) == pytest.approx(np.ones(len(left_vectors)), rel=1e-5)
    relevance = np.eye(len(left_vectors), dtype=int)
    precisions = [
        label_ranking_average_precision_score(relevance, similarity)
        for similarity in (left_vectors @ right_vectors.T, right_vectors @ left_vectors.T)
    ]
    logged, of_images = validate(module, DigitsData(), "val_mrr")
    assert logged == pytest.approx(np.mean(precisions), rel=1e-3)
    assert of_images.shape == (len(left_vectors),)
    assert of_images.mean().item() == pytest.approx(logged, rel=1e-5)


def test_each_tower_sees_its_half_alone() -> None:
    module, pixels = towers(), torch.rand(3, 8, 8)
    left_output, right_output = module(pixels)
    masked_pixels = pixels.clone()
    masked_pixels[:, :, 4:] = 0.0
    assert torch.equal(module(masked_pixels)[0], left_output)
    assert not torch.equal(module(masked_pixels)[1], right_output)


def test_a_training_finds_many_more_matches_than_chance(fit: Fit) -> None:
    trainer = fit(towers(), DigitsData(), steps=60)
    count = len(validation_batch().label_B)
    chance = sum(1 / rank for rank in range(1, count + 1)) / count
    assert 5 * chance < trainer.callback_metrics["val_mrr"] < 1.0


# ---- Categorical codes through relaxed samples: divergence, ELBO, and what the temperature does not move


def autoencoder(seed: int = 0, **arguments: float) -> GumbelDigits:
    L.seed_everything(seed, verbose=False)
    return GumbelDigits(**arguments)  # type: ignore[arg-type]


def nelbo(module: GumbelDigits, images: Images, codes: torch.Tensor) -> np.ndarray:
    """Return the negative ELBO of each image, of densities and divergences as scipy knows them."""
    binary = (images.pixels_BHW > 0.5).double()
    posterior = softmax(module(binary.float()).detach().double().numpy(), axis=-1)
    uniform = np.full(posterior.shape, 1 / posterior.shape[-1])
    divergence = entropy(posterior, uniform, axis=-1).sum(axis=1)
    pixel_probabilities = module.decode(codes).detach().double().sigmoid().numpy()
    surprise = -bernoulli.logpmf(binary.flatten(1).numpy(), pixel_probabilities).sum(axis=1)
    return np.asarray(surprise + divergence)


def test_the_divergence_is_that_from_uniform_codes() -> None:
    logits = 3 * torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(0)).double()
    posterior = softmax(logits.numpy(), axis=-1)
    expected = entropy(posterior, np.full(posterior.shape, 1 / 6), axis=-1).sum(axis=1)
    assert divergence_from_uniform(logits).numpy() == pytest.approx(expected, rel=1e-9)


def test_hard_codes_are_one_hot_and_as_frequent_as_their_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0]).expand(20_000, 1, 4)
    codes = hard_codes(logits, seed=3)
    assert torch.equal(codes.sum(-1), torch.ones(20_000, 1))
    assert set(codes.unique().tolist()) == {0.0, 1.0}
    counts = codes.sum(dim=(0, 1)).numpy()
    assert chisquare(counts, 20_000 * softmax(logits[0, 0].double().numpy())).pvalue > 0.01
    state = torch.get_rng_state()
    assert torch.equal(codes, hard_codes(logits, seed=3))
    assert not torch.equal(codes, hard_codes(logits, seed=4))
    assert torch.equal(torch.get_rng_state(), state)


def test_relaxed_samples_are_the_softmax_of_perturbed_logits_over_the_temperature() -> None:
    logits = torch.randn(6, 3, 5, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    sample = GumbelSoftmax(0.7)(logits)
    torch.manual_seed(2)
    noise = -np.log(torch.empty(logits.shape).exponential_().numpy())
    assert sample.numpy() == pytest.approx(softmax((logits.numpy() + noise) / 0.7, axis=-1), rel=1e-4)


def test_the_metric_is_the_negative_elbo_with_hard_codes(validate: Validate) -> None:
    module, images = autoencoder(), validation_batch()
    codes = hard_codes(module((images.pixels_BHW > 0.5).float()), seed=0)
    expected = nelbo(module, images, codes)
    logged, of_images = validate(module, DigitsData(), "val_nelbo")
    assert of_images.numpy() == pytest.approx(expected, rel=1e-4)
    assert logged == pytest.approx(expected.mean(), rel=1e-5)


def test_the_loss_is_the_negative_elbo_with_relaxed_codes() -> None:
    module, images = autoencoder(temperature=0.4), validation_batch()
    torch.manual_seed(5)
    loss = module.training_step(images, 0)
    torch.manual_seed(5)
    codes = module.sampler(module((images.pixels_BHW > 0.5).float()))
    assert loss.item() == pytest.approx(nelbo(module, images, codes).mean(), rel=1e-5)


# With two codes of three categories all nine can be summed over: no ELBO is above the evidence.
def test_a_training_beats_pixels_that_are_independent(fit: Fit) -> None:
    data = DigitsData()
    trainer = fit(autoencoder(), data, steps=180)
    trained_on = data.splits["train"].__getitems__(range(300)).pixels_BHW > 0.5
    pixel_probabilities = trained_on.flatten(1).double().mean(dim=0).clamp(0.01, 0.99).numpy()
    binary = (validation_batch().pixels_BHW > 0.5).flatten(1).numpy()
    independent = -bernoulli.logpmf(binary, pixel_probabilities).sum(axis=1).mean()
    assert trainer.callback_metrics["val_nelbo"] < independent - 0.2
