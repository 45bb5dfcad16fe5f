from __future__ import annotations

import math
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from tempopt.spec.domains import UNSET, domain_to_yaml
from tempopt.spec.search_space import (
    arm_parameters,
    arm_space,
    distributions,
    is_n0_redundant,
    params_key,
    parse_search,
    parse_sets,
    unused_temperature_params,
)
from tempopt.spec.yaml_source import CollectedSpecError
from tempopt.temperature import TemperatureParameters


def _parse(search: object, **model_args: Any) -> dict[str, Any]:
    return dict(parse_search(search, model_args=model_args))


def _space(search: object) -> dict[str, Any]:
    return dict(distributions(parse_search(search, model_args={})))


def test_each_kind_of_domain_becomes_optunas_distribution() -> None:
    space = _space(
        {
            "temperature_init": {"low": 1, "high": 4},
            "layer_ratio": {"low": 0.5, "high": 2.0, "log": False},
            "temperature_final": {"low": 1, "high": 4, "step": 0.5},
            "schedule": ["constant", "cosine"],
            "num_steps": {"low": 2, "high": 6},
            "data.batch_size": {"low": 16, "high": 64, "step": 16},
            "trainer.gradient_clip_val": {"choices": [None, 1.0]},
            "lr": {"low": 1e-4, "high": 1e-1, "log": True},
            "width": {"low": 1, "high": 64, "log": True},
            "mixed": {"low": 0, "high": 1.5},
        }
    )
    assert space == {
        "temperature_init": FloatDistribution(1.0, 4.0, log=True),
        "layer_ratio": FloatDistribution(0.5, 2.0),
        "temperature_final": FloatDistribution(1.0, 4.0, step=0.5),
        "schedule": CategoricalDistribution(("constant", "cosine")),
        "num_steps": IntDistribution(2, 6),
        "data.batch_size": IntDistribution(16, 64, step=16),
        "trainer.gradient_clip_val": CategoricalDistribution((None, 1.0)),
        "lr": FloatDistribution(1e-4, 1e-1, log=True),
        "width": IntDistribution(1, 64, log=True),
        "mixed": FloatDistribution(0.0, 1.5),
    }


