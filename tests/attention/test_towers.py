"""A layer pattern runs over each tower of a model; a copy has the temperatures of its original."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tempopt.attention.attach.attachment import Attachment, attach

RATIO = {"layer_pattern": "exp", "layer_ratio": 16.0}
X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


def encoder(num_layers: int = 3) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)


class TowerPair(nn.Module):
    """Two encoders, of which the second may be a copy."""

    def __init__(self, second: Callable[[nn.Module], nn.Module], first_layers: int = 3) -> None:
        super().__init__()
        self.student = encoder(first_layers)
        self.teacher = second(self.student)

    def forward(self, x: Tensor) -> Tensor:
        return self.student(x) - 0.5 * self.teacher(x)


def attached(model: nn.Module, *inputs: Tensor) -> Attachment:
    torch.manual_seed(1)
    return attach(model, RATIO, example=lambda: model(*(inputs or (X,))))


def test_encoder_and_decoder_with_its_cross_attention_are_towers() -> None:
    model = nn.Transformer(8, 2, 3, 2, 16, dropout=0.0, batch_first=True)
    attachment = attached(model, X, X)
    temperatures = dict(zip(attachment.layers, attachment.temperatures, strict=True))
    assert [len(tower) for tower in attachment.towers] == [3, 2, 2]
    for tower in attachment.towers:
        assert temperatures[tower[-1]] / temperatures[tower[0]] == pytest.approx(16.0)


@pytest.mark.parametrize("second", [lambda student: copy.deepcopy(student), lambda _: encoder()])
def test_layers_as_deep_in_two_towers_have_one_temperature(second: Callable[..., nn.Module]) -> None:
    attachment = attached(TowerPair(second))
    assert attachment.temperatures == pytest.approx(2 * [0.25, 1.0, 4.0])


def test_temperatures_that_are_set_reach_a_copy_and_no_other_tower() -> None:
    for second, expected in ((copy.deepcopy, (2.0, 3.0, 4.0)), (lambda _: encoder(), (5.0, 6.0, 7.0))):
        attachment = attached(TowerPair(second))
        attachment.set_temperatures([2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
        assert attachment.temperatures == (2.0, 3.0, 4.0, *expected)


def test_heads_that_are_learned_have_one_temperature_in_a_copy() -> None:
    model = TowerPair(copy.deepcopy)
    attachment = attached(model)
    attachment.use({})
    heads = attachment.learn_heads()
    before = model.student(X)
    heads.begin(1, 2).set_temperatures([0.5, 3.0])
    assert torch.equal(model.student(X), model.teacher(X))
    assert not torch.allclose(model.student(X), before)
