"""The ablation of the number of heads: what is compared differs in the number of heads and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lightning_modules import AssociativeRecall
from lightning_modules.associative_recall import draw_recall
from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec

NUM_HEADS = (1, 2, 4, 8)


@pytest.fixture(scope="module")
def spec() -> StudySpec:
    return load_spec(Path(__file__).parents[2] / "studies" / "head_count.yaml")


def test_every_number_of_heads_has_the_same_parameters_and_computes_something_else(spec: StudySpec) -> None:
    # Tutorials call it an adaptive number of heads when the same weights are cut into other groups; that is
    # another function all the same, so each number has to be trained.
    recall = draw_recall(2, 4, vocabulary=128, generator=torch.Generator().manual_seed(0))
    outputs, shapes = [], set()
    for heads in NUM_HEADS:
        torch.manual_seed(0)
        module = AssociativeRecall(**{**spec.model["init_args"], "num_heads": heads})
        shapes.add(tuple((name, value.shape) for name, value in module.named_parameters()))
        outputs.append(module(recall))
    assert len(shapes) == 1
    assert not any(torch.equal(outputs[0], output) for output in outputs[1:])
