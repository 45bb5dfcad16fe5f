"""Specs with a section ``program:``: what is refused before anything starts, and what their studies are."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import SpecError, UsageError
from tempopt.spec.collect_errors import find_all_faults
from tempopt.spec.comparison_spec import comparison_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.validation_errors import FaultySpecError
from tempopt.verdict.planned_runs import planned_runs
from tempopt.verdict.stages import initial_tickets
from tests.program.conftest import COMMAND, GAIN, program_spec

PROGRAM = {"command": COMMAND, "metric": "val_loss"}
TEMPERATURE = {"temperature_init": {"low": 0.25, "high": 4}}


def parse(**changes: Any) -> StudySpec:
    spec = program_spec(PROGRAM)
    for path, value in changes.items():
        section, _, key = path.partition("__")
        if key:
            spec[section] = {**spec.get(section, {}), key: value}
        else:
            spec[section] = value
    return StudySpec.parse(spec, source="the test")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"class_path": "a.B"}}, r"model: given as well as program:"),
        (
            {"trainer": {"max_steps": 3}, "attach": {"layers": "auto"}},
            r"(?s)trainer: given as well.*attach: given as well",
        ),
        ({"program": {}}, "given neither of command and function"),
        ({"study": "plain"}, r"study: given .*with the keys name, metric, direction\."),
        ({"program__function": "a.b"}, "given both of command and function"),
        ({"study__learned": "per_head"}, "study.learned: it acts on a LightningModule alone"),
        ({"program__command": "python {seed} {gane}"}, r'"\{gane\}".*\{seed\}, \{gain\}'),
        ({"program__command": "python '{seed}"}, "cannot be split"),
        ({"program__metric": "a (b) (c)"}, "2 groups"),
        ({"program": {"function": "a.b", "metric": "x"}}, r"program.metric: a function returns"),
        ({"program": {"function": "train"}}, "Give an import path"),
        ({"search": {"gain": {"low": 1, "high": 2}}}, r"search: given gain without a baseline.*baseline: "),
        ({"search": {"gain": GAIN, "seed": [1, 2]}}, r"search.seed: every run has a seed"),
        ({"study__confirm_on": "test"}, "study.confirm_on: a program measures"),
        ({"study__guards": {"val_acc": "<= +1%"}}, "study.guards: it acts on a LightningModule alone"),
        ({"study__compile": True}, "study.compile: it acts on a LightningModule alone"),
        ({"resources": {"workers": 9}}, "study.parallel"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse(**changes)


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        ({"program__comand": "x"}, ["program.comand"]),
        ({"program": "python train.py"}, ["program"]),
        ({"study": {"name": "plain"}}, ["study.direction"]),
        ({"search": {"gain": {"low": 3, "high": 1}}}, ["search.gain"]),
        ({"trainer": {"max_steps": 3}, "study__trails": 3}, ["study.trails", "trainer"]),
        (
            {"program": {"command": COMMAND}, "study": {"name": "x", "direction": "minimize"}},
            ["study.metric"],
        ),
    ],
)
def test_all_faults_of_a_program_concern_the_program(changes: dict[str, Any], paths: list[str]) -> None:
    with pytest.raises(FaultySpecError) as caught:
        parse(**changes)
    assert sorted(path for path, _ in find_all_faults(caught.value)) == paths


def test_the_name_in_the_output_is_the_name_of_the_metric() -> None:
    study = {"name": "plain", "direction": "minimize"}
    assert parse(study=study).study.metric == "val_loss"
    with pytest.raises(SpecError, match="study.metric: is missing"):
        parse(study=study, program__metric=r"loss (\S+)")


def test_a_placeholder_needs_a_value_in_every_run() -> None:
    conditional = {"gain": GAIN, "mode": ["a", "b"], "lr": {"low": 1, "high": 2, "when": {"mode": "a"}}}
    with pytest.raises(SpecError, match=r"program.command: \{lr\} has no value in some"):
        parse(search=conditional, program__command="python {seed} {gain} {mode} {lr}")
    parse(search=conditional, program__command="python {seed} {gain} {mode}")


def test_a_module_is_missing_and_so_is_a_program() -> None:
    spec = program_spec(PROGRAM)
    del spec["program"]
    with pytest.raises(SpecError, match=r"model: is missing.*program: \{command"):
        StudySpec.parse(spec, source="the test")


def test_a_spec_is_the_same_after_it_was_stored() -> None:
    spec = parse()
    assert StudySpec.from_json(spec.to_json()) == spec
    assert spec.with_overrides(["search.gain.baseline=2.0"]).baselines == {"gain": 2.0}
    other_command = spec.with_overrides(["program.command=python other.py {seed} {gain}"])
    assert other_command.identity() != spec.identity()


def test_without_temperatures_there_are_no_constants_and_the_baseline_has_the_baseline_values() -> None:
    spec = parse(search={"gain": GAIN, "lr": {"low": 0.001, "high": 0.1, "log": True}})
    kinds = {ticket.kind for ticket in initial_tickets(spec)}
    assert kinds == {"baseline", "search"}
    assert spec.parameters("baseline", {"lr": 0.01}) == {"gain": 1.0, "lr": 0.01}
    assert spec.to_baseline({"gain": 3.0, "lr": 0.05}) == {"gain": 1.0, "lr": 0.05}
    assert spec.is_baseline({"gain": 1.0, "lr": 0.05}) and not spec.is_baseline({"gain": 2.0, "lr": 0.05})


def test_with_temperatures_the_baseline_is_one_as_for_modules() -> None:
    spec = parse(program__command="python {seed} {temperature_init}", search=TEMPERATURE)
    assert {ticket.kind for ticket in initial_tickets(spec)} == {"baseline", "constant", "search"}
    assert spec.parameters("baseline", {}) == {"temperature_init": 1.0}
    assert not spec.learns and spec.evaluated == []


def test_a_plan_counts_no_runs_that_do_not_come() -> None:
    runs = planned_runs(parse())
    # two of the baseline, six of the search, two candidates on one seed, two sets on eight seeds at most
    assert runs.max_total() == 2 + 6 + 2 + 2 * 8
    assert "constant" not in runs.gain


def test_a_comparison_needs_no_search_and_no_baseline() -> None:
    data = {key: value for key, value in program_spec(PROGRAM).items() if key != "search"}
    spec = comparison_spec(data, vary={"gain": [1.0, 2.0]})
    assert [parameter_set.parameters["gain"] for parameter_set in spec.compared_sets] == [1.0, 2.0]
    with pytest.raises(SpecError, match=r"\{gain\} has no value in some"):
        comparison_spec(data, ["{}", "{gain: 2.0}"])


def test_what_evaluates_trained_modules_refuses_a_program() -> None:
    with pytest.raises(UsageError, match="program:"):
        parse().lightning_program()
