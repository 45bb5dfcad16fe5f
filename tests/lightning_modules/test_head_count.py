"""The ablation of the number of heads: what is compared differs in the number of heads and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lightning_modules import AssociativeRecall
from lightning_modules.associative_recall import draw_recall
from tempopt.spec.domains import Choices
from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec


@pytest.fixture(scope="module")
def spec() -> StudySpec:
    return load_spec(Path(__file__).parents[2] / "studies" / "head_count.yaml")


def numbers_of_heads(spec: StudySpec) -> list[int]:
    domain = spec.search["num_heads"]
    assert isinstance(domain, Choices)
    return list(domain.choices)


def test_every_number_of_heads_divides_the_width(spec: StudySpec) -> None:
    width = spec.model["init_args"]["d_model"]
    assert all(width % heads == 0 for heads in numbers_of_heads(spec))


def test_every_number_of_heads_has_the_same_parameters_and_computes_something_else(spec: StudySpec) -> None:
    # Tutorials call it an adaptive number of heads when the same weights are cut into other groups; that is
    # another function all the same, so each number has to be trained.
    recall = draw_recall(2, 4, vocabulary=128, generator=torch.Generator().manual_seed(0))
    outputs, shapes = [], set()
    for heads in numbers_of_heads(spec):
        torch.manual_seed(0)
        module = AssociativeRecall(num_heads=heads, **spec.model["init_args"])
        shapes.add(tuple((name, value.shape) for name, value in module.named_parameters()))
        outputs.append(module(recall))
    assert len(shapes) == 1
    assert not any(torch.equal(outputs[0], other) for other in outputs[1:])


def test_the_study_compares_the_numbers_of_heads_and_tunes_each(spec: StudySpec) -> None:
    assert [each.value for each in spec.compared_values] == numbers_of_heads(spec)
    assert {"lr", "temperature_init"} <= spec.search.keys()
