"""A Trainer with AttachCallback trains the plan, and its checkpoints are of the model that it validated."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from tempopt import AttachCallback, AttachError, SpecError, attach, bake, load_checkpoint
from tempopt.training.callbacks import TemperatureCallback
from tests.training.shared_trainings import SaveAt, assert_same_state, quiet_trainer

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
PLAN = {"schedule": "linear", "temperature_init": 4.0, "temperature_final": 0.3}
TRAINING_TESTS = Path(__file__).parent


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(TRAINING_TESTS))
    monkeypatch.chdir(tmp_path)
    import toy_modules

    yield toy_modules
    sys.modules.pop("toy_modules", None)


@pytest.fixture
def fit_stock(toys: Any) -> Callable[..., tuple[Any, L.Trainer]]:
    """Return a function that trains a stock transformer with callbacks, and returns it with its Trainer."""

    def fit(*callbacks: Any, model: Any = None, steps: int = 12, **options: Any) -> tuple[Any, L.Trainer]:
        torch.manual_seed(0)
        model = toys.Stock() if model is None else model
        pl_trainer = quiet_trainer(*callbacks, max_steps=steps)
        pl_trainer.fit(model, datamodule=Data(), **options)
        return model, pl_trainer

    return fit


class Data(L.LightningDataModule):
    """Items without randomness, so that a run is what its first weights and its plan make of it."""

    def items(self, number: int) -> Any:
        items = torch.randn(number, 4, 8, generator=torch.Generator().manual_seed(number))
        return torch.utils.data.TensorDataset(3 * items, items[:, 0, :3].argmax(-1))

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.items(60), batch_size=10)

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.items(20), batch_size=20)


def value(model: Any, *callbacks: Any, **options: Any) -> float:
    (logged,) = quiet_trainer(*callbacks).validate(model, datamodule=Data(), verbose=False, **options)
    return float(logged["val_loss"])


def test_it_trains_what_an_attachment_that_is_moved_by_hand_trains(fit_stock: Any, toys: Any) -> None:
    by_callback, first = fit_stock(AttachCallback(PLAN))
    torch.manual_seed(0)
    model = toys.Stock()
    by_hand, second = fit_stock(TemperatureCallback(tempered=attach(model, PLAN)), model=model)
    plain, _ = fit_stock()
    assert first.callback_metrics == second.callback_metrics
    assert_same_state(by_callback, by_hand)
    assert not torch.equal(by_callback.head.weight, plain.head.weight)


@pytest.mark.parametrize("weights_only", [False, True])
def test_a_plain_module_that_loads_the_checkpoint_is_the_one_that_was_validated(
    fit_stock: Any, toys: Any, weights_only: bool
) -> None:
    callback = AttachCallback(PLAN)
    model, pl_trainer = fit_stock(callback)
    pl_trainer.save_checkpoint("trained.ckpt", weights_only=weights_only)
    validated = value(model, callback)
    assert validated == float(pl_trainer.callback_metrics["val_loss"])
    loaded = toys.Stock.load_from_checkpoint("trained.ckpt", weights_only=True)
    assert value(loaded) == validated
    # at temperature 1 it is another
    assert value(loaded) != value(at_one(toys, model))
    with pytest.raises(AttachError, match=r"has the temperature 0.3 in its weights already"):
        attach(loaded, PLAN)
    # with the callback, by its class or by another like it, it is the same too
    for eval_callback in (callback, AttachCallback(PLAN)):
        options = {"ckpt_path": "trained.ckpt", "weights_only": True}
        assert value(toys.Stock(), eval_callback, **options) == validated


def at_one(toys: Any, model: Any) -> Any:
    plain = toys.Stock()
    plain.load_state_dict(model.state_dict())
    return plain


def test_training_goes_on_from_the_weights_as_they_were(fit_stock: Any, toys: Any) -> None:
    reference_model, _ = fit_stock(AttachCallback(PLAN), SaveAt(6, "half.ckpt"))
    resumed_model, pl_trainer = fit_stock(AttachCallback(PLAN), ckpt_path="half.ckpt", weights_only=True)
    assert pl_trainer.global_step == 12
    assert_same_state(resumed_model, reference_model)


def test_under_the_current_temperature_checkpoints_hold_that(fit_stock: Any, toys: Any) -> None:
    fit_stock(AttachCallback(PLAN, validate_at="current"), SaveAt(6, "half.ckpt", weights_only=True))
    loaded = toys.Stock.load_from_checkpoint("half.ckpt")
    # linear from 4 to 0.3: the temperature of the sixth of twelve steps
    with pytest.raises(AttachError, match=f"has the temperature {4.0 - 3.7 * 5 / 11:.4g} in its weights"):
        attach(loaded, PLAN)


def test_a_model_that_is_evaluated_at_another_temperature_is_saved_with_that(
    fit_stock: Any, toys: Any
) -> None:
    callback = AttachCallback(PLAN, at_inference={"temperature_init": 0.125})
    model, pl_trainer = fit_stock(callback)
    during = float(pl_trainer.callback_metrics["val_loss"])
    plain, _ = fit_stock(AttachCallback(PLAN))
    assert_same_state(model, plain)
    assert callback.attachment is not None and callback.attachment.temperatures == (0.125, 0.125)
    validated = value(model, callback)
    assert validated != during
    pl_trainer.save_checkpoint("trained.ckpt")
    assert value(toys.Stock.load_from_checkpoint("trained.ckpt", weights_only=True)) == validated


def test_after_baking_the_model_is_validated_as_it_is_and_not_trained_on(fit_stock: Any, toys: Any) -> None:
    callback = AttachCallback(PLAN)
    model, pl_trainer = fit_stock(callback)
    validated = float(pl_trainer.callback_metrics["val_loss"])
    assert bake(model) == pytest.approx(
        dict.fromkeys(["encoder.layers.0.self_attn", "encoder.layers.1.self_attn"], 0.3)
    )
    assert value(model, callback) == validated
    pl_trainer.save_checkpoint("trained.ckpt")
    assert value(toys.Stock.load_from_checkpoint("trained.ckpt", weights_only=True)) == validated
    with pytest.raises(AttachError, match="baked into its weights, so training would continue without it"):
        quiet_trainer(callback, max_steps=24).fit(model, datamodule=Data())


def test_baked_weights_alone_are_not_evaluated_under_another_plan(fit_stock: Any, toys: Any) -> None:
    _, pl_trainer = fit_stock(AttachCallback(PLAN))
    pl_trainer.save_checkpoint("trained.ckpt", weights_only=True)
    with pytest.raises(AttachError, match=r"has the temperatures \[0.3\] in its weights.*is to set \[0.5\]"):
        value(toys.Stock(), AttachCallback({"temperature_init": 0.5}), ckpt_path="trained.ckpt")


def test_weights_of_a_training_at_temperature_one_are_evaluated_under_the_plan(
    fit_stock: Any, toys: Any
) -> None:
    model, pl_trainer = fit_stock()
    pl_trainer.save_checkpoint("plain.ckpt")
    at_half = AttachCallback({"temperature_init": 0.5})
    val_loss = value(toys.Stock(), at_half, ckpt_path="plain.ckpt", weights_only=True)
    attach(model, {"temperature_init": 0.5})
    assert val_loss == value(model)


def test_a_tempered_module_and_one_that_is_tempered_already_are_refused(toys: Any) -> None:
    with pytest.raises(SpecError, match="is a TemperedModule.*Take AttachCallback out"):
        value(toys.Toy(), AttachCallback(PLAN))
    model = toys.Stock()
    attach(model, PLAN)
    with pytest.raises(AttachError, match="has a temperature attached already"):
        value(model, AttachCallback(PLAN))


def test_a_study_evaluates_no_weights_that_have_a_temperature_in_them(
    fit_stock: Any, request_for: Any, listener: Any
) -> None:
    from tempopt.training.run import LightningRun

    _, pl_trainer = fit_stock(AttachCallback(PLAN))
    pl_trainer.save_checkpoint("trained.ckpt", weights_only=True)
    run = LightningRun(request_for("Stock", attach={"layers": "auto"}, weights="trained.ckpt"), listener())
    with pytest.raises(AttachError, match="have a temperature in them already"):
        run.execute()


# ---- entropy control


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
    at_end = value(model, callback)

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
    assert value(plain) == pytest.approx(at_end, rel=1e-4)


def test_a_schedule_beside_control_is_refused() -> None:
    with pytest.raises(SpecError, match='schedule="linear" has no effect with entropy_control="contrast"'):
        AttachCallback({**CONTRAST, "schedule": "linear", "temperature_final": 0.5})


def test_attaching_on_a_batch_leaves_averages_of_weights_and_buffers_as_they_were(toys: Any) -> None:
    class DinoStock(toys.WrittenOutStock):  # type: ignore[misc]
        """Training as of DINO, in the form of lightly."""

        def __init__(self) -> None:
            super().__init__()
            self.query, self.teacher = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8).requires_grad_(False)
            self.register_buffer("center", torch.zeros(8))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            for average, weight in zip(self.teacher.parameters(), self.query.parameters(), strict=True):
                average.data = 0.5 * average.data + 0.5 * weight.data
            taught = self.teacher(batch[0])
            self.center.lerp_(taught.mean((0, 1)), 0.1)
            distance = (self.query(batch[0]) - taught + self.center).square().mean()
            return super().training_step(batch, batch_idx) + distance

    model = DinoStock()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    callback = AttachCallback(PLAN)
    quiet_trainer(callback, max_steps=0).fit(model, Data())
    assert callback.attachment is not None and callback.attachment.layers == ["encoder.0", "encoder.1"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_softmax_that_is_written_out_is_found_on_the_first_batch(toys: Any, fit_stock: Any) -> None:
    torch.manual_seed(0)
    plain, _ = fit_stock(model=toys.WrittenOutStock())
    torch.manual_seed(0)
    callback = AttachCallback({})
    at_one, _ = fit_stock(callback, model=toys.WrittenOutStock())
    assert callback.attachment.layers == ["encoder.0", "encoder.1"]
    callback.attachment.detach()
    assert_same_state(at_one, plain)
    torch.manual_seed(0)
    tempered, _ = fit_stock(AttachCallback({"temperature_init": 0.25}), model=toys.WrittenOutStock())
    assert not torch.equal(tempered.head.weight, plain.head.weight)


# ---- what weights cannot hold


@pytest.fixture
def hugging_class(toys: Any) -> Any:
    pytest.importorskip("transformers", reason="NOT TESTED: models of transformers.")
    import hugging_modules

    yield hugging_modules.HuggingFaceModule
    sys.modules.pop("hugging_modules", None)


BY_LENGTH = {**PLAN, "length_scaling": "log_n", "n0": 4.0}


@pytest.fixture
def by_length(hugging_class: Any) -> tuple[Any, float]:
    """Return a model that was trained with length scaling, and its loss; its checkpoint is trained.ckpt."""
    callback = AttachCallback(BY_LENGTH)
    torch.manual_seed(0)
    model, pl_trainer = hugging_class(), quiet_trainer(callback, max_steps=4)
    loaders = [torch.utils.data.DataLoader(range(4)), torch.utils.data.DataLoader(range(1))]
    with pytest.warns(
        UserWarning, match=r"beside the weights. Load them with tempopt.load_checkpoint.*log_n"
    ):
        pl_trainer.fit(model, *loaders)
    pl_trainer.save_checkpoint("trained.ckpt")
    return model, loss(model)


def loss(model: Any) -> float:
    with torch.no_grad():
        tokens = torch.randint(0, 6, (4, 8), generator=torch.Generator().manual_seed(0))
        return float(model.eval().model(tokens)[0][..., :3].sum())


def test_load_checkpoint_attaches_what_weights_cannot_hold(hugging_class: Any, by_length: Any) -> None:
    model = hugging_class()
    attachment = load_checkpoint(model, "trained.ckpt")
    assert attachment is not None and attachment.temperatures == (0.3, 0.3)
    assert loss(model) == by_length[1]
    attachment.detach()
    assert loss(model) != by_length[1]


def test_a_checkpoint_that_would_lose_its_temperature_is_not_loaded(
    hugging_class: Any, by_length: Any
) -> None:
    with pytest.raises(AttachError, match=r"at temperature 1. Load them with tempopt.load_checkpoint"):
        hugging_class.load_from_checkpoint("trained.ckpt", weights_only=True)
    # nor where tempopt is not there to notice
    state = torch.load("trained.ckpt", weights_only=True)["state_dict"]
    with pytest.raises(RuntimeError, match=r"Unexpected key.*not in these weights.*tempopt.load_checkpoint"):
        torch.nn.Module.load_state_dict.__wrapped__(hugging_class(), state)  # type: ignore[attr-defined]
    with pytest.raises(AttachError):
        hugging_class().load_state_dict(torch.load("trained.ckpt", weights_only=True)["state_dict"])


def test_training_goes_on_from_a_checkpoint_with_temperatures_beside_it(
    hugging_class: Any, by_length: Any
) -> None:
    callback = AttachCallback(BY_LENGTH)
    model, pl_trainer = hugging_class(), quiet_trainer(callback, max_steps=8)
    loaders = [torch.utils.data.DataLoader(range(4)), torch.utils.data.DataLoader(range(1))]
    with pytest.warns(UserWarning, match="beside the weights"):
        pl_trainer.fit(model, *loaders, ckpt_path="trained.ckpt", weights_only=True)
    assert pl_trainer.global_step == 8


def test_no_code_is_imported_that_a_checkpoint_names(
    hugging_class: Any, by_length: Any, tmp_path: Path
) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('sprung')")
    content = torch.load("trained.ckpt", weights_only=True)
    content["tempopt"]["parameters"] |= {"schedule": "trap:Schedule", "temperature_init": 9.0}
    torch.save(content, "trained.ckpt")
    model = hugging_class()
    load_checkpoint(model, "trained.ckpt")
    assert loss(model) == by_length[1]


def test_the_first_batch_tests_the_temperature_and_leaves_no_trace(fit_stock: Any, toys: Any) -> None:
    class Counting(toys.Stock):
        def __init__(self) -> None:
            super().__init__()
            self.outputs: list[Any] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.outputs.append(loss.detach())
            return loss

    callback = AttachCallback(PLAN)
    torch.manual_seed(0)
    model, _ = fit_stock(callback, model=Counting(), steps=2)
    assert callback.attachment is not None and callback.attachment.tested
    assert len(model.outputs) == 2


def test_a_first_batch_that_tells_nothing_is_reported(fit_stock: Any, toys: Any) -> None:
    class Drawing(toys.Stock):
        generator = torch.Generator().manual_seed(0)

        def loss(self, batch: Any) -> Any:
            items = batch[0] + torch.randn(batch[0].shape, generator=self.generator)
            return super().loss((items, batch[1]))

    callback = AttachCallback(PLAN)
    with pytest.warns(UserWarning, match="not tested on the first batch.*different outputs"):
        fit_stock(callback, model=Drawing(), steps=1)
    assert not callback.attachment.tested  # type: ignore[union-attr]


def test_attention_of_a_training_step_outside_of_modules_is_refused_though_nothing_is_tested(
    fit_stock: Any, toys: Any
) -> None:
    class Attending(toys.Stock):
        generator = torch.Generator().manual_seed(0)

        def loss(self, batch: Any) -> Any:
            items = torch.nn.functional.scaled_dot_product_attention(batch[0], batch[0], batch[0])
            items = items + torch.randn(items.shape, generator=self.generator)
            return super().loss((items, batch[1]))

    with pytest.raises(AttachError, match="outside of the forward of every module"):
        fit_stock(AttachCallback(PLAN), model=Attending(), steps=1)