@pytest.mark.parametrize(
    ("name", "domain", "fragment"),
    [
        ("lr", {"low": 2, "high": 1}, "low is 2 and high is 1. Give a low that is less than high."),
        ("lr", {"low": 1, "high": 1}, "less than high"),
        ("lr", {"low": 0, "high": 1, "log": True}, "Give a low above 0, or log: false"),
        ("lr", {"low": "1e-3", "high": 1}, "low is '1e-3'. Give a finite number, without quotes."),
        ("lr", {"low": True, "high": 2}, "low is True. Give a finite number."),
        ("lr", {"low": 0, "high": math.inf}, "high is inf. Give a finite number."),
        ("lr", {"low": 0.1}, "high is missing."),
        ("lr", {"low": 0.1, "high": 1, "stpe": 0.1}, 'Unknown key "stpe". Did you mean "step"?'),
        ("lr", {"low": 0.1, "high": 1, "log": "yes"}, "log is 'yes'. Give true or false."),
        ("lr", {"low": 1, "high": 2, "log": True, "step": 1}, "given log and step"),
        ("lr", {"low": 0, "high": 1, "step": 0.3}, "do not meet the high 1.0. Give a high of 0.9 or 1.2."),
        ("lr", {"low": 0, "high": 1, "step": 0}, "step is 0. Give a step above 0."),
        ("lr", 0.1, "for a fixed value, a list of one: [0.1]."),
        ("lr", [], "Give a list with at least one value."),
        ("lr", {"choices": [1], "low": 0}, "given choices together with low"),
        ("lr", [0.1, 0.1], "given 0.1 more than once"),
        ("lr", [[1, 2]], "given the choice [1, 2]. A choice is text"),
        ("lr", [math.nan], "given the choice nan. A choice is text"),
        ("temperature_init", {"low": 0, "high": 4}, "Give a low above 0."),
        ("temperature_init", {"low": -1, "high": 4, "log": False}, "temperature_init=-1.0 is out of range."),
        ("temperature_init", [0.0, 1.0], "temperature_init=0.0 is out of range."),
        ("schedule", ["cosin"], 'Unknown schedule "cosin". Did you mean "cosine"?'),
        ("schedule", {"low": 0, "high": 1}, "a schedule has a name. Give a list of names."),
        ("layer_pattern", ["uniform", "v"], 'Unknown layer_pattern "v".'),
        ("length_scaling", ["logn"], 'Unknown length_scaling "logn". Did you mean "log_n"?'),
        ("cycles", {"low": 0.5, "high": 2.5}, "Give choices, or a step."),
        ("n0", {"low": 1, "high": 64}, "n0=1.0 is out of range. Give a finite number above 1."),
        ("num_steps", {"low": 2.0, "high": 4.0}, "Give a whole number of at least 2."),
        ("model.lr", [1, 2], 'write "lr", not "model.lr"'),
        ("model.init_args.lr", [1, 2], 'write "lr", not "model.init_args.lr"'),
        ("dta.x", [1, 2], 'Unknown prefix "dta". Did you mean "data"? Known: data, trainer. What'),
        ("data.init_args.x", [1, 2], 'leave init_args out: write "data.x"'),
        ("trainer.max_time", [1, 2], "max_time cannot be searched"),
        ("2fast", [1, 2], '"2fast" is not a name of an argument'),
        ("learned_temperature", ["head", "layer"], "Say at which value it changes nothing"),
        ("schedule", {"choices": ["cosine"], "baseline": "constant"}, "given a baseline"),
        ("top_k", {"low": 2, "high": 8, "baseline": 4}, "given a baseline"),
        ("lr", {"low": 0.1, "high": 1.0, "baseline": {}}, "given the baseline {}."),
    ],
)
def test_a_wrong_domain_is_refused_with_what_to_do(name: str, domain: object, fragment: str) -> None:
    with pytest.raises(CollectedSpecError) as error:
        _parse({name: domain})
    [(path, message)] = error.value.lines
    assert path == f"search.{name}"
    assert fragment in message


@pytest.mark.parametrize("search", [None, {}, ["lr"]])
def test_a_search_of_nothing_is_refused(search: object) -> None:
    with pytest.raises(CollectedSpecError, match="Say what is searched, as in"):
        _parse(search)


def test_a_prefix_that_could_mean_two_things_is_refused() -> None:
    with pytest.raises(CollectedSpecError, match="could mean the data: section, or the init argument"):
        _parse({"data.x": [1, 2]}, data={"x": 3})


@pytest.mark.parametrize(
    ("search", "fixed_params", "names"),
    [
        ({"temperature_final": {"low": 1, "high": 4}}, {}, ["temperature_final"]),
        ({"temperature_final": {"low": 1, "high": 4}}, {"schedule": "cosine"}, []),
        ({"schedule": ["linear", "cosine"]}, {}, ["schedule"]),
        ({"schedule": ["linear", "cosine"]}, {"temperature_final": 4.0}, []),
        ({"schedule": ["linear"], "temperature_final": {"low": 1, "high": 4}}, {}, []),
        ({"layer_pattern": ["u", "linear"]}, {}, ["layer_pattern"]),
        ({"layer_pattern": ["u", "linear"], "layer_ratio": {"low": 0.5, "high": 2}}, {}, []),
        ({"layer_ratio": {"low": 1, "high": 2}}, {}, ["layer_ratio"]),
        ({"top_k": {"low": 1, "high": 8}}, {}, ["top_k"]),
        ({"top_k": {"low": 1, "high": 8}, "normaliser": ["softmax", "top_k"]}, {}, []),
        ({"temperature_init": {"low": 1, "high": 4}}, {"normaliser": "linear"}, ["temperature_init"]),
        ({"n0": {"low": 2, "high": 64}}, {}, ["n0"]),
        ({"n0": {"low": 2, "high": 64}, "length_scaling": ["none", "log_n"]}, {}, []),
        ({"entropy_lambda": {"low": -0.1, "high": 0.1}}, {}, []),
        ({"temperature_init": {"low": 0.25, "high": 4}, "lr": [1, 2]}, {}, []),
        ({"schedule": ["constant", "warmup_anneal"], "warmup_start": {"low": 1, "high": 2}}, {}, []),
    ],
)
def test_a_parameter_that_cannot_matter_is_found(
    search: dict[str, Any], fixed_params: dict[str, Any], names: list[str]
) -> None:
    assert unused_temperature_params(parse_search(search, model_args={}), fixed_params) == names


