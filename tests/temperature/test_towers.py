"""Layers whose names differ in numbers that count depth are one tower."""

from __future__ import annotations

import pytest

from tempopt.temperature import TemperatureParameters
from tempopt.temperature.towers import layers_by_tower

ONE = [
    ["blocks.0.attn", "blocks.1.attn"],
    ["0", "1", "2"],
    ["layers.0.blocks.0.attn", "layers.0.blocks.1.attn", "layers.1.blocks.0.attn"],
    ["features.1.0.attn", "features.3.0.attn"],
    ["block1.0.attn", "block1.1.attn", "block2.0.attn"],
    ["block1.attn", "block2.attn"],
    ["attn1", "attn2"],
    ["layer 0", "layer 1"],
]
SEVERAL = [
    [["a.0.attn", "a.1.attn"], ["b.0.attn", "b.1.attn"]],
    [["encoder.layers.0.self_attn"], ["decoder.layers.0.self_attn"], ["decoder.layers.0.multihead_attn"]],
    [["block.0.layer.0.SelfAttention"], ["block.0.layer.1.EncDecAttention"]],
    [["blocks.0.attn1", "blocks.1.attn1"], ["blocks.0.attn2", "blocks.1.attn2"]],
    [["encoder1.layers.0.attn"], ["encoder2.layers.0.attn"]],
    [["net.text"], ["net.image"]],
]


@pytest.mark.parametrize("layers", ONE, ids=lambda layers: layers[-1])
def test_layers_of_one_repeated_structure_are_a_tower(layers: list[str]) -> None:
    assert list(layers_by_tower(layers).values()) == [layers]


@pytest.mark.parametrize("towers", SEVERAL, ids=lambda towers: towers[-1][-1])
def test_layers_of_several_structures_are_towers_of_their_own(towers: list[list[str]]) -> None:
    assert list(layers_by_tower([name for names in towers for name in names]).values()) == towers


def test_a_pattern_runs_over_the_depth_of_each_tower() -> None:
    parameters = TemperatureParameters(temperature_init=2.0, layer_pattern="exp", layer_ratio=4.0)
    layers = [f"a.{i}" for i in range(3)] + ["pool"] + [f"b.{i}.{kind}" for i in range(2) for kind in "xy"]
    temperatures = parameters.plan(layers).temperatures(0.0)
    assert temperatures == pytest.approx([1.0, 2.0, 4.0, 2.0, 1.0, 1.0, 4.0, 4.0])
