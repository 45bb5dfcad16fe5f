"""Head importance against finite differences of gates; pruning against heads that are left out by hand."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_modules import AssociativeRecall
from lightning_modules.associative_recall import draw_recall
from tempopt.attention.modules.head_gates import AttendGates, HeadGates, ProjectionGates, least_important
from tempopt.errors import AttachError, SpecError, UsageError

M, H, L = 8, 4, 2
Example = tuple[Tensor, Tensor]


class Conv1D(nn.Module):
    """As in transformers: the weight is (input, output)."""

    def __init__(self, output: int, wide: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(wide, output) * 0.3)
        self.bias = nn.Parameter(torch.randn(output))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class CausalAttention(nn.Module):
    """Two layers that attend through a method, whose heads can be multiplied by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.num_layers = L
        self.qkv = nn.ModuleList(nn.Linear(M, 3 * M) for _ in range(L))
        self.out_proj = nn.ModuleList(nn.Linear(M, M) for _ in range(L))
        self.xi = torch.ones(L, H, dtype=torch.float64)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, layer: int, is_causal: bool = False) -> Tensor:
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        return out * self.xi[layer, :, None, None]

    def forward(self, x: Tensor) -> Tensor:
        for layer, (qkv, out_proj) in enumerate(zip(self.qkv, self.out_proj, strict=True)):
            q, k, v = qkv(x).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
            attended = self.attend(q, k, v, layer=layer, is_causal=True)
            x = x + out_proj(attended.transpose(1, 2).flatten(2))
        return x


