"""Families of transformers that were once tempered in part, refused for nothing, or could not run."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip(
    "transformers", reason="NOT TESTED: models of transformers. Install tempopt[transformers]."
)

from benchmarks.attach_families import RIGHT, WAYS, Outcome, distance, outputs, randomise, row, table
from benchmarks.attach_models import FAMILIES, Family
from tempopt import AttachError, attach, bake
from tempopt.attention.attach.query_rows import query_rows

BY_NAME = {family.name: family for family in FAMILIES}
HOT = {"temperature_init": 2.0}
# What multiplying in another order makes of the way that a temperature takes an output.
ROUNDED = 1e-4


def outcomes_of(name: str) -> dict[str, Outcome]:
    return row(BY_NAME[name])[1]


def build_family(name: str) -> Any:
    return BY_NAME[name].make().eval()


@pytest.mark.parametrize(
    "name",
    [
        "Longformer global",
        "LED global",
        "Wav2Vec2Conformer relative",
        "Parakeet",
        "DebertaV2 unshared",
        "SiglipVision",
        "VitDet",
        "MiniMax",
        "Jamba",
        "Bamba",
        "FalconH1",
        "DeepseekV2 q_lora",
        "DeepseekV3",
    ],
)
def test_query_rows_are_all_that_makes_queries_and_nothing_else(name) -> None:
    outcomes = outcomes_of(name)
    for method in ("query_rows", "auto"):
        assert outcomes[method].result == "right"
        assert outcomes[method].error < RIGHT
    assert outcomes["auto"].method == "query_rows"
    assert not outcomes["attention_interface"].is_wrong


@pytest.mark.parametrize("name", ["Phi3", "GPTNeoX", "GPTBigCode MQA", "GPTBigCode MHA"])
def test_auto_takes_the_interface_where_query_rows_are_refused(name) -> None:
    outcomes = outcomes_of(name)
    assert (outcomes["auto"].result, outcomes["auto"].method) == ("right", "attention_interface")
    with pytest.raises(AttachError, match=r'Or attach with method="attention_interface"'):
        model = build_family(name)
        attach(model, HOT, method="query_rows", example=lambda: BY_NAME[name].run(model))


@pytest.mark.parametrize("name", ["Parakeet", "Wav2Vec2Conformer relative"])
def test_an_attention_that_calls_the_interface_by_keyword_runs_and_what_it_misses_is_found(name) -> None:
    model, run = build_family(name), BY_NAME[name].run
    before = run(model)
    attachment = attach(model, {}, method="attention_interface", example=None)
    torch.testing.assert_close(run(model), before)
    # The scores of positions are added as a mask, past the function.
    with pytest.raises(AttachError):
        attachment.self_test(lambda: run(model))


def test_a_pooling_head_past_the_interface_is_refused_by_its_name() -> None:
    model = build_family("SiglipVision")
    with pytest.raises(AttachError, match=r'"head.attention" is an nn.MultiheadAttention.*"query_rows"'):
        attach(model, HOT, method="attention_interface")
    attachment = attach(model, HOT, layers=["encoder.*"], method="attention_interface")
    assert len(attachment.layers) == 2


def test_longformers_global_queries_share_the_temperature_of_their_layer() -> None:
    (first, second) = query_rows(build_family("Longformer"))
    assert [projection.name for projection in first.every] == [first.name, f"{first.name}_global"]
    model = build_family("Longformer")
    attachment = attach(model, HOT | {"layer_pattern": "linear", "layer_ratio": 4.0})
    assert attachment.layers == [first.name, second.name]
    attachment.detach()
    assert {type(module) for module in model.modules()} == {
        type(module) for module in build_family("Longformer").modules()
    }


@pytest.mark.parametrize("name", ["ConvBert", "Swinv2", "CodeGen", "Bloom", "Hiera"])
def test_what_cannot_be_tempered_is_refused_by_every_way(name) -> None:
    outcomes = outcomes_of(name)
    assert all("refused" in outcome.result for outcome in outcomes.values())


@pytest.mark.parametrize("name", ["Llama", "Bert", "T5", "ViT", "Qwen3", "DebertaV2 unshared"])
def test_a_model_that_names_inputs_of_its_own_is_tested_without_an_example(name) -> None:
    model = build_family(name).train()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    attachment = attach(model, HOT)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert (attachment.tested, attachment.not_tested) == (True, "")


@pytest.mark.long
def test_the_table_in_the_documents_is_what_the_families_come_to() -> None:
    page = (Path(__file__).parents[2] / "docs" / "families.md").read_text(encoding="utf-8")
    documented_lines = re.findall(r"^\| .* \|$", page, flags=re.MULTILINE)
    lines, outcomes = table()
    assert not any(outcome.is_wrong for family_outcomes in outcomes for outcome in family_outcomes.values())
    assert [line for line in lines if line not in documented_lines] == []


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_what_is_baked_is_what_was_attached_by_every_way_that_a_family_has(family: Family) -> None:
    model = randomise(family.make())
    plain = outputs(family, model)
    for method in WAYS[:2]:
        tempered = copy.deepcopy(model)
        try:
            plan = {"temperature_init": 3.0, "layer_pattern": "linear", "layer_ratio": 2.0}
            attach(tempered, plan, method=method, example=lambda model=tempered: family.run(model))
        except AttachError:
            continue
        attached = outputs(family, tempered)
        bake(tempered, example=lambda model=tempered: family.run(model))
        if method == "query_rows":
            assert torch.equal(outputs(family, tempered), attached)
        assert distance(outputs(family, tempered), attached) < ROUNDED * distance(attached, plain)
        assert {type(module) for module in tempered.modules()} == {type(module) for module in model.modules()}
