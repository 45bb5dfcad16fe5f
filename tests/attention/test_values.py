"""A schedule on one number of a model: it is written where the model reads it, and nothing else changes."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tempopt import AttachError, SpecError, ValueAttachment, attach_value

COSINE = {"schedule": "cosine", "temperature_final": 0.05}


class InfoNCE(nn.Module):
    """A loss with its temperature in every form in which libraries keep one."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = 0.5
        self.register_buffer("tau", torch.tensor(0.5), persistent=False)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        self.options = {"temperature": 0.2, "name": "x", "on": True}
        self.steps = [1, 0.3]
        self.pair = (0.1, 0.2)
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.tensor(3))
        self._inverse = 4.0
        self.copied = 1 / self.temperature
        self.unused = 0.7

    @property
    def inverse(self) -> float:
        return self._inverse

    @inverse.setter
    def inverse(self, value: float) -> None:
        self._inverse = value

    @property
    def fixed(self) -> float:
        return 2.0

    @property
    def scale(self) -> torch.Tensor:
        return self.logit_scale.exp()

    @property
    def clamped(self) -> float:
        return min(self._inverse, 5.0)

    @clamped.setter
    def clamped(self, value: float) -> None:
        self._inverse = min(value, 5.0)

    def forward(self, logits_NN: torch.Tensor) -> torch.Tensor:
        labels_N = torch.arange(len(logits_NN))
        parts = [
            nn.functional.cross_entropy(logits_NN * factor, labels_N)
            for factor in (
                1 / self.temperature,
                1 / self.tau,
                self.logit_scale.exp(),
                self._inverse,
                1 / self.options["temperature"],
                1 / self.steps[1],
                self.copied,
            )
        ]
        return torch.stack(parts).sum()


class ScaledModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.criterion = InfoNCE()
        self.losses = nn.ModuleList([InfoNCE()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.criterion(self.encoder(x))


PATHS = {
    "criterion.temperature": ("identity", 0.5),
    "criterion.tau": ("identity", 0.5),
    "criterion.logit_scale": ("log_inverse", 0.07),
    "criterion.inverse": ("inverse", 0.25),
    "criterion.options.temperature": ("identity", 0.2),
    "criterion.steps.1": ("identity", 0.3),
    "losses.0.tau": ("identity", 0.5),
}


def value_at(model: Any, path: str) -> float:
    """Return what is at a path, walked in another way than tempopt's."""
    expression = path.replace(".options.temperature", ".options['temperature']")
    expression = expression.replace("steps.1", "steps[1]").replace("losses.0", "losses[0]")
    return torch.as_tensor(eval(f"model.{expression}")).item()


@pytest.fixture
def model() -> ScaledModel:
    torch.manual_seed(0)
    return ScaledModel()


@pytest.mark.parametrize("path", PATHS)
def test_the_number_follows_the_schedule_from_what_was_found(model: ScaledModel, path: str) -> None:
    transform, initial_tau = PATHS[path]
    before = value_at(model, path)
    attachment = attach_value(model, path, COSINE, transform=transform)  # type: ignore[arg-type]
    assert attachment.initial_temperature == pytest.approx(initial_tau, rel=1e-6)
    for progress in (0.0, 0.3, 1.0):
        attachment.set_progress(progress)
        tau = 0.05 + (attachment.initial_temperature - 0.05) * (1 + math.cos(math.pi * progress)) / 2
        expected = {"identity": tau, "inverse": 1 / tau, "log_inverse": math.log(1 / tau)}[transform]
        assert value_at(model, path) == pytest.approx(expected, rel=1e-6)
        assert attachment.temperatures == pytest.approx((tau,), rel=1e-12)
    attachment.detach()
    assert value_at(model, path) == before


@given(
    tau=st.floats(1e-3, 1e3),
    transform=st.sampled_from(["identity", "inverse", "log_inverse"]),
    to=st.floats(1e-3, 1e3),
)
def test_what_is_stored_is_the_temperature_by_each_transform(tau: float, transform: str, to: float) -> None:
    model = nn.Linear(1, 1).double()
    stored = {"identity": tau, "inverse": 1 / tau, "log_inverse": -math.log(tau)}[transform]
    model.register_buffer("number", torch.tensor(stored, dtype=torch.float64))
    attachment = attach_value(model, "number", {"temperature_init": to}, transform=transform)  # type: ignore[arg-type]
    assert attachment.initial_temperature == pytest.approx(tau, rel=1e-9)
    expected = {"identity": to, "inverse": 1 / to, "log_inverse": -math.log(to)}[transform]
    assert float(model.number) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_at_the_temperature_as_found_nothing_is_written(model: ScaledModel) -> None:
    scale = model.criterion.logit_scale
    before = scale.detach().clone()
    version = scale._version
    attachment = attach_value(model, "criterion.logit_scale", {}, transform="log_inverse")
    attachment.set_progress(0.5)
    assert scale._version == version
    assert scale.requires_grad
    assert torch.equal(scale, before)


def test_a_learned_number_is_held_while_it_follows_a_schedule_and_learned_again_afterwards(
    model: ScaledModel,
) -> None:
    scale = model.criterion.logit_scale
    model(torch.randn(4, 4)).backward()
    assert scale.grad is not None
    with attach_value(
        model, "criterion.logit_scale", {"temperature_init": 0.2}, transform="log_inverse"
    ) as on:
        assert not scale.requires_grad
        assert scale.grad is None
        on.use({})
        assert scale.requires_grad
        assert scale.item() == pytest.approx(math.log(1 / 0.07))
        on.set_temperatures([0.3])
        assert not scale.requires_grad
        assert scale.item() == pytest.approx(math.log(1 / 0.3))
        on.use(COSINE)
        assert on.temperatures == (on.initial_temperature,)
    assert scale.requires_grad
    assert scale.item() == pytest.approx(math.log(1 / 0.07))


def test_it_follows_a_buffer_that_a_conversion_has_replaced(model: ScaledModel) -> None:
    attachment = attach_value(model, "criterion.tau", COSINE)
    model.double()
    attachment.set_progress(1.0)
    assert model.criterion.tau.dtype == torch.float64
    assert float(model.criterion.tau) == 0.05


def test_it_is_copied_and_pickled_with_its_model(model: ScaledModel) -> None:
    attachment = attach_value(model, "criterion.temperature", COSINE)
    for copied_model, copied_attachment in (
        copy.deepcopy((model, attachment)),
        pickle.loads(pickle.dumps((model, attachment))),
    ):
        copied_attachment.set_progress(1.0)
        assert copied_model.criterion.temperature == 0.05
        assert model.criterion.temperature == 0.5


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("criterion.temprature", r'Unknown name "temprature" in "criterion". Did you mean "temperature"'),
        (
            "loss.temperature",
            r'Unknown name "loss" in ScaledModel.*such as criterion.temperature, crit',
        ),
        ("losses.7.tau", r'Unknown name "7" in "losses". Known: 0'),
        ("criterion.options.tau", r'Unknown name "tau" in "criterion.options"'),
        ("criterion..tau", r'"criterion..tau" is no path'),
        ("criterion.weight", r'"criterion.weight" is a tensor of shape \(3,\), not one real number'),
        ("criterion.count", r'"criterion.count" is a tensor of int64, not one real number'),
        ("criterion.options.on", r"is True, not one real number"),
        ("criterion.options.name", r"is 'x', not one real number"),
        ("criterion", r'"criterion" is a InfoNCE, not one real number'),
        ("criterion.pair.0", r'"criterion.pair.0" cannot be written: TypeError'),
        ("criterion.fixed", r'"criterion.fixed" cannot be written: AttributeError'),
        ("criterion.scale", r'"criterion.scale" is computed anew each time it is read'),
    ],
)
def test_a_path_that_leads_to_no_number_is_refused(model: ScaledModel, path: str, message: str) -> None:
    with pytest.raises(AttachError, match=message):
        attach_value(model, path, COSINE)
    # nothing is left behind that would refuse the right one
    attach_value(model, "criterion.temperature", COSINE)


