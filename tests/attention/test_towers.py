"""A layer pattern runs over each tower of a model; a copy has the temperatures of its original."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tempopt.attention.attach.attachment import Attachment, attach
from tempopt.attention.attach.checkpoints import load_checkpoint, put_beside

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


class WrittenOut(nn.Module):
    """Attention of one head, whose calls are shown by a forward alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.softmax(x @ x.mT / x.shape[-1] ** 0.5, dim=-1) @ x


@pytest.mark.parametrize("written_out", [False, True])
def test_a_checkpoint_with_temperatures_beside_it_is_loaded_with_a_forward_of_the_student(
    written_out: bool, tmp_path: Path
) -> None:
    def build() -> TowerPair:
        model = TowerPair(copy.deepcopy)
        if written_out:
            model.student = nn.Sequential(*(WrittenOut() for _ in range(3)))
            model.teacher = copy.deepcopy(model.student)
        return model.eval()

    plan = {**RATIO, "length_scaling": "log_n", "n0": 2.0}
    model = build()
    attachment = attach(model, plan, example=lambda: model(X))
    checkpoint = {"state_dict": model.state_dict()}
    temperatures = dict(zip(attachment.layers, attachment.temperatures, strict=True))
    put_beside(checkpoint, plan, temperatures)
    torch.save(checkpoint, tmp_path / "model.ckpt")

    loaded = build()
    load_checkpoint(loaded, tmp_path / "model.ckpt", example=lambda: loaded.student(X))
    assert torch.equal(loaded.student(X), model.student(X))
    # what a forward does not run, only code can show
    assert torch.equal(loaded.teacher(X), model.teacher(X)) is not written_out

    both = build()
    load_checkpoint(both, tmp_path / "model.ckpt", example=lambda: both(X))
    assert torch.equal(both(X), model(X))
