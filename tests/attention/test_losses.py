"""Losses with an output temperature against torch's own, their definitions in float64, and scipy."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from tempopt.attention.modules.learned import no_decay_names
from tempopt.attention.modules.losses import (
    LearnedOutputTemperature,
    OutputTemperature,
    contrastive_loss,
    distillation_loss,
    tempered_cross_entropy,
)
from tempopt.errors import SpecError, UsageError
from tempopt.temperature import Constant, Cyclic, Exponential, Linear, progress

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


def test_classes_may_lie_before_places_as_in_torch() -> None:
    logits = randn(2, C, 3, 4)
    target = torch.randint(C, (2, 3, 4), generator=torch.Generator().manual_seed(1))
    flat = tempered_cross_entropy(
        logits.permute(0, 2, 3, 1).reshape(-1, C), target.reshape(-1), temperature=2.0
    )
    torch.testing.assert_close(tempered_cross_entropy(logits, target, temperature=2.0), flat)


def test_targets_may_be_probabilities() -> None:
    logits, target = randn(N, C), randn(N, C, seed=1).softmax(dim=1)
    expected = -(target * (logits / 2).log_softmax(dim=1)).sum(dim=1).mean()
    loss = tempered_cross_entropy(logits, target, temperature=2.0, keep_gradient=False)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 8.0])
def test_the_kept_gradient_is_the_error_of_the_tempered_probabilities(temperature: float) -> None:
    logits, target = randn(N, C).requires_grad_(), classes()
    tempered_cross_entropy(logits, target, temperature=temperature, reduction="sum").backward()
    error = scipy.special.softmax(logits.detach().numpy() / temperature, axis=1) - np.eye(C)[target]
    assert logits.grad is not None
    np.testing.assert_allclose(logits.grad.numpy(), error, atol=1e-14)


def gradient_length(temperature: float, keep_gradient: bool) -> float:
    logits, target = randn(64, C).requires_grad_(), classes(64)
    tempered_cross_entropy(logits, target, temperature=temperature, keep_gradient=keep_gradient).backward()
    assert logits.grad is not None
    return float(logits.grad.norm())


def test_without_it_annealing_the_temperature_anneals_the_learning_rate() -> None:
    """The tutorial's loss: over T = 8 to 0.25 its gradient grows some 30-fold."""
    plain_lengths = [gradient_length(temperature, keep_gradient=False) for temperature in (8.0, 0.25)]
    kept_lengths = [gradient_length(temperature, keep_gradient=True) for temperature in (8.0, 0.25)]
    assert plain_lengths[1] / plain_lengths[0] > 20
    assert 0.5 < kept_lengths[1] / kept_lengths[0] < 2


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


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [(0.5, [0.8638, 0.1169, 0.0193]), (1.0, [0.6590, 0.2424, 0.0986]), (2.0, [0.5017, 0.3043, 0.1940])],
)
def test_the_loss_knows_the_tutorials_logits_by_their_true_probabilities(
    temperature: float, expected: list[float]
) -> None:
    """Of its table for the logits 2, 1, 0.1 only the line of T = 1 is right."""
    logits = torch.tensor([2.0, 1.0, 0.1], dtype=torch.float64)
    options: dict[str, Any] = {"temperature": temperature, "keep_gradient": False}
    losses = [tempered_cross_entropy(logits, torch.tensor(label), **options).item() for label in range(3)]
    assert [math.exp(-loss) for loss in losses] == pytest.approx(expected, abs=5e-5)


def test_the_last_epoch_has_the_final_temperature_as_the_tutorials_has_not() -> None:
    def tutorial(epoch: int, epochs: int) -> float:
        return 2.0 - (2.0 - 0.5) * epoch / epochs

    ours = OutputTemperature(Linear(temperature_init=2.0, temperature_final=0.5))
    ours.set_progress(progress(9, 10))
    assert tutorial(9, 10) == pytest.approx(0.65)
    assert ours().item() == 0.5


