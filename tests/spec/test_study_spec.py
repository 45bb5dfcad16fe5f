from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.errors import SpecError
from tempopt.spec.identity import diff
from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec
from tests.specs import BASE, Write, change_spec, make


def test_a_small_spec_has_the_defaults_of_the_house(write: Write) -> None:
    spec = load_spec(write(BASE))
    assert (spec.num_trials, spec.num_constant, spec.num_baseline) == (12, 4, 2)
    assert (spec.study.candidates, spec.study.seeds.search, spec.study.seeds.choose) == (2, 2, 2)
    assert spec.study.seeds.confirm.looks == (4, 8, 12, 16)
    assert (spec.study.explain, spec.study.keep_share, spec.study.failure) == (False, 0.5, None)
    assert (spec.study.test, spec.study.confirm_on, spec.study.validate_at) == ("t", "test", "final")
    assert (spec.study.sampler.name, spec.study.pruner.name) == ("knowledge_gradient",) * 2
    assert spec.study.parallel == 4
    assert spec.notes == []


def test_other_parameters_give_the_baseline_more_runs_in_the_first_design() -> None:
    assert make(search__lr=[0.1, 0.2], study__trials=31).num_baseline == 4
    # as it tunes generation, which is no temperature of attention
    spec_of_sampling = make(search__top_p={"low": 0.5, "high": 1.0}, study__trials=31)
    assert (spec_of_sampling.num_baseline, spec_of_sampling.other_names, spec_of_sampling.method_names) == (
        4,
        ["top_p"],
        [],
    )
    assert make(search__lr=[0.1, 0.2], study__arms={"baseline": 5, "constant": 7}).num_baseline == 5
    assert make(study__arms={"constant": 7}).num_constant == 7


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"study__metrc": "x"}, 'study.metrc: Unknown key "metrc". Did you mean "metric"?'),
    ({"study__metric": None}, "study.metric: is missing. Give the name of at most 200 characters"),
    ({"study__direction": None}, "study.direction: is missing. Give maximize or minimize."),
    ({"study__direction": "max"}, 'study.direction: given the text "max". Give maximize or minimize.'),
    ({"study__name": "a/b"}, 'study.name: given the text "a/b". Give a name of at most 100 letters'),
    ({"study__trials": 0}, "study.trials: given 0. Give a whole number from 1 to 100000."),
    ({"study__trials": "40"}, 'study.trials: given the text "40". Give a whole number from 1 to 100000.'),
    ({"study__trials": 4.5}, "study.trials: given 4.5. Give a whole number from 1 to 100000."),
    ({"study__trials": True}, "study.trials: given True. Give a whole number from 1 to 100000."),
    ({"study__parallel": 0}, "study.parallel: given 0. Give a whole number from 1 to 100000."),
    (
        {"study__arms": {"baseline": 0}},
        "study.arms.baseline: given 0. Give a whole number from 1 to 100000, or null.",
    ),
    ({"study__arms": 3}, "study.arms: given 3. Give a mapping with the keys baseline, constant."),
    (
        {"study__arms": {"rematch": 9}},
        'study.arms.rematch: Unknown key "rematch". Known: baseline, constant.',
    ),
    *(
        (
            {"study__seeds": {"confirm": value}},
            f"study.seeds.confirm: given {value!r}. Give a whole number from 2 to 1000, or {{min: 4, max:",
        )
        for value in (1, 0, -3, True, "8", 4.5, [4, 16], None)
    ),
    (
        {"study__seeds": {"confirm": {"min": 9, "max": 4}}},
        "study.seeds.confirm: min is 9 and max is 4. Give a min of at most the max.",
    ),
    (
        {"study__seeds": {"confirm": {"min": 1, "max": 4}}},
        "study.seeds.confirm.min: given 1. Give a whole number",
    ),
    (
        {"study__seeds": {"confirm": {"min": 4}}},
        "study.seeds.confirm.max: is missing. Give a whole number from 2",
    ),
    (
        {"study__seeds": {"confirm": {"min": 4, "max": 8, "step": 2}}},
        'study.seeds.confirm.step: Unknown key "step". Known: min, max.',
    ),
    (
        {"study__seeds": {"confirm": {"min": 2, "max": 5}}, "study__test": "sign_flip"},
        "study.seeds.confirm: given 5 with test: sign_flip. Two-sided, so few pairs cannot give a p below 0",
    ),
    ({"study__ablation": "full"}, 'study.ablation: Unknown key "ablation".'),
    ({"study__explain": "some"}, 'study.explain: given the text "some". Give true or false.'),
    *(
        (
            {"study__keep_share": bad_value},
            f"study.keep_share: given {bad_value:g}. Give a number between 0 and 1.",
        )
        for bad_value in (0, 1, -0.5)
    ),
    *(
        (
            {"study__min_gain": bad_value},
            f"study.min_gain: given {bad_value!r}. Give a number of at least 0, percent",
        )
        for bad_value in (-0.1, "1", "-1%", "-1 sd", "1 se", True, math.inf, "one percent", [1])
    ),
    ({"study__metric": "val_loss "}, 'study.metric: given "val_loss ", with white space at its end or'),
    (
        {"study__guards": {"acc": ">= -1%", "acc ": ">= -1%"}},
        'study.guards.acc : given "acc ", with white space at its end or beginning. Leave that out.',
    ),
    ({"study__failure": "low"}, 'study.failure: given the text "low". Give a value of the metric, or null.'),
    ({"study__failure": math.nan}, "study.failure: given nan. Give a value of the metric, or null."),
    *(
        (
            {"search": search},
            f"search: given {', '.join(search)}, of which none is a temperature, so that there",
        )
        for search in (
            {"lr": [0.1, 0.2]},
            {"label_smoothing": [0.0, 0.1]},
            {"normaliser": ["softmax", "sparsemax"]},
            {"normaliser": ["softmax", "top_k"], "top_k": {"low": 2, "high": 8}},
            {"tau": {"low": 0.5, "high": 2.0}},
        )
    ),
    (
        {"search__learned_temperature": ["head", "layer"]},
        "search.learned_temperature: by its name it is a temperature of the model's own. Say at which value",
    ),
    (
        {"search__temperature_init": {"low": 0.5, "high": 2.0, "baseline": 1.0}},
        "search.temperature_init: given a baseline, but temperature_init has one: 1.0, where it changes",
    ),
    (
        {"search__normaliser": {"choices": ["softmax", "sparsemax"], "baseline": "softmax"}},
        "search.normaliser: given a baseline, but normaliser has one: 'softmax'",
    ),
    (
        {"search__heads": {"choices": [1, 2], "baseline": [1]}},
        "search.heads: given the baseline [1]. Give text, a number, true, false or null.",
    ),
    (
        {"study__seeds": {"confirm": 5}, "study__test": "sign_flip"},
        "study.seeds.confirm: given 5 with test: sign_flip. Two-sided, so few pairs cannot give a p",
    ),
    ({"study__test": "z"}, 'study.test: given the text "z". Give t or sign_flip.'),
    ({"study__sampler": "tpee"}, 'study.sampler: Unknown sampler "tpee". Did you mean "tpe"?'),
    ({"study__sampler": "NSGA-II"}, "what may not get worse goes under study.guards"),
    ({"study__sampler": "cmaes"}, "CMA-ES takes no choices, such as a schedule; gp does"),
    ({"study__sampler": "pbt"}, "gained no more than knowledge_gradient"),
    ({"study__sampler": {"name": "tpe", "seed": 1}}, "study.sampler: given a seed, but draws are seeded"),
    ({"study__pruner": 3}, "study.pruner: given 3. Give a name, or {name: ..., option: ...}."),
    ({"study__limits": {"hours": 0}}, "study.limits.hours: given 0. Give a number above 0, or null for no"),
    ({"study__limits": {"gpu_hours": True}}, "study.limits.gpu_hours: given True. Give a number above 0"),
    ({"study__limits": {"hours": math.inf}}, "study.limits.hours: given inf. Give a number above 0"),
    ({"study__limits": {"hour": 1}}, 'study.limits.hour: Unknown key "hour". Did you mean "hours"?'),
    ({"study__limits": 3}, "study.limits: given 3. Give a mapping with the keys hours, gpu_hours, "),
    ({"study__lease": 0.5}, "study.lease: given 0.5. Give a number of seconds of at least 1."),
    ({"study__lease": "5m"}, 'study.lease: given the text "5m". Give a number of seconds of at least 1.'),
    ({"study__store_timeout": -1}, "study.store_timeout: given -1. Give a number of seconds of at least 0."),
    ({"study__checkpoint_every": 0}, "study.checkpoint_every: given 0. Give a number of seconds above 0, or"),
    ({"study__enqueue": {"lr": 1}}, "study.enqueue: given {'lr': 1}. Give a list of parameter sets, as in ["),
    ({"study__enqueue": [3]}, "study.enqueue.0: given 3. Give a list of parameter sets, as in [{temperature"),
    (
        {"study__enqueue": [{"temperature_init": 1}, {"temperature_init": 9}]},
        "study.enqueue.1.temperature_init: given 9. Give a number from 0.25 to 4.0.",
    ),
    ({"study__enqueue": [{}]}, "study.enqueue.0: given no value. Give at least one searched name, or take"),
    (
        {"study__enqueue": [{"temperature_init": 1}] * 3, "study__trials": 2},
        "study.enqueue: given 3 parameter sets, but study.trials is 2. Give at most that many, or more",
    ),
    ({"study": None}, "study: is missing. Give a mapping with the keys name, metric, direction"),
    ({"modell": {}}, 'modell: Unknown key "modell". Did you mean "model"?'),
    ({"seed_everything": 1}, "seed_everything has no place in a study spec: seeds come from tickets."),
    ({"ckpt_path": "x"}, "ckpt_path has no place in a study spec"),
    ({"fit": {}}, "fit has no place in a study spec: the sections of a subcommand stand at the top here."),
    ({"model": "my.Model"}, "Write model: {class_path: my.Model}."),
    (
        {"model": {"lr": 0.1}},
        'Write model: {class_path: package.module.Class, init_args: {"lr": 0.1}}.',
    ),
    ({"model__lr": 0.1}, 'model.lr: Unknown key "lr". Known: class_path, init_args. Arguments go under'),
    ({"model__class_path": "MyModel"}, "given 'MyModel'. Give an import path: package.module.Class."),
    ({"model__class_path": "a.b:C"}, "Write it with dots: a.b.C."),
    ({"model__init_args": [1]}, "model.init_args: given [1]. Give a mapping of argument to value."),
    ({"model__init_args": {"schedule": "cosin"}}, 'model.init_args.schedule: Unknown schedule "cosin".'),
    ({"model__init_args": {"temperature_init": -1}}, "temperature_init=-1 is out of range."),
    (
        {"model": None},
        "model: is missing. Give the LightningModule, as in {class_path: package.module.Class}.",
    ),
    ({"data": 3}, "data: given 3. Write data: {class_path: package.module.Class, init_args: {...}}."),
    ({"trainer": None}, "trainer: it is not said how long a run trains. Give max_steps or max_epochs"),
    (
        {"trainer": {"max_step": 10}},
        'trainer.max_step: Unknown argument of lightning.Trainer "max_step". Did you mean "max_steps"?',
    ),
    ({"trainer__max_steps": -1}, "trainer: it is not said how long a run trains."),
    (
        {"trainer__max_steps": 1e3},
        "trainer.max_steps: given 1000.0. Give a whole number from 1 to",
    ),
    ({"trainer__enable_checkpointing": True}, "enable_checkpointing is not the spec's to set"),
    ({"trainer__enable_progress_bar": False}, "tempopt shows the progress of all workers itself."),
    ({"trainer__num_sanity_val_steps": 0}, "tempopt trains two steps"),
    ({"trainer__fast_dev_run": True}, 'Use "tempopt check --dry-run" for that.'),
    ({"trainer__max_time": "00:01:00:00"}, "a run that ends by the clock is not the same run twice."),
    *(
        (
            {"trainer__devices": bad_value},
            f"trainer.devices: given {bad_value!r}. Give how many devices train one run",
        )
        for bad_value in (0, -1, "auto", "2", [0], [0, 1], True, "${DEVICES}")
    ),
    ({"trainer__strategy": "ddp_spawn"}, "tempopt starts them, as many as trainer.devices says: write"),
    ({"trainer__strategy": "ddp_notebook_find_unused_parameters_true"}, "write strategy: ddp."),
    (
        {"trainer__strategy": {"class_path": "x.DDPStrategy", "init_args": {"start_method": "fork"}}},
        "which starts processes itself",
    ),
    (
        {"trainer__strategy": {"class_path": "x.FSDPStrategy", "init_args": {"state_dict_type": "sharded"}}},
        "trainer.strategy.init_args.state_dict_type: given sharded, which writes a folder of parts. A run's",
    ),
    ({"trainer__strategy": "deepspeed_stage_2"}, "given deepspeed_stage_2, which writes a folder of parts."),
    ({"trainer__use_distributed_sampler": True}, "use_distributed_sampler is not the spec's to set"),
    ({"trainer__num_nodes": 2}, "one run trains on one machine"),
    ({"search": {"trainer.devices": [1, 2]}}, "devices cannot be searched: the processes that train are"),
    ({"trainer": {"class_path": "L.Trainer"}}, "it is always lightning.Trainer."),
    ({"trainer": [1]}, "Give a mapping, as in trainer: {max_steps: 500}."),
    ({"search": None}, "search: is missing. Give what is searched, as in {temperature_init:"),
    ({"search__temperature_final": [1.0, 2.0]}, "search.temperature_final: it changes nothing"),
    ({"attach": {"layers": []}}, "attach.layers: given []. Give auto, or a list of patterns"),
    ({"attach": {"layer": "auto"}}, 'attach.layer: Unknown key "layer". Did you mean "layers"?'),
    ({"resources": {"workers": 9}}, "resources.workers: given 9, but study.parallel lets 4 runs"),
    ({"resources": {"grace": -1}}, "resources.grace: given -1. Give a number of seconds of at least 0."),
    ({"data__init_args": {"root": "???"}}, "data.init_args.root: ??? stands for a value that only you"),
]


