"""What comes beside the temperature on models of others, against weights that are written out in float64.

B sequences of T tokens in E dimensions; H heads, Q queries, K keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tempopt import AttachError, attach
from tests.attention.call_models import (
    BATCH,
    HEADS,
    TOKENS,
    AdditiveMaskAttention,
    AlibiAttention,
    Attention,
    Block,
    NormalisedAttention,
    Stack,
    WindowAttention,
    recompute,
    repeated,
    sdpa,
    sharpened,
    tokens_BTE,
    written,
)
from tests.attention.library_call_models import HEADWISE, IS_PADDING_BT, MULTIHEAD, build_encoder
from tests.attention.test_attention_call import loss_gradients

N0 = 3.0
Weigh = Callable[[Tensor, Tensor], Tensor]
IS_EARLIER_TT = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()


@dataclass(kw_only=True)
class Model:
    """A model of two layers, and its attention by hand.

    Attributes:
        build: Returns the model.
        masks: What its forward takes beside the tokens.
        visible_BQK: The keys that a query sees.
        is_valid_BQ: The queries that are no padding.
        may_refuse: Whether it may be refused.
    """

    build: Callable[[], nn.Module]
    masks: dict[str, Any] = field(default_factory=dict)
    visible_BQK: Tensor = field(default_factory=lambda: torch.ones(BATCH, TOKENS, TOKENS, dtype=torch.bool))
    is_valid_BQ: Tensor = field(default_factory=lambda: torch.ones(BATCH, TOKENS, dtype=torch.bool))
    may_refuse: bool = False

    def run(self, model: nn.Module) -> Tensor:
        """Return the outputs that are no padding."""
        output: Tensor = model(tokens_BTE(), **self.masks)
        return output[self.is_valid_BQ] if not self.is_valid_BQ.all() else output

    def run_by_hand(self, model: nn.Module, weigh: Weigh) -> tuple[Tensor, Tensor]:
        """Return the same with weights of ours, and the mean entropy of the layers as shares of ln n."""
        shares: list[Tensor] = []

        def weights(logits_BHQK: Tensor) -> Tensor:
            weights_BHQK = weigh(logits_BHQK, self.visible_BQK[:, None])
            shares.append(self.entropy_share(weights_BHQK))
            return weights_BHQK

        if isinstance(model, nn.TransformerEncoder):
            output = encoder_by_hand(model, weights)
            output = output[self.is_valid_BQ] if not self.is_valid_BQ.all() else output
        else:
            for block in model.layers:  # type: ignore[union-attr]
                block.attn.form = partial(weighted, weights=weights)
            output = self.run(model)
        assert len(shares) == 2
        return output, torch.stack(shares).mean()

    def entropy_share(self, weights_BHQK: Tensor) -> Tensor:
        """Return the mean of H / ln n over queries with more than one key that are no padding."""
        keys_BQ = self.visible_BQK.sum(-1)
        # Weights of 0 have no entropy, and no gradient.
        positive = torch.where(weights_BHQK > 0, weights_BHQK, 1.0)
        entropy_BHQ = -(positive * positive.log()).sum(-1)
        share_BHQ = entropy_BHQ / keys_BQ.clamp(min=2).double().log()[:, None]
        is_counted = ((keys_BQ > 1) & self.is_valid_BQ)[:, None].expand_as(share_BHQ)
        return share_BHQ[is_counted].mean()


def weighted(layer: Any, q: Tensor, k: Tensor, v: Tensor, *, weights: Callable[[Tensor], Tensor]) -> Tensor:
    logits_BHQK = torch.einsum("bhqd,bhkd->bhqk", q, repeated(k, HEADS)) * layer.scale
    return torch.einsum("bhqk,bhkd->bhqd", weights(logits_BHQK), repeated(v, HEADS))


def encoder_by_hand(model: nn.TransformerEncoder, weights: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the output of an encoder with norms behind its residuals and ReLU, without dropout."""
    x_BTE = tokens_BTE()
    for layer in model.layers:
        attention: Any = layer.self_attn
        qkv = F.linear(x_BTE, attention.in_proj_weight, attention.in_proj_bias).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in qkv)
        logits_BHQK = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
        attended_BTE = torch.einsum("bhqk,bhkd->bqhd", weights(logits_BHQK), v).flatten(2)
        x_BTE = layer.norm1(x_BTE + attention.out_proj(attended_BTE))
        x_BTE = layer.norm2(x_BTE + layer.linear2(F.relu(layer.linear1(x_BTE))))
    return x_BTE


