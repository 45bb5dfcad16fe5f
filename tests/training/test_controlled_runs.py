"""Runs whose temperatures follow the entropy: resumed, by two ranks, in each way that they are attached."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from tempopt import AttachCallback, load_checkpoint
from tempopt.errors import SpecError
from tempopt.training.dry_run import rehearse
from tempopt.training.run import Run
from tempopt.workers.messages import Evaluation, Finished, RunRequest, Stage, Started
from tempopt.workers.process import WorkerProcess
from tests.training.test_attach_callback import Data, fitted, toys, trainer
from tests.training.test_ranks import make, pair
from tests.training.two_ranks import STEPS, check_two_ranks, two_ranks_given

# fixtures are found by their names
__all__ = ["fitted", "make", "pair", "toys"]

TICKETS = itertools.count(1)
CONTRAST = {
    "temperature_init": 1.5,
    "entropy_control": "contrast",
    "control_level": 0.8,
    "control_spread": 0.25,
}
CURRICULUM = {
    "temperature_init": 1.5,
    "entropy_control": "curriculum",
    "control_level": 0.6,
    "control_start": 0.95,
}
WAYS: dict[str, dict[str, Any]] = {
    "tempered module": {"model": "Both"},
    "query rows": {"model": "Stock", "attach": {"layers": "auto"}},
    "attention interface": {"model": "Reading", "attach": {"layers": "auto", "way": "attention_interface"}},
}

Controls = Callable[..., RunRequest]


@pytest.fixture
def controls(request_for: Any) -> Iterator[Controls]:
    """Return a maker of requests for runs under control of the entropy, attached in some way."""

    def make_one(way: str, **given: Any) -> RunRequest:
        spec = WAYS[way]
        home = "toy_modules" if spec["model"] == "Stock" else "learned_modules"
        given = {"parameters": CONTRAST, "ticket": next(TICKETS), **given}
        request: RunRequest = request_for(attach=spec.get("attach"), **given)
        model = {"class_path": f"{home}.{spec['model']}", "init_args": {}}
        return dataclasses.replace(request, program=dataclasses.replace(request.program, model=model))

    yield make_one
    for name in ("learned_modules", "hugging_modules"):
        sys.modules.pop(name, None)


def temperatures(run: Run) -> tuple[float, ...]:
    """Return the temperatures of attention in force."""
    assert run.tempered is not None
    return run.tempered.temperatures


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_was_interrupted_ends_with_the_same_bits(
    controls: Controls, listener: Any, tmp_path: Path, way: str
) -> None:
    test = [Evaluation(name="test", on="test"), Evaluation(name="test_current", on="test", at="current")]

    def run(channel: Any, **given: Any) -> Run:
        return Run(
            controls(way, ticket=1, checkpoints=str(tmp_path), evaluations=test, observe=True, **given),
            channel,
        )

    whole, killed, again = run(listener()), listener(die_at=10), listener()
    done = whole.execute()
    with pytest.raises(SystemExit):
        run(killed).execute()
    resumed = run(again, attempt=2, resume=killed.saved)
    last = resumed.execute()
    assert [each.step for each in again.of(Started)] == [8]
    assert (last.reports, last.measurements, last.curves) == (done.reports, done.measurements, done.curves)
    assert temperatures(resumed) == temperatures(whole) != (1.5,) * len(temperatures(whole))
    # it is evaluated as it was trained at last
    assert done.measurements["test"] == done.measurements["test_current"]
    theirs = whole.module.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in resumed.module.state_dict().items())


@pytest.mark.parametrize("way", WAYS)
def test_where_the_temperatures_went_is_reported(controls: Controls, listener: Any, way: str) -> None:
    looked_at = Run(controls(way, observe=True), listener())
    done = looked_at.execute()
    paths = {name: path for name, path in done.curves.items() if name.startswith("controlled/")}
    assert list(paths) == [f"controlled/{layer}" for layer in range(len(temperatures(looked_at)))]
    for path, tau in zip(paths.values(), temperatures(looked_at), strict=True):
        assert [step for step, _ in path] == list(range(1, STEPS + 1)) or path[0][0] == 0
        assert path[0][1] == pytest.approx(1.5, rel=0.2) and path[-1] == [STEPS, tau]
        assert len({tau for _, tau in path}) > STEPS / 2
    brief = Run(controls(way), listener()).execute().curves
    assert brief == {name: [path[0], path[-1]] for name, path in paths.items()}


@pytest.mark.parametrize("way", WAYS)
def test_another_temperature_at_inference_leaves_those_of_the_training(
    controls: Controls, listener: Any, way: str
) -> None:
    run = Run(controls(way, parameters=CURRICULUM), listener())
    run.execute()
    found = temperatures(run)
    plain = Evaluation(name="validate", on="validate")
    sharp = Evaluation(name="validate:sharp", on="validate", temperature={"temperature_init": 0.05})
    as_trained = run.evaluate(plain)
    assert run.evaluate(sharp) != as_trained
    assert temperatures(run) == found and run.evaluate(plain) == as_trained


@pytest.mark.parametrize("way", WAYS)
def test_a_dry_run_tries_the_control_that_is_searched(controls: Controls, listener: Any, way: str) -> None:
    space = {"entropy_control": ["none", "contrast"], "control_level": [0.3, 0.9]}
    request = controls(way, task="rehearse", space=space, parameters={"temperature_init": 2.0})
    heard = listener()
    assert isinstance(rehearse(request, heard), Finished)
    assert "controlled the entropy for two steps" in [each.what for each in heard.of(Stage)]


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_have_the_temperatures_of_one_device_with_both_their_batches(
    pair: WorkerProcess, controls: Controls, listener: Any, tmp_path: Path, way: str
) -> None:
    def asked(ranks: int, **given: Any) -> RunRequest:
        return controls(way, **two_ranks_given(ranks, tmp_path), **given)

    lines = check_two_ranks(pair, asked, listener, tmp_path)
    assert len({tuple(line["logs"]) for line in lines}) > STEPS / 2


# ---- a training of one's own


@pytest.mark.parametrize("parameters", [CONTRAST, CURRICULUM])
def test_a_callback_has_a_training_controlled_and_resumed(
    fitted: Any, toys: Any, tmp_path: Path, parameters: dict[str, Any]
) -> None:
    callback = AttachCallback(parameters)
    model, made = fitted(callback)
    assert callback.attachment is not None
    found = callback.attachment.temperatures
    assert len(set(found)) == len(found) and found != (1.5,) * len(found)
    made.save_checkpoint(tmp_path / "end.ckpt")
    (ended,) = made.validate(model, datamodule=Data(), verbose=False)

    # half of it, the rest from a checkpoint
    torch.manual_seed(0)
    half = toys.Stock()
    stopped = trainer(AttachCallback(parameters), Stops(6), max_steps=12)
    stopped.fit(half, datamodule=Data())
    stopped.save_checkpoint(tmp_path / "half.ckpt")
    rest = AttachCallback(parameters)
    again, more = fitted(rest, ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    assert more.global_step == 12 and rest.attachment is not None
    assert rest.attachment.temperatures == found
    own, theirs = again.state_dict(), model.state_dict()
    assert all(torch.equal(own[name], theirs[name]) for name in own)

    # a model that knows nothing of tempopt has the temperatures in its weights
    plain = toys.Stock()
    load_checkpoint(plain, tmp_path / "end.ckpt")
    (loaded,) = trainer().validate(plain, datamodule=Data(), verbose=False)
    assert loaded["val_loss"] == pytest.approx(ended["val_loss"], rel=1e-4)


class Stops(L.Callback):
    """Ends a training after some steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_end(self, trainer: L.Trainer, *others: Any) -> None:
        trainer.should_stop = trainer.global_step == self.steps


def test_a_schedule_beside_control_is_refused() -> None:
    with pytest.raises(SpecError, match='schedule="linear" has no effect with entropy_control="contrast"'):
        AttachCallback({**CONTRAST, "schedule": "linear", "temperature_final": 0.5})
