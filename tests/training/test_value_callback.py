"""A Trainer with ValueCallback moves one number of the module, and nothing else of the training changes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import nn

from tempopt import AttachError, SpecError, UsageError, ValueCallback, attach_value, load_checkpoint
from tempopt.temperature import progress
from tests.training.shared_trainings import SaveAt, assert_same_state, quiet_trainer

STEPS = 12
LINEAR = {"schedule": "linear", "temperature_final": 0.1}


class CallbackCriterion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = 0.5
        self.register_buffer("tau", torch.tensor(0.5))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.5)))

    def forward(self, one_NE: torch.Tensor, other_NE: torch.Tensor) -> torch.Tensor:
        similarity_NN = one_NE @ other_NE.T
        labels_N = torch.arange(len(one_NE))
        factors = (1 / self.temperature, 1 / self.tau, self.logit_scale.exp())
        parts = [nn.functional.cross_entropy(similarity_NN * factor, labels_N) for factor in factors]
        return torch.stack(parts).sum()


class CallbackContrast(L.LightningModule):
    """Two towers and a contrastive loss, with dropout so that the random numbers of a training count."""

    def __init__(self) -> None:
        super().__init__()
        self.anchor_tower = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 4))
        self.positive_tower = nn.Linear(6, 4)
        self.criterion = CallbackCriterion()
        self.step_temperatures: list[tuple[float, float, float]] = []
        self.validated: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        criterion = self.criterion
        scale = criterion.logit_scale.detach().exp()
        self.step_temperatures.append((criterion.temperature, criterion.tau.item(), 1 / scale.item()))
        anchors, positives = batch
        return self.criterion(self.anchor_tower(anchors), self.positive_tower(positives))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append(self.criterion.temperature)
        anchors, positives = batch
        self.log("val_loss", self.criterion(self.anchor_tower(anchors), self.positive_tower(positives)))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)

    def _loader(self, seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        pairs = torch.utils.data.TensorDataset(
            torch.randn(24, 6, generator=generator), torch.randn(24, 6, generator=generator)
        )
        return torch.utils.data.DataLoader(pairs, batch_size=8)

    def train_dataloader(self) -> Any:
        return self._loader(1)

    def val_dataloader(self) -> Any:
        return self._loader(2)


def fit(*callbacks: L.Callback, ckpt_path: Any = None, **options: Any) -> tuple[CallbackContrast, L.Trainer]:
    torch.manual_seed(0)
    model = CallbackContrast()
    pl_trainer = quiet_trainer(*callbacks, **{"max_steps": STEPS, "gradient_clip_val": 0.5, **options})
    pl_trainer.fit(model, ckpt_path=ckpt_path, **({} if ckpt_path is None else {"weights_only": True}))
    return model, pl_trainer


class SeedStep(L.Callback):
    """Makes the random numbers of a step depend on the step alone, as a resumed training needs."""

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        torch.manual_seed(trainer.global_step)


def expected_taus() -> list[float]:
    return [0.5 + (0.1 - 0.5) * progress(step, STEPS) for step in range(STEPS)]


def test_validation_is_at_the_last_temperature_or_at_the_current_one() -> None:
    model, _ = fit(ValueCallback("criterion.temperature", LINEAR), val_check_interval=1)
    assert set(model.validated) == {0.1}
    assert [taus[0] for taus in model.step_temperatures] == pytest.approx(expected_taus(), rel=1e-6)
    assert model.criterion.temperature == 0.1
    model, _ = fit(
        ValueCallback("criterion.temperature", LINEAR, validate_at="current"), val_check_interval=1
    )
    assert model.validated[::3] == pytest.approx(expected_taus(), rel=1e-6)


def test_a_learned_number_under_a_schedule_trains_as_one_that_is_set_by_hand() -> None:
    class SetScale(L.Callback):
        def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
            pl_module.criterion.logit_scale.requires_grad_(False)

        def on_train_batch_start(
            self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int
        ) -> None:
            tau = 0.5 + (0.1 - 0.5) * trainer.global_step / (STEPS - 1)
            pl_module.criterion.logit_scale.fill_(-math.log(tau))

    by_hand, _ = fit(SetScale())
    model, _ = fit(ValueCallback("criterion.logit_scale", LINEAR, "log_inverse"))
    torch.testing.assert_close(
        model.anchor_tower.state_dict(), by_hand.anchor_tower.state_dict(), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("weights_only", [False, True])
def test_a_checkpoint_holds_the_number_that_validation_was_at(tmp_path: Path, weights_only: bool) -> None:
    callbacks = [
        ValueCallback("criterion.temperature", LINEAR),
        ValueCallback("criterion.tau", {"temperature_init": 0.2}),
        ValueCallback("criterion.logit_scale", LINEAR, "log_inverse"),
    ]
    path = tmp_path / "trained.ckpt"

    model, _ = fit(*callbacks, SaveAt(4, path, weights_only=weights_only))
    # what is saved does not reach back into the training
    assert [taus[2] for taus in model.step_temperatures] == pytest.approx(expected_taus(), rel=1e-6)
    plain = CallbackContrast.load_from_checkpoint(path, weights_only=True)
    assert plain.criterion.tau.item() == pytest.approx(0.2)
    assert plain.criterion.logit_scale.item() == pytest.approx(math.log(1 / 0.1))
    assert plain.criterion.temperature == 0.5
    loaded = CallbackContrast()
    assert load_checkpoint(loaded, path) is None
    assert loaded.criterion.temperature == 0.1
    assert loaded.criterion.tau.item() == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("path", "parameters", "transform"),
    [
        ("criterion.temperature", LINEAR, "identity"),
        ("criterion.tau", {}, "identity"),
        # it is learned meanwhile
        ("criterion.logit_scale", {}, "log_inverse"),
    ],
)
def test_a_temperature_of_inference_is_that_of_evaluations_and_checkpoints_and_of_no_training(
    path: str, parameters: dict[str, Any], transform: Any, tmp_path: Path
) -> None:
    def callback() -> ValueCallback:
        return ValueCallback(path, parameters, transform, at_inference=0.7)

    plain_model, _ = fit(SeedStep(), ValueCallback(path, parameters, transform))
    reference_model, pl_trainer = fit(SeedStep(), callback(), SaveAt(6, tmp_path / "mid.ckpt"))
    assert reference_model.step_temperatures == plain_model.step_temperatures
    resumed_model, _ = fit(SeedStep(), callback(), ckpt_path=tmp_path / "mid.ckpt")
    assert resumed_model.step_temperatures == reference_model.step_temperatures[6:]
    assert_same_state(reference_model, resumed_model)
    pl_trainer.validate(reference_model, verbose=False)
    loaded_model = CallbackContrast()
    load_checkpoint(loaded_model, tmp_path / "mid.ckpt")
    for model in (reference_model, resumed_model, loaded_model):
        value = torch.as_tensor(getattr(model.criterion, path.removeprefix("criterion."))).detach()
        assert float(value) == pytest.approx(math.log(1 / 0.7) if transform == "log_inverse" else 0.7)


def test_a_checkpoint_whose_numbers_are_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.ckpt"
    state = {"state_dict": CallbackContrast().state_dict()}
    torch.save({**state, "tempopt_values": {"criterion.temperature": "x"}}, path)
    with pytest.raises(UsageError, match=r"The checkpoint gives 'x' for \"criterion.temperature\""):
        load_checkpoint(CallbackContrast(), path)
    torch.save({**state, "tempopt_values": {"criterion.tempo": 0.1}}, path)
    with pytest.raises(AttachError, match=r'Unknown name "tempo" in "criterion"'):
        load_checkpoint(CallbackContrast(), path)


@pytest.mark.parametrize("path", ["criterion.temperature", "criterion.tau"])
def test_compiled_a_schedule_costs_one_more_graph_at_most(path: str) -> None:
    import torch._dynamo
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    criterion, counter = nn.ModuleDict({"criterion": CallbackCriterion()}), CompileCounter()
    compiled = torch.compile(criterion["criterion"], backend=counter)
    attachment = attach_value(criterion, path, LINEAR)
    anchors, positives = torch.randn(4, 3), torch.randn(4, 3)
    for step in range(STEPS):
        attachment.set_progress(progress(step, STEPS))
        assert torch.equal(compiled(anchors, positives), criterion["criterion"](anchors, positives))
    assert counter.frame_count == (2 if path == "criterion.temperature" else 1)


@pytest.mark.parametrize(
    ("path", "transform"), [("criterion.tau", "identity"), ("criterion.logit_scale", "log_inverse")]
)
@pytest.mark.parametrize("validate_at", ["final", "current"])
def test_validation_of_averaged_weights_is_at_the_temperature_of_the_schedule(
    path: str, transform: Any, validate_at: str
) -> None:
    class RecordTemperatures(L.Callback):
        def __init__(self) -> None:
            self.step_temperatures: list[float] = []

        def on_validation_batch_end(self, trainer: L.Trainer, module: Any, *_: Any) -> None:
            criterion = module.criterion
            tau, scale = float(criterion.tau), math.exp(-float(criterion.logit_scale.detach()))
            self.step_temperatures.append(tau if path == "criterion.tau" else scale)

    recorder, averaging = RecordTemperatures(), EMAWeightAveraging(decay=0.9)
    callback = ValueCallback(path, LINEAR, transform, validate_at=validate_at)
    model, pl_trainer = fit(averaging, callback, recorder, val_check_interval=1)
    due = expected_taus() if validate_at == "current" else [0.1] * STEPS
    assert recorder.step_temperatures[::3] == pytest.approx(due, rel=1e-6)
    column = 1 if path == "criterion.tau" else 2
    assert [taus[column] for taus in model.step_temperatures] == pytest.approx(expected_taus(), rel=1e-6)
    recorder.step_temperatures.clear()
    pl_trainer.validate(model, verbose=False)
    assert recorder.step_temperatures == pytest.approx([0.1] * 3, rel=1e-6)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"contrast.temperature_init": 0.1}, "contrast.temperature_init"),
        (None, "Give temperature parameters by name"),
        ([], "Give temperature parameters by name"),
    ],
)
def test_parameters_that_are_none_are_refused_in_words(parameters: Any, message: str) -> None:
    with pytest.raises(AttachError, match=message):
        attach_value(CallbackContrast(), "criterion.temperature", parameters)
    with pytest.raises(SpecError, match="validate_at is 'finall'; allowed are final and current"):
        ValueCallback("criterion.temperature", {}, validate_at="finall")
