"""Runs that learn temperatures, in each way that they are attached: resumed, compiled, and by two ranks."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from tempopt.temperature import learning
from tempopt.training.dry_run import rehearse
from tempopt.training.run import Run
from tempopt.workers.messages import Evaluation, RunRequest, Started
from tempopt.workers.process import WorkerProcess
from tests.training.test_compile import _compiler, graphs, traced
from tests.training.test_ranks import make, pair
from tests.training.two_ranks import STEPS, check_two_ranks, two_ranks_given

# fixtures are found by their names
__all__ = ["_compiler", "make", "pair", "traced"]

RATIO = 10.0
TICKETS = itertools.count(1)
NAMED = {"transform": "identity", "as_found": None}
ATTENTION = {"temperature_init": 1.0}
LOGITS = {"logits.as_found": 0.5}

WAYS: dict[str, dict[str, Any]] = {
    "number": {
        "model": "Softened",
        "values": {"logits": {**NAMED, "value": "kept"}},
        "parameters": LOGITS,
    },
    "parameter": {
        "model": "Softened",
        "init": {"parameter": True},
        "values": {"logits": {**NAMED, "value": "kept", "transform": "log_inverse"}},
        "parameters": {"logits.as_found": math.exp(-0.7)},
    },
    "tempered module": {
        "model": "Both",
        "values": {"logits": {**NAMED, "value": None}},
        "parameters": {**ATTENTION, **LOGITS},
    },
    "query rows": {"model": "Stock", "attach": {"layers": "auto"}, "parameters": ATTENTION},
    "attention interface": {
        "model": "Reading",
        "attach": {"layers": "auto", "way": "attention_interface"},
        "parameters": ATTENTION,
    },
    "heads of a tempered module": {
        "model": "Both",
        "init": {"heads": 2},
        "values": {"logits": {**NAMED, "value": None}},
        "parameters": {**ATTENTION, **LOGITS},
        "of": "per_head",
    },
    "heads of the interface": {
        "model": "Reading",
        "attach": {"layers": "auto", "way": "attention_interface"},
        "parameters": ATTENTION,
        "of": "per_head",
    },
}
"""What is trained in each way: its class, its attachment, and what its temperatures are learned from."""

Learns = Callable[..., RunRequest]


@pytest.fixture
def learns(request_for: Any) -> Iterator[Learns]:
    """Return a maker of requests for runs that learn the temperatures attached in some way."""

    def make_one(way: str, *, ratio: float = RATIO, **given: Any) -> RunRequest:
        spec = WAYS[way]
        home = "toy_modules" if spec["model"] == "Stock" else "learned_modules"
        request: RunRequest = request_for(
            attach=spec.get("attach"),
            **{
                "parameters": learning(spec["parameters"], ratio, learns=spec.get("of", True)),
                "ticket": next(TICKETS),
                **given,
            },
        )
        program = dataclasses.replace(
            request.program,
            model={"class_path": f"{home}.{spec['model']}", "init_args": spec.get("init", {})},
            values=spec.get("values", {}),
            metric_reads_temperature=True,
        )
        return dataclasses.replace(request, program=program)

    yield make_one
    for name in ("learned_modules", "hugging_modules"):
        sys.modules.pop(name, None)


def temperatures(run: Run) -> list[float]:
    """Return all temperatures in force."""
    assert run.learned is not None
    return [tau for each in run.learned._parts.values() for tau in each.of.temperatures]


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_was_interrupted_learns_the_same_bits(
    learns: Learns, listener: Any, tmp_path: Path, way: str
) -> None:
    of = WAYS[way].get("of", True)
    tried = learns(way, task="rehearse", learns=of, parameters=WAYS[way]["parameters"])
    assert rehearse(tried, listener()).not_learned is None

    def run(channel: Any, **given: Any) -> Run:
        test = [Evaluation(name="test", on="test")]
        return Run(learns(way, ticket=1, checkpoints=str(tmp_path), evaluations=test, **given), channel)

    whole, killed, again = run(listener()), listener(die_at=10), listener()
    done = whole.execute()
    with pytest.raises(SystemExit):
        run(killed).execute()
    resumed = run(again, attempt=2, resume=killed.saved)
    last = resumed.execute()
    assert [each.step for each in again.of(Started)] == [8]
    assert (last.reports, last.measurements, last.curves) == (done.reports, done.measurements, done.curves)
    assert temperatures(resumed) == temperatures(whole)
    assert all(len({value for _, value in curve}) > STEPS / 2 for curve in done.curves.values())
    theirs = whole.module.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in resumed.module.state_dict().items())


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("_compiler", "traced")
def test_a_compiled_run_learns_what_one_that_is_not_does_and_is_compiled_once(
    learns: Learns, listener: Any, tmp_path: Path, way: str
) -> None:
    plain = Run(learns(way), listener()).execute()

    def run(channel: Any, **given: Any) -> Run:
        return Run(learns(way, compile="default", checkpoints=str(tmp_path), **given), channel)

    whole = run(listener(), ticket=1)
    done = whole.execute()
    assert done.notes == []
    for name, curve in done.curves.items():
        assert [tau for _, tau in curve] == pytest.approx([tau for _, tau in plain.curves[name]], rel=1e-3)
    compiled = graphs()
    run(listener(), ratio=1.0).execute()
    assert graphs() == compiled > 0
    killed = listener(die_at=10)
    with pytest.raises(SystemExit):
        run(killed, ticket=1).execute()
    # another worker has compiled nothing yet
    torch._dynamo.reset()
    counters.clear()
    resumed = run(listener(), ticket=1, attempt=2, resume=killed.saved)
    last = resumed.execute()
    assert graphs() == compiled
    assert (last.reports, last.curves) == (done.reports, done.curves)
    assert temperatures(resumed) == temperatures(whole)


@pytest.mark.long
@pytest.mark.usefixtures("_compiler")
def test_machine_code_learns_what_the_steps_as_they_are_written_learn(learns: Learns, listener: Any) -> None:
    plain, compiled = (
        Run(learns("tempered module", compile=mode), listener()).execute() for mode in (None, "default")
    )
    for name, curve in compiled.curves.items():
        assert [tau for _, tau in curve] == pytest.approx([tau for _, tau in plain.curves[name]], rel=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_learn_alike_what_one_device_learns_of_both_their_batches(
    pair: WorkerProcess, learns: Learns, listener: Any, tmp_path: Path, way: str
) -> None:
    def asked(ranks: int, **given: Any) -> RunRequest:
        return learns(way, **two_ranks_given(ranks, tmp_path), **given)

    lines = check_two_ranks(pair, asked, listener, tmp_path)
    assert len({tuple(line["logs"]) for line in lines}) == STEPS
