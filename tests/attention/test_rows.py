"""A schedule on the outputs of projections: they are divided by the temperature, and nothing else changes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from tempopt import AttachError, RowsAttachment, SpecError, attach, attach_rows, attach_value, bake
from tempopt.attention.attach.attachment import detach

COSINE = {"schedule": "cosine", "temperature_final": 0.25}


class Router(nn.Module):
    """As in transformers: it keeps its weight itself, and returns logits, scores and choice."""

    def __init__(self, *, tells: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8))
        self.tells = tells

    def forward(self, x: Tensor) -> Any:
        logits = F.linear(x, self.weight)
        scores = logits.softmax(-1)
        return (logits, scores, scores.argmax(-1)) if self.tells else scores


class Model(nn.Module):
    """A small mixture of experts before a classifier."""

    def __init__(self, behind: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.gate = Router()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 5)
        self.behind = behind or nn.Identity()
        self.idle = nn.Linear(8, 5)
        self.tau = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        x = self.body(x).relu()
        scores = self.gate(x)[1]
        mixed = sum(scores[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
        return F.cross_entropy(self.behind(self.head(self.norm(mixed))) / self.tau, label)


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(16, 4), torch.randint(0, 5, (16,))


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model()


def trained(model: nn.Module, batch: Any, steps: int = 5, moves: Any = None) -> dict[str, Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for step in range(steps):
        if moves is not None:
            moves(step)
        optimizer.zero_grad()
        model(*batch).backward()
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def by_hand(model: Model, tau: float, *names: str) -> Model:
    """Return a copy with weight and bias of some modules divided by a temperature."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name in names:
            for parameter in other.get_submodule(name).parameters():
                parameter.mul_(1 / tau)
    return other


@given(tau=st.floats(1e-3, 1e3), names=st.sampled_from([("head",), ("gate",), ("gate", "head")]))
def test_it_is_the_model_with_its_weights_divided_by_hand(tau: float, names: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    model, x, label = Model(), torch.randn(16, 4), torch.randint(0, 5, (16,))
    expected, plain = by_hand(model, tau, *names)(x, label), model(x, label)
    with attach_rows(model, list(names), {"temperature_init": tau}) as attached:
        assert attached.temperatures == (tau,) and attached.found == 1.0
        assert torch.equal(model(x, label), expected)
    assert torch.equal(model(x, label), plain)


@pytest.mark.parametrize("given", [{}, {"temperature_init": 1.0}, {"schedule": "linear"}])
def test_as_found_training_is_bit_for_bit_that_without_it(
    model: Model, batch: Any, given: dict[str, Any]
) -> None:
    other = copy.deepcopy(model)
    attach_rows(other, ["gate", "head"], given)
    plain, tempered = trained(model, batch), trained(other, batch)
    assert plain.keys() == tempered.keys()
    assert all(torch.equal(value, tempered[name]) for name, value in plain.items())


def test_a_schedule_trains_as_one_that_is_multiplied_into_the_outputs(model: Model, batch: Any) -> None:
    other = copy.deepcopy(model)
    attached = attach_rows(other, "head", {"schedule": "linear", "temperature_final": 0.5})
    found = trained(other, batch, moves=lambda step: attached.set_progress(step / 4))
    taus = [1.0, 0.875, 0.75, 0.625, 0.5]
    now = [1.0]
    model.head.register_forward_hook(lambda module, args, output: output / now[0])
    expected = trained(model, batch, moves=lambda step: now.__setitem__(0, taus[step]))
    assert all(torch.allclose(value, found[name], atol=1e-5) for name, value in expected.items())


def test_it_goes_on_in_mid_schedule_from_a_state_dict(model: Model, batch: Any) -> None:
    given = {"schedule": "linear", "temperature_final": 0.5}
    whole, again = copy.deepcopy(model), copy.deepcopy(model)
    attached = attach_rows(model, "gate", given)
    trained(model, batch, 2, moves=lambda step: attached.set_progress(step / 4))
    state = model.state_dict()
    assert state.keys() == whole.state_dict().keys()
    again.load_state_dict(state)
    other = attach_rows(again, "gate", given)
    for each, to in ((model, attached), (again, other)):
        trained(each, batch, 2, moves=lambda step, to=to: to.set_progress((2 + step) / 4))
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in state.items())


def test_plans_are_changed_held_and_taken_off(model: Model) -> None:
    attached = attach_rows(model, ["gate", "exp*.1"], COSINE)
    assert isinstance(attached, RowsAttachment) and attached.layers == ["gate", "experts.1"]
    weight = model.gate._parameters["weight"]
    attached.set_progress(1.0)
    assert torch.equal(model.gate.weight, weight * 4)
    attached.set_temperatures([2.0])
    assert torch.equal(model.gate.weight, weight / 2)
    attached.use({})
    assert torch.equal(model.gate.weight, weight) and attached.temperatures == (1.0,)
    attached.detach()
    attached.detach()
    assert type(model.gate) is Router and not attached.attached
    with pytest.raises(AttachError, match=r'"gate, experts.1" was detached'):
        attached.set_progress(0.5)


