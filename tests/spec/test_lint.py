"""The text of a spec, checked: whatever it is, there are messages, and they are about lines that it has."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tempopt.spec.lint import check_text
from tempopt.spec.load import bundled_specs, load_spec
from tempopt.spec.yaml_source import parse

TEXTS = {name: path.read_text(encoding="utf-8") for name, path in bundled_specs().items()}


def check_messages(text: str) -> None:
    """See that a text is right or has an error, and that each message is about a line of it."""
    checked_text = check_text(text)
    errors = [message for message in checked_text.messages if message.severity == "error"]
    assert (checked_text.spec is None) == bool(errors)
    lines = text.count("\n") + 1
    for message in checked_text.messages:
        assert message.text
        if message.line is not None:
            assert 1 <= message.line <= lines + 1
            assert message.column is not None and message.column >= 1
    places = [(message.line or 0, message.column or 0) for message in checked_text.messages]
    assert places == sorted(places)


@given(st.text(max_size=200))
def test_any_text_has_messages(text: str) -> None:
    check_messages(text)


@given(st.data())
def test_a_spec_with_a_part_cut_out_has_messages_at_its_own_lines(data: st.DataObject) -> None:
    text = TEXTS[data.draw(st.sampled_from(sorted(TEXTS)))]
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, min(len(text), begin + 60)))
    check_messages(text[:begin] + data.draw(st.sampled_from(["", "x", ": ", "\n", "{", "- "])) + text[end:])


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_what_comes_with_tempopt_is_right_and_read_as_from_its_file(name: str) -> None:
    checked_text = check_text(TEXTS[name])
    assert [message for message in checked_text.messages if message.severity == "error"] == []
    assert checked_text.spec == load_spec(name)
    assert checked_text.name == yaml.safe_load(TEXTS[name])["study"]["name"]


def test_each_key_has_its_line_and_column() -> None:
    text = "study:\n  name: a\n\nsearch:\n  x.y: {low: 1, high: 2}\n  list: [{z: 1}, 3]\n"
    document = parse(text, source="the test")
    places = {path: document.line_and_column(path) for path in document.places}
    assert places == {
        "study": (1, 1),
        "study.name": (2, 3),
        "search": (4, 1),
        "search.x.y": (5, 3),
        "search.x.y.low": (5, 9),
        "search.x.y.high": (5, 17),
        "search.list": (6, 3),
        "search.list.0.z": (6, 11),
    }
    assert document.line_and_column("study.nothing") == (1, 1)
    assert document.line_and_column("nothing") == (0, 0)


def test_a_wrong_range_is_not_told_as_a_temperature_that_is_not_searched() -> None:
    text = TEXTS["clip_digits"].replace("{low: 0.02, high: 1.0}", "{low: 2.0, high: 1.0}")
    paths = [message.path for message in check_text(text).messages]
    assert paths == ["search.contrast.temperature_init", "search.contrast.temperature_final"]


def test_nothing_is_read_of_files_and_variables_that_a_spec_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HIDDEN_PLACE", "hunter2")
    text = TEXTS["clip_digits"].replace("num_train: 600", "num_train: '${HIDDEN_PLACE}'")
    checked_text = check_text(text)
    assert checked_text.spec is not None and "hunter2" not in repr(checked_text)