def build_stack(kind: Callable[..., nn.Module], form: Any, **options: Any) -> nn.Module:
    return sharpened(Stack(*(Block(kind(form, **options)) for _ in range(2))))


def heads_first(form: Callable[..., Tensor], layer: Any, *qkv: Tensor) -> Tensor:
    """Return attention to (H, B, T, D)."""
    return form(layer, *(x.transpose(0, 1) for x in qkv)).transpose(0, 1)


def tokens_first(equation: str, layer: Any, *qkv: Tensor) -> Tensor:
    """Return attention to (B, T, H, D), with logits as the equation makes them of that."""
    q, k, v = (x.transpose(1, 2) for x in qkv)
    logits = torch.einsum(equation, q, k) * layer.scale
    output = equation.partition("->")[2]
    if layer.is_causal:
        hidden = ~IS_EARLIER_TT if output == "bhij" else ~IS_EARLIER_TT[:, None]
        logits = logits.masked_fill(hidden, -1e4)
    return torch.einsum(f"{output},bjhd->bhid", logits.softmax(-1), v)


def merged(layer: Any, *qkv: Tensor) -> Tensor:
    """Return attention to (B * H, T, D), in a call of its own."""
    q, k, v = (x.flatten(0, 1) for x in qkv)
    return sdpa(layer, q, k, v).unflatten(0, (BATCH, HEADS))


def merged_written(layer: Any, *qkv: Tensor) -> Tensor:
    q, k, v = (x.flatten(0, 1) for x in qkv)
    return torch.bmm((torch.bmm(q, k.mT) * layer.scale).softmax(-1), v).unflatten(0, (BATCH, HEADS))


CAUSAL_BQK = IS_EARLIER_TT.expand(BATCH, -1, -1)
UNPADDED_BQK = (~IS_PADDING_BT)[:, None].expand(-1, TOKENS, -1)
softmax_written = partial(written, normaliser="F.softmax")
MODELS = {
    "encoder": Model(build=build_encoder),
    "encoder, padding": Model(
        build=build_encoder,
        masks={"src_key_padding_mask": IS_PADDING_BT},
        visible_BQK=UNPADDED_BQK,
        is_valid_BQ=~IS_PADDING_BT,
    ),
    "encoder, causal": Model(
        build=build_encoder, masks={"mask": ~IS_EARLIER_TT, "is_causal": True}, visible_BQK=CAUSAL_BQK
    ),
    "encoder, causal, padding": Model(
        build=build_encoder,
        masks={"mask": ~IS_EARLIER_TT, "src_key_padding_mask": IS_PADDING_BT},
        visible_BQK=CAUSAL_BQK & UNPADDED_BQK,
        is_valid_BQ=~IS_PADDING_BT,
    ),
    "sdpa": Model(build=partial(build_stack, Attention, sdpa)),
    "sdpa, causal, grouped": Model(
        build=partial(build_stack, Attention, sdpa, key_heads=2, is_causal=True), visible_BQK=CAUSAL_BQK
    ),
    "QK-norm": Model(
        build=partial(build_stack, NormalisedAttention, sdpa, is_causal=True), visible_BQK=CAUSAL_BQK
    ),
    "written": Model(build=partial(build_stack, Attention, softmax_written), may_refuse=True),
    "written, causal": Model(
        build=partial(build_stack, Attention, softmax_written, is_causal=True),
        visible_BQK=CAUSAL_BQK,
        may_refuse=True,
    ),
}
# What is written in place of minus infinity: masks of Swin, BERT, the lowest number of another type.
for kind, number in (("written", -100.0), ("written", -1e4), ("sdpa", torch.finfo(torch.float16).min)):
    form = sdpa if kind == "sdpa" else softmax_written
    MODELS[f"{kind}, {number:g}"] = Model(
        build=partial(build_stack, AdditiveMaskAttention, form, hidden=number), visible_BQK=CAUSAL_BQK
    )
