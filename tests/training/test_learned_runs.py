"""Runs that learn temperatures or have them controlled: resumed, compiled, and on two ranks."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tempopt.agent.process import WorkerProcess
from tempopt.temperature import add_learned_temperatures
from tempopt.training.dry_run import dry_run
from tempopt.training.messages import CheckpointSaved, Evaluation, RunRequest, Stage, Started
from tempopt.training.run import LightningRun
from tests.training.shared_trainings import check_resume
from tests.training.test_compile import _compiler, trace_only
from tests.training.test_ranks import carry_out, finished_message, make, pair, recorded_lines, results, same

# fixtures are found by their names
__all__ = ["_compiler", "make", "pair", "trace_only"]

STEPS = 24
RATIO = 10.0
TICKETS = itertools.count(1)
ATTENTION = {"temperature_init": 1.0}
LOGITS = {"logits.as_found": 0.5}

SETUPS: dict[str, dict[str, Any]] = {
    "number": {
        "module": "learned_modules.SoftenedPool",
        "values": {"logits": {"value": "stored_tau"}},
        "parameters": LOGITS,
    },
    "parameter": {
        "module": "learned_modules.SoftenedPool",
        "init": {"parameter": True},
        "values": {"logits": {"value": "stored_tau", "transform": "log_inverse"}},
        "parameters": {"logits.as_found": math.exp(-0.7)},
    },
    "tempered module": {
        "module": "learned_modules.TemperedLogitsToy",
        "values": {"logits": {"value": None}},
        "parameters": {**ATTENTION, **LOGITS},
    },
    "query rows": {"module": "Stock", "attach": {"layers": "auto"}, "parameters": ATTENTION},
    "attention interface": {
        "module": "learned_modules.TextReader",
        "attach": {"layers": "auto"},
        "parameters": ATTENTION,
    },
    "heads of a tempered module": {
        "module": "learned_modules.TemperedLogitsToy",
        "init": {"heads": 2},
        "values": {"logits": {"value": None}},
        "parameters": {**ATTENTION, **LOGITS},
        "of": "per_head",
    },
    "heads of the interface": {
        "module": "learned_modules.TextReader",
        "attach": {"layers": "auto"},
        "parameters": ATTENTION,
        "of": "per_head",
    },
}
"""Setups of a training: model class, attachment, and parameters from which its temperatures are learned."""

CONTRAST = {
    "temperature_init": 1.5,
    "entropy_control": "contrast",
    "control_level": 0.8,
    "control_spread": 0.25,
}
CONTROLLED: dict[str, dict[str, Any]] = {
    "controlled module": {"module": "learned_modules.TemperedLogitsToy", "parameters": CONTRAST},
    "controlled interface": {**SETUPS["attention interface"], "parameters": CONTRAST},
}
"""Setups whose temperatures are controlled by entropy."""

RequestMaker = Callable[..., RunRequest]


@pytest.fixture
def make_request(request_for: Any) -> RequestMaker:
    """Return a maker of requests for runs in one of the SETUPS, which learn, or of those CONTROLLED."""

    def make_one(setup_name: str, *, ratio: float = RATIO, **options: Any) -> RunRequest:
        setup = dict({**SETUPS, **CONTROLLED}[setup_name])
        learns = setup.pop("of", True)
        if setup_name in SETUPS:
            setup["parameters"] = add_learned_temperatures(setup["parameters"], ratio, learns=learns)
        request: RunRequest = request_for(
            **{**setup, "ticket": next(TICKETS), "reads_temperature": True, **options}
        )
        return request

    return make_one


def temperatures(run: LightningRun) -> list[float]:
    """Return all temperatures in force."""
    assert run.learned is not None
    return [tau for group in run.learned._groups.values() for tau in group.holder.temperatures]


@pytest.mark.parametrize(
    "setup_name", ["number", "tempered module", "attention interface", "heads of a tempered module"]
)
def test_a_run_that_was_interrupted_learns_the_same_bits(
    make_request: RequestMaker, listener: Any, tmp_path: Path, setup_name: str
) -> None:
    of = SETUPS[setup_name].get("of", True)
    dry_run_request = make_request(
        setup_name, task="dry_run", learns=of, parameters=SETUPS[setup_name]["parameters"]
    )
    assert dry_run(dry_run_request, listener()).not_learned is None

    request = make_request(setup_name, evaluations=[Evaluation(name="test", on="test")])
    reference_run, reference_result, resumed_run = check_resume(request, tmp_path)
    assert temperatures(resumed_run) == temperatures(reference_run)
    assert all(len({value for _, value in curve}) > STEPS / 2 for curve in reference_result.curves.values())


# ---- entropy control


def controlled_temperatures(run: LightningRun) -> tuple[float, ...]:
    """Return the temperatures of attention in force."""
    assert run.tempered is not None
    return run.tempered.temperatures


@pytest.mark.parametrize("setup_name", CONTROLLED)
def test_a_controlled_run_reports_its_temperatures_and_is_resumed_with_the_same_bits(
    make_request: RequestMaker, listener: Any, tmp_path: Path, setup_name: str
) -> None:
    test = [Evaluation(name="test", on="test"), Evaluation(name="test_current", on="test", at="current")]
    request = make_request(setup_name, evaluations=test, observe=True)
    reference_run, reference_result, resumed_run = check_resume(request, tmp_path)
    taus = controlled_temperatures(reference_run)
    assert controlled_temperatures(resumed_run) == taus != (1.5,) * len(taus)
    # it is evaluated as it was trained at last
    assert reference_result.measurements["test"] == reference_result.measurements["test_current"]
    curves = reference_result.curves
    paths = {name: path for name, path in curves.items() if name.startswith("controlled/")}
    assert list(paths) == [f"controlled/{layer}" for layer in range(len(taus))]
    for path, tau in zip(paths.values(), taus, strict=True):
        assert path[0][1] == pytest.approx(1.5, rel=0.2) and path[-1] == [STEPS, tau]
        assert len({tau for _, tau in path}) > STEPS / 2
    brief = LightningRun(make_request(setup_name), listener()).execute().curves
    assert brief == {name: [path[0], path[-1]] for name, path in paths.items()}


@pytest.mark.parametrize("setup_name", CONTROLLED)
def test_another_temperature_at_inference_leaves_those_of_the_training(
    make_request: RequestMaker, listener: Any, setup_name: str
) -> None:
    run = LightningRun(make_request(setup_name), listener())
    run.execute()
    taus = controlled_temperatures(run)
    plain = Evaluation(name="validate", on="validate")
    sharp = Evaluation(name="validate:sharp", on="validate", temperature={"temperature_init": 0.05})
    as_trained = run.evaluate(plain)
    assert run.evaluate(sharp) != as_trained
    assert controlled_temperatures(run) == taus and run.evaluate(plain) == as_trained


@pytest.mark.parametrize("setup_name", CONTROLLED)
def test_a_dry_run_tries_the_control_that_is_searched(
    make_request: RequestMaker, listener: Any, setup_name: str
) -> None:
    space = {"entropy_control": ["none", "contrast"], "control_level": [0.3, 0.9]}
    channel, parameters = listener(), {"temperature_init": 2.0}
    dry_run(make_request(setup_name, task="dry_run", space=space, parameters=parameters), channel)
    assert "controlled the entropy for two steps" in [stage.what for stage in channel.messages_of(Stage)]


# ---- ranks


@pytest.mark.long
@pytest.mark.parametrize("setup_name", [*SETUPS, *CONTROLLED])
def test_two_ranks_have_the_temperatures_of_one_device_with_both_their_batches(
    pair: WorkerProcess, make_request: RequestMaker, listener: Any, tmp_path: Path, setup_name: str
) -> None:
    def make_recorded(ranks: int, **options: Any) -> RunRequest:
        recorder = {"class_path": "learned_modules.LearnedRecorder", "init_args": {"folder": str(tmp_path)}}
        return make_request(
            setup_name,
            trainer={"devices": ranks, "callbacks": [recorder]},
            data={"batch_size": 6 // ranks, "noise": 0.0},
            folder=str(tmp_path / "logs"),
            **options,
        )

    request = make_recorded(2, checkpoint_every=0.001, checkpoints=str(tmp_path / "kept"))
    messages = carry_out(pair, request)
    assert finished_message(messages).state == "complete"
    first, second = recorded_lines(tmp_path)
    assert same(first) == same(second)
    num_logs = len({tuple(line["logs"]) for line in first})
    assert num_logs == STEPS if setup_name in SETUPS else num_logs > STEPS / 2

    saved = [message.saved for message in messages if isinstance(message, CheckpointSaved)]
    middle = next(checkpoint for checkpoint in saved if 4 < checkpoint.step < STEPS - 4)
    resumed_messages = carry_out(pair, dataclasses.replace(request, attempt=2, resume=[middle]))
    assert [m.step for m in resumed_messages if isinstance(m, Started)] == [middle.step]
    assert results(resumed_messages) == results(messages)
    for lines in recorded_lines(tmp_path):
        assert same(lines) == same(first)[middle.step :]

    LightningRun(make_recorded(1), listener()).execute()
    (alone,) = recorded_lines(tmp_path, 1)
    for first_line, second_line, joint_line in zip(first, second, alone, strict=True):
        assert first_line["items"] != second_line["items"]
        assert sorted(first_line["items"] + second_line["items"]) == joint_line["items"]
        assert first_line["logs"] == pytest.approx(joint_line["logs"], rel=1e-3, abs=1e-4)
