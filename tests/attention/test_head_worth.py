"""What heads are worth: against copies whose heads are zeroed by hand, jackknives and scipy's intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

from tempopt.attention.analysis.head_worth import contributions, importance_intervals, pruning_curve
from tempopt.attention.modules.head_gates import AttendGates, least_important
from tempopt.errors import UsageError
from tests.attention.test_heads import (
    Attending,
    Example,
    H,
    L,
    Packed,
    examples,
    gates_of,
    loss_of,
    made,
    scaled,
    together,
)

KINDS = [Attending, Packed]


def zeroed(model: nn.Module, heads: dict[int, list[int]]) -> nn.Module:
    for layer, numbers in heads.items():
        for head in numbers:
            model = scaled(model, layer, head, 0.0)
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
    model = made(kind).eval()
    loss, batches = loss_of(model), examples()
    whole = [loss(batch).item() for batch in batches]
    found = contributions(gates_of(model), loss, batches)
    assert [(each.layer, each.head) for each in found] == [(i, h) for i in range(L) for h in range(H)]
    for each in found:
        without = loss_of(zeroed(model, {each.layer: [each.head]}))
        alone = loss_of(zeroed(model, {each.layer: [h for h in range(H) if h != each.head]}))
        for other, estimate in ((without, each.without), (alone, each.alone)):
            changes = [other(batch).item() - before for batch, before in zip(batches, whole, strict=True)]
            assert interval(changes) == numbers_of(estimate)


def test_an_outputs_change_is_its_distance_relative_to_its_size() -> None:
    model = made(Packed).eval()
    found = contributions(gates_of(model), lambda batch: model(batch[0]), examples())
    copy = zeroed(model, {1: [2]})
    changes = []
    for x, _ in examples():
        before, after = (each(x).detach().numpy().ravel() for each in (model, copy))
        changes.append(float(np.sqrt(((after - before) ** 2).sum() / (before**2).sum())))
    [head] = [each for each in found if (each.layer, each.head) == (1, 2)]
    assert interval(changes) == numbers_of(head.without)


def test_a_head_that_does_nothing_changes_nothing() -> None:
    model = zeroed(made(Packed), {0: [1]})
    head = contributions(gates_of(model), loss_of(model), examples())[1]
    assert (head.without.mean, head.without.low, head.without.high) == (0.0, 0.0, 0.0)
    assert head.alone.mean != 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_given_back_to_the_bit(kind: type[nn.Module]) -> None:
    model = made(kind).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x, _ = together(examples())
    output = model(x)
    gates = gates_of(model)
    contributions(gates, loss_of(model), examples())
    pruning_curve(gates, loss_of(model), choose=examples(2), judge=examples(3))
    importance_intervals(gates, loss_of(model), examples())
    with pytest.raises(ZeroDivisionError), gates.closed({0: [1]}):
        raise ZeroDivisionError
    assert gates.pruned == {}
    assert all(each.training for each in model.modules())
    assert torch.equal(model(x), output)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_heads_that_are_pruned_stay_so(kind: type[nn.Module]) -> None:
    model = made(kind).eval()
    copy = zeroed(model, {0: [2]})
    expected = contributions(gates_of(copy), loss_of(copy), examples())
    gates = gates_of(model)
    gates.prune({0: [2]})
    found = contributions(gates, loss_of(model), examples())
    assert gates.pruned == {0: (2,)}
    kept = [each for each in expected if (each.layer, each.head) != (0, 2)]
    assert [(each.layer, each.head) for each in found] == [(each.layer, each.head) for each in kept]
    for one, other in zip(found, kept, strict=True):
        assert one.without.mean == pytest.approx(other.without.mean, abs=1e-12)
        assert one.alone.mean == pytest.approx(other.alone.mean, abs=1e-12)


@pytest.mark.parametrize("normalise", [False, True])
def test_importance_has_the_interval_of_a_jackknife_over_batches(normalise: bool) -> None:
    model = made(Attending)
    gates = AttendGates(model, num_heads=H)
    batches = [together(examples()[:2]), *examples()[2:]]
    found = importance_intervals(gates, loss_of(model), batches, normalise=normalise)
    whole = torch.stack(gates.importance(loss_of(model), batches, normalise=normalise))
    count = len(batches)
    left = torch.stack(
        [
            torch.stack(gates.importance(loss_of(model), batches[:n] + batches[n + 1 :], normalise=normalise))
            for n in range(count)
        ]
    ).numpy()
    error = np.sqrt((count - 1) / count * ((left - left.mean(axis=0)) ** 2).sum(axis=0))
    half = scipy.stats.t.ppf(0.975, count - 1) * error
    assert len(found) == L * H
    for each in found:
        place = (each.layer, each.head)
        mean = whole[place].item()
        assert (mean, mean - half[place], mean + half[place]) == numbers_of(each.importance)


def test_importance_of_batches_of_one_size_has_the_plain_t_interval() -> None:
    model = made(Packed)
    gates = gates_of(model)
    single = [
        torch.stack(gates.importance(loss_of(model), [each], normalise=False)).flatten().tolist()
        for each in examples()
    ]
    found = importance_intervals(gates, loss_of(model), examples(), normalise=False)
    for values, each in zip(zip(*single, strict=True), found, strict=True):
        assert interval(list(values)) == numbers_of(each.importance)


@pytest.mark.parametrize("kind", KINDS)
def test_the_curve_is_the_loss_of_copies_without_the_least_important_heads(kind: type[nn.Module]) -> None:
    model = made(kind).eval()
    gates = gates_of(model)
    choose, judge = examples()[:2], examples()[2:]
    curve = pruning_curve(gates, loss_of(model), choose=iter(choose), judge=iter(judge))
    importance = gates.importance(loss_of(model), choose)
    whole = [loss_of(model)(batch).item() for batch in judge]
    assert [point.count for point in curve.points] == list(range(L * (H - 1) + 1))
    for point in curve.points:
        heads = least_important(importance, point.count)
        assert point.heads == heads
        copy = loss_of(zeroed(model, {layer: list(numbers) for layer, numbers in heads.items()}))
        losses = [copy(batch).item() for batch in judge]
        assert interval(losses) == numbers_of(point.loss)
        changes = [loss - before for loss, before in zip(losses, whole, strict=True)]
        assert interval(changes) == numbers_of(point.change)
    assert curve.batches == len(judge)


def test_some_points_of_the_curve_are_those_of_the_whole() -> None:
    model = made(Packed)
    parts: dict[str, Any] = {"choose": examples()[:2], "judge": examples()[2:]}
    whole = pruning_curve(gates_of(model), loss_of(model), **parts)
    some = pruning_curve(gates_of(model), loss_of(model), counts=[5, 2], **parts)
    assert some.points == tuple(whole.points[count] for count in (0, 2, 5))
    assert some.rows()[1]["loss"]["mean"] == some.points[1].loss.mean
    lines = str(some).splitlines()
    assert lines[0] == "loss with the least important heads masked, mean over 3 batches (95 %)"
    assert [line.split()[0] for line in lines[2:]] == ["0", "2", "5"]
    losses = [point.loss.mean for point in some.points]
    bars = [line.count("█") for line in lines[2:]]
    assert bars.index(30) == losses.index(max(losses))
    assert bars.index(0) == losses.index(min(losses))


def test_choosing_and_judging_on_the_same_batches_is_refused() -> None:
    model, batches = made(Packed), examples()
    with pytest.raises(UsageError, match="both to choose heads on and to judge"):
        pruning_curve(gates_of(model), loss_of(model), choose=batches[:3], judge=batches[2:])


def losses_of(value: float) -> Callable[[Example], Tensor]:
    return lambda batch: torch.tensor(value)


def test_what_cannot_be_measured_is_said() -> None:
    model = made(Packed)
    gates, loss = gates_of(model), loss_of(model)
    for one in (
        lambda: contributions(gates, loss, examples(1)),
        lambda: importance_intervals(gates, loss, examples(1)),
        lambda: pruning_curve(gates, loss, choose=examples(1), judge=examples(1)),
    ):
        with pytest.raises(UsageError, match="Given 1 batches.*Give at least two"):
            one()
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
