from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.errors import SpecError
from tempopt.spec.identity import diff_specs
from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.validation_errors import FaultySpecError
from tests.specs import BASE, Write, change_spec, make


def test_a_small_spec_has_the_defaults_of_the_house(write: Write) -> None:
    spec = load_spec(write(BASE))
    assert (spec.num_trials, spec.num_constant, spec.num_baseline) == (12, 4, 2)
    assert (spec.study.candidates, spec.study.seeds.search, spec.study.seeds.choose) == (2, 2, 2)
    assert spec.study.seeds.confirm.looks == (4, 8, 12, 16)
    assert (spec.study.explain, spec.study.keep_share, spec.study.failure) == (False, 0.5, None)
    assert (spec.study.confirm_on, spec.study.validate_at) == ("test", "final")
    assert (spec.study.sampler.name, spec.study.pruner.name) == ("knowledge_gradient",) * 2
    assert spec.study.parallel == 4
    assert spec.notes == []


def test_other_parameters_give_the_baseline_more_runs_in_the_first_design() -> None:
    assert make(search__lr=[0.1, 0.2], study__trials=31).num_baseline == 4
    # as it tunes generation, which is no temperature of attention
    spec_of_sampling = make(search__top_p={"low": 0.5, "high": 1.0}, study__trials=31)
    assert (
        spec_of_sampling.num_baseline,
        spec_of_sampling.ordinary_names,
        spec_of_sampling.method_parameter_names,
    ) == (
        4,
        ["top_p"],
        [],
    )
    assert make(search__lr=[0.1, 0.2], study__arms={"baseline": 5, "constant": 7}).num_baseline == 5
    assert make(study__arms={"constant": 7}).num_constant == 7


def test_a_search_of_an_argument_named_temperature_says_how_its_number_is_searched() -> None:
    with pytest.raises(SpecError, match=r"temperatures: \{contrast: \{value: hparams\.temperature\}\}"):
        make(search={"temperature": {"low": 0.05, "high": 2}})


FAULTY_VALUES: dict[str, list[Any]] = {
    "study.metrc": ["x"],
    "study.metric": ["val_loss ", ["val_loss", "val_accuracy"]],
    "study.direction": ["max", ["minimize"]],
    "study.name": ["a/b"],
    "study.trials": [0, "40", 4.5, True],
    "study.parallel": [0],
    "study.arms": [3],
    "study.arms.baseline": [0],
    "study.arms.rematch": [9],
    "study.seeds.confirm": [1, 0, -3, True, "8", 4.5, [4, 16], {"min": 9, "max": 4}],
    "study.keep_share": [0, 1, -0.5],
    "study.explain": ["some"],
    "study.min_gain": [-0.1, "1", "-1%", "-1 sd", "1 se", True, math.inf, "one percent", [1]],
    "study.failure": ["low", math.nan],
    "study.compile": ["fast"],
    "study.sampler": ["tpee", {"name": "tpe", "seed": 1}, {"name": "random", "group": True}],
    "study.sampler.group": [{"name": "tpe", "group": 1}],
    "study.pruner": [3, "threshold", "percentile"],
    "study.pruner.n_min_trials": [{"name": "median", "n_min_trials": True}],
    "study.limits": [3],
    "study.limits.hours": [0, math.inf],
    "study.limits.gpu_hours": [True],
    "study.limits.hour": [1],
    "study.lease": [0.5, "5m"],
    "study.store_timeout": [-1],
    "study.checkpoint_every": [0],
    "study.enqueue": [{"lr": 1}, [{"temperature_init": 1}] * 13],
    "study.enqueue.0": [[3], [{}]],
    "study.enqueue.1.temperature_init": [[{"temperature_init": 1}, {"temperature_init": 9}]],
    "study.guards": [["val_loss"]],
    "study.guards.val_loss": ["better", 0.01, "<= 2%", "no worse than -1%", ">= +2%", "no worse than 1e999"],
    "study.guards.calibration": ["no worse than 1%"],
    "study.guards.val_accuracy": ["no worse than 1%"],
    "search": [{"lr": [0.1, 0.2]}, {"label_smoothing": [0.0]}, {"normaliser": ["softmax", "sparsemax"]}],
    "search.learned_temperature": [["head", "layer"]],
    "search.temperature_init": [{"low": 0.5, "high": 2.0, "baseline": 1.0}],
    "search.normaliser": [{"choices": ["softmax", "sparsemax"], "baseline": "softmax"}],
    "search.heads": [{"choices": [1, 2], "baseline": [1]}],
    "search.temperature_final": [[1.0, 2.0]],
    "search.control_level": [{"low": 0.2, "high": 0.9}],
    "search.entropy_control": [{"low": 0.2, "high": 0.9}],
    "search.trainer.gradient_clip": [[0.5, 1.0]],
    "search.trainer.devices": [[1, 2]],
    "modell": [{}],
    "seed_everything": [1],
    "ckpt_path": ["x"],
    "fit": [{}],
    "model": ["my.Model", {"lr": 0.1}],
    "model.lr": [0.1],
    "model.class_path": ["MyModel", "a.b:C"],
    "model.init_args": [[1]],
    "model.init_args.schedule": ["cosin"],
    "model.init_args.temperature_init": [-1],
    "model.init_args.x": [math.nan, -math.inf, 10**400],
    "data": [3],
    "data.init_args.root": ["???"],
    "trainer": [{"class_path": "L.Trainer"}, [1]],
    "trainer.max_step": [10],
    "trainer.max_steps": [1e3, 0],
    "trainer.enable_checkpointing": [True],
    "trainer.fast_dev_run": [True],
    "trainer.max_time": ["00:01:00:00"],
    "trainer.num_nodes": [2],
    "trainer.devices": [0, -1, "auto", "2", [0], [0, 1], True, "${DEVICES}"],
    "trainer.strategy": ["ddp_spawn", "ddp_notebook_find_unused_parameters_true", "deepspeed_stage_2"],
    "trainer.strategy.init_args.state_dict_type": ["sharded"],
    "trainer.val_check_interval": [0, 2.0, True],
    "trainer.limit_val_batches": [0],
    "trainer.accumulate_grad_batches": ["two", 2.5],
    "trainer.detect_anomaly": ["often"],
    "trainer.gradient_clip_val": [[1.0]],
    "attach.layers": [[]],
    "attach.layer": ["auto"],
    "resources.workers": [9, 0],
    "resources.grace": [-1],
    "resources.memory": ["8 gigs", 0, True],
}
"""Key of a spec to values that it cannot have; an option of a sampler is given with its sampler."""