def test_a_number_that_does_not_keep_what_is_written_is_refused_and_left_as_it_was(
    model: ScaledModel,
) -> None:
    with pytest.raises(AttachError, match=r'"criterion.clamped" is 5.0 after 20.0 was written to it'):
        attach_value(model, "criterion.clamped", {"temperature_init": 0.05}, transform="inverse")
    assert model.criterion.clamped == 4.0


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"layer_ratio": 2.0}, AttachError, r"layer_ratio=2.0 is about layers, lengths or attention"),
        ({"entropy_lambda": 0.1}, AttachError, r"entropy_lambda=0.1 is about layers"),
        ({"temperature": 0.1}, AttachError, r'Unknown temperature parameter "temperature"'),
        ({"temperature_init": -1.0}, SpecError, r"temperature_init=-1.0 is out of range"),
        ({"temperature_final": 0.1}, SpecError, r"temperature_final=0.1 has no effect"),
    ],
)
def test_parameters_that_a_number_cannot_follow_are_refused(
    model: ScaledModel, parameters: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        attach_value(model, "criterion.temperature", parameters)
    attach_value(model, "criterion.temperature", COSINE)


def test_a_number_that_is_no_temperature_by_its_transform_is_refused(model: ScaledModel) -> None:
    model.criterion.temperature = -2.6
    with pytest.raises(
        AttachError, match=r'is -2.6, which by transform="identity" is no temperature.*log_inv'
    ):
        attach_value(model, "criterion.temperature", COSINE)
    assert attach_value(
        model, "criterion.temperature", COSINE, transform="log_inverse"
    ).initial_temperature == math.exp(2.6)
    with pytest.raises(SpecError, match=r'Unknown transform "log"'):
        attach_value(model, "criterion.tau", COSINE, transform="log")  # type: ignore[arg-type]


def test_one_number_has_one_schedule(model: ScaledModel) -> None:
    model.criterion.also = model.criterion.tau
    attach_value(model, "criterion.tau", COSINE)
    for path in ("criterion.tau", "criterion.also"):
        with pytest.raises(AttachError, match=r'A schedule is on "criterion.tau" already'):
            attach_value(model, path, COSINE)
    attach_value(model, "losses.0.tau", COSINE)


@pytest.mark.parametrize("path", [path for path in PATHS if path.startswith("criterion")])
def test_the_self_test_sees_each_number_that_the_loss_reads(model: ScaledModel, path: str) -> None:
    x = torch.randn(4, 4)
    before = value_at(model, path)
    attachment = attach_value(model, path, {}, transform=PATHS[path][0], loss=lambda: model(x))  # type: ignore[arg-type]
    assert value_at(model, path) == before
    assert isinstance(attachment, ValueAttachment)


def test_the_self_test_refuses_a_number_that_nothing_reads_and_leaves_all_as_it_was(
    model: ScaledModel,
) -> None:
    norm = nn.BatchNorm1d(4)
    model.encoder = nn.Sequential(nn.Linear(4, 4), norm, nn.Dropout(0.5))
    x = torch.randn(4, 4)
    state = torch.get_rng_state()
    with pytest.raises(
        AttachError,
        match=r'nothing reads "criterion.unused" in training.*Other numbers of this model are criterion.temp',
    ):
        attach_value(model, "criterion.unused", {}, loss=lambda: model(x))
    assert torch.equal(torch.get_rng_state(), state)
    assert norm.num_batches_tracked == 0
    assert model.criterion.unused == 0.7


def test_the_self_test_refuses_a_loss_that_tells_nothing(model: ScaledModel) -> None:
    def another() -> torch.Tensor:
        return model(torch.full((4, 4), float(next(numbers))))

    numbers = iter(range(99))
    with pytest.raises(AttachError, match="is not the same twice"):
        attach_value(model, "criterion.temperature", {}, loss=another)
    with pytest.raises(AttachError, match=r"The loss returned no tensor"):
        attach_value(model, "criterion.temperature", {}, loss=lambda: None)


def test_a_temperature_that_cancels_but_for_rounding_is_not_read(model: ScaledModel) -> None:
    x = torch.randn(4, 4)

    def cancelled_logits() -> torch.Tensor:
        return model.encoder(x) / model.criterion.temperature * model.criterion.temperature

    def loss() -> torch.Tensor:
        return model.losses[0](cancelled_logits()) + cancelled_logits().sum()

    plain = cancelled_logits()
    model.criterion.temperature = 0.7
    assert not torch.equal(cancelled_logits(), plain)
    with pytest.raises(
        AttachError, match=r'but for rounding at the .*: nothing reads "criterion.temperature'
    ):
        attach_value(model, "criterion.temperature", {}, loss=loss)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_a_number_of_numpy_is_one_and_is_given_back_as_it_was(model: ScaledModel, kind: Any) -> None:
    model.criterion.temperature = kind(0.5)
    x = torch.randn(4, 4)
    attachment = attach_value(model, "criterion.temperature", COSINE, loss=lambda: model(x))
    attachment.set_progress(1.0)
    assert model.criterion.temperature == pytest.approx(0.05)
    attachment.detach()
    assert type(model.criterion.temperature) is kind and model.criterion.temperature == kind(0.5)


def test_codes_that_are_sampled_straight_through_move_by_their_gradient_alone() -> None:
    class Quantizer(nn.Module):
        def __init__(self, hard: bool) -> None:
            super().__init__()
            self.temperature = 1.0
            self.logits = nn.Parameter(torch.tensor([[9.0, 0.0, -9.0]]))
            self.hard = hard

        def forward(self) -> torch.Tensor:
            codes = nn.functional.gumbel_softmax(self.logits, tau=self.temperature, hard=self.hard)
            return (codes * torch.tensor([1.0, 2.0, 3.0])).sum()

    torch.manual_seed(0)
    for hard in (True, False):
        quantizer = Quantizer(hard)
        attach_value(quantizer, "temperature", COSINE, loss=quantizer)
        assert quantizer.logits.grad is None


def test_a_loss_that_keeps_statistics_in_a_buffer_is_tested_and_left_as_it_was() -> None:
    class CentredLoss(nn.Module):
        """As DINO's loss, whose centre moves with every batch."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("center", torch.zeros(4))
            self.teacher_temp = 0.04

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            target = ((x - self.center) / self.teacher_temp).softmax(-1)
            self.center = 0.9 * self.center + 0.1 * x.mean(0)
            return -(target * x.log_softmax(-1)).sum()

    torch.manual_seed(0)
    loss, x = CentredLoss(), torch.randn(8, 4)
    attach_value(loss, "teacher_temp", COSINE, loss=lambda: loss(x))
    assert torch.equal(loss.center, torch.zeros(4))


def test_what_was_learned_as_found_is_there_again_after_another_plan_and_after_detaching(
    model: ScaledModel,
) -> None:
    attached = attach_value(model, "criterion.logit_scale", {}, transform="log_inverse")
    plan = attached.plan
    with torch.no_grad():
        model.criterion.logit_scale.fill_(3.0)
    attached.use({"temperature_init": 0.2})
    assert model.criterion.logit_scale.item() == pytest.approx(-math.log(0.2))
    attached.keep(plan)
    assert model.criterion.logit_scale.item() == 3.0 and model.criterion.logit_scale.requires_grad
    attached.set_temperatures([0.5])
    attached.detach()
    assert model.criterion.logit_scale.item() == 3.0 and model.criterion.logit_scale.requires_grad