class PackedAttention(nn.Module):
    """The same with nn.MultiheadAttention."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.MultiheadAttention(M, H, batch_first=True) for _ in range(L))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=False)[0]
        return x


def make_model(kind: type[nn.Module]) -> Any:
    torch.manual_seed(0)
    return kind().double()


def examples(count: int = 5) -> list[Example]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(1, 6, M, generator=generator, dtype=torch.float64),
            torch.randn(1, 6, M, generator=generator, dtype=torch.float64),
        )
        for _ in range(count)
    ]


def together(batch: list[Example]) -> Example:
    return torch.cat([x for x, _ in batch]), torch.cat([y for _, y in batch])


def loss_of(model: nn.Module) -> Callable[[Example], Tensor]:
    return lambda batch: (model(batch[0]) - batch[1]).square().mean()


def scale_head(model: nn.Module, layer: int, head: int, xi: float) -> nn.Module:
    """A copy whose head is multiplied by xi, in the columns of the projection behind it."""
    model = copy.deepcopy(model)
    projection = model.layers[layer].out_proj if isinstance(model, PackedAttention) else model.out_proj[layer]
    with torch.no_grad():
        projection.weight[:, head * M // H : (head + 1) * M // H] *= xi
    return model


def finite_differences(model: nn.Module, *, eps: float = 1e-5) -> Tensor:
    result = torch.zeros(L, H, dtype=torch.float64)
    for layer in range(L):
        for head in range(H):
            up, down = (loss_of(scale_head(model, layer, head, 1 + sign * eps)) for sign in (1, -1))
            slopes = [(up(batch) - down(batch)).item() / (2 * eps) for batch in examples()]
            result[layer, head] = sum(map(abs, slopes)) / len(slopes)
    return result


def gates_of(model: nn.Module) -> HeadGates:
    if isinstance(model, PackedAttention):
        return ProjectionGates(model)
    return AttendGates(model, num_heads=H)


def stack(importance: list[Tensor]) -> Tensor:
    return torch.stack(importance)


@pytest.mark.parametrize("kind", [CausalAttention, PackedAttention])
def test_importance_is_the_mean_slope_of_the_loss_in_each_gate(kind: type[nn.Module]) -> None:
    model = make_model(kind)
    expected = finite_differences(model)
    importance = stack(gates_of(model).importance(loss_of(model), examples(), normalise=False))
    torch.testing.assert_close(importance, expected, rtol=1e-6, atol=1e-9)


def test_importance_is_exact_in_batches_too_where_the_sum_over_a_batch_cancels() -> None:
    model = make_model(CausalAttention)
    gates = AttendGates(model, num_heads=H)
    single = stack(gates.importance(loss_of(model), examples(), normalise=False))
    batch = [together(examples()[:3]), together(examples()[3:])]
    torch.testing.assert_close(stack(gates.importance(loss_of(model), batch, normalise=False)), single)
    summed = ProjectionGates(model, projections=["out_proj.*"], num_heads=H)
    cancelled = stack(summed.importance(loss_of(model), [together(examples())], normalise=False))
    assert bool((cancelled <= single + 1e-12).all())
    assert bool((cancelled < 0.9 * single).any())


def test_importance_is_normalised_layer_by_layer() -> None:
    model = make_model(PackedAttention)
    gates = ProjectionGates(model)
    raw, normalised = (
        gates.importance(loss_of(model), examples(), normalise=normalise) for normalise in (False, True)
    )
    for before, after in zip(raw, normalised, strict=True):
        assert after.norm().item() == pytest.approx(1.0)
        torch.testing.assert_close(after, before / before.norm())


@pytest.mark.parametrize("kind", [CausalAttention, PackedAttention])
@pytest.mark.parametrize("grad", [True, False])
def test_a_pruned_head_is_left_out_and_comes_back_to_the_bit(kind: type[nn.Module], grad: bool) -> None:
    model = make_model(kind).eval()
    x, _ = together(examples())
    expected = scale_head(scale_head(scale_head(model, 0, 1, 0.0), 1, 0, 0.0), 1, 3, 0.0)
    gates = gates_of(model)
    with torch.set_grad_enabled(grad):
        untouched = model(x)
        gates.prune({0: [1]})
        gates.prune({1: [3, 0], 0: [1]})
        assert gates.pruned == {0: (1,), 1: (0, 3)}
        torch.testing.assert_close(model(x), expected(x))
        assert not torch.equal(model(x), untouched)
        gates.restore()
        assert torch.equal(model(x), untouched)
    assert gates.pruned == {}


def test_the_least_important_heads_leave_one_in_each_layer() -> None:
    importance = [torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.9, 0.8])]
    assert least_important(importance, 0) == {}
    assert least_important(importance, 2) == {0: (0, 1)}
    assert least_important(importance, 3) == {0: (0, 1), 1: (1,)}
    with pytest.raises(UsageError, match="Give 0 to 3"):
        least_important(importance, 4)


def test_gates_work_on_a_tempered_module_and_go_without_a_trace() -> None:
    torch.manual_seed(0)
    model = AssociativeRecall(vocabulary=32, d_model=16, num_heads=4, temperature_init=0.5).eval()
    recall = draw_recall(6, 4, vocabulary=32, generator=torch.Generator().manual_seed(0))
    before, attributes = model(recall), vars(model).copy()
    gates = AttendGates(model, num_heads=4)

    def loss(batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch), batch.values_BQ)

    importance = stack(gates.importance(loss, [recall]))
    by_projection = ProjectionGates(model, projections=["body.*.out_proj"], num_heads=4)
    single = [type(recall)(*(part[i : i + 1] for part in recall)) for i in range(6)]
    torch.testing.assert_close(
        importance, stack(by_projection.importance(loss, single)), rtol=1e-4, atol=1e-5
    )
    gates.prune(least_important(list(importance), 3))
    assert not torch.equal(model(recall), before)
    gates.detach()
    assert torch.equal(model(recall), before)
    assert vars(model).keys() == attributes.keys()


def test_a_conv1d_keeps_its_inputs_in_rows() -> None:
    def transposed(linear: nn.Linear) -> Conv1D:
        layer = Conv1D(linear.out_features, linear.in_features).to(linear.weight.dtype)
        layer.load_state_dict({"weight": linear.weight.detach().T, "bias": linear.bias.detach()})
        return layer

    model = make_model(CausalAttention)
    turned = copy.deepcopy(model)
    turned.out_proj = nn.ModuleList(transposed(linear) for linear in model.out_proj)
    gates, turned_gates = (
        ProjectionGates(network, projections=["out_proj.*"], num_heads=H) for network in (model, turned)
    )
    expected = gates.importance(loss_of(model), examples())
    torch.testing.assert_close(turned_gates.importance(loss_of(turned), examples()), expected)
    gates.prune({0: [2]})
    turned_gates.prune({0: [2]})
    x, _ = together(examples())
    torch.testing.assert_close(turned(x), model(x))


def test_what_has_no_heads_to_gate_is_refused() -> None:
    attending, packed = make_model(CausalAttention), make_model(PackedAttention)
    with pytest.raises(AttachError, match="no attend method"):
        AttendGates(packed, num_heads=H)
    with pytest.raises(AttachError, match=r"no nn.MultiheadAttention"):
        ProjectionGates(attending)
    with pytest.raises(AttachError, match="num_heads=None"):
        ProjectionGates(attending, projections=["out_proj.*"])
    with pytest.raises(AttachError, match="matches no module"):
        ProjectionGates(attending, projections=["o_proj.*"], num_heads=H)
    with pytest.raises(AttachError, match="Give a list"):
        ProjectionGates(attending, projections="out_proj", num_heads=H)  # type: ignore[arg-type]
    with pytest.raises(AttachError, match="3 heads do not divide"):
        ProjectionGates(attending, projections=["out_proj.*"], num_heads=3)
    with pytest.raises(AttachError, match="no matrix"):
        ProjectionGates(attending, projections=["out_proj"], num_heads=H)
    attending.out_proj[1].weight = attending.out_proj[0].weight
    with pytest.raises(AttachError, match="share one weight"):
        ProjectionGates(attending, projections=["out_proj.*"], num_heads=H)
    with pytest.raises(SpecError, match="at least 1"):
        AttendGates(attending, num_heads=0)


def test_what_gates_cannot_do_is_said() -> None:
    model = make_model(CausalAttention)
    gates = AttendGates(model, num_heads=H)
    with pytest.raises(AttachError, match="already has gates"):
        AttendGates(model, num_heads=H)
    with pytest.raises(UsageError, match="Layers 0 to 1"):
        gates.prune({2: [0]})
    with pytest.raises(UsageError, match=r"heads \[4\] of layer 0"):
        gates.prune({0: [4]})
    assert gates.pruned == {}
    with pytest.raises(UsageError, match="no batch"):
        gates.importance(loss_of(model), [])
    with pytest.raises(UsageError, match="shape"):
        gates.importance(lambda batch: model(batch[0]), examples())
    with pytest.raises(UsageError, match="the value nan"):
        gates.importance(lambda batch: model(batch[0]).sum() * float("nan"), examples())
    with pytest.raises(UsageError, match="did not attend"):
        gates.importance(lambda batch: batch[0].sum(), examples())
    gates.detach()
    wrong = AttendGates(model, num_heads=2)
    with pytest.raises(UsageError, match="number of heads"):
        wrong.importance(loss_of(model), examples())


def test_gates_are_the_losss_own_under_activation_checkpointing() -> None:
    model = make_model(CausalAttention)
    gates = AttendGates(model, num_heads=H)
    plain = gates.importance(loss_of(model), examples())

    def checkpointed_loss(batch: Example) -> Tensor:
        run = functools.partial(torch.utils.checkpoint.checkpoint, model, use_reentrant=False)
        out: Tensor = run(batch[0].clone().requires_grad_())
        return (out - batch[1]).square().mean()

    torch.testing.assert_close(gates.importance(checkpointed_loss, examples()), plain)


def test_frozen_projections_have_importance() -> None:
    model = make_model(PackedAttention)
    expected = ProjectionGates(model).importance(loss_of(model), examples())
    model.requires_grad_(False)
    torch.testing.assert_close(ProjectionGates(model).importance(loss_of(model), examples()), expected)
    assert not any(param.requires_grad for param in model.parameters())
