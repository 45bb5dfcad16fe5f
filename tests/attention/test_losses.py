"""Losses with an output temperature against torch's own, their definitions in float64, and scipy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
import torch.nn.functional as F
from torch import Tensor

from tempopt.attention.modules.learned import no_decay_names
from tempopt.attention.modules.losses import (
    LearnedOutputTemperature,
    OutputTemperature,
    contrastive_loss,
    distillation_loss,
    tempered_cross_entropy,
)
from tempopt.errors import SpecError, UsageError
from tempopt.temperature import Constant

N, C, E = 6, 5, 4


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def classes(n: int = N, c: int = C) -> Tensor:
    return torch.randint(c, (n,), generator=torch.Generator().manual_seed(9))


# Cross-entropy.


VARIANTS: list[dict[str, Any]] = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"label_smoothing": 0.2},
    {"weight": torch.tensor([1.0, 2.0, 0.5, 0.0, 3.0])},
    {"ignore_index": 2},
    {"label_smoothing": 0.1, "weight": torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0]), "ignore_index": 0},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("temperature", [1.0, torch.tensor(1.0)], ids=["number", "tensor"])
@pytest.mark.parametrize("keep_gradient", [True, False])
def test_at_temperature_one_the_loss_is_torchs_to_the_last_bit(
    options: dict[str, Any], temperature: Any, keep_gradient: bool
) -> None:
    for dtype in (torch.float32, torch.float64):
        loss_options = {
            name: value.to(dtype) if name == "weight" else value for name, value in options.items()
        }
        ours, theirs = ((3 * randn(N, C)).to(dtype).requires_grad_() for _ in range(2))
        loss = tempered_cross_entropy(
            ours, classes(), temperature=temperature, keep_gradient=keep_gradient, **loss_options
        )
        plain = F.cross_entropy(theirs, classes(), **loss_options)
        assert torch.equal(loss, plain)
        loss.sum().backward()
        plain.sum().backward()
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("temperature", [0.25, 0.5, 2.0, 8.0])
def test_the_loss_is_minus_the_log_likelihood_of_the_tempered_softmax(temperature: float) -> None:
    logits, target = 3 * randn(N, C), classes()
    likelihoods = scipy.special.softmax(logits.numpy() / temperature, axis=1)[np.arange(N), target]
    expected = -np.log(likelihoods).mean()
    options: dict[str, Any] = {"temperature": temperature}
    plain = tempered_cross_entropy(logits, target, keep_gradient=False, **options)
    assert plain.item() == pytest.approx(expected, rel=1e-12)
    scaled_loss = tempered_cross_entropy(logits, target, **options)
    assert scaled_loss.item() == pytest.approx(temperature * expected, rel=1e-12)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 8.0])
def test_the_kept_gradient_is_the_error_of_the_tempered_probabilities(temperature: float) -> None:
    logits, target = randn(N, C).requires_grad_(), classes()
    tempered_cross_entropy(logits, target, temperature=temperature, reduction="sum").backward()
    error = scipy.special.softmax(logits.detach().numpy() / temperature, axis=1) - np.eye(C)[target]
    assert logits.grad is not None
    np.testing.assert_allclose(logits.grad.numpy(), error, atol=1e-14)


def test_a_learned_temperature_gets_the_gradient_of_the_likelihood_times_itself() -> None:
    """The factor that keeps the gradient is no reason to cool."""
    logits, target = randn(N, C), classes()
    gradients = []
    for keep_gradient in (True, False):
        temperature = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
        tempered_cross_entropy(
            logits, target, temperature=temperature, keep_gradient=keep_gradient
        ).backward()
        assert temperature.grad is not None
        gradients.append(temperature.grad.item())
    assert gradients[0] == pytest.approx(2.0 * gradients[1])


def test_the_loss_has_the_gradient_of_its_formula() -> None:
    target = classes()
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def loss(logits: Tensor, temperature: Tensor) -> Tensor:
        return tempered_cross_entropy(logits, target, temperature=temperature, keep_gradient=False)

    assert torch.autograd.gradcheck(loss, (randn(N, C).requires_grad_(), temperature))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_divided_in_float32(dtype: torch.dtype) -> None:
    logits = (20 * randn(N, C)).to(dtype)
    loss = tempered_cross_entropy(logits, classes(), temperature=torch.tensor(0.37))
    assert loss.dtype == torch.float32
    exact = tempered_cross_entropy(logits.double(), classes(), temperature=0.37)
    assert loss.item() == pytest.approx(exact.item(), rel=1e-5)
    weight = torch.ones(C, dtype=dtype)
    assert tempered_cross_entropy(logits, classes(), temperature=0.37, weight=weight).isfinite()


# Temperatures over training.


def test_the_holder_keeps_its_temperature_in_other_types_and_out_of_the_state() -> None:
    output_temperature = OutputTemperature(Constant(temperature_init=1.001))
    assert output_temperature.to(torch.bfloat16)().dtype == torch.float32
    assert output_temperature().item() == pytest.approx(1.001)
    assert output_temperature.double()().item() == 1.001
    assert output_temperature.state_dict() == {}
    output_temperature = OutputTemperature(Constant(temperature_init=1.001)).to("meta").to_empty(device="cpu")
    assert output_temperature().item() == pytest.approx(1.001)


# Distillation.


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_distillation_is_the_divergence_of_the_tempered_softmaxes(temperature: float) -> None:
    student, teacher = randn(N, C), randn(N, C, seed=1)
    p = scipy.special.softmax(teacher.numpy() / temperature, axis=1)
    q = scipy.special.softmax(student.numpy() / temperature, axis=1)
    expected = temperature**2 * scipy.special.rel_entr(p, q).sum(axis=1)
    options: dict[str, Any] = {"temperature": temperature}
    losses = distillation_loss(student, teacher, reduction="none", **options)
    np.testing.assert_allclose(losses.numpy(), expected, rtol=1e-10)
    assert distillation_loss(student, teacher, **options).item() == pytest.approx(expected.mean())
    assert distillation_loss(student, teacher, reduction="sum", **options).item() == pytest.approx(
        expected.sum()
    )


def test_true_classes_are_mixed_in_at_temperature_one() -> None:
    student, teacher, target = randn(N, C), randn(N, C, seed=1), classes()
    soft = distillation_loss(student, teacher, temperature=3.0)
    hard = F.cross_entropy(student, target)
    mixed = distillation_loss(student, teacher, temperature=3.0, target=target, mix=0.3)
    torch.testing.assert_close(mixed, 0.3 * soft + 0.7 * hard)
    torch.testing.assert_close(
        distillation_loss(student, teacher, temperature=3.0, target=target, mix=0.0), hard
    )


def test_nothing_flows_to_the_teacher() -> None:
    student, teacher = randn(N, C).requires_grad_(), randn(N, C, seed=1).requires_grad_()
    distillation_loss(student, teacher, temperature=2.0).backward()
    assert teacher.grad is None


def test_a_class_that_both_rule_out_does_not_count() -> None:
    student, teacher = randn(N, C), randn(N, C, seed=1)
    less = distillation_loss(student[:, :4], teacher[:, :4], temperature=2.0)
    student[:, 4] = teacher[:, 4] = -math.inf
    student.requires_grad_()
    loss = distillation_loss(student, teacher, temperature=2.0)
    loss.backward()
    torch.testing.assert_close(loss.detach(), less)
    assert student.grad is not None
    assert bool(student.grad.isfinite().all())


def test_distillation_has_the_gradient_of_its_formula() -> None:
    teacher, target = randn(2, C, 3, seed=1), torch.tensor([[0, 1, 2], [3, 4, 0]])

    def loss(student: Tensor) -> Tensor:
        return distillation_loss(student, teacher, temperature=2.0, target=target, mix=0.5)

    assert torch.autograd.gradcheck(loss, (randn(2, C, 3).requires_grad_(),))


# Contrast.


@pytest.mark.parametrize("temperature", [0.07, 0.5, 2.0])
def test_contrast_is_the_cross_entropy_of_cosines_both_ways(temperature: float) -> None:
    a, b = randn(N, E), randn(N, E, seed=1)
    total = 0.0
    for i in range(N):
        rows = [float(F.cosine_similarity(a[i], b[j], dim=0)) / temperature for j in range(N)]
        columns = [float(F.cosine_similarity(a[j], b[i], dim=0)) / temperature for j in range(N)]
        total += scipy.special.logsumexp(rows) - rows[i] + scipy.special.logsumexp(columns) - columns[i]
    loss = contrastive_loss(a, b, temperature=temperature)
    assert loss.item() == pytest.approx(total / (2 * N), rel=1e-12)
    scaled_loss = contrastive_loss(a, b, temperature=temperature, keep_gradient=True)
    assert scaled_loss.item() == pytest.approx(temperature * loss.item())


def test_contrast_is_computed_in_float32_under_autocast() -> None:
    a, b = randn(N, E).float(), randn(N, E, seed=1).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = contrastive_loss(a.bfloat16(), b.bfloat16(), temperature=torch.tensor(0.07))
    torch.testing.assert_close(
        loss, contrastive_loss(a.bfloat16().float(), b.bfloat16().float(), temperature=0.07)
    )


def test_a_learned_temperature_is_clips_and_stays_between_its_bounds() -> None:
    learned = LearnedOutputTemperature()
    assert learned().item() == pytest.approx(0.07)
    assert no_decay_names(learned) == {"log_temperature"}
    for beyond, bound in ((-20.0, 0.01), (20.0, 1.0)):
        with torch.no_grad():
            learned.log_temperature.fill_(beyond)
        assert learned.eval()().item() == pytest.approx(bound)
        assert learned.log_temperature.item() == beyond
        assert learned.train()().item() == pytest.approx(bound)
        assert learned.log_temperature.item() == pytest.approx(math.log(bound))


@pytest.mark.parametrize(("beyond", "bound"), [(-20.0, 0.01), (20.0, 1.0)])
def test_a_learned_temperature_comes_back_from_a_bound(beyond: float, bound: float) -> None:
    learned = LearnedOutputTemperature()
    with torch.no_grad():
        learned.log_temperature.fill_(beyond)
    optimizer = torch.optim.SGD(learned.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        (learned() / 0.1).log().square().backward()
        optimizer.step()
    assert abs(math.log(learned().item() / 0.1)) < abs(math.log(bound / 0.1)) / 5


def test_a_learned_temperature_may_serve_several_losses_at_once() -> None:
    learned = LearnedOutputTemperature()
    a, b = randn(N, E).float(), randn(N, E, seed=1).float()
    (contrastive_loss(a, b, temperature=learned()) + contrastive_loss(b, a, temperature=learned())).backward()
    assert learned.log_temperature.grad is not None


# Devices.


# Refusals.


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf, True])
def test_an_impossible_temperature_is_refused(temperature: float) -> None:
    with pytest.raises(SpecError, match=r"temperature=.* out of range.*1e-06 to 1e\+06"):
        tempered_cross_entropy(randn(N, C), classes(), temperature=temperature)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mix": 0.5}, "target is missing"),
        ({"target": classes()}, "target is given"),
        ({"mix": 1.5, "target": classes()}, r"mix=1\.5 is out of range"),
        ({"reduction": "batchmean"}, r'reduction is "batchmean"; allowed are mean, sum, none'),
    ],
)
def test_a_distillation_that_ignores_something_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        distillation_loss(randn(N, C), randn(N, C), temperature=2.0, **options)


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(UsageError, match=r"student has shape \(6, 5\) and teacher \(6, 4\)"):
        distillation_loss(randn(N, C), randn(N, E), temperature=2.0)
    with pytest.raises(UsageError, match=r"a has shape \(6, 4\) and b \(5, 4\)"):
        contrastive_loss(randn(N, E), randn(C, E), temperature=2.0)
