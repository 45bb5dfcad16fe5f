"""What heads attend to, kept small: planted heads, the pictures themselves, runs that were interrupted."""

from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tempopt.agent.process import WorkerProcess
from tempopt.attention.analysis.heatmap import heatmap
from tempopt.training.attention_maps import MAX_BYTES, AttentionMaps
from tempopt.training.messages import MOMENTS
from tempopt.training.run import LightningRun
from tests.attention.planted import PLANTED, Heads, planted_heads, random_heads
from tests.training.shared_trainings import assert_same_state, check_resume
from tests.training.test_ranks import carry_out, finished_message, make, pair

# fixtures are found by their names
__all__ = ["make", "pair"]

BY_POSITION = {"diagonal", "previous_token", "next_token", "first_token", "local", "uniform"}


def show_heads(maps: AttentionMaps, step: int, layer: int, heads: Heads) -> None:
    """Show weights to maps, as queries and keys that have them."""
    weights = heads.weights_BHQK
    logits = weights.clamp(min=1e-30).log()
    keys = torch.eye(weights.shape[-1]).expand(*weights.shape[:2], -1, -1)
    masking = {"attn_mask": None, "valid_BQ": None, **heads.masking}
    maps.see(step, layer, logits, keys, scale=1.0, **masking)


def measure_names(moment: dict[str, Any]) -> dict[int, str]:
    return {measure["head"]: measure["measure"] for measure in moment["measures"]}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_planted_heads_are_named_and_random_ones_are_not(is_causal: bool, padded: bool) -> None:
    maps = AttentionMaps(2)
    maps.begin(11)
    random = random_heads(
        heads=4, length=32, inputs=8, spread=0.1, position=0.5, is_causal=is_causal, padded=padded, seed=0
    )
    for step, heads in (
        (0, random),
        (5, planted_heads(length=32, is_causal=is_causal, padded=padded, seed=1)),
    ):
        for layer in range(2):
            assert maps.should_capture(step)
            show_heads(maps, step, layer, heads)
        maps.finish_step(step)
        assert not maps.should_capture(step)
    maps_record = maps.to_json
    assert maps_record is not None and list(maps_record["moments"]) == ["start", "middle"]
    assert maps_record["moments"]["start"]["measures"] == [] and maps_record["notes"] == []
    impossible = {"next_token"} if is_causal else set()
    expected = {head: name for head, name in enumerate(PLANTED) if name in BY_POSITION - impossible}
    assert measure_names(maps_record["moments"]["middle"]) == expected
    assert maps_record["moments"]["middle"]["step"] == 5


def test_a_map_is_the_picture_of_the_first_input() -> None:
    heads = planted_heads(length=48, is_causal=True, padded=True, seed=3)
    maps = AttentionMaps(1)
    maps.begin(1)
    show_heads(maps, 0, 0, heads)
    maps.finish_step(0)
    assert maps.to_json is not None
    start = maps.to_json["moments"]["start"]
    visible = torch.ones(48, 48, dtype=torch.bool).tril() & heads.masking["attn_mask"][0, 0]
    for head_map in start["heads"]:
        assert (head_map["queries"], head_map["keys"], head_map["rows"], head_map["columns"]) == (
            48,
            48,
            32,
            32,
        )
        picture = np.array(
            heatmap(heads.weights_BHQK[0, head_map["head"]], visible, rows=32, columns=32).cells
        )
        cells = np.frombuffer(base64.b64decode(head_map["cells"]), dtype=np.uint8).reshape(32, 32)
        assert head_map["most"] == pytest.approx(picture.max(), rel=1e-3)
        assert cells / 255 * head_map["most"] == pytest.approx(picture, abs=head_map["most"] / 255)


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (12, 12), (24, 40), (1, 700)])
@pytest.mark.long
def test_all_maps_together_are_small(layers: int, heads: int) -> None:
    maps = AttentionMaps(layers)
    maps.begin(3)
    weights = torch.randn(2, heads, 40, 40, generator=torch.Generator().manual_seed(0)).softmax(-1)
    layer_heads = Heads(weights_BHQK=weights, masking={"is_causal": False}, tokens_BK=torch.zeros(2, 40))
    for step in range(3):
        for layer in range(layers):
            show_heads(maps, step, layer, layer_heads)
        maps.finish_step(step)
    assert maps.to_json is not None and list(maps.to_json["moments"]) == list(MOMENTS)
    for moment in maps.to_json["moments"].values():
        moment["measures"] = []
    assert len(json.dumps(maps.to_json)) < 1.05 * MAX_BYTES
    mapped_heads = {
        (head_map["layer"], head_map["head"]) for head_map in maps.to_json["moments"]["end"]["heads"]
    }
    assert len({layer for layer, _ in mapped_heads}) == layers
    assert (len(mapped_heads) < layers * heads) == any("have a map" in note for note in maps.to_json["notes"])


def test_what_is_too_large_for_a_picture_is_left_out_and_said() -> None:
    maps = AttentionMaps(1)
    maps.begin(1)
    q = torch.zeros(1, 1, 5000, 2)
    maps.see(0, 0, q, q, scale=None, attn_mask=None, is_causal=True, valid_BQ=None)
    maps.finish_step(0)
    assert maps.to_json is not None and maps.to_json["moments"]["start"]["heads"] == []
    assert any("5000 x 5000 weights" in note for note in maps.to_json["notes"])
    assert any("takes two inputs" in note for note in maps.to_json["notes"])


def test_heads_that_share_keys_have_the_maps_of_their_own_queries() -> None:
    draw = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 4, 8, 3, generator=draw), torch.randn(2, 2, 8, 3, generator=draw)
    grouped_maps, full_maps = AttentionMaps(1), AttentionMaps(1)
    for maps, keys in ((grouped_maps, k), (full_maps, k.repeat_interleave(2, dim=1))):
        maps.begin(1)
        maps.see(0, 0, q, keys, scale=None, attn_mask=None, is_causal=False, valid_BQ=None)
        maps.finish_step(0)
    assert grouped_maps.to_json == full_maps.to_json


def test_looking_changes_nothing_and_an_interrupted_run_has_the_same_maps(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    request = request_for(parameters={"temperature_init": 2.0}, observe=True)
    plain_run = LightningRun(request, listener())
    plain_result = plain_run.execute()
    mapped_request = dataclasses.replace(request, maps=True)
    reference_run, reference_result, _ = check_resume(mapped_request, tmp_path, die_at=14)
    assert plain_result.maps is None and reference_result.maps is not None
    assert list(reference_result.maps["moments"]) == list(MOMENTS)
    assert [moment["step"] for moment in reference_result.maps["moments"].values()] == [0, 11, 23]
    assert plain_result.reports == reference_result.reports
    assert_same_state(reference_run.module, plain_run.module)


@pytest.mark.long
def test_two_ranks_look_once(pair: WorkerProcess, request_for: Any, tmp_path: Path) -> None:
    request = request_for(
        trainer={"devices": 2},
        data={"batch_size": 3},
        parameters={"temperature_init": 2.0},
        observe=True,
        maps=True,
        folder=str(tmp_path),
        ticket=77,
    )
    messages = carry_out(pair, request)
    maps = finished_message(messages).maps
    assert maps is not None and list(maps["moments"]) == list(MOMENTS)
    messages = carry_out(pair, dataclasses.replace(request, ticket=78, maps=False))
    assert finished_message(messages).maps is None
