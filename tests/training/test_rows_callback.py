"""A Trainer with RowsCallback divides outputs of projections, and saves the model that it validated."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from tempopt import AttachCallback, AttachError, RowsCallback, attach_rows, bake, load_checkpoint

STEPS = 12
GATE = {"schedule": "linear", "temperature_final": 0.25}
HEAD = {"schedule": "linear", "temperature_final": 3.0}
ATTENTION = {"schedule": "linear", "temperature_init": 4.0, "temperature_final": 0.3}
RESUME = {"weights_only": True}
HERE = Path(__file__).parent


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.chdir(tmp_path)
    import routed_modules

    yield routed_modules
    sys.modules.pop("routed_modules", None)


class Data(L.LightningDataModule):
    """Items without randomness of their own."""

    def items(self, number: int) -> Any:
        items = torch.randn(number, 4, 8, generator=torch.Generator().manual_seed(number))
        return torch.utils.data.TensorDataset(3 * items, items[:, 0, :3].argmax(-1))

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.items(60), batch_size=10)

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.items(20), batch_size=20)


class Draw(L.Callback):
    """Seeds each step by its number, so that a training that goes on draws what a whole one does."""

    def on_train_batch_start(self, trainer: L.Trainer, *given: Any) -> None:
        torch.manual_seed(trainer.global_step)


class Saving(L.Callback):
    """Saves a checkpoint in the middle of the training."""

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == STEPS // 2:
            trainer.save_checkpoint("half.ckpt")


def trainer(*callbacks: Any, **more: Any) -> L.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    return L.Trainer(
        callbacks=[*callbacks, Draw()],
        logger=False,
        accelerator="cpu",
        enable_checkpointing=False,
        **quiet,
        **more,
    )


def fitted(model: Callable[[], Any], *callbacks: Any, **more: Any) -> tuple[Any, L.Trainer]:
    """Train a new model with callbacks, and return it with its Trainer."""
    torch.manual_seed(0)
    found, made = model(), trainer(*callbacks, max_steps=STEPS)
    made.fit(found, datamodule=Data(), **more)
    return found, made


def value(model: Any, *callbacks: Any, **more: Any) -> float:
    (logged,) = trainer(*callbacks).validate(model, datamodule=Data(), verbose=False, **more)
    return float(logged["val_loss"])


def both() -> list[Any]:
    return [RowsCallback("mixed.gate", GATE), RowsCallback(["head"], HEAD)]


def with_attention(*, first: bool = True) -> list[Any]:
    """Return the callbacks of all three temperatures of a module with attention."""
    attention = AttachCallback(ATTENTION, layers=["q_proj"])
    return [attention, *both()] if first else [*both(), attention]


def assert_same(one: Any, other: Any) -> None:
    theirs = other.state_dict()
    for name, each in one.state_dict().items():
        assert torch.equal(each, theirs[name]), name


def test_it_trains_what_weights_that_are_divided_by_hand_train(modules: Any) -> None:
    model, made = fitted(modules.Routed, *both())
    by_hand, other = fitted(lambda: modules.ByHand(0.25, 3.0, STEPS))
    assert made.callback_metrics == other.callback_metrics
    assert_same(model, by_hand)
    expected = [1.0 + (0.25 - 1.0) * step / (STEPS - 1) for step in range(STEPS)]
    assert [gate for gate, _ in model.seen] == pytest.approx(expected, rel=1e-6)
    assert model.in_force == pytest.approx((0.25, 3.0))


@pytest.mark.parametrize("parameters", [{}, {"schedule": "cosine"}])
def test_at_one_training_is_bit_for_bit_that_without_it(modules: Any, parameters: dict[str, Any]) -> None:
    model, made = fitted(modules.Routed, RowsCallback("*", parameters))
    plain, other = fitted(modules.Routed)
    assert made.callback_metrics == other.callback_metrics
    assert_same(model, plain)
    made.save_checkpoint("trained.ckpt", weights_only=True)
    assert_same(modules.Routed.load_from_checkpoint("trained.ckpt"), plain)


def test_validation_is_at_the_last_temperature_or_at_the_current_one(modules: Any) -> None:
    model, _ = fitted(modules.Routed, RowsCallback("head", HEAD))
    assert [head for _, head in model.validated] == pytest.approx([3.0, 3.0])
    model, _ = fitted(modules.Routed, RowsCallback("head", HEAD, validate_at="current"), Saving())
    reached = [1.0 + 2.0 * step / (STEPS - 1) for step in (5, 11)]
    assert [head for _, head in model.validated] == pytest.approx(reached)
    loaded = modules.Routed.load_from_checkpoint("half.ckpt", weights_only=True)
    with pytest.raises(AttachError, match=f"has the temperature {reached[0]:.4g} in its weights"):
        attach_rows(loaded, "head", {})


@pytest.mark.parametrize("weights_only", [False, True])
def test_a_plain_module_that_loads_the_checkpoint_is_the_one_that_was_validated(
    modules: Any, weights_only: bool
) -> None:
    callbacks = both()
    model, made = fitted(modules.Routed, *callbacks)
    made.save_checkpoint("trained.ckpt", weights_only=weights_only)
    validated = float(made.callback_metrics["val_loss"])
    assert value(model, *callbacks) == validated
    loaded = modules.Routed.load_from_checkpoint("trained.ckpt", weights_only=True)
    assert type(loaded.head) is torch.nn.Linear
    assert value(loaded) == validated
    with pytest.raises(AttachError, match=r'"mixed.gate" has the temperature 0.25 in its weights already'):
        attach_rows(loaded, "mixed.gate", GATE)
    # as a process without tempopt loads it
    state, bare = torch.load("trained.ckpt", weights_only=True)["state_dict"], modules.Routed()
    torch.nn.Module.load_state_dict.__wrapped__(bare, state)  # type: ignore[attr-defined]
    assert value(bare) == validated
    assert torch.equal(state["head.bias"], model.state_dict()["head.bias"] * torch.tensor(1 / 3))
    other = modules.Routed()
    assert load_checkpoint(other, "trained.ckpt") is None
    assert value(other) == validated
    # with the callbacks, by these or by others like them, it is the same too
    for again in (callbacks, both()):
        assert value(modules.Routed(), *again, ckpt_path="trained.ckpt", **RESUME) == validated


def test_a_training_that_is_resumed_in_mid_schedule_ends_with_the_same_bits(modules: Any) -> None:
    whole, _ = fitted(modules.Routed, *both(), Saving())
    resumed, made = fitted(modules.Routed, *both(), ckpt_path="half.ckpt", **RESUME)
    assert made.global_step == STEPS and len(resumed.seen) == STEPS // 2
    assert resumed.seen == whole.seen[STEPS // 2 :]
    assert_same(whole, resumed)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("weights_only", [False, True])
def test_attention_and_rows_are_in_the_weights_of_one_checkpoint(
    modules: Any, first: bool, weights_only: bool
) -> None:
    _, made = fitted(modules.Attending, *with_attention(first=first), Saving())
    made.save_checkpoint("trained.ckpt", weights_only=weights_only)
    validated = float(made.callback_metrics["val_loss"])
    loaded = modules.Attending.load_from_checkpoint("trained.ckpt", weights_only=True)
    assert value(loaded) == validated
    for order in (True, False):
        callbacks = with_attention(first=order)
        found = modules.Attending()
        assert value(found, *callbacks, ckpt_path="trained.ckpt", **RESUME) == validated
    # what was left attached is the rest: here nothing of a file that only weights are in
    attached = [each.attachment.attached for each in callbacks]
    assert attached == [not weights_only] * 3


@pytest.mark.parametrize("first", [True, False])
def test_attention_and_rows_are_resumed_together(modules: Any, first: bool) -> None:
    whole, _ = fitted(modules.Attending, *with_attention(first=first), Saving())
    resumed, _ = fitted(modules.Attending, *with_attention(first=not first), ckpt_path="half.ckpt", **RESUME)
    assert_same(whole, resumed)
    plain, _ = fitted(modules.Attending, *both())
    assert not torch.equal(plain.head.weight, whole.head.weight)


def test_one_of_two_temperatures_in_the_weights_leaves_the_other_attached(modules: Any) -> None:
    at_one = [RowsCallback("mixed.gate", GATE), RowsCallback("head", {**HEAD, "temperature_final": 1.0})]
    _, made = fitted(modules.Routed, *at_one)
    made.save_checkpoint("trained.ckpt", weights_only=True)
    again = [RowsCallback("mixed.gate", GATE), RowsCallback("head", {"temperature_final": 1.0})]
    found = value(modules.Routed(), *again, ckpt_path="trained.ckpt", **RESUME)
    assert found == float(made.callback_metrics["val_loss"])
    assert [each.attachment is not None and each.attachment.attached for each in again] == [False, True]


def test_weights_alone_are_not_evaluated_at_another_temperature_than_they_have(modules: Any) -> None:
    _, made = fitted(modules.Routed, RowsCallback("head", HEAD))
    made.save_checkpoint("trained.ckpt", weights_only=True)
    other = RowsCallback("head", {"temperature_init": 2.0})
    with pytest.raises(AttachError, match=r"\[3.0\] in its weights.*RowsCallback is to set \[2.0\]"):
        value(modules.Routed(), other, ckpt_path="trained.ckpt", **RESUME)
    # of a training at temperature 1 they are
    model, made = fitted(modules.Routed)
    made.save_checkpoint("plain.ckpt")
    found = value(modules.Routed(), RowsCallback("head", HEAD), ckpt_path="plain.ckpt", **RESUME)
    attach_rows(model, "head", {"temperature_init": 3.0})
    assert found == value(model)


def test_after_baking_the_model_is_validated_as_it_is_and_not_trained_on(modules: Any) -> None:
    callbacks = both()
    model, made = fitted(modules.Routed, *callbacks)
    assert bake(model) == pytest.approx({"mixed.gate": 0.25, "head": 3.0})
    assert value(model, *callbacks) == float(made.callback_metrics["val_loss"])
    with pytest.raises(AttachError, match="written into its weights, so training would go on without it"):
        trainer(*callbacks, max_steps=24).fit(model, datamodule=Data())


@pytest.mark.parametrize("weights_only", [False, True])
def test_where_the_weights_in_a_checkpoint_cannot_hold_it_the_temperature_is_beside_them(
    modules: Any, monkeypatch: pytest.MonkeyPatch, weights_only: bool
) -> None:
    # as with weights that are dealt among ranks
    monkeypatch.setattr("tempopt.training.weights_callback.put_in_weights", lambda *given: False)
    _, made = fitted(modules.Attending, *with_attention(), Saving())
    made.save_checkpoint("trained.ckpt", weights_only=weights_only)
    validated = float(made.callback_metrics["val_loss"])
    with pytest.raises(AttachError, match=r"that are not in them.*tempopt.load_checkpoint"):
        modules.Attending.load_from_checkpoint("trained.ckpt", weights_only=True)
    loaded = modules.Attending()
    attachment = load_checkpoint(loaded, "trained.ckpt")
    assert attachment is not None and attachment.temperatures == (0.3,)
    assert value(loaded) == validated and type(loaded.head) is torch.nn.Linear
    with pytest.raises(AttachError, match=r'"head" has the temperature 3 in its weights'):
        attach_rows(loaded, "head", HEAD)
    assert value(modules.Attending(), *with_attention(), ckpt_path="trained.ckpt", **RESUME) == validated
    resumed, _ = fitted(modules.Attending, *with_attention(), ckpt_path="half.ckpt", **RESUME)
    whole, _ = fitted(modules.Attending, *with_attention())
    assert_same(resumed, whole)


def test_a_model_that_is_evaluated_at_another_temperature_is_saved_with_that(modules: Any) -> None:
    callback = RowsCallback("head", HEAD, at_inference=0.5)
    model, made = fitted(modules.Routed, callback, Saving())
    plain, other = fitted(modules.Routed, RowsCallback("head", HEAD))
    assert_same(model, plain)
    assert made.callback_metrics == other.callback_metrics
    validated = value(model, callback)
    assert validated != float(made.callback_metrics["val_loss"])
    assert model.in_force[1] == pytest.approx(0.5)
    made.save_checkpoint("trained.ckpt", weights_only=True)
    assert value(modules.Routed.load_from_checkpoint("trained.ckpt")) == validated
    resumed, _ = fitted(
        modules.Routed, RowsCallback("head", HEAD, at_inference=0.5), ckpt_path="half.ckpt", **RESUME
    )
    assert_same(resumed, model)


def test_a_module_without_the_projection_is_refused_before_it_trains(modules: Any) -> None:
    with pytest.raises(AttachError, match=r'Pattern "classifier" in rows matches no module'):
        fitted(modules.Routed, RowsCallback("classifier", HEAD))
    with pytest.raises(AttachError, match=r'"head" has a temperature of attach_rows already'):
        fitted(modules.Routed, *both(), RowsCallback("head", HEAD))


def test_optimizers_find_parameters_by_attributes_and_not_their_products(modules: Any) -> None:
    def made() -> Any:
        model = modules.Routed()

        def groups() -> Any:
            head = [each for each in model.parameters() if each is model.head.weight]
            rest = [each for each in model.parameters() if each is not model.head.weight]
            return torch.optim.SGD([{"params": rest}, {"params": head, "lr": 0.5}], lr=0.01)

        model.configure_optimizers = groups
        return model

    model, trainer_of_it = fitted(made, RowsCallback("head", {}))
    plain, _ = fitted(made)
    sizes = [len(group["params"]) for group in trainer_of_it.optimizers[0].param_groups]
    assert sizes[1] == 1 and sum(sizes) == len(list(plain.parameters()))
    assert_same(model, plain)


@pytest.mark.parametrize("way", ["in place", "data"])
def test_a_write_to_weights_that_would_be_lost_ends_the_training(modules: Any, way: str) -> None:
    class Normalising(L.Callback):
        """Normalises the rows of the head before each step, as recipes with prototypes do."""

        def on_train_batch_start(self, trainer: L.Trainer, module: Any, *_: Any) -> None:
            weight = module.head.weight
            with torch.no_grad():
                (weight.data if way == "data" else weight).copy_(
                    torch.nn.functional.normalize(weight.detach(), dim=1)
                )

    with pytest.raises(AttachError, match='"head.weight" was changed in place, but what is read there'):
        fitted(modules.Routed, RowsCallback("head", {}), Normalising())
    fitted(modules.Routed, Normalising())