# Where heads are another dimension than usual.
for name, form in {
    "sdpa, heads first": partial(heads_first, sdpa),
    "written, heads first": partial(heads_first, softmax_written),
    "bhij of bihd": partial(tokens_first, "bihd,bjhd->bhij"),
    "bihj of bihd": partial(tokens_first, "bihd,bjhd->bihj"),
}.items():
    MODELS[name] = Model(
        build=partial(build_stack, NormalisedAttention, form, is_causal=True), visible_BQK=CAUSAL_BQK
    )
MODELS["one block twice"] = Model(build=lambda: sharpened(Stack(*[Block(Attention(sdpa))] * 2)))
MODELS["encoder, -1e4"] = Model(
    build=build_encoder, masks={"mask": -1e4 * (~IS_EARLIER_TT).double()}, visible_BQK=CAUSAL_BQK
)
every_model = pytest.mark.parametrize("case", MODELS.values(), ids=MODELS)

# ---- weights by hand


def softmax(logits: Tensor, visible: Tensor) -> Tensor:
    """Return softmax over the visible keys, and zeros where there is none."""
    exponentials = torch.where(visible, (logits - logits.amax(-1, keepdim=True).detach()).exp(), 0.0)
    return exponentials / exponentials.sum(-1, keepdim=True).clamp(min=1e-300)


def tempered_softmax(temperature: float, logits: Tensor, visible: Tensor) -> Tensor:
    return softmax(logits / temperature, visible)


def scaled_by_length(factor: Callable[[float], float], logits: Tensor, visible: Tensor) -> Tensor:
    """Return softmax at 1/τ = 1/1.5 times a factor of the number of keys that the query sees."""
    keys_BQ = visible.expand(len(logits), -1, -1, -1)[:, 0].sum(-1)
    factors_BQ = torch.tensor([[factor(int(keys)) for keys in row] for row in keys_BQ], dtype=torch.float64)
    return softmax(logits / 1.5 * factors_BQ[:, None, :, None], visible)


def by_head(factors: list[float], logits: Tensor, visible: Tensor) -> Tensor:
    """Return softmax at 1.5 times a factor for each head, of geometric mean 1."""
    factors_H = torch.tensor(factors, dtype=torch.float64)
    factors_H = factors_H / factors_H.log().mean().exp()
    return softmax(logits / (1.5 * factors_H[:, None, None]), visible)


def top_two(logits: Tensor, visible: Tensor) -> Tensor:
    logits = (logits / 1.5).masked_fill(~visible, -math.inf)
    second = logits.topk(2, dim=-1).values[..., 1:]
    return softmax(logits, visible & (logits >= second))


def thresholded(logits: Tensor, visible: Tensor) -> Tensor:
    weights = softmax(logits / 1.5, visible)
    weights = torch.where((weights >= 0.15) | (weights == weights.amax(-1, keepdim=True)), weights, 0.0)
    return weights / weights.sum(-1, keepdim=True)


def sparsemax(logits: Tensor, visible: Tensor) -> Tensor:
    """Return max(s - t, 0) with the t at which they sum to 1 (Martins & Astudillo 2016, algorithm 1)."""
    logits = (logits / 1.5).masked_fill(~visible, -1e6)
    ordered = logits.sort(dim=-1, descending=True).values
    ranks = torch.arange(1, ordered.shape[-1] + 1, dtype=ordered.dtype)
    support = (1 + ranks * ordered > ordered.cumsum(-1)).sum(-1, keepdim=True)
    threshold = (ordered.cumsum(-1).gather(-1, support - 1) - 1) / support
    return (logits - threshold).clamp(min=0)


