"""Two towers and a contrastive loss: its value, the ranks, and what the temperature does not move."""

from __future__ import annotations

from collections.abc import Callable

import lightning as L
import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from sklearn.metrics import label_ranking_average_precision_score

from lightning_modules.clip_digits import ClipDigits, InfoNCE, reciprocal_ranks
from lightning_modules.digits_data import DigitsData, Images

Fit = Callable[..., L.Trainer]
Validate = Callable[..., tuple[float, torch.Tensor]]
# the middle of each is the temperature as found
TEMPERATURES = (0.05, 0.5, 5.0)


def validation_halves() -> Images:
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


@pytest.mark.parametrize("temperature", TEMPERATURES)
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
    module, batch = towers(), validation_halves()
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
    count = len(validation_halves().label_B)
    chance = sum(1 / rank for rank in range(1, count + 1)) / count
    assert 5 * chance < trainer.callback_metrics["val_mrr"] < 1.0
