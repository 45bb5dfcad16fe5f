"""Categorical codes through relaxed samples: divergence, ELBO, and what the temperature does not move."""

from __future__ import annotations

from collections.abc import Callable

import lightning as L
import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import bernoulli, chisquare, entropy

from lightning_modules.digits_data import DigitsData, Images
from lightning_modules.gumbel_digits import GumbelDigits, GumbelSoftmax, divergence_from_uniform, hard_codes

Fit = Callable[..., L.Trainer]
Validate = Callable[..., tuple[float, torch.Tensor]]


def validation_images() -> Images:
    data = DigitsData()
    data.setup("fit")
    batch: Images
    (batch,) = data.val_dataloader()
    return batch


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
    module, images = autoencoder(), validation_images()
    codes = hard_codes(module((images.pixels_BHW > 0.5).float()), seed=0)
    expected = nelbo(module, images, codes)
    logged, of_images = validate(module, DigitsData(), "val_nelbo")
    assert of_images.numpy() == pytest.approx(expected, rel=1e-4)
    assert logged == pytest.approx(expected.mean(), rel=1e-5)


def test_the_loss_is_the_negative_elbo_with_relaxed_codes() -> None:
    module, images = autoencoder(temperature=0.4), validation_images()
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
    binary = (validation_images().pixels_BHW > 0.5).flatten(1).numpy()
    independent = -bernoulli.logpmf(binary, pixel_probabilities).sum(axis=1).mean()
    assert trainer.callback_metrics["val_nelbo"] < independent - 0.2