def entmax15(logits: Tensor, visible: Tensor) -> Tensor:
    """Return max(s/2 - t, 0)² with the t at which they sum to 1, found by bisection."""
    halves = (logits / 1.5 / 2).masked_fill(~visible, -1e6)
    with torch.no_grad():
        high = halves.amax(-1, keepdim=True)
        low = high - 1
        for _ in range(60):
            middle = (low + high) / 2
            is_low = (halves - middle).clamp(min=0).square().sum(-1, keepdim=True) > 1
            low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
        slope = -2 * (halves - low).clamp(min=0).sum(-1, keepdim=True)
    # Newton's step from the solution changes its value by nothing, and has the derivative of the solution.
    threshold = low - ((halves - low).clamp(min=0).square().sum(-1, keepdim=True) - 1) / slope
    return (halves - threshold).clamp(min=0).square()


def half_local(logits: Tensor, visible: Tensor) -> Tensor:
    """Return softmax of which the first two of four heads see no key three or more places away."""
    places = torch.arange(TOKENS)
    is_near = (places[:, None] - places).abs() < 3
    is_local_head = torch.arange(HEADS)[:, None, None] < 2
    return softmax(logits / 1.5, visible & (is_near | ~is_local_head))


def log_ratio(keys: float) -> float:
    return math.log(max(keys, 1)) / math.log(N0)


HOT = {"temperature_init": 1.5}

PLANS: dict[str, tuple[dict[str, Any], Weigh]] = {
    "temperature": (HOT, partial(tempered_softmax, 1.5)),
    "log_n": ({"length_scaling": "log_n"}, partial(scaled_by_length, log_ratio)),
    "clipped_log_n": (
        {"length_scaling": "clipped_log_n"},
        partial(scaled_by_length, lambda n: max(1, log_ratio(n))),
    ),
    "log_n_power": (
        {"length_scaling": "log_n_power", "length_power": 0.5},
        partial(scaled_by_length, lambda n: log_ratio(n) ** 0.5),
    ),
    "yarn": (
        {"length_scaling": "yarn", "length_slope": 0.6},
        partial(scaled_by_length, lambda n: (0.6 * math.log(max(n / N0, 1)) + 1) ** 2),
    ),
    "llama4": (
        {"length_scaling": "llama4", "length_slope": 0.6},
        partial(scaled_by_length, lambda n: 1 + 0.6 * math.log(1 + n // N0)),
    ),
    "heads, linear": (
        {"head_pattern": "linear", "head_ratio": 4.0},
        partial(by_head, [1.0, 2.0, 3.0, 4.0]),
    ),
    "heads, exp": ({"head_pattern": "exp", "head_ratio": 8.0}, partial(by_head, [1.0, 2.0, 4.0, 8.0])),
    "heads, alternate": (
        {"head_pattern": "alternate", "head_ratio": 3.0},
        partial(by_head, [1.0, 3.0, 1.0, 3.0]),
    ),
    "top_k": ({"normaliser": "top_k", "top_k": 2}, top_two),
    "threshold": ({"normaliser": "threshold", "min_weight": 0.15}, thresholded),
    "sparsemax": ({"normaliser": "sparsemax"}, sparsemax),
    "entmax15": ({"normaliser": "entmax15"}, entmax15),
    "local heads": ({"local_share": 0.5, "window": 3}, half_local),
}


def run_mode(case: Model, model: nn.Module, weigh: Weigh | None, has_gradients: bool) -> dict[str, Tensor]:
    """Return output and gradients in training, or the output alone in evaluation."""
    model.train(has_gradients)
    with torch.set_grad_enabled(has_gradients):
        output = case.run(model) if weigh is None else case.run_by_hand(model, weigh)[0]
    return {"output": output.detach(), **(loss_gradients(model, output) if has_gradients else {})}


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-8) -> None:
    size = max(1.0, *(float(value.abs().max()) for value in expected.values()))
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name], value, rtol=0, atol=tolerance * size, msg=lambda text, name=name: f"{name}: {text}"
        )


@every_model
def test_attention_by_hand_is_that_of_the_model_at_one(case: Model) -> None:
    actual = run_mode(case, case.build(), softmax, True)
    assert_close(actual, run_mode(case, case.build(), None, True), 1e-12)