@pytest.mark.parametrize(("settings", "message"), FAULTS)
def test_a_fault_is_said_in_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as error:
        StudySpec.parse(change_spec(**settings), source="s.yaml")
    heading, *lines = str(error.value).splitlines()
    assert heading == "This study spec has a fault:"
    [line] = lines
    assert line.startswith("  s.yaml: ")
    assert message in line


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


def test_a_spec_survives_json() -> None:
    spec = make(
        search__schedule=["constant", "cosine"],
        search__temperature_final={"low": 0.5, "high": 4, "step": 0.5},
        study__pruner={"name": "hyperband", "min_resource": 2},
        attach={"layers": ["encoder.*"]},
        resources={"workers": 2},
    )
    stored_data = json.loads(json.dumps(spec.to_json()))
    assert StudySpec.from_json(stored_data) == spec
    assert StudySpec.from_json(stored_data).identity() == spec.identity()
    assert stored_data["study"]["pruner"] == {"name": "hyperband", "min_resource": 2}


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
    assert spec.program().data == {
        "class_path": "my_module.MyData",
        "init_args": {"root": "/here/mine", "batch_size": 32},
    }
    identity = spec.identity()
    monkeypatch.setenv("DATA_ROOT", "/there")
    assert make().identity() == identity


def test_what_this_machine_sets_is_in_force_but_not_stored(write: Write) -> None:
    path = write(BASE)
    spec = load_spec(path, ["data.root=/local", "resources.workers=2", "trainer.accelerator=cpu"])
    program = spec.program()
    assert program.data is not None
    assert program.data["init_args"] == {"root": "/local", "batch_size": 32}
    assert program.trainer == {"max_steps": 100, "accelerator": "cpu"}
    assert spec.resolved().resources.workers == 2
    assert spec.to_json() == load_spec(path).to_json()
    assert diff(load_spec(path), spec) == []


