"""Scores of sampled answers: pass@k, exact match and majority vote.

Each is a value per prompt; return it from ``validation_step`` by item.

Shapes: B prompts, S samples of each, L tokens of an answer.
"""

from __future__ import annotations

from math import comb

import torch
from torch import Tensor

from tempopt.errors import UsageError


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return an unbiased estimate of the probability that at least one of ``k`` samples is correct.

    1 − C(n − c, k) / C(n, k): the share of the subsets of ``k`` of the ``n`` samples that contain a correct
    one (Chen et al. 2021, "Evaluating large language models trained on code", arXiv:2107.03374).

    Args:
        num_samples: Number n of samples of a prompt, >= 1.
        num_correct: Number c of correct ones among them, from 0 to n.
        k: From 1 to n.

    Raises:
        UsageError: A number is out of its range.
    """
    if not (0 <= num_correct <= num_samples and 1 <= k <= num_samples):
        raise UsageError(
            f"pass@{k} of {num_samples} samples, {num_correct} of them correct: k is from 1, and the correct "
            "ones from 0, to the number of samples. Draw at least k samples of each prompt."
        )
    return 1.0 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def pass_at_k_of(correct_BS: Tensor, k: int) -> Tensor:
    """Return :func:`pass_at_k` of each prompt, of shape (B,), in float32.

    Args:
        correct_BS: Whether each sample is correct, shape (B, S).
        k: From 1 to S.

    Raises:
        UsageError: The shape or ``k`` does not fit.
    """
    if correct_BS.dim() != 2:
        raise UsageError(
            f"correct_BS has the shape {tuple(correct_BS.shape)}. Give a row for each prompt and a "
            "column for each of its samples."
        )
    num_samples = correct_BS.shape[1]
    by_count = [pass_at_k(num_samples, count, k) for count in range(num_samples + 1)]
    count_B = correct_BS.bool().sum(1)
    return torch.tensor(by_count, dtype=torch.float32, device=correct_BS.device)[count_B]


def exact_match(answers_BSL: Tensor, wanted_BL: Tensor) -> Tensor:
    """Return whether all tokens of each sample equal the wanted answer, of shape (B, S).

    Args:
        answers_BSL: Tokens of the samples, shape (B, S, L); pad shorter ones.
        wanted_BL: Tokens of the correct answer of each prompt, shape (B, L), padded equally.

    Raises:
        UsageError: The shapes do not fit.
    """
    _check_answers(answers_BSL, wanted_BL)
    return (answers_BSL == wanted_BL[:, None]).all(-1)


def majority_vote(answers_BSL: Tensor) -> Tensor:
    """Return the most frequent sample of each prompt, of shape (B, L); if several are equal, the first.

    Its exact match is the accuracy of self-consistency (Wang et al. 2023, arXiv:2203.11171), which extracts
    the answers from chains of thought before counting them.

    Args:
        answers_BSL: Tokens of the answers, shape (B, S, L).

    Raises:
        UsageError: The shape does not fit.
    """
    _check_answers(answers_BSL)
    votes_BS = (answers_BSL[:, :, None] == answers_BSL[:, None]).all(-1).sum(-1)
    first_B = votes_BS.argmax(1)
    rows_B = torch.arange(len(answers_BSL), device=answers_BSL.device)
    return answers_BSL[rows_B, first_B]


def _check_answers(answers_BSL: Tensor, wanted_BL: Tensor | None = None) -> None:
    fits = answers_BSL.dim() == 3 and answers_BSL.shape[1] > 0
    if fits and wanted_BL is not None:
        fits = tuple(wanted_BL.shape) == (answers_BSL.shape[0], answers_BSL.shape[2])
    if not fits:
        target_text = "" if wanted_BL is None else f" and wanted_BL {tuple(wanted_BL.shape)}"
        raise UsageError(
            f"The answers have the shape {tuple(answers_BSL.shape)}{target_text}. Give (prompts, "
            f"samples, tokens){' and (prompts, tokens)' * (wanted_BL is not None)}, filled to the same "
            "number of tokens."
        )
