"""A TemperedModule in a plain Trainer: nothing of tempopt but the class itself."""

from __future__ import annotations

import inspect
import itertools
import math
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tempopt import TemperedModule
from tempopt.attention.functional.attention import tempered_attention
from tempopt.attention.functional.entropy import attention_entropy
from tempopt.attention.modules.learned import HeadTemperature, QueryKeyNorm
from tempopt.errors import SpecError
from tempopt.spec.program import Program
from tempopt.temperature import NEUTRAL, NORMALISERS, TemperatureParameters
from tempopt.training.build import prepare
from tests.training.shared_trainings import assert_same_state, quiet_trainer


class Small(TemperedModule):
    """Two layers of attention that note the temperature of every forward; its own hooks call no super."""

    def __init__(self, width: int = 8, **temperature: Any) -> None:
        super().__init__(num_layers=2, **temperature)
        self.q_proj = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.head = nn.Linear(width, 1)
        self.taus_by_stage: dict[str, list[list[float]]] = {"train": [], "eval": []}

    def forward(self, x_BLD: Tensor) -> Tensor:
        stage = "train" if self.training else "eval"
        self.taus_by_stage[stage].append((1 / self.inverse_temperature).tolist())
        for layer, project in enumerate(self.q_proj):
            q_B1LD = project(x_BLD)[:, None]
            x_BLD = x_BLD + self.attend(q_B1LD, x_BLD[:, None], x_BLD[:, None], layer=layer)[:, 0]
        return self.head(x_BLD.mean(1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self(batch[0]).pow(2).mean()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        pass

    def on_validation_start(self) -> None:
        pass

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self(batch[0]).pow(2).mean())

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader(size: int = 40) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(size, 6, 8, generator=torch.Generator().manual_seed(0))), 4)


def trainer(**options: Any) -> L.Trainer:
    return quiet_trainer(**{"max_epochs": 1, "limit_val_batches": 0, **options})


HOT = {"temperature_init": 4.0, "temperature_final": 0.5, "schedule": "linear"}


def test_the_temperature_follows_its_plan_from_the_first_step_to_the_last() -> None:
    module = Small(**HOT, layer_pattern="linear", layer_ratio=4.0)
    trainer().fit(module, loader(), loader(4))
    expected = [[tau / 2, tau * 2] for tau in (4.0 - 3.5 * step / 9 for step in range(10))]
    torch.testing.assert_close(torch.tensor(module.taus_by_stage["train"]), torch.tensor(expected))


@pytest.mark.parametrize("validate_at", ["final", "current"])
def test_validation_in_the_middle_of_training_leaves_training_as_it_was(validate_at: str) -> None:
    torch.manual_seed(0)
    watched = Small(**HOT, validate_at=validate_at)
    trainer(val_check_interval=3, num_sanity_val_steps=1, limit_val_batches=1).fit(
        watched, loader(), loader(4)
    )
    torch.manual_seed(0)
    alone = Small(**HOT)
    trainer().fit(alone, loader(), loader(4))
    assert watched.taus_by_stage["train"] == alone.taus_by_stage["train"]
    assert_same_state(watched, alone)
    during = [round(taus[0], 4) for taus in watched.taus_by_stage["eval"][1:]]
    assert during == ([0.5] * 3 if validate_at == "final" else [round(4 - 3.5 * s / 9, 4) for s in (2, 5, 8)])


def test_testing_and_predicting_run_at_the_final_temperature() -> None:
    module = Small(**HOT)
    trainer().test(module, loader(4), verbose=False)
    assert module.taus_by_stage["eval"] == [[0.5, 0.5]]


