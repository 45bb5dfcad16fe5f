"""Learned temperatures of heads, beside a module with a parameter for each, and what has no heads."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertModel

from tempopt.attention.attach.attachment import attach
from tempopt.attention.attach.learning import HeadTemperatures
from tempopt.errors import AttachError, SpecError
from tempopt.spec.study_spec import StudySpec
from tempopt.training.learned_callback import LearnedTemperatureCallback
from tempopt.training.module import TemperedModule
from tests.toy_study import toy_spec
from tests.training.test_learned_callback import train

LR, RATIO = 1e-2, 10.0
HEADS = (2, 4)
"""Number of heads of each of two layers."""


class LearnedHeads(TemperedModule):
    """Two layers of attention with unlike numbers of heads, at temperatures of a plan."""

    def __init__(self, optimizer: type[torch.optim.Optimizer]) -> None:
        super().__init__(num_layers=2)
        self.optimizer = optimizer
        self.qk = nn.ModuleList(nn.Linear(8, 16) for _ in HEADS)
        self.head = nn.Linear(8, 3)

    def layer_output(self, layer: int, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor) -> Tensor:
        return self.attend(q_BHND, k_BHND, v_BHND, layer=layer)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x = batch[0]
        for layer, heads in enumerate(HEADS):
            q, k = self.qk[layer](x).chunk(2, dim=-1)
            q, k, v = (tensor.unflatten(-1, (heads, -1)).transpose(1, 2) for tensor in (q, k, x))
            x = x + self.layer_output(layer, q, k, v).transpose(1, 2).flatten(2)
        return F.cross_entropy(self.head(x.mean(1)), batch[1])

    def configure_optimizers(self) -> Any:
        params = [param for name, param in self.named_parameters() if not name.startswith("log_tau")]
        return self.optimizer([{"params": params, "weight_decay": 0.1}], lr=LR)  # type: ignore[call-arg]


class HeadByItself(LearnedHeads):
    """The same with ln τ of each head as a parameter in a group of its own."""

    def __init__(self, optimizer: type[torch.optim.Optimizer]) -> None:
        super().__init__(optimizer)
        self.log_tau = nn.ParameterList(torch.zeros(heads, dtype=torch.float64) for heads in HEADS)

    def layer_output(self, layer: int, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor) -> Tensor:
        scale = (-self.log_tau[layer]).exp().float()[:, None, None]
        return F.scaled_dot_product_attention(q_BHND * scale, k_BHND, v_BHND)

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        group = {"params": list(self.log_tau), "lr": RATIO * LR, "weight_decay": 0.0}
        optimizer.add_param_group(group)
        return optimizer


def texts() -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(0)
    x = 2 * torch.randn(96, 5, 8, generator=draw)
    return DataLoader(TensorDataset(x, x[:, 0].argmax(dim=1) % 3), batch_size=16)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_each_head_learns_what_a_parameter_of_the_module_would(
    optimizer: type[torch.optim.Optimizer],
) -> None:
    torch.manual_seed(0)
    plain, module = HeadByItself(optimizer), LearnedHeads(optimizer)
    weights = {name: value for name, value in plain.state_dict().items() if not name.startswith("log_tau")}
    module.load_state_dict(weights)
    train(plain, data=texts())
    learned = LearnedTemperatureCallback({}, lr_ratio=RATIO, per_head=module)
    train(module, learned, data=texts())
    learned_taus = {name: curve[-1][1] for name, curve in learned.curves.items()}
    expected = {
        f"learned/{layer}.{head}": math.exp(log_tau)
        for layer, log_taus in enumerate(plain.log_tau)
        for head, log_tau in enumerate(log_taus.tolist())
    }
    assert learned_taus == pytest.approx(expected, rel=1e-4)
    assert len({round(math.log(tau), 3) for tau in learned_taus.values()}) == sum(HEADS)
    assert all(curve[0] == [0, pytest.approx(1.0)] for curve in learned.curves.values())
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-3, atol=1e-5)


def test_the_gradient_of_heads_of_transformers_is_that_of_finite_differences() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2}
    model = BertModel(BertConfig(vocab_size=30, **sizes), add_pooling_layer=False).double().eval()
    tokens = torch.randint(0, 30, (2, 7))

    def loss() -> Tensor:
        hidden: Tensor = model(tokens).last_hidden_state
        return (hidden * torch.linspace(0, 1, hidden.numel(), dtype=hidden.dtype).view_as(hidden)).sum()

    attachment = attach(model, {"temperature_init": 0.8}, example=None)
    heads = attachment.learn_heads()
    loss()
    taus = [0.6, 0.8, 1.0, 1.2]
    for layer in heads.layers.values():
        layer.set_temperatures(taus)
    loss().backward()
    eps = 1e-6
    for layer in heads.layers.values():
        gradients = layer.log_gradients()
        assert gradients is not None and layer.log_gradients() is None
        for head in range(len(taus)):
            ends = []
            for sign in (1, -1):
                moved = list(taus)
                moved[head] *= math.exp(sign * eps)
                layer.set_temperatures(moved)
                ends.append(float(loss().detach()))
            layer.set_temperatures(taus)
            assert gradients[head] == pytest.approx((ends[0] - ends[1]) / (2 * eps), rel=1e-4, abs=1e-7)


class Late(LearnedHeads):
    """Its second layer attends from the fifth batch on."""

    def layer_output(self, layer: int, q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor) -> Tensor:
        late = layer == 1 and self.global_step < 4
        return torch.zeros_like(v_BHND) if late else super().layer_output(layer, q_BHND, k_BHND, v_BHND)


def test_heads_of_a_layer_that_attends_late_learn_from_then_on() -> None:
    torch.manual_seed(0)
    learned = LearnedTemperatureCallback({}, lr_ratio=RATIO, per_head=(module := Late(torch.optim.AdamW)))
    train(module, learned, data=texts())
    starts = {name: curve[0] for name, curve in learned.curves.items()}
    assert starts == {
        f"learned/{layer}.{head}": [4 * layer, pytest.approx(1.0)]
        for layer, heads in enumerate(HEADS)
        for head in range(heads)
    }
    assert all(abs(math.log(curve[-1][1])) > 1e-3 for curve in learned.curves.values())
    assert learned.names_without_gradient == []


def test_heads_keep_their_temperatures_where_a_module_moves_and_their_number() -> None:
    heads = HeadTemperatures((1.0, 2.0))
    q = torch.randn(1, 3, 4, 2)
    heads.factor(1, q)
    layer = heads.layers[1]
    assert heads.counts == [0, 3] and layer.names == ["1.0", "1.1", "1.2"]
    layer.set_temperatures([1.0, 2.0, 4.0])
    assert heads.factor(1, q).flatten().tolist() == [2.0, 1.0, 0.5]
    assert heads.factor(1, q.double()).dtype == torch.float64
    with pytest.raises(AttachError, match=r"Layer 1 attends with 2 heads, after 3.*learned: true"):
        heads.factor(1, q[:, :2])


def test_a_study_without_attention_has_no_heads_to_learn() -> None:
    space = {"contrast.temperature_init": {"low": 0.1, "high": 1.0}}
    without = toy_spec(space=space, learned="per_head")
    without["temperatures"] = {"contrast": {"value": "criterion.temperature", "as_found": 0.5}}
    with pytest.raises(SpecError, match=r"study.learned: given per_head, .*Give true"):
        StudySpec.parse(without, source="a test")
    with pytest.raises(SpecError, match=r"study.learned.*true, false or per_head"):
        StudySpec.parse(toy_spec(learned="heads"), source="a test")
    assert StudySpec.parse(toy_spec(learned="per_head"), source="a test").learns