FAULTY_COMBINATIONS: list[tuple[dict[str, Any], str]] = [
    ({"study": None}, "study"),
    ({"study__metric": None}, "study.metric"),
    ({"model": None}, "model"),
    ({"search": None}, "search"),
    ({"trainer": None}, "trainer"),
    ({"trainer__max_steps": -1}, "trainer"),
    ({"study__seeds": {"confirm": {"min": 4}}}, "study.seeds.confirm.max"),
    ({"study__seeds": {"confirm": {"min": 1, "max": 4}}}, "study.seeds.confirm.min"),
    ({"study__guards": {"acc": ">= -1%", "acc ": ">= -1%"}}, "study.guards.acc "),
    ({"study__sampler": "tpe", "study__warm_start": ["first"]}, "study.warm_start"),
    ({"study__sampler": "tpe", "study__limits": {"standard_errors": 1.0}}, "study.limits.standard_errors"),
    ({"study__compile": True, "search__entropy_control": ["none", "hold"]}, "search.entropy_control"),
    ({"data": None, "search__data.x": [1]}, "search.data.x"),
]
REMEDY = re.compile(r"\b(Give|give|Known|Take|Write|write|Search|Say|Leave|Use|Move|Fill|take)\b")


def assert_fault(path: str, **settings: Any) -> None:
    """See that a spec has one fault, at a path, and that the message says what to do."""
    with pytest.raises(FaultySpecError) as error:
        StudySpec.parse(change_spec(**settings), source="s.yaml")
    [(fault_path, message)] = error.value.lines
    assert fault_path == path
    assert REMEDY.search(message), message
    assert str(error.value) == f"This study spec has a fault:\n  s.yaml: {path}: {message}"


@pytest.mark.parametrize(
    ("path", "value"), [(path, value) for path, values in FAULTY_VALUES.items() for value in values], ids=str
)
def test_a_faulty_value_is_refused_at_its_key_with_what_to_do(path: str, value: Any) -> None:
    if path.startswith(("study.sampler.", "study.pruner.", "study.enqueue.")):
        key = ".".join(path.split(".")[:2])
    else:
        key = path
    keys = key.split(".") if not key.startswith("search.") else ["search", key.removeprefix("search.")]
    assert_fault(path, **{"__".join(keys): value})


