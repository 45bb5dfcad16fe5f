"""What the comments of an export say: which constant needs no callback, in lines that people read."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from tempopt.attention.attach.values import attach_value
from tempopt.report.export import to_python, to_yaml
from tempopt.report.export_notes import VALUE, constants


@pytest.mark.parametrize("transform", ["identity", "inverse", "log_inverse"])
def test_a_constant_is_told_as_the_module_stores_it(transform: Any) -> None:
    init_args = {"path": "criterion.t", "transform": transform, "parameters": {"temperature_init": 0.1}}
    (line,) = constants([{"class_path": VALUE, "init_args": init_args}])
    match = re.search(r"made with criterion\.t = (\S+), and does not learn it", line)
    assert match is not None
    module = torch.nn.Module()
    module.criterion = torch.nn.Module()
    module.criterion.t = float(match[1])
    assert attach_value(module, "criterion.t", {}, transform=transform).temperatures == pytest.approx([0.1])


@pytest.mark.parametrize(
    "fields", [{"parameters": {"schedule": "linear", "temperature_final": 0.5}}, {"at_inference": 0.2}]
)
def test_what_changes_needs_its_callback(fields: dict[str, Any]) -> None:
    init_args = {"path": "criterion.t", "transform": "identity", "parameters": {"temperature_init": 0.1}}
    assert not list(constants([{"class_path": VALUE, "init_args": {**init_args, **fields}}]))


def test_comments_are_of_a_length_that_people_read_and_name_no_command_that_wrote_them(
    make_spec: Any, whole_study: Any, result_of: Any, measure_baseline: Any
) -> None:
    result = result_of(make_spec(), whole_study, measure_baseline(whole_study), state="done")
    for text in (to_yaml(result), to_python(result), to_yaml(result, winner=True)):
        comments = [line for line in text.splitlines() if line.startswith("#")]
        assert "What to do: " in "".join(comments) and "As code" not in text
        assert max(map(len, comments)) <= 110
