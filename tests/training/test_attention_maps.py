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

from tempopt.attention.analysis.heatmap import heatmap
from tempopt.training.attention_maps import MOST_BYTES, AttentionMaps
from tempopt.training.run import Run
from tempopt.workers.messages import MOMENTS, Started
from tempopt.workers.process import WorkerProcess
from tests.attention.planted import PLANTED, Heads, planted, random_heads
from tests.training.test_ranks import carry_out, finished, make, pair

# fixtures are found by their names
__all__ = ["make", "pair"]

BY_POSITION = {"diagonal", "previous_token", "next_token", "first_token", "local", "uniform"}


def shown(maps: AttentionMaps, step: int, layer: int, heads: Heads) -> None:
    """Show weights to maps, as queries and keys that have them."""
    weights = heads.weights_BHQK
    logits = weights.clamp(min=1e-30).log()
    keys = torch.eye(weights.shape[-1]).expand(*weights.shape[:2], -1, -1)
    masking = {"attn_mask": None, "valid_BQ": None, **heads.masking}
    maps.see(step, layer, logits, keys, scale=1.0, **masking)


def named(moment: dict[str, Any]) -> dict[int, str]:
    return {each["head"]: each["measure"] for each in moment["measures"]}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_planted_heads_are_named_and_random_ones_are_not(is_causal: bool, padded: bool) -> None:
    maps = AttentionMaps(2)
    maps.begin(11)
    random = random_heads(
        heads=4, length=32, inputs=8, spread=0.1, position=0.5, is_causal=is_causal, padded=padded, seed=0
    )
    for step, heads in ((0, random), (5, planted(length=32, is_causal=is_causal, padded=padded, seed=1))):
        for layer in range(2):
            assert maps.wanted(step)
            shown(maps, step, layer, heads)
        maps.closed(step)
        assert not maps.wanted(step)
    found = maps.found
    assert found is not None and list(found["moments"]) == ["start", "middle"]
    assert found["moments"]["start"]["measures"] == [] and found["notes"] == []
    impossible = {"next_token"} if is_causal else set()
    expected = {head: name for head, name in enumerate(PLANTED) if name in BY_POSITION - impossible}
    assert named(found["moments"]["middle"]) == expected
    assert found["moments"]["middle"]["step"] == 5


def test_a_map_is_the_picture_of_the_first_input() -> None:
    heads = planted(length=48, is_causal=True, padded=True, seed=3)
    maps = AttentionMaps(1)
    maps.begin(1)
    shown(maps, 0, 0, heads)
    maps.closed(0)
    assert maps.found is not None
    start = maps.found["moments"]["start"]
    visible = torch.ones(48, 48, dtype=torch.bool).tril() & heads.masking["attn_mask"][0, 0]
    for each in start["heads"]:
        assert (each["queries"], each["keys"], each["rows"], each["columns"]) == (48, 48, 32, 32)
        picture = np.array(heatmap(heads.weights_BHQK[0, each["head"]], visible, rows=32, columns=32).cells)
        cells = np.frombuffer(base64.b64decode(each["cells"]), dtype=np.uint8).reshape(32, 32)
        assert each["most"] == pytest.approx(picture.max(), rel=1e-3)
        assert cells / 255 * each["most"] == pytest.approx(picture, abs=each["most"] / 255)


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (12, 12), (24, 40), (1, 700)])
@pytest.mark.long
def test_all_maps_together_are_small(layers: int, heads: int) -> None:
    maps = AttentionMaps(layers)
    maps.begin(3)
    weights = torch.randn(2, heads, 40, 40, generator=torch.Generator().manual_seed(0)).softmax(-1)
    given = Heads(weights_BHQK=weights, masking={"is_causal": False}, tokens_BK=torch.zeros(2, 40))
    for step in range(3):
        for layer in range(layers):
            shown(maps, step, layer, given)
        maps.closed(step)
    assert maps.found is not None and list(maps.found["moments"]) == list(MOMENTS)
    for moment in maps.found["moments"].values():
        moment["measures"] = []
    assert len(json.dumps(maps.found)) < 1.05 * MOST_BYTES
    drawn = {(each["layer"], each["head"]) for each in maps.found["moments"]["end"]["heads"]}
    assert len({layer for layer, _ in drawn}) == layers
    assert (len(drawn) < layers * heads) == any("have a map" in note for note in maps.found["notes"])


