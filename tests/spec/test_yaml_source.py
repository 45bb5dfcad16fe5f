from __future__ import annotations

from pathlib import Path

import pytest

from tempopt.errors import SpecError
from tempopt.spec.yaml_source import apply, parse, parse_override, read, resolve


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        ("-2e+3", -2000.0),
        ("1.5e-3", 0.0015),
        (".5", 0.5),
        ("1_000", 1000),
        ("010", "010"),
        ("10:30", "10:30"),
        ("2024-01-31", "2024-01-31"),
        ('"1e-3"', "1e-3"),
        ("e3", "e3"),
        ("1e", "1e"),
        ("0", 0),
    ],
)
def test_numbers_are_read_as_yaml_1_2_reads_them(text: str, value: object) -> None:
    parsed_value = parse(f"x: {text}", source="s").data["x"]
    assert parsed_value == value
    assert type(parsed_value) is type(value)


def test_a_key_knows_its_line() -> None:
    document = parse("study:\n  name: x\n\nmodel:\n  init_args: {a: 1}\n", source="s.yaml")
    assert document.where("study.name") == "s.yaml:2"
    assert document.where("model.init_args.a") == "s.yaml:5"
    assert document.where("model.init_args.b.c") == "s.yaml:5"
    assert document.where("trainer") == "s.yaml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", r's\.yaml:3: the key "a" is there twice \(first in line 1\)'),
        ("m:\n  x: 1\n  x: 2\n", r's\.yaml:3: the key "m\.x" is there twice'),
        ("a:\n\t- 1\n", r"s\.yaml:2:1: .*spaces: replace the tab"),
        ("a: [1, 2\nb: 3\n", r"s\.yaml:2:\d+: this is not valid YAML"),
        ("a: b: c\n", r"s\.yaml:1:5: this is not valid YAML: mapping values are not allowed here"),
        ("a: !!python/object:os.system {}\n", r"s\.yaml:1:4: .*class_path: and init_args: instead"),
        ("on: 1\n", r"a key reads 'on', which YAML takes for bool.*put it in quotes"),
        ("- 1\n", r"holds a list, but a study spec is a mapping"),
        ("", r"holds nothing, but a study spec is a mapping"),
        ("a: 1\n---\nb: 2\n", r"s\.yaml:2:1: this is not valid YAML"),
    ],
)
def test_what_is_not_a_spec_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse(text, source="s.yaml")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="not a text file in UTF-8"):
        read(path)


def test_an_override_is_written_below_init_args() -> None:
    data = {"model": {"class_path": "m.M"}, "search": {}}
    settings = ["model.lr=1e-2", "data.class_path=d.D", "data.root=/x", "study.seeds.confirm=12"]
    result = apply(data, [parse_override(text) for text in settings])
    assert result == {
        "model": {"class_path": "m.M", "init_args": {"lr": 0.01}},
        "search": {},
        "data": {"class_path": "d.D", "init_args": {"root": "/x"}},
        "study": {"seeds": {"confirm": 12}},
    }
    assert data == {"model": {"class_path": "m.M"}, "search": {}}


def test_a_searched_name_is_overridden_dots_and_all() -> None:
    settings = ["search.data.batch_size=[16, 32]", "search.lr.high=0.5", "search.t={low: 1, high: 2}"]
    result = apply({"search": {"lr": {"low": 0.1}}}, [parse_override(text) for text in settings])
    assert result["search"] == {
        "lr": {"low": 0.1, "high": 0.5},
        "data.batch_size": [16, 32],
        "t": {"low": 1, "high": 2},
    }


@pytest.mark.parametrize("text", ["study.trials", "=3", "a..b=1"])
def test_an_override_that_sets_nothing_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"Give section\.key=value"):
        parse_override(text)


def test_an_override_below_a_plain_value_is_refused() -> None:
    with pytest.raises(SpecError, match=r'"study\.test" is \'t\', which has nothing inside'):
        apply({"study": {"test": "t"}}, [parse_override("study.test.x=1")])


def test_null_takes_a_searched_name_and_a_guard_out() -> None:
    data = {"search": {"data.size": [1, 2], "lr": [1, 2]}, "study": {"guards": {"val_loss": "<= +2%"}}}
    settings = ["search.data.size=null", "study.guards.val_loss=null", "study.min_gain=null"]
    result = apply(data, [parse_override(text) for text in settings])
    assert result == {"search": {"lr": [1, 2]}, "study": {"guards": {}, "min_gain": None}}
    assert data["study"] == {"guards": {"val_loss": "<= +2%"}}
    with pytest.raises(SpecError, match=r'--set study\.guards\.val_los: Unknown guard.*mean "val_loss"'):
        apply(data, [parse_override("study.guards.val_los=null")])


def test_the_quotes_of_a_guard_that_is_not_yaml_without_them_are_asked_for() -> None:
    with pytest.raises(SpecError, match=r'is written in quotes, as in ">= -2%"'):
        parse_override("study.guards.accuracy=>= -2%")
    assert parse_override('study.guards.accuracy=">= -2%"').value == ">= -2%"


def test_the_environment_is_looked_up_on_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_ROOT", "/data")
    value = {"a": ["${DATA_ROOT}/train", 3], "b": {"c": "$HOME"}}
    assert resolve(value, path="data") == {"a": ["/data/train", 3], "b": {"c": "$HOME"}}


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATA_ROOT", raising=False)
    with pytest.raises(SpecError, match=r"data\.a is .*variable DATA_ROOT is not set.*--set"):
        resolve({"a": "${DATA_ROOT}"}, path="data")


_BOMB = "a0: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("study: &s {name: *s}", "inside of its own"),
        ("a: " + "[" * 1200 + "]" * 1200, "nested more than 50 levels"),
        (_BOMB, "more than 100000 values"),
        ("a: " + "9" * 401, "401 digits"),
        ("a: 9223372036854775808", "19 digits"),
        ('a: "b\\0c"', "the character NUL"),
        ('a: "b\\ud800c"', "bytes that are not UTF-8"),
        *((f"a: !!{tag} abc", "does not fit the tag") for tag in ("int", "float", "bool", "timestamp")),
    ],
    ids=lambda value: value[:8],
)
def test_yaml_that_cannot_be_built_is_one_short_error(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as error:
        parse(text, source="a.yaml")
    assert len(str(error.value)) < 2000
    with pytest.raises(SpecError) as error:
        parse_override("study.x=" + "{" + text.replace("\n", ", ") + "}")
    assert len(str(error.value)) < 2000


def test_a_key_that_was_set_is_named_as_it_was_typed() -> None:
    document = parse("study:\n  trials: 3\nsearch:\n  t: {low: 1, high: 2}\n", source="s.yaml")
    settings = ["study.trials=0", "search.t.high=0.5", "model.lr=1", "trainer={max_steps: 3}"]
    overridden = document.with_settings([parse_override(setting) for setting in settings])
    assert overridden.data["study"] == {"trials": 0}
    assert overridden.where("study.trials") == "--set study.trials"
    assert overridden.where("study.name") == "s.yaml:1"
    assert overridden.where("search.t") == "s.yaml:4, --set search.t.high"
    assert overridden.where("model.init_args.lr") == "--set model.lr"
    assert overridden.where("trainer.max_step") == "--set trainer"
