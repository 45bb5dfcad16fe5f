from __future__ import annotations

import math
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tempopt.attention.attach.attachment import attach, detach
from tempopt.errors import AttachError
from tempopt.temperature import TemperatureParameters

WIDTH, HEADS, BATCH, TOKENS = 16, 4, 6, 5
NEUTRAL = TemperatureParameters()
LINEAR = TemperatureParameters(
    temperature_init=4.0, temperature_final=0.5, schedule="linear", layer_pattern="exp", layer_ratio=4.0
)


def scale_queries(attention: nn.MultiheadAttention, factor: float) -> None:
    with torch.no_grad():
        for parameter in (attention.in_proj_weight, attention.in_proj_bias):
            parameter[:WIDTH] *= factor


class Classifier(L.LightningModule):
    """A module that knows nothing of temperatures, with a name-grouped optimizer."""

    def __init__(self, num_layers: int = 2) -> None:
        super().__init__()
        self.save_hyperparameters()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(dim=1))

    def training_step(self, batch: list[Tensor]) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        decayed_params, undecayed_params = [], []
        for name, parameter in self.named_parameters():
            (undecayed_params if name.endswith("bias") or "norm" in name else decayed_params).append(
                parameter
            )
        groups = [
            {"params": decayed_params, "weight_decay": 0.1},
            {"params": undecayed_params, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=0.01)


def classifier() -> Classifier:
    torch.manual_seed(0)
    return Classifier()


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(BATCH, TOKENS, WIDTH, generator=generator),
            torch.randint(3, (BATCH,), generator=generator),
        )
        for _ in range(count)
    ]


def train(model: Classifier, optimizer: torch.optim.Optimizer, steps: list[tuple[Tensor, Tensor]]) -> None:
    model.train()
    for step, batch in enumerate(steps):
        torch.manual_seed(100 + step)
        optimizer.zero_grad()
        model.training_step(batch).backward()
        optimizer.step()


def equal_states(model: nn.Module, other_model: nn.Module) -> bool:
    state, other_state = model.state_dict(), other_model.state_dict()
    return list(state) == list(other_state) and all(
        torch.equal(state[name], other_state[name]) for name in state
    )


def test_training_at_temperature_1_is_training_without_to_the_last_bit() -> None:
    plain, attached = classifier(), classifier()
    attach(attached, NEUTRAL)
    for model in (plain, attached):
        train(model, model.configure_optimizers(), batches(12))
    assert equal_states(attached, plain)


def test_a_temperature_that_is_set_for_validation_and_back_leaves_training_as_it_was() -> None:
    plain, attached = classifier(), classifier()
    attachment = attach(attached, TemperatureParameters(temperature_final=0.25, schedule="linear"))
    for model in (plain, attached):
        train(model, model.configure_optimizers(), batches(2))
    with torch.inference_mode():
        attachment.set_progress(1.0)
        attached.to(torch.float32).eval()(batches(1)[0][0])
        attachment.set_progress(0.0)
    for model in (plain, attached):
        train(model, model.configure_optimizers(), batches(2))
    assert equal_states(attached, plain)


@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
def test_each_layer_gets_the_temperature_of_the_plan(progress) -> None:
    model, baked = classifier().eval(), classifier().eval()
    attachment = attach(model, LINEAR)
    attachment.set_progress(progress)
    level = 4.0 + (0.5 - 4.0) * progress
    for layer, temperature in zip(baked.encoder.layers, (level / 2, level * 2), strict=True):
        scale_queries(layer.self_attn, 1 / temperature)
    x = batches(1)[0][0]
    torch.testing.assert_close(model(x), baked(x), rtol=1e-6, atol=1e-6)


def test_another_plan_is_used_at_the_same_progress() -> None:
    model, other_model = classifier().eval(), classifier().eval()
    attachment = attach(model, NEUTRAL)
    attachment.set_progress(0.3)
    attachment.use(LINEAR)
    attach(other_model, LINEAR).set_progress(0.3)
    x = batches(1)[0][0]
    assert torch.equal(model(x), other_model(x))
    assert attachment.plan == LINEAR.plan(2)


def test_a_temperature_cannot_be_set_on_a_detached_model() -> None:
    model = classifier()
    attachment = attach(model, LINEAR)
    detach(model)
    attachment.detach()
    with pytest.raises(AttachError, match="detached"):
        attachment.set_progress(0.5)


def test_as_a_context_manager_it_detaches_at_the_end() -> None:
    model = classifier()
    with pytest.raises(ZeroDivisionError), attach(model, LINEAR) as attachment:
        assert type(model.encoder.layers[0].self_attn) is not nn.MultiheadAttention
        1 / 0  # noqa: B018
    assert type(model.encoder.layers[0].self_attn) is nn.MultiheadAttention
    with pytest.raises(AttachError, match="detached"):
        attachment.use(NEUTRAL)


