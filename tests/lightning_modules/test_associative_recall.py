"""Associative recall: the task, causality, splits and learning."""

from __future__ import annotations

from collections.abc import Callable

import lightning as L
import torch

from lightning_modules.associative_recall import AssociativeRecall, AssociativeRecallData, draw_recall

Fit = Callable[..., L.Trainer]


def test_each_query_asks_for_the_value_that_followed_its_key() -> None:
    recall = draw_recall(50, 8, vocabulary=32, generator=torch.Generator().manual_seed(0))
    assert recall.tokens_BN.shape == (50, 24)
    for tokens, values in zip(recall.tokens_BN.tolist(), recall.values_BQ.tolist(), strict=True):
        value_by_key = dict(zip(tokens[0:16:2], tokens[1:16:2], strict=True))
        assert len(value_by_key) == 8
        assert max(value_by_key) < 16 <= min(value_by_key.values())
        assert sorted(tokens[16:]) == sorted(value_by_key)
        assert [value_by_key[key] for key in tokens[16:]] == values


def test_an_answer_does_not_depend_on_later_questions() -> None:
    torch.manual_seed(0)
    module, recall = AssociativeRecall(), draw_recall(4, 8, vocabulary=128)
    changed = recall.tokens_BN.clone()
    changed[:, -3:] = 0
    before, after = module(recall), module(recall._replace(tokens_BN=changed))
    assert torch.allclose(before[..., :-3], after[..., :-3], atol=1e-6)
    assert not torch.allclose(before[..., -3:], after[..., -3:], atol=1e-3)


def test_test_sequences_are_new_for_each_run_and_never_those_of_validation() -> None:
    data = AssociativeRecallData(pairs=(16,), num_sequences=8)
    data.setup("fit")
    (validation_batch,) = data.val_dataloader()[0]
    test_tokens = []
    for run_seed in (1, 1, 2):
        torch.manual_seed(run_seed)
        (batch,) = data.test_dataloader()[0]
        test_tokens.append(batch.tokens_BN)
    assert torch.equal(test_tokens[0], test_tokens[1])
    assert not torch.equal(test_tokens[0], test_tokens[2])
    assert not torch.equal(test_tokens[0], validation_batch.tokens_BN)


def test_it_learns_an_easy_case_in_a_plain_trainer(fit: Fit) -> None:
    module = AssociativeRecall(vocabulary=16, d_model=32)
    data = AssociativeRecallData(num_pairs=2, vocabulary=16, pairs=(2, 4), num_sequences=64)
    logged = fit(module, data, steps=130).callback_metrics
    assert logged["val_accuracy_2"] > 0.8
    assert logged["val_success"] == float(logged["val_accuracy"] > 0.5)