# Temperatures over training.


@given(st.floats(0, 1))
def test_the_holder_has_the_schedules_temperature(at: float) -> None:
    schedule = Exponential(temperature_init=4.0, temperature_final=0.5)
    output_temperature = OutputTemperature(schedule)
    output_temperature.set_progress(at)
    assert output_temperature().item() == pytest.approx(schedule(at), rel=1e-6)


def test_cycling_is_that_of_kukleva() -> None:
    """tau(t) = (tau_plus - tau_minus)(1 + cos(2 pi t / period)) / 2 + tau_minus, from epoch to epoch."""
    low, high, period, epochs = 0.1, 1.0, 400, 1000
    output_temperature = OutputTemperature(
        Cyclic(temperature_init=high, temperature_final=low, cycles=epochs / period)
    )
    for epoch in range(0, epochs + 1, 25):
        output_temperature.set_progress(progress(epoch, epochs + 1))
        expected = (high - low) * (1 + math.cos(2 * math.pi * epoch / period)) / 2 + low
        assert output_temperature().item() == pytest.approx(expected, rel=1e-6)


def test_one_graph_serves_every_temperature() -> None:
    model = nn.Linear(E, C)
    output_temperature = OutputTemperature(Linear(temperature_init=2.0, temperature_final=0.5))
    x, target = randn(N, E).float(), classes()
    counter = CompileCounter()

    @torch.compile(backend=counter, fullgraph=True)
    def loss() -> Tensor:
        return tempered_cross_entropy(model(x), target, temperature=output_temperature())

    for at in (0.0, 0.3, 0.7, 1.0):
        output_temperature.set_progress(at)
        expected = tempered_cross_entropy(model(x), target, temperature=output_temperature.schedule(at))
        torch.testing.assert_close(loss(), expected)
    assert counter.frame_count == 1


def test_the_holder_keeps_its_temperature_in_other_types_and_out_of_the_state() -> None:
    output_temperature = OutputTemperature(Constant(temperature_init=1.001))
    assert output_temperature.to(torch.bfloat16)().dtype == torch.float32
    assert output_temperature().item() == pytest.approx(1.001)
    assert output_temperature.double()().item() == 1.001
    assert output_temperature.state_dict() == {}
    output_temperature = OutputTemperature(Constant(temperature_init=1.001)).to("meta").to_empty(device="cpu")
    assert output_temperature().item() == pytest.approx(1.001)


def test_a_progress_outside_training_is_refused_and_changes_nothing() -> None:
    output_temperature = OutputTemperature(Linear(temperature_init=2.0, temperature_final=0.5))
    with pytest.raises(UsageError, match=r"progress=1\.5 is outside"):
        output_temperature.set_progress(1.5)
    assert (output_temperature.progress, output_temperature().item()) == (0.0, 2.0)


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


def test_a_student_like_its_teacher_has_nothing_to_learn() -> None:
    student = randn(N, C).requires_grad_()
    loss = distillation_loss(student, student.detach() + 5.0, temperature=2.0)
    loss.backward()
    assert student.grad is not None
    assert loss.item() == pytest.approx(0.0, abs=1e-14)
    assert student.grad.abs().max().item() < 1e-14