def test_it_is_copied_and_pickled_with_its_model(model: Model) -> None:
    attached = attach_rows(model, "head", COSINE)
    for other, same in (
        copy.deepcopy((model, attached)),
        pickle.loads(pickle.dumps((model, attached))),
    ):
        same.set_progress(1.0)
        assert torch.equal(other.head.weight, model.head._parameters["weight"] * 4)
        assert torch.equal(model.head.weight, model.head._parameters["weight"])


def test_baked_it_is_in_the_weights_and_refused_afterwards(model: Model, batch: Any) -> None:
    attach_rows(model, "gate", COSINE).set_progress(1.0)
    expected = model(*batch)
    assert bake(model) == {"gate": 0.25}
    assert type(model.gate) is Router and torch.equal(model(*batch), expected)
    with pytest.raises(AttachError, match=r'"gate" has the temperature 0.25 in its weights already'):
        attach_rows(model, "gate", COSINE)
    attach_rows(model, "head", COSINE)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.q_proj = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)


@pytest.mark.parametrize("rows_first", [False, True])
def test_attention_and_outputs_each_have_their_own_and_leave_the_others(rows_first: bool) -> None:
    model = Attending()
    layers = ["attention"]
    if rows_first:
        rows = attach_rows(model, "head", {"temperature_init": 2.0})
        queries = attach(model, {"temperature_init": 4.0}, layers=layers, example=None)
    else:
        queries = attach(model, {"temperature_init": 4.0}, layers=layers, example=None)
        rows = attach_rows(model, "head", {"temperature_init": 2.0})
    queries.detach()
    assert rows.attached and torch.equal(model.head.weight, model.head._parameters["weight"] / 2)
    queries = attach(model, {"temperature_init": 4.0}, layers=layers, example=None)
    rows.detach()
    assert queries.attached and type(model.head) is nn.Linear
    attach_rows(model, "head", {})
    detach(model)
    assert type(model.head) is nn.Linear and type(model.attention) is nn.MultiheadAttention


def test_what_attention_has_is_refused_and_the_other_way_round() -> None:
    model = Attending()
    with (
        attach(model, {"temperature_init": 4.0}, layers=["q_proj"], example=None),
        pytest.raises(
            AttachError, match=r'"q_proj" is part of an attention that has a temperature attached already'
        ),
    ):
        attach_rows(model, "q_proj", COSINE)
    attach_rows(model, "q_proj", COSINE)
    with pytest.raises(AttachError, match=r'"q_proj" has a temperature of attach_rows already'):
        attach(model, {"temperature_init": 4.0}, layers=["q_proj"], example=None)


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ("gat", r'Pattern "gat" in rows matches no module. Candidates: gate, head. Give patterns'),
        (["head", "nothing.*"], r'Pattern "nothing.\*" in rows matches no module'),
        ("norm", r'Pattern "norm" in rows matches norm \(LayerNorm\), and none of it is a projection'),
        ([], r"No pattern of projections is given"),
    ],
)
def test_patterns_that_match_no_projection_are_refused(model: Model, patterns: Any, message: str) -> None:
    with pytest.raises(AttachError, match=message):
        attach_rows(model, patterns, COSINE)
    attach_rows(model, "*", COSINE)