def test_a_second_attachment_is_refused() -> None:
    model = classifier()
    attach(model, LINEAR)
    with pytest.raises(
        AttachError, match=r'already, on "encoder.layers.0.self_attn". Change it with use\(\)'
    ):
        attach(model, NEUTRAL)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"entropy_lambda": 0.1, "normaliser": "sparsemax"}, "the entropy term is that of softmax"),
        ({"output_temperature": 2.0}, "the logits of the loss are computed by the module itself"),
        ({"temperatur_init": 2.0}, 'Unknown temperature parameter "temperatur_init". Did you mean'),
    ],
)
def test_what_cannot_be_attached_is_refused_with_the_reason(parameters, message) -> None:
    model = classifier()
    for refused in (lambda: attach(model, parameters), lambda: attach(classifier(), {}).use(parameters)):
        with pytest.raises(AttachError) as error:
            refused()
        assert message in str(error.value)
    assert type(model.encoder.layers[0].self_attn) is nn.MultiheadAttention


def test_an_example_is_tested_and_a_model_that_fails_is_given_back_untouched() -> None:
    model = classifier()
    x = batches(1)[0][0]
    attach(model, LINEAR, example=lambda: model(x)).detach()
    with pytest.raises(AttachError, match="did not move the output"):
        attach(model, LINEAR, example=lambda: model(x[:, :1]))
    assert type(model.encoder.layers[0].self_attn) is nn.MultiheadAttention


class Routed(nn.Module):
    """A mixture of experts behind attention, whose router is a linear map with a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x, x, x)[0]
        share_BTE = self.router(x).softmax(-1)
        return sum(share_BTE[..., index, None] * expert(x) for index, expert in enumerate(self.experts))


def test_a_router_that_is_named_has_a_temperature_and_attention_alone_otherwise() -> None:
    torch.manual_seed(0)
    model, by_hand, x = Routed().eval(), Routed().eval(), batches(1)[0][0]
    by_hand.load_state_dict(model.state_dict())
    with torch.no_grad():
        by_hand.router.weight.mul_(0.25)
        by_hand.router.bias.mul_(0.25)
    plain = model(x)
    with attach(model, {"temperature_init": 4.0}, layers=["router"], example=lambda: model(x)) as attachment:
        assert attachment.layers == ["router"]
        torch.testing.assert_close(model(x), by_hand(x))
        assert (model(x) - plain).abs().max() > 1e-3
    for patterns in ("auto", ["*"]):
        with attach(model, {}, layers=patterns, example=lambda: model(x)) as attachment:
            assert attachment.layers == ["attention"]
    for layers in (["router"], ["attention", "router"]):
        with pytest.raises(AttachError, match="A pattern in layers|No attention was found"):
            attach(model, {}, layers=layers)


class RoutedAttention(nn.Module):
    """Attention without an output projection, then a router, whose softmax goes into a product too."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.router = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor, temperature: float = 1.0) -> Tensor:
        logits = self.query(x) @ self.key(x).mT / temperature
        y = x + logits.softmax(-1) @ self.value(x)
        return self.router(y).softmax(-1) @ y.mT


def test_a_router_behind_attention_is_no_attention() -> None:
    model, x = RoutedAttention().double(), torch.randn(2, 5, 8, dtype=torch.double)
    expected = model(x, 0.4)
    attach(model, {"temperature_init": 0.4}, example=lambda: model(x))
    torch.testing.assert_close(model(x), expected)


class HeadByHead(nn.Module):
    """Attention by one call for each of four heads.

    Args:
        num_written: Number of heads whose softmax is written out.
    """

    def __init__(self, num_written: int = 0) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.num_written = num_written

    def forward(self, x: Tensor) -> Tensor:
        parts = zip(*(f(x).chunk(4, dim=-1) for f in (self.query, self.key, self.value)), strict=True)
        calls = []
        for head, qkv in enumerate(parts):
            q, k, v = (part.unsqueeze(1) for part in qkv)
            is_written = head < self.num_written
            weights = (q @ k.mT / math.sqrt(2)).softmax(-1) if is_written else None
            calls.append(F.scaled_dot_product_attention(q, k, v) if weights is None else weights @ v)
        return torch.cat(calls, dim=-1)