def test_a_reloaded_checkpoint_has_the_hyperparameters_and_the_temperature_it_was_saved_with(
    tmp_path: Path,
) -> None:
    module = Small(width=8, **HOT)
    fitting = trainer(max_steps=6, max_epochs=-1)
    fitting.fit(module, loader(), loader(4))
    fitting.save_checkpoint(tmp_path / "end.ckpt")
    loaded_module = Small.load_from_checkpoint(tmp_path / "end.ckpt", weights_only=True)
    assert dict(loaded_module.hparams) == dict(module.hparams)
    assert loaded_module.hparams["schedule"] == "linear"
    x = torch.randn(2, 6, 8)
    assert torch.equal(loaded_module.eval()(x), module.eval()(x))
    assert loaded_module.taus_by_stage["eval"] == [[0.5, 0.5]]


def test_a_positive_lambda_raises_the_entropy_and_a_negative_one_lowers_it() -> None:
    def entropy_after(entropy_lambda: float) -> float:
        torch.manual_seed(0)
        module = Small(entropy_lambda=entropy_lambda, length_scaling="log_n")
        with torch.no_grad():
            module.q_proj[0].weight *= 3
        trainer(max_epochs=14).fit(module, loader(), loader(4))
        x = next(iter(loader()))[0]
        with torch.no_grad():
            return float(attention_entropy(module.q_proj[0](x)[:, None], x[:, None]).mean())

    low, middle, high = entropy_after(-10.0), entropy_after(0.0), entropy_after(10.0)
    assert low < middle - 0.05
    assert high > middle + 0.05
    assert high <= math.log(6)


def test_the_entropy_term_weighs_the_same_however_many_batches_are_accumulated() -> None:
    def gradient(accumulate: int) -> Tensor:
        torch.manual_seed(0)
        module = Small(entropy_lambda=1.0)
        grads: list[Tensor] = []
        module.on_before_optimizer_step = lambda optimizer: grads.append(  # type: ignore[method-assign]
            module.q_proj[0].weight.grad.clone()
        )
        same = next(iter(loader()))[0].repeat(accumulate, 1, 1)
        trainer(accumulate_grad_batches=accumulate).fit(module, DataLoader(TensorDataset(same), 4), loader(4))
        return grads[0]

    torch.testing.assert_close(gradient(4), gradient(1))


def test_the_entropy_term_leaves_the_loss_and_evaluation_alone() -> None:
    torch.manual_seed(0)
    with_term = Small(entropy_lambda=5.0)
    torch.manual_seed(0)
    without = Small()
    x = torch.randn(3, 6, 8)
    # both come from one pass, whose sums are in another order
    torch.testing.assert_close(with_term(x), without(x), rtol=1e-5, atol=1e-6)
    assert torch.equal(with_term.eval()(x), without.eval()(x))


@pytest.mark.parametrize("entropy_lambda", [0.0, 0.5])
def test_what_is_learned_multiplies_the_plan_and_a_scale_replaces_the_usual_one(
    entropy_lambda: float,
) -> None:
    module = Small(temperature_init=2.0, entropy_lambda=entropy_lambda)
    q, k, v = torch.randn(3, 2, 3, 6, 8).unbind()
    norm, head = QueryKeyNorm(3, init_gain=4.0), HeadTemperature(3, init=0.5)
    out = module.attend(*norm(q, k), v, layer=1, scale=1.0, inverse_temperature=head())
    cosine = nn.functional.normalize(q, dim=-1) @ nn.functional.normalize(k, dim=-1).transpose(-2, -1)
    torch.testing.assert_close(out, (4.0 * cosine / (2.0 * 0.5)).softmax(-1) @ v)
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in (*norm.parameters(), *head.parameters()))