@pytest.mark.parametrize(("settings", "path"), FAULTY_COMBINATIONS)
def test_what_does_not_fit_together_is_refused_at_its_key(settings: dict[str, Any], path: str) -> None:
    assert_fault(path, **settings)


@pytest.mark.parametrize("value", ["2", "${STEPS}", 2])
def test_a_number_in_quotes_and_a_variable_are_allowed(value: object) -> None:
    assert make(trainer__accumulate_grad_batches=value).trainer["accumulate_grad_batches"] == value


def test_a_parameter_set_that_does_not_fit_is_said_with_its_line(write: Write) -> None:
    path = write(
        BASE.replace("search:", "  enqueue:\n    - {temperature_init: 1}\n    - {tempo: 2}\nsearch:")
    )
    with pytest.raises(SpecError) as error:
        load_spec(path)
    assert f'{path}:8: study.enqueue.1.tempo: Unknown searched name "tempo". Known: temperature_init.' in str(
        error.value
    )


def test_all_faults_are_said_at_once_with_their_lines(write: Write) -> None:
    text = BASE.replace("direction: maximize", "direction: up").replace("low: 0.25", "low: 25")
    path = write(text.replace("max_steps: 100", "max_steps: 0") + "typo: 1\n")
    with pytest.raises(SpecError) as error:
        load_spec(path)
    heading, *lines = str(error.value).splitlines()
    assert heading == "This study spec has 4 faults:"
    assert [line.split(": ")[0].rpartition(":")[2] for line in lines] == ["5", "7", "14", "15"]
    assert [line.split(": ")[1] for line in lines] == [
        "study.direction",
        "search.temperature_init",
        "trainer.max_steps",
        "typo",
    ]


@pytest.mark.parametrize(
    ("metric", "direction", "fragments"),
    [
        ("val_loss", "maximize", ["is one to minimize"]),
        ("val/accuracy", "minimize", ["is one to maximize"]),
        ("val_loss", "minimize", []),
        ("val_score", "minimize", []),
        ("glossary", "maximize", []),
    ],
)
def test_a_direction_against_the_metrics_name_is_noted(
    metric: str, direction: str, fragments: list[str]
) -> None:
    notes = make(study__metric=metric, study__direction=direction).notes
    assert len(notes) == len(fragments)
    assert all(part in note for part, note in zip(fragments, notes, strict=True))


@given(
    trials=st.integers(1, 10**5),
    low=st.floats(1e-3, 1.0),
    ratio=st.floats(1.1, 100.0),
    choices=st.lists(
        st.integers(-(2**63) + 1, 2**63 - 1) | st.text(max_size=5) | st.none(), min_size=1, unique=True
    ),
    seed=st.integers(0, 2**63 - 1),
)
def test_any_spec_survives_json(trials: int, low: float, ratio: float, choices: list[Any], seed: int) -> None:
    spec = make(
        study__trials=trials,
        study__seed=seed,
        search={"temperature_init": {"low": low, "high": low * ratio}, "data.x": choices},
    )
    assert StudySpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_the_environment_stays_unresolved_in_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_ROOT", "/here")
    spec = make()
    assert spec.to_json()["data"]["init_args"]["root"] == "${DATA_ROOT}/mine"
    assert spec.lightning_program().data == {
        "class_path": "my_module.MyData",
        "init_args": {"root": "/here/mine", "batch_size": 32},
    }
    identity = spec.identity()
    monkeypatch.setenv("DATA_ROOT", "/there")
    assert make().identity() == identity


def test_what_this_machine_sets_is_in_force_but_not_stored(write: Write) -> None:
    path = write(BASE)
    spec = load_spec(path, ["data.root=/local", "resources.workers=2", "trainer.accelerator=cpu"])
    program = spec.lightning_program()
    assert program.data is not None
    assert program.data["init_args"] == {"root": "/local", "batch_size": 32}
    assert program.trainer == {"max_steps": 100, "accelerator": "cpu"}
    assert spec.resolve_environment().resources.workers == 2
    assert spec.to_json() == load_spec(path).to_json()
    assert diff_specs(load_spec(path), spec) == {}


def test_a_setting_of_the_study_changes_it(write: Write) -> None:
    path = write(BASE)
    spec = load_spec(path, ["study.metric=val_f1", "model.lr=1e-2", "search.temperature_init.high=8"])
    assert spec.identity() != load_spec(path).identity()
    assert list(diff_specs(load_spec(path), spec).values()) == [
        'study.metric: was "val_accuracy", now "val_f1"',
        "search.temperature_init.high: was 4.0, now 8.0",
        "model.init_args.lr: was not given, now 0.01",
    ]