TAU, N0 = {"low": 0.25, "high": 4.0}, {"low": 2.0, "high": 64.0}
LOG_N = {"temperature_init": TAU, "n0": N0, "length_scaling": ["none", "log_n"]}


@pytest.mark.parametrize(
    ("search", "fixed_params", "is_redundant"),
    [
        (LOG_N, {}, True),
        ({"temperature_init": TAU, "n0": N0}, {"length_scaling": "log_n_power"}, True),
        ({**LOG_N, "schedule": ["cosine"], "temperature_final": TAU}, {}, True),
        ({**LOG_N, "layer_pattern": ["linear"], "layer_ratio": TAU}, {}, True),
        ({**LOG_N, "schedule": ["cosine"]}, {"temperature_final": 1.0}, False),
        ({**LOG_N, "schedule": ["constant", "warmup_anneal"]}, {}, False),
        ({**LOG_N, "length_scaling": ["log_n", "clipped_log_n"]}, {}, False),
        ({**LOG_N, "length_scaling": ["yarn"]}, {}, False),
        ({**LOG_N, "n0": [32.0]}, {}, False),
        ({**LOG_N, "temperature_init": [0.5, 1.0]}, {}, False),
        ({"n0": N0, "length_scaling": ["log_n"]}, {"temperature_init": 2.0}, False),
    ],
)
def test_n0_is_redundant_where_it_only_scales_a_temperature_that_is_free(
    search: dict[str, Any], fixed_params: dict[str, Any], is_redundant: bool
) -> None:
    assert is_n0_redundant(parse_search(search, model_args={}), fixed_params) == is_redundant


def test_logits_of_log_n_depend_on_temperature_and_n0_by_one_number() -> None:
    first, second = (
        TemperatureParameters(length_scaling="log_n", n0=n0, temperature_init=tau).plan(1)
        for n0, tau in ((4.0, 3.0), (64.0, 1.0))
    )
    for n in (2, 7, 500):
        inverses = [plan.length_scaling.factor(n) / plan.temperatures(0.0)[0] for plan in (first, second)]
        assert inverses[0] == pytest.approx(inverses[1])


HOLD_ANNEAL_SEARCH = {
    "lr": {"low": 1e-3, "high": 1.0, "log": True},
    "width": {"low": 1, "high": 9, "step": 4},
    "cycles": {"low": 0.5, "high": 2.5, "step": 1},
    "schedule": ["constant", "cosine"],
    "clip": [None, True, 1.5],
}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("lr", 1, 1.0),
        ("lr", 1e-3, 1e-3),
        ("width", 5, 5),
        ("cycles", 1.5, 1.5),
        ("schedule", "cosine", "cosine"),
        ("clip", None, None),
        ("clip", True, True),
    ],
)
def test_a_value_that_a_person_wants_tried_is_held_as_optuna_holds_it(
    name: str, value: object, expected: object
) -> None:
    [parameters] = parse_sets(
        [{name: value}], search=parse_search(HOLD_ANNEAL_SEARCH, model_args={}), max_sets=2, path="x"
    )
    assert parameters == {name: expected}
    assert type(parameters[name]) is type(expected)
    distribution = _space(HOLD_ANNEAL_SEARCH)[name]
    assert distribution._contains(distribution.to_internal_repr(parameters[name]))