def test_padded_queries_have_no_part_in_the_entropy_term() -> None:
    module = Small(entropy_lambda=1.0)
    q, k, v = torch.randn(3, 2, 1, 6, 8).unbind()
    q.requires_grad_()
    valid = torch.arange(6) < 4
    out = module.attend(q, k, v, layer=0, attn_mask=valid, valid_BQ=valid.expand(2, 6))
    (0.0 * out).sum().backward()
    assert q.grad is not None
    moved = q.grad.abs().sum(-1)[:, 0] > 0
    assert moved[:, :4].all() and not moved[:, 4:].any()


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"schedule": "cosin"}, 'Unknown schedule "cosin". Did you mean "cosine"'),
        ({"validate_at": "end"}, "validate_at"),
        (
            {"normaliser": "top_k", "entropy_lambda": 0.1},
            "entropy_lambda=0.1 is not supported with normaliser",
        ),
    ],
)
def test_what_no_temperature_can_be_is_refused(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        Small(**wrong)


def test_the_temperature_is_no_part_of_the_weights() -> None:
    assert not any("temperature" in name for name in Small(**HOT).state_dict())


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ({"length_scaling": "log_n_power"}, [{"n0": 3.0, "length_power": 0.5}, {"length_power": 2.0}]),
        ({"length_scaling": "llama4"}, [{"n0": 3.0}, {"n0": 2.0, "length_slope": 0.3}]),
        ({"local_share": 1.0, "window": 1}, [{"window": 2}, {"window": 3}]),
    ],
)
def test_one_graph_serves_all_of_a_kind(kind: dict[str, Any], others: list[dict[str, Any]]) -> None:
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(
        lambda module, x: module.attend(x, x, x, layer=0), backend=counter, fullgraph=True
    )
    x = torch.randn(2, 1, 6, 8)
    outputs = []
    for overrides in ({}, *others):
        module = Small(**{**kind, **overrides}).eval()
        outputs.append(module.attend(x, x, x, layer=0))
        torch.testing.assert_close(compiled(module, x), outputs[-1])
        module.use(TemperatureParameters(**kind))
        torch.testing.assert_close(compiled(module, x), outputs[0])
    assert not any(
        torch.equal(output, other_output) for output, other_output in itertools.combinations(outputs, 2)
    )
    assert counter.frame_count == 1


@pytest.mark.parametrize("normaliser", sorted(set(NORMALISERS) - {"softmax"}))
def test_a_module_attends_and_trains_by_its_normaliser(normaliser: str, tmp_path: Path) -> None:
    temperature = {} if normaliser == "linear" else HOT
    limits = NORMALISERS[normaliser].limited({"top_k": 2, "threshold": 0.3}.get(normaliser))
    module = Small(**temperature, normaliser=normaliser, **limits)
    fitting = trainer(max_steps=4)
    before = module.q_proj[0].weight.clone()
    fitting.fit(module, loader(), loader(4))
    assert not torch.equal(module.q_proj[0].weight, before)
    q, k, v = torch.randn(3, 2, 1, 6, 8)
    out = module.attend(q, k, v, layer=1, is_causal=True)
    expected = tempered_attention(
        q,
        k,
        v,
        inverse_temperature=module.inverse_temperature[1],
        normaliser=normaliser,
        **limits,
        is_causal=True,
    )
    assert torch.equal(out, expected)
    fitting.save_checkpoint(tmp_path / "end.ckpt")
    loaded_module = Small.load_from_checkpoint(tmp_path / "end.ckpt", weights_only=True)
    assert loaded_module.plan == module.plan
    assert torch.equal(loaded_module.attend(q, k, v, layer=1, is_causal=True), out)


def test_what_a_drawn_normaliser_has_no_use_for_is_left_out_of_the_module() -> None:
    program = Program(
        model={"class_path": f"{__name__}.Small", "init_args": {**HOT, "entropy_lambda": 0.1}},
        data=None,
        trainer={},
        attach=None,
        metric="val_loss",
        validate_at="final",
        data_seed=0,
    )
    prepared = prepare(program)
    hot = prepared.module({"normaliser": "softmax"})
    assert (hot.entropy.entropy_lambda, hot.plan.temperatures(0.0)) == (0.1, (4.0, 4.0))
    sparse = prepared.module({"normaliser": "entmax15"})
    assert (sparse.entropy.entropy_lambda, sparse.plan.temperatures(0.0)) == (0.0, (4.0, 4.0))
    linear = prepared.module({"normaliser": "linear", "length_scaling": "log_n"})
    assert (linear.entropy.entropy_lambda, linear.plan.temperatures(0.0)) == (0.0, (1.0, 1.0))
    assert prepared.temperature({"normaliser": "linear"}) == {"normaliser": "linear"}