def test_what_cannot_have_a_temperature_of_its_own_is_refused(model: Model) -> None:
    model.embedding = nn.Embedding(5, 8)
    model.head.weight = model.embedding.weight
    with pytest.raises(AttachError, match=r'"head.weight" is shared by .*or leave it out of rows'):
        attach_rows(model, "head", COSINE)
    with pytest.raises(AttachError, match=r"matches embedding \(Embedding\), and none of it"):
        attach_rows(model, "embedding", COSINE)
    nn.utils.parametrizations.weight_norm(model.idle)
    with pytest.raises(AttachError, match=r'"idle.weight" is not a parameter but computed'):
        attach_rows(model, "idle", COSINE)
    attach_rows(model, "gate", COSINE)
    with pytest.raises(AttachError, match=r'"gate" has a temperature of attach_rows already'):
        attach_rows(model, ["gate", "body"], COSINE)
    assert type(model.body) is nn.Linear


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"layer_ratio": 2.0}, AttachError, r"layer_ratio=2.0 is about layers, lengths or attention"),
        ({"temperature": 0.1}, AttachError, r'Unknown temperature parameter "temperature"'),
        ({"temperature_init": -1.0}, SpecError, r"temperature_init=-1.0 is out of range"),
    ],
)
def test_parameters_that_rows_cannot_follow_are_refused(
    model: Model, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        attach_rows(model, "head", given)
    assert type(model.head) is nn.Linear


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("pattern", ["gate", "head", "experts.*"])
def test_the_self_test_passes_what_training_reads_and_leaves_all_as_it_was(
    model: Model, batch: Any, pattern: str, frozen: bool
) -> None:
    model.head.requires_grad_(not frozen)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    attached = attach_rows(model, pattern, {"temperature_init": 2.0}, loss=lambda: model(*batch))
    assert attached.temperatures == (2.0,)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(each.grad is None for each in model.parameters())
    assert model.head.weight.requires_grad is not frozen


@pytest.mark.parametrize(
    "behind",
    [nn.LayerNorm(5), nn.RMSNorm(5), nn.BatchNorm1d(5)],
)
def test_what_is_normalised_right_behind_is_refused(batch: Any, behind: nn.Module) -> None:
    torch.manual_seed(0)
    model = Model(behind)
    with pytest.raises(AttachError, match=r"do not move with the temperature of head: what it returns is n"):
        attach_rows(model, ["gate", "head"], {}, loss=lambda: model(*batch))
    assert type(model.head) is nn.Linear and type(model.gate) is Router


def test_what_normalises_its_own_weights_is_refused_and_its_scale_is_a_value(
    model: Model, batch: Any
) -> None:
    class Cosine(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(F.normalize(x), F.normalize(self.weight))

    model.head = Cosine(8, 5, bias=False)
    with pytest.raises(AttachError, match=r"give its path as value"):
        attach_rows(model, "head", {}, loss=lambda: model(*batch))
    attach_value(model, "tau", {}, loss=lambda: model(*batch))


def test_what_training_does_not_use_is_refused_unless_others_are_used(model: Model, batch: Any) -> None:
    with pytest.raises(AttachError, match=r'The loss of this batch uses none of "idle"'):
        attach_rows(model, "idle", {}, loss=lambda: model(*batch))
    attach_rows(model, ["idle", "head"], {}, loss=lambda: model(*batch))


def test_a_router_that_returns_no_logits_is_refused(model: Model, batch: Any) -> None:
    router = Router(tells=False)
    model.gate = router

    def loss() -> Tensor:
        x = model.body(batch[0]).relu()
        return (router(x) * torch.arange(3.0)).sum()

    with pytest.raises(AttachError, match=r'At temperature 2 "gate" returns nothing that is half'):
        attach_rows(model, "gate", {}, loss=loss)


def test_a_projection_whose_forward_reads_a_copy_of_its_weights_is_refused(model: Model, batch: Any) -> None:
    class Copied(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self._parameters["weight"], self.bias)

    model.head = Copied(8, 5)
    nn.init.normal_(model.head.bias)
    with pytest.raises(AttachError, match=r"is not what it is with weight and bias divided"):
        attach_rows(model, "head", {}, loss=lambda: model(*batch))


def test_the_self_test_refuses_a_loss_that_tells_nothing(model: Model, batch: Any) -> None:
    def another() -> Tensor:
        return model(batch[0] * next(numbers), batch[1])

    numbers = iter(range(1, 99))
    with pytest.raises(AttachError, match=r'not the same twice, so it cannot be told whether "head" moves'):
        attach_rows(model, "head", {}, loss=another)
    with pytest.raises(AttachError, match=r"The loss returned no tensor"):
        attach_rows(model, "head", {}, loss=lambda: None)


def test_a_projection_without_a_shape_is_refused() -> None:
    with pytest.raises(AttachError, match=r'"0.weight" has no shape before the first batch'):
        attach_rows(nn.Sequential(nn.LazyLinear(3)), "0", {})


SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
QWEN = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


@pytest.mark.parametrize(
    ("config", "given", "acts"),
    [
        ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}, True),
        # the score of one chosen expert is divided by itself
        ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 1}, False),
        ("Qwen2MoeConfig", {**QWEN, "shared_expert_intermediate_size": 16}, True),
        ("Qwen3MoeConfig", QWEN, True),
    ],
)
def test_routers_of_transformers_are_divided_by_the_temperature(
    config: str, given: dict[str, Any], acts: bool
) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**SIZES, **given))
    ids = torch.randint(1, 64, (2, 12))

    def loss() -> Tensor:
        found: Tensor = model(input_ids=ids, labels=ids).loss
        return found

    if not acts:
        with pytest.raises(AttachError, match=r"do not move with the temperature of model.layers.0.mlp.gate"):
            attach_rows(model, "*.mlp.gate", {}, loss=loss)
        return
    other = copy.deepcopy(model)
    with torch.no_grad():
        for layer in other.model.layers:
            layer.mlp.gate.weight.mul_(1 / 1.5)
    attached = attach_rows(model, "*.mlp.gate", {"temperature_init": 1.5}, loss=loss)
    assert attached.layers == ["model.layers.0.mlp.gate", "model.layers.1.mlp.gate"]
    assert torch.equal(model(input_ids=ids).logits, other(input_ids=ids).logits)