def test_what_a_later_version_stored_is_refused_with_what_to_do() -> None:
    later_data = make().to_json()
    later_data["study"]["warp"] = 9
    with pytest.raises(
        SpecError, match=r'(?s)the stored study spec: study\.warp: Unknown key "warp"\..*Another'
    ):
        StudySpec.from_json(later_data)
    with pytest.raises(SpecError, match=r"install the newest: pip install --upgrade tempopt$"):
        StudySpec.from_json(later_data)


def test_more_tickets_and_another_name_are_no_change() -> None:
    larger_spec = make(study__trials=80, study__name="other", study__max_attempts=9, study__explain=True)
    assert diff_specs(make(), larger_spec) == {}
    assert larger_spec.identity() == make().identity()
    # a search is asked for with its first design
    larger = make(study__arms={"baseline": 9})
    assert list(diff_specs(make(), larger).values()) == ["study.arms.baseline: was null, now 9"]
    assert larger.identity() != make().identity()


def test_a_setting_that_does_not_fit_is_refused(write: Write) -> None:
    with pytest.raises(SpecError, match=r"study\.trials: given 0"):
        load_spec(write(BASE), ["study.trials=0"])
    with pytest.raises(SpecError, match=r"resources\.workers: given 0"):
        load_spec(write(BASE), ["resources.workers=0"])


def test_a_program_holds_what_a_trainer_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_ROOT", "/here")
    program = make(study__seed=7, attach={"layers": ["a.*"]}).lightning_program("data.batch_size=8")
    assert program.model == {"class_path": "my_module.MyModule", "init_args": {}}
    assert program.data is not None
    assert program.data["init_args"]["batch_size"] == 8
    assert program.attach == {"layers": ["a.*"]}
    assert (program.metric, program.validate_at, program.data_seed) == ("val_accuracy", "final", 7)


def test_the_arms_follow_from_the_spec() -> None:
    spec = make(search__lr={"low": 1e-3, "high": 1e-1, "log": True}, study__trials=10)
    assert list(spec.space("baseline")) == ["lr"]
    assert list(spec.space("constant")) == ["temperature_init", "lr"]
    levels = [constant["temperature_init"] for constant in spec.constants()]
    assert levels == pytest.approx([0.25 * 16**position for position in (0.25, 0.75, 0.125, 0.625)])
    assert spec.parameters("baseline", {"lr": 0.1}) == {"temperature_init": 1.0, "lr": 0.1}


def test_what_has_a_baseline_is_held_there_at_one_and_kept_by_the_search() -> None:
    spec = make(
        search__lr=[0.1, 0.2],
        search__heads={"choices": [4, 8], "baseline": None},
        search__label_smoothing={"low": 0.0, "high": 0.2},
        search__normaliser=["softmax", "sparsemax"],
    )
    assert spec.ordinary_names == ["lr"]
    assert sorted(spec.method_parameter_names) == ["heads", "label_smoothing", "normaliser"]
    assert list(spec.space("baseline")) == ["lr"] and list(spec.space("constant")) == [
        "temperature_init",
        "lr",
    ]
    assert list(spec.space("search")) == list(spec.search)
    baselines = {"heads": None, "label_smoothing": 0.0, "normaliser": "softmax"}
    assert spec.parameters("baseline", {"lr": 0.1}) == {"temperature_init": 1.0, "lr": 0.1, **baselines}
    constant = {"temperature_init": 2.0, "lr": 0.1}
    assert spec.parameters("constant", constant) == {**constant, **baselines}
    params = {**constant, "heads": 8, "label_smoothing": 0.1, "normaliser": "sparsemax"}
    assert spec.parameters("search", params) == params


def test_a_spec_is_loaded_without_torch_lightning_or_optuna(write: Write) -> None:
    script = (
        "import sys; from tempopt.spec.load import load_spec; load_spec(sys.argv[1]); "
        "print([name for name in ('torch', 'lightning', 'optuna') if name in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", script, str(write(BASE))], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "[]"


def test_what_is_compiled_is_part_of_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_ROOT", "/here")
    compiled_spec = make(study__compile=True)
    assert make(study__compile=False).identity() == make().identity()
    assert compiled_spec.identity() == make(study__compile="default").identity() != make().identity()
    assert list(diff_specs(make(), compiled_spec).values()) == ['study.compile: was null, now "default"']
    assert (make().lightning_program().compile, compiled_spec.lightning_program().compile) == (
        None,
        "default",
    )