def test_neutral_parameters_attend_as_plain_attention_to_the_last_bit() -> None:
    q, k, v = torch.randn(3, 2, 4, 6, 8)
    for is_causal in (False, True):
        plain = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        assert torch.equal(Small().attend(q, k, v, layer=0, is_causal=is_causal), plain)


class OneLayer(L.LightningModule):
    """One layer of attention, whose temperature a subclass brings."""

    def layer_output(self, q: Tensor, k: Tensor) -> Tensor:
        raise NotImplementedError

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        q, k = self.q_proj(batch[0])[:, None], self.k_proj(batch[0])[:, None]
        self.types = {q.dtype, k.dtype}
        return self.layer_output(q, k).float().pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class HandWritten(OneLayer):
    """With the temperature written into it: into the weights, or where the query is used."""

    def __init__(self, tau: float, *, baked: bool) -> None:
        super().__init__()
        self.tau = 1.0 if baked else tau
        self.q_proj, self.k_proj = nn.Linear(8, 8), nn.Linear(8, 8)
        if baked:
            with torch.no_grad():
                self.q_proj.weight.div_(tau)
                self.q_proj.bias.div_(tau)

    def layer_output(self, q: Tensor, k: Tensor) -> Tensor:
        # rounded once, as arithmetic in half precision rounds a product
        q = (q.float() * torch.tensor(1.0 / self.tau, dtype=torch.float32)).to(q.dtype)
        return nn.functional.scaled_dot_product_attention(q, k, k)


class AsTempered(TemperedModule, OneLayer):
    """With a temperature that is an argument."""

    def __init__(self, **temperature: Any) -> None:
        super().__init__(num_layers=1, **temperature)
        self.q_proj, self.k_proj = nn.Linear(8, 8), nn.Linear(8, 8)

    def layer_output(self, q: Tensor, k: Tensor) -> Tensor:
        return self.attend(q, k, k, layer=0)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_half_precision_trains_what_a_model_with_that_temperature_in_it_trains(precision: str) -> None:
    def train(make: Any) -> Any:
        torch.manual_seed(0)
        module = make()
        loaded = loader().dataset.tensors[0].to(torch.bfloat16 if precision == "bf16-true" else torch.float32)
        trainer(precision=precision).fit(module, DataLoader(TensorDataset(loaded), 4))
        assert module.types == {torch.bfloat16}
        return module

    tempered = train(lambda: AsTempered(temperature_init=3.0))
    # 1/3 rounded to half precision would be another temperature
    assert tempered.inverse_temperature.dtype == torch.float32
    assert float(tempered.inverse_temperature) == pytest.approx(1 / 3, rel=1e-7)
    written = train(lambda: HandWritten(3.0, baked=False)).state_dict()
    assert all(torch.equal(value, written[name]) for name, value in tempered.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_type_of_the_weights_does_not_round_what_attention_is_weighed_with(dtype: torch.dtype) -> None:
    module = Small(temperature_init=3.0, entropy_lambda=0.3, length_scaling="log_n", n0=7.0).to(dtype)
    exact = 1e-15 if dtype == torch.float64 else 1e-7
    assert float(module.inverse_temperature[0]) == pytest.approx(1 / 3, rel=exact)
    assert float(module._entropy_weight) == pytest.approx(0.15, rel=exact)
    assert float(module._length_constant[0]) == pytest.approx(math.log(7.0), rel=exact)
    limited_module = Small(normaliser="top_k", top_k=1001).to(dtype)
    assert int(limited_module._limit) == 1001


def test_every_temperature_parameter_but_that_of_the_loss_is_an_argument() -> None:
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(TemperedModule.__init__).parameters.items()
        if name not in ("self", "num_layers", "validate_at")
    }
    assert defaults == {name: value for name, value in NEUTRAL.items() if name != "output_temperature"}
    assert all(f" {name}:" in str(TemperedModule.__doc__) for name in defaults)
