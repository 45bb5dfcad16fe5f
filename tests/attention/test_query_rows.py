from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils import parametrizations, prune

from tempopt.attention.attach.query_rows import query_rows
from tempopt.errors import AttachError


class Conv1D(nn.Module):
    """As in transformers: the weight is (input, output)."""

    def __init__(self, output: int, wide: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(wide, output) * 0.3)
        self.bias = nn.Parameter(torch.randn(output))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


WIDTH, HEADS, BATCH, TOKENS = 16, 4, 3, 7


class RowAttention(nn.Module):
    """Attention over any projection; the names of its projections are given."""

    def __init__(self, projections: dict[str, nn.Module]) -> None:
        super().__init__()
        for name, projection in projections.items():
            self.add_module(name, projection)

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.cat([projection(x) for projection in self.children()], dim=-1).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        return scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def logits(model: RowAttention, x: Tensor) -> Tensor:
    """The logits of attention, computed apart from the model's own forward."""
    q, k, _ = torch.cat([projection(x) for projection in model.children()], dim=-1).chunk(3, dim=-1)
    return q @ k.transpose(-1, -2)


def separate(query: str = "q_proj", *, bias: bool = True) -> RowAttention:
    names = (query, "k_proj", "v_proj")
    return RowAttention({name: nn.Linear(WIDTH, WIDTH, bias=bias) for name in names})


PROJECTIONS = {
    "separate": separate,
    "without bias": lambda: separate(bias=False),
    "fused linear": lambda: RowAttention({"qkv": nn.Linear(WIDTH, 3 * WIDTH)}),
    "fused without bias": lambda: RowAttention({"Wqkv": nn.Linear(WIDTH, 3 * WIDTH, bias=False)}),
    "fused Conv1D": lambda: RowAttention({"c_attn": Conv1D(3 * WIDTH, WIDTH)}),
}


@pytest.mark.parametrize("make", PROJECTIONS.values(), ids=PROJECTIONS)
def test_baking_divides_the_logits_and_leaves_the_values(make) -> None:
    torch.manual_seed(0)
    model, x = make(), torch.randn(BATCH, TOKENS, WIDTH)
    before = logits(model, x)
    value = torch.cat([projection(x) for projection in model.children()], dim=-1).chunk(3, dim=-1)[2]
    (layer,) = query_rows(model)
    layer.scale_(0.3)
    torch.testing.assert_close(logits(model, x), 0.3 * before)
    after = torch.cat([projection(x) for projection in model.children()], dim=-1).chunk(3, dim=-1)[2]
    assert torch.equal(after, value)


@pytest.mark.parametrize("sizes", [{}, {"kdim": 5, "vdim": 9}], ids=["packed", "other key and value"])
@pytest.mark.parametrize("bias", [True, False])
def test_baking_into_multihead_attention_sharpens_its_weights(sizes, bias) -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(WIDTH, 1, bias=bias, batch_first=True, **sizes)
    if bias:
        nn.init.normal_(model.in_proj_bias)
    query = torch.randn(BATCH, TOKENS, WIDTH)
    key = torch.randn(BATCH, TOKENS, sizes.get("kdim", WIDTH))
    value = torch.randn(BATCH, TOKENS, sizes.get("vdim", WIDTH))
    before = model(query, key, value)[1]
    query_rows(model)[0].scale_(2.5)
    # softmax(c z) is softmax(z) to the power c, normalised.
    expected = before**2.5 / (before**2.5).sum(-1, keepdim=True)
    torch.testing.assert_close(model(query, key, value)[1], expected, rtol=1e-4, atol=1e-5)


def test_layers_come_in_depth_order_under_their_module_names() -> None:
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, HEADS, 32), 12, enable_nested_tensor=False
    )
    assert [layer.name for layer in query_rows(encoder)] == [f"layers.{i}.self_attn" for i in range(12)]


def test_a_pattern_chooses_among_the_layers() -> None:
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, HEADS, 32), 3, enable_nested_tensor=False
    )
    layers = query_rows(encoder, ["*.2.self_attn", "layers.0"])
    assert [layer.name for layer in layers] == ["layers.0.self_attn", "layers.2.self_attn"]