@pytest.mark.parametrize("plan", PLANS)
@every_model
def test_a_plan_acts_as_written_out(case: Model, plan: str) -> None:
    parameters, weigh = PLANS[plan]
    parameters = HOT | ({"n0": N0} if "length_scaling" in parameters else {}) | parameters
    model = case.build()
    try:
        attachment = attach(model, parameters, example=lambda: case.run(model))
        # Of evaluation without gradients last, which may take other kernels.
        for has_gradients in (True, False):
            actual = run_mode(case, model, None, has_gradients)
            expected = run_mode(case, case.build(), weigh, has_gradients)
            assert_close(actual, expected)
            for neutral in (softmax, partial(tempered_softmax, 1.5)):
                if plan != "temperature" or neutral is softmax:
                    plain = run_mode(case, case.build(), neutral, has_gradients)
                    assert (expected["output"] - plain["output"]).abs().max() > 1e-2
        attachment.detach()
    except AttachError:
        if not case.may_refuse:
            raise
    assert_close(run_mode(case, model, None, True), run_mode(case, case.build(), None, True), 0.0)


@pytest.mark.parametrize("form", [merged, merged_written])
@pytest.mark.parametrize("plan", ["heads, exp", "local heads"])
def test_heads_that_share_a_dimension_with_sequences_are_refused_when_attached(plan: str, form: Any) -> None:
    model = build_stack(Attention, form)
    before = model(tokens_BTE())
    with pytest.raises(AttachError, match=r'"layers.0.attn".*head_pattern="uniform" and local_share=0.0'):
        attach(model, PLANS[plan][0], example=lambda: model(tokens_BTE()))
    assert torch.equal(model(tokens_BTE()), before)
    attachment = attach(model, HOT, example=lambda: model(tokens_BTE()))
    for refused in (lambda: attachment.use(PLANS[plan][0]), attachment.learn_heads):
        with pytest.raises(AttachError, match=r"heads of .* cannot differ"):
            refused()


# ---- entropy