def test_what_is_too_large_for_a_picture_is_left_out_and_said() -> None:
    maps = AttentionMaps(1)
    maps.begin(1)
    q = torch.zeros(1, 1, 5000, 2)
    maps.see(0, 0, q, q, scale=None, attn_mask=None, is_causal=True, valid_BQ=None)
    maps.closed(0)
    assert maps.found is not None and maps.found["moments"]["start"]["heads"] == []
    assert any("5000 x 5000 weights" in note for note in maps.found["notes"])
    assert any("takes two inputs" in note for note in maps.found["notes"])


def test_heads_that_share_keys_have_the_maps_of_their_own_queries() -> None:
    draw = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 4, 8, 3, generator=draw), torch.randn(2, 2, 8, 3, generator=draw)
    grouped, whole = AttentionMaps(1), AttentionMaps(1)
    for maps, keys in ((grouped, k), (whole, k.repeat_interleave(2, dim=1))):
        maps.begin(1)
        maps.see(0, 0, q, keys, scale=None, attn_mask=None, is_causal=False, valid_BQ=None)
        maps.closed(0)
    assert grouped.found == whole.found


@pytest.mark.parametrize("attach", [None, {"layers": "auto"}])
def test_looking_changes_nothing_and_an_interrupted_run_has_the_same_maps(
    request_for: Any, listener: Any, tmp_path: Path, attach: Any
) -> None:
    module = "Toy" if attach is None else "Stock"

    def run(channel: Any, **given: Any) -> Run:
        options = {"attach": attach, "checkpoints": str(tmp_path), "ticket": 1, "observe": True, **given}
        return Run(request_for(module, parameters={"temperature_init": 2.0}, **options), channel)

    plain = run(listener(), ticket=2)
    without = plain.execute()
    whole, killed, again = run(listener(), maps=True), listener(die_at=14), listener()
    done = whole.execute()
    with pytest.raises(SystemExit):
        run(killed, maps=True).execute()
    resumed = run(again, maps=True, attempt=2, resume=killed.saved)
    last = resumed.execute()
    assert again.of(Started)[0].step > 11
    assert without.maps is None and done.maps is not None
    assert list(done.maps["moments"]) == list(MOMENTS)
    assert [each["step"] for each in done.maps["moments"].values()] == [0, 11, 23]
    assert last.maps == done.maps
    assert without.reports == done.reports == last.reports
    theirs = plain.module.state_dict()
    for each in (whole, resumed):
        assert all(torch.equal(value, theirs[name]) for name, value in each.module.state_dict().items())


@pytest.mark.parametrize("method", ["see", "closed"])
def test_maps_that_cannot_be_made_end_the_looking_and_not_the_run(
    request_for: Any, listener: Any, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no memory left")

    alone = Run(request_for(), listener()).execute()
    monkeypatch.setattr(AttentionMaps, method, broken)
    done = Run(request_for(observe=True, maps=True), listener()).execute()
    assert (done.state, done.reports) == ("complete", alone.reports)
    (note,) = [note for note in done.notes if "not observed" in note]
    assert "from step 0 on: RuntimeError: no memory left" in note


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
    heard = carry_out(pair, request)
    maps = finished(heard).maps
    assert maps is not None and list(maps["moments"]) == list(MOMENTS)
    heard = carry_out(pair, dataclasses.replace(request, ticket=78, maps=False))
    assert finished(heard).maps is None
