"""Runs that learn temperatures, for each kind of attachment: resumed, compiled, and on two ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from tempopt.agent.process import WorkerProcess
from tempopt.temperature import with_learned_temperatures
from tempopt.training.dry_run import dry_run
from tempopt.training.messages import Evaluation, RunRequest
from tempopt.training.run import Run
from tests.training.shared_trainings import check_resume
from tests.training.test_compile import _compiler, graphs, trace_only
from tests.training.test_ranks import make, pair
from tests.training.two_ranks import STEPS, check_two_ranks, two_ranks_given

# fixtures are found by their names
__all__ = ["_compiler", "make", "pair", "trace_only"]

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
        "attach": {"layers": "auto", "method": "attention_interface"},
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
        "attach": {"layers": "auto", "method": "attention_interface"},
        "parameters": ATTENTION,
        "of": "per_head",
    },
}
"""Setups of a training: model class, attachment, and parameters from which its temperatures are learned."""

Learns = Callable[..., RunRequest]


@pytest.fixture
def learns(request_for: Any) -> Learns:
    """Return a maker of requests for runs that learn temperatures in one of the SETUPS."""

    def make_one(setup_name: str, *, ratio: float = RATIO, **options: Any) -> RunRequest:
        setup = {name: value for name, value in SETUPS[setup_name].items() if name != "of"}
        setup["parameters"] = with_learned_temperatures(
            setup["parameters"], ratio, learns=SETUPS[setup_name].get("of", True)
        )
        request: RunRequest = request_for(
            **{**setup, "ticket": next(TICKETS), "reads_temperature": True, **options}
        )
        return request

    return make_one


def temperatures(run: Run) -> list[float]:
    """Return all temperatures in force."""
    assert run.learned is not None
    return [tau for part in run.learned._parts.values() for tau in part.of.temperatures]


@pytest.mark.parametrize("setup_name", SETUPS)
def test_a_run_that_was_interrupted_learns_the_same_bits(
    learns: Learns, listener: Any, tmp_path: Path, setup_name: str
) -> None:
    of = SETUPS[setup_name].get("of", True)
    dry_run_request = learns(
        setup_name, task="dry_run", learns=of, parameters=SETUPS[setup_name]["parameters"]
    )
    assert dry_run(dry_run_request, listener()).not_learned is None

    request = learns(setup_name, evaluations=[Evaluation(name="test", on="test")])
    reference_run, reference_result, resumed_run = check_resume(request, tmp_path)
    assert temperatures(resumed_run) == temperatures(reference_run)
    assert all(len({value for _, value in curve}) > STEPS / 2 for curve in reference_result.curves.values())


@pytest.mark.long
@pytest.mark.parametrize("setup_name", SETUPS)
@pytest.mark.usefixtures("_compiler", "trace_only")
def test_a_compiled_run_learns_what_one_that_is_not_does_and_is_compiled_once(
    learns: Learns, listener: Any, tmp_path: Path, setup_name: str
) -> None:
    plain_result = Run(learns(setup_name), listener()).execute()

    def run(channel: Any, **overrides: Any) -> Run:
        return Run(learns(setup_name, compile="default", checkpoints=str(tmp_path), **overrides), channel)

    reference_run = run(listener(), ticket=1)
    reference_result = reference_run.execute()
    assert reference_result.notes == []
    for name, curve in reference_result.curves.items():
        assert [tau for _, tau in curve] == pytest.approx(
            [tau for _, tau in plain_result.curves[name]], rel=1e-3
        )
    compiled = graphs()
    run(listener(), ratio=1.0).execute()
    assert graphs() == compiled > 0
    killed_channel = listener(die_at=10)
    with pytest.raises(SystemExit):
        run(killed_channel, ticket=1).execute()
    # another worker has compiled nothing yet
    torch._dynamo.reset()
    counters.clear()
    resumed_run = run(listener(), ticket=1, attempt=2, resume=killed_channel.saved)
    resumed_result = resumed_run.execute()
    assert graphs() == compiled
    assert (resumed_result.reports, resumed_result.curves) == (
        reference_result.reports,
        reference_result.curves,
    )
    assert temperatures(resumed_run) == temperatures(reference_run)


@pytest.mark.long
@pytest.mark.usefixtures("_compiler")
def test_machine_code_learns_what_the_steps_as_they_are_written_learn(learns: Learns, listener: Any) -> None:
    plain, compiled = (
        Run(learns("tempered module", compile=mode), listener()).execute() for mode in (None, "default")
    )
    for name, curve in compiled.curves.items():
        assert [tau for _, tau in curve] == pytest.approx([tau for _, tau in plain.curves[name]], rel=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("setup_name", SETUPS)
def test_two_ranks_learn_alike_what_one_device_learns_of_both_their_batches(
    pair: WorkerProcess, learns: Learns, listener: Any, tmp_path: Path, setup_name: str
) -> None:
    def make_request(ranks: int, **overrides: Any) -> RunRequest:
        return learns(setup_name, **two_ranks_given(ranks, tmp_path), **overrides)

    lines = check_two_ranks(pair, make_request, listener, tmp_path)
    assert len({tuple(line["logs"]) for line in lines}) == STEPS