def test_at_high_temperature_distillation_is_the_matching_of_logits() -> None:
    """Hinton: with T^2 the gradient tends to (z - v) / C for logits of mean 0, whatever T is."""
    student, teacher = (
        logits - logits.mean(dim=1, keepdim=True) for logits in (randn(N, C), randn(N, C, seed=1))
    )
    for temperature in (100.0, 1000.0):
        student = student.detach().requires_grad_()
        distillation_loss(student, teacher, temperature=temperature, reduction="sum").backward()
        assert student.grad is not None
        torch.testing.assert_close(
            student.grad, (student.detach() - teacher) / C, rtol=0, atol=1 / temperature
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


def test_neither_side_nor_length_matters() -> None:
    a, b = randn(N, E), randn(N, E, seed=1)
    loss = contrastive_loss(a, b, temperature=0.1)
    torch.testing.assert_close(contrastive_loss(b, a, temperature=0.1), loss)
    torch.testing.assert_close(contrastive_loss(7 * a, 0.2 * b, temperature=0.1), loss)


def test_contrast_is_computed_in_float32_under_autocast() -> None:
    a, b = randn(N, E).float(), randn(N, E, seed=1).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = contrastive_loss(a.bfloat16(), b.bfloat16(), temperature=torch.tensor(0.07))
    torch.testing.assert_close(
        loss, contrastive_loss(a.bfloat16().float(), b.bfloat16().float(), temperature=0.07)
    )


def test_contrast_has_the_gradient_of_its_formula() -> None:
    temperature = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    sides = (randn(3, E).requires_grad_(), randn(3, E, seed=1).requires_grad_())
    assert torch.autograd.gradcheck(
        lambda a, b, t: contrastive_loss(a, b, temperature=t), (*sides, temperature)
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


def test_a_learned_temperature_compiles_into_one_graph_with_the_same_gradient() -> None:
    a, b = randn(N, E).float(), randn(N, E, seed=1).float()
    gradients = []
    for compiled in (False, True):
        learned = LearnedOutputTemperature()
        with torch.no_grad():
            learned.log_temperature.fill_(3.0)

        def loss(learned: nn.Module = learned) -> Tensor:
            return contrastive_loss(a, b, temperature=learned())

        call = torch.compile(loss, backend="aot_eager", fullgraph=True) if compiled else loss
        call().backward()
        assert learned.log_temperature.grad is not None
        assert learned.log_temperature.item() == 0.0
        gradients.append(learned.log_temperature.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_a_learned_temperatures_state_is_data() -> None:
    learned, loaded_temperature = LearnedOutputTemperature(init=0.5), LearnedOutputTemperature()
    file = io.BytesIO()
    torch.save(learned.state_dict(), file)
    file.seek(0)
    loaded_temperature.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(loaded_temperature(), learned())


# Devices.


@pytest.mark.parametrize("loss", [tempered_cross_entropy, distillation_loss])
def test_everything_is_made_on_the_device_of_the_logits(loss: Callable[..., Tensor]) -> None:
    """The meta device refuses to meet tensors of another one, as a GPU does."""
    output_temperature = OutputTemperature(Constant(temperature_init=2.0)).to("meta")
    learned = LearnedOutputTemperature(init=0.07).to("meta")
    logits, other_logits = (randn(N, C).to("meta") for _ in range(2))
    second = classes().to("meta") if loss is tempered_cross_entropy else other_logits
    for temperature in (2.0, output_temperature(), learned()):
        assert loss(logits, second, temperature=temperature).device.type == "meta"


# Refusals.


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf, True])
def test_an_impossible_temperature_is_refused(temperature: float) -> None:
    with pytest.raises(SpecError, match=r"temperature=.* out of range.*1e-06 to 1e\+06"):
        tempered_cross_entropy(randn(N, C), classes(), temperature=temperature)


def test_several_temperatures_are_refused() -> None:
    with pytest.raises(UsageError, match=r"temperature has shape \(2,\).*one element"):
        contrastive_loss(randn(N, E), randn(N, E), temperature=torch.ones(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mix": 0.5}, "there is no target"),
        ({"target": classes()}, r"no effect with mix=1\.0"),
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


@pytest.mark.parametrize("bounds", [{"init": 2.0}, {"lowest": 0.1}, {"lowest": 0.0}])
def test_a_learned_temperature_starts_between_its_bounds(bounds: dict[str, float]) -> None:
    with pytest.raises(SpecError, match="Give"):
        LearnedOutputTemperature(**bounds)
