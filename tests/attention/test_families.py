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

from benchmarks.attach_families import attach_family, distance, outputs, randomise, table
from benchmarks.attach_models import FAMILIES, Family
from tempopt import AttachError, attach, bake

BY_NAME = {family.name: family for family in FAMILIES}
HOT = {"temperature_init": 2.0}
# What multiplying in another order makes of the way that a temperature takes an output.
ROUNDED = 1e-4


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
        "BigBird sparse",
        "Bloom",
        "CodeGen",
        "ConvBert",
        "Deberta",
        "Falcon",
        "Funnel",
        "Hiera",
        "Swinv2",
        "WavLM",
        "XLNet",
    ],
)
def test_all_that_makes_logits_of_queries_is_tempered_and_nothing_else(name) -> None:
    assert attach_family(BY_NAME[name]).result == "right"


def test_a_pooling_head_may_be_left_out() -> None:
    model = build_family("SiglipVision")
    attachment = attach(model, HOT, layers=["encoder.*"])
    assert len(attachment.layers) == 2


@pytest.mark.parametrize("name", ["Mamba", "FNet"])
def test_what_has_no_softmax_is_refused(name) -> None:
    assert attach_family(BY_NAME[name]).result == "refused: no attention that is known"


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
    assert not any(outcome.is_wrong for outcome in outcomes)
    assert [line for line in lines if line not in documented_lines] == []


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_what_is_baked_is_what_was_attached_or_refused(family: Family) -> None:
    model = randomise(family.make())
    plain = outputs(family, model)
    tempered = copy.deepcopy(model)
    plan = {"temperature_init": 3.0, "layer_pattern": "linear", "layer_ratio": 2.0}
    try:
        attach(tempered, plan, example=lambda: family.run(tempered))
        attached = outputs(family, tempered)
        bake(tempered, example=lambda: family.run(tempered))
    except AttachError:
        return
    assert distance(outputs(family, tempered), attached) < ROUNDED * distance(attached, plain)
    assert {type(module) for module in tempered.modules()} == {type(module) for module in model.modules()}
