"""A variational autoencoder of digits with categorical codes, trained through relaxed samples.

The temperature in question is that of the sampler: Gumbel-softmax (Jang et al. 2017, arXiv:1611.01144;
Maddison et al. 2017, arXiv:1611.00712). At a low one the samples are nearly one-hot and their gradients have
a large variance; at a high one they are smooth, and the decoder learns to read what no code looks like. The
metric samples one-hot codes, which no temperature moves, so the temperature acts on it through training only.

Shapes: B images, H and W pixels, P pixels of an image, N codes of an image, K categories of a code.
"""

from __future__ import annotations

import math

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric

from lightning_modules.digits_data import Images
from lightning_modules.optimisation import adamw_with_cosine

NUM_PIXELS = 64


class GumbelSoftmax(nn.Module):
    """Draws relaxed one-hot vectors from torch's global generator.

    Args:
        temperature: What the perturbed logits are divided by, > 0; it is read at every call.

    Raises:
        ValueError: ``temperature`` is not positive.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        if not temperature > 0.0:
            raise ValueError(f"temperature is {temperature}; it divides logits: give a number > 0.")
        self.temperature = temperature

    def forward(self, logits_BNK: Tensor) -> Tensor:
        """Return samples in the shape of the logits, (batch, codes, categories), that sum to 1."""
        return F.gumbel_softmax(logits_BNK, tau=self.temperature, dim=-1)


def hard_codes(logits_BNK: Tensor, *, seed: int) -> Tensor:
    """Draw one-hot codes from the categorical distributions of the logits, by the Gumbel-max trick.

    Args:
        logits_BNK: Shape (batch, codes, categories).
        seed: Seed of the noise; equal seeds and shapes have equal noise.
    """
    generator = torch.Generator().manual_seed(seed)
    noise_BNK = -torch.empty(logits_BNK.shape).exponential_(generator=generator).log()
    chosen_BN = (logits_BNK + noise_BNK.to(logits_BNK)).argmax(dim=-1)
    return F.one_hot(chosen_BN, logits_BNK.shape[-1]).to(logits_BNK)


def divergence_from_uniform(logits_BNK: Tensor) -> Tensor:
    """Return KL(q || uniform), ln K less the entropy, summed over codes: nats, shape (batch,).

    Args:
        logits_BNK: Logits of q, shape (batch, codes, categories).
    """
    log_q_BNK = logits_BNK.log_softmax(dim=-1)
    negative_entropy_B = (log_q_BNK.exp() * log_q_BNK).sum(dim=(1, 2))
    num_codes, num_categories = logits_BNK.shape[1:]
    return negative_entropy_B + num_codes * math.log(num_categories)


class GumbelDigits(L.LightningModule):
    """MLPs that encode an 8 x 8 image in categorical codes and decode it.

    The images are made binary at half of full intensity. The likelihood is Bernoulli for each pixel, the
    prior of the codes uniform. Training minimises the negative ELBO with relaxed codes in the decoder and the
    KL divergence of the categorical posterior, as Jang et al. do.

    Logs ``val_nelbo`` when validating and ``test_nelbo`` when testing: the negative ELBO with one-hot codes,
    in nats per image, lower is better. It is estimated with one draw of the codes per image, whose noise is
    the same in all runs.

    ``sampler.temperature`` is a Python number that is read at every step.

    Args:
        num_codes: Codes of an image, >= 1.
        num_categories: Categories of a code, >= 2.
        d_hidden: Width of the hidden layers, >= 1.
        temperature: Temperature of the sampler, > 0.
        lr: Peak learning rate of AdamW, > 0.
        weight_decay: Decoupled weight decay, >= 0.
    """

    def __init__(
        self,
        num_codes: int = 12,
        num_categories: int = 8,
        d_hidden: int = 128,
        temperature: float = 1.0,
        lr: float = 1.6e-2,
        weight_decay: float = 0.05,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.weight_decay = weight_decay
        d_codes = num_codes * num_categories
        self.encode = nn.Sequential(
            nn.Flatten(),
            nn.Linear(NUM_PIXELS, d_hidden),
            nn.GELU(),
            nn.Linear(d_hidden, d_codes),
            nn.Unflatten(1, (num_codes, num_categories)),
        )
        self.sampler = GumbelSoftmax(temperature)
        self.decode = nn.Sequential(
            nn.Flatten(), nn.Linear(d_codes, d_hidden), nn.GELU(), nn.Linear(d_hidden, NUM_PIXELS)
        )
        self.val_nelbo = MeanMetric()
        self.test_nelbo = MeanMetric()

    def forward(self, binary_BHW: Tensor) -> Tensor:
        """Return the logits of the codes, shape (images, codes, categories)."""
        logits_BNK: Tensor = self.encode(binary_BHW)
        return logits_BNK

    def _negative_elbo(self, binary_BHW: Tensor, logits_BNK: Tensor, codes_BNK: Tensor) -> Tensor:
        """Return it in nats for each image, shape (images,)."""
        pixels_BP = self.decode(codes_BNK)
        surprise_BP = F.binary_cross_entropy_with_logits(pixels_BP, binary_BHW.flatten(1), reduction="none")
        return surprise_BP.sum(dim=1) + divergence_from_uniform(logits_BNK)

    def _evaluate(self, batch: Images) -> Tensor:
        binary_BHW = _binary(batch)
        logits_BNK = self(binary_BHW)
        return self._negative_elbo(binary_BHW, logits_BNK, hard_codes(logits_BNK, seed=0))

    def training_step(self, batch: Images, batch_idx: int) -> Tensor:
        binary_BHW = _binary(batch)
        logits_BNK = self(binary_BHW)
        return self._negative_elbo(binary_BHW, logits_BNK, self.sampler(logits_BNK)).mean()

    def validation_step(self, batch: Images, batch_idx: int) -> dict[str, Tensor]:
        nats_B = self._evaluate(batch)
        self.val_nelbo.update(nats_B)
        self.log("val_nelbo", self.val_nelbo, on_epoch=True, batch_size=len(nats_B))
        # of each image, so that an interval over images can be given
        return {"val_nelbo": nats_B}

    def test_step(self, batch: Images, batch_idx: int) -> None:
        nats_B = self._evaluate(batch)
        self.test_nelbo.update(nats_B)
        self.log("test_nelbo", self.test_nelbo, on_epoch=True, batch_size=len(nats_B))

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        return adamw_with_cosine(self, lr=self.lr, weight_decay=self.weight_decay)


def _binary(batch: Images) -> Tensor:
    return (batch.pixels_BHW > 0.5).float()
