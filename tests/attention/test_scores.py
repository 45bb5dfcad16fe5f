"""pass@k beside all subsets, and answers compared by hand."""

from __future__ import annotations

from itertools import combinations
from statistics import fmean

import pytest
import torch
from torch import Tensor

from tempopt.attention.generation import exact_match, majority_vote, pass_at_k, pass_at_k_of
from tempopt.errors import UsageError

ANSWERS = torch.tensor([[[1, 2], [3, 4], [3, 4], [1, 2]], [[5, 5], [5, 6], [6, 5], [5, 6]]])
TARGETS = torch.tensor([[1, 2], [5, 6]])


@pytest.mark.parametrize("num_samples", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_all_subsets_with_a_correct_sample(num_samples: int) -> None:
    for num_correct in range(num_samples + 1):
        samples = [index < num_correct for index in range(num_samples)]
        for k in range(1, num_samples + 1):
            share = fmean(any(subset) for subset in combinations(samples, k))
            assert pass_at_k(num_samples, num_correct, k) == pytest.approx(share, abs=1e-12)


def test_of_samples_each_prompt_has_its_own() -> None:
    correct = torch.tensor([[True, False, False], [True, True, True], [False, False, False]])
    assert pass_at_k_of(correct, 2).tolist() == pytest.approx([2 / 3, 1.0, 0.0])
    assert pass_at_k_of(correct, 1).tolist() == pytest.approx(correct.float().mean(1).tolist())


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ((5, 2, 6), "pass@6 of 5 samples"),
        ((5, 2, 0), "pass@0 of 5 samples"),
        ((5, 6, 1), "5 samples, 6 of them correct"),
        ((0, 0, 1), "of 0 samples"),
        ((5, -1, 1), "-1 of them correct"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(counts: tuple[int, int, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pass_at_k(*counts)


def test_an_exact_match_is_one_in_all_tokens() -> None:
    assert exact_match(ANSWERS, TARGETS).tolist() == [[True, False, False, True], [False, True, False, True]]


def test_the_majority_is_the_most_frequent_answer_and_of_equal_ones_the_first() -> None:
    assert majority_vote(ANSWERS).tolist() == [[1, 2], [5, 6]]
    assert majority_vote(ANSWERS[:, 1:]).tolist() == [[3, 4], [5, 6]]


@pytest.mark.parametrize("answers", [ANSWERS[0], ANSWERS[:, :0], ANSWERS[:, :, :1]])
def test_answers_of_another_shape_are_refused(answers: Tensor) -> None:
    with pytest.raises(UsageError, match="The answers have the shape"):
        exact_match(answers, TARGETS)
    with pytest.raises(UsageError, match="column for each of its samples"):
        pass_at_k_of(torch.ones(3), 1)
