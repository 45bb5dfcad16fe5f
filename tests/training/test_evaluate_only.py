"""Evaluations of a trained model: whatever wrote its weights, and what they tell of items and batches."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric
from torchmetrics.classification import BinaryF1Score

from tempopt import (
    AttachCallback,
    AttachError,
    LoadCallback,
    SpecError,
    UsageError,
    attach,
    bake,
    load_checkpoint,
)
from tempopt.attention.attach.checkpoints import load_as_trained
from tempopt.training.evaluate_only import MAX_UNITS, PerItemMetricCallback
from tempopt.training.messages import Evaluation
from tempopt.training.run import LightningRun
from tests.training.shared_trainings import quiet_trainer

VALUES = [0.0, 1.0, 3.0, 5.0, 2.0, 7.0, 4.0]
BATCHES = [[0.0, 1.0, 3.0], [5.0, 2.0, 7.0], [4.0]]
BY_BATCH = [(sum(batch) / len(batch), float(len(batch))) for batch in BATCHES]


class ScoreLogger(L.LightningModule):
    """Logs the mean of its items in some way, and may return them."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.metric = MeanMetric() if "metric" in how else BinaryF1Score() if how == "f1" else None

    def validation_step(self, batch: list[Tensor], batch_idx: int, dataloader_idx: int = 0) -> Any:
        (item_B,) = batch
        match self.how:
            case "plain" | "items" | "other items":
                self.log("score", item_B.mean())
            case "summed":
                self.log("score", item_B.sum(), reduce_fx="sum")
            case "metric called":
                assert self.metric is not None
                self.metric(item_B)
                self.log("score", self.metric)
            case "metric updated":
                assert self.metric is not None
                self.metric.update(item_B)
                self.log("score", self.metric)
            case "f1":
                assert self.metric is not None
                self.metric((item_B > 2).float(), (item_B > 3).int())
                self.log("score", self.metric)
            case "dict":
                self.log_dict({"score": item_B.mean(), "other": item_B.sum()}, batch_size=len(item_B))
        if self.how in ("items", "other items", "metric updated"):
            return {"score": item_B + (self.how == "other items")}
        return None


def unit_curves(how: str, metric: str = "score", loaders: int = 1) -> Any:
    units = PerItemMetricCallback(metric)
    trainer = quiet_trainer(units)
    data = DataLoader(TensorDataset(torch.tensor(VALUES)), batch_size=3)
    shifted_data = DataLoader(TensorDataset(torch.tensor(VALUES) + 1), batch_size=3)
    module = ScoreLogger(how)
    with units.record_metric(module):
        trainer.validate(module, [data, shifted_data][:loaders] if loaders > 1 else data, verbose=False)
    assert "log" not in module.__dict__
    units.take("validate", float(trainer.callback_metrics[metric]))
    return units.curves


def pairs(curves: Any, kind: str) -> list[tuple[float, float]]:
    values = curves[f"validate/{kind}"]
    sizes = dict(curves.get("validate/sizes", [[index, 1.0] for index, _ in values]))
    assert [index for index, _ in values] == list(range(len(values)))
    return [(value, sizes[index]) for index, value in values]


@pytest.mark.parametrize("how", ["plain", "metric called", "dict", "other items"])
def test_batches_are_told_with_their_sizes_where_no_items_are(how: str) -> None:
    assert np.array(pairs(unit_curves(how), "batches")) == pytest.approx(np.array(BY_BATCH))


@pytest.mark.parametrize("how", ["items", "metric updated"])
def test_items_that_a_validation_step_returns_under_the_metrics_name_are_told(how: str) -> None:
    curves = unit_curves(how)
    assert list(curves) == ["validate/items"]
    assert pairs(curves, "items") == [(value, 1.0) for value in VALUES]


@pytest.mark.parametrize("how", ["summed", "f1"])
def test_what_is_no_mean_of_batches_is_told_by_none(how: str) -> None:
    assert unit_curves(how) == {}


@pytest.mark.parametrize(("how", "kind"), [("plain", "batches"), ("items", "items")])
def test_of_several_dataloaders_the_one_that_the_metric_names_is_told(how: str, kind: str) -> None:
    curves = unit_curves(how, "score/dataloader_idx_1", loaders=2)
    expected = BY_BATCH if kind == "batches" else [(value, 1.0) for value in VALUES]
    assert np.array(pairs(curves, kind)) == pytest.approx(np.array(expected) + np.array([1, 0]))


def test_neighbours_are_taken_together_where_there_are_many_units() -> None:
    units = PerItemMetricCallback("score")
    units._items = [float(index % 7) for index in range(3 * MAX_UNITS - 1)]
    mean = sum(units._items) / len(units._items)
    units.take("test", mean)
    values, sizes = (dict(units.curves[name]) for name in ("test/items", "test/sizes"))
    assert len(values) == MAX_UNITS and set(sizes.values()) == {2.0, 3.0}
    assert sum(values[index] * sizes[index] for index in values) / sum(sizes.values()) == pytest.approx(mean)


