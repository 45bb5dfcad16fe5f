"""What the comments of an export say: which constant needs no callback, in lines that people read."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import yaml

from tempopt.attention.attach.values import attach_value
from tempopt.results.export import to_python, to_yaml
from tempopt.results.export_notes import VALUE, constants


@pytest.mark.parametrize("transform", ["identity", "inverse", "log_inverse"])
def test_a_constant_is_told_as_the_module_stores_it(transform: Any) -> None:
    given = {"path": "criterion.t", "transform": transform, "parameters": {"temperature_init": 0.1}}
    (line,) = constants([{"class_path": VALUE, "init_args": given}])
    told = re.search(r"made with criterion\.t = (\S+), and does not learn it", line)
    assert told is not None
    module = torch.nn.Module()
    module.criterion = torch.nn.Module()
    module.criterion.t = float(told[1])
    assert attach_value(module, "criterion.t", {}, transform=transform).temperatures == pytest.approx([0.1])


@pytest.mark.parametrize(
    "more", [{"parameters": {"schedule": "linear", "temperature_final": 0.5}}, {"at_inference": 0.2}]
)
def test_what_changes_needs_its_callback(more: dict[str, Any]) -> None:
    given = {"path": "criterion.t", "transform": "identity", "parameters": {"temperature_init": 0.1}}
    assert not list(constants([{"class_path": VALUE, "init_args": {**given, **more}}]))


def test_comments_are_of_a_length_that_people_read_and_name_no_command_that_wrote_them(
    make_spec: Any, whole_study: Any, result_of: Any, measure_baseline: Any
) -> None:
    result = result_of(make_spec(), whole_study, measure_baseline(whole_study), state="done")
    for text in (to_yaml(result), to_python(result), to_yaml(result, winner=True)):
        comments = [line for line in text.splitlines() if line.startswith("#")]
        assert "What to do: " in "".join(comments) and "As code" not in text
        assert max(map(len, comments)) <= 110


@pytest.mark.parametrize("attach", [None, {"layers": "auto"}])
def test_what_trains_starts_from_the_weights_that_the_study_started_from(
    make_spec: Any, make_ticket: Any, result_of: Any, attach: Any
) -> None:
    start = {"path": "base.ckpt", "strict": False, "prefix": "body.", "sha256": "0" * 64}
    sections = {"search": {"temperature_init": {"low": 0.5, "high": 4.0}}}
    spec = make_spec(sections | ({"attach": attach} if attach else {}), start_from=start)
    result = result_of(spec, [make_ticket("search", 0, 0.5, parameters={"temperature_init": 2.0})])
    callback, *others = yaml.safe_load(to_yaml(result))["trainer"]["callbacks"]
    assert callback == {"class_path": "tempopt.StartCallback", "init_args": start}
    assert [each["class_path"] for each in others] == (["tempopt.AttachCallback"] if attach else [])
    code, text = to_python(result), to_yaml(result)
    compile(code, "export", "exec")
    made = "StartCallback( path='base.ckpt', strict=False, prefix='body.', sha256='0000"
    assert made in " ".join(code.split()) and "StartCallback\n" in code.partition("trainer = ")[0]
    for each in (code, text):
        assert "Change its path if the file lies elsewhere" in " ".join(each.replace("#", "").split())
