"""What a self-test finds where a temperature acts in part, or elsewhere than in a softmax."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from tempopt.attention.attach.attachment import Attachment, attach, detach
from tempopt.attention.attach.projection import QueryRowsMechanism
from tempopt.attention.attach.proof import Prover
from tempopt.attention.attach.query_rows import query_rows
from tempopt.attention.attach.softmax_capture import capture_softmaxes
from tempopt.errors import AttachError

WIDTH, HEADS, TOKENS = 16, 4, 7
HOT = {"temperature_init": 2.0}


class Attention(nn.Module):
    """Attention by one of several ways, whose query, logits and outputs may be treated."""

    def __init__(self, query: str = "q_proj") -> None:
        super().__init__()
        self.query = query
        self.add_module(query, nn.Linear(WIDTH, WIDTH))
        self.k_proj, self.v_proj, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def treat(self, q: Tensor) -> Tensor:
        return q

    def bias(self, x: Tensor, q: Tensor, k: Tensor) -> Tensor | float:
        return 0.0

    def forward(self, x: Tensor) -> Tensor:
        query = getattr(self, self.query)(x)
        q, k, v = self.treat(self.heads(query)), self.heads(self.k_proj(x)), self.heads(self.v_proj(x))
        weights = (q @ k.transpose(-1, -2) / 2.0 + self.bias(x, q, k)).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).flatten(2))


class BiasOfContent(Attention):
    """A bias beside the query, as in Transformer-XL, under a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.content = nn.Parameter(torch.randn(HEADS, 1, WIDTH // HEADS))

    def treat(self, q: Tensor) -> Tensor:
        return q + self.content


class GatedAttention(Attention):
    """The query closes a gate as well."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.q_proj(x).sigmoid()


class OtherQueries(Attention):
    """The first token asks by a projection of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.ask_first = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        every = super().forward(x)
        q, k, v = (self.heads(projection(x)) for projection in (self.ask_first, self.k_proj, self.v_proj))
        first = (q[:, :, :1] @ k.transpose(-1, -2)).softmax(-1) @ v
        return torch.cat([first.transpose(1, 2).flatten(2), every[:, 1:]], dim=1)


class HeadLeftOut(Attention):
    """One head asks by something else than the projection."""

    def treat(self, q: Tensor) -> Tensor:
        return torch.cat([q[:, :1].detach() * 0 + 1.0, q[:, 1:]], dim=1)


class Linear(Attention):
    """Attention without a softmax."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.heads(projection(x)) for projection in (self.q_proj, self.k_proj, self.v_proj))
        return x + (q @ (k.transpose(-1, -2) @ v)).transpose(1, 2).flatten(2)


class PositionOfQuery(Attention):
    """Positions that the query asks for as well, as in ViTDet: all of it is the query's."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 0.5
        self.positions = nn.Parameter(torch.randn(TOKENS, WIDTH // HEADS))

    def bias(self, x: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return q @ self.positions.T

    def treat(self, q: Tensor) -> Tensor:
        return q * self.scale


class PositionBias(Attention):
    """A bias of positions, as in T5, and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(TOKENS, TOKENS))

    def bias(self, x: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.positions.masked_fill(torch.ones(TOKENS, TOKENS).triu(1).bool(), -1e4)


class CappedAttention(Attention):
    """Logits with a cap behind them."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.heads(projection(x)) for projection in (self.q_proj, self.k_proj, self.v_proj))
        weights = (2.0 * torch.tanh(q @ k.transpose(-1, -2) / 2.0)).softmax(-1)
        return x + (weights @ v).transpose(1, 2).flatten(2)


class ScaledAttention(Attention):
    """A model with a scale of its own, which it multiplies a part of its logits by that is no query's."""

    def __init__(self) -> None:
        super().__init__()
        self.scaling = 0.5
        self.positions = nn.Parameter(torch.randn(TOKENS, TOKENS))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.heads(projection(x)) for projection in (self.q_proj, self.k_proj, self.v_proj))
        weights = ((q @ k.transpose(-1, -2) + self.positions) * self.scaling).softmax(-1)
        return x + (weights @ v).transpose(1, 2).flatten(2)


def batch() -> Tensor:
    return torch.randn(3, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))


def attach_and_prove(model: nn.Module, **options: object) -> Attachment:
    x = batch()
    return attach(model, HOT, example=lambda: model(x), **options)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (BiasOfContent, '"1.q_proj" acts in part only.*still depends on the tokens'),
        (OtherQueries, 'acts in only a part of "1"'),
        (HeadLeftOut, '"1.q_proj" acts in part only'),
        (ScaledAttention, '"1.q_proj" acts in part only.*own scale still acts'),
        (GatedAttention, '"1.q_proj" does not act as it should.*other ways than the weights of a softmax'),
        (Linear, '"1.q_proj" (reaches none of the softmaxes|does not act).*softmax'),
    ],
)
def test_a_temperature_that_acts_in_part_or_elsewhere_is_found(make, message) -> None:
    model = nn.Sequential(Attention(), make())
    with pytest.raises(AttachError, match=f"(?s){message}"):
        attach_and_prove(model)
    assert type(model[0].q_proj) is nn.Linear


@pytest.mark.parametrize("make", [PositionOfQuery, PositionBias, CappedAttention])
def test_what_is_added_by_position_and_what_caps_logits_is_as_it_should_be(make) -> None:
    assert attach_and_prove(nn.Sequential(Attention(), make())).tested


class FusedWithPositions(nn.Module):
    """A fused projection whose query makes a bias of positions too, so that halved keys do not cancel it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.positions = nn.Parameter(torch.randn(TOKENS, WIDTH // HEADS))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)
        return x + scaled_dot_product_attention(q, k, v, attn_mask=q @ self.positions.T).transpose(
            1, 2
        ).flatten(2)


def test_positions_that_a_fused_query_asks_for_are_tempered_with_it() -> None:
    assert attach_and_prove(nn.Sequential(FusedWithPositions())).tested


def test_attention_under_unknown_names_is_found_if_all_layers_were_meant() -> None:
    model = nn.Sequential(Attention(), Attention("ask"))
    with pytest.raises(
        AttachError, match=r'attention in "1" \(Attention\) has no temperature.*layers=\[...\]'
    ):
        attach_and_prove(model)
    assert attach_and_prove(model, layers=["0"]).tested


class Split(nn.Module):
    """The projections lie in a module of their own, and the softmax outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.ModuleDict({"q_proj": nn.Linear(WIDTH, WIDTH), "k_proj": nn.Linear(WIDTH, WIDTH)})

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.make["q_proj"](x), self.make["k_proj"](x)
        return x + (q @ k.transpose(-1, -2)).softmax(-1) @ x


def test_a_softmax_outside_of_the_module_that_makes_the_query_is_found() -> None:
    assert attach_and_prove(nn.Sequential(Split(), Split())).tested


class SplitWithBias(Split):
    def forward(self, x: Tensor) -> Tensor:
        q, k = self.make["q_proj"](x) + 1.0, self.make["k_proj"](x)
        return x + (q @ k.transpose(-1, -2)).softmax(-1) @ x


def test_a_part_is_found_there_as_well() -> None:
    with pytest.raises(AttachError, match="acts in part only"):
        attach_and_prove(nn.Sequential(Split(), SplitWithBias()))


def test_what_cannot_be_seen_is_not_said_to_be_proven() -> None:
    class Opaque(Attention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (self.heads(projection(x)) for projection in (self.q_proj, self.k_proj, self.v_proj))
            return torch._scaled_dot_product_attention_math(q, k, v)[0]

    model, x = Opaque(), batch()
    mechanism = QueryRowsMechanism(model, query_rows(model))
    prover = Prover(model, mechanism, lambda values, grad=False: [model(x)], lambda *_: True, True)
    assert not prover.prove().proven
    detach(model)
    # By the weights and by the way that the output goes it is tested all the same.
    assert attach(model, HOT, example=lambda: model(x)).tested


@pytest.mark.parametrize(
    "make", [Attention, PositionBias, lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)]
)
def test_a_frozen_forward_depends_on_no_logits_and_leaves_the_model_alone(make) -> None:
    model, x = make().eval(), batch()
    inputs = (x, x, x) if isinstance(model, nn.MultiheadAttention) else (x,)
    before = model(*inputs)
    attachment = attach(model, {}, example=None)

    def frozen_output() -> Tensor:
        with capture_softmaxes(model) as record:
            output = model(*inputs)
        assert len(record.softmaxes) == 1
        return output[0] if isinstance(output, tuple) else output

    cold = frozen_output()
    attachment.use({"temperature_init": 16.0})
    assert torch.equal(frozen_output(), cold)
    attachment.detach()
    after = model(*inputs)
    assert torch.equal(after[0], before[0])
    assert not model._forward_hooks and not model._forward_pre_hooks