# ---- runs


def test_a_run_of_a_trained_model_evaluates_both_data_and_tells_of_their_units(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    trained = LightningRun(request_for(evaluations=[Evaluation(name="test", on="test")]), listener())
    expected = trained.execute().measurements
    torch.save(trained.module.state_dict(), tmp_path / "weights.pt")
    evaluations = [Evaluation(name="validate", on="validate"), Evaluation(name="test", on="test")]
    request = request_for(weights=str(tmp_path / "weights.pt"), evaluations=evaluations)
    finished = LightningRun(request, listener()).execute()
    assert finished.measurements == pytest.approx(expected)
    for on in ("validate", "test"):
        assert finished.curves[f"{on}/batches"] == [[0, pytest.approx(finished.measurements[on])]]
        assert finished.curves[f"{on}/sizes"] == [[0, 20.0]]
    assert LightningRun(
        request_for(weights=str(tmp_path / "weights.pt")), listener()
    ).execute().measurements.keys() == {"validate"}


def test_a_trained_model_without_test_data_is_evaluated_on_the_others(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    request = request_for(data={"test": False}, evaluations=[Evaluation(name="test", on="test")])
    torch.save(LightningRun(request, listener()).module.state_dict(), tmp_path / "weights.pt")
    request = request_for(
        data={"test": False},
        weights=str(tmp_path / "weights.pt"),
        evaluations=[Evaluation(name="validate", on="validate"), Evaluation(name="test", on="test")],
    )
    finished = LightningRun(request, listener()).execute()
    assert finished.state == "complete" and finished.measurements.keys() == {"validate"}


# ---- weights


class TiedPair(nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = self.first.weight


def test_state_dicts_of_torch_and_safetensors_load_with_what_they_tie(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = TiedPair()
    torch.save(model.state_dict(), tmp_path / "pair.pt")
    # safetensors keeps one of two names that share a weight, and is known by its content
    for name in ("pair.safetensors", "pair.bin"):
        save_file({n: v for n, v in model.state_dict().items() if n != "second.weight"}, tmp_path / name)
    torch.save({"state_dict": model.state_dict(), "epoch": 3}, tmp_path / "pair.ckpt")
    for name in ("pair.pt", "pair.safetensors", "pair.bin", "pair.ckpt"):
        for load in (load_as_trained, load_checkpoint):
            loaded_model = TiedPair()
            load(loaded_model, tmp_path / name)
            assert torch.equal(loaded_model.second.weight, model.second.weight)
            assert torch.equal(loaded_model.second.bias, model.second.bias)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first.bias": None}, "it does not have: first.bias"),
        ({"third.bias": torch.ones(2)}, "it has what the model does not: third.bias"),
        ({"first.bias": torch.ones(2)}, r"other shapes: first.bias \(2, in the model 3\)"),
    ],
)
def test_weights_of_another_model_are_refused_with_what_differs(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    state = {
        name: value for name, value in {**TiedPair().state_dict(), **change}.items() if value is not None
    }
    torch.save(state, tmp_path / "other.pt")
    with pytest.raises(UsageError, match=f"of another model than TiedPair: {message}"):
        load_as_trained(TiedPair(), tmp_path / "other.pt")


def test_what_holds_no_weights_is_refused_with_what_does(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "sprung",)

    (tmp_path / "notes.ckpt").write_text("no checkpoint")
    (tmp_path / "notes.safetensors").write_text("no checkpoint")
    (tmp_path / "empty").mkdir()
    contents = {"numbers": {"epoch": 3}, "list": [torch.ones(2)], "module": {"state_dict": Trap()}}
    for name, content in contents.items():
        torch.save(content, tmp_path / f"{name}.pt")
    for name, message in (
        ("notes.ckpt", "cannot be loaded as data"),
        ("notes.safetensors", "cannot be loaded as data"),
        ("empty", "a folder without a config.json"),
        ("numbers.pt", "holds no weights by name"),
        ("list.pt", "holds no weights by name"),
        ("module.pt", "a pickle of objects, such as a whole module, can run code and is refused.*state_dict"),
        ("nowhere.pt", "There is no checkpoint"),
    ):
        with pytest.raises(UsageError, match=rf"{message}.*save_pretrained wrote"):
            load_as_trained(TiedPair(), tmp_path / name)
        with pytest.raises(UsageError, match=message):
            load_checkpoint(TiedPair(), tmp_path / name)
    assert not (tmp_path / "sprung").exists()


def test_objects_among_hyperparameters_are_left_out_and_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return shutil.copyfile, (__file__, str(tmp_path / "sprung"))

    torch.manual_seed(0)
    trained, path = TiedPair(), tmp_path / "trained.ckpt"
    hyperparameters = {"backbone": nn.Linear(2, 2), "activation": torch.relu, "trap": Trap()}
    torch.save({"state_dict": trained.state_dict(), "hyper_parameters": hyperparameters}, path)
    for load in (load_as_trained, load_checkpoint):
        model = TiedPair()
        load(model, path)
        expected = trained.state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    assert not (tmp_path / "sprung").exists()


# ---- models of transformers


class EvaluatedWriter(L.LightningModule):
    """A small GPT-2, whose input and output share their weights, on random tokens."""

    def __init__(self, width: int = 8, head: bool = False, has_second: bool = False) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        sizes: dict[str, Any] = dict(n_embd=width, n_layer=2, n_head=2, n_positions=16, vocab_size=11)
        self.model: Any = GPT2LMHeadModel(GPT2Config(**sizes))
        # a random model attends to all alike, which no temperature changes
        with torch.no_grad():
            for name, param in self.model.named_parameters():
                param.mul_(8.0 if "c_attn" in name or "wte" in name or "wpe" in name else 1.0)
        if head:
            self.head = nn.Linear(2, 2)
        if has_second:
            self.second: Any = GPT2LMHeadModel(GPT2Config(**sizes))

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        tokens_BT = batch[0]
        self.log("val_loss", self.model(tokens_BT, labels=tokens_BT).loss)


TOKENS = torch.randint(11, (8, 12), generator=torch.Generator().manual_seed(0))
DATA = DataLoader(TensorDataset(TOKENS), batch_size=4)


def loss(model: L.LightningModule, *callbacks: L.Callback) -> float:
    return quiet_trainer(*callbacks).validate(model, DATA, verbose=False)[0]["val_loss"]


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> EvaluatedWriter:
    pytest.importorskip("transformers", reason="NOT TESTED: models of transformers.")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    model = EvaluatedWriter()
    model.model.save_pretrained("folder")
    return model


def test_a_folder_of_save_pretrained_goes_into_the_model_within(writer: EvaluatedWriter) -> None:
    for load in (load_as_trained, load_checkpoint):
        loaded_writer = EvaluatedWriter()
        assert loss(loaded_writer) != loss(writer)
        load(loaded_writer, "folder")
        assert loss(loaded_writer) == loss(writer)
        # tied weights stay tied
        assert loaded_writer.model.lm_head.weight is loaded_writer.model.transformer.wte.weight


def test_a_folder_of_another_model_is_refused_in_words(writer: EvaluatedWriter) -> None:
    with pytest.raises(
        UsageError, match=r"folder is of another model than GPT2LMHeadModel: other shapes: .*8"
    ):
        load_as_trained(EvaluatedWriter(width=16), "folder")
    with pytest.raises(UsageError, match="TiedPair has no model of transformers to load it into"):
        load_as_trained(TiedPair(), "folder")
    with pytest.raises(UsageError, match=r"several models of transformers \(model, second\)"):
        load_as_trained(EvaluatedWriter(has_second=True), "folder")
    (Path("folder") / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="folder cannot be loaded as GPT2LMHeadModel"):
        load_as_trained(EvaluatedWriter(), "folder")


def test_a_folder_that_leaves_a_part_of_the_module_random_is_refused(writer: EvaluatedWriter) -> None:
    with pytest.raises(
        UsageError, match=r"stay as they were initialised: head.weight, head.bias. Give a state"
    ):
        load_as_trained(EvaluatedWriter(head=True), "folder")


def test_a_folder_with_a_temperature_in_its_weights_is_evaluated_at_no_other(writer: EvaluatedWriter) -> None:
    attach(writer, {"temperature_init": 2.0}, example=None)
    at_two = loss(writer)
    bake(writer)
    writer.model.save_pretrained("folder")
    with pytest.raises(AttachError, match=r"folder have a temperature in them already"):
        load_as_trained(EvaluatedWriter(), "folder")
    served = EvaluatedWriter()
    load_checkpoint(served, "folder")
    assert loss(served) == pytest.approx(at_two)
    with pytest.raises(AttachError, match="has the temperature 2 in its weights already"):
        attach(served, {"temperature_init": 2.0}, example=None)


# ---- the callback


def test_the_callback_loads_weights_before_a_temperature_is_attached(writer: EvaluatedWriter) -> None:
    plan = {"temperature_init": 3.0}
    torch.save(writer.state_dict(), "weights.pt")
    at_one, at_three = loss(writer), loss(writer, AttachCallback(plan))
    assert at_one != at_three
    for path in ("folder", "weights.pt"):
        assert loss(EvaluatedWriter(), LoadCallback(path)) == at_one
        assert loss(EvaluatedWriter(), LoadCallback(path), AttachCallback(plan)) == at_three


def test_weights_of_another_model_are_refused(request_for: Any, listener: Any, tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "other.pt")
    with pytest.raises(SpecError, match="--weights: .*is of another model than Toy"):
        LightningRun(request_for(weights=str(tmp_path / "other.pt")), listener()).execute()
