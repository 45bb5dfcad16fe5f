from __future__ import annotations

import copy
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from tempopt.attention.attach.attachment import attach
from tempopt.errors import AttachError
from tempopt.temperature import TemperatureParameters

WIDTH, HEADS, BATCH, TOKENS = 16, 4, 3, 7
HOT = TemperatureParameters(temperature_init=2.0)


class SelfTestBlock(nn.Module):
    """A residual block of attention whose query may be treated further."""

    def __init__(self, treat: nn.Module | None = None) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, WIDTH)
        self.k_proj = nn.Linear(WIDTH, WIDTH)
        self.v_proj = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.treat = treat or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            projection(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = scaled_dot_product_attention(self.treat(q), k, v)
        return x + self.out(attended.transpose(1, 2).flatten(2))


class FusedAttention(nn.Module):
    """Fused attention that may keep query, key and value head by head."""

    def __init__(self, *, interleaved: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.interleaved = interleaved

    def forward(self, x: Tensor) -> Tensor:
        if self.interleaved:
            parts = self.qkv(x).unflatten(-1, (HEADS, 3, -1)).transpose(1, 2).unbind(3)
        else:
            parts = self.qkv(x).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)
        q, k, v = parts
        return x + scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def batch() -> Tensor:
    return torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))


def prove(model: nn.Module, x: Tensor | None = None) -> None:
    inputs = batch() if x is None else x
    attach(model, HOT).self_test(lambda: model(inputs))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


MODELS = {
    "encoder": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True), 3, enable_nested_tensor=False
    ),
    "separate": lambda: nn.Sequential(SelfTestBlock(), SelfTestBlock()),
    "fused": lambda: nn.Sequential(FusedAttention(interleaved=False), FusedAttention(interleaved=True)),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_model_whose_temperature_acts_passes(make) -> None:
    prove(make())


def test_a_branch_that_starts_closed_passes_and_stays_closed() -> None:
    model = nn.Sequential(SelfTestBlock(), SelfTestBlock())
    for block in model:
        nn.init.zeros_(block.out.weight)
        nn.init.zeros_(block.out.bias)
        nn.init.zeros_(block.q_proj.weight)
    prove(model)
    assert all(not block.out.weight.any() and not block.out.bias.any() for block in model)


@pytest.mark.parametrize("eps", [1e-6, 0.0])
def test_a_query_that_is_normalised_after_its_projection_passes(eps) -> None:
    prove(nn.Sequential(SelfTestBlock(), SelfTestBlock(nn.RMSNorm(WIDTH // HEADS, eps=eps))))


def test_a_layer_whose_output_is_discarded_is_refused_with_its_name() -> None:
    class Discarding(SelfTestBlock):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            return x

    model = nn.Sequential(SelfTestBlock(), Discarding())
    with pytest.raises(AttachError, match=r'"1" did not move the output'):
        prove(model)


def test_a_layer_that_the_forward_does_not_use_is_refused_with_its_name() -> None:
    model = nn.ModuleList([SelfTestBlock(), SelfTestBlock()])
    attachment = attach(model, HOT)
    x = batch()
    with pytest.raises(AttachError, match=r'"1" did not move the output. This forward does not use it'):
        attachment.self_test(lambda: model[0](x))


def test_a_forward_that_does_not_repeat_itself_is_refused() -> None:
    model, draws = SelfTestBlock(), torch.Generator().manual_seed(2)
    attachment = attach(model, HOT)
    with pytest.raises(AttachError, match="different outputs for the same model"):
        attachment.self_test(lambda: model(torch.randn(BATCH, TOKENS, WIDTH, generator=draws)))


def test_a_forward_that_changes_buffers_and_a_teacher_is_tested() -> None:
    class MomentumPair(nn.Module):
        """Student and teacher with a queue of what the teacher has made (MoCo)."""

        def __init__(self) -> None:
            super().__init__()
            self.student = MODELS["encoder"]()
            self.teacher = copy.deepcopy(self.student)
            self.register_buffer("queue", torch.randn(6, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                for moved, student in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                    moved.lerp_(student, 0.5)
                hidden = self.teacher(x).mean(1)
            loss = (self.student(x).mean(1) @ self.queue.T - hidden.norm()).logsumexp(-1).mean()
            self.queue = torch.cat([self.queue[len(x) :], hidden])
            return loss

    model = MomentumPair()
    queue = model.queue.clone()
    prove(model)
    assert torch.equal(model.queue, queue)


def test_outputs_may_be_nested_and_infinite() -> None:
    @dataclass
    class Output:
        logits: Tensor
        extras: dict[str, object]

    model = SelfTestBlock()

    def forward() -> Output:
        logits = model(batch())
        masked = logits.masked_fill(torch.eye(TOKENS, WIDTH, dtype=torch.bool), float("-inf"))
        return Output(masked, {"classes": logits.argmax(-1), "more": [None, (logits > 0,)]})

    attach(model, HOT).self_test(forward)


class Busy(nn.Module):
    """Changes whatever a forward can change."""

    def __init__(self) -> None:
        super().__init__()
        self.block = SelfTestBlock()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.total = torch.zeros(())
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        self.count += 1
        self.total.add_(1)
        noise = torch.rand(1).item() + random.random() + np.random.rand()
        return self.norm((self.block(x) + noise).transpose(1, 2))


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training) -> None:
    model = Busy().train(training)
    model.norm.train(not training)
    x = batch()
    attachment = attach(model, HOT)
    attachment.set_progress(0.5)
    model(x).sum().backward()
    before = copy.deepcopy(model)
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()

    attachment.self_test(lambda: model(x))

    assert all(map(torch.equal, model.parameters(), before.parameters()))
    assert all(map(torch.equal, model.buffers(), before.buffers()))
    assert all(map(torch.equal, (parameter.grad for parameter in model.parameters()), grads))
    assert [module.training for module in model.modules()] == [module.training for module in before.modules()]
    assert model.count == before.count
    assert torch.equal(model.total, before.total)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()
    assert torch.equal(model.block(x), before.block(x))
