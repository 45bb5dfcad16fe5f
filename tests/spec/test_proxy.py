"""``study.proxy``: what the small training is, what is refused, and how parameters go over to full size."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.records.rows import AT_PROXY, KINDS
from tempopt.spec.identity import differences
from tempopt.spec.model_sizes import factor, largest_of, moved_names, to_full, to_proxy, to_size
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.temperatures import begun_as
from tests.specs import make

SET = {"model.d_model": 32, "trainer.max_steps": 30, "data.batch_size": 4}
PLAN = {"temperature_init": 2.0, "temperature_final": 0.5, "schedule": "linear", "lr": 0.1}


def proxied(**proxy: Any) -> StudySpec:
    return make(study__proxy={"set": SET, **proxy})


def refusal(**settings: Any) -> str:
    with pytest.raises(SpecError) as refused:
        make(**settings)
    return str(refused.value)


def test_the_proxy_is_the_spec_with_its_values_and_without_a_proxy() -> None:
    spec = proxied()
    small = spec.at_size(0)
    assert small.model == {"class_path": "my_module.MyModule", "init_args": {"d_model": 32}}
    assert small.trainer == {"max_steps": 30}
    assert small.data is not None and small.data["init_args"] == {
        "root": "${DATA_ROOT}/mine",
        "batch_size": 4,
    }
    assert small.study.proxy is None and spec.trainer == {"max_steps": 100}
    assert small.identity() != spec.identity() != make().identity()


def test_what_searches_trains_the_proxy_and_what_proves_does_not() -> None:
    spec, plain = proxied(), make()
    small = [kind for kind in KINDS if spec.at_size(largest_of(kind, spec)) is not spec]
    assert small == ["baseline", "constant", "search", "choose", "rematch"]
    assert set(small) == set(AT_PROXY)
    assert all(plain.at_size(largest_of(kind, plain)) is plain for kind in KINDS)


def test_the_values_of_this_machine_hold_for_both_but_where_the_proxy_says_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATA_ROOT", "/data")
    spec = proxied().with_overrides(["data.root=/here", "data.batch_size=64"])
    assert spec.program().data["init_args"] == {"root": "/here", "batch_size": 64}  # type: ignore[index]
    small = spec.at_size(0).program()
    assert small.data["init_args"] == {"root": "/here", "batch_size": 4}  # type: ignore[index]
    assert small.identity != spec.program().identity


def test_it_is_stored_and_read_as_it_was() -> None:
    spec = proxied(temperature="length", length=[64, 256])
    assert StudySpec.from_json(spec.to_json()) == spec


def test_a_proxy_that_starts_from_weights_is_the_same_model() -> None:
    told = refusal(study__proxy={"set": SET}, study__start_from="base.ckpt")
    assert (
        "study.proxy.set: model.d_model given with study.start_from, whose weights are of one model" in told
    )
    assert "below trainer and data alone" in told and "trainer.max_steps, " not in told
    steps = {name: SET[name] for name in ("trainer.max_steps", "data.batch_size")}
    small = make(study__proxy={"set": steps}, study__start_from="base.ckpt").at_size(0)
    assert small.study.start_from == make(study__start_from="base.ckpt").study.start_from
    assert small.trainer["max_steps"] == 30


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"modle.d_model": 3}, 'Unknown section "modle". Did you mean "model"?'),
        ({"study.seed": 3}, 'Unknown section "study"'),
        ({"search.temperature_init": 3}, 'Unknown section "search"'),
        ({"model": {"d_model": 3}}, "Give what is below model"),
        ({"model.init_args": {"d_model": 3}}, "Give what is below model"),
        ({"model.class_path": "a.B"}, "the same class at another size"),
        ({"trainer.devices": 2}, "devices is the same for the proxy and at full size"),
        ({"trainer.callbacks": []}, "all sizes have the same ones"),
        ({"model.temperature_init": 2.0}, "temperatures go over by study.proxy.temperature"),
        ({"model.lr": 0.1}, "lr is searched"),
        ({"model.a": 1, "model.init_args.a": 2}, "it is the same as model.a"),
        ({"trainer.max_steps": 0}, "given 0. Give a whole number from 1"),
        ({"model.lr.x": 1}, "lr is searched"),
        ({}, "is empty"),
        ({"trainer.max_steps": 100}, "changes nothing"),
    ],
)
def test_what_it_cannot_set_is_told_with_the_reason(given: dict[str, Any], told: str) -> None:
    message = refusal(study__proxy={"set": given}, search__lr={"low": 0.1, "high": 1.0})
    assert told in message and "study.proxy.set" in message


@pytest.mark.parametrize(
    ("proxy", "told"),
    [
        ({"temperature": "hed_dim"}, 'Unknown rule "hed_dim". Did you mean "head_dim"?'),
        ({"temperature": 11}, "a shift of ln τ from -10 to 10"),
        ({"temperature": True}, "given True"),
        ({"temperature": "length"}, "study.proxy.length: is missing"),
        ({"temperature": "length", "length": [1, 8]}, "at least 2"),
        ({"temperature": "length", "length": [8]}, "the number of keys"),
        ({"head_dim": [8, 32]}, "given with temperature: same, which does not read it"),
        ({"temperature": "measured", "try_shifts": [0.4, 0]}, "0 is tried anyway"),
        ({"temperature": "measured", "try_shifts": []}, "Give one to 4 shifts of ln τ from -10 to 10"),
        ({"temperature": "measured", "try_shifts": [0.1, 0.2, 0.3, 0.4, 0.5]}, "Give one to 4 shifts"),
        ({"temperature": "measured", "try_shifts": [0.4, 0.4]}, "with one shift twice"),
        ({"temperature": "measured", "try_shifts": ["a"]}, "Give one to 4 shifts"),
        ({"temperature": "measured", "try_shifts": [math.nan]}, "Give one to 4 shifts"),
        ({"try_shifts": [0.4]}, "given with temperature: same, which tries none"),
        ({"finalists": 0}, "a whole number from 1 to 20"),
        ({"finalist": 2}, 'Did you mean "finalists"?'),
    ],
)
def test_a_rule_that_cannot_be_applied_is_refused(proxy: dict[str, Any], told: str) -> None:
    assert told in refusal(study__proxy={"set": SET, **proxy})


def test_a_rule_of_attention_needs_attention_and_a_number_one_temperature() -> None:
    named = {"temperatures": {"contrast": {"value": "loss.tau", "as_found": 0.5}}}
    search = {"contrast.temperature_init": {"low": 0.02, "high": 1.0}}
    alone = {**named, "search": search}
    assert "a rule about attention" in refusal(**alone, study__proxy={"set": SET, "temperature": "head_dim"})
    spec = make(**alone, study__proxy={"set": SET, "temperature": 0.5})
    assert factor(spec, "contrast", 1) == math.exp(0.5) and factor(spec, "", 1) == 1.0
    both = {**named, "search": {**search, "temperature_init": {"low": 0.5, "high": 2.0}}, "attach": {}}
    for rule in (0.5, "measured"):
        assert f"given {rule}" in refusal(**both, study__proxy={"set": SET, "temperature": rule})
    told = refusal(**both, study__proxy={"set": SET, "temperature": 0.5})
    assert "attention" in told and "contrast" in told and "Give same, head_dim or length" in told


def test_a_temperature_that_nothing_could_be_trained_with_is_refused() -> None:
    told = refusal(
        study__proxy={"set": SET, "temperature": 10}, search__temperature_init={"low": 1.0, "high": 1e3}
    )
    assert "search a smaller range" in told
    told = refusal(
        study__proxy={"set": SET, "temperature": "measured", "try_shifts": [-10]},
        search__temperature_init={"low": 0.01, "high": 1.0},
    )
    assert "ln τ may move by -10" in told and "search a smaller range" in told


def test_what_is_measured_is_no_part_of_what_a_person_asks() -> None:
    spec = proxied(temperature="measured")
    assert StudySpec.from_json(spec.to_json()) == spec and "measured" in str(spec.to_json())
    proxy = spec.study.proxy
    assert proxy is not None and proxy.is_unmeasured and proxy.shifts == [0.0]
    known = proxy.measured_as(0.4)
    assert known.shifts == [0.4] and not known.is_unmeasured and proxy.is_unmeasured
    assert known.model_dump() == proxy.model_dump()


TWO = [{"model.d_model": 8, "trainer.max_steps": 10}, {"model.d_model": 16, "trainer.max_steps": 30}]


def test_each_of_several_proxies_is_a_training_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_ROOT", "/data")
    spec = proxied(set=TWO)
    assert [spec.at_size(size).trainer["max_steps"] for size in (0, 1, 2)] == [10, 30, 100]
    assert [spec.at_size(size).model["init_args"].get("d_model") for size in (0, 1)] == [8, 16]
    assert spec.at_size(2) is spec
    assert len({spec.at_size(size).program().identity for size in (0, 1, 2)}) == 3
    assert StudySpec.from_json(spec.to_json()) == spec
    # a list of one is one
    assert proxied(set=[SET]).identity() == proxied().identity()


@pytest.mark.parametrize(
    ("proxy", "told"),
    [
        ([{"set": SET}, {"set": SET}], "study.proxy: given a list of 2. Several proxies go under set"),
        ({"set": []}, "study.proxy.set: given []"),
        ({"set": [SET, 3]}, "study.proxy.set: given [{"),
        ({"set": [SET] * 6}, "given 6 proxies. Give at most 5"),
        ({"set": [SET, {}]}, "study.proxy.set.1: is empty"),
        ({"set": [SET, {"study.seed": 3}]}, 'study.proxy.set.1.study.seed: Unknown section "study"'),
        ({"set": [SET, {"trainer.max_steps": 0}]}, "study.proxy.set.1.trainer.max_steps: given 0"),
        ({"set": [SET, {"trainer.max_steps": 100}]}, "study.proxy.set.1: changes nothing"),
        ({"set": [SET, dict(SET)]}, "study.proxy.set.1: trains the same as study.proxy.set.0"),
        (
            {"set": TWO, "temperature": 0.5},
            "study.proxy.temperature: given 0.5, but there are 2 proxies. Give a shift from each to the next",
        ),
        ({"set": SET, "temperature": [0.5, 0.1]}, "given 0.5, 0.1, but there is one proxy"),
        ({"set": TWO, "temperature": [0.5, True]}, "with several proxies a list of such shifts"),
        (
            {"set": TWO, "temperature": "length", "length": [64, 256]},
            "study.proxy.length: given 2 numbers, but there are 2 proxies and full size. Give 3",
        ),
    ],
)
def test_what_is_wrong_with_several_proxies_is_told_with_its_place(proxy: Any, told: str) -> None:
    assert told in refusal(study__proxy=proxy)


def test_each_proxy_has_its_price() -> None:
    limits = {"run_gpu_hours": 6.0, "proxy_gpu_hours": [0.1, 1]}
    spec = make(study__proxy={"set": TWO}, study__limits=limits)
    assert spec.study.limits.proxy_prices == [0.1, 1.0]
    told = "study.limits.proxy_gpu_hours: given 2, but there is one proxy"
    assert told in refusal(study__proxy={"set": SET}, study__limits=limits)
    assert "given [0.1, 0]" in refusal(study__proxy={"set": TWO}, study__limits={"proxy_gpu_hours": [0.1, 0]})


def test_parameters_move_from_each_size_to_the_next() -> None:
    by_hand = proxied(set=TWO, temperature=[0.25, 0.5])
    by_rule = proxied(set=TWO, temperature="head_dim", head_dim=[2, 8, 32])
    for size, by in ((0, 1.0), (1, math.exp(0.25)), (2, math.exp(0.75))):
        there = to_size(by_hand, PLAN, size)
        assert there["temperature_init"] == pytest.approx(2.0 * by)
        assert to_proxy(by_hand, there, size) == pytest.approx(PLAN)
        assert to_size(by_rule, PLAN, size)["temperature_final"] == pytest.approx(0.5 * 2.0**size)
    assert to_full(by_hand, PLAN) == to_size(by_hand, PLAN, 2)
    assert factor(by_rule, "", 1) == pytest.approx(2.0)
    told = refusal(
        study__proxy={"set": TWO, "temperature": [10, 0]}, search__temperature_init={"low": 1.0, "high": 1e3}
    )
    assert "at the size of study.proxy.set.1 is" in told


@pytest.mark.parametrize(
    "other",
    [
        {"study__evaluate_only": "m.ckpt"},
        {"study__compare": "lr", "search__lr": [0.1, 0.2]},
        {"compare": [{"name": "A", "parameters": {}}, {"name": "B", "parameters": {"lr": 0.1}}]},
    ],
)
def test_what_searches_nothing_of_temperature_has_no_proxy(other: dict[str, Any]) -> None:
    assert "Take one of the two out" in refusal(study__proxy={"set": SET}, **other)


def test_an_earlier_study_may_be_learned_from() -> None:
    assert make(study__proxy={"set": SET}, study__warm_start=["before"]).study.warm_start == ["before"]


def test_parameters_go_over_by_the_rule_and_come_back() -> None:
    spec = proxied(temperature="head_dim", head_dim=[8, 32])
    full = to_full(spec, PLAN)
    assert full == pytest.approx({**PLAN, "temperature_init": 4.0, "temperature_final": 1.0})
    assert to_proxy(spec, full) == pytest.approx(PLAN)
    assert to_full(spec, {"temperature_init": 1.0}) == {"temperature_init": 1.0}
    assert to_full(make(), PLAN) == PLAN == to_full(proxied(), PLAN)


def test_a_length_scaling_follows_the_length_by_itself() -> None:
    spec = proxied(temperature="length", length=[64, 256])
    assert to_full(spec, PLAN)["temperature_init"] == pytest.approx(2.0 * math.log(64) / math.log(256))
    scaled = {**PLAN, "length_scaling": "log_n", "n0": 16.0}
    assert to_full(spec, scaled) == scaled


def test_what_moved_and_what_was_taken_over_is_told() -> None:
    search = {
        "temperature_init": {"low": 0.5, "high": 2.0},
        "length_scaling": ["none", "log_n"],
        "n0": {"low": 8, "high": 64},
        "lr": {"low": 0.1, "high": 1.0},
    }
    spec = make(search=search, study__proxy={"set": SET, "temperature": 0.5})
    found = {"temperature_init": 2.0, "length_scaling": "log_n", "n0": 16.0, "lr": 0.1}
    assert moved_names(spec, to_full(spec, found)) == (["temperature_init"], ["n0", "lr"])


def test_what_a_dry_run_finds_is_kept_and_asks_nothing_else() -> None:
    spec = proxied(temperature="head_dim")
    assert spec.study.proxy is not None and spec.study.proxy.shifts is None
    sizes = {"head_dim": [8, 32], "steps": [30, 100], "parameters": [10, 40]}
    begun = spec.with_found({}, sizes=sizes)
    assert begun.study.proxy is not None and begun.study.proxy.sizes == sizes
    assert begun.study.proxy.shifts == pytest.approx([math.log(2)])
    assert begun.study.proxy.cost_ratios == pytest.approx([1, 100 / 30 * 4])
    # whoever writes the same spec again goes on with what was found
    assert differences(begun, begun_as(spec, begun)) == {}
    other = proxied(temperature="head_dim", head_dim=[8, 64])
    assert [*differences(begun, begun_as(other, begun))] == ["study.proxy.head_dim"]
    same = proxied().with_found({}, sizes=sizes)
    assert same.study.proxy is not None and same.study.proxy.head_dim is None
    assert same.identity() == proxied().identity()


def test_without_sizes_no_cost_is_told() -> None:
    spec = proxied()
    assert spec.study.proxy is not None and spec.study.proxy.cost_ratios is None