def test_a_pattern_can_give_a_projection_of_any_name() -> None:
    model = nn.ModuleList(
        RowAttention({n: nn.Linear(WIDTH, WIDTH) for n in ("ask", "k", "v")}) for _ in range(2)
    )
    assert [layer.name for layer in query_rows(model, ["*.ask"])] == ["0.ask", "1.ask"]
    assert {rows.parts for rows in query_rows(model, ["*.ask"])[0].rows} == {1}


def test_a_projection_of_any_name_that_is_three_times_as_wide_is_read_as_fused() -> None:
    model = RowAttention({"together": nn.Linear(WIDTH, 3 * WIDTH)})
    assert {rows.parts for rows in query_rows(model, ["together"])[0].rows} == {3}


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (["nowhere.*"], 'Pattern "nowhere.*" in layers matches no module. Candidates: 0.ask'),
        (["0"], 'Pattern "0" in layers matches 0, none of which is a projection'),
        (["*.[ak]*"], "matches 2 projections side by side: 0.ask, 0.k. Only one of them makes the query"),
        ("*.ask", 'is a single text. Give "auto" or a list of patterns'),
    ],
)
def test_a_pattern_that_finds_no_query_is_refused(layers, message) -> None:
    model = nn.ModuleList([RowAttention({name: nn.Linear(WIDTH, WIDTH) for name in ("ask", "k", "v")})])
    with pytest.raises(AttachError) as error:
        query_rows(model, layers)
    assert message in str(error.value)


def shared_parameter() -> nn.Module:
    model = separate()
    model.k_proj.weight = model.q_proj.weight
    return model


def parametrized_projection() -> nn.Module:
    model = separate()
    parametrizations.orthogonal(model.q_proj)
    return model


def weight_normed() -> nn.Module:
    model = separate()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        torch.nn.utils.weight_norm(model.q_proj)
    return model


def pruned_bias() -> nn.Module:
    model = separate()
    prune.random_unstructured(model.q_proj, "bias", amount=0.5)
    return model


def parametrized_multihead() -> nn.Module:
    model = nn.MultiheadAttention(WIDTH, HEADS)
    torch.nn.utils.parametrize.register_parametrization(model, "in_proj_weight", nn.Identity())
    return model


def adapter_inside() -> nn.Module:
    class Adapted(nn.Linear):
        def __init__(self) -> None:
            super().__init__(WIDTH, WIDTH)
            self.lora_A = nn.Parameter(torch.zeros(2, WIDTH))

    return RowAttention({"q_proj": Adapted()})


def adapter_around() -> nn.Module:
    return RowAttention({"q_proj": nn.ModuleDict({"base_layer": nn.Linear(WIDTH, WIDTH)})})


def quantised_projection() -> nn.Module:
    model = separate()
    model.q_proj.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH, dtype=torch.int8), requires_grad=False)
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (shared_parameter, '"q_proj.weight" is shared by q_proj.weight, k_proj.weight'),
        (parametrized_projection, '"q_proj.weight" is not a parameter but computed from others'),
        (weight_normed, '"q_proj.weight" is not a parameter but computed from others'),
        (pruned_bias, '"q_proj.bias" is not a parameter but computed from others'),
        (parametrized_multihead, '"in_proj_weight" is not a parameter but computed from others'),
        (adapter_inside, '"q_proj" (Adapted) has more than a weight and a bias: lora_A'),
        (adapter_around, '"q_proj" is a ModuleDict; a temperature can be put on nn.Linear'),
        (quantised_projection, '"q_proj.weight" is quantised (torch.int8)'),
        (
            lambda: RowAttention({"qkv": nn.Linear(WIDTH, 24)}),
            "has 24 features and not 48, three times its input",
        ),
        (lambda: RowAttention({"query_key_value": nn.Linear(WIDTH, 48)}), "head by head"),
    ],
)
def test_what_cannot_be_scaled_from_outside_is_refused_with_the_reason(make, message) -> None:
    with pytest.raises(AttachError) as error:
        query_rows(make())
    assert message in str(error.value)
