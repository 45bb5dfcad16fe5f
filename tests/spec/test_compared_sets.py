"""Parameter sets that are compared: how they are given, what is wrong with them, what a spec has of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tempopt.errors import SpecError, UsageError
from tempopt.spec.compared_sets import normalize_sets, parse_vary
from tempopt.spec.comparison_spec import comparison_spec
from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.validation_errors import FaultySpecError
from tests.specs import change_spec


def make_comparison(*sets: Any, **settings: Any) -> StudySpec:
    return comparison_spec(change_spec(**settings), sets)


def test_sets_are_mappings_texts_or_files_and_are_named_by_file_or_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hot.yaml").write_text("temperature_init: 2\nlr: 1e-3\n")
    Path("a b.yaml").write_text("{}")
    Path("lr=2.yaml").write_text("lr: 2")
    set_args = ["{}", {"lr": 0.1}, "hot.yaml", "cold=hot.yaml", "x={lr: 2}", "lr: 3", "a b.yaml", "lr=2.yaml"]
    sets = normalize_sets(set_args)
    assert [param_set["name"] for param_set in sets] == ["A", "B", "hot", "cold", "x", "F", "G", "H"]
    hot = {"temperature_init": 2, "lr": 0.001}
    assert [param_set["parameters"] for param_set in sets] == [
        *({}, {"lr": 0.1}, hot, hot, {"lr": 2}, {"lr": 3}, {}, {"lr": 2}),
    ]
    assert [param_set["name"] for param_set in normalize_sets({"plain": {}, "7": "hot.yaml"})] == [
        "plain",
        "7",
    ]
    assert [param_set["name"] for param_set in normalize_sets([{}] * 28)][24:] == ["Y", "Z", "set27", "set28"]


def test_everything_that_cannot_be_read_is_told_at_once(tmp_path: Path) -> None:
    duplicate_file = tmp_path / "twice.yaml"
    duplicate_file.write_text("lr: 1\nlr: 2\n")
    with pytest.raises(SpecError) as error:
        normalize_sets(["{}", "lr=0.1", "missing.yaml", "{lr: ", str(duplicate_file)])
    lines = str(error.value).splitlines()
    assert len(lines) == 4
    assert "as in '{lr: 0.1}'" in lines[0]
    assert 'There is no file "missing.yaml"' in lines[1]
    assert "is not valid YAML" in lines[2]
    assert "there twice" in lines[3]


def test_a_set_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    list_file = tmp_path / "listed.yaml"
    list_file.write_text("- {lr: 1}\n")
    with pytest.raises(SpecError, match="is not a parameter set. Give a mapping"):
        normalize_sets(["{}", str(list_file)])


def test_the_spec_of_a_comparison_has_the_sets_and_nothing_of_a_search() -> None:
    spec = make_comparison(
        "{}",
        {"temperature_init": 2, "lr": 1, "schedule_args": {"knee": 0.5}},
        study__trials=7,
        study__enqueue=[{"temperature_init": 1.0}],
        study__warm_start=["earlier"],
        study__seeds={"choose": 9, "confirm": 5},
        study__sampler="tpe",
    )
    assert spec.search == {} and spec.study.enqueue == [] and spec.study.warm_start == []
    assert spec.study.seeds.confirm.max == 5 and spec.study.seeds.choose == 2
    assert spec.compare is not None
    assert [param_set.name for param_set in spec.compare] == ["A", "B"]
    # a temperature is a real number, whatever was typed
    assert spec.compare[1].parameters == {"temperature_init": 2.0, "lr": 1, "schedule_args.knee": 0.5}
    assert StudySpec.from_json(spec.to_json()) == spec


def test_a_spec_needs_no_search_and_no_temperature() -> None:
    spec = make_comparison({}, {"lr": 0.1}, search=None)
    assert spec.search == {}


def test_the_search_of_a_spec_is_no_part_of_its_comparison() -> None:
    spec, other_spec = (
        make_comparison({}, {"lr": 1}),
        make_comparison({}, {"lr": 1}, search__lr=[1, 2], study__trials=3),
    )
    assert spec.identity() == other_spec.identity()
    assert spec.identity() != make_comparison({}, {"lr": 2}).identity()


def test_a_comparison_is_named_after_its_spec_and_its_sets() -> None:
    first = make_comparison({}, {"lr": 1}).study.name
    assert first.startswith("mine-compare-") and first == make_comparison("{}", "{lr: 1}").study.name
    other_specs = [
        make_comparison({}, {"lr": 2}),
        make_comparison({"lr": 1}, {}),
        make_comparison({}, "new={lr: 1}"),
    ]
    assert len({first, *(other_spec.study.name for other_spec in other_specs)}) == 4
    assert comparison_spec(change_spec(), [{}, {"lr": 1}], name="other").study.name == "other"
    long = make_comparison({}, {"lr": 1}, study__name="n" * 100).study.name
    assert len(long) == 100 and long.endswith(first.removeprefix("mine"))


def test_the_sets_may_stand_in_the_spec_itself(tmp_path: Path) -> None:
    sets = [{"name": "old", "parameters": {}}, {"name": "new", "parameters": {"lr": 1}}]
    spec = comparison_spec(change_spec(compare=sets))
    assert spec.compare is not None and [param_set.name for param_set in spec.compare] == ["old", "new"]
    assert spec.study.name == "mine"
    with pytest.raises(SpecError, match="Give the sets in one of the two places"):
        comparison_spec(change_spec(compare=sets), [{}, {"lr": 1}])
    with pytest.raises(UsageError, match="there is nothing to compare"):
        comparison_spec(change_spec())


def test_a_loaded_spec_and_its_settings_of_this_machine_are_kept() -> None:
    digits_spec = load_spec("digits", ["trainer.max_steps=7", "data.root=/here"])
    spec = comparison_spec(digits_spec, [{}, {"lr": 0.1}], pairs=5)
    assert spec.trainer["max_steps"] == 7 and spec.study.seeds.confirm.max == 5
    # it is stored nowhere
    assert "root" not in (spec.data or {})["init_args"] and spec._local


def fault_paths(*sets: Any, **settings: Any) -> list[str]:
    with pytest.raises(FaultySpecError) as error:
        make_comparison(*sets, **settings)
    return [path for path, _ in error.value.lines]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature_init", 0),
        ("schedule", "cosin"),
        ("model.lr", 1),
        ("data.init_args.x", 1),
        ("optimizer.lr", 1),
        ("trainer.devices", 2),
        ("trainer.max_time", "1h"),
        ("trainer.max_steps", 0),
        ("9lives", 1),
        ("lr", float("nan")),
        ("lr", [0.9, float("inf")]),
        ("root", "${DATA}"),
        ("lr", {1: 2}),
        ("lr", {1, 2}),
    ],
)
def test_what_is_wrong_with_a_set_is_told_at_its_name(name: str, value: object) -> None:
    assert fault_paths({}, {name: value}) == [f"compare.B.{name}"]


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ([{}], "given 1 parameter set. Give the reference and at least one variant"),
        (["a={}", "a={lr: 1}"], "two parameter sets are named a"),
    ],
)
def test_too_few_sets_and_equal_names_are_refused(sets: list[Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_comparison(*sets)


def test_the_length_of_a_training_may_be_what_is_compared() -> None:
    spec = make_comparison({"trainer.max_steps": 5}, {"trainer.max_steps": 9}, trainer={})
    assert spec.parameters("search", {"trainer.max_steps": 5}) == {"trainer.max_steps": 5}
    with pytest.raises(SpecError, match="the length of a run is not set"):
        make_comparison({}, {"trainer.max_steps": 9}, trainer={})


FORTY = ",".join(map(str, range(40)))


def combine_values(*texts: str, **settings: Any) -> list[tuple[str, dict[str, Any]]]:
    spec = comparison_spec(change_spec(**settings), vary=parse_vary(texts))
    assert spec.compare is not None
    return [(param_set.name, param_set.parameters) for param_set in spec.compare]


def test_each_combination_of_values_is_a_set_named_by_them() -> None:
    assert combine_values("model.num_heads=1,2", "trainer.max_steps=10,20") == [
        ("num_heads=1,max_steps=10", {"num_heads": 1, "trainer.max_steps": 10}),
        ("num_heads=1,max_steps=20", {"num_heads": 1, "trainer.max_steps": 20}),
        ("num_heads=2,max_steps=10", {"num_heads": 2, "trainer.max_steps": 10}),
        ("num_heads=2,max_steps=20", {"num_heads": 2, "trainer.max_steps": 20}),
    ]
    assert combine_values("temperature_init=1,2")[1] == ("temperature_init=2", {"temperature_init": 2.0})
    # keys as --set writes them
    assert combine_values("model.init_args.norm=rms,null") == [
        ("norm=rms", {"norm": "rms"}),
        ("norm=null", {"norm": None}),
    ]
    assert combine_values("data.init_args.batch_size=8,16")[0] == ("batch_size=8", {"data.batch_size": 8})
    nested = combine_values("model.head.size=1,2", "data.size=3")
    assert nested[0][0] == "model.head.size=1,data.size=3"
    text = combine_values('norm="a b/c",rms')
    assert text[0] == ("norm=a-b-c", {"norm": "a b/c"})


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["num_heads"], "give a key and its values, as in --vary model.num_heads=1,2,4,8"),
        (["num_heads="], "give a key and its values"),
        (["lr=1,2", "lr=3"], "gives lr twice"),
        (["lr=1,{"], "is not valid YAML"),
        (["lr=1"], "was given one value"),
        (["study.seed=1,2"], "vary: study.seed is no parameter of a run"),
        (["lr=1,2,1"], "vary: lr was given 1 more than once"),
        ([f"lr={FORTY}", f"dropout={FORTY}"], "40 × 40 = 1600"),
    ],
)
def test_values_that_make_no_comparison_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises((SpecError, UsageError), match=message):
        combine_values(*texts)


def test_a_fault_of_a_varied_value_is_not_laid_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(change_spec()), encoding="utf-8")
    with pytest.raises(SpecError, match=r"compare\.temperature_init=-1") as error:
        comparison_spec(path, vary={"temperature_init": [1, -1]})
    assert "mine.yaml" not in str(error.value)


def test_sets_and_values_to_vary_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="Give one of the two"):
        comparison_spec(change_spec(), [{}], vary={"lr": [1, 2]})
