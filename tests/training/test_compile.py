"""Compiled steps: one set of graphs for all runs of a process, whatever their temperatures are."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from tempopt.errors import SpecError
from tempopt.temperature import add_learned_temperatures
from tempopt.training import compiling
from tempopt.training.dry_run import dry_run
from tempopt.training.messages import Evaluation, Finished, Report
from tempopt.training.run import LightningRun

pytestmark = pytest.mark.long

HOT = {"temperature_init": 4.0, "temperature_final": 1.0, "schedule": "exponential"}
# Everything that a search changes of a temperature, and the learning rate; the first one is compiled for.
SEARCHED = [
    {**HOT, "lr": 0.01},
    {"temperature_init": 2.0, "temperature_final": 0.5, "schedule": "cosine", "lr": 0.02},
    {"temperature_init": 0.3, "lr": 0.005},
    {"temperature_init": 3.0, "layer_pattern": "linear", "layer_ratio": 4.0},
    {"temperature_init": 3.0, "temperature_final": 9.0, "schedule": "step", "num_steps": 3},
]


@pytest.fixture(autouse=True)
def _compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Give each test a compiler as in a new process, with its files in a folder of the test's own."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    before = torch._dynamo.config.recompile_limit, torch.compiler.config.dynamic_sources
    threads = torch._inductor.config.compile_threads
    torch._dynamo.reset()
    counters.clear()
    with warnings.catch_warnings():
        # of torch's compiler about itself: of what it is about to change, and of how it looks at a tensor
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        yield
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit, torch.compiler.config.dynamic_sources = before
    torch._inductor.config.compile_threads = threads


@pytest.fixture
def trace_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace and differentiate as when compiling, without the minutes that machine code takes."""
    monkeypatch.setattr(torch, "compile", functools.partial(_compile_eagerly, torch.compile))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have few graphs suffice to reach the limit."""
    monkeypatch.setattr(compiling, "_LIMIT", 4)
    monkeypatch.setattr(compiling, "_MAX_GRAPHS_BEFORE", 2)


def _compile_eagerly(compile_: Callable[..., Any], step: Any, *, mode: str) -> Any:
    assert mode == "default"
    return compile_(step, backend="aot_eager")


@pytest.fixture
def train(request_for: Any, listener: Any) -> Callable[..., Finished]:
    """Return a function that trains compiled and returns what came of it."""

    def run(module: str = "Toy", **options: Any) -> Finished:
        return LightningRun(request_for(module, compile="default", **options), listener()).execute()

    return run


def graphs() -> int:
    """Return how many graphs were compiled so far."""
    return int(counters["stats"]["unique_graphs"])


@pytest.mark.parametrize(
    ("beside", "options"),
    [
        ({}, {}),
        ({"entropy_lambda": 0.1}, {}),
        ({"length_scaling": "log_n"}, {}),
        ({}, {"module": "Stock", "attach": {"layers": "auto"}}),
    ],
    ids=str,
)
def test_one_set_of_graphs_serves_every_temperature_and_every_module(
    train: Any, trace_only: None, beside: dict[str, Any], options: dict[str, Any]
) -> None:
    train(**options, parameters={**SEARCHED[0], **beside})
    # one for the training step, one for the validation step
    assert graphs() == 2
    for number, parameters in enumerate(SEARCHED[1:], start=2):
        alternatives = {
            "entropy_lambda": {"entropy_lambda": -0.1 * number},
            "length_scaling": {"n0": 4.0 * number},
        }
        changed = next((alternatives[name] for name in beside), {})
        train(**options, parameters={**parameters, **beside, **changed})
    assert graphs() == 2


@pytest.mark.parametrize("learned", [False, True])
def test_one_set_of_graphs_serves_every_value_of_a_temperature_that_is_registered(
    request_for: Any, listener: Any, trace_only: None, learned: bool
) -> None:
    options = {"metric": "val_gap", "compile": "default", "values": {"contrast": {}}}
    ends = []
    for last in (0.5, 0.1, 0.03):
        parameters: dict[str, Any] = {"contrast.as_found": 0.5}
        moving = {**parameters, "contrast.schedule": "linear", "contrast.temperature_final": last}
        parameters = add_learned_temperatures(parameters, 10.0 * last) if learned else moving
        run = LightningRun(
            request_for("contrast_modules.Registered", parameters=parameters, **options), listener()
        )
        run.execute()
        ends.append(run.values.attachments["contrast"].temperatures[0])
        # one for the training step, two for the validation step, which logs in between
        assert graphs() == 3
    assert len(set(ends)) == 3


def test_what_has_to_be_compiled_apart_is_compiled_once(train: Any, trace_only: None) -> None:
    settings = [
        {**entropy, **length}
        for entropy in ({}, {"entropy_lambda": 0.1})
        for length in ({}, {"length_scaling": "log_n"})
    ]
    for _ in range(2):
        for setting in settings:
            train(parameters={**HOT, **setting})
    assert graphs() == 2 * len(settings)


@pytest.mark.parametrize("module", ["Manual", "ScheduledToy"])
def test_modules_that_step_by_themselves_or_log_in_training_are_compiled_once(
    train: Any, trace_only: None, module: str
) -> None:
    train(module, parameters=HOT)
    num_graphs = graphs()
    assert num_graphs
    train(module, parameters={"temperature_init": 3.0})
    assert graphs() == num_graphs


def test_evaluations_under_another_plan_and_on_test_data_need_no_other_graph(
    train: Any, trace_only: None
) -> None:
    evaluations = [
        Evaluation(name="test", on="test"),
        Evaluation(name="test:cold", on="test", temperature={"temperature_init": 0.25}),
        Evaluation(name="now", on="validate", at="current"),
    ]
    finished = train(parameters=HOT, evaluations=evaluations)
    assert graphs() == 2
    assert finished.measurements["test"] != finished.measurements["test:cold"]


@pytest.mark.parametrize(
    ("module", "request_options"),
    [
        # how a compiler draws random numbers is its own affair
        (
            "Toy",
            {
                "init": {"dropout": 0.0},
                "parameters": {**HOT, "entropy_lambda": 0.1, "length_scaling": "log_n"},
            },
        ),
        ("Stock", {"parameters": HOT, "attach": {"layers": "auto"}}),
    ],
)
def test_compiled_steps_report_what_the_steps_as_they_are_written_report(
    request_for: Any, listener: Any, module: str, request_options: dict[str, Any]
) -> None:
    reports = {}
    for mode in (None, "default"):
        channel = listener()
        request = request_for(module, compile=mode, trainer={"max_steps": 8}, **request_options)
        LightningRun(request, channel).execute()
        reports[mode] = [report.value for report in channel.messages_of(Report)]
    assert reports["default"] == pytest.approx(reports[None], rel=1e-4)


def test_a_compiled_run_is_the_same_again_and_after_it_was_interrupted(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    request = request_for(compile="default", parameters=HOT, checkpoints=str(tmp_path / "runs"))
    reference_result = LightningRun(request, listener()).execute()
    killed_channel = listener(die_at=10)
    with pytest.raises(SystemExit):
        LightningRun(dataclasses.replace(request, ticket=2), killed_channel).execute()
    # another trainer has compiled nothing yet
    torch._dynamo.reset()
    resumed_request = dataclasses.replace(request, ticket=2, attempt=2, resume=killed_channel.saved)
    assert killed_channel.saved
    assert LightningRun(resumed_request, listener()).execute().reports == reference_result.reports


def test_many_runs_that_each_need_a_graph_of_their_own_are_all_compiled(
    train: Any, trace_only: None, few: None
) -> None:
    compiled = []
    for index in range(2 * compiling._LIMIT):
        before = graphs()
        finished = train("Toy", init={"dropout": 0.01 * index}, trainer={"max_steps": 2})
        assert finished.notes == []
        compiled.append(graphs() > before)
    assert all(compiled)


def test_a_step_that_counts_is_left_uncompiled_in_the_end_and_said_to_be(
    train: Any, trace_only: None, few: None
) -> None:
    finished = train("CountingToy")
    (note,) = finished.notes
    assert note.startswith(f"study.compile: more than {compiling._LIMIT} graphs were needed for one function")
    before = graphs()
    train("CountingToy")
    # not tried anew in every run
    assert graphs() == before


def test_a_dry_run_compiles_and_the_first_run_finds_it_done(
    request_for: Any, listener: Any, train: Any, trace_only: None
) -> None:
    dry_run(request_for(task="dry_run", compile="default"), listener())
    assert graphs() == 2
    train(parameters=HOT)
    assert graphs() == 2


def test_what_cannot_be_compiled_is_refused_in_the_dry_run(
    request_for: Any, listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise NotImplementedError("no such operator")

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda step, mode: compile_(step, backend=broken))
    with pytest.raises(SpecError, match="study.compile is default.*no such operator.*Take study.compile out"):
        dry_run(request_for(task="dry_run", compile="default"), listener())


def test_an_error_of_the_persons_own_is_not_blamed_on_the_compiler(
    request_for: Any, listener: Any, trace_only: None
) -> None:
    with pytest.raises(RuntimeError, match="the toy breaks"):
        dry_run(request_for(task="dry_run", compile="default", init={"raise_at": 1}), listener())
