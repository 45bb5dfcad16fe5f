"""A run is a function of its request: the same weights, reports and measurements, whatever happened."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tempopt.errors import SpecError
from tempopt.training.callbacks import TemperatureCallback
from tempopt.training.messages import Evaluation, Finished, Program, Progress, Report, RunRequest, Started
from tempopt.training.run import Run

HOT = {"temperature_init": 4.0, "temperature_final": 1.0, "schedule": "exponential", "entropy_lambda": 0.01}
TRAINERS: dict[str, dict[str, Any]] = {
    "by steps": {},
    "by steps that divide the epoch": {"val_check_interval": 5},
    "several times an epoch": {"val_check_interval": 0.3, "check_val_every_n_epoch": 1},
    "by epoch": {"val_check_interval": 1.0, "check_val_every_n_epoch": 1},
    "accumulating": {"accumulate_grad_batches": 2, "max_steps": 12},
}


def same_weights(one: Run, other: Run) -> bool:
    theirs = other.module.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.module.state_dict().items())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS)
def test_a_run_that_was_killed_and_resumed_ends_bit_identical_to_an_undisturbed_one(
    request_for: Any, listener: Any, tmp_path: Path, trainer: dict[str, Any], workers: int
) -> None:
    def run(
        folder: str, *, resume: bool = False, die_at: int | None = None
    ) -> tuple[Run, Finished | None, Any]:
        channel = listener(die_at=die_at)
        one = Run(
            request_for(
                trainer=trainer,
                data={"workers": workers},
                parameters=HOT,
                folder=str(tmp_path / folder),
                resume=resume,
            ),
            channel,
        )
        try:
            return one, one.execute(), channel
        except SystemExit:
            return one, None, channel

    whole, undisturbed, _ = run("whole")
    assert undisturbed is not None
    for die_at in (3, 11, 13) if workers else (3, 6, 9, 10, 11, 17, 20):
        _, nothing, _ = run(str(die_at), die_at=die_at)
        if nothing is not None:
            continue
        again, finished, channel = run(str(die_at), resume=True)
        (started,) = channel.of(Started)
        written = [step for step, _ in undisturbed.reports if step < die_at]
        assert started.step == (written[-1] if written else 0)
        assert finished is not None
        assert finished.reports == undisturbed.reports
        assert finished.measurements == undisturbed.measurements
        assert same_weights(whole, again)


def test_what_a_run_reports_depends_on_its_seed_and_on_nothing_that_ran_before(
    request_for: Any, listener: Any
) -> None:
    first = Run(request_for(), listener()).execute()
    other = Run(request_for(seed=6), listener()).execute()
    again = Run(request_for(), listener()).execute()
    assert again.reports == first.reports
    assert other.reports != first.reports


def test_worker_processes_do_not_change_what_is_trained(request_for: Any, listener: Any) -> None:
    without = Run(request_for(), listener()).execute()
    with_two = Run(request_for(data={"workers": 2}), listener()).execute()
    assert with_two.reports == without.reports


def test_a_truncated_write_leaves_the_checkpoint_before_it(
    request_for: Any, listener: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(request_for(folder=str(tmp_path)), listener(die_at=6))
    with pytest.raises(SystemExit):
        run.execute()
    before = (tmp_path / "newest.ckpt").read_bytes()

    def full(*names: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        Run(request_for(folder=str(tmp_path), resume=True), listener()).execute()
    assert (tmp_path / "newest.ckpt").read_bytes() == before


def test_a_checkpoint_of_another_run_in_the_same_folder_is_not_taken_up(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit):
        Run(request_for(seed=77, folder=str(tmp_path)), listener(die_at=6)).execute()
    channel = listener()
    resumed = Run(request_for(folder=str(tmp_path), resume=True), channel).execute()
    assert channel.of(Started)[0].step == 0
    assert resumed.reports == Run(request_for(), listener()).execute().reports


@pytest.mark.parametrize("damage", [b"", b"no checkpoint", None])
def test_a_damaged_checkpoint_means_to_begin_again(
    request_for: Any, listener: Any, tmp_path: Path, damage: bytes | None
) -> None:
    with pytest.raises(SystemExit):
        Run(request_for(folder=str(tmp_path)), listener(die_at=6)).execute()
    path = tmp_path / "newest.ckpt"
    path.write_bytes(path.read_bytes()[:1000] if damage is None else damage)
    channel = listener()
    resumed = Run(request_for(folder=str(tmp_path), resume=True), channel).execute()
    assert channel.of(Started)[0].step == 0
    assert len(resumed.reports) == 6


def test_a_module_with_callbacks_and_hyperparameters_of_its_own_is_tempered_and_resumes(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    def run(folder: str, **given: Any) -> Run:
        return Run(
            request_for("OwnCallbacks", parameters=HOT, folder=str(tmp_path / folder), **given), listener()
        )

    whole = run("whole")
    finished = whole.execute()
    assert [step for step, _ in finished.reports] == [4, 8]
    assert whole.tempered.progress == pytest.approx(7 / 23)
    cut = run("cut")
    cut._channel.die_at = 6
    with pytest.raises(SystemExit):
        cut.execute()
    assert run("cut", resume=True).execute().reports == finished.reports


def test_a_run_that_ends_early_is_measured_at_the_temperature_that_is_asked(
    request_for: Any, listener: Any
) -> None:
    asked = [Evaluation(name="final", on="validate"), Evaluation(name="current", on="validate", at="current")]
    run = Run(request_for("OwnCallbacks", parameters=HOT, evaluations=asked), listener())
    finished = run.execute()
    assert finished.measurements["final"] == finished.measurements["validate"] == finished.reports[-1][1]
    assert finished.measurements["current"] != finished.measurements["final"]


def test_a_data_module_that_splits_in_its_constructor_holds_out_the_same_in_every_run(
    request_for: Any, listener: Any
) -> None:
    def held_out(seed: int) -> list[int]:
        request = request_for(seed=seed)
        data = {"class_path": "toy_modules.SplitsAtOnce", "init_args": {}}
        request = dataclasses.replace(request, program=dataclasses.replace(request.program, data=data))
        return list(Run(request, listener()).datamodule.parts[2].indices)

    assert held_out(1) == held_out(2)


def test_a_frozen_model_is_evaluated_whatever_the_study_validates_at(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    path = tmp_path / "weights.pt"
    torch.save(Run(request_for(), listener()).module.state_dict(), path)
    asked = [Evaluation(name="validate_current", on="validate", at="current")]
    given = {"weights": str(path), "parameters": {"temperature_init": 3.0}, "evaluations": asked}
    finished = Run(request_for(validate_at="current", **given), listener()).execute()
    assert finished.measurements["validate_current"] == finished.measurements["validate"]


def test_a_stop_ends_the_run_at_the_next_step_without_another_validation(
    request_for: Any, listener: Any
) -> None:
    channel = listener(stop_at=8)
    finished = Run(request_for(), channel).execute()
    assert finished.state == "stopped"
    assert 8 <= finished.step <= 10
    assert [report.step for report in channel.of(Report)] == [4, 8]
    assert finished.measurements == {}


def test_divergence_ends_the_run_with_the_step_and_reports_no_number_of_it(
    request_for: Any, listener: Any
) -> None:
    channel = listener()
    finished = Run(request_for(init={"diverge_at": 9}), channel).execute()
    assert (finished.state, finished.step) == ("diverged", 10)
    assert all(math.isfinite(report.value) for report in channel.of(Report))
    assert [report.step for report in channel.of(Report)] == [4, 8]


def test_a_metric_that_was_never_logged_is_named_with_those_that_were(
    request_for: Any, listener: Any
) -> None:
    with pytest.raises(SpecError, match='Unknown metric "val_accuracy".*Known: val_loss'):
        Run(request_for(metric="val_accuracy"), listener()).execute()


def test_a_training_without_a_known_end_is_refused(request_for: Any, listener: Any) -> None:
    endless = {"max_steps": -1, "max_epochs": -1}
    with pytest.raises(SpecError, match="no known end"):
        Run(request_for(trainer=endless), listener()).execute()


def test_progress_is_reported_from_the_first_to_the_last_step(request_for: Any, listener: Any) -> None:
    channel = listener()
    Run(request_for(), channel).execute()
    (started,) = channel.of(Started)
    assert (started.step, started.total_steps, started.device) == (0, 24, "cpu")
    assert [message.step for message in channel.of(Progress)] == list(range(1, 25))


def test_the_last_validation_serves_as_the_measurement_of_the_end(request_for: Any, listener: Any) -> None:
    validations: list[int] = []
    run = Run(request_for(parameters=HOT), listener())
    step = run.module.validation_step
    run.module.validation_step = lambda *args: (validations.append(1), step(*args))[1]  # type: ignore[method-assign]
    finished = run.execute()
    assert finished.measurements["validate"] == finished.reports[-1][1]
    assert len(validations) == len(finished.reports)


def test_an_evaluation_under_another_plan_is_that_of_a_module_made_with_it(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    other = {"temperature_init": 0.25}
    asked = [
        Evaluation(name="test", on="test"),
        Evaluation(name="test:cold", on="test", temperature=other),
        Evaluation(name="validate:cold", on="validate", temperature=other),
    ]
    run = Run(request_for(evaluations=asked), listener())
    finished = run.execute()
    path = tmp_path / "weights.pt"
    torch.save(run.module.state_dict(), path)
    frozen = Run(request_for(weights=str(path), parameters=other), listener()).execute()
    assert finished.measurements["validate:cold"] == frozen.measurements["validate"]
    assert finished.measurements["test:cold"] != finished.measurements["test"]
    assert finished.measurements["validate"] != finished.measurements["validate:cold"]


def test_test_data_are_those_that_no_training_saw(request_for: Any, listener: Any) -> None:
    run = Run(request_for(evaluations=[Evaluation(name="test", on="test")]), listener())
    run.execute()
    train, validation, test = (set(part.indices) for part in run.datamodule.parts)
    assert not train & test
    assert not validation & test
    other = Run(request_for(seed=99, evaluations=[Evaluation(name="test", on="test")]), listener())
    other.execute()
    assert set(other.datamodule.parts[2].indices) == test


def test_missing_test_data_are_refused_with_the_way_out(request_for: Any, listener: Any) -> None:
    run = Run(request_for(data={"test": False}, evaluations=[Evaluation(name="t", on="test")]), listener())
    with pytest.raises(SpecError, match="confirm_on: validate"):
        run.execute()


def test_a_checkpoint_of_another_model_is_refused(request_for: Any, listener: Any, tmp_path: Path) -> None:
    path = tmp_path / "other.pt"
    torch.save({"weight": torch.ones(2)}, path)
    with pytest.raises(SpecError, match="another model"):
        Run(request_for(weights=str(path)), listener()).execute()


def test_a_checkpoint_that_is_code_is_not_loaded(request_for: Any, listener: Any, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "sprung",)

    path = tmp_path / "trap.pt"
    torch.save({"state_dict": Trap()}, path)
    with pytest.raises(SpecError, match="cannot be loaded as data"):
        Run(request_for(weights=str(path)), listener()).execute()
    assert not (tmp_path / "sprung").exists()


def test_baking_starts_the_run_from_the_query_weights_divided_by_the_temperature(
    request_for: Any, listener: Any
) -> None:
    plain = Run(request_for(), listener())
    baked = Run(request_for(bake={"temperature_init": 4.0, "schedule": "exponential"}), listener())
    before, after = plain.module.state_dict(), baked.module.state_dict()
    for name, value in before.items():
        factor = 0.25 if name.startswith("q_proj") else 1.0
        assert torch.equal(after[name], value * factor)


@pytest.mark.parametrize("validate_at", ["final", "current"])
def test_validation_runs_under_the_temperature_that_the_study_asks_for(
    request_for: Any, listener: Any, validate_at: str
) -> None:
    seen: dict[str, list[float]] = {"train": [], "validate": []}
    run = Run(request_for(parameters=HOT, validate_at=validate_at), listener())
    loss = run.module.loss

    def watched(batch: Any) -> Any:
        stage = "train" if run.module.training else "validate"
        seen[stage].append(1 / float(run.module.inverse_temperature[0]))
        return loss(batch)

    run.module.loss = watched
    run.execute()
    expected = [4.0 * 0.25 ** (step / 23) for step in range(24)]
    assert seen["train"] == pytest.approx(expected, rel=1e-6)
    during = [expected[step - 1] for step in range(4, 25, 4)]
    assert seen["validate"] == pytest.approx(during if validate_at == "current" else [1.0] * 6, rel=1e-6)


def test_attaching_at_temperature_one_trains_what_the_module_alone_would(
    request_for: Any, listener: Any
) -> None:
    attached = Run(request_for("Stock", attach={"layers": "auto"}), listener())
    alone = Run(request_for("Stock", attach={"layers": "auto"}), listener())
    alone.tempered.detach()
    alone.trainer.callbacks = [c for c in alone.trainer.callbacks if not isinstance(c, TemperatureCallback)]
    first, second = attached.execute(), alone.execute()
    assert first.reports == second.reports
    assert same_weights(attached, alone)


def test_an_attached_module_follows_its_schedule(request_for: Any, listener: Any) -> None:
    hot = {"temperature_init": 4.0, "temperature_final": 1.0, "schedule": "linear"}
    tempered = Run(request_for("Stock", attach={"layers": "auto"}, parameters=hot), listener()).execute()
    plain = Run(request_for("Stock", attach={"layers": "auto"}), listener()).execute()
    assert tempered.reports != plain.reports


def test_requests_survive_the_way_to_the_trainer(request_for: Any) -> None:
    from tempopt.training.messages import decode, encode

    request = request_for(
        parameters={"lr": 0.1 + 0.2, "data.workers": 2},
        evaluations=[Evaluation(name="x", on="test", temperature={"temperature_init": 0.1})],
        bake={"temperature_init": math.pi},
    )
    assert isinstance(request.program, Program)
    assert decode(encode(request)) == request
    assert isinstance(decode(encode(request)), RunRequest)