def test_a_setting_of_the_study_changes_it(write: Write) -> None:
    path = write(BASE)
    spec = load_spec(path, ["study.metric=val_f1", "model.lr=1e-2", "search.temperature_init.high=8"])
    assert spec.identity() != load_spec(path).identity()
    assert diff(load_spec(path), spec) == [
        'study.metric: was "val_accuracy", now "val_f1"',
        "search.temperature_init.high: was 4.0, now 8.0",
        "model.init_args.lr: was not given, now 0.01",
    ]


def test_what_is_stored_is_the_same_study_when_it_is_read_again() -> None:
    spec = make(study__sampler="tpe", attach__layers="auto")
    stored_spec = StudySpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert stored_spec == spec and stored_spec.identity() == spec.identity()


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
    assert diff(make(), larger_spec) == []
    assert larger_spec.identity() == make().identity()
    # a search is asked for with its first design
    larger = make(study__arms={"baseline": 9})
    assert diff(make(), larger) == ["study.arms.baseline: was null, now 9"]
    assert larger.identity() != make().identity()


def test_a_setting_that_does_not_fit_is_refused(write: Write) -> None:
    with pytest.raises(SpecError, match=r"study\.trials: given 0"):
        load_spec(write(BASE), ["study.trials=0"])
    with pytest.raises(SpecError, match=r"resources\.workers: given 0"):
        load_spec(write(BASE), ["resources.workers=0"])


def test_a_program_holds_what_a_trainer_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_ROOT", "/here")
    program = make(study__seed=7, attach={"layers": ["a.*"]}).program("data.batch_size=8")
    assert program.model == {"class_path": "my_module.MyModule", "init_args": {}}
    assert program.data is not None
    assert program.data["init_args"]["batch_size"] == 8
    assert program.attach == {"layers": ["a.*"], "method": "query_rows"}
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
    assert spec.other_names == ["lr"]
    assert sorted(spec.method_names) == ["heads", "label_smoothing", "normaliser"]
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
    assert diff(make(), compiled_spec) == ['study.compile: was null, now "default"']
    assert (make().program().compile, compiled_spec.program().compile) == (None, "default")
    with pytest.raises(SpecError, match=r"study\.compile: given 'fast'. Give true, false, or one of"):
        make(study__compile="fast")
