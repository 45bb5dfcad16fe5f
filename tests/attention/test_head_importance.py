"""What heads are worth: against copies whose heads are zeroed by hand, jackknives and scipy's intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

from tempopt.attention.analysis.head_importance import contributions, importance_intervals, pruning_curve
from tempopt.attention.modules.head_gates import AttendGates, least_important
from tempopt.errors import UsageError
from tests.attention.test_heads import (
    CausalAttention,
    Example,
    H,
    L,
    PackedAttention,
    examples,
    gates_of,
    loss_of,
    make_model,
    scale_head,
    together,
)

KINDS = [CausalAttention, PackedAttention]


def zero_heads(model: nn.Module, heads: dict[int, list[int]]) -> nn.Module:
    for layer, numbers in heads.items():
        for head in numbers:
            model = scale_head(model, layer, head, 0.0)
    return model.eval()


def interval(values: list[float]) -> tuple[float, float, float]:
    mean = float(np.mean(values))
    low, high = scipy.stats.t.interval(
        0.95, len(values) - 1, loc=mean, scale=scipy.stats.sem(values) or 1e-300
    )
    return mean, float(low), float(high)


def numbers_of(estimate: Any) -> Any:
    return pytest.approx((estimate.mean, estimate.low, estimate.high), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_contribution_is_what_copies_without_and_with_the_head_alone_lose(kind: type[nn.Module]) -> None:
    model = make_model(kind).eval()
    loss, batches = loss_of(model), examples()
    base_losses = [loss(batch).item() for batch in batches]
    worths = contributions(gates_of(model), loss, batches)
    assert [(worth.layer, worth.head) for worth in worths] == [(i, h) for i in range(L) for h in range(H)]
    for worth in worths:
        without = loss_of(zero_heads(model, {worth.layer: [worth.head]}))
        alone = loss_of(zero_heads(model, {worth.layer: [h for h in range(H) if h != worth.head]}))
        for ablated_loss, estimate in ((without, worth.without), (alone, worth.alone)):
            changes = [
                ablated_loss(batch).item() - before
                for batch, before in zip(batches, base_losses, strict=True)
            ]
            assert interval(changes) == numbers_of(estimate)


def test_an_outputs_change_is_its_distance_relative_to_its_size() -> None:
    model = make_model(PackedAttention).eval()
    worths = contributions(gates_of(model), lambda batch: model(batch[0]), examples())
    copy = zero_heads(model, {1: [2]})
    changes = []
    for x, _ in examples():
        before, after = (network(x).detach().numpy().ravel() for network in (model, copy))
        changes.append(float(np.sqrt(((after - before) ** 2).sum() / (before**2).sum())))
    [head] = [worth for worth in worths if (worth.layer, worth.head) == (1, 2)]
    assert interval(changes) == numbers_of(head.without)


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_given_back_to_the_bit(kind: type[nn.Module]) -> None:
    model = make_model(kind).train()
    next(model.parameters()).requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    requires = [param.requires_grad for param in model.parameters()]
    x, _ = together(examples())
    output = model(x)
    gates = gates_of(model)
    contributions(gates, loss_of(model), examples())
    pruning_curve(gates, loss_of(model), choose=examples(2), judge=examples(3))
    importance_intervals(gates, loss_of(model), examples())
    with pytest.raises(ZeroDivisionError), gates.prune_temporarily({0: [1]}):
        raise ZeroDivisionError
    assert gates.pruned == {}
    assert all(module.training for module in model.modules())
    assert [param.requires_grad for param in model.parameters()] == requires
    assert all(param.grad is None for param in model.parameters())
    assert torch.equal(model(x), output)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_heads_that_are_pruned_stay_so(kind: type[nn.Module]) -> None:
    model = make_model(kind).eval()
    copy = zero_heads(model, {0: [2]})
    expected = contributions(gates_of(copy), loss_of(copy), examples())
    gates = gates_of(model)
    gates.prune({0: [2]})
    worths = contributions(gates, loss_of(model), examples())
    assert gates.pruned == {0: (2,)}
    expected_worths = [worth for worth in expected if (worth.layer, worth.head) != (0, 2)]
    assert [(worth.layer, worth.head) for worth in worths] == [
        (worth.layer, worth.head) for worth in expected_worths
    ]
    for worth, expected_worth in zip(worths, expected_worths, strict=True):
        assert worth.without.mean == pytest.approx(expected_worth.without.mean, abs=1e-12)
        assert worth.alone.mean == pytest.approx(expected_worth.alone.mean, abs=1e-12)


@pytest.mark.parametrize("normalise", [False, True])
def test_importance_has_the_interval_of_a_jackknife_over_batches(normalise: bool) -> None:
    model = make_model(CausalAttention)
    gates = AttendGates(model, num_heads=H)
    batches = [together(examples()[:2]), *examples()[2:]]
    head_intervals = importance_intervals(gates, loss_of(model), batches, normalise=normalise)
    full_importance = torch.stack(gates.importance(loss_of(model), batches, normalise=normalise))
    count = len(batches)
    leave_one_out = torch.stack(
        [
            torch.stack(gates.importance(loss_of(model), batches[:n] + batches[n + 1 :], normalise=normalise))
            for n in range(count)
        ]
    ).numpy()
    error = np.sqrt((count - 1) / count * ((leave_one_out - leave_one_out.mean(axis=0)) ** 2).sum(axis=0))
    half = scipy.stats.t.ppf(0.975, count - 1) * error
    assert len(head_intervals) == L * H
    for head_interval in head_intervals:
        index = (head_interval.layer, head_interval.head)
        mean = full_importance[index].item()
        assert (mean, mean - half[index], mean + half[index]) == numbers_of(head_interval.importance)


@pytest.mark.parametrize("kind", KINDS)
def test_the_curve_is_the_loss_of_copies_without_the_least_important_heads(kind: type[nn.Module]) -> None:
    model = make_model(kind).eval()
    gates = gates_of(model)
    choose, judge = examples()[:2], examples()[2:]
    curve = pruning_curve(gates, loss_of(model), choose=iter(choose), judge=iter(judge))
    importance = gates.importance(loss_of(model), choose)
    base_losses = [loss_of(model)(batch).item() for batch in judge]
    assert [point.count for point in curve.points] == list(range(L * (H - 1) + 1))
    for point in curve.points:
        heads = least_important(importance, point.count)
        assert point.heads == heads
        copy = loss_of(zero_heads(model, {layer: list(numbers) for layer, numbers in heads.items()}))
        losses = [copy(batch).item() for batch in judge]
        assert interval(losses) == numbers_of(point.loss)
        changes = [loss - before for loss, before in zip(losses, base_losses, strict=True)]
        assert interval(changes) == numbers_of(point.change)
    assert curve.batches == len(judge)


def losses_of(value: float) -> Callable[[Example], Tensor]:
    return lambda batch: torch.tensor(value)


def test_what_cannot_be_measured_is_said() -> None:
    model = make_model(PackedAttention)
    gates, loss = gates_of(model), loss_of(model)
    for call in (
        lambda: contributions(gates, loss, examples(1)),
        lambda: importance_intervals(gates, loss, examples(1)),
        lambda: pruning_curve(gates, loss, choose=examples(1), judge=examples(1)),
    ):
        with pytest.raises(UsageError, match="Given 1 batches.*Give at least two"):
            call()
    with pytest.raises(UsageError, match="not finite"):
        contributions(gates, losses_of(float("nan")), examples())
    with pytest.raises(UsageError, match="Given count=7, but 6 heads"):
        pruning_curve(gates, loss, choose=examples(1), judge=examples(2), counts=[7])
    outputs = {"choose": examples(1), "judge": examples(2)}
    with pytest.raises(UsageError, match="shape"):
        pruning_curve(gates, lambda batch: model(batch[0]), **outputs)
    gates.prune({0: [0]})
    with pytest.raises(UsageError, match="Open all gates first"):
        pruning_curve(gates, loss, choose=examples(1), judge=examples(2))
