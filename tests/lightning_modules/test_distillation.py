"""A student and its teacher: what the teacher knows, what the loss adds up, what the temperature moves."""

from __future__ import annotations

from collections.abc import Callable

import lightning as L
import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy
from sklearn.metrics import accuracy_score, log_loss

from lightning_modules.digits_data import DigitsData, Images
from lightning_modules.distillation import DistilledDigits, TaughtDigits, TaughtImages

Fit = Callable[..., L.Trainer]
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
