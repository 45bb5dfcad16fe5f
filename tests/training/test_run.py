"""A run is a function of its request: the same weights, reports and measurements, whatever happened."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from tempopt.errors import SpecError
from tempopt.spec.program import Program
from tempopt.training.messages import (
    CheckpointRef,
    CheckpointSaved,
    Evaluation,
    Progress,
    Report,
    RunRequest,
    Started,
    decode,
    encode,
)
from tempopt.training.run import LightningRun
from tests.training.shared_trainings import check_resume

HOT = {"temperature_init": 4.0, "temperature_final": 1.0, "schedule": "exponential", "entropy_lambda": 0.01}
LINEAR = {"temperature_init": 4.0, "temperature_final": 1.0, "schedule": "linear"}
TEST = [Evaluation(name="test", on="test")]


def test_what_a_run_reports_depends_on_its_seed_and_on_nothing_that_ran_before(
    request_for: Any, listener: Any
) -> None:
    first_result = LightningRun(request_for(), listener()).execute()
    other_result = LightningRun(request_for(seed=6), listener()).execute()
    repeated_result = LightningRun(request_for(), listener()).execute()
    assert repeated_result.reports == first_result.reports
    assert other_result.reports != first_result.reports


def test_a_model_checkpoint_of_each_run_has_a_folder_of_its_own(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    checkpoint_args = {"dirpath": f"{tmp_path}/mine/", "save_last": True}
    keep = {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": checkpoint_args}
    for seed, run in ((5, "search-0001"), (6, "search-0002")):
        request = request_for(trainer={"callbacks": [keep]}, seed=seed, folder=str(tmp_path / run))
        trained = LightningRun(request, listener())
        trained.execute()
        saved = torch.load(tmp_path / "mine" / run / "last.ckpt", weights_only=True)["state_dict"]
        weights = trained.module.state_dict()
        assert all(torch.equal(weights[name], value) for name, value in saved.items())
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["search-0001", "search-0002"]


def test_a_module_with_callbacks_and_hyperparameters_of_its_own_is_tempered_and_resumes(
    request_for: Any, tmp_path: Path
) -> None:
    request = request_for("OwnCallbacks", parameters=HOT)
    reference_run, reference_result, _ = check_resume(request, tmp_path, die_at=6)
    assert [step for step, _ in reference_result.reports] == [4, 8]
    assert reference_run.tempered.progress == pytest.approx(7 / 23)


def test_a_run_that_ends_early_is_measured_at_the_temperature_that_is_asked(
    request_for: Any, listener: Any
) -> None:
    evaluations = [
        Evaluation(name="final", on="validate"),
        Evaluation(name="current", on="validate", at="current"),
    ]
    run = LightningRun(request_for("OwnCallbacks", parameters=HOT, evaluations=evaluations), listener())
    finished = run.execute()
    assert finished.measurements["final"] == finished.measurements["validate"] == finished.reports[-1][1]
    assert finished.measurements["current"] != finished.measurements["final"]


@pytest.mark.parametrize("trainer", [{}, {"min_steps": 20}, {"min_epochs": 2}])
def test_a_stop_ends_the_run_at_the_next_step_without_another_validation(
    request_for: Any, listener: Any, trainer: dict[str, Any]
) -> None:
    channel = listener(stop_at=8)
    finished = LightningRun(request_for(trainer=trainer), channel).execute()
    assert (finished.state, finished.step) == ("stopped", 8)
    assert [report.step for report in channel.messages_of(Report)] == [4, 8]
    assert finished.measurements == {}


def test_a_stop_breaks_the_evaluations_at_the_end_off(request_for: Any, listener: Any) -> None:
    evaluations = [Evaluation(name=str(number), on="test") for number in range(3)]
    undisturbed = listener()
    LightningRun(request_for(evaluations=evaluations), undisturbed).execute()
    channel = listener(stop_after=len(undisturbed.received))
    finished = LightningRun(
        request_for(evaluations=[*evaluations, Evaluation(name="more", on="test", at="current")]), channel
    )
    assert finished.execute().state == "stopped"


def test_divergence_ends_the_run_with_the_step_and_reports_no_number_of_it(
    request_for: Any, listener: Any
) -> None:
    channel = listener()
    finished = LightningRun(request_for(init={"diverge_at": 9}), channel).execute()
    assert (finished.state, finished.step) == ("diverged", 10)
    assert all(math.isfinite(report.value) for report in channel.messages_of(Report))
    assert [report.step for report in channel.messages_of(Report)] == [4, 8]


def test_a_metric_that_nothing_could_be_computed_with_ends_the_run_as_diverged(
    request_for: Any, listener: Any
) -> None:
    channel = listener()
    request = request_for(
        "unusual_modules.HugeMetricNet", data_class="unusual_modules.WordData", compared=True
    )
    finished = LightningRun(request, channel).execute()
    assert (finished.state, finished.step) == ("diverged", 4)
    assert channel.messages_of(Report) == []


@pytest.mark.parametrize(
    ("module", "trainer", "message"),
    [
        (
            "Toy",
            {"plugins": [{"class_path": "lightning.pytorch.plugins.environments.LightningEnvironment"}]},
            "LightningEnvironment says which processes train together",
        ),
        ("Toy", {"max_steps": -1, "max_epochs": -1}, "no known end"),
        (
            "Adversarial",
            {"max_steps": 24, "max_epochs": 2},
            "max_steps=24 and max_epochs=2.*all optimizers.*one of the two",
        ),
    ],
    ids=["plugin", "no end", "two counts"],
)
def test_a_trainer_that_no_study_can_use_is_refused(
    request_for: Any, listener: Any, module: str, trainer: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        LightningRun(request_for(module, trainer=trainer), listener()).execute()


def test_every_batch_of_training_validation_and_evaluation_is_progress(
    request_for: Any, listener: Any
) -> None:
    channel = listener()
    LightningRun(request_for(evaluations=TEST), channel).execute()
    (started,) = channel.messages_of(Started)
    assert (started.step, started.total_steps, started.device) == (0, 24, "cpu")
    message_types = [type(message).__name__ for message in channel.received]
    # built, and taken up at the beginning; then four batches and one of validation, over and over
    assert message_types[:3] == ["Progress", "Started", "Progress"]
    trained = ["Progress"] * 5 + ["Report"]
    assert message_types[2:] == trained * 6 + ["Progress"]
    steps = [message.step for message in channel.messages_of(Progress)]
    assert sorted(set(steps)) == list(range(25))
    assert steps == sorted(steps)


def test_progress_is_said_no_more_often_than_an_agent_needs(
    request_for: Any, listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempopt.training.run.BEAT_SECONDS", 3600.0)
    channel = listener()
    LightningRun(request_for(), channel).execute()
    assert [message.step for message in channel.messages_of(Progress)] == [0]


def test_the_last_validation_serves_as_the_measurement_of_the_end(request_for: Any, listener: Any) -> None:
    validations: list[int] = []
    run = LightningRun(request_for(parameters=HOT), listener())
    step = run.module.validation_step
    run.module.validation_step = lambda *args: (validations.append(1), step(*args))[1]  # type: ignore[method-assign]
    finished = run.execute()
    assert finished.measurements["validate"] == finished.reports[-1][1]
    assert len(validations) == len(finished.reports)


def test_an_evaluation_under_another_plan_is_that_of_a_module_made_with_it(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    cold_plan = {"temperature_init": 0.25}
    evaluations = [
        Evaluation(name="test", on="test"),
        Evaluation(name="test:cold", on="test", temperature=cold_plan),
        Evaluation(name="validate:cold", on="validate", temperature=cold_plan),
    ]
    run = LightningRun(request_for(evaluations=evaluations), listener())
    finished = run.execute()
    path = tmp_path / "weights.pt"
    torch.save(run.module.state_dict(), path)
    frozen = LightningRun(request_for(weights=str(path), parameters=cold_plan), listener()).execute()
    assert finished.measurements["validate:cold"] == frozen.measurements["validate"]
    assert finished.measurements["test:cold"] != finished.measurements["test"]
    assert finished.measurements["validate"] != finished.measurements["validate:cold"]


@pytest.mark.parametrize("data_class", ["ToyData", "SplitsAtOnce"])
def test_test_data_are_the_same_in_every_run_and_no_training_saw_them(
    request_for: Any, listener: Any, data_class: str
) -> None:
    test_data: list[set[int]] = []
    for seed in (5, 99):
        request = request_for(seed=seed, data_class=data_class, evaluations=TEST)
        run = LightningRun(request, listener())
        run.execute()
        train, validation, test = (set(part.indices) for part in run.datamodule.parts)
        assert not test & (train | validation)
        test_data.append(test)
    assert test_data[0] == test_data[1]


@pytest.mark.parametrize("validate_at", ["final", "current"])
def test_validation_runs_under_the_temperature_that_the_study_asks_for(
    request_for: Any, listener: Any, validate_at: str
) -> None:
    temperatures: dict[str, list[float]] = {"train": [], "validate": []}
    run = LightningRun(request_for(parameters=HOT, validate_at=validate_at), listener())
    loss = run.module.loss

    def recording_loss(batch: Any) -> Any:
        stage = "train" if run.module.training else "validate"
        temperatures[stage].append(1 / float(run.module.inverse_temperature[0]))
        return loss(batch)

    run.module.loss = recording_loss
    run.execute()
    expected = [4.0 * 0.25 ** (step / 23) for step in range(24)]
    assert temperatures["train"] == pytest.approx(expected, rel=1e-6)
    during = [expected[step - 1] for step in range(4, 25, 4)]
    assert temperatures["validate"] == pytest.approx(
        during if validate_at == "current" else [1.0] * 6, rel=1e-6
    )


def test_requests_survive_the_way_to_the_trainer(request_for: Any) -> None:
    request = request_for(
        parameters={"lr": 0.1 + 0.2, "data.workers": 2},
        evaluations=[Evaluation(name="x", on="test", temperature={"temperature_init": 0.1})],
        resume=[CheckpointRef(step=8, url="/runs/step-8-1.ckpt", digest="00ff", size=12)],
        checkpoint_every=0.1 + 0.2,
    )
    kept_message = CheckpointSaved(ticket=1, attempt=1, saved=request.resume[0])
    assert decode(encode(kept_message)) == kept_message
    assert isinstance(request.program, Program)
    assert decode(encode(request)) == request
    assert isinstance(decode(encode(request)), RunRequest)


def test_a_guarded_metric_is_measured_with_the_evaluations_that_ask_for_it(
    request_for: Any, listener: Any
) -> None:
    guarded = [
        Evaluation(name="validate", on="validate", guards=["val_loss"]),
        Evaluation(name="test", on="test", guards=["val_loss"]),
        Evaluation(name="test_current", on="test", at="current"),
    ]
    finished = LightningRun(
        request_for("TradeoffToy", metric="score", evaluations=guarded), listener()
    ).execute()
    assert finished.measurements.keys() == {
        *("validate", "test", "test_current"),
        *("validate/guard:val_loss", "test/guard:val_loss"),
    }
    for name in ("validate", "test"):
        assert finished.measurements[f"{name}/guard:val_loss"] == finished.metrics[name]["val_loss"]
    assert finished.measurements["test/guard:val_loss"] != finished.measurements["validate/guard:val_loss"]


# ---- steps


class ProgressRecorder(L.Callback):
    """Keeps the progress that the temperature of each batch is that of."""

    def __init__(self) -> None:
        self.progress: list[float] = []

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
        self.progress.append(pl_module.progress)


def train_run(request: Any, listener: Any) -> tuple[Any, Any, list[float]]:
    channel, recorder = listener(), ProgressRecorder()
    run = LightningRun(request, channel)
    run.trainer.callbacks.append(recorder)
    return run.execute(), channel.messages_of(Started)[0], recorder.progress


def test_a_training_by_epochs_counts_batches_whatever_steps_its_module_takes(
    request_for: Any, listener: Any
) -> None:
    epochs = {"max_steps": -1, "max_epochs": 2, "check_val_every_n_epoch": 1, "val_check_interval": 5}
    for module in ("Manual", "Adversarial"):
        request = request_for(module, trainer=epochs, parameters=LINEAR)
        finished, started, progress = train_run(request, listener)
        assert (started.total_steps, finished.step) == (20, 20)
        assert [step for step, _ in finished.reports] == [5, 10, 15, 20]
        assert progress == [batch / 19 for batch in range(20)]
    # where each batch takes a step, two counts are alike
    assert (
        LightningRun(request_for(trainer={"max_steps": 24, "max_epochs": 2}), listener()).execute().step == 20
    )


def test_a_training_by_steps_counts_those_of_all_optimizers(request_for: Any, listener: Any) -> None:
    finished, started, progress = train_run(request_for("Adversarial", parameters=LINEAR), listener)
    # three steps in two batches
    assert (started.total_steps, finished.step) == (24, 24)
    assert [step for step, _ in finished.reports] == [6, 12, 18, 24]
    assert progress == [(3 * (batch // 2) + batch % 2) / 23 for batch in range(16)]