@pytest.mark.parametrize(
    ("name", "value", "fragment"),
    [
        ("lr", 0, "given 0. Give a number from 0.001 to 1.0."),
        ("lr", 1.1, "given 1.1. Give a number from"),
        ("lr", math.nan, "given nan. Give a number from"),
        ("lr", True, "given True. Give a number from"),
        ("lr", "0.1", "given '0.1'. Give a number from"),
        ("lr", None, "given None. Give a number from"),
        ("width", 5.0, "given 5.0. Give a whole number from 1 to 9 in steps of 4."),
        ("width", 6, "given 6. Give a whole number from 1 to 9 in steps of 4."),
        ("cycles", 1, "given 1. Give a number from 0.5 to 2.5 in steps of 1."),
        ("schedule", "cosin", 'given \'cosin\'. Give one of "constant", "cosine".'),
        ("clip", 1, "given 1. Give one of null, true, 1.5."),
        ("clip", [1.5], "given [1.5]. Give one of null, true, 1.5."),
        ("rate", 1, 'Unknown searched name "rate".'),
    ],
)
def test_a_value_that_is_not_searched_is_refused(name: str, value: object, fragment: str) -> None:
    sets: list[dict[str, object]] = [{"lr": 0.5}, {name: value}]
    with pytest.raises(CollectedSpecError) as error:
        parse_sets(sets, search=parse_search(HOLD_ANNEAL_SEARCH, model_args={}), max_sets=2, path="x")
    [(path, message)] = error.value.lines
    assert path == f"x.1.{name}"
    assert fragment in message


SEARCH = {
    "temperature_init": {"low": 0.5, "high": 8},
    "temperature_final": {"low": 0.5, "high": 8},
    "schedule": ["constant", "cosine"],
    "lr": {"low": 1e-3, "high": 1e-1, "log": True},
    "data.batch_size": [16, 32],
}


def test_every_arm_samples_what_it_tunes_and_no_more() -> None:
    space = _space(SEARCH)
    other_domains = {name: space[name] for name in ("lr", "data.batch_size")}
    assert arm_space(space, "search", list(other_domains)) == space
    assert arm_space(space, "baseline", list(other_domains)) == other_domains
    constant = {"temperature_init": FloatDistribution(0.5, 8.0, log=True), **other_domains}
    assert arm_space(space, "constant", list(other_domains)) == constant
    assert arm_space(space, "baseline", ["lr"]) == {"lr": space["lr"]}
    assert arm_space(space, "baseline", []) == {}


def test_the_baseline_arm_makes_neutral_all_that_the_study_touches() -> None:
    parameters = arm_parameters(
        "baseline",
        {"lr": 0.1},
        search=_parse(SEARCH),
        fixed={"layer_pattern": "u", "output_temperature": 2.0},
    )
    assert parameters == {
        "temperature_init": 1.0,
        "schedule": "constant",
        "layer_pattern": "uniform",
        "output_temperature": 1.0,
        "lr": 0.1,
    }


def test_every_arm_tunes_generation_and_keeps_what_is_set_of_it() -> None:
    search = _parse({**SEARCH, "top_p": {"low": 0.5, "high": 1.0}})
    fixed_params = {"sampling_temperature": 0.7, "output_temperature": 2.0}
    sampled_params = {"lr": 0.1, "top_p": 0.9}
    for arm in ("baseline", "constant"):
        params = arm_parameters(arm, sampled_params, search=search, fixed=fixed_params)  # type: ignore[arg-type]
        assert (params["sampling_temperature"], params["top_p"]) == (0.7, 0.9)
        assert params["output_temperature"] == 1.0
    assert arm_parameters("baseline", {"lr": 0.1}, search=search, fixed=fixed_params)["top_p"] == 1.0


def test_the_constant_arm_changes_only_the_level() -> None:
    parameters = arm_parameters("constant", {"temperature_init": 2.0}, search=_parse(SEARCH), fixed={})
    assert parameters == {"temperature_init": 2.0, "schedule": "constant"}


