"""Max retrieval: labels, splits, learning, and the parameters that make a module again."""

from __future__ import annotations

from collections.abc import Callable

import lightning as L
import pytest
import torch

from lightning_modules.max_retrieval import MaxRetrieval, MaxRetrievalData, Sets, draw_sets

Fit = Callable[..., L.Trainer]


def small_data(**changes: int) -> MaxRetrievalData:
    return MaxRetrievalData(sizes=(32, 64), num_sets=(20, 10), num_sets_id=30, **changes)


def test_the_label_is_the_class_of_the_item_of_highest_priority() -> None:
    sets = draw_sets(200, 4, 16, num_classes=10, generator=torch.Generator().manual_seed(0))
    assert sets.valid_BN is not None
    for items, valid, label in zip(sets.items_BNF, sets.valid_BN, sets.label_B, strict=True):
        valid_items = [
            item for item, is_there in zip(items.tolist(), valid.tolist(), strict=True) if is_there
        ]
        assert 4 <= len(valid_items) <= 16
        priority, *one_hot = max(valid_items)
        assert 0.0 <= priority < 1.0
        assert one_hot == [float(number == label) for number in range(10)]


def test_padding_is_empty_and_comes_last() -> None:
    sets = draw_sets(200, 4, 16, num_classes=10, generator=torch.Generator().manual_seed(0))
    assert sets.valid_BN is not None
    assert (sets.items_BNF[~sets.valid_BN] == 0).all()
    assert (sets.valid_BN.int().diff(dim=1) <= 0).all()
    assert set(sets.valid_BN.sum(1).tolist()) == set(range(4, 17))


def test_sets_of_one_size_need_no_mask() -> None:
    assert draw_sets(3, 8, 8, num_classes=10).valid_BN is None


def test_the_module_does_not_see_padding() -> None:
    torch.manual_seed(0)
    module, sets = MaxRetrieval(length_scaling="log_n"), draw_sets(50, 4, 16, num_classes=10)
    assert sets.valid_BN is not None
    noise = torch.randn_like(sets.items_BNF) * ~sets.valid_BN[..., None]
    changed = sets._replace(items_BNF=sets.items_BNF + noise)
    assert torch.equal(module(sets), module(changed))


def load_batches(loaders: list[torch.utils.data.DataLoader[Sets]]) -> list[Sets]:
    return [batch for loader in loaders for batch in loader]


def test_validation_sets_are_the_same_in_all_runs() -> None:
    batches = []
    for run_seed in (1, 2):
        torch.manual_seed(run_seed)
        data = small_data(seed=5)
        data.setup("fit")
        batches.append(load_batches(data.val_dataloader()))
    for first_sets, second_sets in zip(*batches, strict=True):
        assert torch.equal(first_sets.items_BNF, second_sets.items_BNF)


def test_test_sets_are_new_for_each_run_and_shaped_like_validation_sets() -> None:
    data = small_data()
    data.setup("fit")
    runs = []
    for run_seed in (1, 1, 2):
        torch.manual_seed(run_seed)
        runs.append(load_batches(data.test_dataloader()))
    validation = load_batches(data.val_dataloader())
    assert [batch.items_BNF.shape for batch in runs[0]] == [batch.items_BNF.shape for batch in validation]
    for first_sets, repeated_sets, other_sets, validation_sets in zip(*runs, validation, strict=True):
        assert torch.equal(first_sets.items_BNF, repeated_sets.items_BNF)
        assert not torch.equal(first_sets.items_BNF, other_sets.items_BNF)
        assert not torch.equal(first_sets.items_BNF, validation_sets.items_BNF)


def test_it_learns_what_it_is_trained_on_in_a_plain_trainer(fit: Fit) -> None:
    logged = fit(MaxRetrieval(), small_data(), steps=100).callback_metrics
    assert logged["val_accuracy_id"] > 0.6
    assert logged["val_accuracy"].item() == pytest.approx(
        (logged["val_accuracy_32"] + logged["val_accuracy_64"]).item() / 2
    )


def test_length_scaling_changes_what_large_sets_are_answered() -> None:
    torch.manual_seed(0)
    plain, sets = MaxRetrieval(), draw_sets(20, 64, 64, num_classes=10)
    scaled = MaxRetrieval(length_scaling="log_n", n0=16.0)
    scaled.load_state_dict(plain.state_dict())
    # ln 64 / ln 16 = 3/2
    with torch.no_grad():
        for parameter in (plain.q_proj.weight, plain.q_proj.bias):
            parameter *= 1.5
    assert torch.allclose(plain(sets), scaled(sets), atol=1e-5)
