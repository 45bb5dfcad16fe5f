"""Runs whose temperatures are controlled by entropy, for each kind of attachment: resumed, on two ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tempopt import AttachCallback, load_checkpoint
from tempopt.agent.process import WorkerProcess
from tempopt.errors import SpecError
from tempopt.training.dry_run import dry_run
from tempopt.training.messages import Evaluation, Finished, RunRequest, Stage
from tempopt.training.run import Run
from tests.training.shared_trainings import SaveAt, assert_same_state, check_resume, quiet_trainer
from tests.training.test_attach_callback import Data, fit_stock, toys
from tests.training.test_ranks import make, pair
from tests.training.two_ranks import STEPS, check_two_ranks, two_ranks_given

# fixtures are found by their names
__all__ = ["fit_stock", "make", "pair", "toys"]

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
SETUPS: dict[str, dict[str, Any]] = {
    "tempered module": {"module": "learned_modules.TemperedLogitsToy"},
    "query rows": {"module": "Stock", "attach": {"layers": "auto"}},
    "attention interface": {
        "module": "learned_modules.TextReader",
        "attach": {"layers": "auto", "method": "attention_interface"},
    },
}

Controls = Callable[..., RunRequest]


@pytest.fixture
def controls(request_for: Any) -> Controls:
    """Return a maker of requests for entropy-controlled runs in one of the SETUPS."""

    def make_one(setup_name: str, **options: Any) -> RunRequest:
        request: RunRequest = request_for(
            **{**SETUPS[setup_name], "parameters": CONTRAST, "ticket": next(TICKETS), **options}
        )
        return request

    return make_one


def temperatures(run: Run) -> tuple[float, ...]:
    """Return the temperatures of attention in force."""
    assert run.tempered is not None
    return run.tempered.temperatures


@pytest.mark.parametrize("setup_name", SETUPS)
def test_a_run_that_was_interrupted_ends_with_the_same_bits(
    controls: Controls, tmp_path: Path, setup_name: str
) -> None:
    test = [Evaluation(name="test", on="test"), Evaluation(name="test_current", on="test", at="current")]
    request = controls(setup_name, evaluations=test, observe=True)
    reference_run, reference_result, resumed_run = check_resume(request, tmp_path)
    taus = temperatures(reference_run)
    assert temperatures(resumed_run) == taus != (1.5,) * len(taus)
    # it is evaluated as it was trained at last
    assert reference_result.measurements["test"] == reference_result.measurements["test_current"]


@pytest.mark.parametrize("setup_name", SETUPS)
def test_where_the_temperatures_went_is_reported(controls: Controls, listener: Any, setup_name: str) -> None:
    looked_at = Run(controls(setup_name, observe=True), listener())
    done = looked_at.execute()
    paths = {name: path for name, path in done.curves.items() if name.startswith("controlled/")}
    assert list(paths) == [f"controlled/{layer}" for layer in range(len(temperatures(looked_at)))]
    for path, tau in zip(paths.values(), temperatures(looked_at), strict=True):
        assert [step for step, _ in path] == list(range(1, STEPS + 1)) or path[0][0] == 0
        assert path[0][1] == pytest.approx(1.5, rel=0.2) and path[-1] == [STEPS, tau]
        assert len({tau for _, tau in path}) > STEPS / 2
    brief = Run(controls(setup_name), listener()).execute().curves
    assert brief == {name: [path[0], path[-1]] for name, path in paths.items()}


@pytest.mark.parametrize("setup_name", SETUPS)
def test_another_temperature_at_inference_leaves_those_of_the_training(
    controls: Controls, listener: Any, setup_name: str
) -> None:
    run = Run(controls(setup_name, parameters=CURRICULUM), listener())
    run.execute()
    taus = temperatures(run)
    plain = Evaluation(name="validate", on="validate")
    sharp = Evaluation(name="validate:sharp", on="validate", temperature={"temperature_init": 0.05})
    as_trained = run.evaluate(plain)
    assert run.evaluate(sharp) != as_trained
    assert temperatures(run) == taus and run.evaluate(plain) == as_trained


@pytest.mark.parametrize("setup_name", SETUPS)
def test_a_dry_run_tries_the_control_that_is_searched(
    controls: Controls, listener: Any, setup_name: str
) -> None:
    space = {"entropy_control": ["none", "contrast"], "control_level": [0.3, 0.9]}
    request = controls(setup_name, task="dry_run", space=space, parameters={"temperature_init": 2.0})
    channel = listener()
    assert isinstance(dry_run(request, channel), Finished)
    assert "controlled the entropy for two steps" in [stage.what for stage in channel.messages_of(Stage)]


@pytest.mark.long
@pytest.mark.parametrize("setup_name", SETUPS)
def test_two_ranks_have_the_temperatures_of_one_device_with_both_their_batches(
    pair: WorkerProcess, controls: Controls, listener: Any, tmp_path: Path, setup_name: str
) -> None:
    def make_request(ranks: int, **overrides: Any) -> RunRequest:
        return controls(setup_name, **two_ranks_given(ranks, tmp_path), **overrides)

    lines = check_two_ranks(pair, make_request, listener, tmp_path)
    assert len({tuple(line["logs"]) for line in lines}) > STEPS / 2


# ---- a training of one's own


@pytest.mark.parametrize("parameters", [CONTRAST, CURRICULUM])
def test_a_callback_has_a_training_controlled_and_resumed(
    fit_stock: Any, toys: Any, tmp_path: Path, parameters: dict[str, Any]
) -> None:
    callback = AttachCallback(parameters)
    model, pl_trainer = fit_stock(callback)
    assert callback.attachment is not None
    taus = callback.attachment.temperatures
    assert len(set(taus)) == len(taus) and taus != (1.5,) * len(taus)
    pl_trainer.save_checkpoint(tmp_path / "end.ckpt")
    (end_metrics,) = pl_trainer.validate(model, datamodule=Data(), verbose=False)

    # half of it, the rest from a checkpoint
    fit_stock(AttachCallback(parameters), SaveAt(6, tmp_path / "half.ckpt"))
    resumed_callback = AttachCallback(parameters)
    resumed_model, resumed_trainer = fit_stock(
        resumed_callback, ckpt_path=tmp_path / "half.ckpt", weights_only=True
    )
    assert resumed_trainer.global_step == 12 and resumed_callback.attachment is not None
    assert resumed_callback.attachment.temperatures == taus
    assert_same_state(resumed_model, model)

    # a model that knows nothing of tempopt has the temperatures in its weights
    plain = toys.Stock()
    load_checkpoint(plain, tmp_path / "end.ckpt")
    (loaded_metrics,) = quiet_trainer().validate(plain, datamodule=Data(), verbose=False)
    assert loaded_metrics["val_loss"] == pytest.approx(end_metrics["val_loss"], rel=1e-4)


def test_a_schedule_beside_control_is_refused() -> None:
    with pytest.raises(SpecError, match='schedule="linear" has no effect with entropy_control="contrast"'):
        AttachCallback({**CONTRAST, "schedule": "linear", "temperature_final": 0.5})