ENTROPY_PLANS: dict[str, tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = {
    "rewarded": ({"entropy_lambda": 3.0}, lambda share: -3.0 * share),
    "penalised": ({"entropy_lambda": -2.0}, lambda share: 2.0 * share),
}


def entropy_gradients(case: Model, term: Callable[[Tensor], Tensor], temperature: float) -> dict[str, Tensor]:
    model = case.build()
    output, share = case.run_by_hand(model, partial(tempered_softmax, temperature))
    return loss_gradients(model, output, term(share))


@pytest.mark.parametrize("temperature", [1.0, 1.7])
@pytest.mark.parametrize("plan", ENTROPY_PLANS)
@every_model
def test_the_gradient_of_the_entropy_term_is_autograd_of_the_entropy_written_out(
    case: Model, plan: str, temperature: float
) -> None:
    parameters, term = ENTROPY_PLANS[plan]
    expected = entropy_gradients(case, term, temperature)
    without = entropy_gradients(case, lambda share: 0.0 * share, temperature)
    assert any((expected[name] - without[name]).abs().max() > 1e-3 for name in without)
    model = case.build().train()
    try:
        attachment = attach(
            model, {"temperature_init": temperature, **parameters}, example=lambda: case.run(model)
        )
        model.train()
        assert_close(loss_gradients(model, case.run(model)), expected, 1e-9)
        # A scaled loss scales the term.
        attachment.set_loss_scale(8.0)
        scaled = loss_gradients(model, 8.0 * case.run(model))
        assert_close(scaled, {name: 8.0 * gradient for name, gradient in expected.items()}, 1e-9)
        # The term is of training alone.
        model.eval()
        assert_close(loss_gradients(model, case.run(model)), without, 1e-9)
        attachment.detach()
    except AttachError:
        if not case.may_refuse:
            raise


def entropy_share(weights_BHQK: Tensor) -> Tensor:
    """Return the mean of H / ln n over the queries of attention to all keys."""
    entropy_BHQ = torch.special.entr(weights_BHQK.clamp(min=1e-300)).sum(-1)
    return (entropy_BHQ / math.log(weights_BHQK.shape[-1])).mean()


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("form", [sdpa, softmax_written], ids=["sdpa", "written"])
@pytest.mark.parametrize("calls", [(1, 1), (2, 1), (1, 0), (3, 2)])
def test_the_entropy_of_a_layer_is_the_mean_over_its_calls_in_a_step(
    calls: tuple[int, int], form: Any, recomputes: bool
) -> None:
    """Steps call layers oftener than the example, or not at all; a forward without a loss counts in none."""
    model, plain = build_stack(Attention, form), build_stack(Attention, form)
    shares: list[list[Tensor]] = [[], []]

    def weights_and_share(number: int, layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (torch.einsum("bhqd,bhkd->bhqk", q, k) * layer.scale).softmax(-1)
        shares[number].append(entropy_share(weights))
        return weights @ v

    def run(network: Any, recomputes: bool = False) -> Tensor:
        x_BTE = tokens_BTE().requires_grad_()
        for layer, count in zip(network.layers, calls, strict=True):
            for _ in range(count):
                x_BTE = recompute(layer, x_BTE, False) if recomputes else layer(x_BTE)
        return x_BTE

    for number, block in enumerate(plain.layers):  # type: ignore[arg-type]
        block.attn.form = partial(weights_and_share, number)  # type: ignore[union-attr]
    output = run(plain)
    share = sum(torch.stack(layer_shares).mean() for layer_shares in shares if layer_shares) / 2
    expected = loss_gradients(plain, output, -3.0 * share)
    attach(model, {"entropy_lambda": 3.0}, example=lambda: model(tokens_BTE()))
    model.train()
    for _ in range(2):
        run(model)
        assert_close(loss_gradients(model, run(model, recomputes)), expected, 1e-9)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("name", ["encoder", "sdpa", "QK-norm", "written"])
def test_the_entropy_of_a_block_that_is_computed_again_counts_once(name: str, use_reentrant: bool) -> None:
    case = MODELS[name]
    model = case.build()
    attach(model, {"entropy_lambda": 0.3}, example=lambda: case.run(model))

    def run(network: Any, *, recomputes: bool) -> Tensor:
        x_BTE = tokens_BTE().requires_grad_()
        for layer in network.layers:
            x_BTE = recompute(layer, x_BTE, use_reentrant) if recomputes else layer(x_BTE)
        return x_BTE

    model.train()
    expected = loss_gradients(model, run(model, recomputes=False))
    assert_close(loss_gradients(model, run(model, recomputes=True)), expected, 1e-10)
    plain = case.build()
    without = loss_gradients(plain, run(plain, recomputes=False))
    assert any((expected[name] - without[name]).abs().max() > 1e-3 for name in without)


@pytest.mark.parametrize(
    "name", ["weights of heads", "no weights", "kdim and vdim", "padding", "bias_kv and zero_attn"]
)
def test_the_entropy_of_multihead_attention_is_that_of_the_weights_that_it_returns(name: str) -> None:
    """The weights are PyTorch's own; which keys are visible follows from those that have one."""
    case = MULTIHEAD[name]
    model, plain = case.build(), case.build()
    shares = []

    def add_share(module: nn.Module, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        weights_BHQK = output[1]
        keys_BHQ = (weights_BHQK > 0).sum(-1)
        entropy_BHQ = torch.special.entr(weights_BHQK.clamp(min=1e-300)).sum(-1)
        is_counted = keys_BHQ > 1
        # The queries of padding see the same keys as others, but do not count in attention over itself.
        if weights_BHQK.shape[-2] == weights_BHQK.shape[-1]:
            is_counted = is_counted & (weights_BHQK > 0).any(-2)
        shares.append((entropy_BHQ / keys_BHQ.clamp(min=2).double().log())[is_counted].mean())

    def headwise(module: nn.Module, arguments: Any, options: dict[str, Any]) -> Any:
        return arguments, options | {"need_weights": True} | HEADWISE

    for attention in (plain.first, plain.second):
        attention.register_forward_pre_hook(headwise, with_kwargs=True)  # type: ignore[union-attr, operator]
        attention.register_forward_hook(add_share)  # type: ignore[union-attr, operator, arg-type]
    first_outputs = BATCH * TOKENS * 32
    output = case.run(plain)[:first_outputs]
    expected = loss_gradients(plain, output, -0.3 * torch.stack(shares).mean())
    without = loss_gradients(plain, case.run(plain)[:first_outputs])
    attach(model, {"entropy_lambda": 0.3}, example=lambda: case.run(model))
    model.train()
    assert_close(loss_gradients(model, case.run(model)[:first_outputs]), expected, 1e-9)
    assert any((expected[name] - without[name]).abs().max() > 1e-3 for name in without)


@pytest.mark.parametrize("form", [sdpa, softmax_written], ids=["sdpa", "written"])
@pytest.mark.parametrize("bias", ["windows", "ramp", "sharp"])
def test_keys_count_by_what_is_added_and_not_by_their_weight(bias: str, form: Any) -> None:
    """Windows of Swin see their own region; a ramp of positions and sharp logits hide no key."""

    def build() -> nn.Module:
        if bias == "windows":
            return sharpened(Stack(*(Block(WindowAttention(form, shift=shift)) for shift in (0, 2))))
        model = build_stack(AlibiAttention if bias == "ramp" else Attention, form)
        for block in model.layers:  # type: ignore[union-attr]
            block.attn.scale *= 1.0 if bias == "ramp" else 60.0
        return model

    shares = []

    def weights_and_share(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        added = layer.position_bias(q, k)
        added = torch.zeros(()).double() if added is None else added
        weights = (torch.einsum("bhqd,bhkd->bhqk", q, k) * layer.scale + added).softmax(-1)
        keys_BHQ = (added > -50.0).expand_as(weights).sum(-1)
        entropy_BHQ = torch.special.entr(weights.clamp(min=1e-300)).sum(-1)
        shares.append((entropy_BHQ / keys_BHQ.clamp(min=2).double().log())[keys_BHQ > 1].mean())
        return weights @ v

    model, plain = build(), build()
    for block in plain.layers:  # type: ignore[union-attr]
        block.attn.form = weights_and_share
    output = plain(tokens_BTE())
    expected = loss_gradients(plain, output, -3.0 * torch.stack(shares).mean())
    attach(model, {"entropy_lambda": 3.0}, example=lambda: model(tokens_BTE()))
    model.train()
    assert_close(loss_gradients(model, model(tokens_BTE())), expected, 1e-9)
    assert_close({"keys": torch.stack(shares).detach()}, {"keys": torch.stack(shares).clamp(max=1).detach()})


# ---- softmaxes that do not see which keys a query sees


def masked_late(hide: Callable[[Tensor], Tensor], layer: Any, *qkv: Tensor, temperature: float = 1) -> Tensor:
    """Return attention whose weights are masked after their softmax, and renormalised."""
    q, k, v = qkv
    weights = hide((q @ k.mT * (layer.scale / temperature)).softmax(-1))
    return weights / weights.sum(-1, keepdim=True) @ v


def masked_twice(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return attention whose logits and whose weights have the same mask (ESPnet)."""
    hidden = ~IS_EARLIER_TT
    logits = (q @ k.mT * layer.scale).masked_fill(hidden, -math.inf)
    return logits.softmax(-1).masked_fill(hidden, 0.0) @ v


def merged_chunks(layer: Any, q: Tensor, k: Tensor, v: Tensor, *, temperature: float = 1) -> Tensor:
    """Return attention to halves of the keys, merged by the sums of their exponentials."""
    outputs, totals = [], []
    for keys, values in zip(k.chunk(2, -2), v.chunk(2, -2), strict=True):
        logits = q @ keys.mT * (layer.scale / temperature)
        outputs.append(logits.softmax(-1) @ values)
        totals.append(logits.logsumexp(-1, keepdim=True))
    shares = torch.stack(totals).softmax(0)
    return (shares * torch.stack(outputs)).sum(0)


def assigned(weights: Tensor) -> Tensor:
    weights = weights.clone()
    weights[..., ~IS_EARLIER_TT] = 0.0
    return weights


UNSEEN_KEYS: dict[str, Callable[..., Tensor]] = {
    "times mask": partial(masked_late, lambda weights: weights * IS_EARLIER_TT),
    "mask times": partial(masked_late, lambda weights: IS_EARLIER_TT.double() * weights),
    "masked_fill": partial(masked_late, lambda weights: weights.masked_fill(~IS_EARLIER_TT, 0.0)),
    "where": partial(masked_late, lambda weights: torch.where(IS_EARLIER_TT, weights, 0.0)),
    "tril": partial(masked_late, torch.tril),
    "assigned": partial(masked_late, assigned),
    "mask without hidden keys": partial(masked_late, lambda weights: weights * torch.ones(TOKENS).double()),
    "mask of queries": partial(masked_late, lambda weights: weights * torch.ones(TOKENS, 1).double()),
    "chunks": merged_chunks,
}


@pytest.mark.parametrize(
    "plan",
    [
        {"entropy_lambda": 0.1},
        {"length_scaling": "log_n"},
        {"normaliser": "sparsemax"},
        {"local_share": 0.5, "window": 3},
    ],
    ids=lambda plan: next(iter(plan)),
)
@pytest.mark.parametrize("form", UNSEEN_KEYS.values(), ids=UNSEEN_KEYS)
def test_what_depends_on_visible_keys_is_refused_where_the_softmax_does_not_see_them(
    form: Callable[..., Tensor], plan: dict[str, Any]
) -> None:
    model = build_stack(Attention, form)
    before = model(tokens_BTE())
    with pytest.raises(AttachError, match=f'{next(iter(plan))} cannot be attached to "layers.0.attn"'):
        attach(model, plan, layers=["layers.*"], example=lambda: model(tokens_BTE()))
    attachment = attach(model, HOT, layers=["layers.*"], example=lambda: model(tokens_BTE()))
    assert attachment.tested
    with pytest.raises(AttachError, match='entropy of "layers.0.attn" cannot be measured'):
        attachment.observed(lambda *args, **options: None)
    expected = build_stack(Attention, partial(form, temperature=1.5))(tokens_BTE())
    torch.testing.assert_close(model(tokens_BTE()), expected, rtol=0, atol=1e-9)
    assert (expected - before).abs().max() > 1e-2


def test_weights_that_have_the_mask_of_their_logits_again_are_not_refused() -> None:
    case = Model(build=partial(build_stack, Attention, masked_twice), visible_BQK=CAUSAL_BQK)
    model = case.build()
    attach(
        model, {"entropy_lambda": 3.0, "length_scaling": "log_n", "n0": N0}, example=lambda: case.run(model)
    )
    plain = case.build()
    output, share = case.run_by_hand(plain, partial(scaled_by_length, lambda n: 1.5 * log_ratio(n)))
    expected = loss_gradients(plain, output, -3.0 * share)
    model.train()
    assert_close(loss_gradients(model, case.run(model)), expected, 1e-9)


def test_chunks_of_fused_attention_that_are_merged_by_other_logits_are_refused() -> None:
    def form(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        outputs: Any = 0.0
        totals: Any = 0.0
        for keys, values in zip(k.chunk(2, -2), v.chunk(2, -2), strict=True):
            total = (q @ keys.mT * layer.scale).logsumexp(-1, keepdim=True).exp()
            attended = F.scaled_dot_product_attention(q, keys, values, scale=layer.scale)
            outputs, totals = outputs + attended * total, totals + total
        return outputs / totals

    model = build_stack(Attention, form)
    for layers in ("auto", ["layers.*"]):
        with pytest.raises(AttachError, match=r'"layers.0.attn" takes logsumexp of a matrix product'):
            attach(model, HOT, layers=layers, example=lambda: model(tokens_BTE()))


def test_an_entropy_term_without_gradients_changes_nothing() -> None:
    case = MODELS["encoder, padding"]
    model = case.build()
    attach(model, {"entropy_lambda": 0.3}, example=lambda: case.run(model))
    for has_gradients in (True, False):
        model.train()
        with torch.set_grad_enabled(has_gradients):
            torch.testing.assert_close(case.run(model), case.run(case.build()), rtol=0, atol=1e-12)
