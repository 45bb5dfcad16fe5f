from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import functional_call
from torch.nn.functional import scaled_dot_product_attention

from tempopt.attention.attach.projection import Factors, QueryRowsMechanism, TemperedProjection, restore
from tempopt.attention.attach.query_rows import query_rows
from tempopt.errors import AttachError

WIDTH, HEADS, BATCH, TOKENS = 16, 4, 3, 7
FACTORS = (1 / 3.0, 1 / 0.7)


class Conv1D(nn.Module):
    """As in transformers: the weight is (input, output)."""

    def __init__(self, output: int, wide: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(wide, output) * 0.3)
        self.bias = nn.Parameter(torch.randn(output))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class ProjectionBlock(nn.Module):
    """Causal attention over one fused projection or three separate ones, with dropout."""

    def __init__(self, projections: dict[str, nn.Module]) -> None:
        super().__init__()
        self.projections = nn.ModuleDict(projections)

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.cat([projection(x) for projection in self.projections.values()], dim=-1).chunk(
            3, dim=-1
        )
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        dropout = 0.2 if self.training else 0.0
        attended = scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        return x + attended.transpose(1, 2).flatten(2)


class CrossAttention(nn.Module):
    """Multi-head attention whose keys and values have other sizes, so that its weights are separate."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, kdim=5, vdim=9, batch_first=True, dropout=0.2)
        nn.init.normal_(self.attention.in_proj_bias)

    def forward(self, x: Tensor) -> Tensor:
        padded = torch.arange(TOKENS).expand(BATCH, TOKENS) >= 5
        return x + self.attention(x, x[..., :5], x[..., :9], key_padding_mask=padded)[0]


def encoder(**options) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.2, batch_first=True, **options)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    for encoder_layer in model.layers:
        nn.init.xavier_uniform_(encoder_layer.self_attn.in_proj_weight)
        if encoder_layer.self_attn.in_proj_bias is not None:
            nn.init.normal_(encoder_layer.self_attn.in_proj_bias)
    return model


MODELS = {
    "encoder": encoder,
    "encoder without bias": lambda: encoder(bias=False),
    "separate": lambda: nn.Sequential(
        *(
            ProjectionBlock({name: nn.Linear(WIDTH, WIDTH) for name in ("q_proj", "k_proj", "v_proj")})
            for _ in range(2)
        )
    ),
    "fused": lambda: nn.Sequential(
        *(ProjectionBlock({"qkv": nn.Linear(WIDTH, 3 * WIDTH)}) for _ in range(2))
    ),
    "fused Conv1D": lambda: nn.Sequential(
        *(ProjectionBlock({"c_attn": Conv1D(3 * WIDTH, WIDTH)}) for _ in range(2))
    ),
    "other key and value": lambda: nn.Sequential(CrossAttention(), CrossAttention()),
}


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def pair(request) -> tuple[nn.Module, nn.Module]:
    """A tempered model, and the same with the temperatures baked in and nothing attached."""
    torch.manual_seed(0)
    model = request.param()
    baked = copy.deepcopy(model)
    for layer, factor in zip(query_rows(baked), FACTORS, strict=True):
        layer.scale_(factor)
    temper_model(model).set_values(FACTORS)
    return model, baked


def temper_model(model: nn.Module) -> QueryRowsMechanism:
    return QueryRowsMechanism(model, query_rows(model))


def batch() -> Tensor:
    return torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))


def outputs(model: nn.Module, x: Tensor | None = None) -> Tensor:
    torch.manual_seed(2)
    return model(batch() if x is None else x)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_it_is_the_baked_model(pair, training) -> None:
    model, baked = (network.train(training) for network in pair)
    assert torch.equal(outputs(model), outputs(baked))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_is_the_baked_model_without_gradients(pair, mode) -> None:
    model, baked = (network.eval() for network in pair)
    with mode():
        assert torch.equal(outputs(model), outputs(baked))


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_it_is_the_baked_model_under_autocast(pair, training) -> None:
    model, baked = (network.train(training) for network in pair)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(outputs(model), outputs(baked))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_it_is_the_baked_model_in_other_types(pair, dtype) -> None:
    model, baked = (network.eval().to(dtype) for network in pair)
    # To bake and then to round is not to round and then to bake.
    baked.load_state_dict(model.state_dict())
    for layer, factor in zip(query_rows(baked), FACTORS, strict=True):
        layer.scale_(factor)
    assert torch.equal(outputs(model, batch().to(dtype)), outputs(baked, batch().to(dtype)))


def test_gradients_are_those_of_the_temperature_written_into_the_forward() -> None:
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH).double()
    x = batch().double()
    expected = (0.25 * model(x)).square().sum()
    expected_grads = torch.autograd.grad(expected, list(model.parameters()))
    holder = nn.ModuleDict({"q_proj": model})
    temper_model(holder).set_values([0.25])
    grads = torch.autograd.grad(holder["q_proj"](x).square().sum(), list(model.parameters()))
    torch.testing.assert_close(grads, expected_grads)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
def test_the_fast_path_of_the_encoder_gets_the_tempered_weights() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
    baked = copy.deepcopy(model)
    plain = copy.deepcopy(model)
    for rows, factor in zip(query_rows(baked), FACTORS, strict=True):
        rows.scale_(factor)
    temper_model(model).set_values(FACTORS)
    padded = torch.arange(TOKENS).expand(BATCH, TOKENS) >= torch.tensor([[7], [5], [3]])
    with torch.no_grad(), torch.profiler.profile() as profile:
        result = model(batch(), src_key_padding_mask=padded)
    assert "aten::_transformer_encoder_layer_fwd" in {event.name for event in profile.events()}
    with torch.no_grad():
        assert torch.equal(result, baked(batch(), src_key_padding_mask=padded))
        assert not torch.allclose(result, plain(batch(), src_key_padding_mask=padded))


def test_the_fast_path_of_multihead_attention_gets_the_tempered_weights() -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    baked = copy.deepcopy(model)
    query_rows(baked)[0].scale_(0.3)
    temper_model(model).set_values([0.3])
    x = batch()
    with torch.no_grad(), torch.profiler.profile() as profile:
        result = model(x, x, x, need_weights=False)[0]
    assert "aten::_native_multi_head_attention" in {event.name for event in profile.events()}
    with torch.no_grad():
        assert torch.equal(result, baked(x, x, x, need_weights=False)[0])


def test_names_order_state_and_parameters_stay_as_they_are() -> None:
    model = encoder()
    names = [name for name, _ in model.named_parameters()]
    identities = [id(parameter) for parameter in model.parameters()]
    state = copy.deepcopy(model.state_dict())
    temper_model(model).set_values(FACTORS)
    assert [name for name, _ in model.named_parameters()] == names
    assert [id(parameter) for parameter in model.parameters()] == identities
    assert list(model.named_buffers()) == []
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_that_is_loaded_is_tempered_too(pair, assign) -> None:
    model, baked = pair
    state = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=assign)
    baked.load_state_dict(state)
    for layer, factor in zip(query_rows(baked), FACTORS, strict=True):
        layer.scale_(factor)
    assert torch.equal(outputs(model), outputs(baked))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def through_pickle(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


def through_torch_save(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle, through_torch_save])
def test_a_copy_is_tempered_as_the_original_was_and_on_its_own(pair, copied) -> None:
    model, baked = pair
    twin = copied(model)
    assert [type(module) for module in twin.modules()] == [type(module) for module in model.modules()]
    model_factors(model).set([1.0, 1.0])
    assert torch.equal(outputs(twin), outputs(baked))


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])
def test_a_copy_keeps_the_factors_exact(copied) -> None:
    holder = nn.ModuleDict({"q_proj": nn.Linear(WIDTH, WIDTH)}).double()
    temper_model(holder).set_values([1 / 3])
    assert torch.equal(copied(holder)["q_proj"].weight, holder["q_proj"]._parameters["weight"] * (1 / 3))


def test_conversion_keeps_the_factors_exact() -> None:
    holder = nn.ModuleDict({"q_proj": nn.Linear(WIDTH, WIDTH)})
    factors = temper_model(holder)
    factors.set_values([1 / 3])
    holder.to(torch.bfloat16).to(torch.float64)
    projection = holder["q_proj"]
    assert torch.equal(projection.weight, projection._parameters["weight"] * (1 / 3))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_it_compiles_to_one_graph_however_often_the_temperature_changes(pair, backend) -> None:
    model, baked = (network.eval() for network in pair)
    factors = model_factors(model)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for step in range(12):
        factors.set([1 / (step + 1), step + 1.0])
        torch.testing.assert_close(outputs(compiled), outputs(model))
        outputs(compiled).sum().backward()
    factors.set(FACTORS)
    torch.testing.assert_close(outputs(compiled), outputs(baked))
    assert counter.frame_count == 1


def model_factors(model: nn.Module) -> Factors:
    projection = next(module for module in model.modules() if isinstance(module, TemperedProjection))
    return projection.__dict__["_tempopt_binding"].factors


def test_functional_call_swaps_the_parameter_and_keeps_the_temperature(pair) -> None:
    model, baked = (network.eval() for network in pair)
    state = {name: torch.rand_like(value) for name, value in model.named_parameters()}
    baked.load_state_dict(state)
    for layer, factor in zip(query_rows(baked), FACTORS, strict=True):
        layer.scale_(factor)
    torch.testing.assert_close(functional_call(model, state, batch()), outputs(baked))


def test_reset_parameters_initialises_the_parameters() -> None:
    model = nn.MultiheadAttention(WIDTH, HEADS)
    plain = copy.deepcopy(model)
    temper_model(model).set_values([0.5])
    for network in (model, plain):
        torch.manual_seed(4)
        network._reset_parameters()
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


@pytest.mark.parametrize(
    "initialise", [lambda weight: nn.init.normal_(weight), lambda weight: weight.data.fill_(1)]
)
def test_apply_initialises_the_parameters(initialise) -> None:
    def apply(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            initialise(module.weight)

    model = nn.ModuleDict({"q_proj": nn.Linear(WIDTH, WIDTH), "k_proj": nn.Linear(WIDTH, WIDTH)})
    plain = copy.deepcopy(model)
    temper_model(model).set_values([0.5])
    for network in (model, plain):
        torch.manual_seed(4)
        network.apply(apply)
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


def test_a_change_in_place_that_would_be_lost_is_refused_at_the_next_use() -> None:
    model = nn.ModuleDict({"q_proj": nn.Linear(WIDTH, WIDTH)})
    temper_model(model)
    nn.init.zeros_(model["q_proj"].weight)
    with pytest.raises(AttachError, match='"q_proj.weight" was changed in place, but what is read there'):
        model["q_proj"](batch())


@pytest.mark.parametrize(
    "write",
    [
        lambda layer: layer.weight.data.mul_(0.5),
        lambda layer: layer.weight.data[0].zero_(),
        lambda layer: setattr(layer.weight, "data", torch.zeros(WIDTH, WIDTH)),
    ],
)
def test_a_change_of_data_that_would_be_lost_is_refused_at_the_next_use(write: Any) -> None:
    model = nn.ModuleDict({"q_proj": nn.Linear(WIDTH, WIDTH)})
    temper_model(model)
    assert copy.deepcopy(model)["q_proj"](batch()).shape == model["q_proj"](batch()).shape
    write(model["q_proj"])
    # a copy has lost nothing itself
    copied = pickle.loads(pickle.dumps(model))
    assert torch.equal(copied["q_proj"](batch()), copied["q_proj"](batch()))
    with pytest.raises(AttachError, match='"q_proj.weight" was changed in place, but what is read there'):
        model["q_proj"](batch())


def test_changing_the_temperature_between_forward_and_backward_is_refused() -> None:
    model = nn.ModuleDict({"q_proj": nn.Linear(WIDTH, WIDTH)})
    factors = temper_model(model)
    loss = model["q_proj"](batch()).sum()
    factors.set_values([0.5])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_restoring_gives_the_module_its_own_class_and_attributes() -> None:
    model = nn.MultiheadAttention(WIDTH, HEADS)
    attributes = set(vars(model))
    temper_model(model)
    assert type(model).__name__ == "TemperedMultiheadAttention"
    assert isinstance(model, nn.MultiheadAttention)
    restore(model)
    assert type(model) is nn.MultiheadAttention
    assert set(vars(model)) == attributes