class TalkingHeads(nn.Module):
    """Attention whose softmaxes are of mixtures of what heads make of queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.mix = nn.Conv2d(4, 4, 1, bias=False)

    def forward(self, x: Tensor, temperature: float = 1.0) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (4, 2)).transpose(1, 2) for f in (self.query, self.key, self.value))
        return (self.mix(q @ k.mT) / temperature).softmax(-1) @ v


@pytest.mark.parametrize("model", [HeadByHead(), HeadByHead(num_written=3), TalkingHeads()])
def test_heads_that_are_mixed_or_attend_in_calls_of_their_own_have_no_pattern(model: nn.Module) -> None:
    x = torch.randn(2, 5, 8)
    with pytest.raises(AttachError, match="several calls.*or mixes heads"):
        attach(model, {"head_pattern": "exp", "head_ratio": 4.0}, example=lambda: model(x))


def test_the_softmaxes_of_mixed_heads_have_one_temperature() -> None:
    model, x = TalkingHeads().double(), torch.randn(2, 5, 8, dtype=torch.double)
    expected = model(x, 0.4)
    attach(model, {"temperature_init": 0.4}, example=lambda: model(x))
    torch.testing.assert_close(model(x), expected)


def test_the_entropy_of_a_layer_is_the_mean_over_its_calls() -> None:
    model, x = HeadByHead().double(), torch.randn(2, 5, 8, dtype=torch.double)
    q, k = (f(x).unflatten(-1, (4, 2)).transpose(1, 2) for f in (model.query, model.key))
    weights = (q @ k.mT / math.sqrt(2)).softmax(-1)
    entropy = -(weights * weights.log()).sum(-1).mean() / math.log(5)
    (expected,) = torch.autograd.grad(-0.3 * entropy, [model.query.weight])
    plain = torch.autograd.grad(model(x).square().mean(), [model.query.weight])[0]
    attach(model, {"entropy_lambda": 0.3}, example=lambda: model(x))
    gradient = torch.autograd.grad(model(x).square().mean(), [model.query.weight])[0]
    torch.testing.assert_close(gradient - plain, expected)


# ---- code that is no Python


class AttendingOnce(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, dim=-1)
        return nn.functional.scaled_dot_product_attention(q, k, v).squeeze(1)


def attending_inputs() -> torch.Tensor:
    return torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_model_is_refused_and_a_traced_one_keeps_its_temperature() -> None:
    model, x = nn.Sequential(AttendingOnce(), nn.Linear(WIDTH, WIDTH)), attending_inputs()
    attach(model, {"temperature_init": 3.0}, example=lambda: model(x))
    with pytest.raises(AttachError, match=r"torch.jit.script would leave it out.*tempopt.bake"):
        torch.jit.script(model)
    assert torch.equal(torch.jit.trace(model, x)(x), model(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("has_example", [True, False])
@pytest.mark.parametrize("kind", ["script", "trace", "export"])
def test_attention_in_a_graph_is_refused_and_other_graphs_are_left_alone(
    kind: str, has_example: bool
) -> None:
    x = attending_inputs()
    convert: Any = {
        "script": torch.jit.script,
        "trace": lambda module: torch.jit.trace(module, x),
        "export": lambda module: torch.export.export(module, (x,)).module(),
    }[kind]
    model = nn.Sequential(AttendingOnce(), convert(AttendingOnce()))
    example = (lambda: model(x)) if has_example else None
    with pytest.raises(AttachError, match=r'"1" attends by .*attach before it is scripted or exported'):
        attach(model, {"temperature_init": 3.0}, example=example)
    if kind != "export":
        model = nn.Sequential(AttendingOnce(), convert(nn.Linear(WIDTH, WIDTH)))
        before = model(x)
        attachment = attach(model, {"temperature_init": 3.0}, example=lambda: model(x))
        assert attachment.layers == ["0"] and not torch.allclose(model(x), before)
        assert model.training and model[1].training


class HardRouter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.router(x).softmax(-1).argmax(-1, keepdim=True)


class OtherGate(nn.Module):
    """A gate of which a temperature would not divide the logits of the softmax, or not alone.

    Args:
        form: What the softmax takes of the output of a linear map.
    """

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.router, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = self.router(x)
        if self.form == "values beside":
            logits, values = output.chunk(2, -1)
            return logits.softmax(-1) * values
        forms = {
            "norm": lambda: output / (output.square().mean(-1, keepdim=True) + 1e-6).sqrt(),
            "square": lambda: -output.square(),
            "two maps": lambda: (output * self.key(x)).unflatten(-1, (4, -1)).sum(-1),
        }
        return forms[self.form]().softmax(-1)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ("values beside", "Its output is more than the input"),
        ("norm", "is not proportional to its output"),
        ("square", "is not proportional to its output"),
        ("two maps", "acts in the same softmax"),
    ],
)
def test_a_gate_whose_temperature_would_not_divide_logits_alone_is_refused(form: str, reason: str) -> None:
    torch.manual_seed(0)
    model, x = OtherGate(form), attending_inputs()
    before = model(x)
    layers = ["router", "key"] if form == "two maps" else ["router"]
    with pytest.raises(AttachError, match=reason):
        attach(model, {"temperature_init": 3.0}, layers=layers, example=lambda: model(x))
    assert torch.equal(model(x), before)


def test_one_factor_of_sums_of_products_takes_the_temperature_of_their_softmax() -> None:
    torch.manual_seed(0)
    model, x = OtherGate("two maps"), attending_inputs()
    logits = (model.router(x) * model.key(x)).unflatten(-1, (4, -1)).sum(-1)
    attach(model, {"temperature_init": 3.0}, layers=["router"], example=lambda: model(x))
    torch.testing.assert_close(model(x), (logits / 3).softmax(-1))


def test_a_router_of_which_the_largest_alone_counts_is_refused_with_that_reason() -> None:
    model, x = HardRouter(), attending_inputs()
    with pytest.raises(AttachError, match=r'"router" did not move the output.*only its largest is used'):
        attach(model, {"temperature_init": 3.0}, layers=["router"], example=lambda: model(x))
