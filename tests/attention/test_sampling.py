"""What may be drawn, beside transformers' processors of logits, and how often it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tempopt.attention.generation import allowed_logits, generation_kwargs, sample
from tempopt.errors import UsageError
from tempopt.temperature import GenerationParameters

ALL = [
    {},
    {"sampling_temperature": 0.5},
    {"sampling_temperature": 3.0},
    {"top_k_tokens": 1},
    {"top_k_tokens": 7},
    {"top_k_tokens": 400},
    {"top_p": 1e-6},
    {"top_p": 0.3},
    {"top_p": 0.999},
    {"min_p": 0.05},
    {"min_p": 0.999},
    {"sampling_temperature": 1.7, "top_k_tokens": 20, "top_p": 0.8, "min_p": 0.1},
    {"sampling_temperature": 0.3, "top_k_tokens": 5, "top_p": 0.95, "min_p": 0.01},
    {"sampling_temperature": 0.0},
    {"sampling_temperature": 0.0, "top_p": 0.5, "top_k_tokens": 3},
]


def logits(rows: int = 64, vocabulary: int = 50) -> Tensor:
    return 3.0 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0))


def by_transformers(scores: Tensor, parameters: GenerationParameters) -> Tensor:
    """Return what transformers' own processors, as a model of its has them of a config, make of logits."""
    transformers = pytest.importorskip("transformers", reason="NOT TESTED: the order of transformers.")
    config = transformers.GPT2Config(
        vocab_size=scores.shape[1], n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    generation_config = transformers.GenerationConfig(**generation_kwargs(parameters))
    generation_config.validate(strict=True)
    processors: Any = model._get_logits_processor(generation_config=generation_config, input_ids_seq_length=1)
    return processors(torch.zeros(len(scores), 1, dtype=torch.long), scores.clone())


@pytest.mark.parametrize("options", ALL, ids=str)
def test_what_may_be_drawn_is_what_transformers_draws_from(options: dict[str, Any]) -> None:
    parameters, scores = GenerationParameters(**options), logits()
    expected = by_transformers(scores, parameters)
    filtered_logits = allowed_logits(scores, parameters)
    if parameters.is_greedy:
        # it does not sample then, and takes the largest
        assert torch.equal(filtered_logits.isfinite().sum(-1), torch.ones(len(scores), dtype=torch.long))
        assert torch.equal(filtered_logits.argmax(-1), expected.argmax(-1))
        return
    assert torch.equal(filtered_logits.isfinite(), expected.isfinite())
    torch.testing.assert_close(filtered_logits, expected)


@pytest.mark.parametrize("options", ALL, ids=str)
def test_tokens_are_drawn_as_often_as_the_softmax_of_what_is_allowed_says(options: dict[str, Any]) -> None:
    parameters, row = GenerationParameters(**options), logits(1, 12)
    draws = 20_000
    tokens = sample(row.expand(draws, -1), parameters, generator=torch.Generator().manual_seed(1))
    share = tokens.bincount(minlength=12) / draws
    expected = allowed_logits(row, parameters).softmax(-1)[0]
    assert torch.all(share[expected == 0] == 0)
    error = (expected * (1 - expected) / draws).sqrt()
    assert torch.all((share - expected).abs() <= 4.5 * error + 1e-7)


def test_dimensions_before_the_vocabulary_stay_and_half_precision_is_drawn_from_in_single() -> None:
    half_logits = logits().reshape(4, 16, 50).bfloat16()
    assert sample(half_logits, GenerationParameters(top_p=0.9)).shape == (4, 16)
    assert allowed_logits(half_logits, GenerationParameters(min_p=0.1)).dtype == torch.float32
    assert allowed_logits(half_logits.double(), GenerationParameters()).dtype == torch.float64


def test_generators_in_one_state_draw_the_same_where_both_parameters_allow_it() -> None:
    rows = logits(5000)
    plain, narrow = (
        sample(rows, GenerationParameters(**options), generator=torch.Generator().manual_seed(2))
        for options in ({}, {"top_p": 0.9})
    )
    is_allowed = allowed_logits(rows, GenerationParameters(top_p=0.9)).isfinite()
    same = plain == narrow
    # what was drawn of all tokens and is allowed, won against fewer as well
    assert torch.all(same[is_allowed.gather(1, plain[:, None])[:, 0]])
    assert 0.8 < same.float().mean() < 1.0


@pytest.mark.parametrize("shape", [(), (3, 0)])
def test_logits_without_a_vocabulary_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="Give one logit for each token of the vocabulary"):
        sample(torch.zeros(shape), GenerationParameters())