METHODS = {
    "normaliser": ["softmax", "top_k"],
    "top_k": {"low": 2, "high": 8},
    "label_smoothing": {"low": 0.0, "high": 0.2},
    "loss.tau": {"low": 0.5, "high": 2.0},
    "dropout": {"choices": [0.1, 0.2], "baseline": None},
}


@pytest.mark.parametrize("arm", ["baseline", "constant"])
def test_what_has_a_baseline_is_held_there_whatever_the_search_tries(arm: Any) -> None:
    search = _parse({**SEARCH, **METHODS}, loss={})
    level = {"temperature_init": 2.0} if arm == "constant" else {}
    params = arm_parameters(arm, {"lr": 0.1, **level}, search=search, fixed={})
    assert params == {
        "temperature_init": level.get("temperature_init", 1.0),
        "schedule": "constant",
        "normaliser": "softmax",
        "label_smoothing": 0.0,
        "loss.tau": 1.0,
        "dropout": None,
        "lr": 0.1,
    }


@pytest.mark.parametrize(
    ("name", "domain", "baseline"),
    [
        ("lr", {"low": 0.1, "high": 1.0}, UNSET),
        ("width", [8, 16], UNSET),
        ("lr", {"low": 0.1, "high": 1.0, "baseline": 0.3}, 0.3),
        ("heads", {"choices": [4, 8], "baseline": None}, None),
        ("heads", {"choices": [4, 8], "baseline": False}, False),
        ("label_smoothing", {"low": 0.0, "high": 0.2}, 0.0),
        ("loss.label_smoothing", [0.05, 0.1], 0.0),
        ("label_smoothing", {"low": 0.0, "high": 0.2, "baseline": 0.1}, 0.1),
        ("label_smoothing_warmup", [1, 2], UNSET),
        ("tau", {"low": 0.5, "high": 2.0}, 1.0),
        ("softmax_temperature", {"low": 0.5, "high": 2.0}, 1.0),
        ("loss.tau", {"low": 2.0, "high": 4.0}, 1.0),
        ("temperature_head", [2.0, 1.0], 1.0),
        ("learned_temperature", ["none", "head", "layer"], "none"),
        ("learned_temperature", ["head", None], None),
        ("learn_tau", [True, False], False),
        ("learned_temperature", {"choices": ["head", "layer"], "baseline": "head"}, "head"),
        ("attention", [2, 4], UNSET),
        ("taus_total", [2, 4], UNSET),
        ("temperatures", ["off", "on"], "off"),
    ],
)
def test_what_is_a_method_and_no_setting_has_a_baseline(name: str, domain: Any, baseline: Any) -> None:
    baseline_value = _parse({name: domain}, loss={})[name].baseline
    assert baseline_value == baseline and type(baseline_value) is type(baseline)
    domain_text = domain_to_yaml(_parse({name: domain}, loss={})[name])
    assert ("baseline" in domain_text) == (baseline != UNSET)
    assert _parse({name: domain_text}, loss={}) == _parse({name: domain}, loss={})


def test_the_search_arm_keeps_what_the_model_fixes() -> None:
    sampled_params = {"temperature_init": 4.0, "temperature_final": 1.0}
    domains = parse_search({name: [0.5, value] for name, value in sampled_params.items()}, model_args={})
    parameters = arm_parameters("search", sampled_params, search=domains, fixed={"schedule": "cosine"})
    assert parameters == {**sampled_params, "schedule": "cosine"}


def test_sets_of_equal_effect_are_not_distinct() -> None:
    flat = {"schedule": "cosine", "temperature_init": 2.0, "temperature_final": 2.0, "lr": 0.1}
    constant = {"lr": 0.1, "temperature_init": 2.0, "schedule": "constant", "temperature_final": None}
    assert params_key(flat) == params_key(constant)
    assert params_key(flat) != params_key({**flat, "lr": 0.2})
