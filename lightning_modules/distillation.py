"""A small student learns digits from few images and a teacher's view of them: knowledge distillation.

The temperature in question is that of the loss (Hinton, Vinyals & Dean 2015, arXiv:1503.02531), which divides
the logits of student and teacher. At a high one the student learns how the teacher ranks all digits, at a low
one hardly more than which is the right one. As found it is 4, with 0.9 of the loss from the teacher and 0.1
from the labels, as in the comparison of methods by Tian, Krishnan & Isola (2020, arXiv:1910.10699), which
others took over: 1 would be a baseline that is easy to beat. The metric is the student's accuracy, which no
temperature moves, so the temperature acts on it through training only.

Shapes: B images, H and W pixels, C classes.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from lightning_modules.batches import Stored, batches
from lightning_modules.digits_data import DigitsData, Images
from lightning_modules.optimisation import adamw_with_cosine
from tempopt.attention import distillation_loss
from tempopt.attention.modules.learned import check_scale

NUM_PIXELS = 64
NUM_CLASSES = 10
TEACHER_WIDTH = 256
TEACHER_EPOCHS = 200
TEACHER_BATCH_SIZE = 200
TEACHER_LEARNING_RATE = 1e-3


class TaughtImages(NamedTuple):
    """A batch of images with the teacher's view of them.

    ``pixels_BHW`` and ``label_B`` are those of ``Images``; ``teacher_BC`` are the teacher's logits, which are
    logarithms of its probabilities, shape (batch, classes).
    """

    pixels_BHW: Tensor
    teacher_BC: Tensor
    label_B: Tensor


def _everything(images: Stored[Images]) -> Images:
    return images.__getitems__(range(len(images)))


@cache
def _teacher_logits(num_teacher: int, seed: int) -> Tensor:
    """Return the logits of a teacher for the images that it was trained on, in their order."""
    data = DigitsData(num_train=num_teacher, seed=seed)
    data.setup("fit")
    images = _everything(data.splits["train"])
    features_BD = images.pixels_BHW.flatten(1)
    # The training that asks for the teacher keeps its random state.
    with torch.random.fork_rng(devices=[]), torch.inference_mode(mode=False), torch.enable_grad():
        torch.manual_seed(0)
        teacher = nn.Sequential(
            nn.Linear(NUM_PIXELS, TEACHER_WIDTH), nn.ReLU(), nn.Linear(TEACHER_WIDTH, NUM_CLASSES)
        )
        optimizer = torch.optim.Adam(teacher.parameters(), lr=TEACHER_LEARNING_RATE)
        for _ in range(TEACHER_EPOCHS):
            for rows in torch.randperm(num_teacher).split(TEACHER_BATCH_SIZE):
                loss = F.cross_entropy(teacher(features_BD[rows]), images.label_B[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    logits_BC: Tensor = teacher(features_BD)
    return logits_BC.detach().log_softmax(dim=-1)


class TaughtDigits(DigitsData):
    """Few digits to train on, with the logits of a teacher that has learned from them and from more.

    The teacher is a perceptron with one hidden layer of 256, the same in all runs. A process trains it once,
    in half a second, and never on the images that validate and test.

    Args:
        num_student: Images that the student is trained on, 1 <= num_student <= num_teacher.
        num_teacher: Images that the teacher is trained on, of each digit at least one, < 1797; the student's
            are the first of them.
        batch_size: Images in a training batch, 1 <= batch_size <= num_student.
        seed: Seed of the split.

    Raises:
        ValueError: The student is to have more images than the teacher.
    """

    def __init__(
        self, num_student: int = 100, num_teacher: int = 600, batch_size: int = 50, seed: int = 0
    ) -> None:
        super().__init__(num_train=num_teacher, batch_size=batch_size, seed=seed)
        if num_student > num_teacher:
            raise ValueError(
                f"num_student is {num_student}, but the teacher has logits for its num_teacher={num_teacher} "
                "images only: give at most as many."
            )
        self.num_student = num_student

    def train_dataloader(self) -> DataLoader[TaughtImages]:  # type: ignore[override]
        pixels_BHW, label_B = _everything(self.splits["train"])
        everything = TaughtImages(pixels_BHW, _teacher_logits(self.num_train, self.seed), label_B)
        few = TaughtImages(*(field[: self.num_student] for field in everything))
        return batches(Stored(few), self.batch_size, shuffle=True)


class DistillationLoss(nn.Module):
    """What a student has to learn from its teacher and from the labels, see ``distillation_loss``, in nats.

    Args:
        temperature: What the logits of both are divided by, > 0; it is read at every call.
        mix: Share of the teacher in the loss, in [0, 1); the rest is the labels'.

    Raises:
        SpecError: ``temperature`` is out of range; when called, ``mix`` is.
    """

    def __init__(self, temperature: float = 4.0, mix: float = 0.9) -> None:
        super().__init__()
        check_scale("temperature", temperature)
        self.temperature = temperature
        self.mix = mix

    def forward(self, logits_BC: Tensor, teacher_BC: Tensor, label_B: Tensor) -> Tensor:
        """Return the mean loss of a batch, a scalar.

        Args:
            logits_BC: The student's, shape (batch, classes).
            teacher_BC: The teacher's, in the same shape.
            label_B: The classes that are right.
        """
        return distillation_loss(
            logits_BC, teacher_BC, temperature=self.temperature, target=label_B, mix=self.mix
        )


class DistilledDigits(L.LightningModule):
    """An MLP with one narrow hidden layer that learns 8 x 8 images from a teacher.

    Logs ``val_accuracy`` and ``val_loss``, the cross-entropy of the labels in nats. Neither reads the
    temperature.

    ``criterion.temperature`` is a Python number that is read at every step.

    Args:
        d_hidden: Width of the hidden layer, >= 1.
        temperature: Temperature of the loss, > 0.
        mix: Share of the teacher in the loss, in [0, 1); the rest is the labels'.
        lr: Peak learning rate of AdamW, > 0.
        weight_decay: Decoupled weight decay, >= 0.
    """

    def __init__(
        self,
        d_hidden: int = 16,
        temperature: float = 4.0,
        mix: float = 0.9,
        lr: float = 1.6e-2,
        weight_decay: float = 0.05,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.weight_decay = weight_decay
        self.classify = nn.Sequential(
            nn.Flatten(), nn.Linear(NUM_PIXELS, d_hidden), nn.GELU(), nn.Linear(d_hidden, NUM_CLASSES)
        )
        self.criterion = DistillationLoss(temperature, mix)
        self.val_accuracy = MeanMetric()
        self.val_loss = MeanMetric()

    def forward(self, pixels_BHW: Tensor) -> Tensor:
        """Return class logits of shape (images, classes)."""
        logits_BC: Tensor = self.classify(pixels_BHW)
        return logits_BC

    def training_step(self, batch: TaughtImages, batch_idx: int) -> Tensor:
        loss: Tensor = self.criterion(self(batch.pixels_BHW), batch.teacher_BC, batch.label_B)
        return loss

    def validation_step(self, batch: Images, batch_idx: int) -> dict[str, Tensor]:
        logits_BC = self(batch.pixels_BHW)
        of_images = {
            "val_accuracy": (logits_BC.argmax(dim=1) == batch.label_B).float(),
            "val_loss": F.cross_entropy(logits_BC, batch.label_B, reduction="none"),
        }
        for name, metric in (("val_accuracy", self.val_accuracy), ("val_loss", self.val_loss)):
            metric.update(of_images[name])
            self.log(name, metric, on_epoch=True, batch_size=len(batch.label_B))
        # of each image, so that an interval over images can be given
        return of_images

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        return adamw_with_cosine(self, lr=self.lr, weight_decay=self.weight_decay)
